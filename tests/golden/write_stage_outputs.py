"""Writes the sha256 of what every stage writes for a tiny fixed pipeline: stage_outputs.json.

Run it after raising ``OUTPUT_VERSION`` of a stage in minari_pipe/pipeline/config/dvc_yaml.py::

    python tests/golden/write_stage_outputs.py

It refuses to record other bytes under the same number, because an installed package's stages rerun
only when the number changes. ``--anyway`` records them, which is right as long as the number was
never in a release. A stage under the same number keeps its record if other packages or another
processor made it: its bytes cannot be compared with those made here.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "stage_outputs.json"
VERSIONS = "minari_pipe/pipeline/config/dvc_yaml.py"

CONFIG = """\
# @package _global_
defaults: [{/policy: random}, {/policy@ref_scores.expert: scripted}, _self_]
dataset:
  {id: tests/golden-v0, description: fixed, license: MIT, citation: none, algorithm_name: random}
author: {name: Ada, email: ada@example.org}
env: {id: "golden_env:Golden-v0"}
collect: {n_episodes: 5, block_episodes: 2, n_envs: 2, seed: 3, record_infos: true}
ref_scores: {n_episodes: 30, n_envs: 2, seed: 4, expert: {controller: {_target_: golden_expert.go}}}
card: {film: false, limitations: it is tiny}
"""

TRAINED = """\
# @package _global_
defaults: [{/policy: sb3}, _self_]
dataset: {id: tests/trained-v0}
author: {name: Ada}
env: {id: "golden_env:Golden-v0"}
policy:
  algorithm: ppo
  policy_kwargs: {net_arch: [4]}
  train:
    total_timesteps: 32
    normalize_observations: true
    hyperparameters: {n_steps: 16, batch_size: 8, n_epochs: 1}
collect: {n_episodes: 1}
ref_scores: {ref_min_score: 0.0, ref_max_score: 1.0}
"""

FAMILY = """\
# @package _global_
defaults: [{/policy: sb3}, _self_]
env: {id: "golden_env:Golden-v0"}
policy:
  algorithm: ppo
  policy_kwargs: {net_arch: [4]}
  train:
    total_timesteps: 64
    n_envs: 2
    hyperparameters: {n_steps: 16, batch_size: 8, n_epochs: 1}
family: {n_checkpoints: 2, checkpoint_scores: {n_episodes: 2}}
ref_scores: {ref_min_score: 0.0, ref_max_score: 1.0}
"""

OF_FAMILY = """\
# @package _global_
defaults: [{/family: shared}, _self_]
family: {kind: medium_replay, fraction: 1.0}
dataset: {id: tests/replay-v0}
author: {name: Ada}
"""

EXPERT = "def go(observation):\n    return 2\n"

CONFIGS = {"golden": CONFIG, "trained": TRAINED, "replay": OF_FAMILY}
"""Datasets; what the last one shares with its family is the pipeline ``shared``."""

STAGES = {
    "train": (("trained", "shared"), ("pipelines/trained/train", "pipelines/shared/train"), ()),
    "checkpoint_scores": (
        ("shared",),
        tuple(f"pipelines/shared/checkpoint_{f}" for f in ("scores.json", "returns.csv")),
        ("train",),
    ),
    "collect": (("golden",), ("pipelines/golden/episodes",), ()),
    "create": (
        ("golden",),
        ("pipelines/golden/dataset", "pipelines/golden/returns.csv"),
        ("collect",),
    ),
    "ref_scores": (
        ("golden", "shared"),
        tuple(
            f"pipelines/golden/{f}" for f in ("ref_scores.json", "eval_env.json", "ref_returns.csv")
        ),
        (),
    ),
    "choose": (("replay",), ("pipelines/replay/chosen.json",), ("checkpoint_scores", "ref_scores")),
    "validate": (("golden",), ("pipelines/golden/validation.json",), ("create", "ref_scores")),
    "card": (("golden",), ("pipelines/golden/card",), ("create", "ref_scores", "validate")),
    "publish": (("golden",), ("datasets", "catalog"), ("create", "ref_scores", "validate", "card")),
}
"""Of each stage: the pipelines, what it writes, and the stages whose output it reads."""

_TRAINING = ("gymnasium", "h5py", "numpy", "stable-baselines3", "torch")
PACKAGES = {
    "train": _TRAINING,
    "checkpoint_scores": _TRAINING,
    "choose": _TRAINING,
    "collect": ("gymnasium", "h5py", "numpy"),
    "create": ("gymnasium", "h5py", "numpy"),
    "ref_scores": ("gymnasium", "numpy"),
    "validate": ("gymnasium", "h5py", "numpy"),
    "card": ("gymnasium", "h5py", "numpy"),
    "publish": ("gymnasium", "h5py", "numpy"),
}
"""Packages whose other versions may write other bytes; training depends on the processor too."""


def made_with(stage: str) -> dict[str, str]:
    """What besides the package's own code decides the bytes of ``stage``."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES[stage]}
    if "h5py" in found:
        import h5py

        found["HDF5"] = h5py.version.hdf5_version
    if "torch" in found:
        from minari_pipe.pipeline.execution.versions import processor_kind

        found["torch"] = found["torch"].partition("+")[0]
        found["processor"] = processor_kind()
    return found


