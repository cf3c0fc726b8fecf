"""Files of demonstrations are recognised, read exactly, and refused with a reason."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from minari_pipe.errors import UnknownFormatError
from minari_pipe.policies.demonstration_formats import read_demonstrations
from tests.conftest import FULL, SHARED
from tests.support.demonstration_files import (
    PICKLERS,
    changed_episodes,
    counting_episodes,
    numpy_1_names,
    refused,
    survive_mutants,
    write_d4rl,
    write_dapg,
)

DOOR = SHARED / "demonstrations" / "door-v0_demos.pickle"
needs_door = pytest.mark.skipif(not DOOR.is_file(), reason=f"{DOOR} is not on this machine")


def assert_same(found: Any, expected: list[dict[str, Any]], terminal: bool = False) -> None:
    """Compare demonstrations with episodes in DAPG's layout: dtype, shape and value."""
    assert len(found) == len(expected)
    for demonstration, episode in zip(found, expected, strict=True):
        columns = ("observations", "actions", "rewards")
        pairs = [(getattr(demonstration, key), episode[key]) for key in columns]
        assert set(demonstration.initial_state) == set(episode["init_state_dict"])
        pairs += [
            (demonstration.initial_state[key], value)
            for key, value in episode["init_state_dict"].items()
        ]
        for array, truth in pairs:
            np.testing.assert_array_equal(array, truth, strict=True)
        assert demonstration.terminal is terminal
        assert len(demonstration) == len(episode["actions"])


# --- formats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pickler", PICKLERS)
def test_dapg_pickles_read_as_python_would(tmp_path: Path, pickler: str) -> None:
    episodes = counting_episodes()
    path = tmp_path / "d.pickle"
    path.write_bytes(PICKLERS[pickler](episodes))
    assert_same(read_demonstrations(path), episodes)
    path.write_bytes(numpy_1_names(path.read_bytes()))
    assert_same(read_demonstrations(path), episodes)


def test_a_terminated_key_is_the_terminal_flag(tmp_path: Path) -> None:
    for flag in (True, np.bool_(True)):
        episodes = [{**episode, "terminated": flag} for episode in counting_episodes()]
        found = read_demonstrations(write_dapg(tmp_path / "d.pickle", episodes))
        assert_same(found, episodes, terminal=True)


@pytest.mark.parametrize("ends", ["timeouts", "terminals"])
@pytest.mark.parametrize(
    "options", [{}, {"compression": "gzip", "chunks": True}], ids=["raw", "gz"]
)
def test_d4rl_files_hold_the_same(tmp_path: Path, ends: str, options: dict[str, Any]) -> None:
    episodes = counting_episodes()
    found = read_demonstrations(write_d4rl(tmp_path / "d.hdf5", episodes, ends=ends, **options))
    assert_same(found, episodes, terminal=ends == "terminals")
    assert_same(list(found[0:2]), episodes[:2], terminal=ends == "terminals")
    assert len(found[-1]) == len(episodes[-1]["actions"])
    with pytest.raises(IndexError):
        found[3]


def test_the_last_d4rl_episode_ends_with_the_file(tmp_path: Path) -> None:
    episodes = counting_episodes()
    path = write_d4rl(tmp_path / "d.hdf5", episodes)
    with h5py.File(path, "r+") as file:
        file["timeouts"][-1] = False
    assert_same(read_demonstrations(path), episodes)
    with h5py.File(path, "r+") as file:
        file["terminals"][...] = file["timeouts"][...]
        del file["timeouts"]  # early D4RL files have none
    found = read_demonstrations(path)
    assert [demonstration.terminal for demonstration in found] == [True, True, False]


def test_state_keys_choose_the_state(tmp_path: Path) -> None:
    dapg = write_dapg(tmp_path / "d.pickle", counting_episodes())
    d4rl = write_d4rl(tmp_path / "d.hdf5", counting_episodes())
    for path in (dapg, d4rl):
        assert set(read_demonstrations(path, state_keys=["qvel"])[0].initial_state) == {"qvel"}
        assert "wings'" in refused(path, state_keys=["wings"])
    keys = ["qpos", "action_log_std"]
    assert set(read_demonstrations(d4rl, state_keys=keys)[0].initial_state) == set(keys)


def test_the_format_is_told_from_the_content_or_given(tmp_path: Path) -> None:
    misnamed = write_d4rl(tmp_path / "d.pickle", counting_episodes())
    assert len(read_demonstrations(misnamed)) == 3
    assert len(read_demonstrations(misnamed, format="d4rl")) == 3
    assert "is damaged or not a pickle file" in refused(misnamed, format="dapg")
    with pytest.raises(
        UnknownFormatError, match=r"format 'dapgg'; known: .*, dapg \(DAPG pickle\), d4rl"
    ):
        read_demonstrations(misnamed, format="dapgg")
    (tmp_path / "page.html").write_text("<html>not found</html>")
    with pytest.raises(UnknownFormatError, match="is not in a known demonstration format"):
        read_demonstrations(tmp_path / "page.html")
    (tmp_path / "empty").touch()
    with pytest.raises(UnknownFormatError, match="is not in a known demonstration format"):
        read_demonstrations(tmp_path / "empty")


