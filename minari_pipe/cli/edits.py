"""The commands that make datasets from existing data, or write one anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from minari_pipe.cli.datasets import Json, complete_id, confirm
from minari_pipe.cli.tables import count, counted, print_json, print_table
from minari_pipe.core.messages import one_line
from minari_pipe.core.trust import add_trust
from minari_pipe.datasets.cards.words import file_size
from minari_pipe.datasets.combine import combine_datasets, split_dataset
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.library import delete_dataset
from minari_pipe.datasets.migrate import migrate_dataset
from minari_pipe.errors import ConfigError
from minari_pipe.recording.recovery import Leftover, discard, list_leftovers
from minari_pipe.recording.recovery import recover as recover_leftover
from minari_pipe.remotes.hosting import load_dataset
from minari_pipe.storage.formats import FORMATS

DatasetIds = Annotated[
    list[str],
    typer.Argument(
        autocompletion=complete_id, help="Two or more ids; without a version, the latest."
    ),
]


def _trust(modules: list[str]) -> list[str]:
    add_trust(modules, [])
    return modules


Trusted = Annotated[
    list[str],
    typer.Option(
        "--trust-module",
        metavar="MODULE",
        help="Module that a dataset may import.",
        callback=_trust,
    ),
]


def combine(
    datasets: DatasetIds,
    dataset_id: Annotated[str, typer.Option(help="Id of the new dataset.")],
    as_json: Json = False,
) -> None:
    """Combine the episodes of several datasets into a new one; the originals are kept."""
    if len(datasets) < 2:
        raise ConfigError(f"combine needs two or more datasets, got {datasets}")
    _say(combine_datasets([load_dataset(name) for name in datasets], dataset_id), as_json)


def split(
    dataset: Annotated[
        str, typer.Argument(autocompletion=complete_id, help="Id; without a version, the latest.")
    ],
    into: Annotated[
        list[str],
        typer.Option(
            metavar="NEW_ID=SIZE", help="A number of episodes, or a fraction such as 0.8."
        ),
    ],
    seed: Annotated[int | None, typer.Option(help="Seed for choosing the episodes.")] = None,
    as_json: Json = False,
) -> None:
    """Split random episodes of a dataset into new, disjoint datasets; the original is kept.

    \b
    For example:
      minari-pipe split door/all-v0 --into door/train-v0=0.8 --into door/test-v0=0.2
    """
    parts = [text.rpartition("=") for text in into]
    sizes = [_size(size, text) for (_, _, size), text in zip(parts, into, strict=True)]
    source = load_dataset(dataset)
    made: list[MinariDataset] = []
    try:
        for (new_id, _, _), view in zip(parts, split_dataset(source, sizes, seed), strict=True):
            made.append(combine_datasets([view], new_id))
    except BaseException:
        for dataset_made in made:  # all or none
            delete_dataset(dataset_made.id)
        raise
    if as_json:
        print_json([_facts(dataset_made) for dataset_made in made])
        return
    for dataset_made in made:
        _say(dataset_made)


def _size(text: str, given: str) -> int | float:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise ConfigError(
            f"--into {given!r}: expected NEW_ID=SIZE, where SIZE is a number of episodes or a "
            "fraction such as 0.8"
        ) from None


def compact(
    dataset_ids: Annotated[
        list[str],
        typer.Argument(autocompletion=complete_id, help="Ids; without a version, the latest."),
    ],
    as_json: Json = False,
) -> None:
    """Write datasets anew without the unused bytes that appends leave; who reads may go on."""
    found = [load_dataset(name) for name in dataset_ids]
    saved = {dataset.id: dataset.storage.compact() for dataset in found}
    if as_json:
        print_json([{"id": name, "saved_bytes": size} for name, size in saved.items()])
        return
    for name, size in saved.items():
        print(f"{name}: {file_size(size)} saved" if size else f"{name}: no unused bytes")


def migrate(
    source: Annotated[str, typer.Argument(help="A dataset id, its folder, or a file.")],
    dataset_id: Annotated[str, typer.Argument(help="Id of the new dataset.")],
    data_format: Annotated[
        str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")
    ] = "hdf5",
    trust_module: Trusted = [],  # noqa: B006  (typer copies it)
    as_json: Json = False,
) -> None:
    """Convert a dataset of any layout, or a D4RL file, to the current layout; keep the source."""
    _say(
        migrate_dataset(
            source, dataset_id, data_format=data_format, trusted_modules=tuple(trust_module)
        ),
        as_json,
    )


def recover(
    dataset_id: Annotated[
        str | None, typer.Argument(help="Id of the new dataset; without it, leftovers are listed.")
    ] = None,
    leftover: Annotated[
        str | None, typer.Option(help="Name of the leftover; needed if there are several.")
    ] = None,
    remove: Annotated[
        str | None, typer.Option("--discard", help="Name of a leftover to delete.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data_format: Annotated[
        str | None,
        typer.Option("--format", help=f"One of {', '.join(FORMATS)}; by default the collector's."),
    ] = None,
    author: Annotated[str | None, typer.Option(help="Author of the dataset.")] = None,
    author_email: Annotated[str | None, typer.Option(help="Email of the author.")] = None,
    algorithm_name: Annotated[str | None, typer.Option(help="What chose the actions.")] = None,
    description: Annotated[str | None, typer.Option(help="What the dataset contains.")] = None,
    code_permalink: Annotated[str | None, typer.Option(help="Link to the code.")] = None,
    as_json: Json = False,
) -> None:
    """Make a dataset from the episodes of an interrupted collection, or list the leftovers."""
    found = {place.path.name: place for place in list_leftovers()}
    if remove is not None:
        place = _chosen(found, remove)
        if not yes:
            confirm(f"Delete {one_line(place.path)} with {counted(place.episodes, 'episode')}?")
        discard(place)
        print(f"{one_line(place.path)} deleted")
        return
    if dataset_id is None:
        _list_leftovers(found, as_json)
        return
    _say(
        recover_leftover(
            dataset_id,
            _chosen(found, leftover),
            data_format=data_format,
            author=author,
            author_email=author_email,
            algorithm_name=algorithm_name,
            description=description,
            code_permalink=code_permalink,
        ),
        as_json,
    )


def _chosen(found: dict[str, Leftover], name: str | None) -> Leftover:
    idle = [key for key, place in found.items() if not place.alive]
    idle = [key for key in idle if found[key].episodes] or idle
    if name is None and len(idle) == 1:
        return found[idle[0]]
    if name is not None and Path(name).name in found:
        return found[Path(name).name]
    if not found:
        raise ConfigError("no leftovers in the datasets root")
    what = "there are several leftovers" if name is None else f"no leftover {name!r}"
    raise ConfigError(f"{what}; name one with --leftover: {', '.join(found)}")


def _list_leftovers(found: dict[str, Leftover], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "path": str(place.path),
                    "alive": place.alive,
                    "episodes": place.episodes,
                    "steps": place.steps,
                    "env_id": place.env_id,
                    "started": place.started,
                    "damage": place.damage,
                }
                for name, place in found.items()
            ]
        )
        return
    if not found:
        print("no leftovers")
        return
    print_table(
        "Leftovers of interrupted collections",
        {
            "Name": "left",
            "Environment": "left",
            "Episodes": "right",
            "Steps": "right",
            "State": "left",
        },
        (
            (
                name,
                place.env_id or "?",
                count(place.episodes),
                count(place.steps),
                _state(place),
            )
            for name, place in found.items()
        ),
        caption="To make a dataset of one: minari-pipe recover ID --leftover NAME",
    )


def _state(place: Leftover) -> str:
    return "still running" if place.alive else place.damage or "intact"


def _say(dataset: MinariDataset, as_json: bool = False) -> None:
    if as_json:
        print_json(_facts(dataset))
        return
    print(
        f"{dataset.id}: {counted(dataset.total_episodes, 'episode')}, "
        f"{counted(dataset.total_steps, 'step')}"
    )


def _facts(dataset: MinariDataset) -> dict[str, Any]:
    return {
        "dataset_id": dataset.id,
        "total_episodes": dataset.total_episodes,
        "total_steps": dataset.total_steps,
        "path": str(dataset.storage.data_path),
    }
