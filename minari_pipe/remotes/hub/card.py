"""The dataset card of a repository on the Hub: ``README.md``, the only card that the Hub renders.

It lists the datasets of the repository. What stands between two marked lines is written anew by
every upload, all else is the user's and stays as it is::

    ---                                the Hub's own settings; only where the file is new
    tags: [minari, ...]
    ---
    # door

    <!-- minari_pipe:begin ... -->
    | Dataset | Environment | Episodes | ...     one row for each dataset
    - **`door/human-v0`**: ...                   and what it says of itself
    <!-- minari_pipe:end -->

Of a dataset that is listed already, row and line are taken over, so that an upload need not read
the metadata of all of them; a version that is published does not change.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from minari_pipe.core.dataset_id import dataset_id_sort_key

BEGIN = "<!-- minari_pipe:begin (each upload writes the lines from here to minari_pipe:end) -->"
END = "<!-- minari_pipe:end -->"

_BLOCK = re.compile(
    r"<!-- minari_pipe:begin\b(?:(?!<!-- minari_pipe:begin\b).)*?<!-- minari_pipe:end -->",
    re.DOTALL,
)
_ROW = re.compile(r"\| \[`([^`]+)`\]\(")
_LINE = re.compile(r"- \*\*`([^`]+)`\*\*: ")
_HEAD = (
    "| Dataset | Environment | Episodes | Steps | Size | Return, random to expert |",
    "|:--|:--|--:|--:|--:|--:|",
)
_LONGEST = 1000  # characters of a description
_GREATEST = 1e15  # of numbers

#: what begins or ends something in Markdown; a single underscore within a word does not
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
#: what makes a heading, a list or a line of the text that it begins
_BEGINNING = re.compile(r"^[#+=-]|(?<=^\d)[.)]|(?<=^\d\d)[.)]")
#: words of which the Hub makes links by itself
_ADDRESS = re.compile(r"://|www\.|@", re.IGNORECASE)
#: invisible letters that scripts and emojis need
_JOINERS = "\u200c\u200d"

Listing = dict[str, list[str]]
"""What a card says of each dataset: its row of the table, and its line below it."""


def new_card(repo: str) -> str:
    """Return the card of a repository that has none, with nothing listed yet.

    Args:
        repo: its name, without the organization.
    """
    # the viewer of the Hub shows tables; of episodes it shows an error
    settings = (
        f"pretty_name: {json.dumps(repo)}",
        "task_categories:\n- reinforcement-learning",
        "tags:\n- minari\n- gymnasium\n- offline-reinforcement-learning",
        "viewer: false",
    )
    return "---\n{}\n---\n\n# {}\n\n{}\n{}\n".format("\n".join(settings), repo, BEGIN, END)


def listed(card: str) -> Listing:
    """Return what a card says of the datasets, by their ids; nothing where it is no card of ours.

    Example:
        >>> card = with_datasets(new_card("door"), "hf://org", described("door/a-v0", {}, 5, "u"))
        >>> list(listed(card))
        ['door/a-v0']
    """
    found: Listing = {}
    block = _BLOCK.search(card)
    for line in block[0].splitlines() if block else ():
        if match := _ROW.match(line):
            found[match[1]] = [line]
        elif (match := _LINE.match(line)) and match[1] in found:
            found[match[1]].append(line)
    return found


def described(
    dataset_id: str, metadata: Mapping[str, Any], size: int | None, address: str
) -> Listing:
    """Describe one dataset.

    Args:
        dataset_id: its id.
        metadata: its metadata; of values that are not what they should be, nothing is said.
        size: of its files, in bytes; None is what the metadata say.
        address: of the page that shows its files.
    """
    in_megabytes = metadata.get("dataset_size")
    if size is None and _is_number(in_megabytes):
        size = round(in_megabytes * 1e6)
    cells = (
        f"[`{dataset_id}`]({address})",
        _text(_environment(metadata)),
        _count(metadata.get("total_episodes")),
        _count(metadata.get("total_steps")),
        "" if size is None else _bytes(size),
        _scores(metadata),
    )
    row = "| " + " | ".join(cells) + " |"
    text = _text(metadata.get("description")) or "no description."
    made = [
        f"{label} {value}"
        for label, key in (("algorithm:", "algorithm_name"), ("by", "author"))
        if (value := _text(metadata.get(key)))
    ]
    ending = f" *({', '.join(made)})*" if made else ""
    return {dataset_id: [row, f"- **`{dataset_id}`**: {text}{ending}"]}


def with_datasets(card: str, address: str, datasets: Listing, description: object = None) -> str:
    """Return a card that lists these datasets, and has everything else as it was.

    Args:
        card: the text of the card, of a new one or of the user's.
        address: of the remote, such as ``hf://org``.
        datasets: what it is to list.
        description: of the namespace, if that has one.
    """
    ids = sorted(datasets, key=dataset_id_sort_key)
    lines = [BEGIN, ""]
    if text := _text(description):
        lines += [text, ""]
    lines += [
        "Offline reinforcement learning datasets in the [Minari](https://minari.farama.org) "
        "standard, recorded from [Gymnasium](https://gymnasium.farama.org) environments.",
        "",
    ]
    if ids:
        lines += [*_HEAD, *(datasets[key][0] for key in ids), ""]
        lines += [*(line for key in ids for line in datasets[key][1:]), ""]
        name = ids[0].rpartition("-v")[0]
        lines += _how_to_load([key for key in ids if key.rpartition("-v")[0] == name][-1], address)
    block = "\n".join([*lines, END])
    found = _BLOCK.search(card)
    if found is None:
        gap = "" if not card or card.endswith("\n\n") else "\n" if card.endswith("\n") else "\n\n"
        return f"{card}{gap}{block}\n"
    newline = "\r\n" if "\r\n" in card else "\n"
    return card[: found.start()] + block.replace("\n", newline) + card[found.end() :]


def _how_to_load(dataset_id: str, address: str) -> Iterable[str]:
    return (
        "## How to load",
        "",
        "```console",
        '$ pip install "minari[hdf5,hf]"',
        "```",
        "",
        "```python",
        "import os",
        "",
        f'os.environ["MINARI_REMOTE"] = "{address}"',
        "",
        "import minari",
        "",
        f'dataset = minari.load_dataset("{dataset_id}", download=True)',
        "for episode in dataset:",
        "    episode.observations, episode.actions, episode.rewards",
        "",
        "env = dataset.recover_environment()",
        "```",
        "",
    )


def _environment(metadata: Mapping[str, Any]) -> str:
    try:
        spec = json.loads(metadata["env_spec"])
        return spec["id"] if isinstance(spec["id"], str) else ""
    except (KeyError, TypeError, ValueError, RecursionError):
        return ""


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and _is_number(value) else ""


def _scores(metadata: Mapping[str, Any]) -> str:
    ends = [metadata.get(key) for key in ("ref_min_score", "ref_max_score")]
    if not all(map(_is_number, ends)):
        return ""
    return " to ".join(f"{end:,.2f}".replace("-", "\N{MINUS SIGN}") for end in ends)


def _bytes(size: float) -> str:
    """Write a size in units of thousands, with at least two digits.

    Example:
        >>> _bytes(999), _bytes(2345), _bytes(71234567)
        ('999 B', '2.3 kB', '71 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def _text(value: object) -> str:
    """Return a text as one line, or names as a list, in which nothing is HTML or Markdown.

    Example:
        >>> _text("a *b* ![t](http://tracker.example/x) of snake_case")
        'a \\\\*b\\\\* `![t](http://tracker.example/x)` of snake_case'
    """
    if isinstance(value, (list, tuple)):
        value = ", ".join(part for part in value if isinstance(part, str))
    if not isinstance(value, str):
        return ""
    line = " ".join(value.split())
    if len(line) > _LONGEST:
        line = line[:_LONGEST].rsplit(" ", 1)[0] + " …"
    line = "".join(letter for letter in line if letter.isprintable() or letter in _JOINERS)
    return _BEGINNING.sub(r"\\\g<0>", " ".join(map(_plain_word, line.split(" "))))


def _plain_word(word: str) -> str:
    """Write a word so that it opens no HTML and no Markdown; what would be a link becomes code."""
    if _ADDRESS.search(word):
        return f"`{word.replace('`', '').replace('|', '%7C')}`"
    return html.escape(_MARKS.sub(r"\\\g<0>", word), quote=False)


def _is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number of a size that fits into a table."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and -_GREATEST < value < _GREATEST
    )
