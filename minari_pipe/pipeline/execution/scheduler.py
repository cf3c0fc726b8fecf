"""Submit blocks to an engine and yield their records in order: retries, time limits, failures.

The scheduler is the same for every engine. Which blocks exist and which of them count does not
depend on it: the order in which blocks end, their retries and the number of workers leave no trace
in the result.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from minari_pipe._version import __version__
from minari_pipe.errors import MinariPipeError, RemoteError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.dvc_yaml import dependency
from minari_pipe.pipeline.config.oc_env import resolved, without_values
from minari_pipe.pipeline.config.policy_refs import named_places
from minari_pipe.pipeline.execution.block_task import BlockCall, BlockPlace, Tally, Work
from minari_pipe.pipeline.execution.blocks import BlockStore, NotFinishedError
from minari_pipe.pipeline.execution.engines.base import Engine, Outcome
from minari_pipe.pipeline.execution.inputs import changed
from minari_pipe.pipeline.execution.shared_blocks import SharedBlocks
from minari_pipe.pipeline.execution.versions import processor_kind
from minari_pipe.pipeline.workspace import STATE

if TYPE_CHECKING:
    from minari_pipe.pipeline.execution.build import PolicyConfig
    from minari_pipe.pipeline.execution.stage import StageRun

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Skipped:
    """A block that failed for good, if the config says to go on without it."""

    index: int
    reason: str


class Watcher(Protocol):
    """Callbacks through which the scheduler reports progress."""

    def running(self, tallies: list[Tally]) -> None:
        """Report the progress of the blocks that run now."""

    def failed(self, index: int, reason: str, *, retry: int, of: int) -> None:
        """Report a failed attempt at a block; another one follows, number ``retry`` of ``of``."""

    def ignored(self, index: int, reason: str) -> None:
        """Report a block on disk that cannot be used and is made again."""

    def reused(self, index: int) -> None:
        """Report a block that an earlier run finished."""


@dataclass
class _Attempt:
    index: int
    work: Work
    key: str
    retries: int = 0
    started: float | None = None
    """``None`` until the worker says that it has begun: a cluster may queue it."""
    tally: Path | None = None
    raised: str | None = None
    """Error that the policy or environment raised in the previous attempt."""


@dataclass
class Scheduler:
    """Makes blocks of ``work`` with an engine, and reuses the finished ones in ``store``."""

    engine: Engine
    store: BlockStore
    key: str
    """Hash of everything that decides the blocks' bytes besides their own parameters."""
    limits: schema.Engine
    """When to retry and when to give up."""
    watcher: Watcher
    place: BlockPlace
    """Where workers find what the parameters name."""
    temporary: Path
    """Folder for files that are not needed later."""
    shared: SharedBlocks | None = None
    """Storage through which workers without a shared disk hand over their blocks."""
    kept: BlockStore | None = None
    """Where blocks are kept for other pipelines that need the same ones."""
    skips: bool = False
    """Go on without a block that failed for good, instead of failing."""
    skipped_before: Mapping[int, str] = field(default_factory=dict)
    """Blocks that are not tried because the dataset that is being reproduced lacks them, and the
    reason for each."""
    _n_failures: int = field(default=0, init=False)
    _done_early: dict[int, Tally] = field(default_factory=dict, init=False)
    """Tallies of finished blocks that wait for the blocks before them."""
    _n_tickets: int = field(default=0, init=False)
    _looked: float = field(default=0.0, init=False)

    def records(
        self, works: Iterable[Work], *, ahead: int | None = None
    ) -> Iterator[dict[str, Any] | Skipped]:
        """Yield the record of each block, in the order of ``works``.

        Closing the iterator stops the blocks that still run.

        Args:
            works: the work of block 0, 1, ...; may be endless, then pass ``ahead``.
            ahead: how many blocks may be started beyond the first unfinished one; by default the
                number of workers, which suits an unknown number of blocks.

        Raises:
            MinariPipeError: a block failed for good; finished blocks are kept.
        """
        self.store.remove_temporaries()
        ahead = ahead or self.engine.n_workers
        waiting = enumerate(works)
        again: list[tuple[int, _Attempt]] = []  # a heap by index
        running: dict[int, _Attempt] = {}
        done: dict[int, dict[str, Any] | Skipped] = {}
        due, is_all = 0, False
        try:
            while True:
                while len(running) < self.engine.n_workers:
                    attempt = None
                    if again:
                        _, attempt = heapq.heappop(again)
                    elif not is_all and len(running) + len(done) + len(again) < ahead + 1:
                        index, work = next(waiting, (None, None))
                        if index is None or work is None:
                            is_all = True
                            break
                        attempt = self._first_attempt(index, work, done)
                        if attempt is None:
                            continue
                    else:
                        break
                    self._submit(attempt, running)
                while due in done:
                    self._done_early.pop(due, None)
                    yield done.pop(due)
                    due += 1
                if is_all and not running and not again and not done:
                    return
                if running:
                    self._wait(running, again, done)
        finally:
            for ticket, attempt in running.items():
                self.engine.cancel(ticket)
                self._clean(ticket, attempt)

    def _first_attempt(
        self, index: int, work: Work, done: dict[int, dict[str, Any] | Skipped]
    ) -> _Attempt | None:
        """Return the first attempt at a block; ``None`` if the block is done."""
        if index in self.skipped_before:
            done[index] = Skipped(index, self.skipped_before[index])
            return None
        key = block_key(self.key, work)
        record = None
        for find in (self.store.find, self._fetch, self._take_kept):
            try:
                record = record or find(index, key)
            except NotFinishedError as exc:
                self.watcher.ignored(index, str(exc))
        if record is not None:
            self.watcher.reused(index)
            done[index] = record
            return None
        return _Attempt(index, work, key)

    def _fetch(self, index: int, key: str) -> dict[str, Any] | None:
        """Return the record of a block that a worker finished for an earlier run."""
        return None if self.shared is None else self.shared.fetch(index, key, self.store)

    def _take_kept(self, index: int, key: str) -> dict[str, Any] | None:
        """Return the record of a block that another pipeline finished."""
        return None if self.kept is None else self.kept.share(index, key, self.store)

    def _submit(self, attempt: _Attempt, running: dict[int, _Attempt]) -> None:
        ticket = self._n_tickets
        self._n_tickets += 1
        attempt.started = time.monotonic()
        attempt.tally = None
        if self.engine.shares_disk:
            self.temporary.mkdir(parents=True, exist_ok=True)
            attempt.tally = self.temporary / f"tally-{ticket}"
            attempt.started = None
        running[ticket] = attempt
        call = BlockCall(
            self.shared or self.store,
            attempt.index,
            attempt.key,
            attempt.work,
            str(ticket),
            self.place,
            tally=attempt.tally,
            report=(lambda tally: self.watcher.running([tally]))
            if self.engine.in_process
            else None,
            # This process already has a folder for temporary files.
            temporary=None if self.shared or self.engine.in_process else self.temporary,
        )
        self.engine.submit(ticket, call)

    def _wait(
        self,
        running: dict[int, _Attempt],
        again: list[tuple[int, _Attempt]],
        done: dict[int, dict[str, Any] | Skipped],
    ) -> None:
        for ticket, outcome in self.engine.wait(POLL_SECONDS):
            attempt = running.pop(ticket)
            if outcome.value is not None:
                outcome = self._taken_over(attempt, outcome)
            elif attempt.tally is not None and attempt.tally.exists():  # its process died
                episode = attempt.work.name_of(Tally.read(attempt.tally).n_episodes)
                outcome = replace(outcome, error=f"{outcome.error}; {_at(episode)}")
            if outcome.value is not None:
                done[attempt.index] = outcome.value
                if self.kept is not None:
                    self.store.share(attempt.index, attempt.key, self.kept)
                n_episodes, n_steps, return_sum = outcome.counts
                self._done_early[attempt.index] = Tally(
                    n_episodes=n_episodes, n_steps=n_steps, return_sum=return_sum
                )
            else:
                self._failed(ticket, attempt, outcome, again, done)
        # Not after every block: with many workers, blocks end all the time.
        if time.monotonic() - self._looked >= POLL_SECONDS / 2:
            self._look(running, again, done)
            self._looked = time.monotonic()

    def _look(
        self,
        running: dict[int, _Attempt],
        again: list[tuple[int, _Attempt]],
        done: dict[int, dict[str, Any] | Skipped],
    ) -> None:
        """Report the progress of the running blocks and cancel those that ran for too long."""
        if not self.engine.in_process:
            running_now = [Tally.read(a.tally) for a in running.values() if a.tally]
            self.watcher.running([*running_now, *self._done_early.values()])
        limit = self.limits.block_timeout_s
        for ticket, attempt in list(running.items()):
            now = time.monotonic()
            if attempt.started is None and attempt.tally is not None and attempt.tally.exists():
                attempt.started = now
            if limit is not None and now - (attempt.started or now) > limit:
                self.engine.cancel(ticket)
                del running[ticket]
                reason = f"it did not finish within {limit:g} s (engine.block_timeout_s)"
                if attempt.tally is not None:
                    n = Tally.read(attempt.tally).n_episodes
                    reason += f", {_at(attempt.work.name_of(n))} hangs or is slow"
                self._failed(ticket, attempt, Outcome(error=reason), again, done)

    def _taken_over(self, attempt: _Attempt, outcome: Outcome) -> Outcome:
        """Fetch a block that a worker stored elsewhere."""
        if self.shared is None:
            return outcome
        try:
            record = self.shared.fetch(attempt.index, attempt.key, self.store)
            if record is None:
                return Outcome(error=f"it is missing from {self.shared.address}")
            self.shared.remove(attempt.index, attempt.key)
        except (NotFinishedError, RemoteError) as exc:
            return Outcome(error=str(exc))
        return replace(outcome, value=record)

    def _failed(
        self,
        ticket: int,
        attempt: _Attempt,
        outcome: Outcome,
        again: list[tuple[int, _Attempt]],
        done: dict[int, dict[str, Any] | Skipped],
    ) -> None:
        self._clean(ticket, attempt)
        outcome = replace(outcome, error=without_values(str(outcome.error)))
        self._n_failures += 1
        reason = f"block {attempt.index}: {outcome.error}"
        if outcome.final:
            raise MinariPipeError(str(outcome.error))
        if self._n_failures > self.limits.max_failures:
            raise MinariPipeError(
                f"{self._n_failures} block attempts failed, more than "
                f"engine.max_failures={self.limits.max_failures}; last failure: {reason}"
            )
        is_certain = outcome.raised and outcome.error == attempt.raised
        attempt.raised = outcome.error if outcome.raised else None
        if attempt.retries < self.limits.max_retries and not is_certain:
            attempt.retries += 1
            self.watcher.failed(
                attempt.index,
                str(outcome.error),
                retry=attempt.retries,
                of=self.limits.max_retries,
            )
            heapq.heappush(again, (attempt.index, attempt))
            return
        tries = attempt.retries + 1
        text = f"{reason} (failed {tries} time{'s' if tries > 1 else ''})"
        if not self.skips:
            raise MinariPipeError(text)
        done[attempt.index] = Skipped(attempt.index, str(outcome.error))

    def _clean(self, ticket: int, attempt: _Attempt) -> None:
        if self.engine.shares_disk:
            self.store.remove_temporary(attempt.index, str(ticket))
        if attempt.tally is not None:
            attempt.tally.unlink(missing_ok=True)


