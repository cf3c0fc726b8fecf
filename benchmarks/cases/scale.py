"""Blocks and the engines that run them: workers side by side, their driver, and the next run.

Workers are started, and have imported what they need, before anything is measured; what that takes
has cases of its own.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks import environments, slow, work
from benchmarks.cases import acting
from benchmarks.measure import Case, Clock, Goal, Seconds, Side, Sides, Skipped, When
from benchmarks.pipeline import (
    PLACE,
    Collected,
    end_engines,
    engine,
    engine_fault,
    new_engine,
    scheduler,
)
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.execution.block_task import BlockPlace, Tally, Work
from minari_pipe.pipeline.execution.blocks import BlockStore
from minari_pipe.pipeline.execution.engines.base import Outcome
from minari_pipe.pipeline.execution.engines.local import LocalEngine
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.policies.rollout import run_episodes

#: engine, run, steps of an episode, and how many of its workers wait for slow environments
_ENGINES = (
    ("processes", When.FULL, 1000, (1, 2, 4, 8, 16, 32, 64)),
    ("processes", When.SMALL, 100, (2, 8)),
    ("ray", When.FULL, 1000, (2, 4, 8, 16)),  # it takes a quarter of a minute to start
)
#: the least share of what as many workers would do if none disturbed another
_EFFICIENCY = 0.9


def cases() -> Iterator[Case]:
    """Yield the cases: those of one engine together, for whose workers are started once."""
    for when, length, megabytes in ((When.FULL, 1000, 400), (When.SMALL, 100, 20)):
        yield _writing("cpu", length, when)
        yield _writing("wall", length, when)
        yield _driver("local", 1, length, when)
        yield _resume("s", f"{megabytes // 2} × 2 MB", megabytes, when)
        yield _resume("MB/s", f"{megabytes} MB", megabytes, when)
    for name, when, length, counts in _ENGINES:
        yield Case(
            "scale",
            f"start {name}, until each has a block",
            "2 workers",
            partial(start, name, 2),
            clock="wall",
            repeats=1,
            when=when,
        )
        for policy in ("ppo", "sac"):
            yield _workers(name, policy, length, when)
        yield _driver(name, 2, length, when)
        for n in counts:
            yield _waiting(name, n, max(counts), when)


def _workers(name: str, policy: str, length: int, when: When) -> Case:
    collected = Collected("HalfCheetah-v5", policy, 32, length)
    return Case(
        "scale",
        f"{collected.env}, {policy.upper()}, {name}",
        f"2 workers × {collected.n_envs}",
        partial(side_by_side, name, 2, 2, collected, 2),
        Goal(beside=1.7) if name == "processes" and when is When.FULL else Goal(),
        unit="steps/s",
        clock="wall",
        beside="one worker",
        repeats=5,
        seconds=8.0,
        when=when,
    )


def _waiting(name: str, n: int, most: int, when: When) -> Case:
    full = when is When.FULL
    collected = Collected(slow.ID, "random", 1, 250 if full else 25)
    return Case(
        "scale",
        f"{1000 * slow.SECONDS:g} ms a step, {name}",
        f"{n} worker{'s' if n > 1 else ''}",
        partial(side_by_side, name, most, n, collected, 1),
        Goal(beside=round(_EFFICIENCY * n, 1)) if full and n > 1 else Goal(),
        unit="steps/s",
        clock="wall",
        beside="one worker" if n > 1 else "",
        repeats=1,
        when=when,
    )


def side_by_side(
    name: str, n_started: int, n_workers: int, collected: Collected, n_each: int
) -> Sides:
    """Collect with some workers, beside the same for one of them.

    Args:
        name: of the engine.
        n_started: how many workers it has.
        n_workers: how many of them work.
        collected: what is.
        n_each: blocks that each of them makes.
    """
    if (fault := engine_fault(name)) is not None:
        return {"here": Skipped(fault)}
    running = engine(name, n_started)
    collected.warm(running, n_started)
    here = collected.side(running, n_workers * n_each, n_workers=n_workers)
    if n_workers == 1:
        return {"limit": acting.alone(collected, collected.length), "here": here}
    return {"here": here, "beside": collected.side(running, n_each)}


def start(name: str, n_workers: int) -> Sides:
    """Start an engine and let each worker load a network and make a block of one step."""
    if (fault := engine_fault(name)) is not None:
        return {"here": Skipped(fault)}
    collected = Collected("HalfCheetah-v5", "ppo", length=1)
    collected.checkpoint()

    def run() -> None:
        with new_engine(name, n_workers) as started:
            collected.warm(started, n_workers)

    return {"here": Side(run, before=end_engines)}


def _driver(name: str, n_workers: int, length: int, when: When) -> Case:
    return Case(
        "scale",
        f"the driver's own CPU time, {name}",
        f"{n_workers} worker{'s' if n_workers > 1 else ''}",
        partial(driver, name, n_workers, Collected("HalfCheetah-v5", "ppo", 32, length)),
        Goal(at_most=2) if when is When.FULL else Goal(),
        unit="%",
        repeats=3,
        when=when,
    )


class _Timed(LocalEngine):
    """Knows how long its calls took of the processor."""

    seconds = 0.0

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        began = time.process_time()
        found = super().wait(seconds)
        self.seconds += time.process_time() - began
        return found


def driver(name: str, n_workers: int, collected: Collected) -> Sides:
    """Return what the driver itself takes of the processor while blocks are made.

    That is in percent of how long it takes to make them; where they are made in the same process,
    of the CPU time.
    """

    def share(run: Callable[[], None]) -> float:
        calls = running.seconds if isinstance(running, _Timed) else 0.0
        began = Seconds.now()
        run()
        ended = Seconds.now()
        own = ended.cpu - began.cpu
        if isinstance(running, _Timed):
            return 100 * (1 - (running.seconds - calls) / own)
        return 100 * own / (ended.wall - began.wall)

    if (fault := engine_fault(name)) is not None:
        return {"here": Skipped(fault)}
    running = _Timed(schema.Engine()) if name == "local" else engine(name, n_workers)
    collected.warm(running, n_workers)
    return {"here": collected.side(running, 2 * n_workers, n_workers=n_workers, result=share)}


def _writing(clock: Clock, length: int, when: When) -> Case:
    collected = Collected(environments.VECTORS, "random", 8, length, rounds=5)
    return Case(
        "scale",
        "what writing blocks adds",
        f"{collected.block_steps:,} steps of 434 bytes",
        partial(writing, collected),
        unit="µs/step",
        clock=clock,
        steps=collected.block_steps,
        repeats=15,
        when=when,
    )


def writing(collected: Collected) -> Sides:
    """Make a block: columns, file, fsync, sha256, record.

    The bare side records the same episodes and throws them away.
    """
    block = collected.block()
    policy = block.policy.make(PLACE)
    store = BlockStore(work.folder("collecting"), ".npz")

    def throw_away() -> None:
        deque(
            run_episodes(
                collected.make_env,
                policy,
                range(block.last),
                seed=0,
                n_envs=block.n_envs,
            ),
            maxlen=0,
        )

    def make() -> None:
        store.make(0, "key", lambda path: block.write(path, Tally(), PLACE))

    return {
        "bare": Side(throw_away, before=lambda: None),
        "here": Side(make, before=lambda: work.remove("collecting")),
    }


@dataclass(frozen=True)
class _Bytes(Work):
    """A block of random bytes."""

    number: int
    size: int

    def write(self, path: Path, tally: Tally, place: BlockPlace) -> dict[str, Any]:
        path.write_bytes(np.random.default_rng(self.number).bytes(self.size))
        return {}

    def name_of(self, n_finished: int) -> str:
        return f"episode {n_finished}"


def _resume(unit: Literal["s", "MB/s"], size: str, megabytes: int, when: When) -> Case:
    return Case(
        "scale",
        "resume: verify finished blocks, make 0",
        size,
        partial(resume, megabytes // 2),
        unit=unit,
        clock="wall",
        steps=megabytes,
        seconds=2.0,
        when=when,
    )


def resume(n_blocks: int, size: int = 2_000_000) -> Sides:
    """Let a further run find its blocks finished; the limit is the sha256 of as many bytes."""
    works = [_Bytes(number, size) for number in range(n_blocks)]
    folder = work.folder(f"finished-{n_blocks}")

    def run() -> int:
        progress = Progress("resume", print)
        for _ in scheduler(
            LocalEngine(schema.Engine()), BlockStore(folder, ".bin"), progress
        ).records(works):
            pass
        return n_blocks - progress.n_reused

    def again() -> None:
        if made := run():
            raise RuntimeError(f"{made} of {n_blocks} finished blocks were made again")

    def sha256() -> None:
        for _ in range(n_blocks):
            hashlib.sha256(data).digest()

    run()
    data = np.random.default_rng(0).bytes(size)
    return {"limit": Side(sha256), "here": Side(again)}
