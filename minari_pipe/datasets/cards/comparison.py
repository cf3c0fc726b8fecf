"""Render a page that shows two datasets side by side, such as two versions of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from minari_pipe.datasets.cards import charts
from minari_pipe.datasets.cards.facts import ElementFacts, Facts
from minari_pipe.datasets.cards.page import inlined, marks_of, origin, template, tiles_of
from minari_pipe.datasets.cards.words import line_of, number

_BINS = 40
#: most elements of columns that are compared
_LISTED = 500


@np.errstate(all="ignore")
def comparison(first: tuple[Facts, bytes | None], second: tuple[Facts, bytes | None]) -> str:
    """Return the page.

    Args:
        first: what is known of a dataset, and its film.
        second: the same of another.
    """
    both = (first[0], second[0])
    return template("comparison.html.j2").render(
        ids=[facts.dataset_id for facts in both],
        descriptions=[line_of(facts.metadata.get("description")) for facts in both],
        films=[None if film is None else inlined(film) for _, film in (first, second)],
        facts=list(_paired(*({tile["name"]: _said(tile) for tile in tiles_of(f)} for f in both))),
        returns=_charts("Returns", [facts.outcomes.returns for facts in both], both),
        lengths=_charts("Steps", [facts.outcomes.lengths for facts in both]),
        columns=list(_columns(*both)),
        origin=[row for row in _paired(*(dict(origin(facts)) for facts in both)) if row["differs"]],
    )


def _said(tile: Mapping[str, str]) -> str:
    return f"{tile['value']}, {tile['more']}" if tile["more"] else tile["value"]


def _paired(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys([*first, *second]):
        texts = [first.get(name, "—"), second.get(name, "—")]
        yield {"name": name, "texts": texts, "differs": texts[0] != texts[1]}


def _charts(title: str, values: list[Any], scores: tuple[Facts, ...] = ()) -> list[Markup] | None:
    """Return a histogram of each dataset, on one axis; None if there is nothing to compare."""
    finite = [one[np.isfinite(one)] for one in values]
    if not all(map(len, finite)):
        return None
    low = min(float(one.min()) for one in finite)
    high = max(float(one.max()) for one in finite)
    found = []
    for place, one in enumerate(finite):
        bins = charts.counts_of(one, _BINS, low, high)
        marks = marks_of(scores[place]) if scores else []
        marks = [mark for mark in marks if low <= mark.value <= high]
        label = f"{title}, from {number(low)} to {number(high)}"
        found.append(Markup(charts.histogram(bins, low, high, label, marks=marks)))
    return found


def _columns(first: Facts, second: Facts) -> Iterator[dict[str, Any]]:
    """Yield the columns of both, with the elements that both have."""
    listed = 0
    for column in first.columns:
        name = column.name
        pairs = list(zip(first.elements.get(name, ()), second.elements.get(name, ()), strict=False))
        rows = [_row(*pair) for pair in pairs[: max(_LISTED - listed, 0)]]
        listed += len(rows)
        if rows:
            yield {"name": line_of(name, 200), "rows": rows}


def _row(first: ElementFacts, second: ElementFacts) -> dict[str, Any]:
    before, after = first.statistics, second.statistics
    moved, scale = after["mean"] - before["mean"], before["std"]
    return {
        "cells": [f"{number(one['mean'])} ± {number(one['std'])}" for one in (before, after)],
        "moved": number(moved / scale if scale > 0 else moved),
    }
