"""Replay finds the first step that does not come out as recorded, and says how much it replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from minari_pipe.checks import Finding, Options, Report, replay, stepwise
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.policies.random import RandomPolicy
from minari_pipe.policies.rollout import run_episodes
from minari_pipe.policies.scripted import ScriptedPolicy
from tests.support.checks_datasets import (
    Planted,
    cartpole,
    cartpole_data,
    door,
    door_data,
    write_dataset,
)

#: of texts
CHARSET = "abcdefghijklmnopqrstuvwxyz/"

__all__ = ["cartpole", "cartpole_data", "door", "door_data"]


class Counting(gym.Env):
    """Observes its seed and the number of the step; an option sets where to start counting."""

    observation_space = gym.spaces.Dict(
        {
            "arm": gym.spaces.Tuple([gym.spaces.Box(-1e9, 1e9, (2,), np.float64)]),
            "word": gym.spaces.Text(12),
        }
    )
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, fault: str = "", end: int = 10**9) -> None:
        self.fault = fault
        self.end = end
        self.episodes = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.first = self.np_random.integers(100) + (options or {}).get("first", 0)
        self.step_number = 0
        if self.fault == "carries over":
            self.first += self.episodes
        self.episodes += 1
        return self._observation(), self._info()

    def step(self, action: Any) -> Any:
        self.step_number += 1
        if self.fault == "raises" and self.step_number == 3:
            raise RuntimeError("the cable broke")
        if self.fault.startswith("legal only from ") and self.fault.split()[-1] != str(self.first):
            raise ValueError("this action is not legal in this state")
        action[:] = 0  # an environment may do that, the record must not change
        return self._observation(), 0.5, self.step_number >= self.end, False, self._info()

    def get_env_state(self) -> dict[str, Any]:
        if self.fault == "stateless":
            raise NotImplementedError("no state")
        hidden = self.fault == "hidden" and self.step_number >= 7
        return {"clock": {"time": np.array([self.step_number, hidden], float)}, "first": self.first}

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"inner": {"twice": 2 * self.step_number}}
        if self.fault == "own state":
            info["state"] = {"clock": {"time": np.zeros(2)}, "first": 0.0}
        info["nothing yet"] = None if self.step_number < 5 else 1.5
        info["word"] = None if self.step_number % 2 else "now"
        info["unknown"] = np.array([np.nan, 1.0])
        info["no obstacle"] = np.inf
        if self.step_number % 2:
            info["odd"] = True
        if self.fault == "infos carry over" and self.step_number == 4:
            info["inner"]["twice"] += self.episodes - 1
        return info

    def _observation(self) -> Any:
        value = float(self.first + self.step_number)
        if self.fault == "late" and self.step_number >= 40:
            value += 1
        if self.fault == "rounds":
            value *= 1 + 1e-6
        return {"arm": (np.array([value, 7.0]),), "word": f"w{self.step_number}"}


def make(**kwargs: Any) -> gym.Env:
    return Counting(**{"fault": FAULT["now"], **kwargs})


FAULT = {"now": ""}

gym.register("Counting-v0", entry_point=f"{__name__}:make", max_episode_steps=60)


@pytest.fixture(autouse=True)
def no_fault() -> Iterable[None]:
    yield
    FAULT["now"] = ""


@pytest.fixture
def replayed_door(door: Planted) -> Planted:
    """The door without the check that simulates ten more episodes."""
    return replace(door, options=replace(door.options, skip=("reference",)))


def collect(
    path: Path,
    n_episodes: int = 3,
    *,
    record_infos: bool = False,
    record_state: bool = False,
    **kwargs: Any,
) -> Planted:
    """A dataset of ``Counting`` without a fault."""

    def make_env() -> gym.Env:
        return gym.make("Counting-v0", **kwargs)

    buffers = run_episodes(
        make_env,
        RandomPolicy(),
        range(n_episodes),
        seed=3,
        record_infos=record_infos,
        record_state=record_state,
    )
    return planted(path, make_env(), buffers, "counting-v0")


def planted(path: Path, env: gym.Env, buffers: Iterable[EpisodeBuffer], id: str) -> Planted:
    """Episodes of ``env`` beside the reference scores of CartPole."""
    data_path = write_dataset(path / "data", env, buffers, dataset_id=id)
    return Planted(data_path, Options(skip=("reference",)))


def only(report: Report) -> Finding:
    assert len(report.findings) == 1, json.dumps(report.to_json()["findings"], indent=1)
    return report.findings[0]


# --- where it diverges -----------------------------------------------------------------------


def test_names_episode_leaf_step_and_both_values(tmp_path: Path) -> None:
    data = collect(tmp_path)
    with data.file() as file:
        file["episode_1/observations/arm/_index_0"][43, 1] = 0.25
        file["episode_1/observations/arm/_index_0"][50, 1] = 0.5
    finding = only(data.check())
    assert (finding.level, finding.check) == ("error", "replay")
    assert finding.path == "episode 1 / observations.arm.0"
    assert finding.message == (
        "step 42 (row 43): recorded 0.25, replayed 7.0 at element 1 (fresh environment)"
    )


def test_first_observation_belongs_to_the_reset(tmp_path: Path) -> None:
    data = collect(tmp_path)
    with data.file() as file:
        file["episode_2/observations/word"][0] = "other"
    finding = only(data.check())
    assert finding.path == "episode 2 / observations.word"
    assert finding.message == ("reset (row 0): recorded 'other', replayed 'w0' (fresh environment)")


def test_other_seed_or_options(tmp_path: Path) -> None:
    data = collect(tmp_path)
    with data.file() as file:
        file["episode_1"].attrs["options/first"] = 5
    finding = only(data.check())
    assert finding.path == "episode 1 / observations.arm.0"
    assert finding.message.startswith("reset (row 0)")


@pytest.mark.parametrize(
    "value",
    [
        "{folder}/secret",
        np.array(["/etc/hostname"], h5py.string_dtype()),
        np.bytes_(b"/etc/hostname"),
        np.array([b"/etc/hostname"]),
        "<mujoco><include file='/etc/hostname'/></mujoco>",
        "levels/one",
    ],
    ids=["text", "texts", "bytes", "an array of bytes", "a model", "a path"],
)
def test_options_that_name_a_file_elsewhere_reach_no_environment(
    value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may read the file, and what it read would be in the finding."""
    data = collect(tmp_path)
    monkeypatch.setattr(
        Counting, "reset", lambda *_, options=None, **__: pytest.fail(f"got {options}")
    )
    with data.file() as file:
        for episode in file.values():
            text = isinstance(value, str)
            episode.attrs["options/level"] = value.format(folder=tmp_path) if text else value
    found = [
        f for f in data.check(skip=("environment", "reference")).findings if f.level == "error"
    ]
    assert {finding.path for finding in found} >= {"episode 0 / options", "episode 1 / options"}
    assert "not replayed: options.level" in found[0].message


