"""The demonstration policy replays what was recorded and reports how it went."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.fetch import FileSource
from minari_pipe.errors import ConfigError, MinariPipeError, RemoteError
from minari_pipe.policies.demonstrations import DemonstrationPolicy
from tests.conftest import FULL, SHARED
from tests.support.demonstration_files import (
    CountingEnv,
    changed_episodes,
    counting_episodes,
    mjl,
    small_log,
    write_d4rl,
    write_dapg,
    write_kitchen,
)

DOOR = SHARED / "demonstrations" / "door-v0_demos.pickle"
needs_door = pytest.mark.skipif(not DOOR.is_file(), reason=f"{DOOR} is not on this machine")
RNG = np.random.default_rng(0)


# --- the policy ---------------------------------------------------------------------------------


def replay(policy: DemonstrationPolicy, env: gym.Env, episode: int) -> EpisodeBuffer:
    """Run one episode in row 0, as the rollout does."""
    options = policy.start(0, episode, RNG)
    observation, _ = env.reset(seed=episode, options=options)
    observations, actions, rewards, terminations, truncations = [observation], [], [], [], []
    while not (terminations and (terminations[-1] or truncations[-1])):
        action = policy.act([observation], [0])[0]
        if action is None:
            truncations[-1] = True
            break
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(reward)
        terminations.append(terminated)
        truncations.append(truncated)
    return EpisodeBuffer(
        id=episode,
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=np.array(rewards, np.float64),
        terminations=np.array(terminations),
        truncations=np.array(truncations),
    )


def bound(path: Path | FileSource, env: gym.Env, **options: Any) -> DemonstrationPolicy:
    policy = DemonstrationPolicy(path, **options)
    policy.bind([env])
    return policy


@pytest.fixture(params=["dapg", "d4rl"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write = {"dapg": write_dapg, "d4rl": write_d4rl}[request.param]
    return write(tmp_path / "demos", counting_episodes())


def test_actions_and_states_are_replayed(file: Path) -> None:
    env = CountingEnv()
    policy = bound(file, env)
    episodes = counting_episodes()
    assert policy.n_episodes() == 3
    for number in (2, 0, 1):  # an episode is the demonstration of its number, whatever ran before
        buffer = replay(policy, env, number)
        actions = np.clip(episodes[number]["actions"], -1, 1).astype(np.float32)
        np.testing.assert_array_equal(buffer.actions, actions, strict=True)
        assert env.state == episodes[number]["init_state_dict"]
        report = policy.finish(number, buffer)
        n_steps = len(actions)
        total = float(episodes[number]["rewards"].sum())
        assert report == {
            "recorded_steps": n_steps,
            "replayed_steps": n_steps,
            "recorded_return": pytest.approx(total),
            "replayed_return": pytest.approx(total),
            "recorded_terminal": False,
            "observation_gap_max": 0.0,
            "observation_gap_median": 0.0,
            "findings": [],
        }
        json.dumps(report, allow_nan=False)


def test_rows_do_not_influence_each_other(file: Path) -> None:
    policy = DemonstrationPolicy(file)
    policy.bind([CountingEnv(), CountingEnv()])
    policy.start(0, 1, RNG)
    policy.start(1, 2, RNG)
    both = [policy.act([None, None], [0, 1]) for _ in range(2)]
    rest = [policy.act([None], [1])[0] for _ in range(4)]
    alone = DemonstrationPolicy(file)
    alone.bind([CountingEnv()])
    for row, episode in ((0, 1), (1, 2)):
        alone.start(0, episode, RNG)
        for actions in both:
            np.testing.assert_array_equal(alone.act([None], [0])[0], actions[row])
    assert policy.act([None], [0]) == [None]
    assert [action is None for action in rest] == [False, False, False, True]


def test_the_environment_cannot_change_a_demonstration(file: Path) -> None:
    env = CountingEnv()
    policy = bound(file, env)
    first = replay(policy, env, 0)
    env.state["qpos"][:] = 99
    for action in env.actions:
        action[:] = 0
    np.testing.assert_array_equal(replay(policy, env, 0).actions, first.actions)
    assert policy.finish(0, replay(policy, env, 0))["observation_gap_max"] == 0


def test_whole_number_actions_are_rounded(tmp_path: Path) -> None:
    env = CountingEnv(dtype=np.int64)
    actions = np.array([[0.9999, -0.9999, 0.2]])
    episodes = changed_episodes(
        0, actions=actions, observations=np.zeros((1, 2)), rewards=np.zeros(1)
    )
    buffer = replay(bound(write_dapg(tmp_path / "d", episodes), env), env, 0)
    np.testing.assert_array_equal(buffer.actions, np.array([[1, -1, 0]]), strict=True)


def test_the_gap_between_recording_and_replay_is_reported(tmp_path: Path) -> None:
    env = CountingEnv()
    episodes = counting_episodes()
    episodes[0]["observations"][2, 1] += 0.5
    episodes[1]["observations"][0, 0] = np.nan
    episodes[1]["rewards"][0] = np.inf
    episodes = [{**episode, "observations": episode["observations"]} for episode in episodes]
    policy = bound(write_dapg(tmp_path / "d", episodes), env)
    report = policy.finish(0, replay(policy, env, 0))
    assert report["observation_gap_max"] == pytest.approx(0.5)
    assert report["observation_gap_median"] == 0.0
    report = policy.finish(1, replay(policy, env, 1))
    assert report["observation_gap_max"] is None
    assert report["recorded_return"] is None
    json.dumps(report, allow_nan=False)


def test_observations_of_another_shape_are_not_compared(file: Path) -> None:
    env = CountingEnv()
    policy = bound(file, env)
    buffer = replay(policy, env, 0)
    for other in ({"a": buffer.observations}, buffer.observations[:, :1]):
        report = policy.finish(0, replace(buffer, observations=other))
        assert report["observation_gap_max"] is None
    rows = list(np.zeros((5, 2)))  # rows in a list compare, too
    assert policy.finish(0, replace(buffer, observations=rows))["observation_gap_max"] == 3.0


def test_an_environment_that_ends_early_is_a_finding(file: Path) -> None:
    for env, how in (
        (CountingEnv(last=3), "terminated"),
        (gym.wrappers.TimeLimit(CountingEnv(), 3), "truncated"),
    ):
        policy = bound(file, env)
        report = policy.finish(2, replay(policy, env, 2))
        assert (report["recorded_steps"], report["replayed_steps"]) == (5, 3)
        assert report["findings"] == [
            {
                "level": "warning",
                "path": "episode 2 / terminations",
                "message": f"the environment {how} the episode at step 2, the demonstration has 5 "
                "steps; the remaining actions were not replayed",
            }
        ]
        assert policy.finish(1, replay(policy, env, 1))["findings"] == []


def test_a_recorded_terminal_that_is_not_reached_is_a_finding(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "d", counting_episodes(), ends="terminals")
    policy = bound(path, CountingEnv())
    report = policy.finish(0, replay(policy, CountingEnv(), 0))
    assert report["recorded_terminal"] is True
    assert [finding["message"] for finding in report["findings"]] == [
        "the recording terminates at step 3, the environment did not terminate"
    ]
    assert policy.finish(0, replay(policy, CountingEnv(last=4), 0))["findings"] == []


def test_what_does_not_fit_the_environment(file: Path) -> None:
    class Wider(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gym.spaces.Box(-1, 1, (4,))

    message = r"does not fit Wider: its actions have shape \(3,\), the action space is Box"
    with pytest.raises(ConfigError, match=message):
        bound(file, Wider())
    with pytest.raises(ConfigError, match=r"does not fit CartPole-v1: .* is Discrete\(2\)"):
        bound(file, gym.make("CartPole-v1"))
    policy = bound(file, CountingEnv())
    message = (
        "episode 3 was requested, but .* has only 3, numbered 0 to 2. Set collect.n_episodes to"
    )
    with pytest.raises(ConfigError, match=message):
        policy.start(0, 3, RNG)


class AlwaysTheSame(CountingEnv):
    """Starts in one place, whatever the options say."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        return np.zeros(2), {}


