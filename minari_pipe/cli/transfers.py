"""The commands that transfer datasets to and from remotes: upload, download."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from minari_pipe.cli.datasets import Json, complete_id, confirm, print_datasets
from minari_pipe.cli.tables import counted, print_json, print_table
from minari_pipe.core.datasets_root import data_path_of, get_dataset_path
from minari_pipe.core.files.links import files_below
from minari_pipe.core.files.manifest import read_manifest
from minari_pipe.core.messages import one_line, print_line
from minari_pipe.datasets.cards.words import file_size
from minari_pipe.datasets.library import HOW_TO_FETCH, latest_version_of
from minari_pipe.errors import ConfigError, DatasetNotFoundError, MinariPipeError
from minari_pipe.pipeline.published import published_manifest, release_date
from minari_pipe.pipeline.workspace import find_root
from minari_pipe.remotes import Remote, default_address, split_scheme
from minari_pipe.remotes.hosting import fetch, find_datasets, is_path, opened, unnamed_parents
from minari_pipe.remotes.transfer.upload import Published
from minari_pipe.remotes.transfer.upload import upload as publish
from minari_pipe.storage.base import MinariStorage

#: How many files, or groups of files, a dry run lists.
_N_SHOWN = 20
_LONGEST_TOKEN = 4096
_WITHOUT_TOKENS = {
    "s3": "it uses the credentials of the AWS tools",
    "file": "the file system's permissions apply",
}


def upload(
    datasets: Annotated[
        list[str], typer.Argument(autocompletion=complete_id, help="Ids with their versions.")
    ],
    to: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Remote, such as hf://org; default: MINARI_REMOTE."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the Hub's token or the key of a Google account."
        ),
    ] = None,
    key_path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="As in Minari: path of Google's key file, or the Hub's token."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent, but send nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Publish datasets; a published one never changes.

    Credentials are found where the provider's own tools find them.
    """
    if addresses := [word for word in datasets if "://" in word]:
        raise ConfigError(
            f"{addresses[0]!r} is an address, expected an id; pass the address with --to: "
            f"minari-pipe upload ID --to {addresses[0]}"
        )
    address = default_address() if to is None else to
    remote = opened(address, _token(address, token_file, key_path))
    _check_all_are_there(datasets)
    named = list(dict.fromkeys(datasets))
    notes = unnamed_parents(named)  # metadata name the parents, and may come from a stranger
    results: list[dict[str, Any]] = []
    for name in named:
        try:
            done = publish(name, remote, dry_run=dry_run, published=_release_date(name))
        except (MinariPipeError, OSError) as error:
            print_line("error", f"{name}: {error}")
            results.append({"dataset_id": name, "outcome": "failed", "error": str(error)})
            continue
        notes += done.notes
        results.append(_facts(done))
        if not as_json:
            _show(done)
    for note in notes:
        print_line("warning", note)
    if as_json:
        print_json(results)
    if any(entry["outcome"] == "failed" for entry in results):
        raise typer.Exit(1)


def _release_date(dataset_id: str) -> str | None:
    """Return the date at which the workspace around the current folder released a dataset."""
    try:
        root = find_root()
    except ConfigError:  # not in a workspace
        return None
    content = published_manifest(get_dataset_path(dataset_id))
    return None if content is None else release_date(dataset_id, root, content)


def _token(address: str, token_file: Path | None, key_path: str | None) -> str | None:
    """Return the token for a remote; for Google this is the path of a key file."""
    if token_file is None and key_path is None:
        return None
    if token_file is not None and key_path is not None:
        raise ConfigError("--key-path is Minari's name for --token-file; pass only one of them")
    scheme = split_scheme(address)[0]
    if scheme in _WITHOUT_TOKENS:
        raise ConfigError(f"{address} takes no token: {_WITHOUT_TOKENS[scheme]}")
    if token_file is None or scheme in ("gs", "gcp"):
        return key_path or str(token_file)
    try:
        with token_file.open(encoding="utf-8") as file:  # may be a device that never ends
            token = file.read(_LONGEST_TOKEN + 1).strip()
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"cannot read the token file {token_file}: {what}") from error
    if len(token.split()) != 1 or len(token) > _LONGEST_TOKEN:
        raise ConfigError(f"the token file {token_file} must hold one word, the token")
    return token


def _check_all_are_there(dataset_ids: Iterable[str]) -> None:
    """Raise if a dataset does not exist, before the first upload."""
    missing = {}
    for name in dataset_ids:
        try:
            latest = latest_version_of(name)
        except DatasetNotFoundError as error:
            missing[name] = error
            continue
        if latest != name:
            raise ConfigError(f"{name!r} has no version; to upload the latest, use {latest!r}")
    if len(missing) == 1:
        text = str(*missing.values()).removesuffix(HOW_TO_FETCH)
        raise DatasetNotFoundError(text)
    if missing:
        raise DatasetNotFoundError(
            f"no datasets {', '.join(map(repr, missing))} in {get_dataset_path()}; "
            "nothing was uploaded"
        )