class Notes(gym.Env):
    """Opens the files that texts of a dataset name, as its actions, its state and its goals."""

    observation_space = gym.spaces.Dict(
        dict.fromkeys(("achieved_goal", "desired_goal"), gym.spaces.Text(300, charset=CHARSET))
    )
    action_space = gym.spaces.Text(300, charset=CHARSET)
    opened: ClassVar[list[str]] = []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        return dict.fromkeys(("achieved_goal", "desired_goal"), "a"), {"state": {"scene": "a"}}

    def step(self, action: str) -> Any:
        self.opened.append(action)
        observation, info = self.reset()
        return observation, 0.0, False, False, info

    def set_env_state(self, state: dict[str, Any]) -> None:
        self.opened.append(str(state["scene"]))

    def get_env_state(self) -> dict[str, Any]:
        return {"scene": "a"}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        self.opened += [str(text) for text in np.ravel(achieved)]
        return np.zeros(len(achieved)) if isinstance(achieved, list) else 0.0


gym.register("Notes-v0", entry_point=f"{__name__}:Notes", max_episode_steps=3)


@pytest.mark.parametrize("column", ["actions", "observations/achieved_goal", "infos/state/scene"])
@pytest.mark.parametrize("has_seed", [True, False])
def test_no_path_of_an_episode_reaches_an_environment_of_an_unknown_package(
    column: str, has_seed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goals = {key: ["a"] * 4 for key in ("achieved_goal", "desired_goal")}
    episode = EpisodeBuffer(
        seed=3 if has_seed else None,
        observations=goals,
        actions=["a"] * 3,
        rewards=[0.0] * 3,
        terminations=[False] * 3,
        truncations=[False, False, True],
        infos={"state": {"scene": ["a"] * 4}},
    )
    data = planted(tmp_path, gym.make("Notes-v0"), [episode], "notes-v0")
    assert "not replayed" not in str(data.check(is_own=False).to_json())
    with data.file() as file:
        file[f"episode_0/{column}"][1] = "/etc/hostname"
    Notes.opened.clear()
    report = data.check(is_own=False)
    assert "/etc/hostname" not in Notes.opened
    (found,) = [finding for finding in report.findings if "not replayed" in finding.message]
    assert found.level == "error"
    assert found.path == f"episode 0 / {column.partition('/')[0]}"
    assert "is '/etc/hostname', which tests may take for a path; if you trust it" in found.message
    for mine in ({"is_own": True}, {"is_own": False, "trusted_modules": ("tests",)}):
        assert "not replayed" not in str(data.check(**mine).to_json())


@pytest.mark.parametrize("name", ["terminations", "truncations"])
def test_flag_of_the_last_step(tmp_path: Path, name: str) -> None:
    """Recorded as ended by the environment, which does not end there, or the other way round."""
    data = collect(tmp_path, end=20 if name == "truncations" else 10**9)
    other = {"terminations": "truncations", "truncations": "terminations"}[name]
    with data.file() as file:
        file[f"episode_1/{name}"][-1] = True
        file[f"episode_1/{other}"][-1] = False
    finding = only(data.check())
    assert finding.path == "episode 1 / terminations"
    expected = "False, replayed True" if name == "truncations" else "True, replayed False"
    assert f"recorded {expected}" in finding.message


def test_environment_that_ends_earlier_than_recorded(tmp_path: Path) -> None:
    data = collect(tmp_path, 2)
    spec = json.loads(data.metadata["env_spec"])
    data.update(env_spec=json.dumps({**spec, "max_episode_steps": 50}))
    report = data.check()
    assert [f.path for f in report.findings] == [f"episode {i} / truncations" for i in range(2)]
    assert "step 49: recorded False, replayed True" in report.findings[0].message


def test_episode_cut_by_the_collector_is_no_divergence(tmp_path: Path) -> None:
    """Actions that are exhausted: truncated in the record, not by the environment."""
    data = collect(tmp_path)
    spec = json.loads(data.metadata["env_spec"])
    data.update(env_spec=json.dumps({**spec, "max_episode_steps": 100}))
    assert only(data.check()).id == "time-limit-not-reached"  # as all have one length


def test_environment_that_carries_something_over(tmp_path: Path) -> None:
    data = collect(tmp_path)
    FAULT["now"] = "carries over"
    report = data.check()
    assert len(report.findings) == 3
    for i, finding in enumerate(report.findings):
        assert finding.path == f"episode {i} / observations.arm.0"
        assert finding.message.endswith("(environment that had just run another episode)")


def test_other_infos_are_a_warning_and_hide_no_error(tmp_path: Path) -> None:
    data = collect(tmp_path, record_infos=True)
    assert data.check().findings == []
    with data.file() as file:
        file["episode_1/infos/inner/twice"][5] = 99
    report = data.check()
    finding = only(report)
    assert report.ok
    assert (finding.level, finding.path) == ("warning", "episode 1 / infos.inner.twice")
    assert finding.message == "step 4 (row 5): recorded 99, replayed 10 (fresh environment)"
    with data.file() as file:
        file["episode_1/observations/word"][9] = "other"
    finding = only(data.check())
    assert (finding.level, finding.path) == ("error", "episode 1 / observations.word")


def test_rows_that_the_collector_filled_are_not_compared(tmp_path: Path) -> None:
    """No value, not a number, a key that comes and goes: all of it is clean data."""
    data = collect(tmp_path, record_infos=True)
    with data.file() as file:
        infos = file["episode_1/infos"]
        assert infos["nothing yet"][4:6].tolist() == [0.0, 1.5]
        assert infos["word"].asstr()[:2].tolist() == ["now", ""]
        assert np.isnan(infos["unknown"][3, 0])
    assert data.check().findings == []
    assert data.check(replay_tolerance=1e-6).findings == []
    with data.file() as file:
        file["episode_1/infos/unknown"][3] = [np.nan, np.nan]
    assert only(data.check()).message.startswith("step 2 (row 3): recorded nan, replayed 1.0 at el")


def test_a_value_where_the_environment_has_none(tmp_path: Path) -> None:
    data = collect(tmp_path, record_infos=True)
    with data.file() as file:
        attributes = file["episode_1"].attrs
        filled = json.loads(attributes["infos_filled"])
        filled["nothing yet"] = [[0, 3]]
        attributes["infos_filled"] = json.dumps(filled)
    finding = only(data.check())
    assert (finding.level, finding.path) == ("warning", "episode 1 / infos.nothing yet")
    assert finding.message.startswith("step 2 (row 3): recorded 0.0, replayed None")


@pytest.mark.parametrize("episode", [0, 1, 2])
def test_infos_of_another_shape_are_one_finding(tmp_path: Path, episode: int) -> None:
    data = collect(tmp_path, record_infos=True)
    name = "infos/inner/twice"
    data.replace_column(episode, name, data.column(episode, name)[:, None])
    finding = only(data.check())
    assert (finding.level, finding.path) == ("warning", f"episode {episode} / infos.inner.twice")


def test_infos_that_carry_something_over(tmp_path: Path) -> None:
    data = collect(tmp_path, 1, record_infos=True)
    FAULT["now"] = "infos carry over"
    finding = only(data.check())
    assert finding.message == (
        "step 3 (row 4): recorded 8, replayed 9 (environment that had just run another episode)"
    )


def test_actions_that_are_legal_only_after_the_recorded_seed(tmp_path: Path) -> None:
    data = collect(tmp_path, 1)
    with data.file() as file:
        first = int(file["episode_0/observations/arm/_index_0"][0, 0])
    FAULT["now"] = f"legal only from {first}"
    report = data.check()
    assert report.findings == []
    assert report.replay.replayed == 1


def test_environment_that_raises(tmp_path: Path) -> None:
    data = collect(tmp_path, 1)
    FAULT["now"] = "raises"
    finding = only(data.check())
    assert finding.path == "episode 0"
    assert finding.message.startswith(
        "step 2: the replay failed with RuntimeError: the cable broke"
    )


# --- the simulator's state -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "value", "where"),
    [
        (0, 0.5, "reset (row 0): recorded 0.5, replayed 0.0 at element 1"),
        (43, 0.5, "step 42 (row 43): recorded 0.5, replayed 0.0 at element 1"),
        (slice(None), np.nan, "reset (row 0): recorded nan, replayed 0.0 at element 1"),
    ],
)
def test_recorded_state_is_compared(tmp_path: Path, row: Any, value: float, where: str) -> None:
    data = collect(tmp_path, record_state=True)
    assert data.check().findings == []
    with data.file() as file:
        file["episode_1/infos/state/clock/time"][row, 1] = value
    finding = only(data.check())
    assert (finding.level, finding.check) == ("error", "replay")
    assert finding.path == "episode 1 / infos.state.clock.time"
    assert finding.message == f"{where} (fresh environment)"


