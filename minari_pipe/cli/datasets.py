"""The commands that look at datasets of the local root, or remove them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import numpy as np
import typer

from minari_pipe.cli.tables import (
    count,
    counted,
    megabytes,
    names,
    one_line,
    print_fields,
    print_json,
    print_table,
)
from minari_pipe.dataset import MinariDataset
from minari_pipe.dataset_spec import parse_spec
from minari_pipe.datasets_root import data_path_of, get_dataset_path
from minari_pipe.errors import ConfigError, CorruptDatasetError, MinariPipeError, RemoteError
from minari_pipe.library import (
    delete_dataset,
    latest_version_of,
    list_local_datasets,
    load_dataset,
)
from minari_pipe.manifest import read_manifest
from minari_pipe.metadata import is_finite_number, metadata_faults, supported_dataset_versions
from minari_pipe.storage.base import MinariStorage


def complete_id(incomplete: str) -> list[str]:
    """Ids of the local root that begin like this, for the shell's completion."""
    return list(list_local_datasets(prefix=incomplete))


DatasetId = Annotated[
    str, typer.Argument(autocompletion=complete_id, help="Without a version: the latest.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def list_datasets(
    source: Annotated[str, typer.Argument(help="Where: local.")] = "local",
    all: Annotated[bool, typer.Option("--all", "-a", help="Every version of each.")] = False,
    prefix: Annotated[
        str | None, typer.Option("--prefix", "-p", help="Only ids that begin like this.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the datasets of the local root, the latest version of each."""
    if source != "local":
        raise RemoteError(
            f"cannot list {source!r}: this version of minari_pipe has no remotes yet; expected "
            "'local'"
        )
    found = list_local_datasets(latest_version=not all, prefix=prefix)
    if as_json:
        print_json(found)
        return
    if not found:
        print(
            f"no datasets in {get_dataset_path()}" + (f" begin with {prefix!r}" if prefix else "")
        )
        return
    print_datasets(f"Minari datasets in {get_dataset_path()}", found)


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


def show(dataset_id: DatasetId, as_json: Json = False) -> None:
    """Describe a dataset of the local root, its spaces, environment and scores."""
    dataset = load_dataset(dataset_id)
    metadata = dataset.storage.read_raw_metadata(dataset.storage.data_path)
    path = dataset.storage.data_path
    manifest = read_manifest(path.parent)
    if as_json:
        print_json({**metadata, "path": str(path), "manifest": manifest})
        return
    print_fields(dataset.id, _description(dataset, metadata))
    collection, evaluation = metadata.get("env_spec"), metadata.get("eval_env_spec")
    same = evaluation == collection
    for title, spec in (
        ("Environment, also for evaluation" if same else "Environment", collection),
        ("Evaluation environment", None if same else evaluation),
    ):
        if spec:
            print()
            print_fields(title, _environment(spec, dataset.id))
    print()
    files = {"Path": str(path)}
    if manifest is not None:
        files["content_sha256"] = str(manifest.get("content_sha256"))
    print_fields("Files", files)


def _description(dataset: MinariDataset, metadata: dict[str, Any]) -> dict[str, str]:
    faults = dict(metadata_faults(metadata))
    metadata = {key: value for key, value in metadata.items() if key not in faults}
    version = dataset.minari_version or "not given"
    returns = np.asarray(dataset.episodes["return"], dtype=np.float64)
    fields = {
        "Description": metadata.get("description"),
        "Episodes": count(dataset.total_episodes),
        "Steps": count(dataset.total_steps),
        "Return": _spread(returns),
        "Reference scores": _scores(metadata),
        "Observation space": one_line(dataset.observation_space),
        "Action space": one_line(dataset.action_space),
        "Algorithm": metadata.get("algorithm_name"),
        "Author": names(metadata.get("author")),
        "Email": names(metadata.get("author_email")),
        "Code": metadata.get("code_permalink"),
        "Requirements": names(metadata.get("requirements")),
        "Combined from": names(metadata.get("combined_datasets")),
        "License": metadata.get("license"),
        "Citation": metadata.get("citation"),
        "Format": f"{metadata.get('data_format')}, {megabytes(metadata.get('dataset_size'))}",
        "Standard": version
        + ("" if version in supported_dataset_versions else " (an older or unknown one)"),
        "Not valid": "; ".join(f"{key} {what}" for key, what in faults.items()),
    }
    return {name: str(value) for name, value in fields.items() if value}


def _spread(returns: np.ndarray) -> str:
    if not len(returns):
        return ""
    low, high = returns.min(), returns.max()
    return f"mean {returns.mean():.2f}, from {low:.2f} to {high:.2f}"


def _scores(metadata: dict[str, Any]) -> str:
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    texts = [
        f"{who} {value:.2f}"
        for who, value in (("random", low), ("expert", high))
        if is_finite_number(value)
    ]
    n = metadata.get("num_episodes_average_score")
    return ", ".join(texts) + (f" (over {n} episodes)" if n and texts else "")


def _environment(text: Any, dataset_id: str) -> dict[str, str]:
    try:
        spec = parse_spec(text, dataset_id)
    except CorruptDatasetError as error:
        return {"not valid": str(error)}
    keys = ("id", "entry_point", "max_episode_steps", "reward_threshold", "kwargs")
    fields = {key: str(getattr(spec, key)) for key in keys if getattr(spec, key)}
    wrappers = [str(wrapper.name) for wrapper in getattr(spec, "additional_wrappers", ())]
    return {**fields, "wrappers": ", ".join(wrappers)} if wrappers else fields


def _number(value: Any) -> float:
    return float(value) if is_finite_number(value) else 0.0


def delete(
    dataset_ids: Annotated[
        list[str], typer.Argument(autocompletion=complete_id, help="With their versions.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove datasets from the local root; all of them must be there."""
    found = {name: _metadata_to_delete(name) for name in dataset_ids}
    if not yes:
        print_datasets("To be deleted", found)
        confirm("Are you sure you want to delete these local datasets?")
    for name in found:
        delete_dataset(name)
        print(f"Dataset {name} deleted!")


def confirm(question: str) -> None:
    """Ask whoever is there to answer; anything but a yes ends the command."""
    if sys.stdin is None:
        raise ConfigError("nobody can be asked, as the standard input is closed; --yes says yes")
    typer.confirm(question, abort=True)


def _metadata_to_delete(dataset_id: str) -> dict[str, Any]:
    """What a dataset says of itself; nothing if it is damaged, which is a reason to delete it."""
    latest = latest_version_of(dataset_id)
    if latest != dataset_id:
        raise ConfigError(f"which version of {dataset_id!r} to delete? The latest is {latest!r}")
    try:
        return MinariStorage.read_raw_metadata(data_path_of(dataset_id))
    except MinariPipeError:
        return {}
