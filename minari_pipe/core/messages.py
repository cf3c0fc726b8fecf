"""Make text from files, metadata, packages and user modules safe to print on a terminal."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from errno import EDQUOT, ENOENT, ENOSPC
from pathlib import Path
from typing import Any, TextIO, cast

from minari_pipe.errors import MinariPipeError
from minari_pipe.errors import printable as printable

#: colour codes of a terminal, and the prefix of Gymnasium's warnings
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = "WARN: "
_NUMBER = re.compile(r"\d+(\.\d+)?")
#: how many warnings that differ in numbers alone are shown
_MOST_ALIKE = 5
_LONGEST_TEXT = 4000  # characters
_PACKAGE = str(Path(__file__).parents[1]) + os.sep

#: a character of an address in a text; a quote that no letter follows ends the address
_LETTER = r"(?:[^\s'\"<>]|['\"](?=\w))"
#: user information up to the last ``@`` before the path; an unquoted password may hold a slash, and
#: a ``Path`` of an address has one slash
_USER = re.compile(
    rf"((?<![\w/])//|(?<=\w\w:)/(?!/))"
    rf"(?:(?:(?!/){_LETTER})*|(?:(?![/:\[]){_LETTER})*:(?!\d+/){_LETTER}*)@"
)
_QUERY = re.compile(rf"(\w\w:/(?:(?!\?){_LETTER})*\?){_LETTER}*[^\s'\"<>).,;:]")


def one_line(value: Any) -> str:
    """Return a value as :func:`printable` text without line breaks."""
    return printable(" ".join(str(value).split()))


def without_passwords(text: str, mark: str = "…@") -> str:
    """Remove user names and passwords, which may hold an ``@``, from the addresses in a text.

    Args:
        text: a message, or an address.
        mark: what replaces them.

    Example:
        >>> without_passwords("GET http://ada:p@ss@example.org/data failed")
        'GET http://…@example.org/data failed'
    """
    return _USER.sub(rf"\1{mark}", text)


def without_credentials(text: str) -> str:
    """Remove user names, passwords and queries, which may be signed, from addresses in a text.

    A text of more than 4,000 characters is cut, as the patterns may start to match anywhere.

    Example:
        >>> without_credentials("https://ada:secret@example.org/data?token=1")
        'https://…@example.org/data?…'
    """
    cut = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
    return _QUERY.sub(r"\1…", without_passwords(cut))


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8, which has no lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def message_of(error: BaseException, debug: str = "--debug") -> str:
    """Return what to tell a user about the error that ends a command, a stage or a block.

    Args:
        error: an error of this package or the system, or of the user's policy or environment.
        debug: the option that shows where the error was raised.
    """
    if isinstance(error, OSError) and error.errno == ENOENT and error.filename is None:
        return "the current folder does not exist any more; change to another one"  # os.getcwd
    if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):
        return f"the disk is full: {error}"
    if isinstance(error, MinariPipeError | OSError) and str(error):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, SystemExit):
        return f"the policy or the environment called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}; {debug} shows where"


def print_line(level: str, text: str) -> None:
    """Write an error or a warning to stderr as one line without credentials.

    Args:
        level: ``error`` or ``warning``.
        text: what is wrong.
    """
    if sys.stderr is not None:
        sys.stderr.write(f"{level}: {one_line(without_credentials(text))}\n")
        sys.stderr.flush()


class _EscapingStream:
    """A text stream that writes what it is given as :func:`printable` text."""

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        return self.unescaped.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.unescaped.writelines(map(printable, lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


@contextmanager
def escaped_stdout() -> Iterator[None]:
    r"""Write all text to stdout as :func:`printable` text, also that of Hydra and other packages.

    Letters that its encoding lacks are escaped, too. Text of this program that sets colours is
    written to :func:`unescaped_stdout`.

    Example:
        >>> with escaped_stdout():
        ...     print("\x1b[31mred")
        \x1b[31mred
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    stream = sys.stdout and _EscapingStream(sys.stdout)  # None if there is no stdout
    with redirect_stdout(cast(TextIO, stream)):
        yield


def unescaped_stdout() -> TextIO:
    """Return stdout as it is without :func:`escaped_stdout`."""
    return sys.stdout.unescaped if isinstance(sys.stdout, _EscapingStream) else sys.stdout


@contextmanager
def hidden_stdout() -> Iterator[None]:
    """Hide what environments and controllers print: a line at each step would bury a run's own.

    What they print to ``sys.stderr`` is shown.

    Example:
        >>> with hidden_stdout():
        ...     print("Sampling rejected")
    """
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


@contextmanager
def each_warning_once(say: Callable[[str], None]) -> Iterator[None]:
    r"""Report each warning once, as plain text, even if user code asks for all of them.

    If warnings of user code differ in numbers alone, only the first few are reported.

    Example:
        >>> with each_warning_once(print):
        ...     warnings.simplefilter("always")
        ...     for _ in range(3):
        ...         warnings.warn("\x1b[33mWARN: too far\x1b[0m")
        too far
    """
    with warnings.catch_warnings():
        show_each_warning_once(say)
        yield


def show_each_warning_once(say: Callable[[str], None]) -> None:
    """Do what :func:`each_warning_once` does, until the process ends."""
    said: set[str] = set()
    alike: Counter[str] = Counter()

    def show(message: Any, category: Any, filename: str, *args: Any, **kwargs: Any) -> None:
        text = _COLOUR.sub("", str(message)).removeprefix(_PREFIX)
        kind = text if filename.startswith(_PACKAGE) else _NUMBER.sub("0", text)
        if text not in said and alike[kind] < _MOST_ALIKE:
            said.add(text)
            alike[kind] += 1
            say(text if alike[kind] < _MOST_ALIKE else f"{text} (no more like this are shown)")

    warnings.showwarning = show
