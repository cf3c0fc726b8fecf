"""Read demonstrations from MuJoCo logs (``.mjl``): one file, or a zip of many.

::

    7 int32     nq, nv, nu, nmocap, nsensordata, nuserdata, length of the name
    bytes       name of the model
    float32     one record per frame: time, qpos (nq), qvel (nv), ctrl (nu), mocap_pos (3 nmocap),
                mocap_quat (4 nmocap), sensordata, userdata

All little-endian. Gupta et al. 2019, https://github.com/google-research/relay-policy-learning
(``parse_demos.py``). A step leads from one frame to the next: it has the qpos and the ctrl of the
first. A log has no rewards; its name and the rest of a record are not read.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from minari_pipe.errors import InvalidEpisodeError, MinariPipeError
from minari_pipe.policies.archive import FREE_BYTES, MAX_RATIO, METHODS, ZIP_ERRORS
from minari_pipe.policies.demonstration_formats.base import (
    Array,
    Demonstration,
    DemonstrationFormat,
    LazyDemonstrations,
    StateKeys,
    check_demonstrations,
    quoted,
)

SUFFIX = ".mjl"
MAX_BYTES = 1 << 28  # of one log; those of the kitchen have a few million
_MAX_COUNT = 100_000  # of numbers of one kind in a record, and of characters in the name
_HEADER = struct.Struct("<7i")
_COUNTS = ("nq", "nv", "nu", "nmocap", "nsensordata", "nuserdata", "the length of the name")
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class _Layout:
    """Where the columns of a log are, in bytes and in numbers of a record."""

    start: int
    width: int
    nq: int
    nv: int
    nu: int

    @classmethod
    def of(cls, header: bytes, size: int, where: str) -> _Layout:
        """Return the layout that the first bytes of a log of ``size`` bytes describe."""
        if len(header) < _HEADER.size:
            raise InvalidEpisodeError(f"{where} has {size} bytes, too few for a MuJoCo log")
        counts = _HEADER.unpack(header[: _HEADER.size])
        for name, count in zip(_COUNTS, counts, strict=True):
            lowest = 1 if name in ("nq", "nu") else 0
            if not lowest <= count <= _MAX_COUNT:
                raise InvalidEpisodeError(
                    f"{where}: {name} is {count}, expected {lowest} to {_MAX_COUNT}; it is "
                    f"damaged, or no MuJoCo log"
                )
        nq, nv, nu, nmocap, nsensordata, nuserdata, name_length = counts
        found = cls(
            start=_HEADER.size + name_length,
            width=1 + nq + nv + nu + 7 * nmocap + nsensordata + nuserdata,
            nq=nq,
            nv=nv,
            nu=nu,
        )
        n_frames, rest = divmod(size - found.start, 4 * found.width)
        if rest or n_frames < 2:
            raise InvalidEpisodeError(
                f"{where} has {size - found.start} bytes of records, expected two or more frames "
                f"of {4 * found.width}; it is damaged, fetch it again"
            )
        return found


class _Logs(LazyDemonstrations):
    """The log in a file, or those in a zip, in the order of their names."""

    def __init__(self, path: Path, state_keys: StateKeys, files: str | None, label: str) -> None:
        self._path = path
        self._state_keys = ("qpos", "qvel") if state_keys is None else tuple(state_keys)
        self._label = label
        self._names: list[str] | None = None
        if _is_zip(path):
            with _opened(path, label) as archive:
                self._names = _chosen(archive, path.stat().st_size, files, label)
        elif files is not None:
            raise InvalidEpisodeError(
                f"{label} is one log, but policy.files chooses {quoted([files])} in a zip of logs. "
                f"Give the zip, or set policy.files=null if this log is one of them"
            )

    def __len__(self) -> int:
        return 1 if self._names is None else len(self._names)

    def __iter__(self) -> Iterator[Demonstration]:
        if self._names is None:
            yield self._read(0)
            return
        with _opened(self._path, self._label) as archive:
            for name in self._names:
                yield self._unpacked(archive, name)

    def _read(self, index: int) -> Demonstration:
        if self._names is not None:
            with _opened(self._path, self._label) as archive:
                return self._unpacked(archive, self._names[index])
        with open(self._path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
        return self._demonstration(content, self._label)

    def _unpacked(self, archive: zipfile.ZipFile, name: str) -> Demonstration:
        where, entry = f"{self._label}: {quoted([name])}", archive.getinfo(name)
        if entry.compress_type not in METHODS:
            raise InvalidEpisodeError(
                f"{where} has compression method {entry.compress_type}, expected none or deflate"
            )
        with archive.open(entry) as file:
            # In chunks: one read would unpack an entry that is longer than it states.
            content = b"".join(iter(lambda: file.read(1 << 20), b""))
        return self._demonstration(content, where)

    def _demonstration(self, content: bytes, where: str) -> Demonstration:
        if len(content) > MAX_BYTES:
            raise InvalidEpisodeError(f"{where} has more than {MAX_BYTES} bytes; refused")
        layout = _Layout.of(content, len(content), where)
        records = np.frombuffer(content, "<f4", offset=layout.start).reshape(-1, layout.width)
        bounds = np.cumsum([1, layout.nq, layout.nv])
        _, qpos, qvel, rest = np.split(records.astype(np.float32), bounds, axis=1)
        parts: dict[str, Array] = {"qpos": qpos[0], "qvel": qvel[0]}
        if missing := [key for key in self._state_keys if key not in parts]:
            raise InvalidEpisodeError(
                f"{where} has no {quoted(missing)}; the state in a MuJoCo log is: {quoted(parts)}"
            )
        return Demonstration(
            observations=qpos[:-1],
            actions=rest[:-1, : layout.nu],
            rewards=np.full(len(records) - 1, np.nan),
            terminal=False,
            initial_state={key: parts[key].astype(np.float64) for key in self._state_keys},
        )


def _chosen(archive: zipfile.ZipFile, size: int, files: str | None, label: str) -> list[str]:
    """Return the names of the logs in a zip of ``size`` bytes that match a pattern, sorted."""
    entries = [entry for entry in archive.infolist() if _is_log(entry.filename)]
    names = sorted(entry.filename for entry in entries)
    if not names:
        raise InvalidEpisodeError(
            f"{label} holds no {SUFFIX} file; it has: {quoted(sorted(archive.namelist()))}"
        )
    if len(set(names)) < len(names):
        raise InvalidEpisodeError(f"{label} holds several files of one name; refused")
    chosen = [entry for entry in entries if files is None or fnmatchcase(entry.filename, files)]
    if not chosen:
        folders = sorted({name.rpartition("/")[0] for name in names})
        raise InvalidEpisodeError(
            f"{label} holds no {SUFFIX} file that matches policy.files, {quoted([str(files)])}; "
            f"it has demonstrations of other tasks, in the folders {quoted(folders)}"
        )
    total, most = sum(entry.file_size for entry in chosen), max(FREE_BYTES, MAX_RATIO * size)
    if total > most or any(entry.file_size > MAX_BYTES for entry in chosen):
        raise InvalidEpisodeError(
            f"{label} would unpack from {size} to {total} bytes; refused (limit {most} bytes, and "
            f"{MAX_BYTES} for one file)"
        )
    return sorted(entry.filename for entry in chosen)


def _is_log(name: str) -> bool:
    """Return whether a file in a zip is a log; macOS adds hidden files with the same suffix."""
    parts = name.split("/")
    return name.endswith(SUFFIX) and not any(part.startswith((".", "__MACOSX")) for part in parts)


@contextmanager
def _opened(path: Path, label: str) -> Iterator[zipfile.ZipFile]:
    """Open an untrusted zip; turn every failure in it into one clear error."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except MinariPipeError:
        raise
    except (*ZIP_ERRORS, struct.error, LookupError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidEpisodeError(f"{label} is a damaged zip ({reason}); fetch it again") from error


def _is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def _matches(path: Path) -> bool:
    if _is_zip(path):
        return True
    with open(path, "rb") as file:
        header = file.read(_HEADER.size)
    try:
        _Layout.of(header, path.stat().st_size, "")
    except InvalidEpisodeError:
        return False
    return True


def _read(path: Path, state_keys: StateKeys, files: str | None = None) -> Sequence[Demonstration]:
    label = f"demonstration file {str(path)!r}"
    logs = _Logs(path, state_keys, files, label)
    check_demonstrations(logs, label)
    return logs


FORMAT = DemonstrationFormat("mjl", "MuJoCo log", _matches, _read, has_files=True)
