"""Evaluate a query for all rows at once, where NumPy's results are the same as Python's.

A query means what :class:`~minari_pipe.datasets.query.Query` computes for each row, in Python's
numbers. NumPy's numbers differ: they overflow, compare integers with floats inexactly and divide by
zero. So each step first checks whether any value comes near such a case. If one does, or is not a
plain number, there is no result here and the rows are evaluated one by one.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.datasets.query import ARITHMETIC, COMPARISONS, Query, computed

Column = npt.NDArray[Any]
Number = bool | int | float
#: a column of bool, int64 or float64, or a number that is the same for all rows
Value = Column | Number

_LEAST, _MOST = -(2**63), 2**63 - 1
#: all integers up to here are exact as floats
_EXACT = 2**53


class _AskRowsError(Exception):
    """NumPy might compute another result than Python, so the rows are evaluated one by one."""


def selected(
    query: Query, columns: Mapping[str, Column], count: int
) -> npt.NDArray[np.bool_] | None:
    """Return which rows meet a query.

    Args:
        query: the condition.
        columns: by name, shape ``(N,)`` each, of the dtypes bool, int64, uint64 or float64, with
            the same values as the Python numbers of the rows.
        count: number of rows ``N``.

    Returns:
        Shape ``(N,)``, the result for each row; None if the rows must be evaluated one by one.

    Example:
        >>> columns = {"a": np.array([1, 2, 3]), "b": np.array([0.5, 2.5, 3.0])}
        >>> selected(Query.parse("a <= b and a + 1 < 5"), columns, 3)
        array([False,  True,  True])
        >>> selected(Query.parse("b / (a - 1) > 1"), columns, 3)  # division by zero
    """
    if not all(name in columns and columns[name].dtype.kind in "biuf" for name in query.columns):
        return None
    try:
        with np.errstate(all="ignore"):  # Python computes with infinities, too
            met = _truth(_value(query.tree, columns))
    except _AskRowsError:
        return None
    return met if isinstance(met, np.ndarray) else np.full(count, met)


def _value(node: ast.expr, columns: Mapping[str, Column]) -> Value:
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return number
        case ast.Name():
            return _signed(columns[node.id])
        case ast.BoolOp():
            combine = operator.or_ if isinstance(node.op, ast.Or) else operator.and_
            return _folded(combine, [_truth(_value(part, columns)) for part in node.values])
        case ast.UnaryOp(op=ast.Not()):
            return _not(_truth(_value(node.operand, columns)))
        case ast.UnaryOp():
            sign = operator.neg if isinstance(node.op, ast.USub) else operator.pos
            return _one(sign, _value(node.operand, columns))
        case ast.BinOp():
            return _two(node.op, _value(node.left, columns), _value(node.right, columns))
        case ast.Compare():
            return _comparison(node, columns)
        case ast.Call(func=ast.Name(id="abs")):
            return _one(abs, _value(node.args[0], columns))
        case ast.Call(func=ast.Name(id="isnan")):
            argument = _value(node.args[0], columns)
            if not isinstance(argument, np.ndarray):
                raise _AskRowsError
            return np.isnan(argument)
    raise _AskRowsError


def _comparison(node: ast.Compare, columns: Mapping[str, Column]) -> bool | Column:
    left = _value(node.left, columns)
    found: list[bool | Column] = []
    for op, part in zip(node.ops, node.comparators, strict=True):
        if isinstance(op, ast.Is | ast.IsNot):  # no value is None here
            if not isinstance(part, ast.Constant):
                raise _AskRowsError
            found.append(isinstance(op, ast.IsNot))
            if part is not node.comparators[-1]:
                raise _AskRowsError
        elif isinstance(op, ast.In | ast.NotIn):
            if not isinstance(part, ast.List | ast.Tuple | ast.Set) or not part.elts:
                raise _AskRowsError
            if part is not node.comparators[-1]:
                raise _AskRowsError
            entries = [_value(entry, columns) for entry in part.elts]
            if any(isinstance(entry, np.ndarray) or entry != entry for entry in entries):
                raise _AskRowsError  # Python finds NaN in a list only if it is the same object
            equal = [_compared(operator.eq, left, entry) for entry in entries]
            within = _folded(operator.or_, equal)
            found.append(within if isinstance(op, ast.In) else _not(within))
        else:
            right = _value(part, columns)
            found.append(_compared(COMPARISONS[type(op)], left, right))
            left = right
    return _folded(operator.and_, found)


def _compared(function: Callable[[Any, Any], Any], left: Value, right: Value) -> bool | Column:
    if not isinstance(left, np.ndarray) and not isinstance(right, np.ndarray):
        return bool(function(left, right))
    left, right = _whole(left), _whole(right)
    if _is_float(left) != _is_float(right):
        for value in (left, right):
            _within(value, _EXACT)
    return function(left, right)


def _one(function: Callable[[Any], Any], value: Value) -> Value:
    if not isinstance(value, np.ndarray):
        return _by_python(function, value)
    value = _whole(value)
    if not _is_float(value):
        _within(value, _MOST)
    return function(value)


def _two(op: ast.operator, left: Value, right: Value) -> Value:
    function = ARITHMETIC[type(op)]
    if not isinstance(left, np.ndarray) and not isinstance(right, np.ndarray):
        return _by_python(function, left, right)
    if isinstance(op, ast.Pow):
        raise _AskRowsError  # the last digit depends on the processor
    left, right = _whole(left), _whole(right)
    fractions = _is_float(left) or _is_float(right)
    if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
        if not np.all(right):
            raise _AskRowsError
        if fractions and not isinstance(op, ast.Div):
            _finite(left)
            _finite(right)
    if not fractions:
        if isinstance(op, ast.Div):
            _within(left, _EXACT)
            _within(right, _EXACT)
        else:
            _stays_within(function, left, right)
    return function(left, right)


def _stays_within(function: Callable[[Any, Any], Any], left: Value, right: Value) -> None:
    """Raise unless 64-bit integers hold every result."""
    if function in (operator.floordiv, operator.mod):
        _within(left, _MOST)  # only the least integer divided by -1 does not fit
        return
    corners = [function(a, b) for a in _bounds(left) for b in _bounds(right)]
    if corners and not _LEAST <= min(corners) <= max(corners) <= _MOST:
        raise _AskRowsError


def _by_python(function: Callable[..., Any], *values: Number) -> Number:
    try:
        result: Number = computed(function, *values)
    except Exception:  # each row reports it with its number
        raise _AskRowsError from None
    return result


def _truth(value: Value) -> bool | Column:
    return value.astype(bool) if isinstance(value, np.ndarray) else bool(value)


def _not(value: bool | Column) -> bool | Column:
    return ~value if isinstance(value, np.ndarray) else not value


def _folded(combine: Callable[[Any, Any], Any], values: list[bool | Column]) -> bool | Column:
    result = values[0]
    for value in values[1:]:
        result = combine(result, value)
    return result


def _signed(column: Column) -> Column:
    if column.dtype.kind != "u":
        return column
    if column.size and column.max() > _MOST:
        raise _AskRowsError
    return column.astype(np.int64)


def _whole(value: Value) -> Value:
    """Convert flags to integers, and raise if an integer does not fit into 64 bits."""
    if isinstance(value, np.ndarray):
        return value.astype(np.int64) if value.dtype.kind == "b" else value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise _AskRowsError
    return value


def _is_float(value: Value) -> bool:
    return value.dtype.kind == "f" if isinstance(value, np.ndarray) else isinstance(value, float)


def _bounds(value: Value) -> list[int]:
    if not isinstance(value, np.ndarray):
        return [int(value)]
    return [int(value.min()), int(value.max())] if value.size else []


def _within(value: Value, most: int) -> None:
    """Raise unless integers lie between ``-most`` and ``most``."""
    if not _is_float(value) and any(not -most <= bound <= most for bound in _bounds(value)):
        raise _AskRowsError


def _finite(value: Value) -> None:
    if not np.all(np.isfinite(value)):
        raise _AskRowsError
