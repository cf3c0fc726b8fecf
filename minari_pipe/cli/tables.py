"""What the commands show: tables on a terminal, plain JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minari_pipe.checks.base import counted as counted
from minari_pipe.core.messages import one_line, printable
from minari_pipe.core.metadata import is_finite_number

#: a line of a file or a pipe is not cut to the width of some terminal
_WIDE = 10_000

#: the names of fields are this wide at least, so that the values of several groups align
_FIELD = 17

FILES_WIDTH = 14
"""Those beside which a sha256 is: with it, they fill the 80 columns of a terminal."""

#: a column of text is folded down to this width, before a table is given up
_SLIVER = 12


def print_json(value: Any) -> None:
    """Print one JSON document, in ASCII and without NaN, so that every program can read it."""
    text = json.dumps(value, default=_plain)
    print(json.dumps(json.loads(text, parse_constant=lambda _: None), indent=2))


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
        rows: the cells; one cell alone is the heading of the rows below it.
        caption: below it.
    """
    console = _console()
    cells = [[_cell(cell) for cell in row] for row in rows]
    console.print(Text(one_line(title), style="bold"), soft_wrap=True)
    console.print()
    for row in cells:
        row[0] = _broken(row[0], console.width // 3)
    whole = [index == 0 or justify == "right" for index, justify in enumerate(columns.values())]
    if _width(list(columns), cells, whole) <= console.width:
        console.print(_table(columns, cells, whole))
    else:  # nothing is cut on a narrow terminal: the cells of a row go below each other
        for row in cells:
            name = row[0].plain.replace("\n", "")
            print_fields(name, dict(zip(list(columns)[1:], row[1:])))
    if caption is not None:
        console.print()
        console.print(Text(one_line(caption), style="dim"), soft_wrap=True)


def _table(columns: Mapping[str, str], cells: list[list[Text]], whole: list[bool]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, (header, justify) in enumerate(columns.items()):
        table.add_column(
            header,
            justify="right" if justify == "right" else "left",
            style="cyan" if index == 0 else None,
            overflow="fold",
            no_wrap=whole[index],
        )
    for row in cells:
        table.add_row(*row)
    return table


def _cell(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(one_line(cell))


def _width(headers: list[str], cells: list[list[Text]], whole: list[bool]) -> int:
    """The least width at which no cell of a ``whole`` column is cut, nor others to slivers."""
    widths = []
    for index, header in enumerate(headers):
        column = [row[index] for row in cells if index < len(row)]
        lines = [line for cell in column for line in cell.plain.split("\n")]
        longest = max((cell_len(line) for line in lines), default=0)
        widths.append(max(len(header), longest if whole[index] else min(longest, _SLIVER)))
    return sum(widths) + 3 * (len(widths) - 1)


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


def print_fields(title: str, fields: Mapping[str, str | Text], *, name_width: int = _FIELD) -> None:
    """Print names and values below each other.

    Args:
        title: above them.
        fields: values by their names.
        name_width: letters that the names have at least, so that several groups align.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=name_width)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, value if isinstance(value, Text) else Text(printable(value)))
    console = _console()
    console.print(Text(one_line(title), style="bold cyan"), soft_wrap=True)
    console.print(table)


def count(value: Any) -> str:
    """A number with separated thousands, ``?`` where metadata has none."""
    return f"{value:,}" if isinstance(value, int) else "?"


def megabytes(value: Any) -> str:
    """A size in MB as people read it; metadata holds it in tenths."""
    if not is_finite_number(value):
        return "?"
    if value < 0.05:
        return "<0.1 MB"
    for unit in ("MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def size(n_bytes: int) -> str:
    """A number of bytes as people read it.

    Example:
        >>> size(999), size(12_345), size(7_300_000)
        ('999 B', '12.3 kB', '7.3 MB')
    """
    if n_bytes < 1000:
        return f"{n_bytes} B"
    return f"{n_bytes / 1000:.1f} kB" if n_bytes < 999_950 else megabytes(n_bytes / 1e6)


def names(value: Any) -> str:
    """A list of names as text."""
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(sorted(map(str, value)))
    return str(value) if value else ""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich would exit with a code of its own


def _console() -> Console:
    # made for each print, as the output may be redirected in between, or closed
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return _Console(file=sys.stdout, highlight=False, width=None if on_terminal else _WIDE)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)
