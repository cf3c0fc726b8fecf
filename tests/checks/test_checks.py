"""Every check finds the fault that was planted for it, at its place, and nothing else finds it.

The faults are planted in random CartPole episodes and in replayed human demonstrations of the
Adroit door (if they are at hand), once each.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer as TheirBuffer

from minari_pipe.checks import CHECKS, Check, Finding, Options, Report, Subject, run, runner
from minari_pipe.checks.advisory import ADVISORIES
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.metadata import STANDARD_KEYS
from minari_pipe.core.spaces import serialize_space
from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.recording.recorder import EpisodeRecorder
from minari_pipe.storage.base import MinariStorage
from tests.conftest import FULL
from tests.support.checks_datasets import (
    DOOR_ADVISORY,
    Planted,
    cartpole,
    cartpole_data,
    dataset,
    door,
    door_data,
    write_dataset,
)
from tests.support.legacy_files import GOLDEN

__all__ = ["cartpole", "cartpole_data", "dataset", "door", "door_data"]

Plant = Callable[[Planted], None]


def only(report: Report) -> Finding:
    """The one finding of a report."""
    assert len(report.findings) == 1, json.dumps(report.to_json()["findings"], indent=1)
    return report.findings[0]


def place(finding: Finding) -> tuple[str, str, str]:
    return finding.level, finding.check, finding.path


# --- clean data ------------------------------------------------------------------------------


def test_clean_data_has_no_findings(dataset: Planted) -> None:
    report = dataset.check()
    assert report.findings == []
    assert report.ok
    assert set(report.counts) == set(CHECKS)
    assert report.replay.replayed == dataset.metadata["total_episodes"]
    assert report.replay.exact
    assert json.loads(json.dumps(report.to_json())) == report.to_json()


# --- faults in episodes ----------------------------------------------------------------------


def cut(name: str, rows: int) -> Plant:
    """Drop the last rows of a column of episode 1, or repeat the last one."""

    def plant(data: Planted) -> None:
        values = data.column(1, name)
        longer = np.concatenate([values, values[-1:]])
        data.replace_column(1, name, values[:rows] if rows < 0 else longer)

    return plant


def cast(name: str, dtype: Any) -> Plant:
    def plant(data: Planted) -> None:
        data.replace_column(1, name, data.column(1, name).astype(dtype))

    return plant


def narrower(name: str) -> Plant:
    def plant(data: Planted) -> None:
        values = data.column(1, name)
        data.replace_column(1, name, np.stack([values, values], axis=1))

    return plant


def put(name: str, row: int, value: Any) -> Plant:
    def plant(data: Planted) -> None:
        with data.file() as file:
            file[f"episode_1/{name}"][row, ...] = value

    return plant


def put_first(name: str, row: int, value: Any) -> Plant:
    """Change the first element of a row."""

    def plant(data: Planted) -> None:
        with data.file() as file:
            column = file[f"episode_1/{name}"]
            column[(row, *(0 for _ in column.shape[1:]))] = value

    return plant


def attribute(name: str, value: Any) -> Plant:
    def plant(data: Planted) -> None:
        with data.file() as file:
            file["episode_1"].attrs[name] = value

    return plant


def remove(name: str) -> Plant:
    def plant(data: Planted) -> None:
        with data.file() as file:
            del file[name]

    return plant


def no_attribute(name: str) -> Plant:
    def plant(data: Planted) -> None:
        with data.file() as file:
            del file["episode_1"].attrs[name]

    return plant


def another_group(name: str) -> Plant:
    """One more group at the top of the file, a copy of an episode."""

    def plant(data: Planted) -> None:
        with data.file() as file:
            file.copy("episode_1", name)

    return plant


def info_rows(data: Planted) -> None:
    steps = len(data.column(1, "rewards"))
    with data.file() as file:
        file["episode_1"].require_group("infos/planted")["x"] = np.zeros(steps)


def open_end(data: Planted) -> None:
    for name in ("terminations", "truncations"):
        put(name, -1, False)(data)


def early_end(data: Planted) -> None:
    """The flags of the last step come one step too early."""
    for name in ("terminations", "truncations"):
        values = data.column(1, name)
        data.replace_column(1, name, np.roll(values, -1))


def no_steps(data: Planted) -> None:
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        data.replace_column(1, name, data.column(1, name)[: name == "observations"])


def outside_link(data: Planted) -> None:
    other = data.data_path.parent / "secret.hdf5"
    with h5py.File(other, "w") as file:
        file["rewards"] = data.column(1, "rewards")
    with data.file() as file:
        del file["episode_1/rewards"]
        file["episode_1/rewards"] = h5py.ExternalLink(str(other), "/rewards")


def reward_with_statistics(data: Planted) -> None:
    rewards = data.column(1, "rewards")
    rewards[3] += 1e-9
    data.replace_column(1, "rewards", rewards)


EPISODE_FAULTS = {
    "an observation too few": (cut("observations", -1), "shapes", "observations"),
    "an observation too many": (cut("observations", 1), "shapes", "observations"),
    "an action too few": (cut("actions", -1), "shapes", "actions"),
    "an action too many": (cut("actions", 1), "shapes", "actions"),
    "a reward too few": (cut("rewards", -1), "shapes", "rewards"),
    "a termination too few": (cut("terminations", -1), "shapes", "terminations"),
    "a truncation too many": (cut("truncations", 1), "shapes", "truncations"),
    "observations of another shape": (narrower("observations"), "shapes", "observations"),
    "rewards of two dimensions": (narrower("rewards"), "shapes", "rewards"),
    "infos of T rows": (info_rows, "shapes", "infos.planted.x"),
    "no steps": (no_steps, "shapes", None),
    "observations of another dtype": (cast("observations", "f2"), "dtypes", "observations"),
    "actions of another dtype": (cast("actions", "i2"), "dtypes", "actions"),
    "rewards of float32": (cast("rewards", "f4"), "dtypes", "rewards"),
    "flags of uint8": (cast("truncations", "u1"), "dtypes", "truncations"),
    "a missing column": (remove("episode_1/rewards"), "readable", None),
    "a link to another file": (outside_link, "readable", None),
    "nan observed": (put_first("observations", 2, np.nan), "finite", "observations"),
    "infinity observed": (put_first("observations", 2, np.inf), "finite", "observations"),
    "nan reward": (put("rewards", 2, np.nan), "finite", "rewards"),
    "terminated too early": (put("terminations", 2, True), "flags", "terminations"),
    "truncated too early": (put("truncations", 2, True), "flags", "truncations"),
    "not ended": (open_end, "flags", None),
    "wrong id": (attribute("id", 7), "ids", "id"),
    "no id": (no_attribute("id"), "ids", "id"),
    "two ids": (attribute("id", [0, 1]), "ids", "id"),
    "id that is true": (attribute("id", True), "ids", "id"),
    "id with a fraction": (attribute("id", 1.0), "ids", "id"),
    "id as text": (attribute("id", "1"), "ids", "id"),
    "id without a value": (attribute("id", h5py.Empty("i8")), "ids", "id"),
    "fraction of a seed": (attribute("seed", 1.5), "layout", "seed"),
    "seed without a value": (attribute("seed", h5py.Empty("i8")), "layout", "seed"),
    "seed that is true": (attribute("seed", True), "layout", "seed"),
    "negative seed": (attribute("seed", -5), "layout", "seed"),
    "seed that is no number": (attribute("seed", "abc"), "layout", "seed"),
    "wrong count of steps": (attribute("total_steps", 7), "totals", "total_steps"),
    "no count of steps": (no_attribute("total_steps"), "totals", "total_steps"),
    "two counts of steps": (attribute("total_steps", [9, 9]), "totals", "total_steps"),
    "one statistic missing": (no_attribute("rewards_sum"), "statistics", "rewards_sum"),
    "filled rows beyond the end": (
        attribute("infos_filled", '{"success": [[0, 1000]]}'),
        "shapes",
        "infos_filled",
    ),
    "filled rows that are none": (
        attribute("infos_filled", '{"success": 3}'),
        "shapes",
        "infos_filled",
    ),
    "wrong sum of rewards": (attribute("rewards_sum", 7.5), "statistics", "rewards"),
    "another reward": (put("rewards", 3, 0.5), "statistics", "rewards"),
    "another observation": (put_first("observations", 4, 0.01), "replay", "observations"),
    "a tiny bit more reward": (reward_with_statistics, "replay", "rewards"),
}


def cells(faults: dict[str, tuple[Any, str, Any]]) -> list[tuple[str, str]]:
    """Every fault in CartPole; in the door, which is slow, one of each check."""
    of_each_check = {check: fault for fault, (_, check, _) in faults.items()}
    in_the_door = faults if FULL else of_each_check.values()
    return [*(("cartpole", fault) for fault in faults), *(("door", fault) for fault in in_the_door)]


@pytest.mark.parametrize(("dataset", "fault"), cells(EPISODE_FAULTS), indirect=["dataset"])
def test_a_fault_in_an_episode_is_one_finding(dataset: Planted, fault: str) -> None:
    plant, check, column = EPISODE_FAULTS[fault]
    plant(dataset)
    report = dataset.check(**({} if check == "replay" else dataset.few_steps))
    path = "episode 1" if column is None else f"episode 1 / {column}"
    assert place(only(report)) == ("error", check, path)
    assert not report.ok
    assert str(dataset.data_path) not in json.dumps(report.to_json())


def test_all_statistics_may_be_missing(cartpole: Planted) -> None:
    for name in ("sum", "mean", "std", "max", "min"):
        no_attribute(f"rewards_{name}")(cartpole)
    assert cartpole.check().findings == []


@pytest.mark.parametrize(
    ("value", "described"),
    [("count", "(str)"), ([1, 2], "(ndarray)"), (7, "7"), (7.0, "7.0 (float)"), (True, "(bool)")],
)
def test_a_count_of_another_type_is_named(cartpole: Planted, value: Any, described: str) -> None:
    """The text "30" beside 30 steps: both look the same in a message."""
    n_steps = len(cartpole.column(1, "rewards"))
    attribute("total_steps", str(n_steps) if value == "count" else value)(cartpole)
    message = only(cartpole.check()).message
    assert message.startswith("is ") and described in message
    assert message.endswith(f"expected the integer {n_steps}, its number of steps")


@pytest.mark.parametrize("name", ["episode_99", "episode_01", "junk"])
def test_a_group_that_is_no_episode_is_named(dataset: Planted, name: str) -> None:
    another_group(name)(dataset)
    finding = only(dataset.check(replay_steps=60))
    assert place(finding) == ("error", "layout", f"data / {name}")
    n_episodes = dataset.metadata["total_episodes"]
    gap = f"episode_{n_episodes} is missing" if name == "episode_99" else "episode_0, episode_1"
    assert gap in finding.message


def test_many_episodes_after_a_gap_are_one_finding(cartpole: Planted) -> None:
    for name in ("episode_98", "episode_99", "episode_100"):
        another_group(name)(cartpole)
    finding = only(cartpole.check())
    assert place(finding) == ("error", "layout", "data / episode_98")
    assert finding.message.endswith("(3 groups after the gap)")


def test_one_episode_too_many_is_one_finding(cartpole: Planted) -> None:
    another_group("episode_4")(cartpole)
    with cartpole.file() as file:
        file["episode_4"].attrs["id"] = 4
    report = cartpole.check(acknowledge=("duplicate-episodes",))
    assert place(only(report)) == ("error", "totals", "metadata / total_episodes")


def test_moved_flags_are_one_finding(dataset: Planted) -> None:
    early_end(dataset)
    flag = "truncations" if dataset.column(1, "truncations").any() else "terminations"
    assert place(only(dataset.check(**dataset.few_steps))) == (
        "error",
        "flags",
        f"episode 1 / {flag}",
    )


def test_messages_have_both_numbers(cartpole: Planted) -> None:
    n_steps = len(cartpole.column(1, "rewards"))
    cut("actions", 1)(cartpole)
    message = only(cartpole.check()).message
    assert message == f"shape ({n_steps + 1},), expected ({n_steps},)"


def test_discrete_action_outside_its_space(cartpole: Planted) -> None:
    put("actions", 3, 2)(cartpole)
    finding = only(cartpole.check())
    assert place(finding) == ("error", "membership", "episode 1 / actions")
    assert finding.message == "row 3 is 2, not in Discrete(2)"


def test_observation_outside_its_space(cartpole: Planted) -> None:
    put_first("observations", 3, 5.0)(cartpole)
    put_first("observations", 4, -5.0)(cartpole)
    finding = only(cartpole.check())
    assert place(finding) == ("error", "membership", "episode 1 / observations")
    assert finding.message.startswith("row 3 element 0 is 5.0, outside [-4.8")
    assert finding.message.endswith("(2 rows in all)")


def test_action_outside_its_space_and_nan_action(door: Planted) -> None:
    put_first("actions", 3, 1.5)(door)
    finding = only(door.check(**door.few_steps))
    assert place(finding) == ("error", "membership", "episode 1 / actions")
    assert finding.message == "row 3 element 0 is 1.5, outside [-1.0, 1.0]"
    put_first("actions", 3, np.nan)(door)
    finding = only(door.check(**door.few_steps))
    assert place(finding) == ("error", "finite", "episode 1 / actions")


def test_stored_state_of_t_rows(door: Planted) -> None:
    cut("infos/state/qpos", -1)(door)
    finding = only(door.check(**door.few_steps))
    assert place(finding) == ("error", "shapes", "episode 1 / infos.state.qpos")


def test_last_episode_missing_is_one_finding(dataset: Planted) -> None:
    last = dataset.metadata["total_episodes"] - 1
    remove(f"episode_{last}")(dataset)
    finding = only(dataset.check(**dataset.few_steps))
    assert place(finding) == ("error", "totals", "metadata / total_episodes")


def test_missing_episode_is_one_finding(dataset: Planted) -> None:
    remove("episode_0")(dataset)
    finding = only(dataset.check(**dataset.few_steps))
    assert place(finding) == ("error", "readable", "episode 0")


def test_swapped_episodes(dataset: Planted) -> None:
    with dataset.file() as file:
        file.move("episode_0", "x")
        file.move("episode_1", "episode_0")
        file.move("x", "episode_1")
    report = dataset.check(**dataset.few_steps)
    assert [place(f) for f in report.findings] == [
        ("error", "ids", "episode 0 / id"),
        ("error", "ids", "episode 1 / id"),
    ]


# --- faults in the metadata ------------------------------------------------------------------


def spec_of(env_id: str, **changes: Any) -> str:
    fields = json.loads(gym.spec(env_id).to_json())
    return json.dumps({**fields, **changes})


METADATA_FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "more episodes": ({"total_episodes": 99}, "totals", "total_episodes"),
    "more steps": ({"total_steps": 99_999}, "totals", "total_steps"),
    "fraction of an episode": ({"total_episodes": 1.5}, "metadata", "total_episodes"),
    "steps as text": ({"total_steps": "7"}, "metadata", "total_steps"),
    "no total": ({"total_episodes": None}, "metadata", "total_episodes"),
    "no id": ({"dataset_id": None}, "metadata", "dataset_id"),
    "malformed id": ({"dataset_id": "../x-v0"}, "metadata", "dataset_id"),
    "id without version": ({"dataset_id": "door/human"}, "metadata", "dataset_id"),
    "no version of the standard": ({"minari_version": None}, "metadata", "minari_version"),
    "impossible version": ({"minari_version": "new"}, "metadata", "minari_version"),
    "version no loader accepts": ({"minari_version": "9.9"}, "metadata", "minari_version"),
    "negative size": ({"dataset_size": -1.0}, "metadata", "dataset_size"),
    "spec nested too deep": ({"env_spec": "[" * 100_000}, "metadata", "env_spec"),
    "author as a string": ({"author": "Ada"}, "metadata", "author"),
    "empty author": ({"author": [" "]}, "metadata", "author"),
    "email as a string": ({"author_email": "a@b.c"}, "metadata", "author_email"),
    "description as a list": ({"description": ["x"]}, "metadata", "description"),
    "requirements as a string": ({"requirements": "numpy"}, "metadata", "requirements"),
    "impossible requirement": ({"requirements": ["numpy >> 1"]}, "metadata", "requirements"),
    "permalink without address": ({"code_permalink": "my code"}, "metadata", "code_permalink"),
    "parent without id": ({"combined_datasets": ["a b"]}, "metadata", "combined_datasets"),
    "another environment": ({"env_spec": spec_of("Acrobot-v1")}, "environment", "env_spec"),
    "spec as a list": ({"env_spec": []}, "metadata", "env_spec"),
    "spec that is no JSON": ({"env_spec": "CartPole-v1"}, "metadata", "env_spec"),
    "spec of nothing": ({"env_spec": '{"a": 1}'}, "environment", "env_spec"),
    "unknown environment": (
        {"env_spec": spec_of("CartPole-v1", id="Nowhere-v7", entry_point="nowhere:Env")},
        "environment",
        "env_spec",
    ),
    "untrusted entry point": (
        {"env_spec": spec_of("CartPole-v1", entry_point="os:system")},
        "environment",
        "env_spec",
    ),
    "another evaluation environment": (
        {"eval_env_spec": spec_of("Acrobot-v1")},
        "environment",
        "eval_env_spec",
    ),
    "no ref_min_score": ({"ref_min_score": None}, "scores", "ref_min_score"),
    "no ref_max_score": ({"ref_max_score": None}, "scores", "ref_max_score"),
    "ref_max_score as text": ({"ref_max_score": "100"}, "scores", "ref_max_score"),
    "ref_max_score of 400 digits": ({"ref_max_score": 10**400}, "scores", "ref_max_score"),
    "infinite ref_min_score": ({"ref_min_score": -np.inf}, "scores", "ref_min_score"),
    "expert below random": ({"ref_max_score": -300.0}, "scores", "ref_max_score"),
    "expert like random": ({"ref_min_score": 9.0, "ref_max_score": 9.0}, "scores", "ref_max_score"),
    "scored over nothing": (
        {"num_episodes_average_score": 0},
        "scores",
        "num_episodes_average_score",
    ),
    "scored over unknown": (
        {"num_episodes_average_score": None},
        "scores",
        "num_episodes_average_score",
    ),
}


@pytest.mark.parametrize(("dataset", "fault"), cells(METADATA_FAULTS), indirect=["dataset"])
def test_a_fault_in_the_metadata_is_one_finding(dataset: Planted, fault: str) -> None:
    changes, check, key = METADATA_FAULTS[fault]
    dataset.update(**changes)
    report = dataset.check(replay_steps=20)
    assert place(only(report)) == ("error", check, f"metadata / {key}")


def test_both_scores_missing_is_one_finding(dataset: Planted) -> None:
    dataset.update(ref_min_score=None, ref_max_score=None, num_episodes_average_score=None)
    assert place(only(dataset.check(replay_steps=20))) == ("error", "scores", "metadata")
    assert dataset.check(replay_steps=20, require_scores=False).ok


def test_expert_below_random_names_both_numbers(cartpole: Planted) -> None:
    cartpole.update(ref_min_score=7.25, ref_max_score=-3.5)
    message = only(cartpole.check()).message
    assert "-3.5" in message
    assert "7.25" in message


def test_a_dataset_combined_of_itself_is_a_warning(cartpole: Planted) -> None:
    cartpole.update(combined_datasets=["aa/other-v0", cartpole.metadata["dataset_id"]])
    finding = only(cartpole.check())
    assert place(finding) == ("warning", "metadata", "metadata / combined_datasets")


def test_email_without_at_is_a_warning(dataset: Planted) -> None:
    dataset.update(author_email=["nobody"])
    report = dataset.check(replay_steps=20)
    assert place(only(report)) == ("warning", "metadata", "metadata / author_email")
    assert report.ok
    assert report.n_warnings == 1


@pytest.mark.parametrize("key", ["observation_space", "action_space"])
@pytest.mark.parametrize(
    "value", ["{", '{"type": "Unheard"}', '{"type": "Box", "low": [0]}', 7, None]
)
def test_a_space_that_cannot_be_read_is_one_finding(
    cartpole: Planted, key: str, value: Any
) -> None:
    cartpole.update(**{key: value})
    assert place(only(cartpole.check())) == ("error", "metadata", f"metadata / {key}")


def test_another_space_than_the_environment(cartpole: Planted) -> None:
    cartpole.update(action_space=serialize_space(gym.spaces.Discrete(3)))
    finding = only(cartpole.check())
    assert place(finding) == ("error", "environment", "metadata / env_spec")
    assert "Discrete(3)" in finding.message
    assert "Discrete(2)" in finding.message


def test_another_space_than_both_environments_is_one_finding(cartpole: Planted) -> None:
    cartpole.update(
        action_space=serialize_space(gym.spaces.Discrete(3)), eval_env_spec=spec_of("CartPole-v1")
    )
    finding = only(cartpole.check())
    assert place(finding) == ("error", "environment", "metadata / env_spec")
    assert finding.message.endswith("(also eval_env_spec)")


def test_without_the_check_of_the_metadata_it_is_still_a_finding(cartpole: Planted) -> None:
    cartpole.update(action_space="{")
    subject = Subject.open(cartpole.data_path, options=Options(skip=("metadata",)))
    assert place(only(run(subject))) == ("error", "readable", "data")
    draft = {**cartpole.metadata, "action_space": serialize_space(gym.spaces.Discrete(2))}
    cartpole.update(**draft)
    subject = Subject.open(
        cartpole.data_path,
        metadata={**draft, "action_space": "{"},
        options=Options(skip=("metadata",)),
    )
    assert place(only(run(subject))) == ("error", "readable", "metadata / action_space")


def test_a_dataset_without_episodes(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    data = Planted(write_dataset(tmp_path / "data", env, [], dataset_id="none-v0"))
    assert place(only(data.check())) == ("error", "totals", "metadata / total_episodes")


def test_largest_float_means_unbounded(cartpole: Planted) -> None:
    """Older releases of Gymnasium wrote CartPole's velocities so."""
    space = cartpole.metadata["observation_space"]
    assert "Infinity" in space
    largest = str(float(np.finfo(np.float32).max))
    cartpole.update(observation_space=space.replace("Infinity", largest))
    assert cartpole.check().findings == []


