"""Run one block in a worker, from its parameters to its file, and return errors as values."""

from __future__ import annotations

import errno
import itertools
import os
import platform
import struct
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minari_pipe.core.files.changes import own_folder
from minari_pipe.core.messages import hidden_stdout, message_of, without_credentials
from minari_pipe.errors import (
    ConfigError,
    MissingDependencyError,
    Stopped,
    TrustError,
    UnsupportedSpaceError,
)
from minari_pipe.pipeline.config.schema import Environment
from minari_pipe.pipeline.execution.blocks import BlockStore
from minari_pipe.pipeline.execution.engines.base import Outcome
from minari_pipe.pipeline.execution.inputs import Expected
from minari_pipe.pipeline.execution.shared_blocks import SharedBlocks
from minari_pipe.pipeline.execution.versions import other_version, processor

if TYPE_CHECKING:
    from minari_pipe.pipeline.execution.build import PolicyConfig

_MISTAKES = (ConfigError, MissingDependencyError, TrustError, UnsupportedSpaceError)
_SECONDS_BETWEEN_TALLIES = 0.2
#: Longest error text in characters; the metadata keeps it too if the block is skipped.
LONGEST_REASON = 1000
_TALLY = struct.Struct("<qqd")


@dataclass
class Tally:
    """The progress of a block, shared with the process that waits for it."""

    path: Path | None = None
    """File to write it to; another process reads it, also to see where this one died."""
    where: Callable[[int], str] = str
    """Maps the number of finished episodes to the name of the current place."""
    report: Callable[[Tally], None] | None = None
    n_episodes: int = 0
    """Finished episodes, in the order of their numbers."""
    n_steps: int = 0
    return_sum: float = 0.0
    _reported: float = 0.0
    _file: int | None = None

    def begin(self) -> None:
        """Write the first tally: work has begun."""
        self._write()

    def step(self, n: int) -> None:
        """Count environment steps."""
        self.n_steps += n
        now = time.monotonic()
        if now - self._reported > _SECONDS_BETWEEN_TALLIES:
            self._reported = now
            self._write()
            if self.report is not None:
                self.report(self)

    def episode(self, episode_return: float) -> None:
        """Count a finished episode."""
        self.n_episodes += 1
        self.return_sum += episode_return
        self._write()  # at once: if the block hangs, the message names this episode

    def _write(self) -> None:
        if self.path is None:
            return
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            counts = _TALLY.pack(self.n_episodes, self.n_steps, self.return_sum)
            os.pwrite(self._file, counts + self.where(self.n_episodes).encode() + b"\n", 0)

    def close(self) -> None:
        """Close and remove the file: the block has ended."""
        if self._file is not None:
            os.close(self._file)
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> Tally:
        """Return the last tally in the file; an empty one if it is missing or incomplete."""
        try:
            data = path.read_bytes()
            n_episodes, n_steps, return_sum = _TALLY.unpack_from(data)
        except (OSError, struct.error):
            return cls()
        where = data[_TALLY.size :].partition(b"\n")[0].decode()
        return cls(None, lambda n: where, None, n_episodes, n_steps, return_sum)


@dataclass(frozen=True)
class BlockPlace:
    """Where a worker finds what the parameters of its work name."""

    root: Path
    """The workspace."""
    files: tuple[tuple[str, str], ...] = ()
    """Policy files that replace those of the config, by their key. The value is a sha256 on the way
    to a worker without a shared disk, and a path once that worker has fetched the file."""
    packages: tuple[tuple[str, str], ...] = ()
    """Package versions that decide the result; a cluster's nodes may have others."""
    expected: Expected | None = None
    """What a worker must have imported and read."""

    def with_files_in(self, folder: Path, shared: SharedBlocks) -> BlockPlace:
        """Fetch the files into ``folder`` and return a copy that names them there.

        Raises:
            RemoteError: a file is missing or damaged.
        """
        found = tuple((key, str(shared.take(digest, folder))) for key, digest in self.files)
        return replace(self, files=found)

    def check(self) -> None:
        """Raise if a block made here would differ from one made by the stage.

        Raises:
            ConfigError: a package has another version here, or an input changed.
        """
        if other := other_version(self.packages):
            package, here, wanted = other
            raise ConfigError(
                f"{package} is {here} on {platform.node()}, where blocks run, but {wanted} in the "
                f"stage: their bytes could differ; install {package}=={wanted} there"
            )
        self.check_used()

    def check_used(self) -> None:
        """Raise if this process used other inputs than the stage began with.

        Raises:
            ConfigError: names what changed.
        """
        if self.expected is not None:
            self.expected.check()


