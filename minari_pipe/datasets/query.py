"""Evaluate the queries of ``dataset.where``: Python expressions over a row, and nothing more.

An expression is parsed, every node is checked against a list of allowed ones, and then the tree is
evaluated. Names can only be columns, and attributes can only be keys of dicts.

A missing value makes a result that depends on it unknown, as in SQL: ``seed > 5``, ``seed != 5``
and ``not seed > 5`` all leave out an episode without a seed. ``seed is None`` finds it.
"""

from __future__ import annotations

import ast
import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minari_pipe.errors import ConfigError, did_you_mean

MAX_LENGTH = 2000
MAX_DEPTH = 60
#: largest size of a computed integer, in bits
MAX_BITS = 8192

_OWN_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "None", "True", "False"})
#: text, which stays, or a Python keyword that can be the name of a column, such as ``return``
_TEXT_OR_KEYWORD = re.compile(
    r"""'(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | \b(?:"""
    + "|".join(sorted(set(keyword.kwlist) - _OWN_KEYWORDS))
    + r")\b",
    re.VERBOSE,
)

#: functions of Python numbers for the operators of an expression
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {"abs": abs, "len": len, "isnan": math.isnan}
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_ALLOWED = (
    "a query can have comparisons, and, or, not, in, is None, arithmetic, names of columns with "
    "their fields (options.goal, options['goal'], options.goal[0]), numbers, strings, lists of "
    "these, abs(), len() and isnan()"
)


