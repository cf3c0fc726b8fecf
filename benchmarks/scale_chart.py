"""The chart of collecting at scale: steps per second, and growth with the number of workers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.chart import GOAL, GRID, INK, QUIET, goal_mark, new_figure

_POLICIES = {"PPO": "#1f9080", "SAC": "#8e5aa8"}
_ENGINES = {"processes": ("#2a78b8", "o"), "ray": ("#b8742a", "D")}

Bars = list[tuple[str, float, float, float | None]]
"""Name, steps per second, how opaque, and the steps per second that are the goal."""


def draw(results: dict[str, Any], path: Path) -> str | None:
    """Draw what there is of both.

    Args:
        results: of a run.
        path: of the picture.

    Returns:
        Why there is none, if so.

    Raises:
        ImportError: matplotlib is not installed.
    """
    by_policy = {policy: bars(results, policy) for policy in _POLICIES}
    by_engine = {name: found for name in _ENGINES if (found := growth(results, name))}
    if not (all(by_policy.values()) and by_engine):
        return "no case of it"
    height = 0.9 + 0.25 * sum(len(own) + 1.3 for own in by_policy.values())
    figure = new_figure(height)
    bottom, high = 0.42 / height, 1 - 1.02 / height
    _draw_bars(figure.add_axes((0.215, bottom, 0.345, high)), by_policy, results)
    _draw_growth(figure.add_axes((0.665, bottom, 0.315, high)), by_engine)
    for x, title, text in (
        (0.0225, "Steps per second", "HalfCheetah-v5: of CPU time, of wall time with 2 workers"),
        (0.627, "Growth with workers", "an environment of 20 ms a step, on 2 cores"),
    ):
        figure.text(
            x, 1 - 0.25 / height, title, fontsize=13, fontweight="bold", color=INK, va="center"
        )
        figure.text(x, 1 - 0.5 / height, text, fontsize=8.5, color=QUIET, va="center")
    figure.text(0.497, 1 - 0.25 / height, "the goal", fontsize=8.5, color=INK, va="center")
    figure.add_artist(goal_mark(0.487, 1 - 0.25 / height, 0.085 / height))
    figure.savefig(path, metadata={"Software": None})
    return None


def bars(results: dict[str, Any], policy: str) -> Bars:
    """Return the bars of a policy, from top to bottom."""
    found: Bars = []
    for record in results["cases"]:
        environment, _, name = record["case"].partition(", ")
        if environment != "HalfCheetah-v5" or record["here"] is None:
            continue
        size, here, goal = record["size"], record["here"], record["goal_beside"]
        if goal is not None and record["beside_value"] is not None:
            goal *= record["beside_value"]
        if record["group"] == "act" and name == policy:
            is_single = size == "model.predict"
            if is_single and record["minari"] is not None:
                found.append(("Minari, model.predict", record["minari"], 0.35, None))
            found.append((size, here, 0.55 if is_single else 1.0, goal))
        elif record["group"] == "scale" and name.startswith(f"{policy}, "):
            found.append((f"{size}, {name.rpartition(', ')[2]}", here, 1.0, goal))
    return found


def growth(results: dict[str, Any], engine: str) -> list[tuple[int, float]]:
    """Return numbers of workers, and how many times as fast as one they are."""
    return [
        (int(record["size"].split()[0]), record["of_beside"] or 1.0)
        for record in results["cases"]
        if record["case"].endswith(f" ms a step, {engine}") and record["here"] is not None
    ]


def _draw_bars(axes: Any, by_policy: dict[str, Bars], results: dict[str, Any]) -> None:
    most = max(value for own in by_policy.values() for _, value, _, _ in own)
    alone = [r["limit"] for r in results["cases"] if r["group"] == "act" and r["limit"] is not None]
    row = 0.0
    for policy, own in by_policy.items():
        axes.annotate(
            policy, (0, row), xycoords=("axes fraction", "data"), xytext=(-133, 0),
            textcoords="offset points", va="center", fontsize=10.5, fontweight="bold",
            color=_POLICIES[policy],
        )  # fmt: skip
        row += 0.3
        for name, value, opaque, goal in own:
            row += 1
            place = row - 0.3
            axes.barh(place, value, height=0.66, color=_POLICIES[policy], alpha=0.88 * opaque)
            if goal is not None:
                axes.plot([goal, goal], [place - 0.42, place + 0.42], color=GOAL, linewidth=2.2)
            axes.annotate(
                f"{float(f'{value:.3g}'):,.0f}", (max(value, goal or 0.0), place), xytext=(5, 0),
                textcoords="offset points", va="center", fontsize=8, color=INK,
            )  # fmt: skip
            axes.annotate(
                name, (0, place), xycoords=("axes fraction", "data"), xytext=(-8, 0),
                textcoords="offset points", ha="right", va="center", fontsize=8, color=QUIET,
            )  # fmt: skip
        row += 1.3
    axes.set_ylim(row - 0.9, -0.5)
    axes.set_xlim(0, 1.16 * max(most, *alone))
    if alone:
        limit = sorted(alone)[len(alone) // 2]
        axes.axvline(limit, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.annotate(
            "the environment alone", (limit, 0), xycoords=("data", "axes fraction"),
            xytext=(0, -10), textcoords="offset points", ha="center", va="center", fontsize=8,
            color=QUIET,
        )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    for name, spine in axes.spines.items():
        spine.set_visible(name == "left")
        spine.set_color(QUIET)


def _draw_growth(axes: Any, by_engine: dict[str, list[tuple[int, float]]]) -> None:
    most = max(n for own in by_engine.values() for n, _ in own)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.plot([1, most], [1, most], color=QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for engine, own in by_engine.items():
        color, marker = _ENGINES[engine]
        axes.plot(
            *zip(*own, strict=True), color=color, marker=marker, markersize=5.5, linewidth=1.8,
            zorder=3, label=engine,
        )  # fmt: skip
        n, times = own[-1]
        axes.annotate(
            f"{times:.3g}× with {n}", (n, times), xytext=(-8, 6), textcoords="offset points",
            ha="right", fontsize=8, color=color,
        )  # fmt: skip
    ticks = [2**power for power in range(int(math.log2(most)) + 1)]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks(ticks, [f"{tick}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.85, most * 1.25)
    axes.set_ylim(0.85, most * 1.45)
    axes.tick_params(length=0, labelsize=8, labelcolor=QUIET)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.annotate(
        "workers", (1, 0), xycoords="axes fraction", xytext=(0, -22), textcoords="offset points",
        ha="right", fontsize=8, color=QUIET,
    )  # fmt: skip
    axes.legend(loc="lower right", fontsize=8.5, frameon=False, labelcolor=INK, handlelength=1.6)
    for spine in axes.spines.values():
        spine.set_visible(False)
