"""Write the dataset card of a repository on the Hub: ``README.md``, the only card it renders.

The card lists the datasets of the repository. Each upload rewrites the lines between two markers;
everything else is the user's and is kept::

    ---                                settings of the Hub; only in a new file
    tags: [minari, ...]
    ---
    # door

    <!-- minari_pipe:begin ... -->
    | Dataset | Environment | Episodes | ...     one row per dataset
    - **`door/human-v0`**: ...                   and its description
    <!-- minari_pipe:end -->

Rows and lines of datasets that are already listed are kept, so that an upload need not read the
metadata of all of them; a published version does not change.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from minari_pipe.core.dataset_id import dataset_id_sort_key
from minari_pipe.core.json_object import json_object

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
_GREATEST = 1e15  # largest number to show

#: Characters that open or close Markdown; a single underscore within a word does not.
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
#: Characters that make the text that they begin a heading, a list or a rule.
_BEGINNING = re.compile(r"^[#+=-]|(?<=^\d)[.)]|(?<=^\d\d)[.)]")
#: Words that the Hub turns into links by itself.
_ADDRESS = re.compile(r"://|www\.|@", re.IGNORECASE)
#: Invisible characters that scripts and emojis need.
_JOINERS = "\u200c\u200d"

#: For each dataset of a card, its row of the table, and its line below the table.
Listing = dict[str, list[str]]


def new_card(repo: str) -> str:
    """Return the card of a repository that has none, with no datasets listed yet.

    Args:
        repo: name of the repository, without the organization.
    """
    # the Hub's viewer shows tables, and for episodes only an error
    settings = (
        f"pretty_name: {json.dumps(repo)}",
        "task_categories:\n- reinforcement-learning",
        "tags:\n- minari\n- gymnasium\n- offline-reinforcement-learning",
        "viewer: false",
    )
    return "---\n{}\n---\n\n# {}\n\n{}\n{}\n".format("\n".join(settings), repo, BEGIN, END)


def listed(card: str) -> Listing:
    """Return the lines of each dataset in a card, by id; empty if it has no marked block.

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
    """Return the row and the line of one dataset.

    Args:
        dataset_id: id of the dataset.
        metadata: its metadata; invalid values are left out.
        size: size of its files in bytes; None means the size in the metadata.
        address: URL of the page that shows its files.
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
    """Return a card that lists these datasets, with everything else unchanged.

    Args:
        card: text of the card, whether new or the user's.
        address: address of the remote, such as ``hf://org``.
        datasets: the datasets to list.
        description: description of the namespace, if it has one.
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
        env_id = json_object(metadata.get("env_spec")).get("id")
    except ValueError:
        return ""
    return env_id if isinstance(env_id, str) else ""


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and _is_number(value) else ""


def _scores(metadata: Mapping[str, Any]) -> str:
    ends = [metadata.get(key) for key in ("ref_min_score", "ref_max_score")]
    if not all(map(_is_number, ends)):
        return ""
    return " to ".join(f"{end:,.2f}".replace("-", "\N{MINUS SIGN}") for end in ends)


def _bytes(size: float) -> str:
    """Return a size in decimal units, with at least two significant digits.

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
    r"""Return a text as one line, or names as a list, with HTML and Markdown escaped.

    Example:
        >>> _text("a *b* ![t](http://tracker.example/x) of snake_case")
        'a \\*b\\* `![t](http://tracker.example/x)` of snake_case'
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
    """Escape HTML and Markdown in a word; a word that would become a link becomes code."""
    if _ADDRESS.search(word):
        return f"`{word.replace('`', '').replace('|', '%7C')}`"
    return html.escape(_MARKS.sub(r"\\\g<0>", word), quote=False)


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that fits into a table."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and -_GREATEST < value < _GREATEST
    )
