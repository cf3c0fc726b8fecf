"""Small datasets with a card, whose film is no picture."""

from __future__ import annotations

from typing import Any

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.datasets.cards.folder import card_files, facts_at, write_card
from minari_pipe.datasets.cards.page import FILM
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.examples import step_index_dataset


def dataset_with_card(dataset_id: str, **options: Any) -> MinariDataset:
    """Make a dataset in the local root, as :func:`step_index_dataset` does, and its card."""
    dataset = step_index_dataset(dataset_id, **options)
    place = get_dataset_path(dataset_id)
    write_card(place, {**card_files(facts_at(place / "data")), FILM: b"film"})
    return dataset