# --- what cannot be replayed --------------------------------------------------------------------


def _with_nan(column: np.ndarray) -> np.ndarray:
    column = column.copy()
    column[1, 2] = np.nan
    return column


DAPG_FAULTS = {
    "no demonstrations": ([], "holds no demonstrations"),
    "a dict of all": (
        {"actions": np.zeros(3)},
        "the pickle holds a dict, expected a list of dicts",
    ),
    "a list of arrays": ([np.zeros(3)], "demonstration 0 is a NumPy array, expected a dict"),
    "no actions": (
        [{k: v for k, v in e.items() if k != "actions"} for e in counting_episodes()],
        "demonstration 0 has no 'actions'; it has: 'init_state_dict', 'observations', 'rewards'",
    ),
    "no state": (
        changed_episodes(1, init_state_dict=None),
        "init_state_dict is a NoneType, expected a dict",
    ),
    "a list for an array": (
        changed_episodes(1, rewards=[0.0, 1.0]),
        "demonstration 1: 'rewards' is a list, expected a NumPy array",
    ),
    "fewer observations": (
        changed_episodes(1, observations=np.zeros((1, 2))),
        "demonstration 1: observations has 1 rows, actions has 2",
    ),
    "a final observation": (
        changed_episodes(2, observations=np.zeros((6, 2))),
        "demonstration 2: observations has 6 rows, actions has 5",
    ),
    "fewer rewards": (
        changed_episodes(0, rewards=np.zeros(3)),
        "demonstration 0: rewards has 3 rows",
    ),
    "rewards in columns": (
        changed_episodes(0, rewards=np.zeros((4, 1))),
        "rewards has shape (4, 1)",
    ),
    "a single number": (changed_episodes(0, rewards=np.float64(3)), "rewards is a single number"),
    "other actions": (
        changed_episodes(1, actions=np.zeros((2, 4))),
        "demonstration 1: an action and an observation have shapes (4,) and (2,); in "
        "demonstration 0 they have (3,) and (2,)",
    ),
    "a part of the state missing": (
        changed_episodes(1, init_state_dict={"qpos": np.zeros(1)}),
        "demonstration 1: initial state 'qvel' is missing; in demonstration 0 it has shape (1,)",
    ),
    "another state": (
        changed_episodes(2, init_state_dict={"qpos": np.zeros(1), "qvel": np.zeros(2)}),
        "demonstration 2: initial state 'qvel' has shape (2,)",
    ),
    "no steps": (
        changed_episodes(1, actions=np.zeros(0), observations=np.zeros(0), rewards=np.zeros(0)),
        "demonstration 1 has no steps",
    ),
    "a NaN action": (
        changed_episodes(2, actions=_with_nan(counting_episodes()[2]["actions"])),
        "demonstration 2: actions is nan at (1, 2); it must be finite",
    ),
    "an infinite state": (
        changed_episodes(2, init_state_dict={"qpos": np.array([np.inf]), "qvel": np.zeros(1)}),
        "demonstration 2: initial state 'qpos' is inf at (0,); it must be finite",
    ),
    "text": (
        changed_episodes(0, actions=np.array(["a", "b"])),
        "an array of type 'U1', expected plain",
    ),
    "objects": (
        changed_episodes(0, actions=np.array([1, None])),
        "an array of type 'O8', expected plain",
    ),
    "a structured array": (
        changed_episodes(0, actions=np.zeros(4, "f8,i4")),
        "an array of type 'V12', expected plain",
    ),
    "complex numbers": (
        changed_episodes(0, actions=np.zeros(4, complex)),
        "an array of type 'c16'",
    ),
    "odd names": ([{"\ud800\n" + "x" * 10**6: 1}], "it has: '\\ud800\\nxxx"),
}


@pytest.mark.parametrize("name", DAPG_FAULTS)
def test_dapg_faults_are_named(tmp_path: Path, name: str) -> None:
    episodes, message = DAPG_FAULTS[name]
    assert message in refused(write_dapg(tmp_path / "d.pickle", episodes))


def _replace(key: str, data: Any, **options: Any) -> Any:
    def change(file: h5py.File) -> None:
        del file[key]
        file.create_dataset(key, data=data, **options)

    return change


def _delete(key: str) -> Any:
    return lambda file: file.__delitem__(key)


def _external_link(file: h5py.File) -> None:
    del file["actions"]
    file["actions"] = h5py.ExternalLink("other.hdf5", "actions")


def _external_group(file: h5py.File) -> None:
    del file["infos"]
    file["infos"] = h5py.ExternalLink("other.hdf5", "infos")


