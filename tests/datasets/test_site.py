"""A site shows many datasets: from their cards, their tables of episodes, or metadata alone."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from minari_pipe.core.files.manifest import read_manifest
from minari_pipe.datasets.cards.comparison import comparison
from minari_pipe.datasets.cards.facts import Facts, Outcomes
from minari_pipe.datasets.cards.folder import card_files, check_report_path, facts_at
from minari_pipe.datasets.cards.page import page
from minari_pipe.datasets.cards.site import Entry, still_of, write_site
from minari_pipe.datasets.cards.summary import summary_of
from minari_pipe.errors import ConfigError, LinkError
from minari_pipe.storage import MinariStorage
from tests.datasets.test_cards import HOSTILE, Page, episode, split_page, stored

EMPTY = Outcomes([], [], np.zeros(0, np.int64), np.zeros(0))


def film() -> bytes:
    pictures = [Image.new("RGB", (32, 24), color) for color in ("red", "green", "blue")]
    data = io.BytesIO()
    pictures[0].save(data, "WEBP", save_all=True, append_images=pictures[1:])
    return data.getvalue()


def entry(dataset_id: str, *, shown: bytes | None = None, **metadata: Any) -> Entry:
    return Entry(Facts(dataset_id, metadata, EMPTY, [], {}, {}), {}, shown)


def given(*entries: Entry) -> list[tuple[str, Callable[[], Entry]]]:
    """Entries as ``write_site`` takes them."""
    return [(one.facts.dataset_id, partial(_same, one)) for one in entries]


def _same(one: Entry) -> Entry:
    return one


def page_at(folder: Path, name: str = "index.html") -> Page:
    return Page((folder / name).read_text())


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    buffers = [episode([1.0, 2.0]), episode([4.0], success=True), episode([0.5] * 3)]
    return stored(
        tmp_path / "b-v3", buffers, ref_min_score=1.0, ref_max_score=5.0, description="A few.",
        license="MIT",
    )  # fmt: skip


def test_a_card_alone_tells_what_the_data_tell(dataset: Path) -> None:
    facts = facts_at(dataset / "data")
    found, _ = summary_of("aa/b-v3", facts.metadata, card_files(facts), facts.files)
    assert (found.total_episodes, found.total_steps) == (3, 6)
    for name in ("ids", "seeds"):
        assert getattr(found.outcomes, name) == getattr(facts.outcomes, name)
    for name in ("lengths", "returns", "terminated", "truncated", "succeeded"):
        assert (getattr(found.outcomes, name) == getattr(facts.outcomes, name)).all()
    assert found.normalized is not None
    assert np.allclose(found.normalized, facts.normalized)
    for column, elements in found.elements.items():
        for one, other in zip(elements, facts.elements[column], strict=True):
            known = {k: v for k, v in other.statistics.items() if k in one.statistics}
            assert one.statistics == known


def test_without_a_card_the_table_of_episodes_tells_the_returns(dataset: Path) -> None:
    storage = MinariStorage.read(dataset / "data")
    found, _ = summary_of("aa/b-v3", {}, {}, {}, storage=storage)
    assert found.outcomes.returns.tolist() == [3.0, 4.0, 1.5]
    assert found.outcomes.terminated is None


@pytest.mark.parametrize(
    "table",
    [
        b"\xff\xfe",
        b"id,seed\n1,2\n",
        b"id,seed,steps,return,terminated,truncated,success\na,b,c,d,e,f,g\n",
        b"id,seed,steps,return,terminated,truncated,success\n0,,-3,1,1,0,\n",
        b"id,seed,steps,return,terminated,truncated,success\n0,,99999999999999999999,1,1,0,\n",
        b"id,seed,steps,return,terminated,truncated,success\n0,,1\n",
    ],
)
def test_a_damaged_table_counts_for_none(table: bytes) -> None:
    card = {"episodes.csv": table, "stats.json": b"[1]", "croissant.json": b"{"}
    found, _ = summary_of("aa/b-v3", {"total_episodes": 7}, card, {})
    assert found.total_episodes == 7
    assert not found.columns


@pytest.mark.parametrize("stats", [b'{"a": 1}', b'{"a": {"mean": ["x"]}}', b'{"a": {}}', b"{}"])
def test_damaged_statistics_are_left_out(stats: bytes) -> None:
    assert not summary_of("aa/b-v3", {}, {"stats.json": stats}, {})[0].columns


def test_a_site_has_a_page_for_each_dataset_and_a_list_of_all(
    tmp_path: Path, dataset: Path
) -> None:
    first = Entry(facts_at(dataset / "data"), {"name": "</script>"}, film())
    n = write_site(tmp_path / "site", given(first, entry("door/x-v0", description="Far.")), "Mine")
    assert n == 2
    names = {str(p.relative_to(tmp_path / "site")) for p in (tmp_path / "site").rglob("*.*")}
    assert names == {
        "index.html",
        "datasets.json",
        "datasets/aa/b-v3.html",
        "datasets/aa/b-v3.webp",
        "datasets/aa/b-v3-still.webp",
        "datasets/door/x-v0.html",
    }
    shown = page_at(tmp_path / "site")
    links = [attrs["href"] for tag, attrs in shown.tags if tag == "a"]
    assert links == ["datasets/aa/b-v3.html", "datasets/door/x-v0.html"]
    pictures = [attrs["src"] for tag, attrs in shown.tags if tag == "img"]
    assert pictures == ["datasets/aa/b-v3-still.webp"]
    for link in links:
        one = page_at(tmp_path / "site", link)
        assert [a["href"] for tag, a in one.tags if tag == "a"] == ["../../index.html"]
    index = json.loads((tmp_path / "site" / "datasets.json").read_text())
    assert [one["id"] for one in index["datasets"]] == ["aa/b-v3", "door/x-v0"]
    assert index["datasets"][0]["normalized_score"] == pytest.approx(0.4583, abs=1e-4)
    _, description = split_page((tmp_path / "site" / "datasets/aa/b-v3.html").read_text())
    assert description == {"name": "</script>"}


@pytest.mark.parametrize(
    ("scores", "bars"),
    [
        ({}, [0]),  # one value and no width
        ({"ref_min_score": 0.0, "ref_max_score": 8.0}, [48]),
        ({"ref_min_score": -4.0, "ref_max_score": 4.0}, [92]),
        ({"ref_max_score": 8.0}, [0]),
    ],
)
def test_a_list_draws_returns_on_an_axis_from_the_random_policy_to_the_expert(
    scores: dict[str, float], bars: list[float], tmp_path: Path
) -> None:
    returns = np.array([4.0, 4.0])
    outcomes = Outcomes([0, 1], [None] * 2, np.array([4, 4]), returns)
    shown = Entry(Facts("aa/b-v0", scores, outcomes, [], {}, {}), {}, None)
    write_site(tmp_path / "site", given(shown), "Mine")
    text = (tmp_path / "site" / "index.html").read_text()
    (chart,) = re.findall(r'class="spark".*?<path d="(.*?)"', text)
    assert [float(x) for x in re.findall(r"M([\d.]+) ", chart)] == bars


def test_numbers_that_json_cannot_hold_are_none(tmp_path: Path) -> None:
    outcomes = Outcomes([0, 1, 2], [None] * 3, np.array([1, 1, 1]), np.full(3, 1.7e308))
    known = {"ref_min_score": -1e308, "ref_max_score": 1e308}
    shown = [
        Entry(Facts("aa/b-v0", known, outcomes, [], {}, {}), {}, None),
        entry("aa/c-v0", dataset_size=1e308),
    ]
    write_site(tmp_path / "site", given(*shown), "Mine")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    index = (tmp_path / "site" / "datasets.json").read_text()
    first = json.loads(index, parse_constant=refuse)["datasets"][0]
    assert (first["mean_return"], first["normalized_score"]) == (None, None)
    numbers = [a["data-numbers"] for _, a in page_at(tmp_path / "site").tags if "data-numbers" in a]
    for text in numbers:
        json.loads(text or "", parse_constant=refuse)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MIT", "commercial use allowed"),
        ("CC BY 4.0", "commercial use allowed"),
        ("CC-BY-NC-SA-4.0", "no commercial use"),
        ("MIT and others", ""),
        ("MIT \u975e\u5546\u7528", ""),  # not for commercial use
        ("MIT?", ""),
        ("CC-BY-4.0 " + "x" * 200 + " non-commercial", "no commercial use"),
        (["MIT", {"a": 1}], ""),
        (None, "ask the author"),
    ],
)
def test_a_license_is_said_to_allow_commercial_use_only_if_it_is_known_to(
    name: Any, words: str, tmp_path: Path
) -> None:
    write_site(tmp_path / "site", given(entry("aa/b-v0", license=name)), "Mine")
    for place in ("index.html", "datasets/aa/b-v0.html"):
        shown = page_at(tmp_path / "site", place).words
        said = [w for w in map(str.strip, shown) if w.startswith(("commercial", "no comm", "ask"))]
        assert said == ([words] if words else [])


def test_the_still_is_the_first_frame_of_the_film() -> None:
    picture = Image.open(io.BytesIO(still_of(film())))
    red, green, blue = picture.convert("RGB").getpixel((16, 12))
    assert red > 200
    assert max(green, blue) < 60
    for other in (b"", b"RIFF", film()[:40], b"RIFF0000WEBPANMF\xff\xff\xff\xff"):
        assert still_of(other) == b""


def test_above_500_datasets_there_is_a_page_for_each_namespace(tmp_path: Path) -> None:
    entries = [entry(f"{('aa', 'bb')[n % 2]}/deep/x{n}-v0", total_episodes=2) for n in range(500)]
    entries += [entry("alone-v0"), entry("aa/y-v0")]
    write_site(tmp_path / "site", given(*entries), "Many")
    links = [a["href"] for tag, a in page_at(tmp_path / "site").tags if tag == "a"]
    assert links == [
        "namespaces/aa.html",
        "namespaces/aa/deep.html",
        "namespaces/bb/deep.html",
        "datasets/alone-v0.html",
    ]
    shown = page_at(tmp_path / "site", "namespaces/bb/deep.html")
    links = [str(a["href"]) for tag, a in shown.tags if tag == "a"]
    assert links[:2] == ["../../index.html", "../../datasets/bb/deep/x1-v0.html"]
    assert len(links) == 251
    assert all((tmp_path / "site" / "namespaces" / "bb" / link).exists() for link in links)


def test_an_older_site_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "site"
    write_site(target, given(entry("aa/b-v3"), entry("cc/d-v0")), "Mine")
    write_site(target, given(entry("aa/b-v3")), "Mine")
    assert not (target / "datasets" / "cc").exists()
    (target / "CNAME").write_text("mine")
    with pytest.raises(ConfigError, match="holds 'CNAME', which is no file of a site"):
        write_site(target, given(entry("aa/b-v3")), "Mine")
    assert (target / "CNAME").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds 'index\.html'"):
        write_site(tmp_path / "other", [], "Mine")
    with pytest.raises(ConfigError, match="is a file"):
        write_site(tmp_path / "other" / "index.html", [], "Mine")
    os.symlink(tmp_path / "other", tmp_path / "link")
    with pytest.raises(LinkError, match="symlink"):
        write_site(tmp_path / "link", [], "Mine")
    assert sorted(os.listdir(tmp_path)) == ["link", "other", "site"]


def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from minari_pipe.datasets.cards.site import write_site\n"
        "die = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_site(pathlib.Path(sys.argv[1]), [('aa/b-v3', die)], 'Mine')\n"
    )
    target = tmp_path / "site"
    done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) != []
    write_site(target, given(entry("aa/b-v3")), "Mine")
    assert os.listdir(tmp_path) == ["site"]


def test_texts_of_strangers_stay_inert(tmp_path: Path) -> None:
    metadata = {"description": HOSTILE, "license": HOSTILE, "author": HOSTILE}
    write_site(tmp_path / "site", given(entry("aa/b-v3", **metadata)), "Mine")
    for name in ("index.html", "datasets/aa/b-v3.html"):
        found = page_at(tmp_path / "site", name)
        assert len([tag for tag, _ in found.tags if tag == "script"]) == (name == "index.html")
        assert not [attrs for _, attrs in found.tags if "onerror" in attrs or "src" in attrs]
        assert all(str(a["href"]).endswith(".html") for tag, a in found.tags if tag == "a")


def test_two_datasets_are_shown_side_by_side(dataset: Path) -> None:
    first = facts_at(dataset / "data")
    content = read_manifest(dataset)
    assert content is not None
    second = dataclasses.replace(
        first,
        dataset_id="aa/b-v4",
        metadata={**first.metadata, "description": HOSTILE, "license": "Apache-2.0"},
        outcomes=dataclasses.replace(first.outcomes, returns=first.outcomes.returns + 10),
    )
    found = Page(comparison((first, film()), (second, None)))
    words = " ".join(" ".join(found.words).split())
    assert "aa/b-v3 and aa/b-v4" in words
    assert "MIT Apache-2.0" in words
    assert len([tag for tag, _ in found.tags if tag == "svg"]) == 4
    assert not [tag for tag, _ in found.tags if tag == "script"]
    assert len([tag for tag, attrs in found.tags if tag == "img"]) == 1
    assert not Page(comparison((entry("a-v0").facts, None), (first, None))).open


def test_hidden_files_count_as_files(tmp_path: Path) -> None:
    write_site(tmp_path / "site", given(entry("aa/b-v3")), "Mine")
    (tmp_path / "site" / ".git").mkdir()
    with pytest.raises(ConfigError, match=r"holds '\.git'"):
        write_site(tmp_path / "site", given(entry("aa/b-v3")), "Mine")
    assert (tmp_path / "site" / ".git").is_dir()


def test_folders_beside_the_site_stay(tmp_path: Path) -> None:
    (tmp_path / ".site.old").mkdir()
    for _ in range(2):
        write_site(tmp_path / "site", given(entry("aa/b-v3")), "Mine")
    assert sorted(os.listdir(tmp_path)) == [".site.old", "site"]


def test_a_site_of_nothing_leaves_the_older_one(tmp_path: Path) -> None:
    write_site(tmp_path / "site", given(entry("aa/b-v3")), "Mine")
    with pytest.raises(ConfigError, match="there are no datasets to show"):
        write_site(tmp_path / "site", [], "Mine")
    assert (tmp_path / "site" / "datasets" / "aa" / "b-v3.html").exists()


def test_a_site_is_not_written_into_a_dataset_or_over_the_current_folder(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="lies in the dataset"):
        write_site(dataset / "data" / "site", given(entry("aa/b-v3")), "Mine")
    with pytest.raises(ConfigError, match="lies in the dataset"):
        check_report_path(dataset / "card" / "report.html")
    monkeypatch.chdir(dataset.parent)
    with pytest.raises(ConfigError, match="the current folder"):
        write_site(Path("."), given(entry("aa/b-v3")), "Mine")


def test_one_dataset_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    def broken() -> Entry:
        raise KeyError("sha256")

    entries = [("aa/a-v0", broken), *given(entry("aa/b-v3"), entry("\ud800"))]
    with pytest.warns(UserWarning, match="is left out") as caught:
        assert write_site(tmp_path / "site", entries, "Mine") == 1
    assert "aa/a-v0 is left out: KeyError: 'sha256'" in str(caught[0].message)


@pytest.mark.parametrize(
    "returns",
    [[0.6, 0.6000000000000001], [-1.7e308, 1.7e308], [0.0, 5e-324], [3.0, 3.0], [np.inf, np.nan]],
)
@pytest.mark.filterwarnings("error")
def test_returns_of_any_size_are_drawn(returns: list[float], tmp_path: Path) -> None:
    outcomes = Outcomes([0, 1], [1, 2], np.array([1, 1]), np.array(returns))
    metadata = {"ref_min_score": -1.7e308, "ref_max_score": 1.7e308, "minari_pipe": {"parents": 5}}
    facts = Facts("aa/b-v0", metadata, outcomes, [], {}, {})
    write_site(tmp_path / "site", given(Entry(facts, {}, None)), "Mine")
    for text in (page(facts, ""), comparison((facts, None), (facts, None))):
        assert not re.search(r'="[^"]*\bnan', text)  # as a coordinate
        Page(text)
