"""Scripted policies call functions and classes as documented; the waypoint controller arrives."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from minari_pipe.errors import ConfigError, InvalidEpisodeError
from minari_pipe.policies.base import Policy, RowError
from minari_pipe.policies.controllers.mazes import AntMazeGait, PointMazeWaypoints, next_cells
from minari_pipe.policies.noise import Noise
from minari_pipe.policies.noisy import NoisyPolicy
from minari_pipe.policies.rollout import episode_seed, run_episodes, run_lockstep
from minari_pipe.policies.scripted import ScriptedPolicy
from tests.conftest import FULL, StepIndex


def generator(episode: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(7, spawn_key=(episode,)))


def bound(controller: Any, kwargs: dict[str, Any] | None = None, n_envs: int = 2) -> ScriptedPolicy:
    policy = ScriptedPolicy(controller, kwargs)
    policy.bind([StepIndex() for _ in range(n_envs)])
    return policy


def act(policy: ScriptedPolicy, rows: list[int], observation: float = 0.0) -> list[list[float]]:
    actions = policy.act([np.array([observation])] * len(rows), rows)
    assert all(action.dtype == np.float32 for action in actions)
    return [action.tolist() for action in actions]


# --- functions ----------------------------------------------------------------------------------


def test_a_function_gets_the_observation_and_its_parameters() -> None:
    def controller(observation: np.ndarray, scale: float = 1.0) -> list[float]:
        return [observation[0] * scale, 0.5]

    policy = bound(controller, {"scale": 0.25})
    policy.start(0, 0, generator(0))
    assert act(policy, [0], 2.0) == [[0.5, 0.5]]
    assert policy.n_episodes() is None


def test_a_function_gets_what_its_signature_takes() -> None:
    seen: list[Any] = []

    def controller(observation: Any, *, env: gym.Env, rng: np.random.Generator) -> np.ndarray:
        seen.append(env)
        return rng.uniform(-1, 1, 2)

    policy = bound(controller)
    policy.start(0, 3, generator(3))
    policy.start(1, 4, generator(4))
    both = act(policy, [0, 1]) + act(policy, [1])
    assert seen == [policy._envs[0], policy._envs[1], policy._envs[1]]

    alone = bound(controller, n_envs=1)
    alone.start(0, 4, generator(4))
    assert act(alone, [0]) + act(alone, [0]) == both[1:]
    alone.start(0, 3, generator(3))
    assert act(alone, [0]) == both[:1]


def test_none_ends_the_episode() -> None:
    policy = bound(lambda observation: None if observation[0] > 1 else [0.0, 0.0])
    policy.start(0, 0, generator(0))
    assert act(policy, [0], 1.0) == [[0.0, 0.0]]
    assert policy.act([np.array([2.0])], [0]) == [None]


# --- classes ------------------------------------------------------------------------------------


class Counting:
    """Carries a state through an episode: how often it was called."""

    made = 0

    def __init__(self, start: int = 0) -> None:
        type(self).made += 1
        self.count = start

    def __call__(self, observation: Any) -> list[float]:
        self.count += 1
        return [self.count / 100, 0.0]


class Resettable(Counting):
    def reset(self) -> None:
        self.count = 0


class Noisy:
    def __init__(self, env: gym.Env) -> None:
        self.space = env.action_space

    def reset(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def __call__(self, observation: Any) -> Any:
        return self.rng.uniform(self.space.low, self.space.high)


@pytest.mark.parametrize(("controller", "made"), [(Counting, 3), (Resettable, 2)])
def test_nothing_is_carried_from_one_episode_to_the_next(controller: Any, made: int) -> None:
    controller.made = 0
    policy = bound(controller, {"start": 0})
    policy.start(0, 0, generator(0))
    policy.start(1, 1, generator(1))
    assert [act(policy, [0])[0][0] for _ in range(3)] == pytest.approx([0.01, 0.02, 0.03])
    assert act(policy, [0, 1])[1][0] == pytest.approx(0.01)
    policy.start(0, 2, generator(2))
    assert act(policy, [0])[0][0] == pytest.approx(0.01)
    assert controller.made == made


def test_a_class_gets_its_environment_and_the_generator_of_the_episode() -> None:
    policy = bound(Noisy)
    policy.start(0, 5, generator(5))
    first = act(policy, [0])
    policy.start(1, 5, generator(5))
    assert act(policy, [1]) == first
    policy.start(0, 6, generator(6))
    assert act(policy, [0]) != first


def test_every_block_makes_its_own_instances() -> None:
    policy = bound(Resettable)
    policy.start(0, 0, generator(0))
    act(policy, [0])
    before = policy._calls[0]
    policy.bind([StepIndex()])
    policy.start(0, 1, generator(1))
    act(policy, [0])
    assert policy._calls[0] is not before


# --- infos, and what is there only after the reset ----------------------------------------------


class Goal(gym.Env):
    """Draws a goal at its reset, and tells it in the infos alone, with the number of the step."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float64)
    goal = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal, self.t = self.np_random.uniform(-1, 1), 0
        return np.zeros(1), {"goal": self.goal, "t": 0}

    def step(self, action):
        self.t += 1
        return np.zeros(1), 0.0, self.t > 3, False, {"goal": self.goal, "t": self.t}


