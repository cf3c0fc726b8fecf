"""mlcroissant reads the description of a dataset without an error or a warning."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from minari_pipe.datasets.cards.croissant import missing
from minari_pipe.datasets.cards.folder import card_files, facts_at
from tests.datasets.test_cards import episode, stored

mlcroissant = pytest.importorskip("mlcroissant")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of rdflib in itself

TEXTS = ("limitations", "biases", "personal_information", "use_cases", "social_impact")


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """A card of which nothing is missing but the date, which an upload fills in."""
    dataset = stored(
        tmp_path / "b-v3", [episode([1.0, 2.0]), episode([3.0])], license="MIT", citation="A, 2026",
        description="A few.", author=["Ada"], code_permalink="https://example.org/code",
    )  # fmt: skip
    facts = dataclasses.replace(facts_at(dataset / "data"), texts=dict.fromkeys(TEXTS, "none"))
    for name, content in card_files(facts).items():
        (dataset / "card").mkdir(exist_ok=True)
        (dataset / "card" / name).write_bytes(content)
    return dataset / "card" / "croissant.json"


def test_what_is_missing_is_all_that_it_warns_of(
    described: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert missing(json.loads(described.read_text())) == ["datePublished"]
    mlcroissant.Dataset(str(described))
    (warning,) = re.findall(r"-\s+.*recommended.*", caplog.text)
    assert "sc:datePublished" in warning or "datePublished" in warning


def test_a_published_description_has_no_fault_and_its_records_are_read(
    described: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = json.loads(described.read_text())
    content["datePublished"] = "2026-11-28"
    described.write_text(json.dumps(content))
    found = mlcroissant.Dataset(str(described))
    assert caplog.text == ""
    first = {
        records.uuid: next(iter(found.records(records.uuid)))
        for records in found.metadata.record_sets
    }
    assert set(first) == {"episodes", "columns"}
    assert first["episodes"]["episodes/steps"] == 2
    assert first["episodes"]["episodes/return"] == 3.0