def test_state_diverges_before_the_observations_do(tmp_path: Path) -> None:
    data = collect(tmp_path, 1, record_state=True)
    FAULT["now"] = "hidden"
    finding = only(data.check())
    assert finding.path == "episode 0 / infos.state.clock.time"
    assert finding.message.startswith("step 6 (row 7): recorded 0.0, replayed 1.0")


def test_observations_speak_for_the_state(tmp_path: Path) -> None:
    data = collect(tmp_path, record_state=True)
    with data.file() as file:
        file["episode_1"].attrs["options/first"] = 5
    assert only(data.check()).path == "episode 1 / observations.arm.0"


@pytest.mark.parametrize("fault", ["stateless", "own state"])
def test_state_that_is_not_the_simulator_s_is_no_error(tmp_path: Path, fault: str) -> None:
    data = collect(tmp_path, 2, record_state=True)
    with data.file() as file:
        for episode in file.values():
            episode["infos/state/first"][5] = 0.25
    assert not data.check().ok
    FAULT["now"] = fault
    assert data.check().ok


@pytest.mark.parametrize("what", ["keys", "shape", "kind"])
def test_state_of_another_structure_is_not_compared(tmp_path: Path, what: str) -> None:
    data = collect(tmp_path, 2, record_state=True)
    with data.file() as file:
        for episode in file.values():
            state = episode["infos/state"]
            first = state["first"][()] + 1
            del state["first"]
            if what == "shape":
                state["first"] = np.stack([first, first], axis=1)
            elif what == "kind":
                state["first"] = [str(x) for x in first]
    assert data.check().findings == []


