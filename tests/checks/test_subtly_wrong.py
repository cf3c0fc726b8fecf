"""Subtly wrong datasets of many kinds: each is reported, and the same data unharmed is not."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from minari_pipe.checks import Finding, Options, Subject, run
from minari_pipe.checks.demonstrations import gap_findings
from minari_pipe.checks.reference import Reference
from minari_pipe.core.environments import make_environment
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import map_leaves
from minari_pipe.policies.random import RandomPolicy
from minari_pipe.policies.rollout import run_episodes
from minari_pipe.storage.base import MinariStorage, get_storage_keys
from tests.conftest import FULL

LIMIT = 30


class Pictures(gym.Env):
    """A red ramp that moves down."""

    observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.row = int(self.np_random.integers(8))
        return self._picture(), {}

    def step(self, action: Any) -> Any:
        self.row += 1 + int(action)
        return self._picture(), float(self.row), self.row >= 28, False, {}

    def _picture(self) -> np.ndarray:
        picture = np.zeros((32, 32, 3), np.uint8)
        picture[..., 1] = np.arange(32) * 3
        picture[self.row % 28 :, 4:20, 0] = 220
        return picture


class NoisyHopper(HopperEnv):
    """Only a seed tells what its motors do."""

    def step(self, action: Any) -> Any:
        return super().step(action + self.np_random.normal(0, 0.3, 3))


gym.register(
    "subtle/NoisyHopper-v0", entry_point=f"{__name__}:NoisyHopper", max_episode_steps=LIMIT
)
gym.register("subtle/Pictures-v0", entry_point=f"{__name__}:Pictures", max_episode_steps=LIMIT)
Buffers = list[EpisodeBuffer]


@dataclass
class Made:
    """What a dataset is written from."""

    buffers: Buffers
    env: gym.Env | None
    metadata: dict[str, Any] = field(default_factory=dict)
    jpeg_encoding: bool = False
    whole_rewards: bool = False
    """Stored as Minari stores those of an environment that pays whole numbers."""


@functools.cache
def _collected(env_id: str, state: bool) -> tuple[EpisodeBuffer, ...]:
    def make() -> gym.Env:
        return make_environment(env_id, {"max_episode_steps": LIMIT})

    return tuple(run_episodes(make, RandomPolicy(), range(4), seed=1, record_state=state))


def collected(env_id: str, *, seeded: bool, state: bool = False) -> Made:
    buffers = [
        replace(map_leaves_of(buffer, np.copy), seed=buffer.seed if seeded else None)
        for buffer in _collected(env_id, state)
    ]
    low = float(np.mean([np.sum(buffer.rewards) for buffer in buffers]))
    high = 30.0 if "Pole" in env_id else low + 100
    scores = {"ref_min_score": low, "ref_max_score": high, "num_episodes_average_score": 4}
    return Made(buffers, make_environment(env_id, {"max_episode_steps": LIMIT}), scores)


def map_leaves_of(buffer: EpisodeBuffer, change: Callable[[Any], Any]) -> EpisodeBuffer:
    names = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    return replace(buffer, **{name: map_leaves(change, getattr(buffer, name)) for name in names})


def whole_rewards(env_id: str, *, seeded: bool) -> Made:
    return replace(collected(env_id, seeded=seeded), whole_rewards=True)


def clipped_lake() -> Made:
    """A goal that walks do not reach, whose reward a wrapper clips."""
    clip = {"_target_": "gymnasium.wrappers.ClipReward", "max_reward": 0.5}
    kwargs = {"is_slippery": False, "max_episode_steps": LIMIT}
    env = make_environment("FrozenLake-v1", kwargs, [clip])
    return Made([by_actions(env, [1, 1, 2, 1, 2, 2])], env)


def fickle_taxi() -> Made:
    """A passenger who wants to go elsewhere, which the table of transitions leaves out."""
    env = make_environment("Taxi-v4", {"fickle_passenger": True, "max_episode_steps": LIMIT})
    return Made([by_actions(env, [1, 2, 2, 2, 0, 0, 4, 0, 1])], env)


def by_actions(env: gym.Env, actions: list[int], seed: int = 0) -> EpisodeBuffer:
    first, _ = env.reset(seed=seed)
    states, rewards, terminations, truncations, _ = zip(*map(env.step, actions), strict=True)
    return EpisodeBuffer(
        id=0,
        observations=np.array([first, *states]),
        actions=np.array(actions),
        rewards=np.array(rewards, dtype=np.float64),
        terminations=np.array(terminations),
        truncations=np.array([*truncations[:-1], not terminations[-1]]),
    )


def combined() -> Made:
    """Two datasets, of which the other was begun with the same seeds."""
    made = collected("CartPole-v1", seeded=True)
    assert made.env is not None
    for seed in [int(buffer.seed or 0) for buffer in made.buffers]:
        buffer = by_actions(made.env, [0, 1, 1, 0] * 3, seed)
        made.buffers.append(replace(buffer, id=None, seed=seed))
    made.metadata["combined_datasets"] = ["subtle/one-v0", "subtle/two-v0"]
    return made


def blackjack() -> Made:
    """To stick ends a game without a new card."""

    def make() -> gym.Env:
        return make_environment("Blackjack-v1", {"max_episode_steps": LIMIT})

    buffers = run_episodes(make, RandomPolicy(), range(60), seed=1)
    return Made([replace(b, seed=None) for b in buffers], make())


def pictures() -> Made:
    made = collected("subtle/Pictures-v0", seeded=True)
    return replace(made, jpeg_encoding=True)


def without_environment() -> Made:
    return Made(collected("Pendulum-v1", seeded=False).buffers, None)


BASES: dict[str, Callable[[], Made]] = {
    "seeded": lambda: collected("Pendulum-v1", seeded=True),
    "unseeded": lambda: collected("Pendulum-v1", seeded=False),
    "pole": lambda: collected("CartPole-v1", seeded=True),
    "combined": combined,
    "unseeded pole": lambda: collected("CartPole-v1", seeded=False),
    "walker": lambda: collected("Walker2d-v5", seeded=True, state=True),
    "unseeded walker": lambda: collected("Walker2d-v5", seeded=False),
    "unseeded noise": lambda: collected("subtle/NoisyHopper-v0", seeded=False),
    "unseeded maze": lambda: collected("PointMaze_UMaze-v3", seeded=False),
    "lake": lambda: whole_rewards("FrozenLake-v1", seeded=True),
    "unseeded lake": lambda: whole_rewards("FrozenLake-v1", seeded=False),
    "taxi": lambda: whole_rewards("Taxi-v4", seeded=True),
    "unseeded taxi": lambda: whole_rewards("Taxi-v4", seeded=False),
    "unseeded reach": lambda: collected("FetchReach-v4", seeded=False),
    "unseeded dense reach": lambda: collected("FetchReachDense-v4", seeded=False),
    "unseeded clipped lake": clipped_lake,
    "unseeded fickle taxi": fickle_taxi,
    "unseeded blackjack": blackjack,
    "pictures": pictures,
    "no environment": without_environment,
}
FORMATS = itertools.cycle(get_storage_keys())


def written(made: Made, path: Path, data_format: str) -> Path:
    first = made.buffers[0]
    spaces = [
        gym.spaces.Box(-np.inf, np.inf, column.shape[1:], column.dtype)
        for column in (first.observations, first.actions)
        if made.env is None
    ] or [made.env.observation_space, made.env.action_space]
    storage = MinariStorage.new(
        path,
        observation_space=spaces[0],
        action_space=spaces[1],
        env_spec=None if made.env is None else made.env.spec,
        data_format=data_format,
        jpeg_encoding=made.jpeg_encoding,
    )
    storage.update_episodes(made.buffers)
    if made.whole_rewards and data_format == "hdf5":
        with h5py.File(path / "main_data.hdf5", "r+") as file:
            for episode in file.values():
                rewards = episode["rewards"][()]
                del episode["rewards"]
                episode["rewards"] = rewards.astype(np.int64)
    storage.update_metadata(
        {
            "dataset_id": "subtle/wrong-v0",
            "minari_version": "0.5.4",
            "author": ["Ada"],
            "description": "made by a test",
        }
    )
    metadata = json.loads((path / "metadata.json").read_text()) | made.metadata
    metadata = {key: value for key, value in metadata.items() if value is not None}
    (path / "metadata.json").write_text(json.dumps(metadata))
    return path


def checked(made: Made, path: Path, data_format: str, skip: tuple[str, ...] = ()) -> list[Finding]:
    data_path = written(made, path / "data", data_format)
    options = Options(require_scores=False, trusted_modules=(__name__,), skip=skip)
    return run(Subject.open(data_path, options=options)).findings


# --- clean -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "data_format"),
    list(
        itertools.product(BASES, ["hdf5", "arrow"])
        if FULL
        else zip(BASES, itertools.cycle(["hdf5", "arrow"]))
    ),
)
def test_nothing_but_the_missing_seeds_is_reported_of_clean_data(
    base: str, data_format: str, tmp_path: Path
) -> None:
    found = checked(BASES[base](), tmp_path, data_format)
    assert [f.id for f in found] == (["not-replayed"] if base.startswith(("un", "no")) else [])


# --- wrong -----------------------------------------------------------------------------------

Wrong = Callable[[Made], Any]


def columns(**changes: Callable[[np.ndarray], np.ndarray]) -> Wrong:
    """Change columns of all episodes."""

    def plant(made: Made) -> None:
        made.buffers = [
            replace(b, **{name: change(getattr(b, name)) for name, change in changes.items()})
            for b in made.buffers
        ]

    return plant


def metadata(**changes: Any) -> Wrong:
    return lambda made: made.metadata.update(changes)


def both(*plants: Wrong) -> Wrong:
    return lambda made: [plant(made) for plant in plants]


def late(column: np.ndarray) -> np.ndarray:
    return np.concatenate([column[:1], column[:-1]])


def repeat_last(column: np.ndarray) -> np.ndarray:
    return np.concatenate([column[:-1], column[-2:-1]])


def after(step: int, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    return lambda column: np.concatenate([column[:step], change(column[step:])])


def glue(made: Made) -> None:
    """Two episodes as one, of which the reset is a step."""
    first, second, *others = made.buffers
    half = LIMIT // 2
    made.buffers = [
        replace(
            first,
            **{
                name: np.concatenate([getattr(first, name)[:half], getattr(second, name)[half:]])
                for name in ("observations", "actions", "rewards", "terminations", "truncations")
            },
        ),
        *[replace(other, id=number) for number, other in enumerate(others, 1)],
    ]


def other_physics(made: Made) -> None:
    made.env = make_environment("Pendulum-v1", {"g": 5.0, "max_episode_steps": LIMIT})


def swap_seeds(made: Made) -> None:
    a, b, *others = made.buffers
    made.buffers = [replace(a, seed=b.seed), replace(b, seed=a.seed), *others]


def copy_one(made: Made) -> None:
    made.buffers.append(replace(made.buffers[1], id=None))


def one_seed(made: Made) -> None:
    made.buffers = [replace(b, seed=7) for b in made.buffers]


def limit(n_steps: int) -> Wrong:
    def plant(made: Made) -> None:
        assert made.env is not None and made.env.spec is not None
        made.env = make_environment(made.env.spec.id, {"max_episode_steps": n_steps})

    return plant


def cut(*lengths: int) -> Wrong:
    """Truncate the episodes after so many steps; a negative number terminates one."""

    def plant(made: Made) -> None:
        buffers = itertools.islice(itertools.cycle(made.buffers), len(lengths))
        made.buffers = [shortened(b, i, n) for i, (b, n) in enumerate(zip(buffers, lengths))]

    return plant


def shortened(buffer: EpisodeBuffer, id: int, length: int) -> EpisodeBuffer:
    n_steps = abs(length)
    ends = np.arange(1, n_steps + 1) == n_steps
    return replace(
        buffer,
        id=id,
        observations=buffer.observations[: n_steps + 1],
        actions=buffer.actions[:n_steps],
        rewards=buffer.rewards[:n_steps],
        terminations=ends & (length < 0),
        truncations=ends & (length > 0),
    )


def flags(*, terminated: bool, truncated: bool) -> Wrong:
    def last(value: bool) -> Any:
        return lambda column: np.concatenate([column[:-1], [value]])

    return columns(terminations=last(terminated), truncations=last(truncated))


def infos(of: Callable[[EpisodeBuffer], np.ndarray]) -> Wrong:
    def plant(made: Made) -> None:
        made.buffers = [replace(b, infos={"of": {"mine": of(b)}}) for b in made.buffers]

    return plant


def state_late(made: Made) -> None:
    made.buffers = [replace(b, infos=map_leaves(late, b.infos)) for b in made.buffers]


def eval_spec(**kwargs: Any) -> str:
    return make_environment("Pendulum-v1", kwargs).spec.to_json()


def evaluated_densely(made: Made) -> None:
    dense = make_environment("PointMaze_UMazeDense-v3", {"max_episode_steps": LIMIT})
    made.metadata["eval_env_spec"] = dense.spec.to_json()


def evaluated_by_halves(made: Made) -> None:
    """Half the time limit that the data have as registered."""
    half = make_environment("subtle/NoisyHopper-v0", {"max_episode_steps": LIMIT // 2})
    made.metadata["eval_env_spec"] = half.spec.to_json()


def move_goals(made: Made) -> None:
    """Goals that were achieved later, as hindsight relabels them, beside the old rewards."""

    def relabelled(observations: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        achieved = observations["achieved_goal"]
        return {**observations, "desired_goal": np.broadcast_to(achieved[10], achieved.shape)}

    made.buffers = [replace(b, observations=relabelled(b.observations)) for b in made.buffers]


def swapped(column: np.ndarray) -> np.ndarray:
    """Actions 0 and 1, south and north, exchanged."""
    return np.where(column < 2, 1 - column, column).astype(column.dtype)


def with_row_3(value: float) -> Callable[[EpisodeBuffer], np.ndarray]:
    def column(buffer: EpisodeBuffer) -> np.ndarray:
        values = buffer.observations[:, 0].copy()
        values[3] = value
        return values

    return column


def shifted(column: np.ndarray) -> np.ndarray:
    """Within the bounds of the space."""
    return (column * np.float32(0.5)).astype(column.dtype)


def fixed(column: np.ndarray) -> np.ndarray:
    column = column.copy()
    column[:, 2] = 0.25
    return column


OTHER_NUMPY = metadata(requirements=["numpy==1.0"])
NEGATED = {"rewards": np.negative}
ERROR = "error"

ROWS: dict[str, tuple[str, Wrong, set[str]]] = {
    # With seeds all of it is simulated again.
    "rewards of the step before": ("seeded", columns(rewards=late), {ERROR}),
    "rewards scaled": ("seeded", columns(rewards=lambda r: r * 1.5), {ERROR}),
    "actions of the step before": ("seeded", columns(actions=late), {ERROR}),
    "observations of half precision": (
        "seeded",
        columns(observations=lambda o: o.astype("f2").astype("f4")),
        {ERROR},
    ),
    "seeds exchanged": ("seeded", swap_seeds, {ERROR}),
    "the last observation twice": ("seeded", columns(observations=repeat_last), {ERROR}),
    "another gravity": ("seeded", other_physics, {ERROR}),
    "both flags at a fall": ("pole", flags(terminated=True, truncated=True), {ERROR}),
    "truncated where it fell": ("pole", flags(terminated=False, truncated=True), {ERROR}),
    "states of the row before": ("walker", state_late, {ERROR}),
    # Whatever the requirements say.
    "negated, another numpy": ("seeded", both(OTHER_NUMPY, columns(**NEGATED)), {ERROR}),
    "negated late, another numpy": (
        "pole",
        both(OTHER_NUMPY, columns(rewards=after(8, np.negative))),
        {ERROR},
    ),
    "negated, another numpy, states": ("walker", both(OTHER_NUMPY, columns(**NEGATED)), {ERROR}),
    "shifted, another numpy, states": (
        "walker",
        both(OTHER_NUMPY, columns(observations=lambda o: o + 1.0)),
        {ERROR},
    ),
    "glued, another numpy": ("seeded", both(OTHER_NUMPY, glue), {ERROR, "inexact-steps"}),
    # Without seeds each step is, where observations tell the state.
    "shrunk observations": ("unseeded", columns(observations=shifted), {ERROR, "inexact-steps"}),
    "observations late": ("unseeded", columns(observations=late), {ERROR, "inexact-steps"}),
    "actions late": ("unseeded", columns(actions=late), {ERROR, "inexact-steps"}),
    "no actions": ("unseeded", columns(actions=np.zeros_like), {ERROR, "constant-column"}),
    "glued": ("unseeded", glue, {"inexact-steps"}),
    "wrong physics": ("unseeded", other_physics, {ERROR}),
    "scaled rewards": ("unseeded", columns(rewards=lambda r: r * 1.5), {ERROR}),
    "negated rewards": ("unseeded pole", columns(**NEGATED), {ERROR}),
    "negated rewards of a maze": ("unseeded maze", columns(rewards=lambda r: r - 1), {ERROR}),
    "the last row twice": ("unseeded", columns(observations=repeat_last), {"inexact-steps"}),
    "fell, recorded as cut": (
        "unseeded pole",
        flags(terminated=False, truncated=True),
        {ERROR},
    ),
    # Where they do not, its looks decide.
    "the last row of a walker twice": (
        "unseeded walker",
        columns(observations=repeat_last),
        {"repeated-last-observation"},
    ),
    "the last row of each game twice": (
        "unseeded blackjack",
        columns(observations=lambda o: map_leaves(repeat_last, o)),
        {"repeated-last-observation"},
    ),
    "no actions of a walker": (
        "unseeded walker",
        columns(actions=np.zeros_like),
        {"constant-column"},
    ),
    "no rewards of a walker": (
        "unseeded walker",
        columns(rewards=np.zeros_like),
        {"constant-column"},
    ),
    "a constant element": (
        "unseeded walker",
        columns(observations=fixed),
        {"constant-column"},
    ),
    "both flags of a walker": (
        "unseeded walker",
        flags(terminated=True, truncated=True),
        {"both-flags"},
    ),
    "a copy": ("unseeded walker", copy_one, {"duplicate-episodes"}),
    "a copy of a pendulum": ("unseeded", copy_one, {"duplicate-episodes"}),
    "a copy of a pole": ("unseeded pole", copy_one, {"duplicate-episodes"}),
    "a copy with its seed": ("seeded", copy_one, {"duplicate-episodes"}),
    "a copy without an environment": ("no environment", copy_one, {"duplicate-episodes"}),
    "no actions without an environment": (
        "no environment",
        columns(actions=np.zeros_like),
        {"constant-column"},
    ),
    "the last row twice without an environment": (
        "no environment",
        columns(observations=repeat_last),
        {"repeated-last-observation"},
    ),
    "one seed for all": ("no environment", one_seed, {"equal-seeds"}),
    "seeds twice without parents": (
        "combined",
        metadata(combined_datasets=None),
        {"equal-seeds"},
    ),
    # Ends.
    "a limit that is never reached": ("seeded", limit(200), {"time-limit-not-reached"}),
    "a limit that no episode reached, one closed early": (
        "seeded",
        both(limit(200), cut(20, 20, 20, 7)),
        {"time-limit-not-reached"},
    ),
    "a limit that was passed": ("unseeded", limit(20), {ERROR}),
    "a limit that a walker passed": (
        "unseeded walker",
        both(limit(10), columns(terminations=np.zeros_like)),
        {"not-truncated-at-limit"},
    ),
    "terminated at the limit": (
        "unseeded maze",
        flags(terminated=True, truncated=False),
        {ERROR, "not-truncated-at-limit"},
    ),
    # Infos.
    "an info that is missing": ("unseeded", infos(with_row_3(np.nan)), {"nan-infos"}),
    "an info that is infinite": ("seeded", infos(with_row_3(np.inf)), {"nan-infos"}),
    "infos late": ("seeded", infos(lambda b: late(b.observations[:, 2])), {"shifted-infos"}),
    "infos early": (
        "no environment",
        infos(lambda b: np.roll(b.observations, -1, axis=0)),
        {"shifted-infos"},
    ),
    "rewards in infos early": (
        "no environment",
        infos(lambda b: np.append(b.rewards, 0.0)),
        {"shifted-infos"},
    ),
    "rewards in infos late": (
        "no environment",
        infos(lambda b: np.concatenate([[0.0, 0.0], b.rewards[:-1]])),
        {"shifted-infos"},
    ),
    # Discrete states and whole rewards.
    "whole rewards scaled": ("lake", columns(rewards=lambda r: r + 1), {ERROR}),
    "states in a byte": ("taxi", columns(observations=lambda o: o % 256), {ERROR}),
    "directions exchanged": ("unseeded taxi", columns(actions=swapped), {ERROR}),
    "unseeded states in a byte": (
        "unseeded taxi",
        columns(observations=lambda o: o % 256),
        {ERROR},
    ),
    "jumps on a lake": ("unseeded lake", columns(observations=lambda o: o[::-1].copy()), {ERROR}),
    # Goals.
    "goals relabelled, rewards not": ("unseeded reach", move_goals, {ERROR}),
    "some rewards of a dense reach": (
        "unseeded dense reach",
        columns(rewards=after(25, lambda r: r - 5)),
        {"other-rewards"},
    ),
    "all rewards of a dense reach": (
        "unseeded dense reach",
        columns(rewards=lambda r: r - 5),
        {ERROR},
    ),
    # Pictures in JPEG.
    "blue for red": ("pictures", columns(observations=lambda o: o[..., ::-1].copy()), {ERROR}),
    "upside down": ("pictures", columns(observations=lambda o: o[:, ::-1].copy()), {ERROR}),
    "pictures of the step before": ("pictures", columns(observations=late), {ERROR}),
    # Digits.
    "unseeded half precision": (
        "unseeded pole",
        columns(observations=lambda o: o.astype("f2").astype("f4")),
        {"reduced-precision"},
    ),
    # Reference scores.
    "scores of another environment": (
        "seeded",
        metadata(ref_min_score=22.0, ref_max_score=500.0, num_episodes_average_score=100),
        {"random-policy-score"},
    ),
    "scores of another constant": (
        "unseeded reach",
        metadata(ref_min_score=-500.0, ref_max_score=0.0),
        {"random-policy-score"},
    ),
    "scores of a longer time limit": ("pole", metadata(ref_max_score=500.0), {"unreachable-score"}),
    "a dense evaluation of a sparse task": (
        "unseeded maze",
        evaluated_densely,
        {"other-evaluation-environment"},
    ),
    "scores of half the time limit": (
        "unseeded noise",
        evaluated_by_halves,
        {"other-evaluation-environment"},
    ),
    "an expert at random": ("seeded", metadata(dataset_id="subtle/expert-v0"), {"not-expert"}),
    "an expert by its algorithm": ("seeded", metadata(algorithm_name="SAC expert"), {"not-expert"}),
    # Metadata.
    "no author": ("seeded", metadata(author=None), {"missing-author"}),
    "no description": ("seeded", metadata(description=None), {"missing-description"}),
    "another size": ("seeded", metadata(dataset_size=7.5), {"dataset-size"}),
    "no such package": ("seeded", metadata(requirements=["nunpy"]), {"unmet-requirement"}),
    "no such version": ("seeded", metadata(requirements=["numpy==99.1"]), {"unmet-requirement"}),
    "one reference score": ("seeded", metadata(ref_max_score=None), {ERROR}),
    "scores of another gravity": (
        "seeded",
        metadata(eval_env_spec=eval_spec(g=5.0)),
        {"other-evaluation-environment"},
    ),
}


@pytest.mark.parametrize("kind", ROWS)
def test_is_reported(kind: str, tmp_path: Path) -> None:
    base, plant, expected = ROWS[kind]
    made = BASES[base]()
    plant(made)
    # What simulates ten more episodes runs where its own findings are expected.
    by_simulation = {*Reference.warnings, "other-evaluation-environment"}
    skip = () if expected & by_simulation else (Reference.name,)
    found = checked(made, tmp_path, next(FORMATS), skip)
    reported = {f.level if f.level == ERROR else f.id for f in found} - {"not-replayed"}
    assert reported & expected, [f.to_json() for f in found]


@pytest.mark.parametrize(
    "options", [{"skip": ("replay",)}, {"skip": ("reference",)}, {"replay_steps": 2 * LIMIT - 1}]
)
def test_the_random_policy_is_not_simulated_where_replay_is_not(
    options: dict[str, Any], tmp_path: Path
) -> None:
    made = BASES["seeded"]()
    ROWS["scores of another environment"][1](made)
    data_path = written(made, tmp_path / "data", "hdf5")
    assert run(Subject.open(data_path, options=Options(**options))).findings == []


def test_a_warning_is_acknowledged_by_its_name(tmp_path: Path) -> None:
    made = BASES["seeded"]()
    metadata(author=None, dataset_size=7.5)(made)
    data_path = written(made, tmp_path / "data", "hdf5")
    options = Options(require_scores=False, acknowledge=("missing-author", "dataset-size"))
    report = run(Subject.open(data_path, options=options))
    assert report.findings == []
    assert [f.id for f in report.acknowledged] == ["missing-author", "dataset-size"]


def test_a_warning_that_does_not_occur_may_be_acknowledged(tmp_path: Path) -> None:
    data_path = written(BASES["seeded"](), tmp_path / "data", "hdf5")
    known = ("equal-seeds", "demonstration-returns")
    options = Options(require_scores=False, acknowledge=known)
    assert run(Subject.open(data_path, options=options)).findings == []


@pytest.mark.parametrize(
    "lengths",
    [(30, 29, 28, 27), (20, 20, 20, 30), (20, 20, 7), (20, 20, 20, 7, 7), (20, 20, 20, 7, -30)],
    ids=["all different", "one beyond", "only two", "too few", "one terminated beyond"],
)
def test_ends_below_the_limit_are_legitimate_if_few_are_alike(
    lengths: tuple[int, ...], tmp_path: Path
) -> None:
    made = BASES["seeded"]()
    both(limit(200), cut(*lengths))(made)
    data_path = written(made, tmp_path / "data", "hdf5")
    found = run(Subject.open(data_path, options=Options(skip=("replay",)))).findings
    assert "time-limit-not-reached" not in {f.id for f in found}


def test_an_info_may_repeat_the_rewards_from_its_second_row_on(tmp_path: Path) -> None:
    """The first row is the reset's."""
    made = BASES["no environment"]()
    infos(lambda b: np.concatenate([[0.0], b.rewards]))(made)
    assert [f.id for f in checked(made, tmp_path, "hdf5")] == ["not-replayed"]