@dataclass(frozen=True)
class Query:
    """A condition on rows.

    Attributes:
        text: the expression.
        columns: names of the columns that it reads.
        tree: the parsed and checked expression, with the names as they are written.

    Example:
        >>> query = Query.parse("total_steps > 2 and options.goal[0] != 1")
        >>> sorted(query.columns)
        ['options', 'total_steps']
        >>> query({"id": 0, "total_steps": 3, "options": {"goal": [4, 1]}})
        True
        >>> query({"id": 1, "total_steps": 3, "options": None})
        False
    """

    text: str
    columns: frozenset[str]
    tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> Query:
        """Parse an expression.

        Raises:
            ConfigError: it is not an expression, is too long or too deep, or has a forbidden part.
        """
        if not isinstance(text, str):
            raise ConfigError(f"a query must be a string, got {type(text).__name__}: {text!r}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"query {text[:60]!r} has a lone surrogate, which is not a valid character"
            ) from None
        text = " ".join(text.splitlines()).strip()
        if not text or len(text) > MAX_LENGTH:
            raise ConfigError(
                f"a query must have 1 to {MAX_LENGTH} characters, got {len(text)}; for example: "
                "'total_steps > 100 and rewards_sum > 50'"
            )
        parser = _Parser(text)
        tree = parser.parse()
        return cls(text, frozenset(parser.columns), tree)

    def check_columns(self, known: list[str]) -> None:
        """Raise if a column does not exist.

        Raises:
            ConfigError: a column does not exist; the message suggests the nearest.
        """
        for name in sorted(self.columns):
            if name not in known:
                raise ConfigError(
                    f"query {self.text!r}: no column {name!r}.{did_you_mean(name, known)} "
                    f"The columns are {', '.join(known)}"
                )

    def __call__(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row meets the condition; an unknown result does not.

        Args:
            row: values by column; None for a missing value. ``id`` is used in messages.

        Raises:
            ConfigError: the values of this row cannot be compared or computed with.
        """
        try:
            return _truth(_value(self.tree, row)) is True
        except _RowError as fault:
            raise ConfigError(f"query {self.text!r}, episode {row.get('id')}: {fault}") from None


class _RowError(Exception):
    """The values of one row cannot be used; the text says why."""


class _Parser:
    """Parses one text, checks its nodes and collects its columns."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.columns: set[str] = set()
        self._source = text.encode()

    def parse(self) -> ast.expr:
        # `return` is a column but a Python keyword, so keywords are parsed in capitals
        readable = _TEXT_OR_KEYWORD.sub(_capitals, self.text)
        try:
            tree = ast.parse(readable, mode="eval").body
        except SyntaxError as error:
            # at the end of the text Python gives no position
            place = error.offset or len(self.text) + 1
            found = self.text[place - 1 :][:30]
            raise ConfigError(
                f"query {self.text!r}: {error.msg} at character {place}: "
                f"{repr(found) if found else 'the end of the query'}"
            ) from None
        except (ValueError, MemoryError, RecursionError) as error:
            raise ConfigError(
                f"query {self.text[:60]!r} cannot be parsed: {error or 'it is nested too deeply'}"
            ) from None
        self._check(tree, 0)
        return tree

    def _check(self, node: ast.expr, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ConfigError(
                f"query {self.text[:60]!r} is nested deeper than {MAX_DEPTH}; use fewer brackets, "
                "or call where() on the result of where()"
            )
        parts: list[ast.expr]
        if isinstance(node, ast.BoolOp):
            parts = node.values
        elif isinstance(node, ast.UnaryOp) and (
            isinstance(node.op, ast.Not) or type(node.op) in _SIGNS
        ):
            parts = [node.operand]
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            parts = [node.left, node.right]
        elif isinstance(node, ast.Compare):
            self._check_comparison(node)
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name not in _FUNCTIONS or len(node.args) != 1 or node.keywords:
                self._refuse(node)
            parts = node.args
        elif isinstance(node, ast.Attribute):
            # a keyword, as in options.class, was parsed in capitals
            node.attr = self._written(node, len(node.attr.encode()))
            if node.attr.startswith("__"):
                self._refuse(node)
            parts = [node.value]
        elif isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Slice | ast.Tuple):
                self._refuse(node)
            parts = [node.value, node.slice]
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            parts = node.elts
        elif isinstance(node, ast.Name):
            node.id = self._written(node, len(node.id.encode()))
            if node.id.startswith("__"):
                self._refuse(node)
            self.columns.add(node.id)
            return
        elif isinstance(node, ast.Constant) and isinstance(
            node.value, bool | int | float | str | None
        ):
            return
        else:
            self._refuse(node)
        for part in parts:
            self._check(part, depth + 1)

    def _check_comparison(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, operands, operands[1:], strict=False):
            nothing = [part for part in (left, right) if _is_none(part)]
            if isinstance(op, ast.Is | ast.IsNot) and not _is_none(right):
                self._refuse(right, "`is` is for None; use == for values")
            if type(op) in COMPARISONS and nothing:
                self._refuse(nothing[0], "None cannot be compared; use `is None` or `is not None`")

    def _written(self, node: ast.expr, length: int) -> str:
        """Return the last ``length`` bytes of a node as they were written, not in capitals."""
        end = node.end_col_offset or 0
        written = self._source[end - length : end].decode(errors="replace")
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        return written if keyword.iskeyword(written) else name

    def _refuse(self, node: ast.expr, why: str = _ALLOWED) -> None:
        part = self._source[node.col_offset : node.end_col_offset].decode(errors="replace")
        place = len(self._source[: node.col_offset].decode(errors="replace")) + 1
        raise ConfigError(
            f"query {self.text!r}: {part!r} at character {place} is not allowed; {why}"
        )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _capitals(found: re.Match[str]) -> str:
    text = found.group()
    return text if text[0] in "'\"" else text.upper()


def _value(node: ast.expr, row: Mapping[str, Any]) -> Any:
    """Return the value of a checked expression, None if it is unknown."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return row.get(node.id)
        case ast.Attribute():
            return _entry(_value(node.value, row), node.attr)
        case ast.Subscript():
            return _entry(_value(node.value, row), _value(node.slice, row))
        case ast.List() | ast.Tuple() | ast.Set():
            return [_value(part, row) for part in node.elts]
        case ast.BoolOp():
            return _junction(node, row)
        case ast.UnaryOp(op=ast.Not()):
            truth = _truth(_value(node.operand, row))
            return None if truth is None else not truth
        case ast.UnaryOp():
            return computed(_SIGNS[type(node.op)], _value(node.operand, row))
        case ast.BinOp():
            operands = _value(node.left, row), _value(node.right, row)
            return computed(ARITHMETIC[type(node.op)], *operands)
        case ast.Compare():
            return _comparison(node, row)
        case ast.Call(func=ast.Name(id=name)):
            argument = _value(node.args[0], row)
            if argument is None:
                return None
            if name == "len" and isinstance(argument, str | list | tuple | dict | np.ndarray):
                return len(argument)
            return computed(_FUNCTIONS[name], argument)
    raise AssertionError(node)  # the parser refuses everything else


def _junction(node: ast.BoolOp, row: Mapping[str, Any]) -> bool | None:
    decisive = isinstance(node.op, ast.Or)
    unknown = False
    for part in node.values:
        truth = _truth(_value(part, row))
        if truth is decisive:
            return decisive
        unknown = unknown or truth is None
    return None if unknown else not decisive


def _comparison(node: ast.Compare, row: Mapping[str, Any]) -> bool | None:
    left, unknown = _value(node.left, row), False
    for op, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, row)
        truth = _compare(op, left, right)
        if truth is False:
            return False
        unknown = unknown or truth is None
        left = right
    return None if unknown else True


def _compare(op: ast.cmpop, left: Any, right: Any) -> bool | None:
    if isinstance(op, ast.Is | ast.IsNot):
        return (left is None) == isinstance(op, ast.Is)
    if left is None or right is None:
        return None
    if isinstance(op, ast.In | ast.NotIn):
        if isinstance(right, np.ndarray):
            right = right.tolist()
        if not isinstance(right, str | list | tuple | dict):
            raise _RowError(f"`in` needs a list or a string on its right, got {_shown(right)}")
        if isinstance(right, str) and not isinstance(left, str):
            raise _RowError(f"{_shown(left)} cannot be in the string {_shown(right)}")
        function, values = operator.contains, (right, left)
        return _decided(function, values) == isinstance(op, ast.In)
    return _decided(COMPARISONS[type(op)], (left, right))


def _decided(function: Callable[[Any, Any], Any], values: tuple[Any, Any]) -> bool:
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim:
            raise _RowError(
                f"{_shown(value)} is an array; compare one of its entries, as in goal[0]"
            )
    try:
        return bool(function(*values))
    except (TypeError, ValueError):
        shown = " and ".join(map(_shown, values))
        raise _RowError(f"{shown} cannot be compared") from None


def computed(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to numbers as a query does; return None if one is unknown."""
    if any(value is None for value in values):
        return None
    values = tuple(
        value[()] if isinstance(value, np.ndarray) and not value.ndim else value for value in values
    )
    for value in values:
        if not isinstance(value, _NUMBERS):
            raise _RowError(f"{_shown(value)} is not a number")
    # Python's numbers do not overflow as NumPy's do
    values = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    if function is operator.pow and all(isinstance(value, int) for value in values):
        base, exponent = values
        if abs(exponent) * max(base.bit_length(), 1) > MAX_BITS:
            raise _RowError(f"{_shown(base)} ** {_shown(exponent)} is too large")
    try:
        with np.errstate(all="ignore"):
            result = function(*values)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise _RowError(f"{error} ({', '.join(map(_shown, values))})") from None
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise _RowError(f"a number of more than {MAX_BITS} bits is too large")
    if not isinstance(result, _NUMBERS):  # the root of a negative number
        raise _RowError(
            f"{', '.join(map(_shown, values))} give {result}, which is not a real number"
        )
    return result


def _entry(value: Any, key: Any) -> Any:
    """Return an entry of a dict, list or array, None if there is none."""
    if value is None or key is None:
        return None
    if isinstance(value, Mapping):
        try:
            return value.get(key)
        except TypeError:  # a list as key
            return None
    if isinstance(value, list | tuple | np.ndarray) and isinstance(key, int):
        try:
            entry = value[key]
        except IndexError:
            return None
        return entry.item() if isinstance(entry, np.generic) else entry
    return None


def _truth(value: Any) -> bool | None:
    if value is None:
        return None
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if not isinstance(value, _NUMBERS):
        raise _RowError(f"{_shown(value)} is neither true nor false; compare it with something")
    return bool(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