def test_untrusted_code_is_not_imported(cartpole: Planted, tmp_path: Path) -> None:
    cartpole.update(env_spec=spec_of("CartPole-v1", id="Mine-v0", entry_point="antigravity:Env"))
    finding = only(cartpole.check())
    assert finding.check == "environment"
    assert "is not trusted" in finding.message
    assert "antigravity" not in __import__("sys").modules


KEYS = [*STANDARD_KEYS, "license", "unheard_of"]
VALUES = [7, -1, 1.5, True, "", "x", "\0", "[[[", [], {}, [1], ["a"], {"a": 1}, 10**30, np.inf]


@pytest.mark.parametrize("key", KEYS)
def test_whatever_the_metadata_hold_is_reported_not_raised(cartpole: Planted, key: str) -> None:
    for value in VALUES if FULL else VALUES[KEYS.index(key) % 5 :: 5]:
        cartpole.update(**{key: value})
        report = cartpole.check(replay_steps=1)
        assert all("itself failed with" not in finding.message for finding in report.findings)
        assert len({finding.path for finding in report.findings}) <= 1, (value, report.findings)
        json.dumps(report.to_json())


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        (
            lambda data: (data / "main_data.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"x" * 99),
            "data",
        ),
        (lambda data: (data / "main_data.hdf5").unlink(), "data"),
        (
            lambda data: (data / "main_data.hdf5").unlink() or (data / "main_data.hdf5").mkdir(),
            "data",
        ),
        (lambda data: (data / "metadata.json").write_text("{"), "metadata"),
        (lambda data: (data / "metadata.json").unlink(), "metadata"),
    ],
    ids=["data damaged", "data missing", "data a folder", "metadata damaged", "metadata missing"],
)
def test_what_cannot_be_opened_is_one_finding(
    cartpole: Planted, damage: Callable[[Path], None], path: str
) -> None:
    damage(cartpole.data_path)
    finding = only(cartpole.check())
    assert place(finding) == ("error", "readable", path)
    # HDF5 tells the time, a file descriptor and the address of a buffer.
    assert not re.search(r"\n|time|descriptor|buf", finding.message)