def by_info(observation: Any, info: dict) -> list[float]:
    return [info["goal"] / (1 + info["t"])]


class ByInfo:
    def __call__(self, observation: Any, info: dict) -> list[float]:
        return by_info(observation, info)


class ByEnv:
    """Looks up the goal once, when it is made."""

    def __init__(self, env: gym.Env) -> None:
        self.goal, self.t = env.unwrapped.goal, 0

    def __call__(self, observation: Any) -> list[float]:
        self.t += 1
        return [self.goal / self.t]


class ByReset(ByEnv):
    def __init__(self, env: gym.Env) -> None:
        self.env = env

    def reset(self) -> None:
        super().__init__(self.env)


def by_infos(observations: np.ndarray, infos: list[dict]) -> list[list[float]]:
    assert len(infos) == len(observations) == 8
    return [by_info(None, info) if info else [0.0] for info in infos]


class ByInfos:
    def __call__(self, observations: np.ndarray, infos: list[dict]) -> list[list[float]]:
        return by_infos(observations, infos)


class BatchByEnv:
    """Looks up the goals of the rows when they are reset."""

    def __init__(self, envs: list[gym.Env]) -> None:
        self.envs, self.goals, self.t = envs, np.zeros(8), np.zeros(8)

    def reset(self, row: int) -> None:
        self.goals[row], self.t[row] = self.envs[row].unwrapped.goal, 0

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.t += 1
        return (self.goals / self.t)[:, None]


WAYS = [by_info, ByInfo, ByEnv, ByReset, by_infos, ByInfos, BatchByEnv]


@pytest.mark.parametrize("noise", [None, {"kind": "gaussian", "scale": 0.0}])
@pytest.mark.parametrize("controller", WAYS, ids=[way.__name__ for way in WAYS])
def test_a_controller_knows_what_the_reset_drew(controller: Any, noise: Any) -> None:
    policy: Policy = ScriptedPolicy(controller)
    if noise:
        policy = NoisyPolicy(policy, Noise.of(noise, "noise"))
    for episode in run_episodes(Goal, policy, range(5), seed=0, n_envs=2, record_infos=True):
        infos = episode.infos
        expected = infos["goal"][:-1] / (1 + infos["t"][:-1])
        assert episode.actions.ravel().tolist() == expected.tolist()


class Seeded:
    def __init__(self, rng: np.random.Generator) -> None:
        self.action = rng.uniform(-1, 1, 2)

    def __call__(self, observation: Any) -> np.ndarray:
        return self.action


