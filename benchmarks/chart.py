"""The chart that the README shows: how many times faster, on a logarithmic scale, and the goals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

_GROUPS = (
    ("write", "Writing", "#2a78b8"),
    ("read", "Reading", "#1f9080"),
    ("collect", "Collecting: what it adds to a step", "#8e5aa8"),
    ("act", "Collecting with a policy, in lockstep", "#b8742a"),
)
#: where names begin, in points from the axis
_LEFT = -237
INK, QUIET, GRID, GOAL = "#24292f", "#6e7781", "#e6e9ed", "#d1481f"


def draw(results: dict[str, Any], path: Path) -> str | None:
    """Draw the cases that have a goal to compare with Minari, or all if none has.

    Args:
        results: of a run.
        path: of the picture.

    Returns:
        Why there is none, if so.

    Raises:
        ImportError: matplotlib is not installed.
    """
    groups = [group for group, _, _ in _GROUPS]
    both = [r for r in results["cases"] if r["ratio"] and r["group"] in groups]
    # the table has the others
    records = [record for record in both if record["goal_ratio"]] or both
    if not records:
        return "no case has both sides"
    places, headings, bottom = _places(records)
    height = 1.1 + 0.235 * bottom
    figure = new_figure(height)
    axes = figure.add_axes((0.365, 0.4 / height, 0.575, 1 - 1.25 / height))
    ratios = [record["ratio"] for record in records]
    goals = [record["goal_ratio"] for record in records if record["goal_ratio"]]
    most = 10 ** math.ceil(math.log10(max(*ratios, *goals, 10.0) * 1.6))
    least = 10 ** math.floor(math.log10(min(*ratios, 1.0) * 1.001))
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    axes.set_ylim(bottom, -0.4)
    for group, title, color in _GROUPS:
        if group not in headings:
            continue
        axes.annotate(
            title,
            (0, headings[group]),
            xycoords=("axes fraction", "data"),
            xytext=(_LEFT, 0),
            textcoords="offset points",
            va="center",
            fontsize=10.5,
            fontweight="bold",
            color=color,
        )
        own = [(place, record) for place, record in places if record["group"] == group]
        for place, record in own:
            _draw_case(axes, place, record, color)
        names = {record["case"]: place for place, record in reversed(own)}
        for name, place in names.items():
            _label(axes, place, name, _LEFT, "left", INK)
    axes.axvline(1, color=QUIET, linewidth=1, zorder=1)
    _style(axes, least, most)
    _head(figure, height, results)
    figure.savefig(path, metadata={"Software": None})
    return None


def new_figure(height: float) -> Any:
    """Return an empty figure as wide as the README, so many inches high.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, height), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _places(
    records: list[dict[str, Any]],
) -> tuple[list[tuple[float, dict[str, Any]]], dict[str, float], float]:
    """Where cases and headings stand, in rows from the top, and how many rows there are."""
    places, headings, row = [], {}, 0.0
    for group, _, _ in _GROUPS:
        own = [record for record in records if record["group"] == group]
        if own:
            headings[group] = row
            row += 1.15
        name = None
        for record in own:
            row += 0.18 if name not in (None, record["case"]) else 0
            name = record["case"]
            places.append((row, record))
            row += 1
        row += 0.5 if own else 0
    return places, headings, row


def _draw_case(axes: Any, place: float, record: dict[str, Any], color: str) -> None:
    ratio, goal = record["ratio"], record["goal_ratio"]
    axes.barh(place, ratio - 1, left=1, height=0.62, color=color, alpha=0.88, zorder=2, linewidth=0)
    if goal:
        axes.plot(
            [goal, goal], [place - 0.4, place + 0.4], color=GOAL, linewidth=2.2, zorder=4,
            solid_capstyle="round",
        )  # fmt: skip
    beyond = max(ratio, 1.0, goal if goal and ratio < goal < ratio * 2.6 else 0.0)
    axes.annotate(
        _times(ratio),
        (beyond, place),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=INK,
        zorder=5,
    )
    _label(axes, place, record["size"], -8, "right", QUIET)


def _label(axes: Any, place: float, text: str, offset: float, side: str, ink: str) -> None:
    axes.annotate(
        text,
        (0, place),
        xycoords=("axes fraction", "data"),
        xytext=(offset, 0),
        textcoords="offset points",
        ha=side,
        va="center",
        fontsize=8,
        color=ink,
    )


def _times(ratio: float) -> str:
    if ratio < 10:
        return f"{ratio:.2g}×"
    return f"{float(f'{ratio:.3g}') if ratio < 1000 else float(f'{ratio:.2g}'):,.0f}×"


def _style(axes: Any, least: float, most: float) -> None:
    ticks = [10.0**power for power in range(round(math.log10(least)), round(math.log10(most)) + 1)]
    axes.set_xticks(ticks, [f"{tick:,.0f}×" if tick >= 1 else f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(axis="x", length=0, labelsize=8, labelcolor=QUIET, top=True, labeltop=True)
    axes.set_yticks([])
    axes.grid(axis="x", color=GRID, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _head(figure: Any, height: float, results: dict[str, Any]) -> None:
    found = results["machine"]
    minari = found["packages"].get("minari", "")
    figure.text(
        0.0225, 1 - 0.3 / height, f"Times faster than Minari {minari}", fontsize=14,
        fontweight="bold", color=INK, va="center",
    )  # fmt: skip
    figure.text(
        0.0225, 1 - 0.56 / height,
        f"CPU time, medians, one process · {found['processor']} · Python {found['python']}",
        fontsize=8.5, color=QUIET, va="center",
    )  # fmt: skip
    figure.text(0.885, 1 - 0.3 / height, "the goal", fontsize=8.5, color=INK, va="center")
    figure.add_artist(goal_mark(0.875, 1 - 0.3 / height, 0.085 / height))


def goal_mark(x: float, y: float, half: float) -> Any:
    """Return what marks a goal in the legend, in parts of the figure."""
    from matplotlib.lines import Line2D

    return Line2D([x, x], [y - half, y + half], color=GOAL, linewidth=2.2)
