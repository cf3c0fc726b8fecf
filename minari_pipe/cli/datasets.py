"""The commands that list, describe and delete datasets."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from minari_pipe.cli.descriptions import COPIED, dataset_fields, print_environments
from minari_pipe.cli.remote_datasets import remote_place, show_remote
from minari_pipe.cli.tables import (
    FILES_WIDTH,
    count,
    counted,
    megabytes,
    names,
    print_fields,
    print_json,
    print_table,
)
from minari_pipe.core.datasets_root import data_path_of, get_dataset_path
from minari_pipe.core.files.manifest import POLICIES, entries_of, read_manifest
from minari_pipe.core.messages import one_line
from minari_pipe.core.metadata import is_finite_number
from minari_pipe.datasets.library import (
    HOW_TO_FETCH,
    delete_dataset,
    latest_version_of,
    list_local_datasets,
)
from minari_pipe.errors import ConfigError, DatasetNotFoundError, MinariPipeError
from minari_pipe.remotes import is_address
from minari_pipe.remotes.hosting import list_remote_datasets, load_dataset
from minari_pipe.storage.base import MinariStorage


def complete_id(incomplete: str) -> list[str]:
    """Return the ids in the local root that begin with ``incomplete``, for shell completion."""
    return list(list_local_datasets(prefix=incomplete))


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def list_datasets(
    source: Annotated[
        str, typer.Argument(help="local, remote, or an address such as hf://org/D4RL.")
    ] = "local",
    all: Annotated[bool, typer.Option("--all", "-a", help="List every version.")] = False,
    prefix: Annotated[
        str | None, typer.Option("--prefix", "-p", help="Only ids that begin with this.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the latest version of each dataset; for a remote, the latest readable one."""
    if source == "local":
        place = str(get_dataset_path())
        found = list_local_datasets(latest_version=not all, prefix=prefix)
    else:
        place, prefix = remote_place(source, prefix)
        found = list_remote_datasets(
            place, prefix, latest_version=not all, compatible_minari_version=not all
        )
    if as_json:
        print_json(found)
    elif found:
        print_datasets(f"Minari datasets in {place}", found)
    else:
        print(f"no datasets in {one_line(place)}" + (f" begin with {prefix!r}" if prefix else ""))


def print_datasets(title: str, found: dict[str, dict[str, Any]]) -> None:
    """Print a table of datasets from their raw metadata."""
    size = sum(_number(metadata.get("dataset_size")) for metadata in found.values())
    print_table(
        title,
        {
            "Name": "left",
            "Episodes": "right",
            "Steps": "right",
            "Size": "right",
            "Format": "left",
            "Author": "left",
        },
        (
            (
                name,
                count(metadata.get("total_episodes")),
                count(metadata.get("total_steps")),
                megabytes(metadata.get("dataset_size")),
                str(metadata.get("data_format", "?")),
                names(metadata.get("author")),
            )
            for name, metadata in found.items()
        ),
        caption=f"{counted(len(found), 'dataset')}, {megabytes(size)}",
    )


def show(
    dataset_id: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_id,
            help="Id or address; without a version, the latest. If not local, of a remote.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Describe a local or remote dataset: spaces, environment, scores, files."""
    if is_address(dataset_id):
        return show_remote(dataset_id, as_json)
    try:
        dataset = load_dataset(dataset_id)
    except DatasetNotFoundError as error:
        try:
            return show_remote(dataset_id, as_json)
        except MinariPipeError as other:
            text = str(error).removesuffix(HOW_TO_FETCH)
            raise DatasetNotFoundError(f"{text} On the remote: {other}") from other
    metadata = dataset.storage.read_raw_metadata(dataset.storage.data_path)
    path = dataset.storage.data_path
    manifest = read_manifest(path.parent)
    if as_json:
        print_json({**metadata, "path": str(path), "manifest": manifest})
        return None
    print_fields(dataset.id, dataset_fields(dataset, metadata), whole=COPIED)
    print_environments(metadata, dataset.id)
    print()
    files = {"Path": str(path)}
    if manifest is not None and "content_sha256" in manifest:
        files["content_sha256"] = str(manifest["content_sha256"])
    if manifest is not None and (policies := _policies(manifest)):
        files["Policies"] = policies
    print_fields("Files", files, name_width=FILES_WIDTH, whole=files)
    return None


def _policies(manifest: dict[str, Any]) -> str:
    """Return the names of the checkpoints that the dataset was made with."""
    return names([name for name in entries_of(manifest) if name.startswith(f"{POLICIES}/")])


def _number(value: Any) -> float:
    return float(value) if is_finite_number(value) else 0.0


def delete(
    dataset_ids: Annotated[
        list[str], typer.Argument(autocompletion=complete_id, help="Ids with their versions.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete datasets from the local root; all of them must exist."""
    found = {name: _metadata_to_delete(name) for name in dataset_ids}
    if not yes:
        print_datasets("To be deleted", found)
        confirm("Are you sure you want to delete these local datasets?")
    for name in found:
        delete_dataset(name)
        print(f"Dataset {name} deleted!")


def confirm(question: str) -> None:
    """Ask the user; any answer but yes aborts the command."""
    if sys.stdin is None:
        raise ConfigError("cannot ask for confirmation: standard input is closed; pass --yes")
    typer.confirm(question, abort=True)


def _metadata_to_delete(dataset_id: str) -> dict[str, Any]:
    """Return a dataset's metadata; ``{}`` if damaged, which is a reason to delete it."""
    latest = latest_version_of(dataset_id)
    if latest != dataset_id:
        raise ConfigError(f"{dataset_id!r} has no version; to delete the latest, use {latest!r}")
    try:
        return MinariStorage.read_raw_metadata(data_path_of(dataset_id))
    except MinariPipeError:
        return {}
