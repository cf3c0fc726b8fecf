"""The storage in memory keeps the contract of those in files."""

from __future__ import annotations

import pytest

from minari_pipe.storage import MinariStorage, get_storage_keys
from minari_pipe.storage.memory import MemoryStorage
from minari_pipe.testing import ACTION, StorageContract, assert_stored, make


class TestMemoryStorage(StorageContract):
    data_format = "memory"


def test_it_is_not_listed_and_leaves_no_file(tmp_path):
    assert "memory" not in get_storage_keys()
    path = tmp_path / "data"
    storage = MinariStorage.new(path, ACTION, ACTION, data_format="memory")
    assert list(tmp_path.iterdir()) == []
    assert MinariStorage.read(tmp_path / "x" / ".." / "data").total_episodes == 0
    MemoryStorage.forget(path)
    MemoryStorage.forget(path)
    with pytest.raises(FileNotFoundError, match="doesn't exist"):
        MinariStorage.read(path)
    with pytest.raises(FileNotFoundError, match="exists only in the process"):
        storage.update_episodes(make())


def test_it_can_be_a_dataset(tmp_path):
    from minari_pipe import MinariDataset
    from minari_pipe.testing import OBSERVATION

    storage = MinariStorage.new(tmp_path / "data", OBSERVATION, ACTION, data_format="memory")
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    storage.update_episodes(make())
    assert len(MinariDataset(tmp_path / "data")) == 3
    assert_stored(MinariDataset(storage).storage, make())
    MemoryStorage.forget(tmp_path / "data")
