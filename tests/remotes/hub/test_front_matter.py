"""The front matter of a card says what the Hub understands, and keeps what the user wrote."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from minari_pipe.remotes.hub.front_matter import (
    LICENSES,
    license_lines,
    new_front_matter,
    size_category,
    with_facts,
    with_tables,
)

#: the values of ``size_categories`` that the Hub documents
SIZES = {
    "unknown", "n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M",
    "100M<n<1B", "1B<n<10B", "10B<n<100B", "100B<n<1T", "n>1T",
}  # fmt: skip
#: the tasks of the Hub that are about reinforcement learning
TASKS = {"reinforcement-learning", "robotics"}
TABLES = {"human-v0": "human-v0/card/episodes.csv"}
CONFIG = {
    "config_name": "human-v0",
    "data_files": [{"split": "train", "path": "human-v0/card/episodes.csv"}],
}
OLD = """---
pretty_name: "door"
task_categories:
- reinforcement-learning
tags:
- minari
viewer: false
---

# door
"""
LINES = """configs:
- config_name: "human-v0"
  data_files:
  - split: train
    path: "human-v0/card/episodes.csv"
"""


def parsed(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---", 2)[1])


def test_sizes_are_those_that_the_hub_knows() -> None:
    found = [size_category(10**power) for power in range(14)]
    assert {*found} == SIZES - {"unknown"}
    assert [size_category(n) for n in (0, 999, 1000, 9999, 10_000)] == [
        "n<1K",
        "n<1K",
        "1K<n<10K",
        "1K<n<10K",
        "10K<n<100K",
    ]


@pytest.mark.parametrize(
    ("environment", "robotics"),
    [
        ("AdroitHandDoor-v1", True),
        ("FrankaKitchen-v1", True),
        ("mine/FetchReach-v3", True),
        ("HandReach-v2", True),
        ("CartPole-v1", False),
        ("HalfCheetah-v5", False),
        ("Handout-v0", False),
    ],
)
def test_tasks_are_those_that_the_hub_knows(environment: str, robotics: bool) -> None:
    card = new_front_matter("door", [{"env_spec": json.dumps({"id": environment})}, {}])
    tasks = parsed(card)["task_categories"]
    assert tasks == ["reinforcement-learning", *(["robotics"] if robotics else [])]
    assert TASKS.issuperset(tasks)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MIT", "mit"),
        ("Apache 2.0", "apache-2.0"),
        ("CC-BY-4.0", "cc-by-4.0"),
        ("openrail++", "openrail++"),
    ],
)
def test_a_known_license_is_stated_by_its_id(text: str, name: str) -> None:
    (line,) = license_lines({"license": text})
    assert yaml.safe_load(line) == {"license": name} and name in LICENSES


@given(st.one_of(st.text(), st.none(), st.integers(), st.lists(st.text())))
@example("x: [y] # z\n- a")
@example("1.0")
@example("null")
@example("---\nviewer: true")
def test_a_license_is_stated_in_any_case_as_a_text(text: object) -> None:
    lines = license_lines({"license": text})
    found = yaml.safe_load("\n".join(lines)) or {}
    assert len(found) == len(lines)
    if found.get("license") == "other":
        assert re.fullmatch(r"[a-z0-9.+-]+", found["license_name"])
    elif found:
        assert found["license"] in LICENSES


def test_of_an_earlier_card_only_the_viewer_changes() -> None:
    card = with_tables(OLD, TABLES)
    assert card == OLD.replace("viewer: false\n", LINES)
    assert with_facts(card, [{"license": "mit"}], 5000, first=False) == card
    assert with_tables(card, TABLES) == card


KEPT = {
    "comments": "# mine\nviewer: false\n# about tags\ntags: [a]  # checked\n# end\n",
    "a comment on the viewer": "viewer: false  # for now\nlicense: mit\n",
    "no viewer": "license: mit\ntags:\n- a\n\n",
    "viewer on": "viewer: true\nlicense: mit\n",
    "own configs": "configs:\n- config_name: mine\n  data_files: a.csv\n\n# x\nviewer: false\n",
    "own configs of all kinds": (
        "viewer: false\nconfigs:\n  # first\n  - config_name: a\n    data_files:\n"
        "    - split: b\n      path: |\n        c\n  - {config_name: 'd', data_files: e}  # f\n\n"
        "license: mit\n"
    ),
    "an empty value": "configs:\n- config_name: a\n  default:\ntags: [b]\n",
    "a text of several lines": "description: |\n  viewer: false\n  configs: []\n\nviewer: false\n",
    "a last text": "viewer: false\ndescription: >+\n  a\n\n  b\n\n",
    "quotes": "'viewer': false\n\"tags\": ['a: b', \"c # d\"]\n",
    "indented": "  license: mit\n  viewer: false\n",
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("name", KEPT)
def test_what_the_user_wrote_stays(name: str, newline: str) -> None:
    text = KEPT[name].replace("\n", newline)
    rest = f"---{newline}# Mine{newline}---{newline}viewer: false{newline}"
    before = f"---{newline}{text}{rest}"
    after = with_tables(before, TABLES)
    old, new = yaml.safe_load(text), parsed(after)
    was_off = old.get("viewer") is False
    assert new.pop("configs") == [*old.pop("configs", []), CONFIG]
    if was_off:
        del old["viewer"]
    assert new == old
    assert after.endswith(rest)
    assert after.count("\n") == after.count(newline)
    left = iter(after.split(newline))
    for line in text.split(newline):
        if was_off and re.match(r"\s*'?viewer", line):
            line = line.partition("false")[2].strip()
        assert not line or any(line.strip() == found.strip() for found in left), line
    assert with_tables(after, TABLES) == after


UNSAFE = {
    "no front matter": "# Mine\n",
    "empty": "---\n---\n",
    "no end": "---\nviewer: false\n",
    "no YAML": "---\nviewer: false\na: [\n---\n",
    "a key twice": "---\nviewer: false\nviewer: false\n---\n",
    "a key of a config twice": "---\nviewer: false\nconfigs:\n- a: 1\n  a: 2\n---\n",
    "an anchor": "---\nviewer: false\na: &x b\nc: *x\n---\n",
    "a tag": "---\nviewer: false\na: !!str b\n---\n",
    "braces": "---\n{viewer: false}\n---\n",
    "a list": "---\n- viewer: false\n---\n",
    "configs in a line": "---\nviewer: false\nconfigs: [{config_name: a}]\n---\n",
    "configs that are none": "---\nviewer: false\nconfigs: a\n---\n",
    "empty configs": "---\nviewer: false\nconfigs:\n---\n",
    "a key that is no text": "---\nviewer: false\n? [a]\n: b\n---\n",
    "other line ends": "---\nviewer: false\na: 'b\u2028c'\n---\n",
    "a lone CR": "---\nviewer: false\ra: b\n---\n",
    "an end of YAML": "---\na: b\n...\n---\n",
    "nested": f"---\nviewer: false\na: {'[' * 5000}{']' * 5000}\n---\n",
    "nested to the limit": f"---\nviewer: false\na: {'[' * 499}{']' * 499}\n---\n",
    "long": f"---\nviewer: false\na: {'b' * 200_000}\n---\n",
}


@pytest.mark.parametrize("name", UNSAFE)
def test_front_matter_that_cannot_be_changed_for_certain_stays(name: str) -> None:
    assert with_tables(UNSAFE[name], TABLES) == UNSAFE[name]


def test_a_viewer_that_the_user_turned_off_later_stays_off() -> None:
    card = with_tables(OLD, TABLES).replace("tags:", "viewer: false\ntags:")
    card = with_tables(card, {**TABLES, "human-v1": "human-v1/card/episodes.csv"})
    found = parsed(card)
    assert found["viewer"] is False
    assert [each["config_name"] for each in found["configs"]] == ["human-v0", "human-v1"]


def test_a_config_of_the_user_with_the_name_of_a_dataset_stays() -> None:
    own = "---\nconfigs:\n- config_name: human-v0\n  data_files: mine.csv\n---\n"
    assert with_tables(own, TABLES) == own


_words = st.text(alphabet="ab:-# '\"[]{}|>&*!\n\r\t0.", max_size=12)


@given(st.lists(st.tuples(st.sampled_from(["viewer", "configs", "tags", "x"]), _words), max_size=4))
def test_any_front_matter_keeps_its_values(items: list[tuple[str, str]]) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in items)
    card = f"---\n{text}viewer: false\n---\nText\n"
    changed = with_tables(card, TABLES)
    assert changed.endswith("---\nText\n")
    if changed != card:
        before, after = parsed_whole(card), parsed_whole(changed)
        assert CONFIG in after.pop("configs")
        for values in (before, after):
            values.pop("viewer", None), values.pop("configs", None)
        assert before == after


def parsed_whole(card: str) -> dict[str, Any]:
    return yaml.safe_load(card[4:].rpartition("---\nText")[0])
