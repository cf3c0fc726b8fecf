"""Draw histograms, traces and sparklines as SVG, without scripts.

Colours are the variables ``--ink``, ``--soft``, ``--line``, ``--bar`` and ``--mark`` of the page;
:func:`alone` gives them to a chart in a file of its own, light and dark, and :func:`embedded` sets
colours for a page that has no such variables. Coordinates are rounded to a tenth of a pixel, so
that equal data give equal bytes.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.datasets.cards.words import number

_WIDTH, _HEIGHT = 480, 200
_SIDE, _TOP, _BOTTOM = 12, 44, 24
#: points of a trace
_POINTS = 200

_ALONE = (
    "<style>svg{--ink:#1f2937;--soft:#6b7280;--line:#d1d5db;--bar:#3b82c4;--mark:#c2410c;"
    "background:#fff;font:12px system-ui,sans-serif}@media(prefers-color-scheme:dark){svg{"
    "--ink:#e5e7eb;--soft:#9ca3af;--line:#374151;--bar:#60a5fa;--mark:#fb923c;background:#111827}}"
    "</style>"
)

_VARIABLE = re.compile(r"var\(--(\w+)\)")
#: a blue and an orange that can be told from white and from black
_EMBEDDED = {"bar": "#4a8fd0", "mark": "#d9662b"}
_EMBEDDED_STYLE = "max-width:100%;height:auto;font:12px system-ui,sans-serif"


@dataclass(frozen=True)
class Mark:
    """A value to mark in a chart, such as the mean return of the random policy."""

    value: float
    label: str


@dataclass(frozen=True)
class _Axis:
    """Maps values from ``low`` to ``high`` to pixels from ``first`` to ``last``."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        # halves, as the difference of large numbers may overflow
        span = self.high / 2 - self.low / 2
        if not span > 0:
            return (self.first + self.last) / 2
        share = (value / 2 - self.low / 2) / span
        return self.first + share * (self.last - self.first)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers from ``low`` to ``high``: multiples of 1, 2 or 5 times a power of 10.

    Example:
        >>> ticks(0.0, 9.7), ticks(-3.0, -3.0)
        ([0.0, 2.0, 4.0, 6.0, 8.0], [-3.0])
    """
    span = high - low
    if not (span > 1e-300 and math.isfinite(span)):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * unit for unit in (1, 2, 5, 10, 20) if span / (power * unit) <= most)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)] or [low]


def counts_of(values: npt.NDArray[Any], bins: int, low: float, high: float) -> list[int]:
    """Return how many values are in bins of equal width; all in the first if there is no width.

    Unlike NumPy's, it takes ends that differ by rounding only, or by more than the largest number.

    Args:
        values: finite numbers from ``low`` to ``high``, shape ``(N,)``.
        bins: number of bins.
        low: where the first bin begins.
        high: where the last one ends.
    """
    span = high / 2 - low / 2
    if not span > 0:
        return [len(values)] + [0] * (bins - 1)
    shares = (values.astype(np.float64) / 2 - low / 2) / span
    places = np.clip((shares * bins).astype(np.int64), 0, bins - 1)
    return np.bincount(places, minlength=bins).tolist()


def histogram(
    counts: Sequence[int],
    low: float,
    high: float,
    title: str,
    *,
    marks: Sequence[Mark] = (),
    around: tuple[float, float] | None = None,
) -> str:
    """Return a histogram of episodes.

    Args:
        counts: number of values in bins of equal width.
        low: where the first bin begins.
        high: where the last one ends.
        title: what screen readers say of it.
        marks: values to mark.
        around: ends of the axis, if it is longer than the bins.
    """
    begin, end = around or (low, high)
    x = _Axis(begin, end, _SIDE, _WIDTH - _SIDE)
    base = _HEIGHT - _BOTTOM
    y = _Axis(0, max(max(counts, default=0), 1), base, _TOP)
    bars = []
    n = max(len(counts), 1)
    edges = [low * (1 - place / n) + high * (place / n) for place in range(n + 1)]
    names = list(map(number, edges))
    for place, value in enumerate(counts if high > low else counts[:1]):
        if not value:
            continue
        left, right = x.at(edges[place]), x.at(edges[place + 1])
        if high <= low:  # one value: a bar in the middle
            left, right = left - 12, right + 12
        gap = min(1.0, (right - left) / 4)
        top = y.at(value)
        words = f"{value:,} episodes from {names[place]} to {names[place + 1]}"
        bars.append(
            f'<rect x="{_px(left + gap / 2)}" y="{_px(top)}" '
            f'width="{_px(max(right - left - gap, 1))}" height="{_px(base - top)}">'
            f"<title>{words}</title></rect>"
        )
    parts = [
        _line(_SIDE, base, _WIDTH - _SIDE, base, "line"),
        f'<g fill="var(--bar)">{"".join(bars)}</g>',
        *_marked(marks, x, base),
        *(_text(x.at(value), _HEIGHT - 6, number(value)) for value in ticks(begin, end)),
    ]
    return _svg(title, _WIDTH, _HEIGHT, parts, above=0 if marks else _TOP - 8)


def _marked(marks: Iterable[Mark], x: _Axis, base: float) -> Iterable[str]:
    for row, mark in enumerate(sorted(marks, key=lambda mark: mark.value)):
        place = x.at(mark.value)
        anchor = "start" if place < _WIDTH * 0.3 else "end" if place > _WIDTH * 0.7 else "middle"
        yield _line(place, 18 + 14 * (row % 2), place, base, "mark", dashes=True)
        yield _text(place, 14 + 14 * (row % 2), mark.label, style="mark", anchor=anchor)


def trace(
    values: npt.NDArray[np.float64], title: str, around: Iterable[npt.NDArray[np.float64]] = ()
) -> str:
    """Return a line over the steps of an episode.

    Args:
        values: the value after each step.
        title: what screen readers say of it.
        around: lines of other episodes that the axes have room for, too.
    """
    width, height = 320, 180
    lines = [values, *around]
    finite = np.concatenate([line[np.isfinite(line)] for line in lines])
    low, high = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    last = max(map(len, lines))
    x = _Axis(0, max(last, 1), _SIDE, width - _SIDE)
    y = _Axis(low, high, height - _BOTTOM, 16)
    steps = np.unique(np.linspace(0, len(values) - 1, min(len(values), _POINTS)).astype(int))
    points = " ".join(
        f"{_px(x.at(step + 1))},{_px(y.at(float(values[step])))}"
        for step in steps.tolist()
        if math.isfinite(values[step])
    )
    parts = [_line(_SIDE, y.at(0.0), width - _SIDE, y.at(0.0), "line")]
    parts.append(f'<polyline points="{points}" fill="none" stroke="var(--bar)" stroke-width="2"/>')
    parts += [_text(x.at(value), height - 6, number(value)) for value in ticks(0, last, 4)]
    for value in ticks(low, high, 3):
        if value:
            parts.append(_line(_SIDE, y.at(value), width - _SIDE, y.at(value), "line"))
            parts.append(_text(_SIDE, y.at(value) - 4, number(value), anchor="start"))
    return _svg(title, width, height, parts)


def spark(counts: Sequence[int], title: str) -> str:
    """Return a small histogram with a base line."""
    width, height = 96, 20
    top = max(max(counts, default=0), 1)
    step = width / max(len(counts), 1)
    path = "".join(
        f"M{_px(place * step)} {height}v{_px(-max(value / top * height, 2))}h{_px(step)}V{height}z"
        for place, value in enumerate(counts)
        if value
    )
    bars = f'<path d="{path}" fill="var(--bar)"/>'
    return _svg(title, width, height, [_line(0, height, width, height, "line"), bars], css="spark")


def alone(chart: str) -> str:
    """Return a chart as a file of its own."""
    return chart.replace(">", f' xmlns="http://www.w3.org/2000/svg">{_ALONE}', 1) + "\n"


def embedded(chart: str) -> str:
    """Return a chart for a foreign page, in whose text colour it is drawn, but for the bars."""
    chart = _VARIABLE.sub(lambda found: _EMBEDDED.get(found[1], "currentColor"), chart)
    return chart.replace("<svg ", f'<svg width="{_WIDTH}" style="{_EMBEDDED_STYLE}" ', 1)


def _svg(
    title: str,
    width: int,
    height: int,
    parts: Iterable[str],
    *,
    css: str = "chart",
    above: int = 0,
) -> str:
    """Return a chart, without the pixels ``above`` that it does not use."""
    name, box = html.escape(title), f"0 {above} {width} {height - above}"
    return (
        f'<svg class="{css}" viewBox="{box}" role="img" aria-label="{name}">{"".join(parts)}</svg>'
    )


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, words: str, *, style: str = "soft", anchor: str = "middle") -> str:
    return (
        f'<text x="{_px(x)}" y="{_px(y)}" text-anchor="{anchor}" '
        f'fill="var(--{style})">{html.escape(words)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str, *, dashes: bool = False) -> str:
    dashed = ' stroke-dasharray="4 3"' if dashes else ""
    return (
        f'<line x1="{_px(x1)}" y1="{_px(y1)}" x2="{_px(x2)}" y2="{_px(y2)}" '
        f'stroke="var(--{style})"{dashed}/>'
    )
