"""Show a dataset in a notebook: a table of facts, and the histogram of the returns beside it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from minari_pipe.core.metadata import is_finite_number, metadata_faults
from minari_pipe.datasets.cards.charts import embedded
from minari_pipe.datasets.cards.facts import Facts, Ints
from minari_pipe.datasets.cards.page import returns_chart
from minari_pipe.datasets.cards.summary import outcomes_of
from minari_pipe.datasets.cards.words import file_size, line_of, number
from minari_pipe.storage.base import MinariStorage

_BESIDE = "display:flex;flex-wrap:wrap;gap:8px 32px;align-items:center"
#: notebooks align cells to the right and shade every other row
_CELL = "text-align:left;vertical-align:top;padding:2px 16px 2px 0"


def notebook_html(storage: MinariStorage, indices: Ints, dataset_id: str, plain: str) -> str:
    """Return the HTML of a dataset or view, without scripts or outside addresses.

    It reads the metadata of the dataset and of its episodes, and rewards where no return is stored.

    Args:
        storage: holds the episodes.
        indices: the episodes, shape ``(N,)``.
        dataset_id: id of the dataset.
        plain: what to show of a dataset that cannot be read.
    """
    try:
        facts = _facts(storage, indices, dataset_id)
        rows = "".join(
            f'<tr><th style="{_CELL}">{name}</th><td style="{_CELL}">{escape(text)}</td></tr>'
            for name, text in _rows(facts)
        )
        chart = embedded(returns_chart(facts)) if len(indices) else ""
    except Exception:  # whatever a damaged file raises, the notebook goes on
        return f"<pre>{escape(plain)}</pre>"
    return (
        f"<div><strong>{escape(line_of(dataset_id))}</strong>"
        f'<div style="{_BESIDE}"><table>{rows}</table>{chart}</div></div>'
    )


def _facts(storage: MinariStorage, indices: Ints, dataset_id: str) -> Facts:
    metadata = storage.read_raw_metadata(storage.data_path)
    faults = dict(metadata_faults(metadata))
    total = metadata["total_episodes"]
    return Facts(
        dataset_id,
        {key: value for key, value in metadata.items() if key not in faults},
        outcomes_of(storage, indices),
        columns=[],
        elements={},
        files={},
        view_of=None if np.array_equal(indices, np.arange(total)) else total,
    )


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    metadata = facts.metadata
    returns = facts.outcomes.returns
    whole = "" if facts.view_of is None else f" of {facts.view_of:,}"
    yield "Environment", line_of(facts.environment) or "none"
    yield "Episodes", f"{len(returns):,}{whole}"
    yield "Steps", f"{int(facts.outcomes.lengths.sum()):,}"
    if len(returns):
        yield "Mean return", number(float(returns.mean()))
        if (scores := facts.normalized) is not None:
            yield "Normalized score", f"{float(scores.mean()):.3f}"
    yield "License", line_of(metadata.get("license"), 60) or "not stated"
    megabytes: Any = metadata.get("dataset_size")
    if is_finite_number(megabytes):
        of_all = "" if facts.view_of is None else ", the whole dataset"
        yield "Size", file_size(megabytes * 1e6) + of_all