def test_state_is_held_to_the_tolerance_of_observations(tmp_path: Path) -> None:
    data = collect(tmp_path, 2, record_state=True)
    with data.file() as file:
        file["episode_1/infos/state/clock/time"][5, 0] += 1e-6
        file["episode_1/infos/state/clock/time"][40, 0] += 1
    assert only(data.check()).message.startswith("step 4 (row 5)")
    assert only(data.check(replay_tolerance=1e-5)).message.startswith("step 39 (row 40)")
    report = data.check(recorded_platform="Plan9-vax")
    assert only(report).id == "not-verified"
    assert report.replay.drifted == 1


# --- what cannot be, or is not, replayed -----------------------------------------------------


def test_episodes_without_seed_are_counted(cartpole: Planted) -> None:
    with cartpole.file() as file:
        for name in ("episode_0", "episode_2"):
            del file[name].attrs["seed"]
    report = cartpole.check()
    finding = only(report)
    assert (finding.level, finding.id) == ("warning", "not-replayed")
    assert finding.message.startswith("2 of 4 episodes have neither a seed nor a state")
    assert (report.replay.replayed, report.replay.not_replayable) == (2, 2)
    assert report.replay.stepwise == 2
    assert cartpole.check(acknowledge=("not-replayed",)).findings == []


