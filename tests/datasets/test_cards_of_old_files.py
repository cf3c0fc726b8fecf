"""Files of all releases and of D4RL have cards, and so have datasets that were released before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.files.manifest import identity_of, read_manifest, verify
from minari_pipe.core.files.manifest_update import upgrade
from minari_pipe.datasets.cards.facts import Facts
from minari_pipe.datasets.cards.folder import card_files, facts_at, write_card
from minari_pipe.datasets.identity import checked_content_sha256
from minari_pipe.datasets.migrate import migrate_dataset
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage import MinariStorage
from tests.datasets.test_cards import Page, episode, stored
from tests.support.legacy_files import DATASETS, GOLDEN, IDS, d4rl_columns, truth, write_d4rl

LIMITS = {"card.md": 8_000, "croissant.json": 16_000, "report.html": 500_000, "returns.svg": 10_000}


def check(facts: Facts) -> dict[str, bytes]:
    """Return the files of a card, which are as small as promised, and can be read."""
    files = card_files(facts)
    assert {name: len(files[name]) for name in LIMITS if len(files[name]) > LIMITS[name]} == {}
    elements = sum(map(len, facts.elements.values()))
    assert len(files["stats.json"]) <= 1_000 + 300 * elements
    assert len(files["episodes.csv"]) <= 64 * (len(facts.outcomes.ids) + 1) + 64
    json.loads(files["stats.json"])
    json.loads(files["croissant.json"])
    assert facts.dataset_id in Page(files["report.html"].decode()).words
    return files


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what such files do not hold
@pytest.mark.parametrize(("release", "dataset_id"), DATASETS, ids=IDS)
def test_a_file_of_a_release_has_a_card(release: str, dataset_id: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / release / dataset_id, tmp_path / dataset_id)
    facts = facts_at(tmp_path / dataset_id / "data")
    lengths = [len(one["rew"]) for one in truth(release, dataset_id)]
    assert facts.outcomes.lengths.tolist() == lengths
    check(facts)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_file_of_d4rl_has_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    path = write_d4rl(tmp_path / "maze.hdf5", d4rl_columns([2, 3]))
    migrate_dataset(path, "d4rl/maze-v0")
    files = check(facts_at(tmp_path / "root" / "d4rl" / "maze-v0" / "data"))
    assert files["episodes.csv"].count(b"\n") == 3


def test_a_dataset_that_was_released_before_gets_a_card_and_keeps_its_identity(
    tmp_path: Path,
) -> None:
    dataset = stored(tmp_path / "b-v3", [episode([1.0, 2.0])])
    content = read_manifest(dataset)
    assert content is not None
    metadata = MinariStorage.read_raw_metadata(dataset / "data")
    digest = checked_content_sha256(dataset, metadata, None)
    facts = facts_at(dataset / "data")
    old = {
        "content_sha256": digest,
        **{key: content[key] for key in ("total_episodes", "total_steps")},
        "files": {n: {k: e[k] for k in ("sha256", "size")} for n, e in facts.files.items()},
    }
    (dataset / MANIFEST).write_text(json.dumps(old))
    before = identity_of(old)
    with pytest.raises(CorruptDatasetError, match="minari-pipe validate ID --upgrade"):
        write_card(dataset, card_files(facts_at(dataset / "data")))
    upgrade(dataset, old, metadata)
    write_card(dataset, card_files(facts_at(dataset / "data")))
    verify(dataset)
    content = read_manifest(dataset)
    assert content is not None
    assert identity_of(content) == before


def test_a_card_does_not_depend_on_hash_seed_time_zone_or_pillow(tmp_path: Path) -> None:
    dataset = stored(tmp_path / "b-v3", [episode([1.0, 2.0]), episode([4.0])], author=["B", "A"])
    code = (
        "import sys, hashlib, pathlib\n"
        "if sys.argv[2]: sys.modules['PIL'] = None\n"
        "from minari_pipe.datasets.cards.folder import card_files, facts_at\n"
        "for name, text in card_files(facts_at(pathlib.Path(sys.argv[1]) / 'data')).items():\n"
        "    print(name, hashlib.sha256(text).hexdigest())\n"
    )
    found = set()
    for seed, zone, blocked in (("0", "UTC", ""), ("7", "Asia/Tokyo", "PIL")):
        variables = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        command = [sys.executable, "-c", code, str(dataset), blocked]
        found.add(subprocess.check_output(command, env=variables, text=True))
    assert len(found) == 1
