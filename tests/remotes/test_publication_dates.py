"""A card that is uploaded says when its dataset was published; the local one does not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.files.manifest import verify
from minari_pipe.datasets.cards.dates import DATED, dated
from minari_pipe.datasets.cards.folder import card_files, facts_at, write_card
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.datasets.library import delete_dataset
from minari_pipe.errors import ConfigError, CorruptDatasetError, DatasetExistsError
from minari_pipe.remotes import open_remote
from minari_pipe.remotes.base import METADATA
from minari_pipe.remotes.hosting import download_dataset, publish_dataset
from minari_pipe.testing.remotes import another_root, tree
from tests.support.cards import dataset_with_card
from tests.support.remote_places import Servers, enter_hub
from tests.support.servers.running import entered

ID = "example/steps-v0"
DATE = "2026-11-23"


@pytest.fixture(params=["file", "moto", "gcs", "hub"])
def address(
    request: pytest.FixtureRequest,
    servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """An empty place of each kind; the local root has a dataset with a card."""
    name, kind = tmp_path.name, request.param
    (tmp_path / "remote").mkdir()
    places = {
        "file": f"{tmp_path}/remote",
        "moto": f"s3://bucket/{name}",
        "gcs": f"gs://bucket/{name}",
    }
    with entered({} if kind == "file" else servers.variables(kind)):
        if kind == "hub":
            enter_hub(monkeypatch)
        another_root(monkeypatch, tmp_path / "root")
        dataset_with_card(ID)
        yield places.get(kind, "hf://org-" + re.sub(r"\W|_", "-", name).strip("-"))


def dates(files: dict[str, bytes]) -> list[Any]:
    """The dates in the two files of a card that state it."""
    page = files["card/report.html"].decode()
    script = re.search(r'<script type="application/ld\+json">(.*?)</script>', page, re.DOTALL)
    assert script is not None
    found = [json.loads(files["card/croissant.json"]), json.loads(script[1])]
    assert found[0] == found[1]
    return [each.get("datePublished") for each in found]


def published(address: str) -> dict[str, bytes]:
    remote = open_remote(address)
    return {name: remote.read(f"{ID}/{name}") for name in remote.files(ID)}


def test_only_the_copy_that_is_uploaded_states_the_date(address: str) -> None:
    place = get_dataset_path(ID)
    before = tree(place)
    assert publish_dataset(ID, address, published=DATE).outcome == "uploaded"
    assert tree(place) == before
    there = published(address)
    assert dates(before) == [None, None] and dates(there) == [DATE, DATE]
    own = {name for name in before if name.removeprefix("card/") not in DATED}
    assert {n: there[n] for n in own - {"manifest.json", METADATA}} == {
        n: before[n] for n in own - {"manifest.json", METADATA}
    }
    delete_dataset(ID)
    download_dataset(
        f"{address.rstrip('/')}/{ID}" if "://" in address else f"file://{address}/{ID}"
    )
    verify(place)
    assert dates(tree(place)) == [DATE, DATE]


@pytest.mark.parametrize("first", [None, "2025-01-01", DATE])
def test_a_second_upload_leaves_the_date_that_is_there(first: str | None, address: str) -> None:
    publish_dataset(ID, address, published=first)
    there = published(address)
    for second in (DATE, None, "2027-01-01"):
        done = publish_dataset(ID, address, published=second)
        assert (done.outcome, done.notes) == ("present", ())
        assert publish_dataset(ID, address, published=second, dry_run=True).outcome == "present"
    assert published(address) == there
    assert dates(there) == [first, first]


def test_an_upload_that_was_cut_may_go_on_with_another_date(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = open_remote(address)
    for date in (None, "2025-01-01"):
        with monkeypatch.context() as patch:
            patch.setattr(type(remote), "reveal", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                publish_dataset(ID, address, published=date)
    assert publish_dataset(ID, address, published=DATE).outcome == "uploaded"
    assert dates(published(address)) == [DATE, DATE]


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    another_root(monkeypatch, tmp_path / "root")
    (tmp_path / "remote").mkdir()
    return str(tmp_path / "remote")


def test_other_content_is_refused_whatever_its_date(local: str) -> None:
    dataset_with_card(ID)
    publish_dataset(ID, local, published=DATE)
    delete_dataset(ID)
    dataset_with_card(ID, lengths=(7,))
    with pytest.raises(DatasetExistsError, match="with other content"):
        publish_dataset(ID, local, published=DATE)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({}, {"texts": {"biases": "It is slow."}}, "with another"),
        (None, {}, "without a"),
        ({}, {"findings": []}, "with another"),  # in the report only, which states the date, too
    ],
    ids=["mended", "not there before", "checked"],
)
def test_another_card_of_the_same_content_is_not_sent_but_told(
    old: dict[str, Any] | None, new: dict[str, Any], told: str, local: str
) -> None:
    dataset_with_card(ID)
    place = get_dataset_path(ID)
    facts = facts_at(place / "data")
    if old is None:
        shutil.rmtree(place)
        step_index_dataset(ID)
    else:
        write_card(place, card_files(replace(facts, **old)))
    publish_dataset(ID, local, published=DATE)
    there = published(local)
    write_card(place, card_files(replace(facts, **new)))
    for date in (DATE, None):
        done = publish_dataset(ID, local, published=date)
        assert done.outcome == "present"
        assert done.notes == (
            f"{local} has {ID} {told} card; it is left unchanged, as what is published stays. "
            "Publish a new version to show this card",
        )
    assert published(local) == there
    write_card(place, {})
    assert publish_dataset(ID, local).notes == ()


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_card_that_is_not_as_the_manifest_says_is_not_sent(damage: str, local: str) -> None:
    dataset_with_card(ID)
    card = get_dataset_path(ID) / "card"
    if damage == "changed":
        (card / "report.html").write_text("<script>")
    else:
        (card / "returns.svg").unlink()
    with pytest.raises(CorruptDatasetError, match="make the card again: minari-pipe card "):
        publish_dataset(ID, local)
    assert not list(Path(local).rglob("*.html"))


def test_without_a_card_there_is_no_date(local: str) -> None:
    dataset_with_card(ID)
    write_card(get_dataset_path(ID), {"card.md": b"a card"})
    assert publish_dataset(ID, local, published=DATE).outcome == "uploaded"
    assert not {f"card/{name}" for name in DATED} & open_remote(local).files(ID).keys()


@pytest.mark.parametrize("date", ["yesterday", "2026-13-01", "20261123", "2026-11-23T00:00", ""])
def test_what_is_no_date_is_refused(date: str, local: str) -> None:
    dataset_with_card(ID)
    with pytest.raises(ConfigError, match="is no date, expected one such as 2026-11-23"):
        publish_dataset(ID, local, published=date)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("croissant.json", b"\xff"),
        ("croissant.json", b"[]"),
        ("croissant.json", b'{"a": "\\ud800"}'),
        ("croissant.json", b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("croissant.json", b'{"a": "' + b"b" * 100_000 + b'"}'),
        ("report.html", b"<p>no description</p>"),
        ("report.html", b'<script type="application/ld+json">{</script>'),
        ("card.md", b"{}"),
    ],
)
def test_a_file_that_is_none_of_a_card_stays_as_it_is(name: str, content: bytes) -> None:
    assert dated(name, content, DATE) == content


def test_a_text_with_markup_stays_inert_in_the_page() -> None:
    page = b'<script type="application/ld+json">{"name": "\\u003c/script>\\u0026"}</script><p>'
    found = dated("report.html", page, DATE)
    assert found.count(b"</script>") == 1 and b"\\u003c/script>\\u0026" in found
    assert dated("report.html", found, DATE) == found
