"""The shipped controllers of minigrid and Meta-World, in their environments."""

from __future__ import annotations

import json
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.environments import make_environment, recover
from minari_pipe.core.messages import hidden_stdout
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.tasks import names_in
from minari_pipe.policies.controllers.grids import BabyAIExpert, GridShortestPath
from minari_pipe.policies.controllers.metaworld import MetaWorldExpert
from tests.conftest import FULL

#: levels that the bot cannot solve, or not with every seed, as the recipe says
UNLISTED = {
    "GoToImpUnlock",
    "KeyInBox",
    "OpenDoorsOrderN2Debug",
    "OpenDoorsOrderN4Debug",
    "PutNextS5N2Carrying",
    "PutNextS6N3Carrying",
    "PutNextS7N4Carrying",
    "UnlockToUnlock",
}


def played(env: gym.Env, controller: type, seed: int) -> float:
    """The return of an episode."""
    with hidden_stdout():
        observation, _ = env.reset(seed=seed)
        act, total, ended = controller(env), 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, ended = total + float(reward), terminated or truncated
    return total


def level(name: str) -> gym.Env:
    return make_environment(
        f"BabyAI-{name}-v{int(name == 'GoToObjS6')}", {"max_episode_steps": 3000}
    )


def test_the_recipes_list_every_level_but_those_that_they_name() -> None:
    level("GoToObj")  # registers them all
    known = {match[1] for id in gym.registry if (match := re.match(r"BabyAI-(\w+)-v[01]$", id))}
    assert set(names_in("babyai")) == set(names_in("babyai_fullobs")) == known - UNLISTED


@pytest.mark.parametrize("seeds", [range(10) if FULL else range(1)])
def test_the_bot_solves_every_level_of_the_recipes(seeds: range) -> None:
    lost = [
        (name, seed)
        for name in names_in("babyai")[:: 1 if FULL else 4]
        for seed in seeds
        if played(level(name), BabyAIExpert, seed) <= 0
    ]
    assert lost == []


def test_a_bot_that_plans_for_ever_gives_up() -> None:
    env = level("UnlockToUnlock")
    errors = []
    for seed in range(10):
        try:
            played(env, BabyAIExpert, seed)
        except RuntimeError as error:
            errors.append(str(error))
    assert set(errors) == {"the bot plans for ever"}


def test_the_search_walks_to_the_goal_of_four_rooms() -> None:
    env = make_environment("MiniGrid-FourRooms-v0", {"max_episode_steps": 100})
    assert min(played(env, GridShortestPath, seed) for seed in range(20)) > 0.6


def test_the_search_plans_again_after_noise_and_walks_around_lava() -> None:
    env = make_environment("MiniGrid-LavaGapS6-v0", {"max_episode_steps": 200})
    rng = np.random.default_rng(0)

    class Noisy(GridShortestPath):
        def __call__(self, observation: Any) -> int:
            action = super().__call__(observation)
            return int(rng.integers(2)) if rng.random() < 0.3 else action  # a turn

    assert min(played(env, Noisy, seed) for seed in range(10)) > 0


@pytest.mark.parametrize("controller", [BabyAIExpert, GridShortestPath, MetaWorldExpert])
def test_a_controller_refuses_other_environments(controller: type) -> None:
    with pytest.raises(ConfigError, match=f"{controller.__name__} needs an? "):
        controller(gym.make("CartPole-v1"))


def test_a_task_of_metaworld_is_seeded_and_its_spec_can_be_stored() -> None:
    env = make_environment("MetaWorld/push-v3")
    spec = spec_json(env.spec)  # type: ignore[arg-type]
    assert json.loads(spec)["entry_point"] == "minari_pipe.environments.metaworld:MetaWorldEnv"
    again = recover(spec)
    again.reset(seed=1)
    first, other = env.reset(seed=7)[0], again.reset(seed=7)[0]
    assert np.array_equal(first, other) and env.observation_space.contains(first)
    assert not np.array_equal(first, again.reset(seed=8)[0])
    steps: list[list[Any]] = [[], []]
    for found, each in zip(steps, (env, again), strict=True):
        observation, _ = each.reset(seed=7)
        act = MetaWorldExpert(each)
        for _ in range(20):
            observation, reward, *_ = each.step(act(observation))
            found += [*observation, reward]
    assert steps[0] == steps[1]
