"""Write ``episodes.csv`` and ``stats.json``: the numbers of a card, for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from minari_pipe.datasets.cards.facts import Facts

#: columns of ``episodes.csv``: type in schema.org, and what it holds
COLUMNS = {
    "id": ("sc:Integer", "Number of the episode."),
    "seed": ("sc:Integer", "Seed of the reset."),
    "steps": ("sc:Integer", "Number of steps."),
    "return": ("sc:Float", "Undiscounted sum of the rewards."),
    "normalized_score": ("sc:Float", "0 is the random policy, 1 the expert."),
    "terminated": ("sc:Boolean", "Whether the last step terminated."),
    "truncated": ("sc:Boolean", "Whether the last step was truncated."),
    "success": ("sc:Boolean", "Whether a success was reached at some step."),
}


def episodes_csv(facts: Facts) -> str:
    """Return a table with a row for each episode; a value that is unknown is empty.

    Returns are rounded to 10 digits and normalized scores to 6; flags are 0 and 1.
    """
    outcomes, scores = facts.outcomes, facts.normalized
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for place, number in enumerate(outcomes.ids):
        seed = outcomes.seeds[place]
        writer.writerow(
            (
                number,
                seed if isinstance(seed, int) else "",
                int(outcomes.lengths[place]),
                f"{outcomes.returns[place]:.10g}",
                "" if scores is None else f"{scores[place]:.6g}",
                *(
                    "" if flags is None else int(flags[place])
                    for flags in (outcomes.terminated, outcomes.truncated, outcomes.succeeded)
                ),
            )
        )
    return text.getvalue()


def stats_json(facts: Facts) -> str:
    """Return the statistics of each column, with null for what no value has."""
    found = {
        name: {key: _plain(values.tolist()) for key, values in statistics.items()}
        for name, statistics in facts.statistics.items()
    }
    lines = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value if math.isfinite(value) else None