class Work(ABC):
    """The work of one block: a frozen dataclass of plain values, which decide the block's bytes.

    It creates anew everything that could carry state from one block to the next.
    """

    @abstractmethod
    def write(self, path: Path, tally: Tally, place: BlockPlace) -> dict[str, Any]:
        """Write the block.

        Args:
            path: the block's file.
            tally: receives the progress.
            place: where the names in the parameters are looked up.

        Returns:
            Plain JSON values to keep in the block's record.
        """

    @abstractmethod
    def name_of(self, n_finished: int) -> str:
        """Return the name of the episode that runs once ``n_finished`` episodes are finished."""


@dataclass(frozen=True)
class EpisodesWork(Work):
    """Runs a policy through the episodes from number ``first`` up to, not including, ``last``."""

    env: Environment
    policy: PolicyConfig
    first: int
    last: int
    seed: int
    n_envs: int

    def name_of(self, n_finished: int) -> str:
        return f"episode {self.first + n_finished}"


def block_ranges(n_episodes: int | None, block_episodes: int) -> Iterator[tuple[int, int]]:
    """Yield the first episode of each block, and the one after its last.

    Args:
        n_episodes: number of all episodes; ``None`` for endless blocks.
        block_episodes: number of episodes per block.

    Example:
        >>> list(block_ranges(5, 2))
        [(0, 2), (2, 4), (4, 5)]
    """
    for first in itertools.count(0, block_episodes):
        last = first + block_episodes
        if n_episodes is not None:
            last = min(last, n_episodes)
        if first >= last:
            return
        yield first, last


@dataclass(frozen=True)
class BlockCall:
    """One attempt at a block, which an engine runs somewhere."""

    store: BlockStore | SharedBlocks
    index: int
    key: str
    work: Work
    attempt: str
    place: BlockPlace
    tally: Path | None = None
    """File to write the progress to."""
    report: Callable[[Tally], None] | None = None
    """Callback for the progress, if the call runs in the same process."""
    temporary: Path | None = None
    """Folder for the files that environments leave behind."""

    def __call__(self) -> Outcome:
        """Make the block; an exception becomes an outcome with one line of text."""
        with hidden_stdout():
            return self._outcome()

    def _outcome(self) -> Outcome:
        if self.temporary is not None:
            self.temporary.mkdir(parents=True, exist_ok=True)
            tempfile.tempdir = str(self.temporary)
        tally = Tally(self.tally, self._place_of, self.report)
        tally.begin()
        try:
            place = self.place
            place.check()
            if isinstance(self.store, SharedBlocks):
                common = Path(tempfile.gettempdir())
                fetched = own_folder(common / f"minari_pipe-files-{os.getuid()}")
                place = place.with_files_in(fetched, self.store)
            record = self.store.make(
                self.index,
                self.key,
                lambda path: self._written(path, tally, place),
                attempt=self.attempt,
            )
            counts = (tally.n_episodes, tally.n_steps, tally.return_sum)
            return Outcome(value=record, counts=counts)
        except Stopped:
            raise
        except BaseException as exc:  # a Rust panic is no Exception
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                traceback.print_exc(file=sys.stderr)
            text = " ".join(without_credentials(message_of(exc)).split())
            if len(text) > LONGEST_REASON:
                text = f"{text[:LONGEST_REASON]}..."
            raised = isinstance(exc, Exception) and not isinstance(exc, OSError | MemoryError)
            return Outcome(error=text, final=_is_final(exc), raised=raised)
        finally:
            tally.close()

    def _place_of(self, n_finished: int) -> str:
        return f"block {self.index}, {self.work.name_of(n_finished)}"

    def _written(self, path: Path, tally: Tally, place: BlockPlace) -> dict[str, Any]:
        kept = self.work.write(path, tally, place)
        place.check_used()
        return {**kept, "processor": processor()}


def _is_final(exc: BaseException) -> bool:
    """Return whether another attempt would fail for the same reason."""
    if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return isinstance(exc, _MISTAKES)