def test_truncated_file(cartpole: Planted) -> None:
    path = cartpole.data_path / "main_data.hdf5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert place(only(cartpole.check())) == ("error", "readable", "data")


# --- nested spaces and text ------------------------------------------------------------------

NESTED = gym.spaces.Dict(
    {
        "arm": gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(3)]),
        "word": gym.spaces.Text(5),
    }
)


ABOUT = {"minari_version": "0.5.4", "author": ["Ada"], "description": "made by a test"}


def nested_buffers(n_steps: int = 4) -> Iterator[EpisodeBuffer]:
    for number in range(2):
        yield EpisodeBuffer(
            observations={
                "arm": (np.zeros((n_steps + 1, 2), np.float32), np.arange(n_steps + 1) % 3),
                "word": ["word"] * (n_steps + 1),
            },
            actions=(np.arange(n_steps) + number) % 2,
            rewards=np.zeros(n_steps),
            terminations=np.zeros(n_steps, bool),
            truncations=np.arange(n_steps) == n_steps - 1,
        )


@pytest.fixture
def nested(tmp_path: Path) -> Planted:
    """A dataset without an environment."""
    data_path = tmp_path / "data"
    storage = MinariStorage.new(
        data_path, observation_space=NESTED, action_space=gym.spaces.Discrete(2)
    )
    storage.update_episodes(nested_buffers())
    storage.update_metadata({"dataset_id": "nested-v0", **ABOUT})
    return Planted(data_path, Options(acknowledge=("not-replayed",)))