def _facts(done: Published) -> dict[str, Any]:
    return {
        "dataset_id": done.dataset_id,
        "address": done.address,
        "outcome": done.outcome,
        "content_sha256": done.content_sha256,
        "n_bytes": sum(done.sizes.values()),
        "files": done.sizes,
        "notes": done.notes,
    }


def _show(done: Published) -> None:
    total = f"{counted(len(done.sizes), 'file')}, {file_size(sum(done.sizes.values()))}"
    content = f"content_sha256 {done.content_sha256[:12]}"
    if done.outcome == "present":
        print(f"{done.dataset_id}: already in {done.address}, with the same {content}")
    elif done.outcome == "uploaded":
        print(f"{done.dataset_id}: uploaded to {done.address}, {total}, {content}")
    else:
        groups = _grouped(done.sizes)
        rest = f", {counted(len(groups) - _N_SHOWN, 'smaller one')} not shown"
        print_table(
            f"{done.dataset_id} would be uploaded to {done.address}",
            {"File": "left", "Number": "right", "Size": "right"},
            (
                (name, f"{n_files:,}", file_size(n_bytes))
                for name, n_files, n_bytes in groups[:_N_SHOWN]
            ),
            caption=f"{total}{rest if len(groups) > _N_SHOWN else ''}; {content}",
        )
        print()


def _grouped(sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Return name, number and bytes per group of files, largest first; episodes form one group."""
    groups: dict[str, list[int]] = {}
    for name, n_bytes in sizes.items():
        groups.setdefault(re.sub(r"/\d+/", "/*/", name), []).append(n_bytes)
    found = [(name, len(each), sum(each)) for name, each in groups.items()]
    return sorted(found, key=lambda group: (-group[2], group[0]))


def download(
    datasets: Annotated[
        list[str],
        typer.Argument(
            help="Ids, addresses such as hf://org/door/human-v2, or namespaces: D4RL/door/"
        ),
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force", "-f", help="Overwrite without asking; download even unreadable versions."
        ),
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="ADDRESS", help="Remote, such as hf://org; default: MINARI_REMOTE."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Overwrite without asking.")] = False,
) -> None:
    """Download datasets into the local root; without a version, the latest readable one.

    A namespace with a slash at its end, such as D4RL/door/, stands for all its missing datasets.
    """
    found: dict[str, Remote] = {}
    asked_for: set[str] = set()
    by_path: set[str] = set()
    failed = False
    for wanted in datasets:
        try:
            remote, metadata = find_datasets(wanted, source, force=force)
        except (MinariPipeError, OSError) as error:
            print_line("error", str(error))
            failed = True
            continue
        found.update(dict.fromkeys(metadata, remote))
        if is_path(wanted):
            by_path.update(metadata)
        if not wanted.endswith("/"):
            asked_for.update(metadata)
    here = {name for name in found if data_path_of(name).exists()}
    if not (force or yes):
        for name in sorted(here - asked_for):
            print(f"{name}: already in {one_line(get_dataset_path())}")
            del found[name]
        here &= asked_for
        if here:
            print_datasets("To be overwritten", {name: _local_metadata(name) for name in here})
            confirm("Are you sure you want to override these local datasets?")
    for name, remote in found.items():
        try:
            fetched = fetch(remote, name, replace=name in here, alone=name in by_path)
        except (MinariPipeError, OSError) as error:
            print_line("error", str(error))
            failed = True
        else:
            for each in fetched:
                why = "" if each == name else f", which {name} was combined from"
                print(f"{each}: downloaded from {remote.address}, {_received(each)}{why}")
    if failed:
        raise typer.Exit(1)


def _local_metadata(dataset_id: str) -> dict[str, Any]:
    try:
        return MinariStorage.read_raw_metadata(data_path_of(dataset_id))
    except MinariPipeError:  # damaged, which is a reason to download it again
        return {}


def _received(dataset_id: str) -> str:
    place = get_dataset_path(dataset_id)
    sizes = [(place / name).stat().st_size for name in files_below(place)]
    text = f"{counted(len(sizes), 'file')}, {file_size(sum(sizes))}"
    manifest = read_manifest(place)
    if manifest is None:
        return f"{text}; not verified, because it was published without checksums"
    return f"{text}, content_sha256 {str(manifest.get('content_sha256'))[:12]}"