@pytest.mark.parametrize(
    ("value", "said"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")], ids=str
)
def test_a_finding_of_an_info_says_what_the_value_is(
    value: float, said: str, tmp_path: Path
) -> None:
    made = BASES["seeded"]()
    infos(with_row_3(value))(made)
    (finding,) = checked(made, tmp_path, "hdf5")
    assert (finding.id, finding.path) == ("nan-infos", "episode 0 / infos.of.mine")
    assert finding.message == f"row 3 is {said}; in 4 of 4 episodes"


# --- demonstrations --------------------------------------------------------------------------


def report(gap: float, recorded: float, replayed: float) -> dict[str, Any]:
    return {
        "observation_gap_median": gap,
        "observation_gap_max": 2.0,
        "recorded_return": recorded,
        "replayed_return": replayed,
    }


@pytest.mark.parametrize(
    ("gap", "recorded", "reported"),
    [
        (0.0015, 794.0, []),  # the human door demonstrations
        (1.0, 794.0, ["demonstration-observations"]),
        (0.0015, 1191.0, ["demonstration-returns"]),
        (0.0015, -794.0, ["demonstration-returns"]),
        (None, None, []),
    ],
)
def test_recorded_demonstrations_that_the_replay_does_not_resemble(
    gap: Any, recorded: Any, reported: list[str]
) -> None:
    found = list(gap_findings([report(gap, recorded, 803.0)] * 3))
    assert [(f.level, f.id) for f in found] == [("warning", id) for id in reported]
