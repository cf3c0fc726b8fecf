"""Every known defect of Minari that concerns a local library is absent here.

One scenario for each claim fails when the defect shows. It runs twice: on this package, where it
must pass, and on real Minari 0.5.4, where it must fail in the way that its decorator says, unless
real Minari has mended the defect since it was listed. The numbers are those of the list.
"""

from __future__ import annotations

import importlib
import inspect
import json
import struct
import warnings
from types import ModuleType

import gymnasium as gym
import minari
import pytest
from minari.dataset import minari_dataset
from stable_baselines3.common.monitor import Monitor
from typer.testing import CliRunner

import minari_pipe
from tests.recording.test_collector import Counter, run
from tests.support import defects_of_data  # noqa: F401  (registers the scenarios P1 to P9)
from tests.support.defects import (
    ABSENT,
    DEFECTS,
    MINARI_S_RESULT,
    attributes,
    buffer,
    collecting,
    create,
    in_a_child,
    in_minari,
    root,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None):UserWarning"),
    # real Minari's collector leaves its temporary folders to the garbage collector
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


@pytest.mark.parametrize("name", DEFECTS)
def test_the_defect_is_absent_here(name: str) -> None:
    DEFECTS[name].scenario(minari_pipe)


@pytest.mark.parametrize("name", DEFECTS)
def test_real_minari_does_as_the_table_says(name: str) -> None:
    scenario, error, match = DEFECTS[name]
    assert (error is None) == MINARI_S_RESULT[name].startswith(ABSENT)
    if error is None:
        scenario(minari)
        return
    with pytest.raises(error, match=match) as caught:
        scenario(minari)
    assert caught.type is error


# --- P10: failures that poison the library


@in_minari("ValueError: already exists, on the retry", ValueError, "already exists")
def p10_a_failed_creation_leaves_the_id_free(library: ModuleType) -> None:
    with pytest.raises(ValueError, match="at the same time"):
        create(library, expert_policy=lambda observation: 0, ref_max_score=1.0)
    assert len(create(library)) == 1


@in_minari("ValueError in every list_local_datasets()", ValueError, "Malformed dataset ID: i/foo")
def p10_a_malformed_id_leaves_the_listing_whole(library: ModuleType) -> None:
    create(library)
    with pytest.raises(ValueError, match="Malformed"):
        create(library, "i/foo-v0")
    assert list(library.list_local_datasets()) == ["aa/b-v0"]


# --- P12 to P19: collecting, sampling, the environment


@in_minari("ValueError: Dict key mismatch, in the last step", ValueError, "Dict key mismatch")
def p12_infos_may_come_and_go(library: ModuleType) -> None:
    env = gym.wrappers.RecordEpisodeStatistics(Counter())  # tells at the end only
    with collecting(library, env, record_infos=True) as collector:
        run(collector)
        infos = collector.create_dataset("aa/b-v0")[0].infos
    assert infos["episode"]["r"].tolist() == [0, 0, 0, 6]


@in_minari("ImportError: jax is not installed", ImportError, "jax is not installed")
def p14_collecting_needs_no_jax(library: ModuleType) -> None:
    with collecting(library, Counter(), jax=False) as collector:
        run(collector)
        assert len(collector.create_dataset("aa/b-v0")[0]) == 3


@in_minari("ImportError: pyarrow is not installed", AssertionError, "pyarrow is not installed")
def p14_a_broken_pyarrow_says_what_is_wrong(library: ModuleType) -> None:
    (root() / "broken").mkdir()
    (root() / "broken" / "pyarrow.py").write_text("raise ImportError('numpy is too old')")
    code = f"""
import sys
sys.path.insert(0, {str(root() / "broken")!r})
from gymnasium.spaces import Discrete
spaces = {{"observation_space": Discrete(2), "action_space": Discrete(2)}}
library.create_dataset_from_buffers("a-v0", [], data_format="parquet", **spaces)
"""
    error = in_a_child(library, code).stderr.strip().splitlines()[-1]
    assert error == "ImportError: numpy is too old", error


@in_minari("there is no view of transitions", AttributeError, "no attribute 'transitions'")
def p17_transitions_are_aligned(library: ModuleType) -> None:
    dataset = create(library, buffers=[buffer(library, 2), buffer(library, 3)])
    (batch,) = dataset.transitions()
    assert batch.observations.ravel().tolist() == [0, 1, 0, 1, 2]
    assert batch.actions.tolist() == [0, 1, 0, 1, 2]
    assert batch.next_observations.ravel().tolist() == [1, 2, 1, 2, 3]


@in_minari("there are no windows", AttributeError, "no attribute 'windows'")
def p17_parts_of_episodes_can_be_sampled(library: ModuleType) -> None:
    dataset = create(library, buffers=[buffer(library, 2), buffer(library, 3)])
    (batch,) = dataset.windows(2, stride=2)
    actions = [row[mask].tolist() for row, mask in zip(batch.actions, batch.mask, strict=True)]
    assert actions == [[0, 1], [0, 1], [2]]


@in_minari("ValueError: the wrapper cannot be recreated", ValueError, "cannot be recreated")
def p19_an_environment_in_a_monitor_is_recovered(library: ModuleType) -> None:
    with collecting(library, Monitor(gym.make("CartPole-v1", max_episode_steps=7))) as collector:
        run(collector, 2)
        dataset = collector.create_dataset("aa/b-v0")
    with warnings.catch_warnings(record=True, action="always") as told:
        env = dataset.recover_environment()
    assert "is recovered without Monitor" in str(told[-1].message)
    assert (env.spec.id, env.spec.max_episode_steps) == ("CartPole-v1", 7)