def _at(episode: str) -> str:
    """Name the episodes in which a process may have stopped: some run side by side."""
    return f"{episode} or one running alongside it"


def block_key(key: str, work: Work) -> str:
    """Return a hash of everything that decides a block's bytes.

    Args:
        key: hash of what all blocks have in common.
        work: the block's work, a dataclass of plain values.
    """
    own = json.dumps(asdict(work), sort_keys=True)  # type: ignore[call-overload]
    return hashlib.sha256(f"{key}\n{type(work).__name__}\n{own}".encode()).hexdigest()[:20]


def _kept(root: Path, key: str, suffix: str) -> BlockStore:
    """Return the store of blocks that a workspace's pipelines share on this kind of processor."""
    # Processors of another kind may round differently.
    name = hashlib.sha256(f"{key}\n{processor_kind()}".encode()).hexdigest()[:20]
    return BlockStore(root / STATE / "measured" / name, suffix)


def make_scheduler(
    run: StageRun,
    engine: Engine,
    name: str,
    suffix: str,
    key: str,
    policies: Sequence[PolicyConfig],
    watcher: Watcher,
    *,
    is_kept: bool = False,
    skips: bool = False,
    skipped_before: Mapping[int, str] = MappingProxyType({}),
) -> Scheduler:
    """Return a scheduler for a stage's blocks called ``name``, in a folder of their own.

    Finished blocks stay there until ``dvc.lock`` records the outputs that they went into.

    Args:
        run: the execution of the stage.
        engine: runs the blocks.
        name: name of the folder.
        suffix: suffix of a block's file.
        key: hash of what decides the bytes of all blocks, see :meth:`StageRun.key`.
        policies: policies whose files are sent to workers without a shared disk.
        watcher: receives the progress.
        is_kept: whether other pipelines of the workspace may need blocks with the same key.
        skips: go on without a block that failed for good.
        skipped_before: blocks that are not tried, and the reason for each.
    """
    settings, read = run.params.engine, run.inputs
    packages = {**run.params.packages.get(run.stage, {}), "minari_pipe": __version__}
    offered = {k: f for policy in policies for k, f in policy.files(run.root).items()}
    hashes = {}
    if settings.address is not None:  # a node may have other files under the same names
        arguments = named_places(run.params, run.stage, run.root)
        named = [file for path in arguments for file in read.files(dependency(path, run.root))]
        hashes = {str(file): read.sha256(file) for file in named}
    shared, place = None, BlockPlace(run.root, packages=tuple(sorted(packages.items())))
    if settings.storage is None:
        hashes |= {str(file): read.sha256(file) for file in offered.values()}
    else:
        storage = resolved(settings.storage).rstrip("/")
        address = "/".join([storage, run.name, run.stage, name])
        shared = SharedBlocks(address, suffix)
        files = tuple((key, shared.offer(file)) for key, file in sorted(offered.items()))
        if other := [k for k, digest in files if digest != read.sha256(offered[k])]:
            raise changed(str(offered[other[0]]), run.stage)
        place = replace(place, files=files)
    place = replace(place, expected=replace(read.expected, files=hashes))
    folder = run.root / STATE / "work" / run.name / f"{run.stage}.blocks" / name
    return Scheduler(
        engine,
        BlockStore(folder, suffix),
        key,
        settings,
        watcher,
        place,
        run.temporary / "tmp",
        shared,
        kept=_kept(run.root, key, suffix) if is_kept else None,
        skips=skips,
        skipped_before=skipped_before,
    )
