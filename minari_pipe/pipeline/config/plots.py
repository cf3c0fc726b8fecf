"""Defines how ``dvc plots`` draws returns: one histogram per policy, each over its own range.

DVC's own templates draw lines through episodes, or bars that do not begin at zero. This template
is the workspace file ``.dvc/plots/minari_pipe_returns.json``, which should be committed to git.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minari_pipe.pipeline.workspace import dump_json, write_if_changed
from minari_pipe.pipeline.workspace_links import inside

#: Name of the template, for a CSV file with one row per episode.
RETURNS = "minari_pipe_returns"

_N_BINS = 20

_SPEC: dict[str, Any] = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "data": {"values": "<DVC_METRIC_DATA>"},
    "title": {"text": "<DVC_METRIC_TITLE>", "anchor": "middle"},
    "transform": [
        {"calculate": "toNumber(datum['return'])", "as": "number"},
        # A file without this column holds one policy.
        {"calculate": "isValid(datum.policy) ? datum.policy : ''", "as": "policy"},
        # Vega would use the same bins for all policies, whose returns may be far apart.
        {
            "joinaggregate": [
                {"op": "min", "field": "number", "as": "least"},
                {"op": "max", "field": "number", "as": "most"},
            ],
            "groupby": ["policy"],
        },
        {"calculate": f"(datum.most - datum.least) / {_N_BINS} || 1", "as": "width"},
        {
            "calculate": "datum.least + datum.width * "
            f"min({_N_BINS - 1}, floor((datum.number - datum.least) / datum.width))",
            "as": "from",
        },
        {"calculate": "datum.from + datum.width", "as": "to"},
        {
            "aggregate": [{"op": "count", "as": "episodes"}],
            "groupby": ["policy", "rev", "from", "to"],
        },
    ],
    "facet": {"row": {"field": "policy", "type": "nominal", "title": None, "sort": "descending"}},
    "spec": {
        "width": "<DVC_METRIC_PLOT_WIDTH>",
        "height": 160,
        "mark": {"type": "bar", "tooltip": True, "opacity": 0.7},
        "encoding": {
            "x": {
                "field": "from",
                "type": "quantitative",
                "bin": "binned",
                "title": "return",
                "scale": {"zero": False},
            },
            "x2": {"field": "to"},
            "y": {"field": "episodes", "type": "quantitative", "stack": None},
            "color": "<DVC_METRIC_COLOR>",
        },
    },
    "resolve": {"scale": {"x": "independent", "y": "independent"}},
}


def write_template(root: Path) -> None:
    """Write the template into a workspace, unless it is already there."""
    path = inside(root, root / ".dvc" / "plots" / f"{RETURNS}.json")
    write_if_changed(path, dump_json(_SPEC))
