"""Read JSON objects, which may come from a stranger."""

from __future__ import annotations

import json
import reprlib
from typing import Any


def json_object(text: Any) -> dict[str, Any]:
    """Return the object that a JSON text contains.

    Raises:
        ValueError: it is not a text, not valid JSON or not an object, or is nested too deeply.

    Example:
        >>> json_object('{"id": "CartPole-v1"}')
        {'id': 'CartPole-v1'}
        >>> json_object("[" * 100_000)
        Traceback (most recent call last):
        ...
        ValueError: it is nested too deeply
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {reprlib.repr(found)}")
    return found
