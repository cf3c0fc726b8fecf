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

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from minari_pipe.core.dataset_id import dataset_id_sort_key
from minari_pipe.core.env_specs import environment_id
from minari_pipe.datasets.cards.words import count, file_size, is_number, markdown

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
    if size is None and is_number(in_megabytes):
        size = round(in_megabytes * 1e6)
    cells = (
        f"[`{dataset_id}`]({address})",
        markdown(environment_id(metadata.get("env_spec"))),
        count(metadata.get("total_episodes")),
        count(metadata.get("total_steps")),
        "" if size is None else file_size(size),
        _scores(metadata),
    )
    row = "| " + " | ".join(cells) + " |"
    text = markdown(metadata.get("description")) or "no description."
    made = [
        f"{label} {value}"
        for label, key in (("algorithm:", "algorithm_name"), ("by", "author"))
        if (value := markdown(metadata.get(key)))
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
    if text := markdown(description):
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


def _scores(metadata: Mapping[str, Any]) -> str:
    ends = [metadata.get(key) for key in ("ref_min_score", "ref_max_score")]
    if not all(map(is_number, ends)):
        return ""
    return " to ".join(f"{end:,.2f}".replace("-", "\N{MINUS SIGN}") for end in ends)
