"""Write the dataset card of a repository on the Hub: ``README.md``, the only card it renders.

The card lists the datasets of the repository. Each upload rewrites the lines between two markers;
everything else is the user's and is kept::

    ---                                see :mod:`minari_pipe.remotes.hub.front_matter`
    tags: [minari, ...]
    ---
    # door

    <!-- minari_pipe:begin ... -->
    | Dataset | Environment | Episodes | ...     one row per dataset
    - **`door/human-v0`**: ...                   and its description
    ![Film of door/human-v0](human-v0/...)       and its film, if it has a card with one
    [Card of `door/human-v0`](human-v0/...)      and links to the files of the card
    <!-- minari_pipe:end -->

Rows and lines of datasets that are already listed are kept, so that an upload need not read the
metadata of all of them; a published version does not change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from minari_pipe.core.dataset_id import dataset_id_sort_key
from minari_pipe.core.env_specs import environment_id
from minari_pipe.core.files.manifest import CARD
from minari_pipe.datasets.cards.page import FILM
from minari_pipe.datasets.cards.words import count, file_size, is_number, markdown
from minari_pipe.remotes.hub.front_matter import new_front_matter, with_facts, with_tables

BEGIN = "<!-- minari_pipe:begin (each upload writes the lines from here to minari_pipe:end) -->"
END = "<!-- minari_pipe:end -->"

_BLOCK = re.compile(
    r"<!-- minari_pipe:begin\b(?:(?!<!-- minari_pipe:begin\b).)*?<!-- minari_pipe:end -->",
    re.DOTALL,
)
_ROW = re.compile(r"\| \[`([^`]+)`\]\(")
_LINES = re.compile(r"(?:- \*\*`([^`]+)`\*\*: |!\[Film of ([^\]]+)\]\(|\[Card of `([^`]+)`\]\()")
_TABLE = "episodes.csv"
#: Files of a card to which a line links, with the text of each link.
_LINKS = {"report.html": "report", _TABLE: "episodes"}
_HEAD = (
    "| Dataset | Environment | Episodes | Steps | Size | Return, random to expert |",
    "|:--|:--|--:|--:|--:|--:|",
)
#: Names of the files of a dataset's card that a card on the Hub shows or links.
FILES = tuple(f"{CARD}/{name}" for name in ("card.md", FILM, *_LINKS))
#: For each dataset of a card, its row of the table, and its lines below the table: one about the
#: dataset, then those about its own card.
Listing = dict[str, list[str]]


def new_card(repo: str, metadata: Collection[Mapping[str, Any]] = ()) -> str:
    """Return the card of a repository that has none, with no datasets listed yet.

    Args:
        repo: name of the repository, without the organization.
        metadata: metadata of the datasets that it will list.
    """
    return f"{new_front_matter(repo, metadata)}\n# {repo}\n\n{BEGIN}\n{END}\n"


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
        elif (match := _LINES.match(line)) and (name := match[match.lastindex or 0]) in found:
            found[name].append(line)
    return found


def described(
    dataset_id: str,
    metadata: Mapping[str, Any],
    size: int | None,
    address: str,
    files: Collection[str] = (),
) -> Listing:
    """Return the row and the lines of one dataset.

    Args:
        dataset_id: id of the dataset.
        metadata: its metadata; invalid values are left out.
        size: size of its files in bytes; None means the size in the metadata.
        address: URL of the page that shows its files.
        files: names of its files, such as ``card/card.md``.
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
    return {
        dataset_id: [row, f"- **`{dataset_id}`**: {text}{ending}", *_card_lines(dataset_id, files)]
    }


def _card_lines(dataset_id: str, files: Collection[str]) -> Iterable[str]:
    """Yield the lines about the card of a dataset; none if it has no card."""
    if f"{CARD}/{FILM}" in files:
        yield f"![Film of {dataset_id}]({quote(_path(dataset_id, FILM))})"
    if f"{CARD}/card.md" in files:
        texts = {"card.md": f"Card of `{dataset_id}`", **_LINKS}
        yield ", ".join(
            f"[{text}]({quote(_path(dataset_id, name))})"
            for name, text in texts.items()
            if f"{CARD}/{name}" in files
        )


def _path(dataset_id: str, name: str) -> str:
    """Return the path of a file of a dataset's card in its repository."""
    return "/".join(part for part in (dataset_id.partition("/")[2], CARD, name) if part)


def _tables(datasets: Listing) -> dict[str, str]:
    """Return the paths of the tables of episodes in a repository, by the name of the config."""
    found: dict[str, str] = {}
    for dataset_id in sorted(datasets, key=dataset_id_sort_key):
        path = _path(dataset_id, _TABLE)
        if any(f"]({quote(path)})" in line for line in datasets[dataset_id][2:]):
            name = (dataset_id.partition("/")[2] or dataset_id).replace("/", "-")
            found.setdefault(name, path)
    return found


def with_datasets(
    card: str,
    address: str,
    datasets: Listing,
    description: object = None,
    added: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Return a card that lists these datasets, with everything else unchanged.

    Args:
        card: text of the card, whether new or the user's.
        address: address of the remote, such as ``hf://org``.
        datasets: the datasets to list.
        description: description of the namespace, if it has one.
        added: metadata of those that the card does not list yet, by id.
    """
    added = added or {}
    n_episodes = sum(map(_episodes, datasets.values()))
    card = with_facts(card, added.values(), n_episodes, first=datasets.keys() <= added.keys())
    card = with_tables(card, _tables(datasets))
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
        lines += [*(line for key in ids for line in datasets[key][1:2]), ""]
        for key in ids:
            lines += [*datasets[key][2:], ""] if datasets[key][2:] else []
        name = ids[0].rpartition("-v")[0]
        lines += _how_to_load([key for key in ids if key.rpartition("-v")[0] == name][-1], address)
    block = "\n".join([*lines, END])
    found = _BLOCK.search(card)
    if found is None:
        gap = "" if not card or card.endswith("\n\n") else "\n" if card.endswith("\n") else "\n\n"
        return f"{card}{gap}{block}\n"
    newline = "\r\n" if "\r\n" in card else "\n"
    return card[: found.start()] + block.replace("\n", newline) + card[found.end() :]


def _episodes(lines: list[str]) -> int:
    """Return the number of episodes in the row of a dataset, 0 if it has none."""
    cells = re.split(r"(?<!\\)\|", lines[0])
    text = cells[3].strip().replace(",", "") if len(cells) > 3 else ""
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else 0


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
