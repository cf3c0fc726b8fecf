"""Read untrusted zip files that hold policies, and write equal content as equal bytes."""

from __future__ import annotations

import io
import os
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from minari_pipe.errors import ConfigError

MAX_ENTRY_BYTES = 1 << 30
MAX_ENTRIES = 1000
MAX_RATIO = 100  # largest size of an entry over its compressed size; weights hardly compress
FREE_BYTES = 1 << 26  # total size of the entries that is allowed for a file of any size
#: Compression methods that unpack in chunks; others unpack a whole entry whatever its stated size.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

#: Errors that zipfile and zlib raise for a damaged or hostile archive.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)


def entry_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the entries of a zip, each of them once.

    Raises:
        ConfigError: no such file, not a zip, too many or repeated entries, or entries too large.
    """
    content = read_file(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            total = sum(entry.file_size for entry in archive.infolist())
    except ConfigError:
        raise
    except ZIP_ERRORS as exc:
        raise ConfigError(f"{path} is not a readable zip ({exc})") from exc
    if len(names) > MAX_ENTRIES or len(set(names)) < len(names):
        raise ConfigError(
            f"{path} has {len(names)} entries with {len(set(names))} distinct names; refused (at "
            f"most {MAX_ENTRIES} entries, each name once)"
        )
    if total > max(FREE_BYTES, MAX_RATIO * len(content)):
        raise ConfigError(
            f"{path}: its entries would unpack from {len(content)} to {total} bytes; refused "
            f"(limit {MAX_RATIO}-fold)"
        )
    return names


def read_entry(path: str | os.PathLike[str], name: str, *, limit: int = MAX_ENTRY_BYTES) -> bytes:
    """Return the bytes of one entry of an untrusted zip.

    Raises:
        ConfigError: no such file or entry, not a zip, damaged, or larger than ``limit`` bytes.
    """
    names = entry_names(path)
    if name not in names:
        raise ConfigError(
            f"{path} has no entry {name!r}; it holds {', '.join(sorted(names)[:8]) or 'nothing'}"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(read_file(path))) as archive:
            entry = archive.getinfo(name)
            packed = max(entry.compress_size, 1)
            if entry.file_size > limit or (
                entry.file_size > 1 << 20 and entry.file_size / packed > MAX_RATIO
            ):
                raise ConfigError(
                    f"{path}: entry {name!r} would unpack from {entry.compress_size} to "
                    f"{entry.file_size} bytes; refused (limit {limit} bytes, {MAX_RATIO}-fold)"
                )
            if entry.compress_type not in METHODS:
                raise ConfigError(
                    f"{path}: entry {name!r} uses compression method {entry.compress_type}; "
                    f"expected none or deflate"
                )
            with archive.open(entry) as file:
                # Read in chunks: one read would unpack an entry that is longer than it states.
                return b"".join(iter(lambda: file.read(1 << 20), b""))
    except ConfigError:
        raise
    except ZIP_ERRORS as exc:
        raise ConfigError(f"{path} is not a readable zip ({exc})") from exc


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return all bytes of a file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror or exc}") from exc


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` by name; reject arrays that need unpickling.

    Raises:
        ConfigError: as for :func:`read_entry`, or an entry is not a plain array.
    """
    arrays = {}
    for entry in entry_names(path):
        try:
            data = read_entry(path, entry)
            _check_header(data)
            array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        except ConfigError:
            raise
        except Exception as exc:  # NumPy's header parsers may raise anything
            raise ConfigError(f"{path}: {entry!r} is not a plain array ({exc})") from exc
        arrays[entry.removesuffix(".npy")] = array
    return arrays


def _check_header(data: bytes) -> None:
    """Reject a header that may name a dtype that crashes NumPy, such as ``M8[s/0]``.

    Raises:
        ValueError: the header holds a slash or a backslash.
    """
    start = 10 if data[6:7] == b"\1" else 12
    header = data[start : start + int.from_bytes(data[8:start], "little")]
    if b"/" in header or b"\\" in header:
        raise ValueError(f"its header is {header!r:.100}")


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write an ``.npz`` of plain arrays; equal arrays give equal bytes."""
    entries = {}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asarray(array), version=(1, 0), allow_pickle=False)
        entries[f"{name}.npy"] = buffer.getvalue()
    write_zip(path, entries)


def write_zip(path: str | os.PathLike[str], entries: Mapping[str, bytes]) -> None:
    """Write a zip to a temporary file and rename it; the bytes depend on ``entries`` alone."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name in sorted(entries):
                    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                    info.create_system, info.external_attr = 3, 0o644 << 16
                    archive.writestr(info, entries[name])
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
