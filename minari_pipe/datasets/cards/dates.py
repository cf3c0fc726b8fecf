"""Add the date of publication to a card; a card is made before its dataset is published."""

from __future__ import annotations

import json
import re
from typing import Any

from minari_pipe.core.json_object import json_object

#: names of the files that state the date
DATED = ("croissant.json", "report.html")

#: length of a description in characters; a nested one takes hundreds of times as much with margins
_LONGEST = 100_000
_KEY = "datePublished"
_SCRIPT = re.compile(r'(<script type="application/ld\+json">)(.*?)(</script>)', re.DOTALL)


def dated(name: str, content: bytes, date: str) -> bytes:
    r"""Return a file of a card with the date of publication; unchanged if it states none.

    Args:
        name: name of the file, such as ``report.html``.
        content: the file, which may be a stranger's.
        date: such as ``2026-11-23``.

    Example:
        >>> dated("croissant.json", b'{"name": "a", "creator": []}', "2026-11-23").decode()
        '{\n "name": "a",\n "creator": [],\n "datePublished": "2026-11-23"\n}\n'
    """
    try:
        text = content.decode()
        if name == "croissant.json":
            return _with_date(text, date).encode()
        if name == "report.html" and (script := _SCRIPT.search(text)):
            description = in_script(_with_date(script[2], date))
            return (text[: script.start(2)] + description + text[script.end(2) :]).encode()
    except (ValueError, RecursionError):
        pass
    return content


def in_script(description: str) -> str:
    """Return a JSON text as a page may contain it, where nothing in it can end the script."""
    return description.replace("<", "\\u003c").replace("&", "\\u0026")


def dumped(description: dict[str, Any]) -> str:
    """Return a description as a file."""
    return json.dumps(description, indent=1, ensure_ascii=False) + "\n"


def _with_date(text: str, date: str) -> str:
    """Return a description with the date after its creators, where the specification has it.

    Raises:
        ValueError: it is none that this package made.
    """
    if len(text) > _LONGEST:
        raise ValueError("it is too long")
    items = [item for item in json_object(text).items() if item[0] != _KEY]
    place = next((n for n, (key, _) in enumerate(items, start=1) if key == "creator"), len(items))
    return dumped(dict([*items[:place], (_KEY, date), *items[place:]]))
