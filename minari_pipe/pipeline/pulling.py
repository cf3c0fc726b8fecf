"""``--pull``: take from the DVC remote what somebody made already, before a run makes the rest.

Only on request: without it no run asks the network for anything that DVC keeps.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minari_pipe.errors import ConfigError, MinariPipeError, RemoteError
from minari_pipe.pipeline.stopping import run_stoppable

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo


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
            with self.repository(root) as repo:
                told.append(self._pulled(repo, name))

        try:
            run_stoppable(work, repair=lambda: None)
        except MinariPipeError:
            raise
        except Exception as exc:  # of DVC, or of the library of the remote's provider
            raise RemoteError(f"--pull: {_text(exc)}") from exc
        print(f"{name}: {told[0]}", flush=True)

    def repository(self, root: Path) -> Repo:
        """DVC's repository; where it restores a stage from the run-cache, it fetches the outputs.

        Args:
            root: the workspace, in which :meth:`outputs` was called.
        """
        from dvc.repo import Repo

        # Without `verify` DVC takes what it fetches for what its name says.
        settings = {"remote": {self._remote: {"verify": True}}}
        repo = Repo(str(root), _wait_for_lock=True, config=settings)
        # Not `repo.reproduce(pull=True)`, which fails where the remote lacks a file.
        repo.stage_cache.restore = partial(repo.stage_cache.restore, pull=True)
        return repo

    def _pulled(self, repo: Repo, name: str) -> str:
        from dvc.stage.cache import RunCacheNotSupported

        if not self._has_run_cache:
            with suppress(RunCacheNotSupported):  # over http
                repo.stage_cache.pull(None)
            self._has_run_cache = True
        stages = repo.stage.collect(f"pipelines/{name}/dvc.yaml")
        outs = [o for stage in stages for o in stage.outs if o.use_cache and o.hash_info]
        _fetch(repo, [out for out in outs if out.changed_cache()])
        here = [out for out in outs if not out.changed_cache()]
        n_pulled = _checked_out(repo, here)
        n_missing = sum(bool(out.workspace_status()) for out in outs if out not in here)
        rest = f"; it lacks {n_missing}, whose stages run" if n_missing else ""
        return f"pulled {n_pulled} outputs from the DVC remote {self._remote!r}{rest}"


def _fetch(repo: Repo, outs: list[Output]) -> None:
    """Bring outputs into the cache, those that the remote has."""
    from dvc.exceptions import DownloadError
    from dvc_objects.errors import ObjectFormatError

    if not outs:
        return
    try:
        # At once: each call reads all that the workspace declares.
        repo.fetch([out.fspath for out in outs])
    except (DownloadError, ObjectFormatError):
        # A damaged list of a folder's files ends the fetch of all.
        for out in outs if len(outs) > 1 else []:
            _fetch(repo, [out] if out.changed_cache() else [])


def _checked_out(repo: Repo, outs: list[Output]) -> int:
    """How many outputs came out of the cache into the workspace."""
    from dvc.exceptions import DvcException

    if not outs:
        return 0
    try:
        done = repo.checkout(targets=[out.fspath for out in outs])
    except DvcException:  # it refuses to replace files that it has no copy of
        return sum(_checked_out(repo, [out]) for out in outs) if len(outs) > 1 else 0
    return len(done["added"]) + len(done["modified"])


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
    return re.sub(r"//[^/@\s]*@", "//…@", text)
