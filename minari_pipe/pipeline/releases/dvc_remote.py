"""Pushes the outputs behind a dataset to the workspace's DVC remote."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from minari_pipe.core.messages import without_credentials
from minari_pipe.errors import ConfigError, MinariPipeError, RemoteError, TrustError
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.generated_yaml import check_generated
from minari_pipe.pipeline.releases.releasable import pipelines_of
from minari_pipe.pipeline.repository import tracked_files
from minari_pipe.pipeline.run.dvc_settings import check_dvc, check_receiver, quiet_dvc, repository
from minari_pipe.pipeline.workspace_links import inside

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo
    from dvc_data.hashfile.hash_info import HashInfo


@dataclass(frozen=True)
class Pushed:
    """The remote that the outputs of a version were pushed to."""

    name: str
    """Name of the remote in the workspace's DVC config."""
    url: str
    """The remote's URL, without credentials."""
    n_files: int
    """Number of files that were not there before."""


def push(name: str, root: Path) -> Pushed:
    """Push the outputs behind a dataset to the default DVC remote, unless they are already there.

    These are all outputs of its pipeline, its family's and its parents', and the dependencies of
    those pipelines that DVC tracks.

    Args:
        name: the pipeline's name.
        root: the workspace.

    Raises:
        ConfigError: there is no default remote.
        TrustError: an untrusted workspace may have chosen the remote and what is pushed to it.
        RemoteError: a file could not be pushed, or is in no cache.
    """
    from dvc.exceptions import DvcException

    quiet_dvc()
    check_dvc(root)
    check_dvc_files(name, root)
    targets = _targets(name, root)
    try:
        with repository(root, targets) as repo:
            remote = repo.config["core"].get("remote")
            if not remote:
                raise ConfigError(
                    "no DVC remote to push the outputs to; add one with `dvc remote add --default "
                    "NAME URL` and commit .dvc/config, or release with --no-push, which leaves "
                    "them on this machine"
                )
            url = without_credentials(str(repo.config["remote"][remote]["url"]))
            _refuse_other_remotes(repo, targets, remote)
            check_receiver(repo, remote)
            objects = _objects(repo, targets)
            n_files = int(repo.push(targets))
            missing = _missing(repo, objects)
    except MinariPipeError:
        raise
    except Exception as exc:  # from DVC, or from the client library of the remote
        kind = "" if isinstance(exc, DvcException) else f"{type(exc).__name__}: "
        raise RemoteError(
            f"dvc push: {kind}{_message(exc)}; no release was recorded. Check the remote and its "
            f"credentials; --no-push leaves the outputs on this machine"
        ) from exc
    if missing:
        raise RemoteError(
            f"cannot push {', '.join(missing[:5])} to {remote} ({url}): not found there or in "
            f"DVC's cache; run the pipeline again, or dvc pull"
        )
    return Pushed(remote, url, n_files)


def _refuse_other_remotes(repo: Repo, targets: list[str], default: str) -> None:
    """Refuse files whose outputs go to another remote, which `dvc add` keeps as a stranger set it.

    Raises:
        TrustError: names the file and the remote.
    """
    for file in targets:
        for out in _outs(repo, file):
            if out.remote and out.remote.lower() != default.lower():  # DVC ignores case
                raise TrustError(
                    f"{file} sends {out} to the DVC remote {out.remote!r}, not to the default, "
                    f"{default!r}; remove the line `remote: {out.remote}` from it and commit"
                )


def check_dvc_files(name: str, root: Path) -> None:
    """Refuse committed ``.dvc`` files that do not match what the pipeline read.

    Raises:
        ConfigError: names the file and says what to do.
    """
    quiet_dvc()
    check_dvc(root)
    targets = [target for target in _targets(name, root) if target.endswith(".dvc")]
    with repository(root, targets) as repo:
        _check_files(repo, targets, root)


