"""``--pull``: take from the DVC remote what somebody made already, before a run makes the rest.

Only on request: without it no run asks the network for anything that DVC keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minari_pipe.core.messages import without_passwords
from minari_pipe.errors import ConfigError, MinariPipeError, RemoteError
from minari_pipe.pipeline.run.dvc_settings import repository
from minari_pipe.pipeline.signals import run_stoppable

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo
    from dvc.stage import PipelineStage as Stage


_RUN = re.compile("[0-9a-f]{2}/[0-9a-f]{64}/[0-9a-f]{64}")
"""An entry of the run-cache: the hashes of what a stage reads, and of what it wrote."""


class Pull:
    """What one command line pulls, for all the pipelines that its run brings up to date."""

    def __init__(self) -> None:
        self._remote = ""
        self._has_run_cache = False

    def outputs(self, name: str, root: Path) -> None:
        """Pull what ``dvc.lock`` of a pipeline records, and once the run-cache.

        Files that DVC has no copy of stay; what the remote does not have is left to the run.

        Args:
            name: of the pipeline, on which the caller holds the driver's lock.
            root: the workspace, which is the current folder.

        Raises:
            ConfigError: there is no DVC remote.
            RemoteError: it cannot be reached.
            Stopped: a signal arrived.
        """
        told: list[str] = []

        def work() -> None:
            if not self._remote:
                self._remote = _checked_remote(root)
            with self.repository(name, root) as repo:
                told.append(self._pulled(repo, name))

        try:
            run_stoppable(work, repair=lambda: None)
        except MinariPipeError:
            raise
        except Exception as exc:  # of DVC, or of the library of the remote's provider
            raise RemoteError(f"--pull: {_text(exc)}") from exc
        print(f"{name}: {told[0]}", flush=True)

    def repository(self, name: str, root: Path) -> Repo:
        """DVC's repository; where it restores a stage from the run-cache, it fetches the outputs.

        Args:
            name: of the pipeline.
            root: the workspace, in which :meth:`outputs` was called.
        """
        # Without `verify` DVC takes what it fetches for what its name says.
        settings = {"remote": {self._remote: {"verify": True}}}
        repo = repository(root, [f"pipelines/{name}/dvc.yaml"], settings)
        # Not `repo.reproduce(pull=True)`, which fails where the remote lacks a file.
        repo.stage_cache.restore = partial(repo.stage_cache.restore, pull=True)
        return repo

    def _pulled(self, repo: Repo, name: str) -> str:
        from dvc.stage.cache import RunCacheNotSupported

        if not self._has_run_cache:
            with suppress(RunCacheNotSupported):  # over http
                _pull_runs(repo)
            self._has_run_cache = True
        stages = [s for s in repo.stage.collect(f"pipelines/{name}/dvc.yaml") if _kept(s)]
        _fetch(repo, [stage for stage in stages if not _is_cached(stage)])
        here = [stage for stage in stages if _is_cached(stage)]
        n_pulled = _checked_out(repo, here)
        outs = [out for stage in stages if stage not in here for out in _kept(stage)]
        n_missing = sum(bool(out.workspace_status()) for out in outs)
        rest = f"; it lacks {n_missing}, whose stages run" if n_missing else ""
        return f"pulled {n_pulled} outputs from the DVC remote {self._remote!r}{rest}"


def _pull_runs(repo: Repo) -> None:
    """Pull the run-cache, of which DVC copies whatever lies in its folder: settings of git, too."""
    remote = repo.cloud.get_remote_odb(None, "fetch --run-cache", hash_name="md5-dos2unix")
    files, runs = remote.fs, remote.fs.join(remote.path, "runs")
    find = files.find

    def find_runs(path: str, *args: Any, **kwargs: Any) -> Iterator[str]:
        for name in find(path, *args, **kwargs):
            if path != runs or _RUN.fullmatch(files.as_posix(files.relpath(name, runs))):
                yield name

    files.find = find_runs
    repo.stage_cache.pull(None, remote)


def _kept(stage: Stage) -> list[Output]:
    """The outputs that DVC keeps, if the stage ever ran."""
    return [out for out in stage.outs if out.use_cache and out.hash_info]


def _is_cached(stage: Stage) -> bool:
    return not any(out.changed_cache() for out in _kept(stage))


def _fetch(repo: Repo, stages: list[Stage]) -> None:
    """Bring outputs into the cache, those that the remote has."""
    from dvc.exceptions import DownloadError
    from dvc_objects.errors import ObjectFormatError

    if not stages:
        return
    try:
        repo.fetch(_addresses(stages))
    except (DownloadError, ObjectFormatError):
        # A damaged list of a folder's files ends the fetch of all.
        for stage in stages if len(stages) > 1 else []:
            _fetch(repo, [] if _is_cached(stage) else [stage])


def _checked_out(repo: Repo, stages: list[Stage]) -> int:
    """How many outputs came out of the cache into the workspace."""
    from dvc.exceptions import DvcException

    if not stages:
        return 0
    try:
        done = repo.checkout(_addresses(stages))
    except DvcException:  # it refuses to replace files that it has no copy of
        return sum(_checked_out(repo, [stage]) for stage in stages) if len(stages) > 1 else 0
    return len(done["added"]) + len(done["modified"])


def _addresses(stages: list[Stage]) -> list[str]:
    """How DVC finds stages without the ``dvc.yaml`` at the root, where it looks for a path."""
    return [f"{stage.path}:{stage.name}" for stage in stages]


def _checked_remote(root: Path) -> str:
    """The name of the default remote, once it has answered."""
    from dvc.repo import Repo

    otherwise = "is it reachable? Without --pull the run makes everything itself"
    with Repo(str(root)) as repo:
        name = repo.config["core"].get("remote")
        if not name:
            raise ConfigError(
                "--pull: this workspace has no default DVC remote; add one with `dvc remote add "
                "--default NAME URL`, or leave out --pull: the run makes everything itself"
            )
        try:
            remote = repo.cloud.get_remote(name)
            is_there = remote.fs.exists(remote.path)
        except Exception as exc:  # whatever the library of its provider raises
            raise RemoteError(
                f"--pull: the DVC remote {name!r} fails: {_text(exc)}; {otherwise}"
            ) from exc
        # In an object store an empty folder is none.
        if not is_there and remote.fs.protocol == "local":
            raise RemoteError(
                f"--pull: the DVC remote {name!r} is a folder that is not there, {remote.path}; "
                f"{otherwise}"
            )
        return str(name)


def _text(exc: BaseException) -> str:
    """What an exception says, in one line and without passwords."""
    cause = exc
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = " ".join(f"{type(cause).__name__}: {cause}".split())
    return without_passwords(text)