class Anywhere(CountingEnv):
    """Starts where its seed says and does not look at the options."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        gym.Env.reset(self, seed=seed)
        return self.np_random.normal(size=2), {}


def test_an_environment_that_does_not_start_where_it_is_told_is_refused(file: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"ignores the state in reset.*different first observations"
    ):
        bound(file, Anywhere())
    with pytest.raises(ConfigError, match=r"failed in reset.*KeyError"):
        bound(file, CountingEnv(), reset_option="another")


def test_an_environment_may_say_which_state_it_takes(file: Path) -> None:
    env = CountingEnv()
    box = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    env._state_space = gym.spaces.Dict({"qpos": box})
    assert set(bound(file, env).start(0, 0, RNG)["initial_state_dict"]) == {"qpos"}
    policy = bound(file, AlwaysTheSame(), state_keys=["qvel"], reset_option="state")
    assert set(policy.start(0, 0, RNG)["state"]) == {"qvel"}
    env._state_space = gym.spaces.Dict({"qpos": box, "wings": box})
    with pytest.raises(ConfigError, match=r"the environment's state has .*; missing: 'wings'"):
        bound(file, env)
    env._state_space = gym.spaces.Dict({"qpos": gym.spaces.Box(-1, 1, (2,))})
    with pytest.raises(ConfigError, match=r"'qpos' has shape \(1,\), the environment's has \(2,\)"):
        bound(file, env)


def test_the_source_may_be_an_address(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_PIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MINARI_PIPE_MIRROR", str(tmp_path))
    source = FileSource(address="http://127.0.0.1:9/demos", sha256=sha256_file(file))
    assert bound(source, CountingEnv()).n_episodes() == 3
    monkeypatch.setattr("minari_pipe.core.files.fetch._WAITS", ())
    monkeypatch.setenv("MINARI_PIPE_MIRROR", "")
    with pytest.raises(RemoteError, match=r"the demonstrations: .*policy\.source\.path=FILE"):
        bound(FileSource(address="http://127.0.0.1:9/demos", sha256="0" * 64), CountingEnv())
    with pytest.raises(MinariPipeError, match=r"policy\.source\.path=FILE"):
        bound(tmp_path / "absent", CountingEnv())


# --- what tracks recorded positions -------------------------------------------------------------


class Arm(gym.Env):
    """Two joints, whose velocities are the action; it starts where its seed says."""

    observation_space = gym.spaces.Dict({"joints": gym.spaces.Box(-np.inf, np.inf, (3,))})
    action_space = gym.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.options = options
        self.joints = self.np_random.uniform(size=3)
        return {"joints": self.joints.astype(np.float32)}, {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        self.joints[:2] += 0.5 * action
        return {"joints": self.joints.astype(np.float32)}, 0.0, False, False, {}


TRACKING = {"key": "joints", "gain": 2.0, "limit": 0.75}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of nine frames, whose two controls are positions to go to."""
    path = tmp_path / "d.mjl"
    path.write_bytes(small_log(9))
    return path