def test_a_class_without_reset_may_draw_when_it_is_made() -> None:
    policy = bound(Seeded)
    policy.start(0, 5, generator(5))
    first = act(policy, [0])
    policy.start(1, 5, generator(5))
    policy.start(0, 6, generator(6))
    assert act(policy, [1]) == first != act(policy, [0])


def no_plan(observation: Any, info: dict) -> Any:
    return None if info["goal"] > 0 else [0.0]


def too_far(observation: Any, info: dict) -> Any:
    return [2.0 if info["goal"] > 0 else 0.0]


def ends_the_process(observation: Any, info: dict) -> Any:
    if info["goal"] > 0:
        raise SystemExit("no plan")
    return [0.0]


@pytest.mark.parametrize("controller", [no_plan, too_far, ends_the_process])
def test_an_episode_that_fails_costs_no_other(controller: Any) -> None:
    def run(n_envs: int, failed: dict[int, str]) -> list[int]:
        def on_fail(episode: int, reason: str) -> int:
            failed[episode] = reason
            return -1

        policy = ScriptedPolicy(controller)
        found = run_lockstep(
            Goal, Counted, policy, range(12), seed=0, n_envs=n_envs, on_fail=on_fail
        )
        return list(found)

    goals = [Goal().reset(seed=episode_seed(0, episode)[0])[1]["goal"] for episode in range(12)]
    wanted = {episode for episode, goal in enumerate(goals) if goal > 0}
    assert 0 < len(wanted) < 12
    for n_envs in (1, 5):
        failed: dict[int, str] = {}
        assert [n for n in run(n_envs, failed) if n >= 0] == [4] * (12 - len(wanted))
        assert failed.keys() == wanted
        assert all(reason.startswith("step 0: ") for reason in failed.values())


class Counted:
    """Counts the steps of an episode."""

    def __init__(self, env: gym.Env) -> None:
        self.n = 0

    def start(self, observation: Any, info: dict, **kwargs: Any) -> None:
        self.n = 0

    def step(self, *step: Any) -> None:
        self.n += 1

    def truncate(self) -> None:
        raise AssertionError("no episode is cut here")

    def finish(self, episode: int) -> int:
        return self.n


def test_a_controller_that_cannot_be_made_for_an_episode_names_it() -> None:
    class Failing(ByEnv):
        def __init__(self, env: gym.Env) -> None:
            raise AssertionError("no path to the goal")

    message = "at episode 3, step 0: controller '.*Failing' raised AssertionError: no path"
    with pytest.raises(InvalidEpisodeError, match=message):
        list(run_episodes(Goal, ScriptedPolicy(Failing), [3], seed=0, n_envs=1))


# --- what cannot be called ----------------------------------------------------------------------


def wrong_shape(observation: Any) -> Any:
    return np.zeros(3)


def too_large(observation: Any) -> Any:
    return np.full(2, 1.5)


def not_numbers(observation: Any) -> Any:
    return {"left": 1}


def not_finite(observation: Any) -> Any:
    return np.array([np.nan, 0.0])


@pytest.mark.parametrize("controller", [wrong_shape, too_large, not_numbers, not_finite])
def test_actions_outside_the_space_are_refused(controller: Any) -> None:
    policy = bound(controller)
    policy.start(0, 0, generator(0))
    with pytest.raises(RowError, match=f"controller '{controller.__name__}' returned .* not in"):
        act(policy, [0])


def test_discrete_actions_are_checked_too() -> None:
    policy = ScriptedPolicy(lambda observation, choice: choice, {"choice": 1})
    policy.bind([gym.make("CartPole-v1")])
    policy.start(0, 0, generator(0))
    assert policy.act([None], [0]) == [1]
    policy = ScriptedPolicy(lambda observation, choice: choice, {"choice": 2})
    policy.bind([gym.make("CartPole-v1")])
    policy.start(0, 0, generator(0))
    with pytest.raises(RowError, match=r"returned 2, which is not in .* Discrete\(2\)"):
        policy.act([None], [0])


