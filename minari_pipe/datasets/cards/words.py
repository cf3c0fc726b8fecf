"""Format numbers and the texts of strangers for people, in Markdown and in HTML."""

from __future__ import annotations

import html
import re
from typing import Any, TypeGuard

#: characters of a text that are shown
LONGEST = 1000
#: largest number that is shown
_GREATEST = 1e15

#: Licenses that allow commercial use, by choosealicense.com and creativecommons.org.
_COMMERCIAL = {
    "apache-2.0", "bsd-2-clause", "bsd-3-clause", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0",
    "cc-by-sa-4.0", "cc0-1.0", "gpl-2.0", "gpl-3.0", "isc", "mit", "odbl", "odc-by", "pddl",
    "unlicense",
}  # fmt: skip

#: Characters that open or close Markdown; a single underscore within a word does not.
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
#: Characters that make the text that they begin a heading, a list or a rule.
_BEGINNING = re.compile(r"^[#+=-]|(?<=^\d)[.)]|(?<=^\d\d)[.)]")
#: Words that the Hub turns into links by itself.
_ADDRESS = re.compile(r"://|www\.|@", re.IGNORECASE)
#: Invisible characters that scripts and emojis need.
_JOINERS = "\u200c\u200d"


def line_of(value: object, longest: int = LONGEST) -> str:
    r"""Return a text as one line, or names as a list; without characters that cannot be seen.

    Example:
        >>> line_of("two\nlines\u202e"), line_of(["a", 3, "b"]), line_of(None)
        ('two lines', 'a, b', '')
    """
    if isinstance(value, (list, tuple)):
        value = ", ".join(part for part in value if isinstance(part, str))
    if not isinstance(value, str):
        return ""
    line = " ".join(value.split())
    if len(line) > longest:
        line = line[:longest].rsplit(" ", 1)[0] + " …"
    if line.isprintable():
        return line
    return "".join(letter for letter in line if letter.isprintable() or letter in _JOINERS)


def markdown(value: object) -> str:
    r"""Return a text as one line of Markdown that shows it, with HTML and Markdown escaped.

    Example:
        >>> markdown("a *b* ![t](http://tracker.example/x) of snake_case")
        'a \\*b\\* `![t](http://tracker.example/x)` of snake_case'
    """
    words = line_of(value).split(" ")
    return _BEGINNING.sub(r"\\\g<0>", " ".join(map(_plain_word, words)))


def _plain_word(word: str) -> str:
    """Escape HTML and Markdown in a word; a word that would become a link becomes code."""
    if _ADDRESS.search(word):
        return f"`{word.replace('`', '').replace('|', '%7C')}`"
    return html.escape(_MARKS.sub(r"\\\g<0>", word), quote=False)


def number(value: float | None) -> str:
    """Return a number for people, in four digits, with a real minus sign; empty for None.

    Example:
        >>> number(-1234.5678), number(0.00001234), number(3.0), number(float("nan"))
        ('\N{MINUS SIGN}1,235', '1.234e\N{MINUS SIGN}05', '3', 'NaN')
    """
    if value is None:
        return ""
    if value != value:  # faster than math.isnan: a page has thousands of numbers
        return "NaN"
    text = f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"
    return text.replace("-", "\N{MINUS SIGN}").replace("e+", "e")


def percent(share: float) -> str:
    """Return a share in percent; the ends are reached by all or none only.

    Example:
        >>> percent(0.0), percent(0.0004), percent(0.256), percent(0.9999), percent(1.0)
        ('0 %', '<0.1 %', '26 %', '>99.9 %', '100 %')
    """
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    return f"{share * 100:.2g} %" if 0 < share < 0.995 else f"{share * 100:.3g} %"


def license_id(value: object) -> str:
    """Return the name of a license as the Hub writes it; empty if it is no text.

    Example:
        >>> license_id("CC BY 4.0"), license_id("MIT?"), license_id(None)
        ('cc-by-4.0', 'mit?', '')
    """
    return "-".join(value.lower().replace("_", " ").split()) if isinstance(value, str) else ""


def commercial_use(value: object) -> str:
    """Return whether a license allows commercial use, in words; empty if it is not known here.

    Example:
        >>> commercial_use("MIT"), commercial_use("CC-BY-NC-4.0"), commercial_use(None)
        ('commercial use allowed', 'no commercial use', 'ask the author')
        >>> commercial_use("MIT, but for the pictures")
        ''
    """
    name = license_id(value)
    if name in _COMMERCIAL:
        return "commercial use allowed"
    if re.search(r"\bnc\b|\bnon-?commercial\b", name):
        return "no commercial use"
    return "" if value else "ask the author"


def count(value: object) -> str:
    """Return a count with separators, empty if it is none."""
    return f"{value:,}" if isinstance(value, int) and is_number(value) else ""


def file_size(size: float) -> str:
    """Return a size in decimal units, with at least two significant digits.

    Example:
        >>> file_size(999), file_size(2345), file_size(71234567)
        ('999 B', '2.3 kB', '71 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that fits into a table."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and -_GREATEST < value < _GREATEST
    )
