"""Scenarios of Minari's defects of data, P1 to P9: what is lost, cut, changed or not judged."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.recording.test_collector import Counter, run
from tests.support.defects import (
    ABSENT,
    COLLECT,
    attributes,
    buffer,
    collecting,
    create,
    in_a_child,
    in_minari,
    new_storage,
    rescued,
    root,
)
from tests.support.legacy_files import GOLDEN, truth

# --- P1 to P3: episodes that are lost, cut or cannot be read


@in_minari("nothing is left of 3 finished episodes", AssertionError, "nothing is left")
def p1_an_exception_loses_nothing(library: ModuleType) -> None:
    assert "ZeroDivisionError" in in_a_child(library, COLLECT + "1 / 0").stderr
    assert rescued(library) == 3


@in_minari("its temporary folder cannot be opened: KeyError", KeyError, "dataset_id")
def p1_kill_9_strands_nothing(library: ModuleType) -> None:
    assert in_a_child(library, COLLECT + "os.kill(os.getpid(), 9)").returncode == -9
    assert rescued(library) == 3


@in_minari("lengths 40000, 3, 5 come back as 32767, 7232, 3", AssertionError, "32767, 7232, 3]")
def p2_long_episodes_come_back_whole(library: ModuleType) -> None:
    space = spaces.Discrete(10**6)
    buffers = [buffer(library, n, observations=np.arange(n + 1)) for n in (40_000, 3, 5)]
    dataset = create(library, buffers=buffers, observation_space=space, data_format="arrow")
    lengths = [len(found) for found in dataset]
    assert lengths == [40_000, 3, 5], lengths


@in_minari("a generator of 2 indices gives 0 episodes", AssertionError, "^0 episodes")
def p2_indices_may_be_a_generator(library: ModuleType) -> None:
    dataset = create(library, buffers=[buffer(library)] * 2, data_format="arrow")
    found = len(list(dataset.iterate_episodes(index for index in (0, 1))))
    assert found == 2, f"{found} episodes"


@in_minari("ValueError: No data found in data path", ValueError, "No data found in data path")
def p3_files_of_all_older_releases_are_read(library: ModuleType) -> None:
    for release in ("0.3.1", "0.4.0", "0.4.2", "0.4.3"):
        dataset = library.MinariDataset(GOLDEN / release / "cartpole-random-v0" / "data")
        for found, expected in zip(dataset, truth(release, "cartpole-random-v0"), strict=True):
            assert found.observations.tolist() == expected["obs"]
            assert found.rewards.tolist() == expected["rew"]


# --- P4 to P6: what is copied


@in_minari("8 episodes of two views of 2 each", AssertionError, "^8 episodes")
def p4_combining_honours_views(library: ModuleType) -> None:
    dataset = create(library, buffers=[buffer(library)] * 4)
    both = library.combine_datasets(library.split_dataset(dataset, [2, 2], seed=0), "aa/c-v0")
    assert len(both) == 4, f"{len(both)} episodes"


def assert_kept(found: dict[str, Any]) -> None:
    expected = {"seed": 7, "options": {"k": 1}, "rewards_sum": 6.0}
    lost = [key for key, value in expected.items() if found.get(key) != value]
    assert not lost, f"lost: {lost}"


@in_minari(
    "seed, options and statistics are lost",
    AssertionError,
    r"^lost: \['seed', 'options', 'rewards_sum'\]",
)
def p5_combining_keeps_what_belongs_to_an_episode(library: ModuleType) -> None:
    dataset = create(library, buffers=[buffer(library, seed=7, options={"k": 1})])
    dataset.storage.update_episode_metadata([{"rewards_sum": 6.0}])
    assert_kept(attributes(library.combine_datasets([dataset], "aa/c-v0")))


@in_minari("none of 8 keys is kept", AssertionError, "^lost: 8")
def p5_combining_keeps_what_the_datasets_say_of_themselves(library: ModuleType) -> None:
    scores = {"ref_min_score": 1.0, "ref_max_score": 9.0, "num_episodes_average_score": 7}
    text = {"description": "d", "algorithm_name": "a", "code_permalink": "https://example.org"}
    told = {**scores, **text, "requirements": ["numpy>=1"], "eval_env": "CartPole-v1"}
    datasets = [create(library, f"aa/b-v{number}", **told) for number in range(2)]
    before = datasets[0].storage.metadata
    after = library.combine_datasets(datasets, "aa/c-v0").storage.metadata
    lost = [key for key in (*scores, *text, "requirements", "eval_env_spec") if key not in after]
    assert not lost, f"lost: {len(lost)}"
    assert all(after[key] == before[key] for key in (*scores, *text, "eval_env_spec"))


@in_minari("images of two lossless datasets become JPEG", AssertionError, "^JPEG: True")
def p5_combining_keeps_the_encoding_of_images(library: ModuleType) -> None:
    image = {**film((32, 32, 3)), "jpeg_encoding": False}
    dataset = filmed(library, **image)
    both = library.combine_datasets([dataset, dataset], "aa/c-v0")
    assert not both.storage.jpeg_encoding, f"JPEG: {both.storage.jpeg_encoding}"


@in_minari(
    "seed, options and statistics are lost",
    AssertionError,
    r"^lost: \['seed', 'options', 'rewards_sum'\]",
)
def p5_adding_to_a_dataset_keeps_what_belongs_to_an_episode(library: ModuleType) -> None:
    with collecting(library, Counter()) as collector:
        dataset = collector.create_dataset("aa/b-v0")
        run(collector, seed=7, options={"k": 1})
        collector.add_to_dataset(dataset)
        assert_kept(attributes(dataset))


@in_minari("observations 3, 3, 3, 3 instead of 0, 1, 2, 3", AssertionError, r"^\[3.0, 3.0, 3.0,")
def p6_an_environment_may_reuse_its_observation(library: ModuleType) -> None:
    with collecting(library, Counter()) as collector:
        run(collector)
        found = collector.create_dataset("aa/b-v0")[0].observations.ravel().tolist()
    assert found == [0, 1, 2, 3], found


# --- P7: images


def film(shape: tuple[int, ...]) -> dict[str, Any]:
    pictures = np.random.default_rng(0).integers(256, size=(4, *shape), dtype=np.uint8)
    return {"pictures": pictures, "observation_space": spaces.Box(0, 255, shape, np.uint8)}


def filmed(library: ModuleType, pictures: Any, **options: Any) -> Any:
    return create(library, buffers=[buffer(library, observations=pictures)], **options)


def assert_lossless(library: ModuleType, shape: tuple[int, ...], **options: Any) -> None:
    expected = film(shape)
    found = filmed(library, **expected, **options)[0].observations
    assert (found.shape, found.dtype) == ((4, *shape), np.uint8)
    error = np.abs(found.astype(int) - expected["pictures"]).max()
    assert error == 0, f"wrong by {error}"


@in_minari("pixels of noise are wrong by more than 100", AssertionError, r"^wrong by [12]\d\d")
def p7_images_are_lossless_by_default(library: ModuleType) -> None:
    assert_lossless(library, (32, 32, 3))


@in_minari("OSError: cannot write mode RGBA as JPEG", OSError, "cannot write mode RGBA as JPEG")
def p7_stacks_of_four_frames_are_stored(library: ModuleType) -> None:
    assert_lossless(library, (84, 84, 4))


@in_minari(ABSENT + " (frames first)")
def p7_stacks_of_two_frames_come_back(library: ModuleType) -> None:
    assert_lossless(library, (2, 64, 64))


@in_minari(ABSENT + " (0.5.3 gave JPEG bytes)")
def p7_small_pictures_come_back(library: ModuleType) -> None:
    assert_lossless(library, (7, 7, 3))


@in_minari(ABSENT + " (jpeg_encoding=False)")
def p7_images_can_be_asked_to_be_lossless(library: ModuleType) -> None:
    assert_lossless(library, (32, 32, 3), jpeg_encoding=False)


# --- P8 and P9: one contract for all formats


@in_minari("an object array of dicts", AssertionError, "^ndarray")
def p8_nested_infos_are_arrays_in_arrow(library: ModuleType) -> None:
    infos = {"state": {"x": list(range(4)), "y": np.ones((4, 2))}}
    found = create(library, buffers=[buffer(library, infos=infos)], data_format="arrow")[0].infos
    assert isinstance(found["state"], dict), type(found["state"]).__name__
    assert found["state"]["x"].tolist() == [0, 1, 2, 3]
    assert found["state"]["y"].shape == (4, 2)


@in_minari("ValueError: invalid literal for int()", ValueError, "invalid literal for int")
def p8_infos_may_be_an_array_of_one_number_a_step_in_arrow(library: ModuleType) -> None:
    buffers = [buffer(library, infos={"x": np.arange(4)})]
    found = create(library, buffers=buffers, data_format="arrow")[0].infos
    assert found["x"].tolist() == [0, 1, 2, 3]


def continued(library: ModuleType, first: Any, **options: Any) -> Any:
    """A storage with an episode of 3 steps that got 2 more."""
    storage = new_storage(library, **options)
    storage.update_episodes([first])
    rows = {key: getattr(first, key)[:2] for key in ("observations", "actions", "rewards")}
    flags = {"terminations": [False] * 2, "truncations": [False, True]}
    storage.update_episodes([buffer(library, id=0, **rows, **flags)])
    return storage


@in_minari("of 3 and 2 steps 1 is read, and 5 are counted", AssertionError, "^1 of 5 steps")
def p8_an_episode_is_continued_in_arrow(library: ModuleType) -> None:
    storage = continued(library, buffer(library), data_format="arrow")
    steps = len(next(iter(storage.get_episodes([0])))["rewards"])
    assert (steps, storage.total_steps) == (5, 5), f"{steps} of {storage.total_steps} steps"


@in_minari("ValueError: name already exists", ValueError, "name already exists")
def p8_an_episode_of_jpeg_images_is_continued(library: ModuleType) -> None:
    given = film((32, 32, 3))
    first = buffer(library, observations=given["pictures"])
    space = given["observation_space"]
    storage = continued(library, first, space=space, jpeg_encoding=True)
    assert next(iter(storage.get_episodes([0])))["observations"].shape == (6, 32, 32, 3)


@in_minari(
    "3 observations, 5 actions and rewards, 4 and 1 flags are stored",
    AssertionError,
    "^5 steps are stored",
)
def p9_wrong_lengths_are_refused(library: ModuleType) -> None:
    wrong = {"observations": np.zeros((3, 1)), "terminations": [False] * 4, "truncations": [True]}
    try:
        dataset = create(library, buffers=[buffer(library, 5, **wrong)])
    except ValueError:
        assert not (root() / "aa" / "b-v0").exists()
        return
    raise AssertionError(f"{dataset.total_steps} steps are stored")


@in_minari(
    "stored without a word; there are no checks that would find them",
    ModuleNotFoundError,
    "No module named 'minari.checks'",
)
def p9_wrong_values_are_found(library: ModuleType) -> None:
    wrong = {
        "membership": {"observations": np.full((4, 1), 5000.0)},
        "finite": {"rewards": [0, np.nan, 0]},
        "flags": {"terminations": [False] * 3},
        "dtypes": {"actions": np.array([1, 2, 3], np.int16)},
    }
    with warnings.catch_warnings(action="ignore"):  # it is told of when it is stored, too
        dataset = create(library, buffers=[buffer(library, **wrong[check]) for check in wrong])
    checks = importlib.import_module(f"{library.__name__}.checks")
    report = checks.run(checks.Subject.open(dataset.storage.data_path))
    found = {finding.check for finding in report.findings}
    assert wrong.keys() <= found, found