def test_stored_state_takes_the_place_of_seed_and_options(replayed_door: Planted) -> None:
    with replayed_door.file() as file:
        for name in ("episode_0", "episode_1"):
            for key in list(file[name].attrs):
                if key == "seed" or (name == "episode_1" and key.startswith("options")):
                    del file[name].attrs[key]
    report = replayed_door.check()
    assert report.findings == []
    assert report.replay.replayed == replayed_door.metadata["total_episodes"]
    with replayed_door.file() as file:
        file["episode_1/infos/state/qpos"][0, 3] += 1e-3
    assert only(replayed_door.check()).path == "episode 1 / observations"


def test_a_bit_of_an_observation_of_the_door(replayed_door: Planted) -> None:
    with replayed_door.file() as file:
        row = file["episode_1/observations"][43]
        row[5] = np.nextafter(row[5], 1)
        file["episode_1/observations"][43] = row
    finding = only(replayed_door.check())
    assert finding.path == "episode 1 / observations"
    assert finding.message.startswith("step 42 (row 43): recorded ")
    assert finding.message.endswith(" at element 5 (fresh environment)")


def test_budget_picks_episodes_evenly(tmp_path: Path) -> None:
    data = collect(tmp_path, 20, end=10)
    report = data.check(replay_steps=50)
    assert report.replay.to_json() == {
        **report.replay.to_json(),
        "replayed": 5,
        "not_selected": 15,
        "steps": 50,
    }
    with data.file() as file:
        for i in range(20):
            file[f"episode_{i}/observations/arm/_index_0"][3] = 0.5
    indices = [int(f.path.split()[1]) for f in data.check(replay_steps=50).findings]
    assert indices[0] == 0
    assert max(b - a for a, b in zip(indices, [*indices[1:], 20], strict=True)) <= 6
    assert data.check(replay_steps=None).replay.replayed == 20