def _targets(name: str, root: Path) -> list[str]:
    """Return the ``dvc.yaml`` and ``.dvc`` files whose outputs DVC has to push."""
    pipelines = pipelines_of(name, root)
    targets = [str(root / "pipelines" / made / "dvc.yaml") for made in pipelines]
    tracked = tracked_files(root)
    for _, dependency in dvc_yaml.inputs(pipelines, root):
        parts = dependency.split("/")
        above = ["/".join(parts[: i + 1]) + ".dvc" for i in range(len(parts))]
        files = [inside(root, root / path) for path in above if path in tracked]
        targets += [str(path) for path in files if not _is_elsewhere(path)]
    return sorted(set(targets))


def _check_files(repo: Repo, targets: list[str], root: Path) -> None:
    """Refuse ``.dvc`` files that do not match the file or folder beside them.

    DVC pushes what its cache holds under a hash, and all workspaces of a user may share the cache.
    """
    for target in targets:
        for out in _outs(repo, target):
            path = Path(str(out.fs_path))
            if not path.is_relative_to(root) or os.pardir in path.parts:
                raise ConfigError(f"{target} names {out}, which is outside the workspace")
            inside(root, path)
            if out.workspace_status():
                raise ConfigError(
                    f"{target} does not match {out}; run dvc add {quote(str(out))} to keep the "
                    f"current file, or dvc checkout {quote(str(out))} to restore the recorded one, "
                    f"and commit"
                )


def _outs(repo: Repo, target: str) -> list[Output]:
    return [out for stage in repo.stage.collect(target) for out in stage.outs]


def _is_elsewhere(path: Path) -> bool:
    """Return whether a ``.dvc`` file imports from another repository, which needs no push."""
    # DVC's own reader, which accepts some files that other YAML readers refuse.
    from dvc.utils.serialize import ParseError, load_yaml

    try:
        check_generated(path)
        deps = load_yaml(str(path)).get("deps", [])
        return any("repo" in dependency for dependency in deps)
    except (AttributeError, TypeError, ValueError, ParseError):
        return False  # DVC reports what is wrong with it


def _objects(repo: Repo, targets: list[str]) -> dict[HashInfo, str]:
    """Return the objects behind files, each with a name, after a look at those in DVC's cache.

    DVC believes a protected object, which an unpacked archive can contain as well: false bytes
    would be on the remote under the hash of true ones, for every workspace that uses it. So
    objects that DVC did not hash here are hashed, and false ones removed.
    """
    from dvc_data.hashfile.db import HashFileDB
    from dvc_data.hashfile.tree import Tree
    from dvc_objects.errors import ObjectFormatError

    cache = repo.cache.local
    found = {info for infos in repo.used_objs(targets).values() for info in infos}
    objects = {info: str(info.obj_name or info.value) for info in found}
    while found:
        info = found.pop()
        with suppress(FileNotFoundError, ObjectFormatError):
            HashFileDB.check(cache, str(info.value))
            if info.isdir:
                for key, _, file in Tree.load(cache, info):
                    objects[file] = "/".join((objects[info], *key))
                    found.add(file)
    return objects


def _missing(repo: Repo, objects: dict[HashInfo, str]) -> list[str]:
    """Return the names of objects that are not on the remote even after they are sent once more.

    If a folder's list of files is on the remote, DVC assumes that all of its files are there.
    """
    from dvc.config import RemoteConfigError
    from dvc_data.hashfile.transfer import transfer

    try:
        remote = repo.cloud.get_remote_odb(command="release")
    except RemoteConfigError:  # a version-aware remote, whose state DVC cannot query
        return []
    wanted = {info.value: info for info in objects}
    there = set(remote.oids_exist(list(wanted)))
    if there != wanted.keys():
        transfer(repo.cache.local, remote, {wanted[oid] for oid in wanted.keys() - there})
        there |= set(remote.oids_exist(list(wanted.keys() - there)))
    return sorted(objects[wanted[oid]] for oid in wanted.keys() - there)


def _message(exc: BaseException) -> str:
    cause = exc
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = f"{exc}: {cause}" if cause is not exc else str(exc)
    return without_credentials(" ".join(text.split()))
