"""The workspace: the folder with ``.dvc``, its places, and files written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from minari_pipe.errors import ConfigError, LinkError, TrustError
from minari_pipe.links import entries_below, new_file, refuse_link, refuse_links

PACKAGE = Path(__file__).resolve().parent.parent
STATE = ".minari_pipe"
"""Folder of what is not an output: locks, unfinished blocks, records of installation."""

_OWN = (
    *("conf", "pipelines", "datasets", "catalog", "releases", STATE, ".dvc"),
    *("dvc.yaml", "dvc.lock", ".gitignore", ".dvcignore"),
    "MUJOCO_LOG.TXT",  # to which MuJoCo appends in the current folder
)

_MAY_HOLD_DVC_LINKS = ("pipelines", "datasets")
"""Where DVC may have put links to files of its cache, if the user's own settings ask for them."""

_IN_PLACE = (
    *("dvc.lock", ".gitignore", "pipelines/*/dvc.lock", "pipelines/*/.gitignore"),
    *(".dvc/*", ".dvc/tmp/*"),
)
"""Files that DVC writes without making a new one; those of ``datasets`` are found by a walk."""

NOT_PARAMS = ("overrides", "code")
"""Keys of ``params.yaml`` that record how it came about."""

PIPELINE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


def find_root(start: Path | None = None) -> Path:
    """The nearest folder at or above ``start`` (default: here) that holds ``.dvc``."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / ".dvc").is_dir():
            return folder
    raise ConfigError(f"{here} is not inside a DVC workspace; run `minari-pipe init` there first")


def check_pipeline_name(name: str, how: str = "set it with pipeline=NAME") -> str:
    """Refuse a name that could mean something to a shell or a file system.

    The name stands in the commands of ``dvc.yaml`` and in paths.

    Args:
        name: of a pipeline.
        how: to give it another one.

    Raises:
        ConfigError: the name is not valid.
    """
    if not PIPELINE_NAME.fullmatch(name) or len(name) > 100:
        raise ConfigError(
            f"pipeline name {name!r} is not valid: expected letters, digits, '_', '-' and '.', "
            f"not starting with '-' or '.', at most 100; {how}"
        )
    return name


def inside(root: Path, path: Path) -> Path:
    """``path``, once it is proven that no link is on the way there from ``root``.

    Raises:
        LinkError: names the link.
    """
    _checked(lambda: refuse_links(path, root), root)
    return path


def open_root(start: Path | None = None) -> Path:
    """The workspace, see :func:`find_root`, once :func:`check_links` has passed it."""
    root = find_root(start)
    check_links(root)
    return root


def check_links(root: Path) -> None:
    """Refuse links in all that this program, or DVC at its word, reads, writes or removes.

    git brings them along: a workspace may come from a stranger.

    Raises:
        LinkError: names the link.
        TrustError: there is a pipe or a device, which would be waited for.
    """
    check_cache(root)
    _checked(lambda: _check_place(root / ".git", root), root)  # git writes to it at DVC's word
    for name in _OWN:
        check_folder(root / name, root)


def check_cache(root: Path) -> None:
    """Refuse a DVC cache of the workspace that is a link.

    Raises:
        LinkError: names the link, and how to have a cache elsewhere.
    """
    try:
        refuse_links(root / ".dvc" / "cache", root)
    except LinkError as error:
        raise LinkError(
            f"{error}; to have DVC's cache elsewhere, run: dvc config --global cache.dir FOLDER"
        ) from None


def check_folder(folder: Path, root: Path) -> None:
    """The same of one folder, or file, of the workspace."""
    _checked(lambda: _check_folder(folder, root), root)


def _check_folder(folder: Path, root: Path) -> None:
    _check_place(folder, root)
    for entry in entries_below(folder, lambda entry: _is_others(entry, root)):
        if entry.is_symlink():
            _check_dvc_link(entry.path, root)
        if not (entry.is_file() or entry.is_dir()):
            raise TrustError(f"{entry.path} is no file; remove it")


def _check_place(path: Path, root: Path) -> None:
    refuse_links(path, root)
    if path.is_symlink():
        _check_dvc_link(os.fspath(path), root)
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise TrustError(f"{path} is no file; remove it")


def _check_dvc_link(link: str, root: Path) -> None:
    """Refuse a link to a file of DVC's cache in place of a file that is written, not only read."""
    path = Path(link).relative_to(root)
    if path.parts[0] not in _MAY_HOLD_DVC_LINKS or any(map(path.match, _IN_PLACE)):
        refuse_link(link)


def _checked(check: Callable[[], None], root: Path) -> None:
    """Run a check for links, and again once DVC's own are allowed, if the user asks for those."""
    try:
        check()
    except LinkError:
        from minari_pipe.pipeline.dvc_settings import follow_own_cache  # DVC takes 0.2 s

        if not follow_own_cache(root):
            raise
        check()


def _is_others(entry: os.DirEntry[str], root: Path) -> bool:
    """Whether the content is that of environments, or of DVC's experiments, and never used."""
    if entry.name not in ("tmp", "exps") or not entry.is_dir(follow_symlinks=False):
        return False
    match Path(entry.path).relative_to(root).parts:
        case (".dvc", "tmp", "exps"):
            return True
        case (top, "work", _, stage, "tmp"):
            return top == STATE and stage.endswith(".new")
    return False


def part_hard_links(root: Path) -> None:
    """Give files that DVC writes in place no other name, which may lie outside of the workspace.

    An archive can bring such names. git makes none, and DVC only those of its locks, if
    ``core.hardlink_lock`` asks for them, beside one another.
    """
    found = [path for pattern in _IN_PLACE for path in root.glob(pattern)]
    for folder, folders, _ in os.walk(root / "datasets"):
        if "data" in folders:
            folders.clear()  # a dataset
        found.append(Path(folder, ".gitignore"))
    linked: dict[Path, os.stat_result] = {}
    for path in found:
        with suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                linked[path] = status
    names = Counter((status.st_dev, status.st_ino) for status in linked.values())
    for path, status in linked.items():
        if status.st_nlink > names[status.st_dev, status.st_ino]:
            write_atomic(path, path.read_bytes())


def is_checkout(root: Path) -> bool:
    """Whether the package runs from the workspace itself.

    Raises:
        TrustError: the workspace brings another package of this name, which its stages would run.
        LinkError: what has this name is a link.
    """
    if root.resolve() == PACKAGE.parent:
        return True
    own = root / PACKAGE.name
    refuse_links(own, root)
    if (own / "__init__.py").is_file():
        raise TrustError(
            f"{own} is not the package that runs, {PACKAGE}; if you trust it, run it with "
            f"`cd {root} && python -m {PACKAGE.name}`, else remove it"
        )
    return False


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write ``path`` whole or not at all, durably, under the process's umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with new_file(temporary) as handle, open(handle, "wb", closefd=False) as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_if_changed(path: Path, text: str) -> bool:
    """Write ``text`` unless the file holds it already; whether it was written."""
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return False
    write_atomic(path, data)
    return True


def dump_json(value: Any) -> str:
    """Deterministic JSON for files that people read and DVC hashes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ConfigError: it is damaged, such as by a merge.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise ConfigError(f"{path} is damaged: {exc}; restore it from git, or remove it") from exc


def read_catalog_entry(path: Path) -> dict[str, Any]:
    """Return what ``catalog/ID.json`` says of a published dataset, with the name of its pipeline.

    Raises:
        ConfigError: it is damaged.
    """
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("pipeline"), str):
        raise ConfigError(f"{path} is damaged: it names no pipeline; restore it from git")
    return found