class NotCallable:
    pass


@pytest.mark.parametrize(
    ("controller", "kwargs", "message"),
    [
        (3, {}, "a controller must be a function or a class, got 3"),
        (
            Counting,
            {"begin": 1},
            r"cannot be called with \['begin'\] .*its signature is Counting\(start",
        ),
        (wrong_shape, {"x": 1}, r"cannot be called with \['x'\]"),
        (lambda: 0, {}, "cannot be called with no parameters"),
        (Noisy, {"env": None}, "env is supplied by the policy; remove it from kwargs"),
        (Resettable(), {}, "is an object with state; name its class instead"),
        (np.sign, {"x": 1}, "controller 'sign'"),
    ],
)
def test_what_cannot_be_called_is_refused(
    controller: Any, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ScriptedPolicy(controller, kwargs)


def test_instances_must_be_callable() -> None:
    policy = bound(NotCallable)
    policy.start(0, 0, generator(0))
    with pytest.raises(ConfigError, match="'NotCallable' has no __call__"):
        act(policy, [0])


# --- the waypoint controller --------------------------------------------------------------------


def test_next_cells_lead_to_the_goal_around_walls() -> None:
    maze = [
        [1, 1, 1, 1, 1],
        [1, "g", 0, 0, 1],
        [1, 1, 1, 0, 1],
        [1, "r", 0, 0, 1],
        [1, 1, 1, 1, 1],
    ]
    following = next_cells(maze, goal=(1, 1))
    cell, way = (3, 1), []
    while following[cell] != cell:
        cell = following[cell]
        way.append(cell)
    assert way == [(3, 2), (3, 3), (2, 3), (1, 3), (1, 2), (1, 1)]
    assert len(following) == 7


@pytest.mark.parametrize(
    ("controller", "maze"), [(PointMazeWaypoints, "Point"), (AntMazeGait, "Ant")]
)
def test_a_controller_of_mazes_needs_one(controller: type, maze: str) -> None:
    with pytest.raises(ConfigError, match=f"needs an? {maze}Maze environment"):
        controller(StepIndex())


@pytest.fixture
def robotics() -> None:
    gym.register_envs(pytest.importorskip("gymnasium_robotics"))


def run_maze(
    env_id: str, n_episodes: int, controller: type = PointMazeWaypoints, **kwargs: Any
) -> tuple[float, float]:
    """Success rate and mean return over the seeds 0, 1, … ."""
    env = gym.make(env_id, **kwargs)
    policy = ScriptedPolicy(controller)
    policy.bind([env])
    returns, successes = [], []
    for episode in range(n_episodes):
        policy.start(0, episode, generator(episode))
        observation, _ = env.reset(seed=episode)
        total, success, ended = 0.0, False, False
        while not ended:
            action = policy.act([observation], [0])[0]
            observation, reward, terminated, truncated, info = env.step(action)
            total += float(reward)
            success |= bool(info["success"])
            ended = terminated or truncated
        returns.append(total)
        successes.append(success)
    env.close()
    return float(np.mean(successes)), float(np.mean(returns))


def test_the_waypoint_controller_solves_the_umaze(robotics: None) -> None:
    success, mean_return = run_maze("PointMaze_UMaze-v3", 100 if FULL else 20)
    assert success == 1.0
    assert mean_return >= 235


def test_the_gait_walks_an_ant_to_its_goal(robotics: None) -> None:
    success, mean_return = run_maze(
        "AntMaze_Medium_Diverse_GR-v5", 40 if FULL else 5, AntMazeGait, continuing_task=False
    )
    assert success == mean_return == 1.0


def test_the_waypoint_controller_follows_a_goal_that_moves(robotics: None) -> None:
    success, mean_return = run_maze("PointMaze_Medium-v3", 3, reset_target=True)
    assert success == 1.0
    assert mean_return >= 2  # several goals in one episode