def test_without_an_environment_it_need_not_have_scores(nested: Planted) -> None:
    report = nested.check(acknowledge=())
    finding = only(report)
    assert (finding.level, finding.id) == ("warning", "not-replayed")
    assert not report.replay.applicable
    assert "no environment" in report.replay.reason


@pytest.mark.parametrize(
    ("plant", "check", "path"),
    [
        (cut("observations/arm/_index_1", -1), "shapes", "observations.arm.1"),
        (cut("observations/word", -1), "shapes", "observations.word"),
        (cast("observations/arm/_index_0", "f8"), "dtypes", "observations.arm.0"),
        (put_first("observations/arm/_index_0", 1, 2.0), "membership", "observations.arm.0"),
        (put("observations/arm/_index_1", 1, 3), "membership", "observations.arm.1"),
        (put("observations/word", 1, "too long"), "membership", "observations.word"),
        (put_first("observations/arm/_index_0", 1, -np.inf), "finite", "observations.arm.0"),
        (remove("episode_1/observations/arm/_index_1"), "readable", None),
    ],
)
def test_faults_in_leaves(nested: Planted, plant: Plant, check: str, path: str | None) -> None:
    plant(nested)
    where = "episode 1" if path is None else f"episode 1 / {path}"
    assert place(only(nested.check())) == ("error", check, where)


