"""``minari-pipe release ID``: freeze a published version, and record where it came from.

The record holds what must not be in a dataset because it would change its bytes: the git commit,
the time, the platform.
"""

from __future__ import annotations

import datetime
import platform
import subprocess
from pathlib import Path
from typing import Any

import minari_pipe
from minari_pipe.dataset_id import parse_dataset_id
from minari_pipe.errors import ConfigError, DatasetNotFoundError
from minari_pipe.files import sha256_file
from minari_pipe.manifest import changed_files, read_manifest
from minari_pipe.pipeline import graph
from minari_pipe.pipeline.install import settle
from minari_pipe.pipeline.mixtures import recomposed
from minari_pipe.pipeline.params import recorded
from minari_pipe.pipeline.processes import exclusive
from minari_pipe.pipeline.stages.publish import check_released
from minari_pipe.pipeline.uses import scores_pipeline
from minari_pipe.pipeline.workspace import (
    NOT_PARAMS,
    STATE,
    check_pipeline_name,
    check_state,
    dump_json,
    find_root,
    inside,
    read_json,
    write_atomic,
)


def release(dataset_id: str) -> Path:
    """Write ``releases/<id>.json``; from then on the version is immutable.

    Raises:
        DatasetNotFoundError: nothing is published under this id.
        ConfigError: config, params, dvc.yaml or dvc.lock are not committed, the tree is not clean,
            or they do not say the same, so that nobody could make the version again.
        DatasetExistsError: the version is released, with other content.
    """
    parse_dataset_id(dataset_id)
    root = find_root()
    check_state(root)
    entry_path = inside(root, root / "catalog" / f"{dataset_id}.json")
    if not entry_path.is_file():
        raise DatasetNotFoundError(
            f"no dataset {dataset_id!r} is published in {root}; known: {_known(root)}"
        )
    entry = read_json(entry_path)
    name = check_pipeline_name(entry["pipeline"])
    busy = f"pipeline {name!r} is running in this workspace; wait for it"
    with exclusive(root / STATE / "locks" / f"{name}.driver", wait_seconds=0.5, busy=busy):
        content = _verified(root, dataset_id, entry)
        check_released(root, dataset_id, content)
        record = inside(root, root / "releases" / f"{dataset_id}.json")
        if not record.is_file():
            commit = _commit(root, name)
            _check_current(root, name, dataset_id)
            write_atomic(record, dump_json(_record(root, dataset_id, entry, content, commit)))
        settle(dataset_id, root)
    return record


def _record(
    root: Path, dataset_id: str, entry: dict[str, Any], content: dict[str, Any], commit: str
) -> dict[str, Any]:
    name = entry["pipeline"]
    return {
        "id": dataset_id,
        "pipeline": name,
        "content_sha256": content["content_sha256"],
        "manifest": content,
        "params_sha256": sha256_file(root / "pipelines" / name / "params.yaml"),
        "git_commit": commit,
        "minari_pipe": minari_pipe.__version__,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def _known(root: Path) -> str:
    catalog = root / "catalog"
    ids = [str(p.relative_to(catalog).with_suffix("")) for p in sorted(catalog.rglob("*.json"))]
    return ", ".join(ids) or "none"


def _verified(root: Path, dataset_id: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the published dataset, compared with its files."""
    published = root / "datasets" / dataset_id
    again = f"run python -m minari_pipe {_arguments(root, entry['pipeline'])}"
    content = read_manifest(published)
    if content is None:
        raise DatasetNotFoundError(f"{published} is not there, or has no manifest; {again}")
    changed = changed_files(published, content)
    if changed or content.get("content_sha256") != entry["content_sha256"]:
        raise ConfigError(
            f"{published} is not what was published ({', '.join(changed) or 'manifest.json'} "
            f"changed); {again}"
        )
    return content


def _arguments(root: Path, name: str) -> str:
    """The command line that made pipeline ``name``."""
    overrides = (graph.read_params(name, root) or {}).get("overrides")
    return " ".join(overrides) if overrides else f"+dataset={name}"


def _check_current(root: Path, name: str, dataset_id: str) -> None:
    """Refuse a version that today's config would not give, which the commit could not repeat."""
    params = graph.read_params(name, root)
    if params is None or not params.get("overrides"):
        raise ConfigError(
            f"pipelines/{name}/params.yaml is missing or damaged; run python -m minari_pipe "
            f"{_arguments(root, name)}"
        )
    if params["dataset"]["id"] != dataset_id:
        raise ConfigError(
            f"pipeline {name!r} makes {params['dataset']['id']!r} now; to release "
            f"{dataset_id!r}, check out the commit that made it"
        )
    again = f"run python -m minari_pipe {_arguments(root, name)} and commit"
    config = recomposed(params["overrides"], root).config
    previous = {k: v for k, v in params.items() if k not in NOT_PARAMS}
    # Which versions are installed now does not matter: the recorded ones made the dataset.
    if recorded(config, previous) != previous:
        raise ConfigError(f"pipelines/{name}/params.yaml is not what conf/ gives; {again}")
    changed = [
        stage
        for pipeline in dict.fromkeys([scores_pipeline(name, params), name])
        for stage in _dvc_status(root, pipeline)
    ]
    if changed:
        raise ConfigError(f"pipeline {name!r} is not up to date ({', '.join(changed)}); {again}")


def _dvc_status(root: Path, name: str) -> list[str]:
    """The stages that DVC would run."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            found = repo.status(targets=[str(root / "pipelines" / name / "dvc.yaml")])
    except DvcException as exc:
        raise ConfigError(f"DVC: {' '.join(str(exc).split())}") from exc
    return sorted(address.rpartition(":")[2] for address in found)


def _commit(root: Path, name: str) -> str:
    """The commit that holds everything the version was made from."""
    if _git(root, "rev-parse", "--is-inside-work-tree").returncode:
        raise ConfigError(
            f"a release names the git commit it was made from, and {root} is not a git repository; "
            f"run git init and commit"
        )
    tracked = set(_lines(_git(root, "ls-files")))
    needed = [f"pipelines/{name}/{f}" for f in ("params.yaml", "dvc.yaml", "dvc.lock")]
    needed += [p.relative_to(root).as_posix() for p in sorted((root / "conf").rglob("*.yaml"))]
    if (root / "pipelines" / name / "dvc.yaml").is_file():
        needed += [d for d in graph.dependencies(name, root) if not _by_dvc(d, tracked)]
    missing = [path for path in dict.fromkeys(needed) if path not in tracked]
    if missing:
        raise ConfigError(
            f"not committed: {_first(missing)}; a release must be reproducible from git. Run: "
            f"git add conf pipelines/{name} catalog && git commit (large files: dvc add)"
        )
    # The user's settings might hide untracked files.
    dirty = _lines(_git(root, "status", "--porcelain", "--untracked-files=all"))
    if dirty:
        shown = _first([line[3:] for line in dirty])
        raise ConfigError(f"the git tree is not clean: {shown}; commit or remove these first")
    return _git(root, "rev-parse", "HEAD").stdout.strip()


def _by_dvc(path: str, tracked: set[str]) -> bool:
    """Whether ``path`` lies outside, is a stage's output, or is under DVC by a committed file."""
    if path.startswith(("/", "../", "pipelines/", "datasets/")):
        return True
    parts = path.split("/")
    return any("/".join(parts[: i + 1]) + ".dvc" in tracked for i in range(len(parts)))


def _first(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stdout.splitlines()


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-c", "core.quotePath=off", *arguments]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError as exc:
        raise ConfigError("a release needs git, and there is no command git") from exc
