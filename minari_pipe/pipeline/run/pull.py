"""Pull existing outputs from the DVC remote before a run makes the rest (``--pull``).

Without the flag, no run contacts the network for anything that DVC keeps.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minari_pipe.core.messages import without_credentials
from minari_pipe.errors import ConfigError, MinariPipeError, RemoteError
from minari_pipe.pipeline.run import dvc_run_cache
from minari_pipe.pipeline.run.dvc_settings import repository
from minari_pipe.pipeline.signals import run_stoppable

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo
    from dvc.stage import PipelineStage as Stage


class Pull:
    """What one command line pulls, for all the pipelines that its run brings up to date."""

    def __init__(self) -> None:
        self._remote = ""
        self._has_run_cache = False

    def outputs(self, name: str, root: Path) -> None:
        """Pull the outputs that ``dvc.lock`` of a pipeline records, and once the run-cache.

        Files that DVC has no copy of are kept; the run makes what the remote does not have.

        Args:
            name: name of the pipeline; the caller holds its driver lock.
            root: the workspace, which is the current folder.

        Raises:
            ConfigError: there is no DVC remote.
            RemoteError: it cannot be reached.
            Stopped: a signal arrived.
        """
        lines: list[str] = []

        def work() -> None:
            if not self._remote:
                self._remote = _checked_remote(root)
            with self.repository(name, root) as repo:
                lines.append(self._pulled(repo, name))

        try:
            run_stoppable(work, repair=lambda: None)
        except MinariPipeError:
            raise
        except Exception as exc:  # from DVC, or from the library of the remote's provider
            raise RemoteError(f"--pull: {_text(exc)}") from exc
        print(f"{name}: {lines[0]}", flush=True)

    def repository(self, name: str, root: Path) -> Repo:
        """Return DVC's repository; it also fetches the outputs that the run-cache restores.

        Args:
            name: name of the pipeline.
            root: the workspace for which :meth:`outputs` was called.
        """
        # Without `verify` DVC trusts that a fetched file has the hash that names it.
        settings = {"remote": {self._remote: {"verify": True}}}
        repo = repository(root, [f"pipelines/{name}/dvc.yaml"], settings)
        # Not `repo.reproduce(pull=True)`, which fails if the remote lacks a file.
        repo.stage_cache.restore = partial(repo.stage_cache.restore, pull=True)
        return repo

    def _pulled(self, repo: Repo, name: str) -> str:
        if not self._has_run_cache:
            dvc_run_cache.pull(repo)
            self._has_run_cache = True
        stages = [s for s in repo.stage.collect(f"pipelines/{name}/dvc.yaml") if _kept(s)]
        _fetch(repo, [stage for stage in stages if not _is_cached(stage)])
        here = [stage for stage in stages if _is_cached(stage)]
        n_pulled = _checked_out(repo, here)
        outs = [out for stage in stages if stage not in here for out in _kept(stage)]
        n_missing = sum(bool(out.workspace_status()) for out in outs)
        rest = f"; {n_missing} not found there, so their stages run" if n_missing else ""
        return f"pulled {n_pulled} outputs from the DVC remote {self._remote!r}{rest}"


def _kept(stage: Stage) -> list[Output]:
    """Return the outputs that DVC keeps; none if the stage never ran."""
    return [out for out in stage.outs if out.use_cache and out.hash_info]


def _is_cached(stage: Stage) -> bool:
    return not any(out.changed_cache() for out in _kept(stage))


def _fetch(repo: Repo, stages: list[Stage]) -> None:
    """Fetch the outputs that the remote has into the cache."""
    from dvc.exceptions import DownloadError
    from dvc_objects.errors import ObjectFormatError

    if not stages:
        return
    try:
        repo.fetch(_addresses(stages))
    except (DownloadError, ObjectFormatError):
        # One damaged directory listing fails the whole fetch.
        for stage in stages if len(stages) > 1 else []:
            _fetch(repo, [] if _is_cached(stage) else [stage])


def _checked_out(repo: Repo, stages: list[Stage]) -> int:
    """Return how many outputs were checked out from the cache into the workspace."""
    from dvc.exceptions import DvcException

    if not stages:
        return 0
    try:
        done = repo.checkout(_addresses(stages))
    except DvcException:  # DVC does not replace files that it has no copy of
        return sum(_checked_out(repo, [stage]) for stage in stages) if len(stages) > 1 else 0
    return len(done["added"]) + len(done["modified"])


def _addresses(stages: list[Stage]) -> list[str]:
    """Return names by which DVC finds stages even without a ``dvc.yaml`` at the root."""
    return [f"{stage.path}:{stage.name}" for stage in stages]


def _checked_remote(root: Path) -> str:
    """Return the name of the default remote if it answers."""
    from dvc.repo import Repo

    otherwise = "check that it is reachable, or leave out --pull to compute everything here"
    with Repo(str(root)) as repo:
        name = repo.config["core"].get("remote")
        if not name:
            raise ConfigError(
                "--pull: this workspace has no default DVC remote; add one with `dvc remote add "
                "--default NAME URL`, or leave out --pull to compute everything here"
            )
        try:
            remote = repo.cloud.get_remote(name)
            is_there = remote.fs.exists(remote.path)
        except Exception as exc:  # any error of the provider's library
            raise RemoteError(
                f"--pull: the DVC remote {name!r} failed: {_text(exc)}; {otherwise}"
            ) from exc
        # An object store has no empty folders.
        if not is_there and remote.fs.protocol == "local":
            raise RemoteError(
                f"--pull: the folder of the DVC remote {name!r} does not exist: {remote.path}; "
                f"{otherwise}"
            )
        return str(name)


def _text(exc: BaseException) -> str:
    """Return an exception's message in one line without credentials."""
    cause = exc
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = " ".join(f"{type(cause).__name__}: {cause}".split())
    return without_credentials(text)