def test_first_episode_is_replayed_in_part_if_the_budget_is_small(tmp_path: Path) -> None:
    data = collect(tmp_path)
    report = data.check(replay_steps=25)
    assert (report.replay.replayed, report.replay.steps) == (1, 25)


def test_no_environment(tmp_path: Path) -> None:
    data = collect(tmp_path)
    data.update(env_spec=None, ref_min_score=None, ref_max_score=None)
    report = data.check()
    assert (
        only(report).message == "no environment is recorded, so none of the 3 episodes was replayed"
    )
    assert report.replay.to_json()["applicable"] is False
    spec = gym.spec("Counting-v0").to_json()
    assert data.check(environment=spec, require_scores=False).replay.replayed == 3


def test_a_recorded_window_is_not_opened(
    cartpole: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = json.loads(cartpole.metadata["env_spec"])
    cartpole.update(env_spec=json.dumps({**spec, "kwargs": {"render_mode": "human"}}))
    monkeypatch.setattr(CartPoleEnv, "render", lambda self: pytest.fail("opened a window"))
    assert cartpole.check().findings == []


def test_an_environment_with_a_finding_is_not_simulated(cartpole: Planted) -> None:
    cartpole.update(env_spec=gym.spec("Acrobot-v1").to_json())
    report = cartpole.check()
    assert only(report).check == "environment"
    assert not report.replay.applicable


# --- how exactly -----------------------------------------------------------------------------


def test_rounding_is_a_divergence_on_the_recorded_versions(tmp_path: Path) -> None:
    data = collect(tmp_path, 1)
    FAULT["now"] = "rounds"
    assert only(data.check()).message.startswith("reset (row 0)")
    report = data.check(replay_tolerance=1e-5)
    assert report.findings == []
    assert (report.replay.exact, report.replay.tolerance) == (False, 1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"requirements": ["gymnasium==0.29.0"]}, "made with gymnasium 0.29.0"),
        ({"requirements": ["numpy==1.0"]}, "made with numpy 1.0"),
    ],
)
def test_other_versions_are_held_to_a_tolerance(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    data = collect(tmp_path, 2)
    data.update(**change)
    FAULT["now"] = "rounds"
    report = data.check()
    assert report.findings == []
    assert report.replay.reason.startswith(reason)
    assert (report.replay.exact, report.replay.tolerance) == (False, stepwise.FLOOR)
    with data.file() as file:
        file["episode_1/observations/arm/_index_0"][4, 1] = 6.9
    assert only(data.check()).path == "episode 1 / observations.arm.0"


def test_late_drift_on_another_platform_is_not_verified_from_there_on(tmp_path: Path) -> None:
    data = collect(tmp_path, 2)
    FAULT["now"] = "late"
    report = data.check(recorded_platform="Plan9-vax")
    finding = only(report)
    assert (finding.level, finding.id) == ("warning", "not-verified")
    assert finding.message == (
        "2 of 2 episodes diverge from the recording and are not verified beyond that step, first "
        "at episode 0 / observations.arm.0, step 39 (made on Plan9-vax, replayed on "
        f"{replay.platform_name()}); the largest difference is 1, at episode 0 / "
        "observations.arm.0, step 39"
    )
    assert report.replay.drifted == 2
    assert report.replay.largest_difference == 1
    assert len(data.check(recorded_platform=replay.platform_name()).findings) == 2
    assert len(data.check(recorded_platform="Plan9-vax", replay_tolerance=1e-3).findings) == 2


def negate(data: Planted, first: int) -> None:
    """Negate all rewards from a step on, and the statistics with them."""
    with data.file() as file:
        for episode in file.values():
            rewards = episode["rewards"]
            rewards[first:] = -rewards[first:]
            for name in [name for name in episode.attrs if name.startswith("rewards_")]:
                del episode.attrs[name]


@pytest.mark.parametrize("first", [0, 31])
@pytest.mark.parametrize("env_id", ["counting", "pendulum", "door"])
def test_negated_rewards_are_an_error_whatever_the_requirements_say(
    env_id: str, first: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By the observations that agree, and by each step from its recorded state."""
    if env_id == "door":
        data = request.getfixturevalue("replayed_door")
    elif env_id == "pendulum":
        data = random_episodes(tmp_path, "Pendulum-v1", 2)
    else:
        data = collect(tmp_path, 2)
    data.update(requirements=["numpy==1.0"])
    assert data.check().findings == []
    negate(data, first)
    report = data.check()
    assert not report.ok
    assert {f.path.partition(" / ")[2] for f in report.findings if f.level == "error"} == {
        "rewards"
    }


@pytest.mark.parametrize("env_id", ["MountainCarContinuous-v0", "Pendulum-v1"])
@pytest.mark.parametrize("change", [np.negative, np.zeros_like])
def test_late_actions_that_did_something_else_are_reported_whatever_the_requirements_say(
    env_id: str, change: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    """Also where one action moves less than other versions may."""
    data = random_episodes(tmp_path, env_id, 2)
    data.update(requirements=["numpy==1.0"])
    assert data.check().findings == []
    with data.file() as file:
        for episode in ("episode_0", "episode_1"):
            actions = file[episode]["actions"]
            actions[30:] = change(actions[30:])
    finding, *_ = data.check().findings
    assert finding.level == "error" or finding.id == "inexact-steps"


def gentle(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-0.05, 0.05, 1).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "first", "change"),
    [
        ("rewards", 0, np.negative),
        ("rewards", 0, lambda rewards: rewards * 4),
        ("actions", 120, np.negative),
    ],
    ids=["negated rewards", "rewards times 4", "actions negated late"],
)
def test_wrong_values_that_are_small_are_reported_whatever_the_requirements_say(
    name: str, first: int, change: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    """Rewards below 2.5e-4 and velocities within 0.01, which the floor alone would allow."""

    def make_env() -> gym.Env:
        return gym.make("MountainCarContinuous-v0", max_episode_steps=250)

    buffers = list(run_episodes(make_env, ScriptedPolicy(gentle), range(2), seed=1))
    clean = planted(tmp_path / "clean", make_env(), buffers, "small/steps-v0")
    clean.update(requirements=["numpy==1.0"])
    assert clean.check().findings == []
    for i, buffer in enumerate(buffers):
        column = np.array(getattr(buffer, name))
        column[first:] = change(column[first:])
        buffers[i] = replace(buffer, **{name: column})
    wrong = planted(tmp_path / "wrong", make_env(), buffers, "small/steps-v0")
    wrong.update(requirements=["numpy==1.0"])
    finding, *_ = wrong.check().findings
    assert finding.level == "error" or finding.id == "inexact-steps"


def test_one_large_value_does_not_widen_the_tolerance_of_the_others() -> None:
    """A terminal reward of 100 after small ones."""
    recorded = np.append(np.linspace(-2e-4, -1e-4, 99), 100.0)
    steps = stepwise.Steps({("rewards",): recorded}, {("rewards",): [*-recorded[:-1], 100.0]})
    assert (steps.excess(("rewards",), 0)[:-1] > 1).all()


def balance(observation: np.ndarray) -> int:
    return int(observation[2] + 0.3 * observation[3] > 0)


def test_a_small_jump_is_counted_though_the_steps_beside_it_agree(tmp_path: Path) -> None:
    """The run from the start leaves the recording there, and the steps before and after do not."""

    def make_env() -> gym.Env:
        return gym.make("CartPole-v1", max_episode_steps=150)

    buffers = run_episodes(make_env, ScriptedPolicy(balance), range(2), seed=1)
    data = planted(tmp_path, make_env(), buffers, "balanced/steps-v0")
    data.update(requirements=["numpy==1.0"])
    assert data.check().findings == []
    with data.file() as file:
        observations = file["episode_1/observations"]
        velocity = observations[:, 1]
        jump = 0.009 * np.ptp(velocity)
        velocity[90] += jump
        observations[:, 1] = velocity
    finding = only(data.check())
    assert (finding.level, finding.id) == ("warning", "inexact-steps")
    assert finding.message.startswith("2 of 300 steps, ")  # into the row and out of it
    assert f"largest difference is {jump:.3g}, at episode 1 / observations, st" in finding.message


def test_infos_that_the_environment_gives_are_no_finding_on_other_versions(tmp_path: Path) -> None:
    """NaN and infinity among them."""
    data = collect(tmp_path, record_infos=True)
    data.update(requirements=["numpy==1.0"])
    assert data.check().findings == []


def random_episodes(path: Path, env_id: str, n_episodes: int) -> Planted:
    buffers = run_episodes(lambda: gym.make(env_id), RandomPolicy(), range(n_episodes), seed=1)
    env = gym.make(env_id)
    return planted(path, env, buffers, "random/steps-v0")


@pytest.mark.parametrize("what", ["observations", "state"])
def test_each_step_is_replayed_from_its_recorded_state(replayed_door: Planted, what: str) -> None:
    """Of another simulator's rounding one step shows little, where the whole run drifts away."""
    replayed_door.update(requirements=["numpy==1.0"])
    report = replayed_door.check()
    assert report.findings == []
    assert report.replay.stepwise == replayed_door.metadata["total_episodes"]
    with replayed_door.file() as file:
        column = file[
            "episode_1" + ("/observations" if what == "observations" else "/infos/state/qpos")
        ]
        column[10:, 3] += 0.5
    assert not replayed_door.check().ok


@pytest.mark.parametrize("requirement", ["numpy==1.0", "mujoco==3.1.0"])
@pytest.mark.parametrize("late", [30, 55], ids=["late", "in the last row"])
def test_observations_of_another_row_than_their_states_are_an_error(
    replayed_door: Planted, requirement: str, late: int
) -> None:
    """Whichever simulator made them: to look at a state simulates nothing."""
    replayed_door.update(requirements=[requirement])
    assert replayed_door.check().findings == []
    with replayed_door.file() as file:
        for episode in file.values():
            observations = episode["observations"]
            observations[late:] = observations[late - 1 : -1]
    first, *others = replayed_door.check().findings
    assert {f.level for f in (first, *others)} == {"error"}
    assert first.path == "episode 0 / observations"
    assert first.message.startswith(f"row {late}: recorded ")
    assert "of the recorded state" in first.message


def test_actions_slightly_off_are_an_error_on_the_same_simulator(replayed_door: Planted) -> None:
    """Another NumPy rounds differently, but explains no more."""
    replayed_door.update(requirements=["numpy==1.0"])
    with replayed_door.file() as file:
        for episode in file.values():
            episode["actions"][40:] *= np.float32(0.95)
    assert not replayed_door.check().ok


def test_one_step_across_a_threshold_is_a_warning_with_its_size(replayed_door: Planted) -> None:
    """In an element that MuJoCo computes before a step ends, so the state does not determine it."""
    replayed_door.update(requirements=["numpy==1.0"])
    with replayed_door.file() as file:
        observations = file["episode_1/observations"]
        observations[40, 30] += 0.5
    report = replayed_door.check()
    finding = only(report)
    assert report.ok
    assert (finding.level, finding.id) == ("warning", "inexact-steps")
    assert "the largest difference is 0.5, at episode 1 / observations, step 39" in finding.message


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1", "Hopper-v5"]
)
def test_episodes_without_seeds_are_simulated_step_by_step(env_id: str, tmp_path: Path) -> None:
    """Where observations tell the state: what is wrong is reported then, and clean data is not."""
    buffers = [
        replace(buffer, seed=None)
        for buffer in run_episodes(
            lambda: gym.make(env_id, max_episode_steps=50), RandomPolicy(), range(3), seed=1
        )
    ]
    env = gym.make(env_id, max_episode_steps=50)
    data = planted(tmp_path, env, buffers, "random/steps-v0")
    assert only(data.check()).id == "not-replayed"
    with data.file() as file:
        actions = file["episode_1/actions"]
        actions[:] = np.roll(actions[()], 1, axis=0)
    found = [f for f in data.check().findings if f.id != "not-replayed"]
    assert found and all(f.level == "error" or f.id == "inexact-steps" for f in found)


def test_versions_that_do_not_simulate_do_not_matter(tmp_path: Path) -> None:
    data = collect(tmp_path, 1)
    data.update(requirements=["torch==0.1", "gymnasium>=0.29", "numpy>=1"])
    assert data.check().replay.exact