def outputs(
    root: Path, stages: list[str], code: dict[str, list[str]] | None = None
) -> dict[str, str]:
    """Run ``stages`` in the workspace ``root``, which is empty; the sha256 of what each wrote.

    ``code`` gets the files whose functions each stage ran.
    """
    from minari_pipe.pipeline.config import dvc_yaml, hydra_compose
    from minari_pipe.pipeline.config.families import sync_family
    from minari_pipe.pipeline.config.validate_config import prepare
    from minari_pipe.pipeline.execution.stage import StageRun

    (root / ".dvc").mkdir(parents=True)
    files = {f"dataset/{name}": text for name, text in CONFIGS.items()}
    for place, text in {**files, "family/shared": FAMILY}.items():
        config = root / "conf" / f"{place}.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(text)
    (root / "golden_env.py").write_text((HERE / "golden_env.py").read_text())
    (root / "golden_expert.py").write_text(EXPERT)
    # Python puts the folder of a script first, and golden_env.py would be taken from there.
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != HERE]
    os.environ["MINARI_PIPE_TRUSTED_MODULES"] = "golden_env,golden_expert"
    os.chdir(root)
    for name in CONFIGS:
        params, _ = prepare(name, hydra_compose.recompose([f"+dataset={name}"]).config, None, root)
        dvc_yaml.sync(name, params, [], root)
    sync_family(params, [], root)
    found = {}
    for stage in sorted(stages, key=list(STAGES).index):
        names, written, _ = STAGES[stage]
        for name in names:
            params = dvc_yaml.read_params(name, root)
            own = "train_family" if (stage, name) == ("train", "shared") else stage
            module = importlib.import_module(f"minari_pipe.pipeline.stages.{own}")
            ran: set[str] = set()
            sys.setprofile(lambda frame, *_, ran=ran: ran.add(frame.f_code.co_filename))
            module.main(StageRun(stage, name, root, params))
            sys.setprofile(None)
            if code is not None:
                code[f"{stage} of {name}"] = sorted(ran)
        found[stage] = _sha256(root, written)
    return found


def _sha256(root: Path, written: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for place in written:
        path = root / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                inner = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{file.relative_to(root).as_posix()} {inner}\n".encode())
    return digest.hexdigest()


def changed_by_itself(found: dict[str, str], golden: dict[str, Any]) -> list[str]:
    """Stages that write other bytes although all that they read is as recorded."""
    changed = [s for s in found if s in golden and golden[s]["sha256"] != found[s]]
    return [s for s in changed if not set(STAGES[s][2]) & set(changed)]


def main() -> int:
    from minari_pipe.pipeline.config.dvc_yaml import OUTPUT_VERSION

    if "--print" in sys.argv:
        code: dict[str, list[str]] = {}
        found = outputs(Path(sys.argv[2]), sys.argv[3:], code)
        print(json.dumps({"sha256": found, "code": code}))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = outputs(Path(folder) / "work", list(STAGES))
        os.chdir(HERE)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.is_file() else {}
    record = {
        stage: {
            "output_version": OUTPUT_VERSION[stage],
            "sha256": found[stage],
            "made_with": made_with(stage),
        }
        for stage in STAGES
    }
    if "--anyway" not in sys.argv:
        same_number = [s for s in golden if golden[s]["output_version"] == OUTPUT_VERSION[s]]
        elsewhere = [s for s in same_number if golden[s]["made_with"] != made_with(s)]
        unraised = set(changed_by_itself(found, golden)) & {*same_number} - {*elsewhere}
        if unraised:
            names = ", ".join(f"OUTPUT_VERSION[{stage!r}]" for stage in sorted(unraised))
            print(f"other bytes under the same number: raise {names} in {VERSIONS}")
            return 1
        record |= {stage: golden[stage] for stage in elsewhere}
    GOLDEN.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
