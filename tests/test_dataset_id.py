"""Ids are parsed as real Minari parses them, and what could leave the root is refused."""

from __future__ import annotations

import pytest

from minari_pipe.dataset_id import (
    dataset_id_sort_key,
    gen_dataset_id,
    namespace_hierarchy,
    parse_dataset_id,
    validate_namespace,
)
from minari_pipe.errors import InvalidDatasetIdError

VALID = {
    "human-v0": (None, "human", 0),
    "D4RL/door/human-v2": ("D4RL/door", "human", 2),
    "door-human-v10": (None, "door-human", 10),
    "human": (None, "human", None),
    "a-v1-v2": (None, "a-v1", 2),
    "x": (None, "x", None),
    "human-v\N{FULLWIDTH DIGIT TWO}": (None, "human-v\N{FULLWIDTH DIGIT TWO}", None),
}


@pytest.mark.parametrize(("dataset_id", "parts"), VALID.items())
def test_parse_and_gen_are_inverse(dataset_id: str, parts: tuple) -> None:
    assert parse_dataset_id(dataset_id) == parts
    assert gen_dataset_id(*parts) == dataset_id


@pytest.mark.parametrize(
    "dataset_id", [name for name, parts in VALID.items() if parts[2] is not None]
)
def test_parse_agrees_with_real_minari(dataset_id: str) -> None:
    from minari.dataset.minari_dataset import parse_dataset_id as theirs

    assert parse_dataset_id(dataset_id) == theirs(dataset_id)


@pytest.mark.parametrize(
    "dataset_id",
    [
        "",
        "/human-v0",
        "../human-v0",
        "door/../../etc-v0",
        "door//human-v0",
        "i/foo-v0",
        "door\\human-v0",
        "door/human v0",
        "human-v0\n",
        ".hidden-v0",
        "a/b/",
        "$(rm)-v0",
        None,
        3,
    ],
)
def test_malformed_ids_are_refused(dataset_id: object) -> None:
    with pytest.raises(InvalidDatasetIdError, match="Malformed dataset ID"):
        parse_dataset_id(dataset_id)


@pytest.mark.parametrize("namespace", ["", "a", "/ab", "ab/", "a//b", "..", "ab/../cd", "ab\n"])
def test_malformed_namespaces_are_refused(namespace: str) -> None:
    with pytest.raises(InvalidDatasetIdError, match="Malformed namespace"):
        validate_namespace(namespace)


def test_a_namespace_cannot_be_none() -> None:
    with pytest.raises(TypeError, match="Namespace cannot be None"):
        validate_namespace(None)


def test_hierarchy_has_every_parent() -> None:
    assert list(namespace_hierarchy("a/b/c")) == ["a", "a/b", "a/b/c"]
    assert list(namespace_hierarchy(None)) == []


def test_versions_sort_as_numbers() -> None:
    ids = ["b-v0", "aa/x-v10", "aa/x-v9", "aa/x", "c"]
    assert sorted(ids, key=dataset_id_sort_key) == ["b-v0", "c", "aa/x", "aa/x-v9", "aa/x-v10"]
