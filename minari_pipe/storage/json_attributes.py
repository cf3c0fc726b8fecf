"""Convert episode attributes to JSON that real Minari reads, and back, without loss.

JSON does not distinguish an array or a tuple from a list, or NumPy numbers from Python's. Where it
would not round-trip a value, the key ``minari_pipe_exact`` also holds the exact form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from minari_pipe.core.json_object import json_object
from minari_pipe.core.tree import MAX_DEPTH, is_deep
from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.storage.attributes import EXACT, exact_form, from_exact_form, is_deep_form
from minari_pipe.storage.segment import AttributeTable


def dump_attributes(attributes: Mapping[str, Any]) -> str:
    """Return attributes as JSON that real Minari reads, plus exact forms of what JSON changes.

    Raises:
        InvalidEpisodeError: a value is neither a number, a string, None, an array, nor a list,
            tuple or dict of these.

    Example:
        >>> dump_attributes({"seed": 7, "options": {"goal": [1, 2]}})
        '{"seed": 7, "options": {"goal": [1, 2]}}'
    """
    plain: dict[str, Any] = {}
    exact: dict[str, Any] = {}
    for key, value in attributes.items():
        if type(key) is not str or key == EXACT:
            raise InvalidEpisodeError(
                f"attribute names must be strings other than {EXACT!r}, got {key!r}"
            )
        if type(value) in (bool, int, float, str):  # the common case, and always exact
            plain[key] = value
            continue
        if is_deep(value):
            raise InvalidEpisodeError(f"{key} is nested more than {MAX_DEPTH} deep")
        form = exact_form(value, key)
        plain[key] = _plain(value)
        # compare as text: in Python 1 == 1.0 == True and 0.0 == -0.0
        if json.dumps(exact_form(plain[key], key)) != json.dumps(form):
            exact[key] = form
    if exact:
        plain[EXACT] = exact
    return json.dumps(plain)


def dump_table(table: AttributeTable) -> Iterator[str]:
    """Yield the attributes of each episode as JSON; see :func:`dump_attributes`.

    Raises:
        InvalidEpisodeError: see :func:`dump_attributes`.

    Example:
        >>> list(dump_table(AttributeTable({"id": np.array([3, 4])}, [{}, {"note": "new"}])))
        ['{"id": 3}', '{"id": 4, "note": "new"}']
    """
    names = [json.dumps(name).replace("%", "%%") for name in table.numbers]
    form = "{" + ", ".join(f"{name}: %s" for name in names) + "}"
    # JSON writes the numbers of a list as it writes each of them alone
    columns = [json.dumps(values.tolist())[1:-1].split(", ") for values in table.numbers.values()]
    rows = list(zip(*columns, strict=True))
    is_plain = all(type(name) is str and name != EXACT for name in table.numbers)
    for place in range(len(table)):
        if rows and is_plain and (table.others is None or not table.others[place]):
            yield form % rows[place]
        else:
            yield dump_attributes(table[place])


def load_attributes(text: str) -> dict[str, Any]:
    """Parse attributes that :func:`dump_attributes` or real Minari wrote.

    Example:
        >>> load_attributes(dump_attributes({"limits": (0, 1)}))
        {'limits': (0, 1)}
    """
    plain = json_object(text)
    if is_deep_form(plain):
        raise ValueError(f"attributes are nested more than {MAX_DEPTH} deep")
    exact = plain.pop(EXACT, {})
    for key, form in exact.items():
        value = from_exact_form(form)
        # real Minari can change an attribute but does not update its exact form
        if key in plain and _text(_plain(value)) == _text(plain[key]):
            plain[key] = value
    return plain


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _plain(value: Any) -> Any:
    """Return the nearest value that JSON can represent."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return str(value)  # numbers that JSON cannot represent, or a subclass of str
