"""Results as a table, in ``docs/speed.md`` and as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import chart, scale_chart
from benchmarks.measure import shown

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"

#: headings, groups of cases and columns
_TABLES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "",
        ("write", "read", "collect"),
        ("case", "size", "Minari", "here", "ratio", "limit", "goal", "reached"),
    ),
    (
        "At scale",
        ("act", "scale"),
        ("case", "size", "time", "Minari", "here", "ratio", "beside", "limit", "goal", "reached"),
    ),
    ("Publishing", ("remote",), ("case", "size", "here", "limit", "goal", "reached")),
    ("Describing", ("card",), ("case", "size", "here", "goal", "reached")),
)
_TO_THE_LEFT = ("case", "size", "time", "beside", "goal")


def row(record: dict[str, Any]) -> dict[str, str]:
    """Return what the table says of a case."""
    unit = record["unit"]

    def figure(side: str) -> str:
        value = record["here" if side == "here" else "minari"]
        if value is not None:
            return shown(value, unit)
        return "fails" if "raises" in record["skipped"].get(side, "") else ""

    beside = record["beside"]
    if record["of_beside"] is not None:
        beside += f": {shown(record['beside_value'], unit)} ({times(record['of_beside'])})"
    limit = "" if record["limit"] is None else shown(max(record["limit"], 0.0), unit)
    if record["of_limit"] is not None:
        limit += f" ({share(record['of_limit'])})"
    return {
        "case": record["case"],
        "size": record["size"],
        "time": "" if unit in ("MB", "%") else {"cpu": "CPU", "wall": "wall"}[record["clock"]],
        "Minari": figure("minari"),
        "here": figure("here"),
        "ratio": "" if record["ratio"] is None else times(record["ratio"]),
        "beside": beside,
        "limit": limit,
        "goal": record["goal"],
        "reached": {True: "yes", False: "no", None: ""}[record["reached"]],
    }


def times(ratio: float) -> str:
    """Return a ratio with as many digits as it deserves.

    Example:
        >>> times(0.523), times(3.21), times(213.4), times(76543)
        ('0.52×', '3.2×', '213×', '77,000×')
    """
    if ratio < 1:
        return f"{ratio:.2f}×"
    if ratio < 10:
        return f"{ratio:.1f}×"
    if ratio < 1000:
        return f"{ratio:.0f}×"
    return f"{float(f'{ratio:.2g}'):,.0f}×"


def share(part: float) -> str:
    """Return a share in percent, with a digit more where it is small.

    Example:
        >>> share(0.73), share(0.0042)
        ('73%', '0.4%')
    """
    return f"{part:.0%}" if part >= 0.095 else f"{part:.1%}"


def line(record: dict[str, Any]) -> str:
    """Return a case in one line."""
    cells = row(record)
    text = f"{cells['case']}, {cells['size']}{', wall time' if cells['time'] == 'wall' else ''}: "
    text += f"Minari {cells['Minari']}, " if cells["Minari"] else ""
    text += f"here {cells['here']}"
    for name in ("ratio", "beside", "limit"):
        text += f", {name} {cells[name]}" if cells[name] else ""
    if cells["goal"]:
        text += f" (goal {cells['goal']}: {cells['reached'] or 'not known'})"
    for side, reason in record["skipped"].items():
        text += f"\n    {side}: {reason}"
    return text


def table(results: dict[str, Any]) -> str:
    """Return all cases as tables in Markdown, aligned so that they can be read as they are."""
    parts = []
    for heading, groups, columns in _TABLES:
        rows = [row(record) for record in results["cases"] if record["group"] in groups]
        if rows:
            parts += [f"**{heading}**"] if heading else []
            parts.append(_aligned(columns, rows))
    notes = {
        f"{record['case']}: {'Minari' if side == 'minari' else side} {reason}"
        for record in results["cases"]
        for side, reason in record["skipped"].items()
    }
    return "\n\n".join([*parts, *sorted(notes)])


def _aligned(columns: tuple[str, ...], rows: list[dict[str, str]]) -> str:
    widths = {name: max(len(name), *(len(cells[name]) for cells in rows)) for name in columns}

    def text(cells: dict[str, str]) -> str:
        aligned = (
            cells[name].ljust(widths[name])
            if name in _TO_THE_LEFT
            else cells[name].rjust(widths[name])
            for name in columns
        )
        return f"| {' | '.join(aligned)} |"

    rule = (
        "-" * (widths[name] + 2) if name in _TO_THE_LEFT else "-" * (widths[name] + 1) + ":"
        for name in columns
    )
    return "\n".join(
        [text({name: name for name in columns}), f"|{'|'.join(rule)}|", *map(text, rows)]
    )


def headline(results: dict[str, Any]) -> str:
    """Return with what the figures were measured, and how many goals are reached."""
    found = results["machine"]
    judged = [record["reached"] for record in results["cases"] if record["reached"] is not None]
    packages = ", ".join(
        f"{name} {version}"
        for name, version in found["packages"].items()
        if name in ("h5py", "minari", "numpy", "pyarrow")
    )
    return (
        f"{found['processor']}, {found['cores']} cores, Python {found['python']}, {packages}; "
        f"commit {found['commit']}, {found['date']}. "
        f"{sum(judged)} of {len(judged)} goals reached."
    )


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write ``results.json``, ``chart.png`` and ``scale.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False)
    (folder / "results.json").write_text(f"{text}\n", encoding="utf-8")
    print(f"\n{folder}: results.json")
    for name, drawing in (("chart.png", chart), ("scale.png", scale_chart)):
        try:
            reason = drawing.draw(results, folder / name)
        except ImportError:
            reason = "matplotlib is not installed; pip install 'minari_pipe[bench]'"
        print(f"{folder}: {name}" if reason is None else f"no {name}: {reason}")


def update_page(path: Path, results: dict[str, Any]) -> None:
    """Put headline and table between the marks of a page.

    Raises:
        ValueError: it has no marks.
    """
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no {BEGIN} ... {END} to put the table between")
    table_text = f"{headline(results)}\n\n{table(results)}"
    path.write_text(f"{head}{begin}\n{table_text}\n{end}{tail}", encoding="utf-8")
