"""Checks that git holds everything needed to reproduce a published version."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.config.mixtures import recomposed
from minari_pipe.pipeline.config.policy_refs import parent_datasets
from minari_pipe.pipeline.config.schema import Config, ParentDataset, Shared, params_of
from minari_pipe.pipeline.config.validate_config import recorded
from minari_pipe.pipeline.repository import (
    commit_of,
    is_repository,
    tracked_files,
    uncommitted,
    unseen_changes,
)
from minari_pipe.pipeline.run.dvc_ignore import refuse_hidden
from minari_pipe.pipeline.run.dvc_settings import check_dvc, repository
from minari_pipe.pipeline.workspace import NOT_PARAMS, check_pipeline_name, read_catalog_entry

#: Words that trust no module or model, and name no file and no place where something goes.
_ALLOWS_NOTHING = re.compile(
    r"\+dataset=[\w-]+|pipeline=[\w.-]+|\+{0,2}(dataset|author)(\.\w+)+=.*"
    r"|\+{0,2}(env\.id|(collect|policy|ref_scores\.(?!eval_env))[\w.]*)=[\w.+-]*",
    re.DOTALL,
)


def pipelines_of(name: str, root: Path) -> list[str]:
    """Return the pipelines that make a dataset, each after those it needs.

    These are the pipelines of its parents, the pipeline of its family, and its own.
    """
    params = dvc_yaml.parameters(name, root)
    found: list[str] = []
    if isinstance(params, Config):
        for parent in parent_datasets(params):
            found += pipelines_of(_maker(parent, root), root)
        if family := params.family_name:
            found.append(family)
    return list(dict.fromkeys([*found, name]))


def _maker(parent: ParentDataset, root: Path) -> str:
    """Return the pipeline that makes a parent of another dataset."""
    entry = read_catalog_entry(root, parent.id)
    return check_pipeline_name(str(entry["pipeline"] if entry else parent.dataset))


def arguments(root: Path, name: str) -> str:
    """Return the command-line arguments that made pipeline ``name``, quoted for a shell.

    A clone may have recorded some by which whoever types them would trust or send something.
    """
    overrides = (dvc_yaml.read_params(name, root) or {}).get("overrides") or [f"+dataset={name}"]
    allowing = [word for word in overrides if not _ALLOWS_NOTHING.fullmatch(word)]
    words = shlex.join(word for word in overrides if word not in allowing)
    return f"{words} (and what you need of {shlex.join(allowing)})" if allowing else words


def check_made_here(root: Path, name: str) -> None:
    """Refuse a version whose pipelines were not run in this workspace.

    A run checks what a clone's config names before anything is read.
    """
    for made in pipelines_of(name, root):
        if not dvc_yaml.is_checked(made, root):
            raise ConfigError(
                f"pipelines/{made}/params.yaml was not written in this workspace; run "
                f"python -m minari_pipe {arguments(root, name)} first"
            )


def check_current(root: Path, name: str, dataset_id: str) -> None:
    """Refuse a version that the current config, and so the commit, would not reproduce."""
    again = f"run python -m minari_pipe {arguments(root, name)}"
    for made in pipelines_of(name, root):
        params = dvc_yaml.read_params(made, root)
        if params is None or not params.get("overrides"):
            raise ConfigError(f"pipelines/{made}/params.yaml is missing or damaged; {again}")
        typed = params_of(params)
        if isinstance(typed, Shared):  # checked through the params of its datasets
            continue
        if made == name and typed.dataset.id != dataset_id:
            raise ConfigError(
                f"pipeline {name!r} now makes {typed.dataset.id!r}; to release {dataset_id!r}, "
                f"check out the commit that made it"
            )
        config = recomposed(params["overrides"], root).config
        previous = {k: v for k, v in params.items() if k not in NOT_PARAMS}
        # The installed versions do not matter: the recorded ones made the dataset.
        if recorded(config, previous.get("packages", {})) != previous:
            raise ConfigError(
                f"pipelines/{made}/params.yaml does not match conf/; {again} and commit"
            )
    for made in pipelines_of(name, root):
        now = dvc_yaml.parameters(made, root)
        text = (root / "pipelines" / made / "dvc.yaml").read_text(encoding="utf-8")
        if now is None or text != dvc_yaml.dvc_yaml(made, now, root):  # DVC reads only this file
            raise ConfigError(
                f"pipelines/{made}/dvc.yaml does not match its params.yaml; {again} and commit"
            )
    changed = [
        stage for pipeline in pipelines_of(name, root) for stage in _dvc_status(root, pipeline)
    ]
    if changed:
        raise ConfigError(
            f"pipeline {name!r} is not up to date ({', '.join(changed)}); {again} and commit"
        )


def _dvc_status(root: Path, name: str) -> list[str]:
    """Return the stages that DVC would run."""
    from dvc.exceptions import DvcException

    check_dvc(root)
    declared = str(root / "pipelines" / name / "dvc.yaml")
    try:
        with repository(root, [declared]) as repo:
            refuse_hidden(repo.index.stages)
            found = repo.status(targets=[declared])
    except DvcException as exc:
        raise ConfigError(f"DVC: {' '.join(str(exc).split())}") from exc
    return sorted(address.rpartition(":")[2] for address in found)


def committed(root: Path, name: str) -> str:
    """Return the HEAD commit after checking that it holds all that the version was made from."""
    if not is_repository(root):
        raise ConfigError(
            f"{root} is not a git repository, and a release records the git commit it was made "
            f"from; run git init and commit"
        )
    tracked = tracked_files(root)
    made = pipelines_of(name, root)
    needed = [f"pipelines/{n}/{f}" for n in made for f in ("params.yaml", "dvc.yaml", "dvc.lock")]
    needed += [p.relative_to(root).as_posix() for p in sorted((root / "conf").rglob("*.yaml"))]
    declared = [n for n in made if (root / "pipelines" / n / "dvc.yaml").is_file()]
    read = [path for _, path in dvc_yaml.inputs(declared, root)]
    if outside := [path for path in read if path.startswith("../")]:
        raise ConfigError(
            f"{name} reads {_first(outside)}, outside the workspace, which git cannot restore; "
            f"move it into the workspace and commit it (large files: dvc add)"
        )
    needed += [path for path in read if not _is_elsewhere_or_by_dvc(path, tracked)]
    missing = [path for path in dict.fromkeys(needed) if path not in tracked]
    if missing:
        raise ConfigError(
            f"not committed: {_first(missing)}; a release must be reproducible from git: run git "
            f"add on these, conf, pipelines and catalog, then git commit (large files: dvc add)"
        )
    if dirty := uncommitted(root):
        raise ConfigError(
            f"the git tree is not clean: {_first(dirty)}; commit or remove these first"
        )
    if hidden := unseen_changes(root, needed):
        raise ConfigError(
            f"git does not see that {_first(hidden)} changed; run git update-index "
            f"--really-refresh, git update-index --no-assume-unchanged --no-skip-worktree on these "
            f"files, and commit"
        )
    return str(commit_of(root, "HEAD"))


def _is_elsewhere_or_by_dvc(path: str, tracked: set[str]) -> bool:
    """Return whether ``path`` is outside the workspace, or covered by a committed .dvc file."""
    parts = path.split("/")
    above = ("/".join(parts[: i + 1]) for i in range(len(parts)))
    return path.startswith("/") or any(f"{place}.dvc" in tracked for place in above)


def _first(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
