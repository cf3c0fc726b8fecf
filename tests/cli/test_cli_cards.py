"""The commands that describe datasets to people."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import minari_pipe
from minari_pipe.cli import site
from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.files.manifest import read_manifest
from minari_pipe.datasets.cards.folder import FILES
from minari_pipe.datasets.cards.page import FILM
from minari_pipe.datasets.cards.site import write_site
from minari_pipe.errors import MinariPipeError
from tests.cli.test_cli import ID, error, make, run
from tests.support.repositories import hashes


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


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_card_is_the_same_with_and_without_a_driver_of_graphics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with minari_pipe.DataCollector(gym.make("InvertedPendulum-v5")) as env:
        env.reset(seed=3)
        env.step(np.zeros(1, np.float32))
        card = env.create_dataset("pole/still-v0").storage.data_path.parent / "card"
    monkeypatch.setenv("MUJOCO_GL", "none there")
    assert ", no film: " in run("card", "pole/still-v0").stdout
    without = hashes(card)
    monkeypatch.delenv("MUJOCO_GL")
    said = run("card", "pole/still-v0").stdout
    found = hashes(card)
    found.pop(FILM, None)
    assert found == without
    assert set(without) | {FILM} == set(FILES)
    if "no film" in said:  # all was asserted, but of two cards that were made without a driver
        pytest.skip(f"no driver on this machine: {said}")


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


@pytest.fixture
def remote(tmp_path: Path) -> str:
    """The address of a remote with one dataset that has a card, and one that has none."""
    make()
    run("combine", ID, ID, "--dataset-id", "tests/twice-v0")
    run("card", ID, "--no-film")
    address = f"file://{tmp_path / 'remote'}"
    for name in (ID, "tests/twice-v0"):
        run("upload", name, "--to", address)
    return address


def test_report_of_an_address_reads_the_card_and_no_data(remote: str, tmp_path: Path) -> None:
    for path in (tmp_path / "remote").rglob("*.hdf5"):
        path.write_bytes(b"unreadable")
    said = run("report", f"{remote}/{ID}", "-o", str(tmp_path / "r.html")).stdout
    assert said.startswith(f"{ID}: ")
    assert "Histogram of returns" in (tmp_path / "r.html").read_text()
    said = error("report", f"{remote}/tests/twice-v0", "-o", str(tmp_path / "s.html"))
    assert "has no card, so a report needs its data, " in said
    assert f"minari-pipe download {remote}/tests/twice-v0" in said
    assert not (tmp_path / "s.html").exists()


def test_a_card_that_is_not_what_its_manifest_names_is_refused(remote: str, tmp_path: Path) -> None:
    path = tmp_path / "remote" / ID / "card" / "stats.json"
    path.write_bytes(path.read_bytes().replace(b"0", b"1"))
    said = error("report", f"{remote}/{ID}", "-o", str(tmp_path / "r.html"))
    assert f"has other bytes of {ID}/card/stats.json than its manifest names" in said


def test_report_shows_two_datasets_side_by_side(tmp_path: Path, remote: str) -> None:
    target = tmp_path / "both.html"
    said = run("report", ID, f"{remote}/{ID}", "-o", str(target)).stdout
    assert said.startswith(f"{ID}, {ID}: {target}, ")
    assert target.read_text().count("Returns, from ") == 2


def test_site_shows_a_root_or_a_remote(remote: str, tmp_path: Path) -> None:
    for number, source in enumerate(([], [remote], [str(get_dataset_path())])):
        folder = tmp_path / f"site{number}"
        assert run("site", *source, "-o", str(folder)).stdout == (
            f"2 datasets: {folder / 'index.html'}\n"
        )
        found = json.loads((folder / "datasets.json").read_text())["datasets"]
        assert [one["id"] for one in found] == [ID, "tests/twice-v0"]
        has_returns = [one["mean_return"] is not None for one in found]
        assert has_returns == [True, source != [remote]]
    assert "there are no datasets to show" in error(
        "site", str(tmp_path / "site0"), "-o", str(tmp_path / "x")
    )
    assert "no folder; expected local, remote, workspace" in error("site", "nowhere")


def test_site_shows_what_a_workspace_has_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    shutil.copytree(get_dataset_path() / ID, tmp_path / "datasets" / ID)
    (tmp_path / ".dvc").mkdir()
    monkeypatch.chdir(tmp_path)
    for source in ("workspace", str(tmp_path)):
        assert run("site", source).stdout == "1 dataset: site/index.html\n"


def _sites(monkeypatch: pytest.MonkeyPatch, few: int) -> int:
    monkeypatch.setattr(site, "_FEW", few)
    entries = site.local_entries(str(get_dataset_path()), all=True)
    return write_site(Path(f"site{few}"), entries, "Datasets", run=site.side_by_side)


def test_a_site_of_several_processes_is_that_of_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        make(dataset_id=f"aa/b{number}-v0")
    broken = get_dataset_path() / "aa" / "b1-v0" / "data" / "main_data.hdf5"
    broken.write_bytes(broken.read_bytes()[:100])
    for few in (0, 100):
        with pytest.warns(UserWarning, match="aa/b1-v0 is left out: .*main_data.hdf5"):
            assert _sites(monkeypatch, few) == 4
    assert hashes(Path("site0")) == hashes(Path("site100"))


def test_a_site_is_as_it_was_if_a_process_that_writes_it_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    make()
    assert _sites(monkeypatch, 0) == 1
    before = hashes(tmp_path)
    monkeypatch.setattr(site, "_local_entry", kill_own_process)
    with pytest.raises(MinariPipeError, match="the site is not written: its process was killed"):
        _sites(monkeypatch, 0)
    assert hashes(tmp_path) == before


def kill_own_process(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