def replay_arm(policy: DemonstrationPolicy, env: gym.Env, episode: int = 0) -> EpisodeBuffer:
    buffer = replay(policy, env, episode)
    joints = np.array([observation["joints"] for observation in buffer.observations])
    return replace(buffer, observations={"joints": joints})


def test_actions_lead_from_what_is_observed_to_what_was_recorded(log: Path) -> None:
    env = Arm()
    policy = bound(log, env, tracking=TRACKING, reset_option=None)
    buffer = replay_arm(policy, env)
    assert env.options is None
    wanted = small_positions(log)
    observed = buffer.observations["joints"][:-1, :2].astype(np.float64)
    expected = np.clip(2.0 * (wanted - observed), -0.75, 0.75).astype(np.float32)
    np.testing.assert_array_equal(buffer.actions, expected, strict=True)
    assert np.abs(buffer.actions).max() == 0.75
    assert bool(buffer.truncations[-1])


def small_positions(log: Path) -> np.ndarray:
    records = np.frombuffer(log.read_bytes(), "<f4", offset=28 + len(b"kitchen")).reshape(9, 8)
    return records[:-1, 6:].astype(np.float64)


def test_steps_may_last_several_frames(log: Path) -> None:
    env = Arm()
    for frame_skip, frames in ((1, range(8)), (2, [0, 2, 4, 6]), (3, [0, 3]), (8, [0])):
        policy = bound(log, env, reset_option=None, frame_skip=frame_skip)
        expected = np.clip(small_positions(log)[list(frames)], -1, 1).astype(np.float32)
        np.testing.assert_array_equal(replay(policy, env, 0).actions, expected, strict=True)
    policy = bound(log, env, reset_option=None, frame_skip=9)
    with pytest.raises(MinariPipeError, match=r"demonstration 0 has 8 steps, fewer than .* 9"):
        policy.start(0, 0, RNG)
    with pytest.raises(ConfigError, match=r"policy\.frame_skip is 0; expected 1 or more"):
        DemonstrationPolicy(log, frame_skip=0)


