"""Ids are parsed as real Minari parses them, and what could leave the root is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from minari.dataset.minari_dataset import parse_dataset_id as theirs

from minari_pipe.core.dataset_id import (
    check_new_dataset_id,
    dataset_id_sort_key,
    gen_dataset_id,
    namespace_hierarchy,
    parse_dataset_id,
    validate_namespace,
)
from minari_pipe.errors import InvalidDatasetIdError
from minari_pipe.testing import examples

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


CREATABLE = ["human-v0", "D4RL/door/human-v2", "aa/b-v0", "aa/b/c-v0", "x-v0", "a-v1-v2"]


@pytest.mark.parametrize("dataset_id", CREATABLE)
def test_what_may_be_created(dataset_id: str) -> None:
    check_new_dataset_id(dataset_id)


@pytest.mark.parametrize(
    ("dataset_id", "message"),
    [
        ("human", "'human' has no version; a new dataset needs one, such as 'human-v0'"),
        ("D4RL/door/human", "has no version"),
        ("human-v", "has no version"),
        ("human-v\N{FULLWIDTH DIGIT TWO}", "has no version"),
        ("i/foo-v0", "Malformed dataset ID: i/foo-v0"),
        ("i/jj/foo-v0", "Malformed namespace: i"),
        ("data/foo-v0", "has a part named 'data'"),
        ("aa/data/foo-v0", "has a part named 'data'"),
        ("../foo-v0", "Malformed dataset ID"),
        ("/foo-v0", "Malformed dataset ID"),
        ("aa/.foo-v0", "Malformed dataset ID"),
        ("foo\0-v0", "Malformed dataset ID"),
        ("foo-v0\0", "Malformed dataset ID"),
        ("", "Malformed dataset ID"),
    ],
)
def test_more_is_read_than_created(dataset_id: str, message: str) -> None:
    with pytest.raises(InvalidDatasetIdError, match=re.escape(message)):
        check_new_dataset_id(dataset_id)


def test_a_version_of_thousands_of_digits_is_refused() -> None:
    """Python refuses to turn them into a number, with an error that names no id."""
    with pytest.raises(InvalidDatasetIdError, match="version of 5000 digits"):
        parse_dataset_id("x-v" + "9" * 5000)
    assert parse_dataset_id("x-v" + "9" * 200)[2] == int("9" * 200)


IDS = st.from_regex(r"[-\w/.\x00 ]{0,12}(-v[0-9]{1,3})?", fullmatch=True)


@examples(100)
@given(IDS)
def test_everything_that_the_peer_parses_is_parsed_alike(dataset_id: str) -> None:
    try:
        expected = theirs(dataset_id)
    except (ValueError, TypeError):
        return
    if "//" in dataset_id:  # the peer's path of it is another id's
        with pytest.raises(InvalidDatasetIdError):
            parse_dataset_id(dataset_id)
    elif not dataset_id.rpartition("-v")[2].isascii():
        assert parse_dataset_id(dataset_id)[2] is None  # digits of other scripts are letters here
    else:
        assert parse_dataset_id(dataset_id) == expected


@examples(100)
@given(IDS)
def test_what_may_be_created_the_peer_reads_as_the_same_place(dataset_id: str) -> None:
    try:
        check_new_dataset_id(dataset_id)
    except InvalidDatasetIdError:
        return
    assert theirs(dataset_id) == parse_dataset_id(dataset_id)
    path = Path("/datasets", dataset_id)
    assert os.path.normpath(path) == str(path) == f"/datasets/{dataset_id}"
    assert not {"data", ""} & set(dataset_id.split("/"))
    assert not any(part.startswith(".") for part in dataset_id.split("/"))


@pytest.mark.parametrize("text", ["a-v1" * 5000 + "!", "ab/" * 5000, "a" * 20000 + "\n"])
def test_a_long_id_is_judged_at_once(text) -> None:
    """Minari's expressions take a minute and more."""
    began = time.process_time()
    for judge in (parse_dataset_id, validate_namespace):
        with pytest.raises(InvalidDatasetIdError, match="Malformed") as caught:
            judge(text)
        assert len(str(caught.value)) < 600
    assert time.process_time() - began < 1


_FOREIGN = """
from minari_pipe import delete_dataset, load_dataset
from minari_pipe.errors import InvalidDatasetIdError
for use in (load_dataset, delete_dataset):
    try:
        use("caf\\xe9-v0")
    except InvalidDatasetIdError as error:
        print(ascii(str(error)))
"""


def test_an_id_that_file_names_cannot_have_under_a_locale_is_named() -> None:
    variables = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _FOREIGN],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("locale's encoding, ascii; set PYTHONUTF8=1") == 2, done.stdout
