"""Write ``card.md``: a dataset on one screen, for pages that render Markdown."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minari_pipe.datasets.cards.facts import AUTHORS_TEXTS, Facts
from minari_pipe.datasets.cards.page import FILM, loading, origin, spread_of
from minari_pipe.datasets.cards.words import file_size, markdown, number, percent

#: a card has at most this many bytes
LONGEST = 8000


@np.errstate(all="ignore")
def card_md(facts: Facts) -> str:
    """Return the card; what does not fit is left out, from the end on."""
    text = ""
    for part in _parts(facts):
        if len((text + part).encode()) > LONGEST:
            break
        text += part
    return text


def _parts(facts: Facts) -> Iterator[str]:
    outcomes = facts.outcomes
    yield f"# {facts.dataset_id}\n\n"
    if text := markdown(facts.metadata.get("description")):
        yield f"{text}\n\n"
    yield f"![Episode of median return]({FILM})\n\n![Returns](returns.svg)\n\n| | |\n|:--|:--|\n"
    yield _row("Environment", markdown(facts.environment) or "none")
    yield _row("Episodes, steps", f"{facts.total_episodes:,}, {facts.total_steps:,}")
    if len(outcomes.returns):
        yield _row("Return", spread_of(outcomes.returns))
        if (scores := facts.normalized) is not None:
            yield _row("Normalized score", f"{float(scores.mean()):.3f} on average")
    if outcomes.succeeded is not None and len(outcomes.succeeded):
        yield _row("Success", percent(float(outcomes.succeeded.mean())))
    for name, value in (("random", facts.random), ("expert", facts.expert)):
        if value is not None:
            yield _row(f"Mean return of the {name} policy", number(value))
    yield _row("Size", file_size(facts.size))
    for name, text in origin(facts):
        yield _row(markdown(name), markdown(text))
    for key, name in AUTHORS_TEXTS.items():
        yield _row(name, markdown(facts.texts.get(key)) or "not stated")
    yield "\n## How to load it\n\n"
    for name, code in loading(facts.dataset_id).items():
        yield f"{name}:\n\n```python\n{code}\n```\n\n"
    yield "More: [report](report.html), [episodes](episodes.csv), [statistics](stats.json).\n"


def _row(name: str, value: str) -> str:
    return f"| {name} | {value} |\n"
