"""Install a published dataset into the Minari root; idempotent, and never over other data."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from minari_pipe.core.dataset_id import namespace_hierarchy, parse_dataset_id
from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.files.atomic import MANIFEST, read_text
from minari_pipe.core.files.changes import remove
from minari_pipe.core.files.locks import exclusive
from minari_pipe.core.files.manifest import (
    CARD,
    POLICIES,
    UNFINISHED_CARD,
    card_faults,
    changed_files,
    entries_of,
    files_of,
    identity_of,
)
from minari_pipe.core.files.names import check_names
from minari_pipe.core.files.swap import copy_file, recover, swap_in
from minari_pipe.core.json_object import json_object
from minari_pipe.core.messages import print_line
from minari_pipe.datasets import installation
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetExistsError,
    LinkError,
    TrustError,
)
from minari_pipe.pipeline.config.schema import Config
from minari_pipe.pipeline.published import is_released, published_manifest
from minari_pipe.pipeline.repository import is_tracked
from minari_pipe.pipeline.workspace import STATE, dump_json, read_json, write_atomic

#: File beside the data of an installed draft that says whose draft it is. A release has none.
MARKER = "draft.json"


def install(name: str, dataset_id: str, root: Path, *, replace: bool) -> str:
    """Copy ``datasets/<id>`` into the Minari root unless it is there; return what was done.

    Args:
        name: name of the pipeline.
        dataset_id: the dataset to install.
        root: the workspace.
        replace: install over a dataset that is not a draft of this pipeline.

    Raises:
        DatasetExistsError: the Minari root holds something else under this id.
        CorruptDatasetError: the workspace's copy is not what was published.
    """
    source = root / "datasets" / dataset_id
    minari_root = get_dataset_path()
    target = minari_root / dataset_id
    if target.resolve() == source.resolve():
        return f"{target} is the workspace's own folder"
    content = published_manifest(source)
    if content is None:
        raise CorruptDatasetError(
            f"{source} has no {MANIFEST} of a published dataset; remove the folder and "
            "run the pipeline again"
        )
    _check_place(target, minari_root, dataset_id)
    recover(target)
    if _is_installed(target, content, root):
        _update_card(target, source, content)
        settle(dataset_id, root)
        return f"installed in {target}"
    if target.exists() and not replace and not _is_own_draft(target, name, root):
        raise _other_dataset(target, dataset_id)
    # One name per pipeline, so that the next run removes what a killed run left behind.
    new = minari_root / f".{workspace_id(root)}.{name}.installing"
    remove(new)
    try:
        if changed := _copy(source, new, content):
            raise CorruptDatasetError(
                f"{source} was changed after it was published ({', '.join(changed)}); remove the "
                f"folder and run the pipeline again"
            )
        if not is_released(dataset_id, root, content):
            mark = {"pipeline": name, "workspace": workspace_id(root)}
            (new / MARKER).write_text(dump_json(mark), encoding="utf-8")
        if target.exists():
            # Block appends during the swap, and check again: an earlier append must not be lost.
            with exclusive(target / "data") if (target / "data").is_dir() else nullcontext():
                if not replace and not _is_own_draft(target, name, root):
                    raise _other_dataset(target, dataset_id)
                swap_in(new, target)
        else:
            installation.install(new, dataset_id)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    _is_installed(target, content, root)  # caches the hashes of the installed files
    return f"installed in {target}"


def _update_card(target: Path, source: Path, content: Mapping[str, Any]) -> None:
    """Give an installed dataset the card of the published one, which may be newer."""
    there = published_manifest(target)
    if there is None or there.get("format") != content.get("format"):
        return
    if there.get(CARD) == content.get(CARD) and not any(card_faults(target, there)):
        return
    from minari_pipe.datasets.cards.folder import files_of_card, write_card  # and NumPy: 0.3 s

    try:
        write_card(target, files_of_card(source, content))
    except (ConfigError, LinkError) as error:  # of a file of the user's; the data are up to date
        print_line("warning", str(error))


def _copy(source: Path, new: Path, content: Mapping[str, Any]) -> list[str]:
    """Copy the published files of a dataset and nothing else; return the names of changed ones.

    The folder is an output of a stage, so the lock file of a stranger can put anything into it.
    """
    names = entries_of(content, card=True)
    check_names(names)
    for name in (MANIFEST, *names):
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        # the check below reports a file that is missing
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            copy_file(source / name, new / name, below=source)
    unlisted = set(files_of(source)) - names.keys()
    return sorted(unlisted) or changed_files(new, content)


def would_install(name: str, dataset_id: str, root: Path, changes: bool, *, replace: bool) -> str:
    """Return what :func:`install` would do after a run; write nothing.

    Args:
        name: name of the pipeline.
        dataset_id: the dataset that would be installed.
        root: the workspace.
        changes: whether the run may publish content that differs from the current one.
        replace: install over a dataset that is not a draft of this pipeline.
    """
    source, target = root / "datasets" / dataset_id, get_dataset_path() / dataset_id
    if target.resolve() == source.resolve():
        return f"{target} is the workspace's own folder"
    content = published_manifest(source)
    there = published_manifest(target)
    stays = not changes and content is not None and there == content
    if stays or is_released(dataset_id, root, there):  # of which only the card may change
        return f"is installed in {target}"
    if target.exists() and not replace and not _has_own_mark(target, name, root):
        return f"would not be installed over {target}, which holds another dataset"
    return f"would be installed in {target}"


def check_before(name: str, params: Config, root: Path, *, replace: bool) -> None:
    """Raise before any work if the run would replace another dataset.

    A dataset of another workspace passes if it has the same config: the run may produce exactly
    the same content.

    Raises:
        ConfigError: the Minari root cannot be created.
        DatasetExistsError: the place holds another dataset, or cannot hold one.
    """
    dataset_id = params.dataset.id
    minari_root = get_dataset_path()
    target, source = minari_root / dataset_id, root / "datasets" / dataset_id
    # The Minari root may lie in the workspace.
    _check_place(source, root / "datasets", dataset_id)
    if not replace and _is_of_no_pipeline(source):
        raise _other_dataset(source, dataset_id)
    if target.resolve() == source.resolve():
        return
    _check_place(target, minari_root, dataset_id)
    if not (target / "data").exists() or replace or _is_own_draft(target, name, root):
        return
    from minari_pipe.pipeline.stages.assemble import (
        config_sha256,  # slow to import; not needed by a run without work
    )

    if published_manifest(target) is None or _config_of(target) != config_sha256(params):
        raise _other_dataset(target, dataset_id)


def _is_of_no_pipeline(place: Path) -> bool:
    try:
        return "minari_pipe" not in json_object(read_text(place / "data" / "metadata.json"))
    except (OSError, ValueError):  # nothing, or a damaged result, which a run makes again
        return False


def _config_of(target: Path) -> str | None:
    """Return the config hash that an installed dataset records, or ``None``."""
    try:
        found = json_object(read_text(target / "data" / "metadata.json"))
        return str(found["minari_pipe"]["config_sha256"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def settle(dataset_id: str, root: Path) -> None:
    """Remove the draft marker of an installed dataset whose release is recorded."""
    target = get_dataset_path() / dataset_id
    marker = target / MARKER
    if marker.is_file() and is_released(dataset_id, root, published_manifest(target)):
        marker.unlink()


def workspace_id(root: Path) -> str:
    """Return the unique id of this workspace; create it if there is no valid one.

    Raises:
        TrustError: git tracks it, so it may be the id of another workspace of the user.
    """
    path = root / STATE / "workspace_id"
    if path.is_file() and is_tracked(root, f"{STATE}/{path.name}"):
        raise TrustError(
            f"{path} came with the clone, so this workspace could pass for another one and "
            f"replace its drafts; remove it: git rm -r --cached {STATE} && rm {path}"
        )
    # The id becomes part of a path, and a workspace may come from a stranger.
    if not path.is_file() or not re.fullmatch(rb"[0-9a-f]{32}\n", path.read_bytes()):
        write_atomic(path, uuid.uuid4().hex + "\n")
    return path.read_text(encoding="utf-8").strip()


def _is_installed(
    target: Path, content: dict[str, Any], root: Path, *, remember: bool = True
) -> bool:
    """Return whether ``target`` holds what ``content`` names.

    Each file is hashed once; then its size, times and inode are remembered, so that a run without
    work does not read a large dataset. A dry run writes nothing, so it passes ``remember=False``.
    """
    there = published_manifest(target)
    if there is None or identity_of(there) != identity_of(content):
        return False
    relative = target.relative_to(get_dataset_path()).as_posix()
    path = root / STATE / "installed" / f"{relative}.json"
    try:
        record = read_json(path)
        seen = record["files"] if record["target"] == str(target) else {}
    except (OSError, ValueError, TypeError, KeyError):
        seen = {}
    before = json.dumps(seen)
    changed = changed_files(target, there, seen)
    if remember and json.dumps(seen) != before:
        digest = content["content_sha256"]
        write_atomic(
            path, dump_json({"target": str(target), "content_sha256": digest, "files": seen})
        )
    return not changed


def _is_own_draft(target: Path, name: str, root: Path) -> bool:
    """Return whether ``target`` is an unmodified draft that this pipeline installed."""
    content = published_manifest(target)
    own = _has_own_mark(target, name, root)
    return own and content is not None and _is_installed(target, content, root, remember=False)


def _has_own_mark(target: Path, name: str, root: Path) -> bool:
    """Return whether ``target`` was installed as a draft of this pipeline."""
    try:
        mark = read_json(target / MARKER)
    except (OSError, ValueError):
        return False
    known = (root / STATE / "workspace_id").is_file()  # else this workspace installed nothing
    return known and bool(mark == {"pipeline": name, "workspace": workspace_id(root)})


def _other_dataset(target: Path, dataset_id: str) -> DatasetExistsError:
    return DatasetExistsError(
        f"{target} holds another dataset with the id {dataset_id!r}, not a draft of this pipeline "
        f"in this workspace; it is left unchanged. To replace it, add publish.replace=true to the "
        f"command line; or choose another id with dataset.id=..."
    )


def _check_place(target: Path, minari_root: Path, dataset_id: str) -> None:
    """Raise if the place is not a dataset's own folder, which even ``replace`` must not touch."""
    for part in [*namespace_hierarchy(parse_dataset_id(dataset_id)[0]), dataset_id]:
        place = minari_root / part
        if place.is_symlink():
            raise DatasetExistsError(
                f"{place} is a symlink to {os.readlink(place)}; datasets are not installed through "
                f"symlinks: remove it, or choose another id with dataset.id=..."
            )
        if part != dataset_id and (place / "data").is_dir():
            raise DatasetExistsError(
                f"{dataset_id!r} would lie inside the dataset {part!r} in {minari_root}; choose "
                f"another id with dataset.id=..."
            )
    own = ("data", POLICIES, CARD)
    folders = (p.name for p in target.glob("*") if p.is_dir())
    # a command that made a card may have been killed
    below = [n for n in folders if n not in own and not n.startswith(UNFINISHED_CARD)]
    below += [f"{POLICIES}/{p.name}" for p in target.glob(f"{POLICIES}/*") if p.is_dir()]
    if below:
        raise DatasetExistsError(
            f"{target} holds other folders ({', '.join(sorted(below))}), so it is a namespace; "
            f"choose another id with dataset.id=..."
        )