def test_all_leaves_of_t_rows_are_one_finding(nested: Planted) -> None:
    for leaf in ("arm/_index_0", "arm/_index_1", "word"):
        cut(f"observations/{leaf}", -1)(nested)
    finding = only(nested.check())
    assert place(finding) == ("error", "shapes", "episode 1 / observations")
    assert finding.message == "4 rows, expected 5"


# --- folders of episodes -----------------------------------------------------------------------


@pytest.fixture(params=["arrow", "parquet"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> Planted:
    """A dataset of two episodes, written by both libraries, without an environment."""
    data_path = tmp_path / "data"
    space = gym.spaces.Discrete(2)
    storage = MinariStorage.new(
        data_path, observation_space=space, action_space=space, data_format=request.param
    )
    storage.update_metadata({"dataset_id": "folders-v0", **ABOUT})
    episode: dict[str, Any] = {
        "actions": np.zeros(1, int),
        "rewards": np.zeros(1),
        "terminations": np.array([True]),
        "truncations": np.array([False]),
    }
    storage.update_episodes([EpisodeBuffer(observations=np.array([0, 1]), **episode)])
    theirs = minari.MinariDataset(data_path)
    theirs.update_dataset_from_buffer([TheirBuffer(observations=np.array([1, 1]), **episode)])
    return Planted(data_path, Options(acknowledge=("not-replayed",)))


def copy_of(source: str, *names: str) -> Plant:
    def plant(data: Planted) -> None:
        for name in names:
            place = data.data_path / source.format(name=name)
            copy = shutil.copytree if place.is_dir() else shutil.copy
            copy(place, place.with_name(name))

    return plant


def folder_file(name: str) -> Plant:
    def plant(data: Planted) -> None:
        (data.data_path / "0" / name).parent.mkdir(exist_ok=True)
        (data.data_path / "0" / name).write_text("x")

    return plant


def file_of_another_format(data: Planted) -> None:
    with h5py.File(data.data_path / "main_data.hdf5", "w") as file:
        file["episode_0"] = h5py.ExternalLink("/home/ada/secret.hdf5", "/")


def link_to_another_file(data: Planted) -> None:
    (data.data_path / "main_data.hdf5").symlink_to("/home/ada/secret.hdf5")


def second_part(data: Planted) -> None:
    (part,) = (data.data_path / "0").glob("part-0.*")
    shutil.copy(part, part.with_stem("part-1"))


@pytest.mark.parametrize(
    ("plant", "where", "said"),
    [
        (copy_of("0", "2"), "data / 2", "the metadata count 2 episodes; remove it"),
        (copy_of("0", "9", "11"), "data / 9", "(2 folders are not counted)"),
        (copy_of("0", "03"), "data / 03", "is not an episode"),
        (copy_of("0", "notes"), "data / notes", "is not an episode"),
        (folder_file("notes.txt"), "episode 0 / notes.txt", "is not a file of an episode"),
        (folder_file("sub/part-0.arrow"), "episode 0 / sub", "is not a file of an episode"),
        (second_part, "episode 0 / part-1.*", "expected only metadata.json and part-0."),
        (file_of_another_format, "data / main_data.hdf5", "other programs may read it; remove it"),
        (link_to_another_file, "data / main_data.hdf5", "other programs may read it; remove it"),
    ],
)
def test_what_is_no_episode_in_arrow_and_parquet_is_named(
    folders: Planted, plant: Plant, where: str, said: str
) -> None:
    plant(folders)
    finding = only(folders.check())
    assert (finding.level, finding.check) == ("error", "layout")
    assert finding.path.startswith(where.removesuffix("*"))
    assert said in finding.message


def test_a_way_out_that_only_other_programs_find_is_named(
    cartpole: Planted,
) -> None:
    with cartpole.file() as file:
        file["episode_0/infos/x"] = h5py.ExternalLink("/home/ada/secret.hdf5", "/")
    found = cartpole.check(is_own=False).findings
    assert ("error", "layout", "data / main_data.hdf5") in map(place, found)
    found = cartpole.check(is_own=True).findings  # a stage has written it, with this package
    assert ("error", "layout", "data / main_data.hdf5") not in map(place, found)


def test_what_other_programs_read_before_a_change_is_finished_is_not_checked(
    dataset: Planted,
) -> None:
    """They know nothing of the change, and the file in its place may be any."""
    commit = dataset.data_path / ".minari_pipe-commit"
    commit.mkdir()
    shutil.copy(dataset.data_path / "metadata.json", commit)
    finding = only(dataset.check(replay_steps=60))
    assert place(finding) == ("error", "layout", "data")
    assert "unfinished change" in finding.message


@pytest.mark.parametrize("release", ["0.3.1", "0.4.0", "0.4.2", "0.4.3"])
@pytest.mark.parametrize("name", ["episode_007", "foo"])
def test_what_is_no_episode_in_a_file_of_an_old_release_is_named(
    release: str, name: str, tmp_path: Path
) -> None:
    """Other programs follow it, wherever it leads."""
    data = Planted(
        shutil.copytree(GOLDEN / release / "cartpole-random-v0" / "data", tmp_path / "data"),
        Options(skip=("replay",)),
    )
    assert [f for f in data.check().findings if f.check == "layout"] == []
    with h5py.File(data.data_path / "main_data.hdf5", "a") as file:
        file[name] = h5py.ExternalLink("/home/ada/secret.hdf5", "/")
    found = [place(finding) for finding in data.check().findings if finding.check == "layout"]
    assert found == [("error", "layout", f"data / {name}")]


@pytest.mark.parametrize("name", [".DS_Store", "_SUCCESS", "metadata.json.bak"])
def test_files_that_real_minari_ignores_are_no_finding(folders: Planted, name: str) -> None:
    folder_file(name)(folders)
    (folders.data_path / ".hidden").mkdir()
    assert folders.check().findings == []
    assert len(minari.MinariDataset(folders.data_path)[0].rewards) == 1


# --- infos -----------------------------------------------------------------------------------


def informed_buffers() -> Iterator[EpisodeBuffer]:
    """Four episodes with what a collector makes of the infos of an environment.

    The reset has no ``success``, the state is always there, ``crash`` comes and goes.
    """
    for n_steps in (3, 4, 5, 6):
        recorder = EpisodeRecorder(
            gym.spaces.Discrete(9), gym.spaces.Discrete(2), record_infos=True
        )
        state = {"state": {"qpos": np.ones(2), "qvel": np.ones(3)}}
        recorder.start(0, state)
        for step in range(n_steps):
            last = step == n_steps - 1
            crash = {"crash": "wall"} if last and n_steps % 2 else {}
            recorder.step(step % 2, step + 1, 0.0, last, False, {**state, **crash, "success": last})
        yield recorder.finish(None)


@pytest.fixture
def informed(tmp_path: Path) -> Planted:
    """A dataset with infos, without an environment."""
    data_path = tmp_path / "data"
    storage = MinariStorage.new(
        data_path, observation_space=gym.spaces.Discrete(9), action_space=gym.spaces.Discrete(2)
    )
    storage.update_episodes(informed_buffers())
    storage.update_metadata({"dataset_id": "informed-v0", **ABOUT})
    return Planted(data_path, Options(acknowledge=("not-replayed",)))


def test_infos_that_come_and_go_are_no_finding(informed: Planted) -> None:
    assert informed.check().findings == []
    for episode in (0, 2):
        with informed.file() as file:
            assert "crash" in file[f"episode_{episode}/infos"]


@pytest.mark.parametrize(
    ("gone", "path"),
    [
        (["infos"], "infos"),
        (["infos/state"], "infos.state"),
        (["infos/state/qpos"], "infos.state.qpos"),
        (["infos/success"], "infos.success"),
        (["infos/state/qpos", "infos/state/qvel"], "infos.state"),
    ],
)
@pytest.mark.parametrize("episodes", [(0,), (1,), (3,), (1, 3)])
def test_infos_that_episodes_lack(
    informed: Planted, gone: list[str], path: str, episodes: tuple[int, ...]
) -> None:
    with informed.file() as file:
        for episode in episodes:
            for name in gone:
                del file[f"episode_{episode}/{name}"]
    finding = only(informed.check())
    assert place(finding) == ("warning", "infos", f"episode {episodes[0]} / {path}")
    assert f"{len(episodes)} of 4 episodes lack it" in finding.message


@pytest.mark.parametrize("episode", [0, 1, 3])
def test_infos_that_only_one_episode_has(informed: Planted, episode: int) -> None:
    with informed.file() as file:
        infos = file[f"episode_{episode}/infos"]
        infos["contact/force"] = np.zeros(4 + episode)
        infos["contact/pair"] = np.zeros(4 + episode)
    finding = only(informed.check())
    assert place(finding) == ("warning", "infos", f"episode {episode} / infos.contact")
    assert "1 of 4 episodes have it" in finding.message


@pytest.mark.parametrize(
    ("name", "change", "described"),
    [
        ("success", lambda a: a.astype("i8"), "int64 rows of shape (); 3 of 4 episodes have bool"),
        ("state/qpos", lambda a: a[:, :1], "shape (1,); 3 of 4 episodes have float64 rows of"),
        ("success", lambda a: [str(x) for x in a], "text rows of shape (); 3 of 4 episodes have"),
    ],
)
@pytest.mark.parametrize("episode", [0, 1, 3])
def test_infos_of_another_form(
    informed: Planted, name: str, change: Any, described: str, episode: int
) -> None:
    column = informed.column(episode, f"infos/{name}")
    informed.replace_column(episode, f"infos/{name}", change(column))
    finding = only(informed.check())
    path = f"episode {episode} / infos.{name.replace('/', '.')}"
    assert place(finding) == ("warning", "infos", path)
    assert described in finding.message


@pytest.mark.parametrize("rows", [1, 3, 6])
def test_extras_of_another_number_of_rows_are_an_error_as_in_reading(
    informed: Planted, rows: int
) -> None:
    with informed.file() as file:
        file["episode_1/extra"] = np.zeros(rows)
    finding = only(informed.check())
    assert place(finding) == ("error", "shapes", "episode 1 / extras.extra")
    assert finding.message == f"{rows} rows, expected 4 or 5"
    with pytest.raises(CorruptDatasetError, match=f"extras.'extra'. has {rows} rows"):
        next(MinariStorage.read(informed.data_path).get_episodes([1]))


def test_an_extra_of_a_single_value_is_an_error(informed: Planted) -> None:
    with informed.file() as file:
        file["episode_1/extra"] = 5.0
    finding = only(informed.check())
    assert place(finding)[::2] == ("error", "episode 1 / extras.extra")


@pytest.mark.parametrize("n", [0, 1])
def test_extras_in_every_episode_are_no_finding(informed: Planted, n: int) -> None:
    with informed.file() as file:
        for episode in range(4):
            file[f"episode_{episode}/extra"] = np.zeros(3 + episode + n)
            file[f"episode_{episode}/group/x"] = np.zeros(3 + episode + n)
    assert informed.check().findings == []


def test_extras_that_only_one_episode_has_are_a_warning(informed: Planted) -> None:
    with informed.file() as file:
        file["episode_2/extra"] = np.zeros(5)
    finding = only(informed.check())
    assert place(finding) == ("warning", "infos", "episode 2 / extras.extra")
    assert finding.message == "1 of 4 episodes have it; this is the first"


def test_extras_that_come_and_go_are_no_finding(informed: Planted) -> None:
    with informed.file() as file:
        file["episode_2/contact/force"] = [np.nan, 1.0, np.nan, 1.0, 2.0]
    storage = MinariStorage.read(informed.data_path)
    filled = {"extras_filled": {"contact.force": [[0, 1], [2, 3]]}}
    storage.update_episode_metadata([filled], [2])
    assert informed.check().findings == []
    storage.update_episode_metadata([{"extras_filled": {"contact.force": [[0, 9]]}}], [2])
    assert place(only(informed.check())) == ("error", "shapes", "episode 2 / extras_filled")


def test_extras_that_are_not_finite_are_a_warning(informed: Planted) -> None:
    with informed.file() as file:
        for episode in range(4):
            file[f"episode_{episode}/extra"] = np.full(3 + episode, np.nan)
    finding = only(informed.check())
    assert (finding.level, finding.id) == ("warning", "nan-extras")
    assert finding.path == "episode 0 / extras.extra"
    assert finding.message == "row 0 is NaN; in 4 of 4 episodes"
    assert informed.check(acknowledge=("nan-extras", "not-replayed")).findings == []


def test_infos_of_another_width_are_no_finding(informed: Planted) -> None:
    """A collector widens float32 to float64 where a value needs it."""
    column = informed.column(1, "infos/state/qpos").astype("f4")
    informed.replace_column(1, "infos/state/qpos", column)
    assert informed.check().findings == []


# --- advisories ------------------------------------------------------------------------------


def test_door_has_an_advisory(door: Planted) -> None:
    finding = only(door.check(acknowledge=(), replay_steps=20))
    assert place(finding) == ("warning", "advisory", "metadata / env_spec")
    assert finding.id == DOOR_ADVISORY
    assert "pull/220" in finding.message
    report = door.check(replay_steps=20)
    assert [f.id for f in report.acknowledged] == [DOOR_ADVISORY]
    assert report.to_json()["acknowledged"][0]["id"] == DOOR_ADVISORY


@pytest.mark.parametrize("version", ["1.2.0", "1.4.3", "2.0"])
def test_versions_without_the_fault_have_no_advisory(door: Planted, version: str) -> None:
    door.update(requirements=[f"Gymnasium_Robotics == {version}"])
    assert door.check(acknowledge=(), replay_steps=20).findings == []


@pytest.mark.parametrize(
    ("env_id", "requirement", "expected"),
    [
        ("AdroitHandHammer-v1", "gymnasium-robotics==1.2.1", "adroit-hammer-reward-sign"),
        ("AdroitHandRelocate-v1", "gymnasium-robotics==1.3.1", "adroit-relocate-reward-sign"),
        ("AdroitHandDoorSparse-v1", "gymnasium-robotics==1.3.1", None),
        ("AdroitHandPen-v1", "gymnasium-robotics==1.3.1", None),
        ("AdroitHandDoor-v2", "gymnasium-robotics==1.4.2", None),
        ("FrankaKitchen-v1", "mujoco==3.12.0", "kitchen-mujoco-enums"),
        ("FetchReach-v4", "mujoco==4.0.0", "fetch-mujoco-enums"),
        ("FetchReach-v4", "mujoco==3.11.0", None),
    ],
)
def test_table_of_advisories(
    cartpole: Planted, env_id: str, requirement: str, expected: str | None
) -> None:
    cartpole.update(env_spec=spec_of("CartPole-v1", id=env_id), requirements=[requirement])
    report = cartpole.check(skip=("environment", "replay"))
    assert [f.id for f in report.findings] == ([expected] if expected else [])


def test_acknowledging_an_unknown_advisory_is_a_warning(cartpole: Planted) -> None:
    finding = only(cartpole.check(acknowledge=("adroit-dor-reward-sign",)))
    assert place(finding) == ("warning", "advisory", "options / acknowledge")
    assert repr(DOOR_ADVISORY) in finding.message


def test_advisory_ids_are_unique() -> None:
    assert len({advisory.id for advisory in ADVISORIES}) == len(ADVISORIES)


# --- the run itself --------------------------------------------------------------------------


def test_many_findings_of_a_check_are_listed_up_to_ten(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    buffers = (
        EpisodeBuffer(
            observations=np.zeros((2, 4), np.float32),
            actions=np.zeros(1, np.int64),
            rewards=np.zeros(1),
            terminations=np.zeros(1, bool),
            truncations=np.zeros(1, bool),
        )
        for _ in range(14)
    )
    data_path = write_dataset(tmp_path / "data", env, buffers, dataset_id="x-v0")
    report = Planted(data_path).check()
    assert len(report.findings) == 11
    assert place(report.findings[-1]) == ("error", "flags", "dataset")
    assert report.findings[-1].message == "and 4 more"
    assert report.n_errors == report.counts["flags"] == 14
    assert report.replay.faulty == 14


class Failing(Check):
    name = "failing"

    def episode(self, episode: Any) -> Iterator[Finding]:
        raise KeyError("lost")
        yield


def test_a_check_that_fails_is_a_finding(
    cartpole: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner.CHECKS, "failing", Failing)
    report = cartpole.check()
    assert place(report.findings[0]) == ("error", "failing", "episode 0")
    assert "KeyError" in report.findings[0].message
    assert report.counts["failing"] == cartpole.metadata["total_episodes"]


def test_checks_of_other_packages(cartpole: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    def plugin(subject: Subject) -> list[Finding]:
        return [Finding("note", "plugin", "dataset", str(subject.metadata["total_episodes"]))]

    class Point:
        def __init__(self, name: str, loaded: Any) -> None:
            self.name, self.loaded = name, loaded

        def load(self) -> Any:
            return self.loaded

    def entry_points(group: str) -> list[Point]:
        assert group == "minari_pipe.checks"
        return [Point("plugin", plugin), Point("shapes", None), Point("failing", Failing)]

    with monkeypatch.context() as patch:
        patch.setattr(runner, "entry_points", entry_points)
        report = cartpole.check(skip=("failing",))
    assert place(only(report)) == ("note", "plugin", "dataset")
    assert report.ok
    assert report.n_warnings == 0
    assert report.skipped == ["failing"]


def test_skipped_checks_do_not_run(cartpole: Planted) -> None:
    cut("rewards", -1)(cartpole)
    report = cartpole.check(skip=("shapes", "replay"))
    assert "shapes" not in report.counts
    assert report.replay.reason == "not run"
    with pytest.raises(ConfigError, match=r"unknown check 'shape'\. Did you mean 'shapes'"):
        cartpole.check(skip=("shape",))


def test_findings_of_others_are_reported_with(cartpole: Planted) -> None:
    told = {"level": "warning", "path": "episode 3 / terminations", "message": "ended early"}
    subject = Subject.open(cartpole.data_path)
    report = run(subject, extra=[Finding.from_json(told, check="policy")])
    assert only(report).to_json() == {**told, "check": "policy"}
    with pytest.raises(ConfigError, match="fatal"):
        Finding.from_json({**told, "level": "fatal"})


def test_final_metadata_are_checked_not_the_draft(cartpole: Planted) -> None:
    final = {**cartpole.metadata, "ref_max_score": -1.0}
    report = run(Subject.open(cartpole.data_path, metadata=final, options=Options()))
    assert only(report).check == "scores"
