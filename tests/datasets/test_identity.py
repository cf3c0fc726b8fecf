"""The content hash changes with every value and with nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from xxhash import xxh3_128_hexdigest

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import map_leaves
from minari_pipe.datasets.identity import IDENTITY_FIELDS, content_sha256, manifest
from minari_pipe.errors import DatasetNotFoundError
from minari_pipe.storage import MinariStorage
from minari_pipe.testing import ACTION, OBSERVATION, make

METADATA = {
    "dataset_id": "aa/b-v0",
    "minari_version": "0.5.4",
    "ref_min_score": 1.0,
    "ref_max_score": 2.0,
    "num_episodes_average_score": 100,
    "env_spec": '{"id": "A-v0", "kwargs": {"a": 1, "b": 2}}',
    "eval_env_spec": '{"id": "A-v0"}',
}


def store(path: Path, buffers, metadata=METADATA, spaces_=(OBSERVATION, ACTION)) -> MinariStorage:
    storage = MinariStorage.new(path, *spaces_)
    storage.update_metadata(metadata)
    storage.update_episodes(buffers)
    return storage


def digest(storage: MinariStorage, **changes) -> str:
    return content_sha256(storage, {**storage.metadata, **changes})


@pytest.fixture
def storage(tmp_path: Path) -> MinariStorage:
    return store(tmp_path / "data", make())


def pinned_episode(rng: np.random.Generator) -> EpisodeBuffer:
    """An episode that stays what it is, whatever the shipped strategies generate one day."""
    steps = int(rng.integers(1, 7))
    ends = (np.zeros(steps, bool), np.zeros(steps, bool))
    ends[0 if rng.random() < 0.5 else 1][-1] = True
    seed = [None, 0, 7, 2**63, 2**64 - 1][rng.integers(5)]
    options = None
    if rng.random() >= 0.3:
        options = {
            "low": -0.5,
            "flag": True,
            "count": 3,
            "nothing": None,
            "empty": {},
            "list": [1, 2.5, "three", [None]],
            "tuple": (1, 2),
            "names": ["a", "b"],
            "with/slash": 1,
            "state": {"qpos": rng.random(3), "qvel": rng.random(3).astype(np.float32)},
            "grid": rng.integers(9, size=(2, 2)),
            "scalar": np.float32(0.1),
            "text": "ünï\0code",
        }
    letters = list("abcxyz ÄßΩ漢🙂\n\t\"'\\/")
    rows = steps + 1
    observations = {
        "a": np.frombuffer(rng.bytes(rows * 8), np.float32).reshape(rows, 2),
        "t": (["".join(rng.choice(letters, rng.integers(9))) for _ in range(rows)],),
    }
    actions, rewards = rng.integers(5, size=steps), rng.normal(size=steps)
    infos: dict = {}
    if rng.random() >= 0.3:
        infos = {
            "success": rng.random(rows) < 0.5,
            "count": rng.integers(100, size=rows, dtype=np.int32),
            "reward/forward": rng.random(rows),
            "state": {"qpos": rng.random((rows, 3)), "deep": {"m": rng.random((rows, 2, 2))}},
            "empty": np.zeros((rows, 0), np.float32),
            "note": np.array(["", "ünï", "x" * 300][: min(3, rows)] * rows, dtype=object)[:rows],
        }
    metadata = {"origin": "generated", "weights": rng.random(2)}
    return EpisodeBuffer(
        None, seed, options, observations, actions, rewards, *ends, infos, metadata
    )


def test_the_hash_is_pinned(tmp_path: Path) -> None:
    """Published hashes are compared for years: a change here is a change of the standard."""
    rng = np.random.default_rng(0)
    storage = store(tmp_path / "data", [pinned_episode(rng) for _ in range(2)])
    assert digest(storage) == ("5d9664e9757bf6b6716a8c66ec4faae482af1f34465b2aa5264d199dea6d0f8e")


def test_raw_and_read_metadata_have_the_same_hash(storage: MinariStorage) -> None:
    raw = storage.read_raw_metadata(storage.data_path)
    assert content_sha256(storage, raw) == digest(storage)
    assert len(digest(storage)) == 64


def test_old_forms_of_a_space_are_the_same_space(storage: MinariStorage) -> None:
    text = storage.read_raw_metadata(storage.data_path)["action_space"]
    assert digest(storage, action_space=text.replace('"dtype": "int64", ', "")) == digest(storage)


def test_the_hash_does_not_depend_on_the_files(storage: MinariStorage, tmp_path: Path) -> None:
    expected = digest(storage)
    one_by_one = store(tmp_path / "other", [])
    for buffer in make():
        one_by_one.update_episodes([buffer])
    assert digest(one_by_one) == expected
    with h5py.File(storage.data_path / "main_data.hdf5", "a") as file:
        for name in ("rewards", "observations/a"):
            values = file[f"episode_1/{name}"][()]
            del file[f"episode_1/{name}"]
            swapped = values.astype(values.dtype.newbyteorder(">"))
            file["episode_1"].create_dataset(name, data=swapped, chunks=True, compression="gzip")
    assert digest(storage) == expected


def test_the_hash_does_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    def backwards(tree):
        if isinstance(tree, dict):
            return {key: backwards(tree[key]) for key in reversed(tree)}
        return tuple(map(backwards, tree)) if isinstance(tree, tuple) else tree

    buffers = [
        replace(
            buffer,
            observations=backwards(buffer.observations),
            infos=backwards(buffer.infos),
            options=backwards(buffer.options),
            metadata=backwards(buffer.metadata),
        )
        for buffer in make()
    ]
    turned = spaces.Dict(list(reversed(OBSERVATION.spaces.items())))
    first = store(tmp_path / "first", make())
    second = store(tmp_path / "second", buffers, spaces_=(turned, ACTION))
    spec = '{"kwargs":{"b":2,"a":1},"id":"A-v0"}'
    assert digest(first) == digest(second, env_spec=spec)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dataset_id", "aa/c-v0"),
        ("observation_space", spaces.Discrete(3)),
        ("action_space", spaces.Discrete(6)),
        ("env_spec", '{"id": "A-v1", "kwargs": {"a": 1, "b": 2}}'),
        ("eval_env_spec", None),
        ("ref_min_score", 1.0000001),
        ("ref_max_score", None),
        ("num_episodes_average_score", 101),
    ],
)
def test_each_identity_field_counts(storage: MinariStorage, field: str, value) -> None:
    assert field in IDENTITY_FIELDS
    assert digest(storage, **{field: value}) != digest(storage)


def test_other_metadata_does_not_count(storage: MinariStorage) -> None:
    others = {"description": "x", "author": {"A"}, "dataset_size": 9, "total_steps": 1, "new": 2}
    assert digest(storage, **others) == digest(storage)
    assert digest(storage, ref_min_score=1, num_episodes_average_score=np.int64(100)) == digest(
        storage
    )


def changed(name: str):
    """The episodes with one thing changed in the second one."""
    buffers = make()
    buffer = replace(buffers[1], infos={"x": np.zeros(len(buffers[1]) + 1)})
    base = [buffers[0], buffer, buffers[2]]

    def bump(leaf):
        leaf = list(leaf) if isinstance(leaf, list) else leaf.copy()
        leaf[-1] = leaf[-1] + "x" if isinstance(leaf[-1], str) else leaf[-1] + 1
        return leaf

    variants = {
        "observations": {"observations": map_leaves(bump, buffer.observations)},
        "text": {
            "observations": {**buffer.observations, "t": (bump(buffer.observations["t"][0]),)}
        },
        "actions": {"actions": bump(buffer.actions)},
        "dtype": {"actions": buffer.actions.astype(np.int32)},
        "rewards": {"rewards": bump(buffer.rewards)},
        "sign of zero": {"infos": {"x": -buffer.infos["x"]}},
        "terminations": {"terminations": ~buffer.terminations},
        "truncations": {"truncations": ~buffer.truncations},
        "infos": {"infos": {"x": bump(buffer.infos["x"])}},
        "info key": {"infos": {"y": buffer.infos["x"]}},
        "info shape": {"infos": {"x": buffer.infos["x"].reshape(-1, 1)}},
        "no infos": {"infos": {}},
        "seed": {"seed": 12345},
        "options": {"options": {"x": 1}},
        "type of options": {"options": {"x": 1.0}},
        "metadata": {"metadata": {"origin": "elsewhere"}},
    }
    return base, [base[0], replace(buffer, **variants[name]), base[2]]


@pytest.mark.parametrize(
    "name",
    [
        "observations",
        "text",
        "actions",
        "dtype",
        "rewards",
        "sign of zero",
        "terminations",
        "truncations",
        "infos",
        "info key",
        "info shape",
        "no infos",
        "seed",
        "options",
        "type of options",
        "metadata",
    ],
)
def test_each_value_counts(tmp_path: Path, name: str) -> None:
    base, other = changed(name)
    assert digest(store(tmp_path / "a", base)) != digest(store(tmp_path / "b", other))


def test_the_order_and_the_number_of_episodes_count(tmp_path: Path) -> None:
    a, b, c = make()
    digests = {
        digest(store(tmp_path / str(index), buffers))
        for index, buffers in enumerate([[], [a], [a, b, c], [b, a, c], [a, b, c, c]])
    }
    assert len(digests) == 5


def test_the_manifest_names_every_file(storage: MinariStorage) -> None:
    directory = storage.data_path.parent
    (storage.data_path / ".main_data.hdf5.tmp").write_bytes(b"left by a killed process")
    found = manifest(directory, "abc")
    files = {}
    for name in ("main_data.hdf5", "metadata.json"):
        content = (storage.data_path / name).read_bytes()
        files[name] = {
            "size": len(content),
            "xxh3_128": xxh3_128_hexdigest(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    assert found == {
        "format": 2,
        "total_episodes": 3,
        "total_steps": storage.total_steps,
        "data": files,
        "policies": {},
        "card": {},
        "content_sha256": "abc",
    }
    assert list(found["data"]) == sorted(files)
    json.dumps(found)
    with pytest.raises(DatasetNotFoundError):
        manifest(directory / "nowhere", "abc")