# --- P20 to P28: listing, trust in files, reading while writing


@in_minari("no dataset, as ns/z is no folder", AssertionError, r"^\[\]")
def p20_a_prefix_is_text(library: ModuleType) -> None:
    for name in ("ns/za-v0", "ns/zb-v0", "ns/y-v0"):
        create(library, name)
    found = list(library.list_local_datasets(prefix="ns/z"))
    assert found == ["ns/za-v0", "ns/zb-v0"], found


@in_minari("the latest version only", AssertionError, r"^\['b-v1'\]")
def p20_list_all_lists_all_versions(library: ModuleType) -> None:
    for name in ("b-v0", "b-v1"):
        create(library, name)
    app = importlib.import_module(f"{library.__name__}.cli").app
    output = CliRunner().invoke(app, ["list", "local", "--all"]).output
    found = [name for name in ("b-v0", "b-v1") if name in output]
    assert found == ["b-v0", "b-v1"], found


@in_minari("a broken one is listed and raises JSONDecodeError", json.JSONDecodeError)
def p20_what_is_listed_can_be_loaded(library: ModuleType) -> None:
    for name in ("aa/b-v0", "aa/c-v0"):
        create(library, name)
    path = root() / "aa" / "c-v0" / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "action_space": "{"}))
    with warnings.catch_warnings(action="ignore"):
        found = list(library.list_local_datasets())
    assert [library.load_dataset(name).id for name in found] == ["aa/b-v0"]


@in_minari(ABSENT)
def p20_an_empty_download_is_left_out_with_a_warning(library: ModuleType) -> None:
    create(library)
    (root() / "aa" / "c-v0" / "data").mkdir(parents=True)
    with pytest.warns(UserWarning, match="Misconfigured dataset named aa/c-v0"):
        assert list(library.list_local_datasets()) == ["aa/b-v0"]


@in_minari(
    "the changed value is read: there are no checksums", AssertionError, r"^read: \[1.0, 2.5"
)
def p21_a_changed_file_is_noticed(library: ModuleType) -> None:
    dataset = create(library, buffers=[buffer(library, rewards=[1.0, 7.25, 3.0])])
    folder = dataset.storage.data_path.parent
    file = folder / "data" / "main_data.hdf5"
    rewards, changed = struct.pack("<3d", 1, 7.25, 3), struct.pack("<3d", 1, 2.5, 3)
    assert file.read_bytes().count(rewards) == 1
    file.write_bytes(file.read_bytes().replace(rewards, changed))
    knows = "verify" in inspect.signature(library.load_dataset).parameters
    try:
        found = library.load_dataset("aa/b-v0", **({"verify": True} if knows else {}))[0]
        message = f"read: {found.rewards.tolist()}"
    except OSError as error:
        message = str(error)
    assert "data/main_data.hdf5 has different content" in message, message


@in_minari("OSError: the file is already open for read-only", OSError, "read-only")
def p28_a_dataset_grows_while_it_is_read(library: ModuleType) -> None:
    dataset = create(library, buffers=[buffer(library)] * 2)
    episodes = iter(dataset)
    next(episodes)
    dataset.update_dataset_from_buffer([buffer(library)])
    assert (len(list(episodes)), len(dataset)) == (1, 3)


# --- Misc


@in_minari("TypeError: int() of None", TypeError, r"int\(\) argument")
def misc_an_id_without_a_version_is_parsed(library: ModuleType) -> None:
    parse = minari_dataset if library is minari else library
    assert parse.parse_dataset_id("aa/b") == ("aa", "b", None)


@in_minari("FileNotFoundError: not found locally", FileNotFoundError, "not found locally")
def misc_an_id_without_a_version_loads_the_latest(library: ModuleType) -> None:
    for version in (9, 10):
        create(library, f"aa/b-v{version}")
    assert library.load_dataset("aa/b").id == "aa/b-v10"


@in_minari("FileNotFoundError", FileNotFoundError, "theirs/new-v0")
def misc_combining_makes_its_namespace(library: ModuleType) -> None:
    library.combine_datasets([create(library)], "theirs/new-v0")
    assert len(library.load_dataset("theirs/new-v0")) == 1


@in_minari("no rewards_* among the episode's metadata", KeyError, "rewards_sum")
def misc_buffers_get_statistics_of_rewards(library: ModuleType) -> None:
    found = attributes(create(library))
    assert (found["rewards_sum"], found["rewards_mean"], found["rewards_max"]) == (6, 2, 3)


def visible() -> list[str]:
    return sorted(path.name for path in root().iterdir() if path.name[0] != ".")


@in_minari("a folder tmpXXXX in the datasets root", AssertionError, r"^\['tmp")
def misc_a_collector_at_work_is_invisible(library: ModuleType) -> None:
    with collecting(library, Counter()) as collector:
        run(collector)
        assert visible() == [], visible()


@in_minari(ABSENT + " (0.3 and 0.4 left tmp*/tmp_dataset.hdf5)")
def misc_nothing_is_left_after_a_normal_end(library: ModuleType) -> None:
    with collecting(library, Counter()) as collector:
        run(collector)
        collector.create_dataset("aa/b-v0")
    assert visible() == ["aa"]
