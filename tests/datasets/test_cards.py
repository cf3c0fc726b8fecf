"""A card says of a dataset what its data say, in files that are inert, small and always equal."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.files.manifest import card_faults, ensure_manifest, read_manifest, verify
from minari_pipe.datasets.cards import charts
from minari_pipe.datasets.cards.croissant import RAI_NAMES, croissant, croissant_json, missing
from minari_pipe.datasets.cards.facts import Facts, Outcomes, facts_of
from minari_pipe.datasets.cards.folder import (
    FILES,
    card_files,
    facts_at,
    file_of_card,
    report_of,
    write_card,
)
from minari_pipe.datasets.cards.page import FILM
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.errors import ConfigError, CorruptDatasetError, LinkError
from minari_pipe.storage import MinariStorage
from minari_pipe.storage.memory import MemoryStorage
from minari_pipe.testing.strategies import Dataset, datasets, examples

HOSTILE = (
    '<script>alert(1)</script> <img src=x onerror="a()"> ![t](http://tracker.example/x.png) '
    "[j](javascript:a()) \u202egnp.exe | `a` **b**"
)


def episode(rewards: list[float], *, success: bool = False, seed: int | None = 3) -> EpisodeBuffer:
    n = len(rewards)
    return EpisodeBuffer(
        seed=seed,
        observations=np.arange(2.0 * (n + 1)).reshape(-1, 2) % 5,
        actions=np.arange(n) % 2,
        rewards=np.array(rewards),
        terminations=np.arange(1, n + 1) == n,
        truncations=np.zeros(n, bool),
        infos={"success": np.arange(n + 1) == (n if success else n + 1)},
    )


def stored(path: Path, buffers: list[EpisodeBuffer], **metadata: Any) -> Path:
    """A dataset with these episodes; the folder that holds ``data/``."""
    storage = MinariStorage.new(
        path / "data", spaces.Box(0, 4, (2,), np.float64), spaces.Discrete(2)
    )
    storage.update_metadata({"dataset_id": "aa/b-v3", "minari_version": "0.5.4", **metadata})
    storage.update_episodes(buffers)
    ensure_manifest(path)
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    returns = [[1.0, 2.0], [5.0], [0.5, 0.5, 0.5], [1.0, 1.0]]
    buffers = [episode(rewards, success=number == 1) for number, rewards in enumerate(returns)]
    return stored(
        tmp_path / "b-v3",
        buffers,
        ref_min_score=1.0,
        ref_max_score=5.0,
        env_spec=gym.spec("CartPole-v1").to_json(),
        author=["A. Author"],
        license="MIT",
        description="A few episodes.",
    )


def files_of(dataset: Path) -> dict[str, str]:
    return {name: text.decode() for name, text in card_files(facts_at(dataset / "data")).items()}


class Page(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def split_page(text: str) -> tuple[str, Any]:
    """Return a page without its JSON-LD, which is data and no script, and the JSON-LD."""
    begin, end = '<script type="application/ld+json">', "</script>"
    before, _, rest = text.partition(begin)
    description, _, after = rest.partition(end)
    return before + after, json.loads(description)


def test_episodes_csv_has_a_row_for_each_episode(dataset: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(files_of(dataset)["episodes.csv"])))
    assert rows[1] == {
        "id": "1",
        "seed": "3",
        "steps": "1",
        "return": "5",
        "normalized_score": "1",
        "terminated": "1",
        "truncated": "0",
        "success": "1",
    }
    assert [row["return"] for row in rows] == ["3", "5", "1.5", "2"]
    assert [row["success"] for row in rows] == ["0", "1", "0", "0"]


def test_what_is_unknown_of_an_episode_is_empty(tmp_path: Path) -> None:
    buffer = dataclasses.replace(episode([1.0], seed=None), infos={})
    text = files_of(stored(tmp_path, [buffer]))["episodes.csv"]
    assert text.splitlines()[1] == "0,,1,1,,1,0,"


def test_stats_json_has_the_statistics_of_the_dataset(dataset: Path) -> None:
    found = json.loads(files_of(dataset)["stats.json"])
    stats = MinariDataset(MinariStorage.read(dataset / "data")).stats
    assert found == {
        name: {key: values.tolist() for key, values in one.items()} for name, one in stats.items()
    }


def test_nan_is_null_in_stats_json(tmp_path: Path) -> None:
    found = files_of(stored(tmp_path, [episode([float("nan"), float("inf")])]))["stats.json"]
    assert json.loads(found)["rewards"]["mean"] == [None]
    assert json.loads(found)["rewards"]["finite"] == [0]


def test_the_page_shows_the_best_the_median_the_worst_and_the_scores(dataset: Path) -> None:
    shown = " ".join(" ".join(Page(files_of(dataset)["report.html"]).words).split())
    for words in (
        "best : episode 1, seed 3, terminated after 1 step, return 5, success.",
        "median : episode 3, seed 3, terminated after 2 steps, return 2, no success.",
        "worst : episode 2, seed 3, terminated after 3 steps, return 1.5, no success.",
        "1 of 4 reached success at some step.",
        "normalized score 0.469",
        "random 1",
        "expert 5",
        'minari.load_dataset("aa/b-v3", download=True)',
    ):
        assert words in shown


def test_outliers_are_shown_too() -> None:
    facts = _facts([10.0] * 9 + [11.0] * 9 + [-500.0, 9000.0], [5] * 19 + [700])
    assert facts.outcomes.notable == {"best": 19, "median": 8, "worst": 18}
    facts = _facts([10.0, 11.0] * 9 + [-500.0, -501.0, 9000.0, 9001.0], [5, 6] * 11)
    named = facts.outcomes.notable
    assert named["outlying return, episode 20"] == 20


def _facts(returns: list[float], lengths: list[int]) -> Facts:
    n = len(returns)
    flags = np.zeros(n, bool)
    outcomes = Outcomes(
        list(range(n)), [None] * n, np.array(lengths), np.array(returns), flags, flags, None, None
    )
    return Facts("aa/b-v0", {}, outcomes, [], {}, {})


def test_equal_datasets_have_equal_cards_wherever_they_lie(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "elsewhere" / "b-v3"
    shutil.copytree(dataset, other)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert files_of(other) == files_of(dataset)


def test_a_page_asks_for_nothing_and_runs_nothing(dataset: Path) -> None:
    files = files_of(dataset)
    text, description = split_page(files["report.html"])
    assert description == json.loads(files["croissant.json"])
    found = Page(text)
    assert not [tag for tag, _ in found.tags if tag in ("script", "iframe", "object", "link", "a")]
    sources = [attrs["src"] for _, attrs in found.tags if "src" in attrs]
    assert sources == [FILM]
    assert not re.search(r"https?://|url\(|@import", text)
    (policy,) = (a["content"] for t, a in found.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")


def test_every_name_on_a_page_is_said_once_and_every_reference_is_there(dataset: Path) -> None:
    tags = Page(files_of(dataset)["report.html"]).tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {a["aria-labelledby"] for _, a in tags if "aria-labelledby" in a} <= set(ids)
    assert all(a.get("aria-label") for tag, a in tags if tag == "svg")
    assert all(a.get("alt") for tag, a in tags if tag == "img")


@pytest.mark.parametrize("key", ["description", "license", "algorithm_name", "citation", "author"])
def test_texts_of_strangers_stay_inert(tmp_path: Path, key: str) -> None:
    value: Any = [HOSTILE] if key == "author" else HOSTILE
    files = files_of(stored(tmp_path, [episode([1.0])], **{key: value}))
    text, description = split_page(files["report.html"])
    assert description == json.loads(files["croissant.json"])
    found = Page(text)
    assert not [tag for tag, _ in found.tags if tag in ("script", "a")]
    assert [attrs["src"] for _, attrs in found.tags if "src" in attrs] == [FILM]
    assert not [attrs for _, attrs in found.tags if "onerror" in attrs]
    card = files["card.md"]
    assert "<script>" not in card
    assert "<img" not in card
    assert "`![t](http://tracker.example/x.png)`" in card
    assert "](javascript:" not in card.replace("\\[", "[").replace("\\]", "") or "\\]" in card
    assert all("\u202e" not in text for text in files.values())


def test_a_long_description_is_cut(tmp_path: Path) -> None:
    files = files_of(stored(tmp_path, [episode([1.0])], description="word " * 200_000))
    assert len(files["card.md"].encode()) <= 8000
    assert len(files["report.html"]) < 60_000
    assert len(files["croissant.json"]) <= 16_000


@examples(5)
@given(datasets())
def test_any_dataset_has_a_card(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> None:
    path = tmp_path_factory.mktemp("card") / "data"
    storage = MinariStorage.new(path, dataset.observation_space, dataset.action_space)
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    storage.update_episodes(dataset.buffers)
    files = card_files(facts_at(path))
    assert set(files) | {FILM} == set(FILES)
    Page(files["report.html"].decode())
    json.loads(files["croissant.json"])
    json.loads(files["stats.json"])


def test_many_columns_are_listed_in_part(tmp_path: Path) -> None:
    storage = MinariStorage.new(
        tmp_path / "data", spaces.Box(0, 1, (3000,), np.float32), spaces.Discrete(2)
    )
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    flags = np.array([True])
    storage.update_episodes(
        [EpisodeBuffer(observations=np.zeros((2, 3000), np.float32), actions=np.zeros(1, np.int64),
                       rewards=np.ones(1), terminations=flags, truncations=~flags)]
    )  # fmt: skip
    text = files_of(tmp_path)["report.html"]
    assert len(text) < 500_000
    assert "more elements are in stats.json." in text


def test_the_croissant_names_the_files_and_what_is_missing(dataset: Path) -> None:
    facts = facts_at(dataset / "data")
    found = croissant(facts, "id\n")
    names = {entry["name"]: entry for entry in found["distribution"]}
    assert names.keys() == {"episodes.csv", "data/main_data.hdf5", "data/metadata.json"}
    assert all(re.fullmatch("[0-9a-f]{64}", entry["sha256"]) for entry in names.values())
    assert found["version"] == "3.0.0"
    assert found["creator"] == [{"@type": "Person", "name": "A. Author"}]
    assert missing(found) == ["url", "datePublished", *RAI_NAMES.values()]


def test_many_files_are_listed_in_part(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    storage = MinariStorage.new(
        tmp_path / "data",
        spaces.Box(0, 4, (2,), np.float64),
        spaces.Discrete(2),
        data_format="arrow",
    )
    storage.update_metadata({"dataset_id": "aa/b-v3", "minari_version": "0.5.4"})
    storage.update_episodes([episode([1.0]) for _ in range(60)])
    files = files_of(tmp_path)
    assert len(files["croissant.json"]) <= 16_000
    assert len(files["report.html"]) < 60_000
    assert "more" in " ".join(Page(files["report.html"]).words).partition("checksum")[2]


def test_real_minari_loads_a_dataset_with_a_card(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = dataset.parent / "root"
    (root / "aa").mkdir(parents=True)
    shutil.move(dataset, root / "aa" / "b-v3")
    write_card(root / "aa" / "b-v3", card_files(facts_at(root / "aa" / "b-v3" / "data")))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    assert list(minari.list_local_datasets()) == ["aa/b-v3"]
    assert [len(one) for one in minari.load_dataset("aa/b-v3")] == [2, 1, 3, 2]


def test_a_card_is_in_the_manifest_and_no_part_of_the_dataset(dataset: Path) -> None:
    before = read_manifest(dataset)
    write_card(dataset, {**card_files(facts_at(dataset / "data")), FILM: b"film"})
    after = read_manifest(dataset)
    assert before is not None
    assert after is not None
    assert set(after["card"]) == set(FILES)
    assert {**after, "card": {}} == before
    verify(dataset)
    assert not list(card_faults(dataset, after))
    assert file_of_card(dataset / "data", FILM) == b"film"
    (dataset / "card" / FILM).write_bytes(b"mlif")
    assert file_of_card(dataset / "data", FILM) is None
    assert sorted(os.listdir(dataset)) == ["card", "data", MANIFEST]


def test_a_card_is_written_again_in_place(dataset: Path) -> None:
    files = card_files(facts_at(dataset / "data"))
    write_card(dataset, {**files, FILM: b"film"})
    write_card(dataset, files)
    content = read_manifest(dataset)
    assert content is not None
    assert sorted(os.listdir(dataset / "card")) == sorted(content["card"]) == sorted(files)


@pytest.mark.parametrize("change", ["append", "metadata of an episode", "metadata"])
def test_a_change_removes_the_card(dataset: Path, change: str) -> None:
    write_card(dataset, card_files(facts_at(dataset / "data")))
    opened = MinariDataset(MinariStorage.read(dataset / "data"))
    if change == "append":
        opened.update_dataset_from_buffer([episode([1.0])])
    elif change == "metadata":
        opened.storage.update_metadata({"description": "another"})
    else:
        opened.storage.update_episode_metadata([{"weather": "rain"}], [0])
    content = read_manifest(dataset)
    assert content is not None
    assert content["card"] == {}
    assert not (dataset / "card").exists()


def test_a_change_removes_no_other_file(tmp_path: Path, dataset: Path) -> None:
    write_card(dataset, card_files(facts_at(dataset / "data")))
    (dataset / "card" / "notes.txt").write_text("mine")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("mine")
    (dataset / "card" / "link").symlink_to(outside)
    content = json.loads((dataset / MANIFEST).read_text())
    content["card"]["link/precious.txt"] = content["card"]["card.md"]
    (dataset / MANIFEST).write_text(json.dumps(content))
    MinariStorage.read(dataset / "data").update_episodes([episode([1.0])])
    assert sorted(os.listdir(dataset / "card")) == ["link", "notes.txt"]
    assert (outside / "precious.txt").read_text() == "mine"


def test_other_files_in_the_folder_are_neither_replaced_nor_removed(dataset: Path) -> None:
    (dataset / "card").mkdir()
    (dataset / "card" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds 'notes.txt', which is no file of a card"):
        write_card(dataset, {"card.md": b"x"})
    assert os.listdir(dataset / "card") == ["notes.txt"]


def test_a_link_in_place_of_the_card_is_refused(tmp_path: Path, dataset: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (dataset / "card").symlink_to(other)
    with pytest.raises(LinkError, match="card"):
        write_card(dataset, {"card.md": b"x"})
    assert not list(other.iterdir())


def test_a_dataset_without_a_manifest_gets_no_card(dataset: Path) -> None:
    files = card_files(facts_at(dataset / "data"))
    (dataset / MANIFEST).unlink()
    with pytest.raises(CorruptDatasetError, match="that describes its files"):
        write_card(dataset, files)
    assert not (dataset / "card").exists()


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.0), (-3.0, 7e5), (-1e300, 1e300), (1e-9, 2e-9), (-1.7e308, 1.7e308)]
)
def test_charts_of_any_range_are_drawn(low: float, high: float) -> None:
    chart = charts.alone(charts.histogram([1, 0, 5], low, high, "a <b>"))
    assert "nan" not in chart
    assert "inf" not in chart.replace("font", "")
    assert "&lt;b&gt;" in chart


def test_a_page_without_episodes_says_so(tmp_path: Path) -> None:
    path = stored(tmp_path, [])
    assert "The dataset has no episodes." in files_of(path)["report.html"]


def test_a_page_can_hold_the_film(dataset: Path) -> None:
    text = report_of(facts_at(dataset / "data"), b"film")
    assert 'src="data:image/webp;base64,ZmlsbQ=="' in text


def test_findings_and_origin_are_shown(dataset: Path) -> None:
    storage = MinariStorage.read(dataset / "data")
    metadata = storage.read_raw_metadata(dataset / "data")
    made = {"ref_scores": {"ref_max": {"policy": ["pkg.Expert"], "mean": 5.0, "n": 100, "seed": 7}}}
    finding = {"level": "warning", "path": "episode 3", "message": "is odd"}
    told = {"level": "info", "path": "episode 4", "message": "is even"}
    worse = {"level": "error", "path": "rewards", "message": "is NaN"}
    facts = facts_of(
        storage, "aa/b-v3", {**metadata, "minari_pipe": made}, {}, findings=[told, finding]
    )
    shown = " ".join(" ".join(Page(report_of(facts)).words).split())
    assert "1 finding of the checks : warning episode 3: is odd" in shown
    assert "info episode 4: is even warning episode 3: is odd" in shown
    facts = dataclasses.replace(facts, findings=[finding, worse])
    shown = " ".join(" ".join(Page(report_of(facts)).words).split())
    assert "2 findings of the checks , first: error rewards: is NaN" in shown
    assert "pkg.Expert, mean return 5, 100 episodes from seed 7" in shown


def opened(dataset: Path) -> MinariDataset:
    return MinariDataset(dataset / "data")


def test_a_dataset_writes_the_report_that_the_command_writes(dataset: Path, tmp_path: Path) -> None:
    assert opened(dataset).report() == report_of(facts_at(dataset / "data"))
    path = tmp_path / "door.html"
    assert opened(dataset).report(path) == path
    assert path.read_text() == opened(dataset).report()
    assert opened(dataset).report(str(path)) == path
    write_card(dataset, {**card_files(facts_at(dataset / "data")), FILM: b"film"})
    assert 'src="data:image/webp;base64,ZmlsbQ=="' in opened(dataset).report()


def test_a_report_without_a_film_has_no_picture(dataset: Path) -> None:
    assert not [tag for tag, _ in Page(opened(dataset).report()).tags if tag == "img"]


def test_a_dataset_replaces_no_file_but_a_report(dataset: Path, tmp_path: Path) -> None:
    letter = tmp_path / "letter.html"
    letter.write_text("Dear ...")
    for path in (letter, tmp_path):
        with pytest.raises(ConfigError, match="exists and is no report"):
            opened(dataset).report(path)
    assert letter.read_text() == "Dear ..."


def test_the_report_of_a_view_is_about_its_episodes(dataset: Path) -> None:
    write_card(dataset, {**card_files(facts_at(dataset / "data")), FILM: b"film"})
    text = opened(dataset)[[3, 1]].report()
    shown = " ".join(" ".join(Page(text).words).split())
    assert "A view: 2 of the 4 episodes." in shown
    assert "best : episode 1, seed 3, terminated after 1 step, return 5, success." in shown
    assert "worst : episode 3, seed 3, terminated after 2 steps, return 2, no success." in shown
    assert "1 of 2 reached success at some step." in shown
    assert "of the whole dataset" in shown
    # the film and the description for search engines are those of the whole dataset
    assert "image/webp" not in text
    assert "application/ld+json" not in text
    assert "A view" not in opened(dataset).report()
    assert "The view has no episodes." in opened(dataset)[:0].report()


def test_a_dataset_in_memory_has_a_report(dataset: Path) -> None:
    storage = MinariStorage.new(
        "card", spaces.Box(0, 4, (2,), np.float64), spaces.Discrete(2), data_format="memory"
    )
    try:
        storage.update_metadata({"dataset_id": "aa/m-v0", "minari_version": "0.5.4"})
        storage.update_episodes([episode([1.0, 2.0])])
        assert "aa/m-v0" in MinariDataset(storage).report()
    finally:
        MemoryStorage.forget("card")


def test_a_notebook_shows_facts_and_the_returns(dataset: Path) -> None:
    html = opened(dataset)._repr_html_()
    shown = " ".join(" ".join(Page(html).words).split())
    for words in (
        "aa/b-v3",
        "Environment CartPole-v1",
        "Episodes 4",
        "Steps 8",
        "Mean return 2.875",
        "Normalized score 0.469",
        "License MIT",
        "Size ",
        "expert 5",
    ):
        assert words in shown
    assert "Histogram of returns, from 1.5 to 5" in html
    view = " ".join(" ".join(Page(opened(dataset)[:2]._repr_html_()).words).split())
    assert "Episodes 2 of 4" in view
    assert "Steps 3" in view
    assert "the whole dataset" in view
    assert "<svg" not in opened(dataset)[:0]._repr_html_()


def test_a_notebook_runs_nothing_and_has_its_own_colours(dataset: Path) -> None:
    html = opened(dataset)._repr_html_()
    tags = {tag for tag, _ in Page(html).tags}
    assert tags <= {
        "div",
        "strong",
        "table",
        "tr",
        "th",
        "td",
        "svg",
        "g",
        "rect",
        "title",
        "line",
        "text",
    }
    assert not re.search(r"https?:|url\(|@import|var\(|background", html)
    assert 'fill="currentColor"' in html


@pytest.mark.parametrize("key", ["license", "dataset_id", "env_spec"])
def test_a_notebook_escapes_the_texts_of_strangers(dataset: Path, key: str) -> None:
    path = dataset / "data" / "metadata.json"
    value = json.dumps({"id": HOSTILE}) if key == "env_spec" else HOSTILE
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    html = opened(dataset)._repr_html_()
    assert not {"script", "img"} & {tag for tag, _ in Page(html).tags}
    assert "\u202e" not in html
    assert "&lt;script&gt;" in html


def test_a_notebook_reads_no_arrays(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(dataset)

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    for method in ("get_episodes", "get_buffers", "get_segments"):
        monkeypatch.setattr(type(found.storage), method, refused)
    assert "<svg" in found._repr_html_()


@pytest.mark.parametrize("damage", ["{", '{"total_episodes": "x"}', None])
def test_a_notebook_shows_a_damaged_dataset_by_its_name(dataset: Path, damage: str | None) -> None:
    found = opened(dataset)
    if damage is None:
        shutil.rmtree(dataset)
    else:
        (dataset / "data" / "metadata.json").write_text(damage)
    plain = "<pre>MinariDataset(&#x27;aa/b-v3&#x27;, 4 episodes)</pre>"
    assert found._repr_html_() == plain


def test_a_card_of_data_that_have_changed_is_not_written(dataset: Path) -> None:
    facts = facts_at(dataset / "data")
    opened(dataset).update_dataset_from_buffer([episode([7.0])])
    with pytest.raises(CorruptDatasetError, match="has changed while its card was made"):
        write_card(dataset, card_files(facts), facts)


def test_a_card_of_data_that_were_overwritten_in_place_is_not_written(dataset: Path) -> None:
    facts = facts_at(dataset / "data")
    opened(dataset).storage.update_episode_metadata([{"seed": 7}], [0])
    with pytest.raises(CorruptDatasetError, match="has changed while its card was made"):
        write_card(dataset, card_files(facts), facts)


def test_no_report_is_written_into_a_dataset_through_a_link(dataset: Path, tmp_path: Path) -> None:
    write_card(dataset, card_files(facts_at(dataset / "data")))
    (tmp_path / "link").symlink_to(dataset / "card")
    with pytest.raises(ConfigError, match="lies in the dataset"):
        opened(dataset).report(tmp_path / "link" / "report.html")


@pytest.mark.parametrize(
    ("rewards", "words", "best"),
    [
        ([1.0, np.nan, 3.0], "1 to 3, median 2, mean 2, standard deviation 1, and 1 is not", 2),
        ([1.0, np.inf, 3.0], "1 to 3, median 2, mean 2, standard deviation 1, and 1 is not", 1),
        ([np.nan, np.nan], "none is finite", 1),
        ([2.0, 2.0, np.nan, -np.inf], "all 2, and 2 are not finite", 1),
    ],
)
def test_returns_that_are_not_finite_do_not_hide_the_others(
    rewards: list[float], words: str, best: int, tmp_path: Path
) -> None:
    path = stored(tmp_path / "b-v3", [episode([reward]) for reward in rewards])
    facts = facts_at(path / "data")
    assert facts.outcomes.notable["best"] == best
    shown = " ".join(" ".join(Page(files_of(path)["report.html"]).words).split())
    assert f"return of each episode: {words}" in shown
    assert f"| Return | {words}" in files_of(path)["card.md"]


def test_a_description_has_at_most_16_kb(dataset: Path) -> None:
    facts = facts_at(dataset / "data")
    (column, *_) = facts.columns
    entry = {"size": 10**6, "sha256": "0" * 64}
    many = dataclasses.replace(
        facts,
        metadata={**facts.metadata, "author": [f"Author {n} " + "x" * 99 for n in range(999)]},
        columns=[dataclasses.replace(column, path=("infos", "x" * 150, n)) for n in range(999)],
        files={f"data/{n}/{'y' * 99}.arrow": entry for n in range(38)},
    )
    text = croissant_json(many, "")
    assert len(text.encode()) <= 16_000
    assert json.loads(text)["creator"]


def test_what_a_killed_command_left_is_removed(dataset: Path) -> None:
    (dataset / ".card-x").mkdir()
    write_card(dataset, card_files(facts_at(dataset / "data")))
    assert sorted(os.listdir(dataset)) == ["card", "data", MANIFEST]