def _soft_link(file: h5py.File) -> None:
    file.move("actions", "elsewhere")
    file["actions"] = h5py.SoftLink("/elsewhere")


def _virtual(file: h5py.File) -> None:
    del file["actions"]
    layout = h5py.VirtualLayout((11, 3), float)
    layout[:] = h5py.VirtualSource("other.hdf5", "actions", (11, 3))
    file.create_virtual_dataset("actions", layout)


def _external_storage(file: h5py.File) -> None:
    del file["actions"]
    place = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
    file.create_dataset("actions", (11, 3), float, external=place)


def _nan_action(file: h5py.File) -> None:
    file["actions"][5, 1] = np.nan  # step 1 of demonstration 1


def _nothing(file: h5py.File) -> None:
    del file["timeouts"]
    for key in ("actions", "observations", "rewards", "infos/qpos", "infos/qvel", "terminals"):
        _replace(key, np.zeros(0))(file)


def _huge(file: h5py.File) -> None:
    del file["observations"]
    file.create_dataset("observations", (11, 10**12), float, chunks=(1, 1024))


D4RL_FAULTS = {
    "no terminals": (_delete("terminals"), "has no dataset 'terminals'"),
    "no actions": (
        _delete("actions"),
        "has no dataset 'actions'; it has: 'infos', 'metadata', 'obs",
    ),
    "no infos": (_delete("infos"), "infos has no known part of the simulator state"),
    "no state": (
        lambda file: [file.__delitem__(f"infos/{key}") for key in ("qpos", "qvel")],
        "it has: 'action_log_std'. Set policy.state_keys to the names",
    ),
    "fewer rewards": (_replace("rewards", np.zeros(10)), "rewards has 10 rows, actions has 11"),
    "fewer states": (_replace("infos/qpos", np.zeros((3, 1))), "infos/qpos has 3 rows"),
    "flags in columns": (_replace("terminals", np.zeros((11, 1))), "expected one flag per step"),
    "flags that are NaN": (
        _replace("terminals", np.full(11, np.nan)),
        "terminals is nan at row 0, expected 0 or 1",
    ),
    "flags of another kind": (
        _replace("terminals", np.array([0] * 10 + [2], np.uint8)),
        "terminals is 2 at row 10, expected 0 or 1",
    ),
    "nothing in it": (
        _nothing,
        "holds no demonstrations",
    ),
    "text": (_replace("actions", [b"x"] * 11), "'actions' has dtype"),
    "variable text": (_replace("actions", ["x"] * 11), "'actions' has dtype object"),
    "a group": (
        lambda file: file.move("infos/qpos", "x") or file.create_group("infos/qpos"),
        "group",
    ),
    "a single number": (
        _replace("rewards", 3.0),
        "'rewards' has dtype float64 and 0 dimensions",
    ),
    "a NaN action": (_nan_action, "demonstration 1: actions is nan at (1, 1)"),
    "an external link": (_external_link, "'actions' is a soft or external link"),
    "an external group": (_external_group, "infos has no known part"),
    "a soft link": (_soft_link, "'actions' is a soft or external link"),
    "a virtual dataset": (_virtual, "/actions takes its values from another file"),
    "external storage": (_external_storage, "/actions takes its values from another file"),
    "more than fits": (_huge, "far more than its file can hold"),
}


@pytest.mark.parametrize("name", D4RL_FAULTS)
def test_d4rl_faults_are_named(tmp_path: Path, name: str) -> None:
    change, message = D4RL_FAULTS[name]
    path = write_d4rl(tmp_path / "d.hdf5", counting_episodes())
    write_d4rl(tmp_path / "other.hdf5", counting_episodes())
    with h5py.File(path, "r+") as file:
        change(file)
    assert message in refused(path)


def test_an_external_state_is_refused_by_name_too(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "d.hdf5", counting_episodes())
    with h5py.File(path, "r+") as file:
        _external_group(file)
    assert "'infos/qpos' is a soft or external link" in refused(path, state_keys=["qpos"])


def test_damaged_hdf5_is_one_clear_line(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "d.hdf5", counting_episodes(), compression="gzip")
    survive_mutants(path, 3000 if FULL else 40, format="d4rl")


@needs_door
def test_the_real_demonstrations(tmp_path: Path) -> None:
    truth = pickle.loads(DOOR.read_bytes())
    found = read_demonstrations(DOOR)
    assert_same(found, truth)
    assert len(found) == 25
    assert sum(len(demonstration) for demonstration in found) == 6729
    assert_same(read_demonstrations(write_d4rl(tmp_path / "d.hdf5", truth)), truth)


@needs_door
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_real_demonstrations_saved_again(tmp_path: Path, protocol: int) -> None:
    truth = pickle.loads(DOOR.read_bytes())
    assert_same(read_demonstrations(write_dapg(tmp_path / "d", truth, protocol)), truth)
