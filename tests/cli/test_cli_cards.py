"""The commands that describe datasets to people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.files.manifest import read_manifest
from minari_pipe.datasets.cards.folder import FILES
from minari_pipe.datasets.cards.page import FILM
from tests.cli.test_cli import ID, error, make, run


def place() -> Path:
    return get_dataset_path() / ID


def test_card_writes_the_files_beside_the_data() -> None:
    make()
    said = run("card", ID).stdout
    assert said.startswith(f"{ID}: report ")
    assert "no film: the dataset has no environment" in said
    assert said.endswith(f"; in {place() / 'card'}\n")
    content = read_manifest(place())
    assert content is not None
    assert {path.name for path in (place() / "card").iterdir()} == set(content["card"])
    assert set(content["card"]) | {FILM} == set(FILES)
    findings = json.loads(run("validate", ID, "--no-replay", "--json").stdout)["findings"]
    assert not [one for one in findings if one["check"] in ("card", "manifest")]


def test_card_without_a_film_says_nothing_of_one() -> None:
    make()
    assert "film" not in run("card", ID, "--no-film").stdout


def test_card_leaves_other_files_alone() -> None:
    make()
    (place() / "card").mkdir()
    (place() / "card" / "mine.txt").write_text("x")
    assert "'mine.txt'" in error("card", ID, "--no-film")
    assert (place() / "card" / "mine.txt").read_text() == "x"


def test_report_writes_one_file_and_replaces_only_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    monkeypatch.chdir(tmp_path)
    assert run("report", ID).stdout.startswith(f"{ID}: tests-tiny-v0.html, ")
    assert run("report", ID, "-o", "tests-tiny-v0.html").stdout
    assert ID in (tmp_path / "tests-tiny-v0.html").read_text()
    (tmp_path / "letter.html").write_text("<!doctype html>\nDear ...")
    assert "letter.html exists and is no report" in error("report", ID, "-o", "letter.html")
    assert (tmp_path / "letter.html").read_text() == "<!doctype html>\nDear ..."
    assert "exists and is no report" in error("report", ID, "-o", str(tmp_path))


def test_a_report_of_a_folder_or_of_an_older_file_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    monkeypatch.chdir(tmp_path)
    assert run("report", str(place()), "-o", "a.html").stdout
    assert "tests/none-v0" in error("report", "tests/none-v0")
