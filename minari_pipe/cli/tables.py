"""What the commands show: tables on a terminal, plain JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: a line of a file or a pipe is not cut to the width of some terminal
_WIDE = 10_000

#: the names of fields are this wide at least, so that the values of several groups align
_FIELD = 17


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def print_table(
    title: str,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[str | Text]],
    *,
    caption: str | None = None,
) -> None:
    """Print a table.

    Args:
        title: above it.
        columns: header to alignment, ``left`` or ``right``.
        rows: the cells.
        caption: below it.
    """
    console = _console()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    for row in cells:
        row[0] = _broken(row[0], console.width // 3)
    for index, (header, justify) in enumerate(columns.items()):
        table.add_column(
            header,
            justify="right" if justify == "right" else "left",
            style="cyan" if index == 0 else None,
            overflow="fold",
            no_wrap=index == 0 or justify == "right",
        )
    for row in cells:
        table.add_row(*row)
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print()
    console.print(table)
    if caption is not None:
        console.print()
        console.print(Text(caption, style="dim"), soft_wrap=True)


def _broken(name: Text, width: int) -> Text:
    """Break a long id after its slashes, where the table would break it in the middle of a word."""
    if name.cell_len <= width:
        return name
    lines = [""]
    for part in re.findall(r"[^/]*/?", name.plain):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return Text("\n".join(lines))


def print_fields(title: str, fields: Mapping[str, str | Text]) -> None:
    """Print names and values below each other."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=_FIELD)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, value if isinstance(value, Text) else Text(value))
    console = _console()
    console.print(Text(title, style="bold cyan"), soft_wrap=True)
    console.print(table)


def count(value: Any) -> str:
    """A number with separated thousands, ``?`` where metadata has none."""
    return f"{value:,}" if isinstance(value, int) else "?"


def counted(number: int, noun: str) -> str:
    """A number of things, such as ``1 dataset`` or ``2 datasets``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def megabytes(value: Any) -> str:
    """A size in MB as people read it; metadata holds it in tenths."""
    if not isinstance(value, int | float):
        return "?"
    if value < 0.05:
        return "<0.1 MB"
    for unit in ("MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def names(value: Any) -> str:
    """A list of names as text; whatever else metadata has there as it is."""
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(sorted(map(str, value)))
    return str(value) if value else ""


def _console() -> Console:
    # made for each print, as the output may be redirected in between
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _WIDE)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)
