"""Print tables on a terminal, and plain JSON for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minari_pipe.checks.base import counted as counted
from minari_pipe.core.messages import one_line, printable, unescaped_stdout
from minari_pipe.core.metadata import is_finite_number

#: Tables for a file or a pipe are not cut to a terminal's width.
_WIDE = 10_000

#: Fields, which are for people, are folded to this width in a file or a pipe.
LINE_WIDTH = 80

#: Minimum width of field names, so that the values of several groups align.
_FIELD = 17

#: The same for fields with a sha256: name, gap and hash fill the 80 columns of a terminal.
FILES_WIDTH = 14

#: Width of a value beside a name, on a terminal of 80 columns.
VALUE_WIDTH = LINE_WIDTH - _FIELD - 2

#: Text columns are folded down to this width before fields replace a table.
_SLIVER = 12


def print_json(value: Any) -> None:
    """Print one JSON document in ASCII and without NaN, so that every program can read it."""
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
        title: text above the table.
        columns: header to alignment, ``left`` or ``right``.
        rows: the cells; a row with a single cell is a heading for the rows below it.
        caption: text below the table.
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
    else:  # too narrow for a table: print each row as fields, so that nothing is cut
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
    """Return the least width that cuts no cell of ``whole`` columns and leaves others readable."""
    widths = []
    for index, header in enumerate(headers):
        column = [row[index] for row in cells if index < len(row)]
        lines = [line for cell in column for line in cell.plain.split("\n")]
        longest = max((cell_len(line) for line in lines), default=0)
        widths.append(max(len(header), longest if whole[index] else min(longest, _SLIVER)))
    return sum(widths) + 3 * (len(widths) - 1)


def _broken(name: Text, width: int) -> Text:
    """Break a long id after its slashes, where the table would break it inside a word."""
    if name.cell_len <= width:
        return name
    lines = [""]
    for part in re.findall(r"[^/]*/?", name.plain):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return Text("\n".join(lines))


def print_fields(
    title: str,
    fields: Mapping[str, str | Text],
    *,
    name_width: int = _FIELD,
    whole: Collection[str] = (),
) -> None:
    """Print names and values, one pair per line; long values are folded to the width of the page.

    Args:
        title: text above them.
        fields: values by name.
        name_width: minimum width of the names, so that several groups align.
        whole: names of values that users copy, such as paths: one that does not fit beside its
            name is printed below it, in one piece, unless a terminal is too narrow for it.
    """
    console = _console()
    page = min(console.width, LINE_WIDTH) if console.width == _WIDE else console.width
    width = max([name_width, *map(cell_len, fields)])
    console.print(Text(one_line(title), style="bold cyan"), soft_wrap=True)
    for name, value in fields.items():
        text = value.copy() if isinstance(value, Text) else Text(printable(value))
        room = max(page - width - 2, 1)
        if name in whole and text.cell_len > room and not re.search(r"\s", text.plain):
            console.print(Text(name, style="bold"), soft_wrap=True)
            text.pad_left(min(2, max(page - text.cell_len, 0)))
            for line in text.wrap(console, console.width, overflow="fold"):
                console.print(line, soft_wrap=True)
            continue
        head = Text(f"{name:<{width}}  ", style="bold")
        for line in text.wrap(console, room, overflow="fold"):
            line.rstrip()
            console.print(Text.assemble(head, line), soft_wrap=True)
            head = Text(" " * (width + 2))


def count(value: Any) -> str:
    """Format a number with thousands separators, ``?`` if metadata has none."""
    return f"{value:,}" if isinstance(value, int) else "?"


def megabytes(value: Any) -> str:
    """Format a size in MB for people; metadata stores it in tenths."""
    if not is_finite_number(value):
        return "?"
    if value < 0.05:
        return "<0.1 MB"
    for unit in ("MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def names(value: Any) -> str:
    """Format a list of names as text."""
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(sorted(map(str, value)))
    return str(value) if value else ""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich would exit with its own code


def can_print(text: str) -> bool:
    """Return whether the encoding of stdout has these letters."""
    try:
        text.encode(getattr(unescaped_stdout(), "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _console() -> Console:
    # Made for each print, as stdout may be redirected or closed in between.
    stdout = unescaped_stdout()  # the cells are printable, the colours are ours
    on_terminal = stdout is not None and stdout.isatty()
    return _Console(file=stdout, highlight=False, width=None if on_terminal else _WIDE)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)
