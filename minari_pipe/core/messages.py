"""Text for a terminal that others wrote: files, metadata, packages, a user's own modules."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: colours of a terminal, and the word that Gymnasium puts before what it warns of
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = "WARN: "


def printable(text: str) -> str:
    """Write out the characters that a terminal would obey, or that no encoding has.

    What metadata, file names and errors hold may come from a stranger.

    Example:
        >>> printable("\\x1b[31mred")
        '\\\\x1b[31mred'
    """
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def one_line(value: Any) -> str:
    """Text without line breaks, :func:`printable`."""
    return printable(" ".join(str(value).split()))


def without_passwords(text: str, mark: str = "…@") -> str:
    """Text whose addresses carry no user name and password, which may hold an ``@`` themselves.

    Args:
        text: a message, or an address.
        mark: in their place.

    Example:
        >>> without_passwords("GET http://ada:p@ss@example.org/data failed")
        'GET http://…@example.org/data failed'
    """
    return re.sub(r"//[^/\s'\"<>]*@", f"//{mark}", text)


def tell(level: str, text: str) -> None:
    """Say an error or a warning in one line, where it does not mix with the output.

    Args:
        level: ``error`` or ``warning``.
        text: what is wrong.
    """
    if sys.stderr is not None:
        sys.stderr.write(f"{level}: {one_line(text)}\n")
        sys.stderr.flush()


@contextmanager
def each_warning_once(say: Callable[[str], None]) -> Iterator[None]:
    """Say each warning once, in plain text, even if a module of the user's asks for all of them.

    Example:
        >>> with each_warning_once(print):
        ...     warnings.simplefilter("always")
        ...     for _ in range(3):
        ...         warnings.warn("\\x1b[33mWARN: too far\\x1b[0m")
        too far
    """
    with warnings.catch_warnings():
        show_each_warning_once(say)
        yield


def show_each_warning_once(say: Callable[[str], None]) -> None:
    """As :func:`each_warning_once`, from now on to the end of the process."""
    said: set[str] = set()

    def show(message: Any, *args: Any, **kwargs: Any) -> None:
        text = _COLOUR.sub("", str(message)).removeprefix(_PREFIX)
        if text not in said:
            said.add(text)
            say(text)

    warnings.showwarning = show
