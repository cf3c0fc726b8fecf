"""Print which stages a run would execute and why, without writing anything.

DVC compares files and outputs with ``dvc.lock``. The generated files that a run would write stay
in memory, so this module compares the parameters itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from minari_pipe.pipeline.config.dvc_yaml import removed
from minari_pipe.pipeline.config.families import nested_differences
from minari_pipe.pipeline.config.import_graph import saving_nothing
from minari_pipe.pipeline.generated_yaml import check_generated
from minari_pipe.pipeline.run.dvc_ignore import refuse_hidden

if TYPE_CHECKING:
    from dvc.stage import PipelineStage

#: How many reasons of one stage, and how many characters of one value, are printed.
_N_REASONS, _N_CHARACTERS = 5, 60


_RESTORED = "would be restored from DVC's cache"


class DryRun(AbstractContextManager):
    """One dry run over all the pipelines that the command would bring up to date.

    Inside its context, no bytecode is written and no imports of the user's modules are cached.
    """

    def __init__(self) -> None:
        """Start with no stages explained."""
        self._writers: dict[str, str] = {}
        """Outputs that may change, each mapped to the stage that writes it."""
        self._restored: set[str] = set()
        """Missing outputs that would be restored from DVC's cache."""
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self._closing.enter_context(saving_nothing())
        self._closing.callback(setattr, sys, "dont_write_bytecode", sys.dont_write_bytecode)
        sys.dont_write_bytecode = True
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def explain(self, name: str, files: dict[str, str], root: Path) -> bool:
        """Print one line per stage of a pipeline and return whether any of them may run.

        Args:
            name: name of the pipeline.
            files: the texts of its generated files, as the run would write them.
            root: the workspace.
        """
        any_runs = False
        declared = yaml.safe_load(files["dvc.yaml"])["stages"]
        for stage, lock in _stages(name, declared, root):
            gone = removed(lock, declared[stage.name])
            why = self._reason(stage, lock, gone, yaml.safe_load(files["params.yaml"]))
            print(f"{name}: {stage.name} {why or 'is up to date'}", flush=True)
            outs = [str(out) for out in stage.outs]
            if why.startswith(_RESTORED):
                self._restored.update(outs)
            elif why:
                any_runs = True
                self._writers |= dict.fromkeys(outs, f"{stage.name} of {name}")
        return any_runs

    def _reason(
        self, stage: PipelineStage, lock: dict[str, Any], gone: list[str], params: dict[str, Any]
    ) -> str:
        """Return why a stage would run or may run; empty if it would not."""
        if not lock:
            return "would run: it has not run yet"
        reasons = ["its command changed"] if stage.cmd_changed else []
        reasons += [f"{path} is no longer used" for path in gone]
        reasons += _changed_params(stage, params)
        above = {
            str(dep): self._writers[str(dep)] for dep in stage.deps if str(dep) in self._writers
        }
        for dep in stage.deps:
            if str(dep) not in {*above, *self._restored} and not hasattr(dep, "params"):
                reasons += [_sentence(path, how) for path, how in dep.status().items()]
        outs = [_sentence(p, how) for out in stage.outs for p, how in out.status().items()]
        if outs and not reasons and not above and _is_cached(stage):
            return f"{_RESTORED}: {_listed(outs)}"
        if reasons or outs:
            return f"would run: {_listed([*reasons, *outs])}"
        if above:
            return f"may run: {_listed([f'{who} writes {path}' for path, who in above.items()])}"
        return ""


def _stages(
    name: str, declared: dict[str, Any], root: Path
) -> Iterator[tuple[PipelineStage, dict[str, Any]]]:
    """Yield each stage of a ``dvc.yaml`` together with its entry in ``dvc.lock``."""
    from dvc.dvcfile import Lockfile, ProjectFile
    from dvc.repo import Repo
    from dvc.stage.loader import StageLoader

    path = str(root / "pipelines" / name / "dvc.yaml")
    check_generated(root / "pipelines" / name / "dvc.lock")
    with Repo(str(root)) as repo:
        lock = Lockfile(repo, path.removesuffix(".yaml") + ".lock")
        recorded = lock.load().get("stages", {}) if lock.exists() else {}
        for stage, entry in declared.items():
            made = recorded.get(stage, {})
            loaded = StageLoader.load_stage(ProjectFile(repo, path), stage, entry, made)
            refuse_hidden([loaded])
            yield loaded, made


def _is_cached(stage: PipelineStage) -> bool:
    """Return whether DVC's run cache has the outputs of an otherwise unchanged stage."""
    from dvc.stage.cache import RunCacheNotFoundError

    try:
        stage.repo.stage_cache.restore(stage, dry=True)
    except RunCacheNotFoundError:
        return False
    return True


def _changed_params(stage: PipelineStage, params: dict[str, Any]) -> list[str]:
    """Return one sentence per parameter of a stage that differs from ``dvc.lock``."""
    found = []
    for dep in stage.deps:
        if not hasattr(dep, "params"):
            continue
        before = dep.hash_info.value or {}
        for key in dep.params:
            now = _value(params, key)
            for path, old, new in nested_differences(before.get(key), now, key):
                found.append(f"{path} {_shown(old)} -> {_shown(new)}")
    return found


def _value(params: dict[str, Any], dotted: str) -> Any:
    value: Any = params
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _sentence(path: str, how: Any) -> str:
    """Return DVC's status of a file as part of a sentence."""
    words = {
        "modified": "changed",
        "new": "is new",
        "deleted": "is missing",
        "not in cache": "is missing from DVC's cache",
    }
    return f"{path} {words.get(str(how), str(how))}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _N_CHARACTERS else f"{text[: _N_CHARACTERS - 3]}..."


def _listed(reasons: list[str]) -> str:
    more = len(reasons) - _N_REASONS
    return ", ".join(reasons[:_N_REASONS]) + (f", and {more} more" if more > 0 else "")
