"""Every key of the standard is checked, and equal metadata is written as equal text."""

from __future__ import annotations

import json

import numpy as np
import pytest

from minari_pipe.core.metadata import (
    MINARI_VERSION,
    REQUIRED_KEYS,
    STANDARD_KEYS,
    dump_metadata,
    metadata_faults,
    supported_dataset_versions,
    validate_metadata,
)
from minari_pipe.errors import InvalidMetadataError

GOOD = {
    "dataset_id": "door/human-v0",
    "total_episodes": 2,
    "total_steps": 10,
    "data_format": "hdf5",
    "jpeg_encoding": False,
    "observation_space": "{}",
    "action_space": "{}",
    "env_spec": "{}",
    "eval_env_spec": "{}",
    "code_permalink": "https://example.org",
    "author": {"A", "B"},
    "author_email": ["a@example.org"],
    "algorithm_name": "random",
    "description": "what it is",
    "minari_version": "0.5.4",
    "requirements": ["mujoco<3.12"],
    "ref_min_score": -1,
    "ref_max_score": np.float64(3.5),
    "num_episodes_average_score": 100,
    "combined_datasets": [],
    "dataset_size": 0.1,
    "docs_url": "https://example.org",
}


def test_the_example_has_every_key_and_no_fault() -> None:
    assert GOOD.keys() >= STANDARD_KEYS.keys() >= set(REQUIRED_KEYS)
    assert list(metadata_faults(GOOD)) == []
    validate_metadata(GOOD)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("dataset_id", "../x", "Malformed dataset ID"),
        ("dataset_id", 3, "must be a string, got 3"),
        ("total_steps", -1, "must be a non-negative integer"),
        ("total_steps", 1.0, "must be a non-negative integer"),
        ("total_episodes", True, "must be a non-negative integer"),
        ("jpeg_encoding", 1, "must be true or false"),
        ("author", "A", "must be a list or set of strings"),
        ("author", [1], "must be a list or set of strings"),
        ("ref_max_score", float("nan"), "must be a finite number"),
        ("ref_max_score", "3", "must be a finite number"),
        ("ref_max_score", 10**400, "must be a finite number"),
        ("dataset_size", -0.1, "must be a non-negative number"),
        ("dataset_size", float("inf"), "must be a non-negative number"),
        ("env_spec", "{", "must be JSON"),
        ("observation_space", {"type": "Box"}, "must be a string"),
        ("my_key", object(), "cannot be written as JSON"),
    ],
)
def test_each_fault_is_found_alone(key, value, message) -> None:
    faults = list(metadata_faults({**GOOD, key: value}))
    assert [name for name, _ in faults] == [key]
    assert message in faults[0][1]


def test_all_faults_are_said_at_once() -> None:
    with pytest.raises(InvalidMetadataError, match=r"'total_steps'.*; .*'author'"):
        validate_metadata({"total_steps": "x", "author": 1})


def test_text_is_json_with_sorted_sets_in_the_order_of_the_keys() -> None:
    text = dump_metadata({"b": {"z", "a", "m"}, "a": np.float32(0.5), "c": np.arange(2)})
    assert text == '{"b": ["a", "m", "z"], "a": 0.5, "c": [0, 1]}'
    assert json.loads(dump_metadata(GOOD))["author"] == ["A", "B"]


def test_this_package_reads_what_real_minari_reads() -> None:
    import minari

    assert supported_dataset_versions == minari.supported_dataset_versions
    assert MINARI_VERSION in supported_dataset_versions
