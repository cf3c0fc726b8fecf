"""The card of a repository on the Hub: what it lists, and what of the user's stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from minari_pipe.remotes.hub.card import BEGIN, END, described, listed, new_card, with_datasets

METADATA = {
    "total_episodes": 25,
    "total_steps": 6729,
    "env_spec": json.dumps({"id": "AdroitHandDoor-v1"}),
    "ref_min_score": -45.73,
    "ref_max_score": 3016.551,
    "description": "25 human demonstrations,\nreplayed.",
    "algorithm_name": "human",
    "author": ["Ada Lovelace", "Charles Babbage"],
}


def described_as(dataset_id: str = "door/human-v0", size: int = 7_123_456, **changes: Any) -> Any:
    return described(dataset_id, METADATA | changes, size, "https://huggingface.co/x")


def card_of(*datasets: Any, card: str | None = None, description: object = None) -> str:
    together = {key: lines for dataset in datasets for key, lines in dataset.items()}
    return with_datasets(card or new_card("door"), "hf://org", together, description)


def rows(card: str) -> list[str]:
    return [line for line in card.splitlines() if line.startswith("| [")]


def test_a_new_card_lists_a_dataset_with_its_facts() -> None:
    card = card_of(described_as(), description="Opening a door.")
    assert rows(card) == [
        "| [`door/human-v0`](https://huggingface.co/x) | AdroitHandDoor-v1 | 25 | 6,729 | 7.1 MB "
        "| \N{MINUS SIGN}45.73 to 3,016.55 |"
    ]
    assert (
        "- **`door/human-v0`**: 25 human demonstrations, replayed. "
        "*(algorithm: human, by Ada Lovelace, Charles Babbage)*"
    ) in card.splitlines()
    assert "\nOpening a door.\n" in card
    assert 'minari.load_dataset("door/human-v0", download=True)' in card
    assert 'os.environ["MINARI_REMOTE"] = "hf://org"' in card


def test_the_settings_of_a_new_card_are_those_that_the_hub_knows() -> None:
    card = new_card("door", [METADATA])
    _, settings, text = card_of(described_as(), card=card).split("---\n", 2)
    assert yaml.safe_load(settings) == {
        "pretty_name": "door",
        "task_categories": ["reinforcement-learning", "robotics"],
        "size_categories": ["n<1K"],
        "tags": ["minari", "gymnasium", "offline-reinforcement-learning"],
        "viewer": False,
    }
    assert text.startswith("\n# door\n")
    for name in ("yes", "123", "1e5"):
        settings = new_card(name).split("---\n")[1]
        assert yaml.safe_load(settings)["pretty_name"] == name


def test_the_card_renders_as_one_table_with_a_row_for_each_dataset() -> None:
    hostile = described_as(
        "door/odd-v1",
        description="a | b <!-- `c` </table> & more",
        env_spec=json.dumps({"id": "a|b-v0"}),
    )
    card = card_of(described_as(), hostile, described_as("door/none-v0", description=None))
    page = MarkdownIt("commonmark").enable("table").render(card.split("---\n", 2)[2])
    assert page.count("<table>") == page.count("</table>") == 1
    assert page.count("<tr>") == 4
    assert page.count("<td") + page.count("<th ") == 4 * 6
    assert "a | b &lt;!-- `c` &lt;/table&gt; &amp; more" in page
    assert "none-v0</code></strong>: no description." in page
    assert page.count("<pre>") == 2


HOSTILE = {
    "image": "![t](http://tracker.example/t.png)",
    "image with spaces": "![t] (x) ![t][r] ![r]",
    "image of two words": "![a b](http://tracker.example/t.png 'a title')",
    "split image": "![t]( http://tracker.example/t.png )",
    "link": "[click](http://evil.example) [a][b] <http://evil.example>",
    "reference": "[r]: http://evil.example",
    "bare links": "http://evil.example https://evil.example www.evil.example ada@evil.example",
    "html": "<img src=x onerror=y> <script>z</script> &#33;[t](x)",
    "emphasis": "*a* **b** _c_ __d__ ~~e~~ $x$ $$y$$",
    "code": "`a` ``b`` ```c``` ~~~d",
    "heading": "# Title",
    "list": "- a",
    "number": "1. a",
    "rule": "--- a",
    "escapes": "\\[t](http://evil.example) \\\\![t](http://evil.example) a\\",
    "pipes": "a | b || \\| c",
    "front matter": "---\nlicense: x\n---",
    "the end of the block": f"{END} {BEGIN}",
    "bidi": "a\u202eb\u2066c\x1b[31m",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_values_of_a_dataset_are_text_and_nothing_else(name: str) -> None:
    """Nothing is loaded or linked that a description, an author or an environment names."""
    text = HOSTILE[name]
    hostile = described_as(
        "door/odd-v1",
        description=text,
        author=text,
        algorithm_name=text,
        env_spec=json.dumps({"id": text}),
    )
    card = card_of(hostile, described_as(), description=text)
    plain = card_of(described_as("door/odd-v1"), described_as(), description="x")
    pages = []
    for source in (card, plain):
        markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
        tokens = markdown.parse(source.split("---\n", 2)[2])
        parts = [part for token in tokens for part in (token, *(token.children or ()))]
        pages.append([p.type for p in parts if p.type not in ("text", "code_inline", "softbreak")])
        # the Hub makes links of these by itself, but in code
        words = " ".join(part.content for part in parts if part.type == "text")
        assert not any(sign in words for sign in ("://", "www.", "@"))
    assert pages[0] == pages[1]
    assert list(listed(card)) == ["door/human-v0", "door/odd-v1"]
    assert card.count(END) == card.count(BEGIN) == 1
    assert not any(letter in card for letter in "\u202e\u2066\x1b")


def test_ordinary_text_of_a_dataset_stays_as_it_is() -> None:
    text = "Rollouts of door_expert (PPO, 3-layer net); 50% success: see v1.2! a-b + c = d, λ 手"
    assert f": {text} *(algorithm" in card_of(described_as(description=text))


def test_versions_are_in_the_order_of_their_numbers_and_the_example_is_the_latest() -> None:
    ids = ["door/human-v10", "door/human-v9", "other/x-v0", "door/human-v2"]
    card = card_of(*map(described_as, ids))
    assert [line.split("`")[1] for line in rows(card)] == [
        "door/human-v2",
        "door/human-v9",
        "door/human-v10",
        "other/x-v0",
    ]
    assert 'minari.load_dataset("door/human-v10", download=True)' in card


def test_what_is_listed_is_taken_over_as_it_is() -> None:
    first = card_of(described_as("door/human-v0"))
    mended = first.replace("7.1 MB", "**7.1 MB**")
    second = card_of(listed(mended), described_as("door/human-v1"), card=mended)
    assert "**7.1 MB**" in second
    assert list(listed(second)) == ["door/human-v0", "door/human-v1"]
    assert card_of(listed(second), card=second) == second


@pytest.mark.parametrize(
    "own",
    [
        "# My door\n\nWritten by hand.\n",
        "---\nlicense: mit   # checked\ntags: [a]\n---\nText without a line end",
        "",
        "Text with a rule\n\n---\n\nand more\n\n",
        f"Text with an end {END} without a beginning\n",
        f"{BEGIN}\nText with a beginning without an end\n",
    ],
    ids=["text", "settings", "empty", "rule", "end", "beginning"],
)
def test_a_card_of_the_user_keeps_all_it_has(own: str) -> None:
    card = with_datasets(own, "hf://org", described_as())
    assert card.startswith(own)
    assert card.count(BEGIN) == own.count(BEGIN) + 1
    assert card.endswith(f"{END}\n")
    longer = f"{card}\nAnd what comes after.\n"
    again = with_datasets(longer, "hf://org", listed(longer) | described_as("door/human-v1"))
    assert again.startswith(own) and again.endswith(f"{END}\n\nAnd what comes after.\n")
    assert list(listed(again)) == ["door/human-v0", "door/human-v1"]


def test_line_ends_stay_as_they_are() -> None:
    card = card_of(described_as()).replace("\n", "\r\n")
    again = card_of(listed(card), described_as("door/human-v1"), card=card)
    assert again.count("\n") == again.count("\r\n")
    assert len(rows(again)) == 2


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"total_steps": "many", "total_episodes": True, "env_spec": "[", "author": 3},
        {"env_spec": '"text"', "ref_min_score": 1.0, "ref_max_score": None},
        {"env_spec": "[" * 100_000, "description": ["a", "b"], "ref_min_score": "x"},
        {"env_spec": '{"id": 1}', "ref_min_score": float("nan"), "ref_max_score": 1},
        {"total_steps": 10**400, "ref_min_score": 0, "ref_max_score": float("inf")},
    ],
    ids=["nothing", "types", "no object", "nested", "no id", "too great"],
)
def test_metadata_that_are_not_what_they_should_be_say_nothing(metadata: dict[str, Any]) -> None:
    card = card_of(described("door/human-v0", metadata, 999, "https://huggingface.co/x"))
    assert rows(card) == ["| [`door/human-v0`](https://huggingface.co/x) |  |  |  | 999 B |  |"]


def test_a_long_description_is_cut_between_words() -> None:
    card = card_of(described_as(description="word " * 1000))
    (line,) = [line for line in card.splitlines() if line.startswith("- **`door/human-v0`**")]
    assert len(line) < 1200 and "word word … *(algorithm" in line


@pytest.mark.parametrize(
    ("size", "text"), [(0.1, "100 kB"), (float("nan"), ""), (10**400, ""), ("1", ""), (12, "12 MB")]
)
def test_where_the_files_were_not_counted_the_size_is_what_metadata_say(
    size: object, text: str
) -> None:
    card = card_of(described("door/human-v0", {"dataset_size": size}, None, "https://x"))
    assert rows(card) == [f"| [`door/human-v0`](https://x) |  |  |  | {text} |  |"]


FILES = ("card/card.md", "card/episodes.csv", "card/episode.webp", "card/report.html")


def with_card(dataset_id: str, *files: str) -> Any:
    return described(dataset_id, METADATA, 5, "https://huggingface.co/x", files or FILES)


def test_the_card_shows_the_film_of_each_dataset_and_links_its_card() -> None:
    card = card_of(
        with_card("door/hard/human-v0"),
        with_card("door/silent-v0", "card/card.md", "card/episodes.csv"),
        described_as("door/plain-v0"),
    )
    lines = card.splitlines()
    film = lines.index("![Film of door/hard/human-v0](hard/human-v0/card/episode.webp)")
    assert film > max(lines.index(row) for row in rows(card))
    assert lines[film + 1] == (
        "[Card of `door/hard/human-v0`](hard/human-v0/card/card.md), "
        "[report](hard/human-v0/card/report.html), "
        "[episodes](hard/human-v0/card/episodes.csv)"
    )
    assert card.count("![Film of") == 1
    assert "[Card of `door/silent-v0`](silent-v0/card/card.md), [episodes](" in card
    assert "plain-v0/card" not in card
    alone = card_of(with_card("human-v0"))
    assert "![Film of human-v0](card/episode.webp)" in alone.splitlines()
    again = card_of(listed(card), card=card)
    assert again == card


def test_the_viewer_of_the_hub_shows_the_table_of_each_dataset_with_a_card() -> None:
    card = card_of(with_card("door/hard/human-v0"), described_as("door/plain-v0"))
    card = card_of(listed(card), with_card("door/human-v1"), card=card)
    settings = yaml.safe_load(card.split("---\n")[1])
    assert settings["configs"] == [
        {
            "config_name": "hard-human-v0",
            "data_files": [{"split": "train", "path": "hard/human-v0/card/episodes.csv"}],
        },
        {
            "config_name": "human-v1",
            "data_files": [{"split": "train", "path": "human-v1/card/episodes.csv"}],
        },
    ]
    assert "viewer" not in settings
    assert {*listed(card)} == {"door/hard/human-v0", "door/human-v1", "door/plain-v0"}
    settings = yaml.safe_load(card_of(with_card("human-v0")).split("---\n")[1])
    assert settings["configs"][0]["config_name"] == "human-v0"
    assert settings["configs"][0]["data_files"][0]["path"] == "card/episodes.csv"


def test_a_card_without_a_table_changes_no_settings() -> None:
    card = card_of(with_card("door/human-v0", "card/card.md", "card/episode.webp"))
    settings = yaml.safe_load(card.split("---\n")[1])
    assert settings["viewer"] is False and "configs" not in settings


def settings_of(*metadata: dict[str, Any], card: str | None = None) -> dict[str, Any]:
    """The front matter after uploads of datasets with this metadata, one after the other."""
    for number, each in enumerate(metadata):
        dataset_id = f"door/human-v{number}"
        before = new_card("door", [each]) if card is None else card
        datasets = listed(before) | described(dataset_id, each, 5, "u")
        card = with_datasets(before, "hf://org", datasets, None, {dataset_id: each})
        assert with_datasets(card, "hf://org", datasets, None, {dataset_id: each}) == card
    return yaml.safe_load((card or "").split("---\n")[1])


def test_the_card_states_a_license_as_long_as_all_datasets_have_it() -> None:
    mit, other, none = {"license": "MIT"}, {"license": 'My "own": #1'}, {"license": None}
    assert settings_of(mit)["license"] == "mit"
    assert settings_of(mit, mit)["license"] == "mit"
    assert (
        settings_of(other, other).items()
        >= {
            "license": "other",
            "license_name": "my-own-1",
        }.items()
    )
    for differing in ((mit, other), (other, mit), (mit, none), (none, mit), (none,), ({},)):
        assert not settings_of(*differing).keys() & {"license", "license_name"}, differing
    own = "---\nlicense: bsd\ntags: [a]\n---\n"
    assert settings_of(mit, other, card=own)["license"] == "bsd"


def test_the_license_is_that_of_the_first_dataset_if_the_card_is_older() -> None:
    """The metadata of a namespace may be uploaded before any dataset."""
    empty = with_datasets(new_card("door"), "hf://org", {})
    assert settings_of({"license": "mit"}, card=empty)["license"] == "mit"


def test_the_card_states_the_number_of_episodes_of_all_datasets() -> None:
    sizes = [{"total_episodes": n} for n in (999, 1, 10_000)]
    found = [settings_of(*sizes[:n])["size_categories"] for n in (1, 2, 3)]
    assert found == [["n<1K"], ["1K<n<10K"], ["10K<n<100K"]]
    own = "---\nsize_categories: [n<1K]\n---\n"
    assert settings_of({"total_episodes": 5000}, card=own)["size_categories"] == ["n<1K"]
