"""Collecting with a policy in one process: one prediction after another, and lockstep.

The limit is the environment alone, with actions that are there already.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks import environments, work
from benchmarks.measure import Case, Goal, Side, Sides, Skipped, When
from benchmarks.pipeline import Collected, new_engine
from minari_pipe.policies.batched_network import one_torch_thread
from minari_pipe.policies.checkpoint import load_policy

#: one environment, one prediction at a time, recorded by this library's DataCollector
SINGLE = "model.predict"
_NO_GOAL = Goal()
#: environments that step together, and how many episodes each of them has
_LOCKSTEP = ((1, 10), (8, 4), (32, 1))


def cases() -> Iterator[Case]:
    """Yield the cases."""
    for length, when in ((1000, When.FULL), (100, When.SMALL)):
        for policy in ("ppo", "sac"):
            yield case(
                Collected("HalfCheetah-v5", policy, length=length),
                SINGLE,
                partial(predicting, policy, length),
                when=when,
            )
            for n_envs, rounds in _LOCKSTEP:
                collected = Collected("HalfCheetah-v5", policy, n_envs, length, rounds)
                yield case(
                    collected,
                    _envs(n_envs),
                    partial(lockstep, collected, single=True),
                    Goal(beside=3) if n_envs == 32 and when is When.FULL else Goal(),
                    beside=SINGLE,
                    when=when,
                )
        random = Collected("HalfCheetah-v5", "random", 32, length)
        yield case(
            random, _envs(32), partial(lockstep, random), beside="one environment", when=when
        )


def case(collected: Collected, size: str, prepare: Any, goal: Goal = _NO_GOAL, **more: Any) -> Case:
    """Return a case of what is collected, in steps per second."""
    policy = "random" if collected.policy == "random" else collected.policy.upper()
    name = f"{collected.env}, {policy}"
    return Case("act", name, size, prepare, goal, unit="steps/s", seconds=4.0, **more)


def _envs(n: int) -> str:
    return f"{n} environment{'s' if n > 1 else ''}"


def predicting(policy: str, length: int) -> Sides:
    """Ask the policy for one action after another, in the usual loop around a DataCollector."""
    collected = Collected("HalfCheetah-v5", policy, length=length)
    return {
        "limit": alone(collected, 10 * collected.length),
        "here": _loop("here", collected),
        **_minari(collected),
    }


def lockstep(collected: Collected, *, single: bool = False) -> Sides:
    """Collect with the pipeline, one block after another in this process.

    Args:
        collected: what is.
        single: compare with single predictions and with Minari; else with one environment.
    """
    engine = new_engine("local", 1)
    one = Collected(collected.env, collected.policy, 1, collected.length, rounds=10)
    return {
        "limit": alone(collected, 10 * collected.length),
        "here": collected.side(engine),
        "beside": _loop("here", collected) if single else one.side(engine),
        **(_minari(collected) if single else {}),
    }


def alone(collected: Collected, steps: int) -> Side:
    """Step the environment and do nothing else."""
    env = collected.make_env()
    chosen = environments.actions(env, steps)
    return Side(lambda: environments.run(env, chosen), before=lambda: None, steps=len(chosen))


def _minari(collected: Collected) -> Sides:
    fault = environments.recording_fault()
    return {"minari": _loop("minari", collected) if fault is None else Skipped(fault)}


def _loop(library: str, collected: Collected) -> Side:
    module = work.LIBRARIES[library]
    spaces = collected.make_env()
    policy = load_policy(
        collected.checkpoint(),
        algorithm=collected.policy,
        observation_space=spaces.observation_space,
        action_space=spaces.action_space,
    )
    made: list[str] = []
    steps = 3 * collected.length

    def run() -> None:
        env = module.DataCollector(collected.make_env())
        observation, _ = env.reset(seed=0)
        for step in range(1, steps + 1):
            action, _ = policy.predict(observation, deterministic=False)
            observation, _, terminated, truncated, _ = env.step(action)
            if (terminated or truncated) and step < steps:
                observation, _ = env.reset(seed=step)
        made.append(work.new_id(f"predicted-{library}"))
        env.create_dataset(made[-1])
        env.close()

    def with_one_thread() -> None:
        with one_torch_thread():
            run()

    def before() -> None:
        torch.manual_seed(0)

    return Side(with_one_thread, before, lambda: work.remove_if_few(made.pop()), steps=steps)
