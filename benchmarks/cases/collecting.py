"""What recording adds to a step, from the first reset to the dataset that is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks import environments, work
from benchmarks.measure import Case, Goal, Side, Sides, Skipped, When

#: environment, steps of the full and of the small run, goal
_RUNS = (
    ("CartPole-v1", 20_000, 2_000, Goal(at_most=3)),
    ("HalfCheetah-v5", 10_000, 3_000, Goal(at_most=3)),
    ("AdroitHandDoor-v1", 2_000, 300, Goal()),
    ("vectors-1000", 20_000, 4_000, Goal(at_most=3)),
    ("images", 4_000, 300, Goal(at_most=5, beside_limit=True)),
)
_SHOWN = {"vectors-1000": "1000-step episodes", "images": "images 96 × 96 × 3"}


def cases() -> Iterator[Case]:
    """Yield the cases."""
    for env, many, few, goal in _RUNS:
        for data_format in ("hdf5", "arrow"):
            for steps, when in ((many, When.FULL), (few, When.SMALL)):
                # Minari takes time that grows with the square of the number of episodes
                quadratic = data_format == "arrow" and env == "CartPole-v1"
                count = min(steps, 5_000) if quadratic else steps
                yield _case(env, data_format, count, goal if when == When.FULL else Goal(), when)
    for steps, when in ((10_000, When.FULL), (3_000, When.SMALL)):
        goal = Goal(at_most=6) if when == When.FULL else Goal()
        yield _case("HalfCheetah-v5", "hdf5", steps, goal, when, infos=True)


def _case(
    env: str, data_format: str, steps: int, goal: Goal, when: When, *, infos: bool = False
) -> Case:
    name = _SHOWN.get(env, env) + (" with infos" if infos else "")
    return Case(
        "collect",
        f"collect {name}, {data_format}",
        f"{steps:,} steps",
        partial(collect, env, data_format, steps, infos=infos),
        goal,
        unit="µs/step",
        steps=steps,
        repeats=15,
        seconds=20.0 if env == "HalfCheetah-v5" else None,  # its own noise is 5 % of 100 µs
        when=when,
    )


def collect(name: str, data_format: str, steps: int, *, infos: bool = False) -> Sides:
    """Step an environment that is recorded, and make a dataset of it."""
    chosen = environments.actions(environments.make(name), steps)
    environments.run(environments.make(name), chosen[:200])

    def bare(wrap: Callable[[gym.Env], gym.Env]) -> Side:
        held: list[gym.Env] = []
        return Side(
            lambda: environments.run(held[-1], chosen),
            before=lambda: held.append(wrap(environments.make(name))),
            after=lambda: held.pop().close(),
        )

    def collecting(library: str) -> Side:
        module = work.LIBRARIES[library]
        held: list[Any] = []
        made: list[str] = []

        def before() -> None:
            env = environments.make(name)
            held.append(module.DataCollector(env, data_format=data_format, record_infos=infos))

        def run() -> None:
            environments.run(held[-1], chosen)
            made.append(work.new_id(f"collected-{library}"))
            held[-1].create_dataset(made[-1])

        def after() -> None:
            held.pop().close()
            work.remove_if_few(made.pop())

        return Side(run, before, after)

    sides: dict[str, Side | Skipped] = {
        "bare": bare(lambda env: env),
        "limit": bare(gym.Wrapper),
        "here": collecting("here"),
        "minari": collecting("minari"),
    }
    if name == "images":
        sides["limit"] = _saving_images(chosen)
    if (fault := environments.recording_fault()) is not None:
        sides["minari"] = Skipped(fault)
    return sides


def _saving_images(chosen: list[Any]) -> Side:
    """Step the environment, hold its images, and save them as they are: the encoding chosen."""
    place = work.folder("images.npy")

    def run() -> None:
        env = environments.make("images")
        rows = np.empty((100, 96, 96, 3), np.uint8)
        env.reset(seed=0)
        with open(place, "wb", buffering=0) as file:
            for number, action in enumerate(chosen):
                rows[number % 100] = env.step(action)[0]
                if number % 100 == 99:
                    file.write(rows.data)
                    env.reset(seed=number)

    return Side(run, before=lambda: place.unlink(missing_ok=True))
