"""Create, find and remove the folders of journals, and check which are still written."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from minari_pipe.core.datasets_root import get_dataset_path
from minari_pipe.core.files.links import open_below, refuse_links
from minari_pipe.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: it is not known there whether a process is alive
    fcntl = None  # type: ignore[assignment]

#: Hidden, so that no listing looks into it, not even real Minari's.
COLLECTING = Path(".minari_pipe/collecting")
TEMPORARY_PREFIX = "minari_pipe-collecting-"
JOURNAL, LOCK, ROWS = "journal", "lock", "rows-{}"
_FILES = re.compile(rf"{JOURNAL}|{LOCK}|{ROWS.format('[0-9]+')}")

#: Journals of this process: closing their lock file after a check would release the lock.
OWN: dict[Path, int] = {}


def journals() -> Iterator[Path]:
    """Yield every journal in the datasets root, and this user's in the temporary directory.

    Example:
        >>> list(journals())
        []
    """
    folders: list[Path] = []
    with suppress(OSError, ConfigError):
        root = get_dataset_path()
        refuse_links(root / COLLECTING, root)
        folders += sorted(f for f in (root / COLLECTING).iterdir() if not f.is_symlink())
    with suppress(OSError):
        temporary = Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")
        folders += sorted(folder for folder in temporary if _is_mine(folder))
    for folder in folders:
        if (folder / JOURNAL).is_file() and not (folder / JOURNAL).is_symlink():
            yield folder / JOURNAL


def is_alive(path: Path) -> bool:
    """Return whether the process that writes a journal is alive; True if that is not known.

    Example:
        >>> [is_alive(path) for path in journals()]
        []
    """
    folder = path.parent
    if OWN.get(folder) == os.getpid() or fcntl is None:
        return True
    try:
        if not stat.S_ISREG(os.lstat(folder / LOCK).st_mode):
            return False  # no collector makes such a lock
        handle = open_below(folder / LOCK, folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def remove_journal(folder: Path) -> None:
    """Remove a journal, with its folder if nothing else is in it, and empty hidden folders above.

    Among other files, its lock and its rows stay: they could be the user's, of the same names.

    Example:
        See :class:`~minari_pipe.recording.journal.reader.JournalReader`.
    """
    with suppress(OSError):  # a user may have moved it among other files, or it is gone
        files = sorted(folder.iterdir())
        if not all(_FILES.fullmatch(path.name) for path in files):
            files = [folder / JOURNAL]
        for path in files:
            path.unlink()
        folder.rmdir()
    if folder.parent.parts[-2:] == COLLECTING.parts:
        with suppress(OSError):  # other journals are in it
            folder.parent.rmdir()
            folder.parent.parent.rmdir()


def new_folder() -> Path:
    """Create a folder for a journal: in the datasets root, else in the temporary directory."""
    prefix = f"{os.getpid()}-"
    for _ in range(10):
        try:
            home = get_dataset_path() / COLLECTING
            refuse_links(home, get_dataset_path())
            home.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        except FileNotFoundError:
            continue  # another collector found the folder empty and removed it
        except (OSError, ConfigError):
            break
    return Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))


def _is_mine(folder: Path) -> bool:
    own = getattr(os, "getuid", lambda: folder.stat().st_uid)()
    return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == own


def locked(path: Path) -> int:
    """Open a file, lock it until this process closes it or ends, and return its descriptor."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            # held by this process, not by forked children: it ends with the process
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle
