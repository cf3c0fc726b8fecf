"""List and describe datasets of a remote, for ``list`` and ``show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from minari_pipe.cli.descriptions import COPIED, metadata_fields, print_environments
from minari_pipe.cli.tables import FILES_WIDTH, counted, print_fields, print_json
from minari_pipe.core.files.atomic import MANIFEST
from minari_pipe.core.files.manifest import parsed
from minari_pipe.datasets.cards.words import file_size
from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.remotes import default_address
from minari_pipe.remotes.base import METADATA, Remote
from minari_pipe.remotes.hosting import find_datasets, split_remote_path
from minari_pipe.remotes.transfer.cards import read_card
from minari_pipe.remotes.transfer.download import Expected, look
from minari_pipe.remotes.transfer.published import parse_manifest

if TYPE_CHECKING:
    from minari_pipe.datasets.cards.facts import Facts


def remote_place(source: str, prefix: str | None) -> tuple[str, str | None]:
    """Return the address of a remote, and the prefix of the ids to list.

    Args:
        source: ``remote``, or an address that may end with a prefix of ids.
        prefix: a further prefix, appended to that of ``source``.

    Raises:
        ConfigError: ``source`` is neither.
    """
    if source == "remote":
        source = default_address()
    elif "/" not in source and not Path(source).is_dir():
        hint = did_you_mean(source, ("local", "remote"))
        raise ConfigError(
            f"cannot list {source!r}: expected local, remote, or an address such as "
            f"hf://farama-minari.{hint}"
        )
    address, begin = split_remote_path(source)
    if begin and prefix:
        return address, f"{begin.rstrip('/')}/{prefix}"
    return address, begin or prefix


def show_remote(dataset_id: str, as_json: bool) -> None:
    """Describe a dataset of a remote.

    Args:
        dataset_id: its id or address; without a version, the latest.
        as_json: print JSON for programs.

    Raises:
        MinariPipeError: the dataset cannot be found or contradicts itself.
    """
    remote, found = find_datasets(dataset_id, force=True)
    for name, metadata in found.items():
        there = look(remote, name)
        sizes = {METADATA: len(there.metadata)}
        sizes |= {file: entry.size for file, entry in there.files.items()}
        manifest = None
        if there.manifest is not None:
            # That of a local root, which its metadata do not name, needs no sha256.
            manifest = (
                parse_manifest(there.manifest)
                if there.is_named
                else parsed(there.manifest, f"its {MANIFEST}")
            )
            sizes[MANIFEST] = len(there.manifest)
        address = f"{remote.address.rstrip('/')}/{name}"
        if as_json:
            print_json({**metadata, "address": address, "files": sizes, "manifest": manifest})
            continue
        print_fields(name, metadata_fields(metadata), whole=COPIED)
        print_environments(metadata, name)
        print()
        files = {
            "Address": address,
            "Size": f"{file_size(sum(sizes.values()))} in {counted(len(sizes), 'file')}",
        }
        if manifest is not None:
            files["content_sha256"] = str(manifest.get("content_sha256"))
        print_fields("Files", files, name_width=FILES_WIDTH, whole=files)


def published_card(
    remote: Remote, name: str, metadata: dict[str, Any], there: Expected
) -> tuple[Facts, dict[str, Any], bytes | None]:
    """Return what the card of a remote's dataset says, its description, and its film."""
    from minari_pipe.datasets.cards.page import FILM
    from minari_pipe.datasets.cards.summary import FILES, summary_of

    card = read_card(remote, name, there, (*FILES, FILM))
    manifest = parsed(there.manifest, f"its {MANIFEST}") if there.manifest else {}
    facts, description = summary_of(
        name,
        metadata,
        card,
        {
            path: {"size": file.size, **({"sha256": file.sha256} if file.sha256 else {})}
            for path, file in there.files.items()
        },
        content_sha256=manifest.get("content_sha256"),
    )
    return facts, description, card.get(FILM)
