"""Every recipe gives the same bytes in two workspaces that have nothing in common."""

from __future__ import annotations

import pytest

from tests.recipe_runs import SMALL, is_possible, run_recipe
from tests.repositories import hashes

IDS = {
    "cartpole_expert": "cartpole/expert-v0",
    "door_expert": "door/expert-v0",
    "door_human": "door/human-v0",
    "pointmaze_umaze": "pointmaze/umaze-v0",
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_recipe_gives_the_same_bytes_anywhere(name, tmp_path_factory):
    if not is_possible(name):
        pytest.skip("the real demonstrations are not beside the checkout")
    runs = run_recipe(name, tmp_path_factory.getbasetemp())
    first, second = runs.checkout, runs.wheel
    published = hashes(first.root / "datasets" / IDS[name])
    assert {"data/main_data.hdf5", "data/metadata.json", "manifest.json"} == set(published)
    assert published == hashes(second.root / "datasets" / IDS[name])
    assert hashes(first.root / "catalog") == hashes(second.root / "catalog")
    for workspace in (first, second):
        installed = hashes(workspace.minari_root / IDS[name])
        assert installed.pop("draft.json")
        assert installed == published
    metadata = (first.root / "datasets" / IDS[name] / "data" / "metadata.json").read_text()
    assert str(first.root) not in metadata
