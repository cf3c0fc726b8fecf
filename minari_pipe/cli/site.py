"""The command ``site``: pages to browse the datasets of a root, a workspace or a remote."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minari_pipe.cli.remote_datasets import published_card, remote_place
from minari_pipe.cli.tables import counted
from minari_pipe.core.datasets_root import ROOT_VARIABLE, data_path_of, get_dataset_path
from minari_pipe.core.files.manifest import entries_of
from minari_pipe.core.files.manifest_update import known_manifest
from minari_pipe.core.messages import one_line
from minari_pipe.datasets.library import list_local_datasets
from minari_pipe.errors import ConfigError, MinariPipeError
from minari_pipe.pipeline.workspace import find_root
from minari_pipe.remotes import Remote, is_address
from minari_pipe.remotes.hosting import list_remote_datasets, opened
from minari_pipe.remotes.transfer.download import look
from minari_pipe.storage.base import MinariStorage

if TYPE_CHECKING:
    from minari_pipe.datasets.cards.site import Entry, Given, Written
    from minari_pipe.pipeline.execution.engines.base import Outcome

#: fewer datasets are written in one process
_FEW = 200


def site(
    source: Annotated[
        str, typer.Argument(help="local, remote, workspace, a folder, or an address.")
    ] = "local",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the pages.")
    ] = Path("site"),
    all: Annotated[bool, typer.Option("--all", "-a", help="Show every version.")] = False,
) -> None:
    """Write a static site of the datasets of a root, a workspace or a remote."""
    from minari_pipe.datasets.cards.site import write_site

    if source == "remote" or (is_address(source) and not Path(source).is_dir()):
        place, prefix = remote_place(source, None)
        n = write_site(output, _remote_entries(place, prefix, all), "Datasets")
    else:
        place = str(_root(source))
        n = write_site(output, local_entries(place, all), "Datasets", run=side_by_side)
    print(f"{counted(n, 'dataset')}: {one_line(output / 'index.html')}")


def _root(source: str) -> Path:
    """Return the datasets root that a word or a folder names."""
    if source == "local":
        return get_dataset_path()
    folder = find_root() if source == "workspace" else Path(os.path.abspath(source))
    if not folder.is_dir():
        raise ConfigError(
            f"{one_line(source)} is no folder; expected local, remote, workspace, a folder with "
            "datasets, or an address"
        )
    return folder / "datasets" if (folder / ".dvc").is_dir() else folder


def local_entries(root: str, all: bool) -> Iterator[tuple[str, Callable[[], Entry]]]:
    """Yield the ids of the datasets of a root, each with what reads what a site shows of it.

    Args:
        root: the root.
        all: every version, not only the latest of each.
    """
    before = os.environ.get(ROOT_VARIABLE)
    os.environ[ROOT_VARIABLE] = root
    try:
        found = {
            name: (metadata, data_path_of(name))
            for name, metadata in list_local_datasets(latest_version=not all).items()
        }
    finally:
        del os.environ[ROOT_VARIABLE]
        if before is not None:
            os.environ[ROOT_VARIABLE] = before
    for name, (metadata, data) in found.items():
        yield name, partial(_local_entry, name, metadata, data)


def side_by_side(call: Callable[[Given], Written], given: Iterable[Given]) -> Iterator[Written]:
    """Do what ``map`` does, on all cores if there is more to do than starting processes costs.

    Raises:
        MinariPipeError: a process was killed.
    """
    from minari_pipe.pipeline.config import schema
    from minari_pipe.pipeline.execution.engines.processes import ProcessesEngine

    datasets = list(given)
    if len(datasets) < _FEW:
        yield from map(call, datasets)
        return
    with ProcessesEngine(schema.Engine(name="processes")) as engine:
        size = -(-len(datasets) // engine.n_workers)
        for start in range(0, len(datasets), size):
            engine.submit(start, partial(_all, call, datasets[start : start + size]))
        outcomes: dict[int, Outcome] = {}
        while len(outcomes) * size < len(datasets):
            outcomes.update(engine.wait(1.0))
    for _, outcome in sorted(outcomes.items()):
        if outcome.value is None:
            raise MinariPipeError(f"the site is not written: {outcome.error}")
        yield from outcome.value["written"]


def _all(call: Callable[[Given], Written], given: list[Given]) -> Outcome:
    from minari_pipe.pipeline.execution.engines.base import Outcome

    return Outcome({"written": list(map(call, given))})


def _local_entry(name: str, metadata: dict[str, Any], data: Path) -> Entry:
    from minari_pipe.datasets.cards.folder import LARGEST, files_of_card
    from minari_pipe.datasets.cards.page import FILM
    from minari_pipe.datasets.cards.site import Entry
    from minari_pipe.datasets.cards.summary import FILES, summary_of

    content = known_manifest(data) or {}
    card = files_of_card(data.parent, content, (*FILES, FILM), most=LARGEST)
    facts, description = summary_of(
        name,
        metadata,
        card,
        entries_of(content),
        content_sha256=content.get("content_sha256"),
        storage=None if "episodes.csv" in card else MinariStorage.read(data),
    )
    return Entry(facts, description, card.get(FILM))


def _remote_entries(
    place: str, prefix: str | None, all: bool
) -> Iterator[tuple[str, Callable[[], Entry]]]:
    remote = opened(place)
    for name, metadata in list_remote_datasets(place, prefix, latest_version=not all).items():
        yield name, partial(_remote_entry, remote, name, metadata)


def _remote_entry(remote: Remote, name: str, metadata: dict[str, Any]) -> Entry:
    from minari_pipe.datasets.cards.site import Entry

    return Entry(*published_card(remote, name, metadata, look(remote, name)))