def test_the_gap_of_tracked_positions_is_reported_and_a_log_has_no_return(log: Path) -> None:
    env = Arm()
    policy = bound(log, env, tracking=TRACKING, reset_option=None)
    buffer = replay_arm(policy, env)
    report = policy.finish(0, buffer)
    recorded = np.frombuffer(log.read_bytes(), "<f4", offset=35).reshape(9, 8)[:-1, 1:3]
    gap = np.abs(buffer.observations["joints"][:-1, :2] - recorded).max()
    assert report["observation_gap_max"] == pytest.approx(float(gap))
    assert report["recorded_return"] is None
    json.dumps(report, allow_nan=False)


def test_tracking_that_does_not_fit_is_refused(log: Path, tmp_path: Path) -> None:
    for tracking in ({"gain": 1.0}, {"gain": 1.0, "key": "elbows"}):
        with pytest.raises(ConfigError, match=r"policy\.tracking does not fit Arm: it needs"):
            bound(log, Arm(), tracking=tracking, reset_option=None)
    (tmp_path / "wide.mjl").write_bytes(small_log(nu=4))
    wide = Arm()
    wide.action_space = gym.spaces.Box(-1, 1, (4,))
    with pytest.raises(ConfigError, match=r"the same number of positions at the beginning"):
        bound(tmp_path / "wide.mjl", wide, tracking=TRACKING, reset_option=None)


