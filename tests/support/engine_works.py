"""Blocks of work for the tests of engines and of the scheduler, importable in every worker."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minari_pipe.errors import ConfigError, InvalidEpisodeError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.execution.block_task import BlockPlace, Tally, Work
from minari_pipe.pipeline.execution.blocks import BlockStore
from minari_pipe.pipeline.execution.engines.base import Engine
from minari_pipe.pipeline.execution.engines.local import LocalEngine
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.pipeline.execution.scheduler import Scheduler


@dataclass(frozen=True)
class Text(Work):
    """Writes a text; fails as often as ``trouble`` says, told apart by files in ``root``."""

    text: str
    trouble: str = ""
    n_failures: int = 1

    def name_of(self, n_finished: int) -> str:
        return f"episode {n_finished}"

    def write(self, path: Path, tally: Tally, place: BlockPlace) -> dict[str, Any]:
        root = place.root
        tally.step(3)
        tally.episode(1.0)
        path.write_text(self.text)
        if self.trouble == "environment":
            return {"text": os.environ.get(self.text)}
        failures = root / f"failures of {self.text}"
        with failures.open("a") as file:
            file.write("x")
        if self.trouble and failures.stat().st_size <= self.n_failures:
            _fail(self.trouble, root)
        return {"text": self.text, "pid": os.getpid()}


def _fail(trouble: str, root: Path) -> None:
    if trouble == "raises":
        raise InvalidEpisodeError("episode 7, step 2: RuntimeError: no battery")
    if trouble == "mistake":
        raise ConfigError("policy is 'x'")
    if trouble == "full":
        raise OSError(28, os.strerror(28))
    if trouble == "exits":
        raise SystemExit(3)
    if trouble == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble == "hangs":
        own = root / f"hanging.{os.getpid()}"
        own.write_text(str(os.getpid()))
        own.rename(root / "hanging")  # whole as soon as it is there
        time.sleep(600)
    raise AssertionError(trouble)


class Told(Progress):
    """Keeps the lines instead of printing them."""

    def __init__(self, what: str = "test") -> None:
        self.lines: list[str] = []
        super().__init__(what, self.lines.append)


def scheduler(folder: Path, engine: Engine, suffix: str = ".npz", **changes: Any) -> Scheduler:
    """One whose blocks lie in ``folder/blocks``; nothing is tried again unless ``changes`` say."""
    limits = {"max_retries": 0, "max_failures": 0, "block_timeout_s": None}
    limits |= {name: changes.pop(name) for name in limits if name in changes}
    return Scheduler(
        engine,
        BlockStore(folder / "blocks", suffix),
        changes.pop("key", "key"),
        schema.Engine(**limits),
        changes.pop("watcher", None) or Told(),
        changes.pop("place", None) or BlockPlace(folder),
        folder / "temporary",
        **changes,
    )


class ShuffledEngine(LocalEngine):
    """Runs what waits in an order drawn from a seed, as many workers at once would."""

    def __init__(self, n_workers: int, seed: int) -> None:
        super().__init__(schema.Engine())
        self.n_workers = n_workers
        self._rng = random.Random(seed)

    def wait(self, seconds: float) -> list[tuple[int, Any]]:
        ticket, call = self._waiting.pop(self._rng.randrange(len(self._waiting)))
        return [(ticket, call())]
