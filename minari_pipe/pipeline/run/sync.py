"""Bring ``pipelines/`` up to date with ``conf/``: stage ``config`` of the root ``dvc.yaml``.

With it a plain ``dvc repro`` follows an edited config. The stage reapplies the overrides that an
earlier command line recorded, and prints them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from minari_pipe.core.messages import escaped_stdout, one_line, print_line
from minari_pipe.errors import ConfigError, MinariPipeError
from minari_pipe.pipeline.config import conf_files, dvc_yaml
from minari_pipe.pipeline.config.families import check_family, sync_family
from minari_pipe.pipeline.config.mixtures import recomposed
from minari_pipe.pipeline.config.policy_refs import divided
from minari_pipe.pipeline.config.schema import Config, params_values
from minari_pipe.pipeline.config.tasks import names_in
from minari_pipe.pipeline.config.validate_config import prepare
from minari_pipe.pipeline.execution.inputs import Inputs
from minari_pipe.pipeline.execution.stage import EXPERIMENT_VARIABLE, typed_overrides
from minari_pipe.pipeline.repository import text_at
from minari_pipe.pipeline.run.driver import check_owner, chosen_dataset, print_versions
from minari_pipe.pipeline.workspace import NOT_PARAMS
from minari_pipe.pipeline.workspace_links import open_root


def main() -> int:
    """Recompose every dataset's pipeline; return 1 on errors or if DVC must reread the stages."""
    try:
        root = open_root()
    except MinariPipeError as exc:
        print_line("error", str(exc))
        return 1
    read = Inputs("config", root, ["conf"])  # DVC hashes conf/ only after this stage has ended
    failed = False
    new = []
    for name, overrides in _known(root).items():
        try:
            if _sync(name, overrides, root):
                new.append(name)
        except MinariPipeError as exc:
            print_line("error", f"{name}: {exc}{_orphaned(name, root)}")
            failed = True
    try:
        read.check_files()
    except MinariPipeError as exc:
        print_line("error", str(exc))
        failed = True
    if new:  # DVC read the graph before this stage ran
        print(f"the stages of {', '.join(new)} are new; run the command again", file=sys.stderr)
    return int(failed or bool(new))


def _sync(name: str, overrides: list[str], root: Path) -> bool:
    """Recompose one pipeline and return whether its stages changed."""
    composed = recomposed(overrides, root)
    if composed.name != name:
        raise ConfigError(
            f"pipelines/{name}/params.yaml belongs to pipeline {composed.name!r}; remove "
            f"pipelines/{name}"
        )
    recorded = dvc_yaml.read_params(name, root) or {}
    previous = {k: v for k, v in recorded.items() if k not in NOT_PARAMS}
    checked = previous if dvc_yaml.is_checked(name, root) else None
    given = dvc_yaml.typed_here(name, root)
    params, _ = prepare(name, composed.config, checked or None, root, given)
    new_family = _sync_family(name, params, root)
    if previous != params_values(params) and _set_by_experiment(name, root):
        print(f"{name}: pipelines/{name}/params.yaml stays as dvc exp run set it; conf/ is ignored")
        return new_family
    check_owner(name, params.dataset.id, root)
    print_versions(name, recorded, params, root)
    changed = dvc_yaml.sync(name, params, overrides, root)
    if extra := typed_overrides(composed.overrides):
        print(one_line(f"{name}: reapplying the recorded overrides {' '.join(extra)}"))
    return "dvc.yaml" in changed or new_family


def _sync_family(name: str, params: Config, root: Path) -> bool:
    """Recompose the pipeline of a dataset's family and return whether its stages changed."""
    family = params.family_name
    recorded = (family and dvc_yaml.read_params(family, root)) or {}
    shared = divided(recorded.get("overrides", []))[1]
    check_family(name, params, shared, root)
    if family is None or _set_by_experiment(family, root):
        return False
    return "dvc.yaml" in sync_family(params, shared, root)


def _known(root: Path) -> dict[str, list[str]]:
    """Map each pipeline to its overrides: the recorded ones, or those of a new config."""
    configs = sorted((root / "conf" / "dataset").glob("*.yaml"))
    # of a file with tasks, only those that have been run
    stems = [path.stem for path in configs if not names_in(path.stem)]
    found = {name: [f"+dataset={name}"] for name in stems}
    for path in sorted((root / "pipelines").glob("*/params.yaml")):
        recorded = dvc_yaml.read_params(path.parent.name, root) or {}
        # The pipeline of a family is composed together with its datasets.
        if recorded.get("overrides") and "dataset" in recorded:
            found[path.parent.name] = recorded["overrides"]
    return found


def _set_by_experiment(name: str, root: Path) -> bool:
    """Return whether ``dvc exp run -S`` may have set values in ``params.yaml``, which must stay."""
    baseline = os.environ.get(EXPERIMENT_VARIABLE)
    path = f"pipelines/{name}/params.yaml"
    if not baseline or not (root / path).is_file():
        return False
    return text_at(root, baseline, path) != (root / path).read_text("utf-8", errors="replace")


def _orphaned(name: str, root: Path) -> str:
    """Return a hint for an error of a pipeline whose config was renamed or removed, else ``""``."""
    recorded = (dvc_yaml.read_params(name, root) or {}).get("overrides") or []
    chosen = chosen_dataset(recorded)
    if chosen is None or chosen in conf_files.datasets():
        return ""
    return f". If you no longer need the dataset, remove pipelines/{name}"


if __name__ == "__main__":
    with escaped_stdout():
        sys.exit(main())