@pytest.mark.parametrize(
    ("tracking", "message"),
    [
        ("fast", "policy.tracking is 'fast'; expected such as {key: observation, gain: 6.25"),
        ({}, "policy.tracking.gain is None; expected a finite number above 0"),
        ({"gain": True}, "policy.tracking.gain is True; expected a finite number"),
        ({"gain": float("nan")}, "policy.tracking.gain is nan; expected a finite number"),
        ({"gain": 1, "limit": 0}, "policy.tracking.limit is 0; expected a finite number above 0"),
        ({"gain": 1, "key": 3}, "policy.tracking.key is 3; expected a text"),
        ({"gian": 1}, "no key policy.tracking.gian. Did you mean 'gain'? Known: gain, limit, key"),
    ],
)
def test_a_mistake_in_tracking_is_named(tracking: Any, message: str, log: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        DemonstrationPolicy(log, tracking=tracking)
    assert str(caught.value).startswith(message)


# --- the kitchen ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """FrankaKitchen-v1, and a zip of two logs of it."""
    pytest.importorskip("gymnasium_robotics")
    path = write_kitchen(tmp_path_factory.mktemp("kitchen") / "demos.zip", n_logs=2, n_steps=4)
    env = gym.make("FrankaKitchen-v1", disable_env_checker=True)
    yield path, env
    env.close()


KITCHEN = {
    "frame_skip": 40,
    "tracking": {"key": "observation", "gain": 6.25, "limit": 0.999},
    "reset_option": None,
}


def test_the_arm_of_the_kitchen_follows_its_demonstration(kitchen: Any) -> None:
    path, env = kitchen
    policy = bound(path, env, files="*microwave_kettle_switch_slide/*", **KITCHEN)
    assert policy.n_episodes() == 2
    found = []
    for _ in range(2):
        options = policy.start(0, 1, RNG)
        observation, _ = env.reset(seed=7, options=options)
        rows = [observation["observation"]]
        while (action := policy.act([observation], [0])[0]) is not None:
            observation, *_ = env.step(action)
            rows.append(observation["observation"])
        found.append(np.array(rows))
    assert len(found[0]) == 4 + 1
    np.testing.assert_array_equal(found[0], found[1])
    buffer = EpisodeBuffer(id=1, observations={"observation": found[0]}, rewards=np.zeros(4))
    buffer = replace(buffer, terminations=np.zeros(4, bool), truncations=np.eye(4, dtype=bool)[3])
    report = policy.finish(1, buffer)
    # The joints lag behind their commands alike, in the recording and in the replay.
    assert report["observation_gap_max"] < 0.02
    assert np.ptp(found[0][:, :7], axis=0).max() > 0.05
    assert report["findings"] == []


def test_a_demonstration_of_another_task_is_refused(kitchen: Any, tmp_path: Path) -> None:
    _, env = kitchen
    hand, other = tmp_path / "hand.mjl", tmp_path / "other.mjl"
    hand.write_bytes(mjl(np.zeros((99, 30)), np.zeros((99, 30)), np.zeros((99, 28))))
    other.write_bytes(mjl(np.zeros((99, 36)), np.zeros((99, 36)), np.zeros((99, 9))))
    with pytest.raises(ConfigError, match=r"does not fit FrankaKitchen-v1: its actions have"):
        bound(hand, env, **KITCHEN)
    message = r"qpos has 36 numbers, the environment's has 30; it is a demonstration of another"
    with pytest.raises(ConfigError, match=message):
        bound(other, env, **KITCHEN)


# --- the simulator the demonstrations were made with -------------------------------------------


@pytest.fixture(scope="module")
def door() -> Any:
    """AdroitHandDoor-v1 with the demonstrations' horizon."""
    robotics = pytest.importorskip("gymnasium_robotics")
    gym.register_envs(robotics)
    env = gym.make("AdroitHandDoor-v1", max_episode_steps=300)
    yield env
    env.close()


def record_door(env: gym.Env, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Short recordings of the door environment with random actions."""
    rng = np.random.default_rng(3)
    episodes = []
    for length in lengths:
        state = {"qpos": np.zeros(30), "qvel": np.zeros(30)}
        state["door_body_pos"] = rng.uniform([-0.3, 0.25, 0.252], [-0.2, 0.35, 0.35])
        observation, _ = env.reset(seed=0, options={"initial_state_dict": state})
        actions = rng.normal(size=(length, 28))
        observations, rewards = [], []
        for action in np.clip(actions, -1, 1).astype(np.float32):
            observations.append(observation)
            observation, reward, *_ = env.step(action)
            rewards.append(reward)
        episodes.append(
            {
                "actions": actions,
                "observations": np.array(observations),
                "rewards": np.array(rewards),
                "init_state_dict": state,
            }
        )
    return episodes


@pytest.mark.parametrize("write", [write_dapg, write_d4rl])
def test_the_door_replays_exactly(tmp_path: Path, door: gym.Env, write: Any) -> None:
    episodes = record_door(door, (6, 3))
    policy = bound(write(tmp_path / "d", episodes), door)
    for number, episode in enumerate(episodes):
        buffer = replay(policy, door, number)
        report = policy.finish(number, buffer)
        assert report["observation_gap_max"] == 0.0
        assert report["recorded_return"] == report["replayed_return"]
        np.testing.assert_array_equal(buffer.rewards, episode["rewards"])
        assert bool(buffer.truncations[-1])
        assert report["findings"] == []


@needs_door
def test_the_human_demonstrations_replay_as_measured(door: gym.Env) -> None:
    policy = bound(DOOR, door)
    reports = []
    for number in range(25 if FULL else 4):
        reports.append(policy.finish(number, replay(policy, door, number)))
    assert not any(report["findings"] for report in reports)
    # The recordings' first observations show the arm elsewhere than their initial states do.
    assert max(report["observation_gap_max"] for report in reports) <= 2.0 + 1e-9
    assert np.median([report["observation_gap_median"] for report in reports]) < 0.01
    recorded, replayed = (
        np.array([report[key] for report in reports])
        for key in ("recorded_return", "replayed_return")
    )
    assert np.abs(recorded - replayed).max() < 205
    if FULL:
        assert replayed.mean() == pytest.approx(803.06, abs=1)
        assert recorded.mean() == pytest.approx(794.10, abs=0.01)
