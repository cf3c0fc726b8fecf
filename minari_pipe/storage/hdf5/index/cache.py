"""Cache the indexes of HDF5 files on disk, so that a user's processes index each file once.

There is one small file for each HDF5 file, named after its device and inode::

    $MINARI_PIPE_CACHE | $XDG_CACHE_HOME/minari_pipe | ~/.cache/minari_pipe
    └─ index/2a-1f00c3.idx
       ├─ mark of the format, checksum and size of the rest, whether it is settled
       ├─ header, JSON     which version of which file, its structures, names of columns
       └─ arrays           steps, runs, addresses, columns of attributes, in native byte order

An index belongs to one version of a file: its device, inode, size and times. Linux advances the
clock of these times only every few milliseconds, so right after a change, a file can change again
without a trace. The index of such a young file is not settled: its readers also compare samples of
the file's bytes.

The cache is optional: an index that cannot be written stays in the memory of the process, and one
that cannot be read back, for any reason, is built again.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minari_pipe.core.files.fetch import cache_folder
from minari_pipe.core.git import refuse_tracked_links_once
from minari_pipe.storage.hdf5.index.index import Attributes, FileIndex, Runs, merged
from minari_pipe.storage.segment import Leaf

#: changes with the format, and with the checks that an index must have passed
_MARK = b"mpindex2" if sys.byteorder == "little" else b"mpindexC"
_HEAD = struct.Struct("<8sBxxxIQQ")
_SETTLED_AT = 8

#: age at which any further change is sure to give a file another time; the second one is for file
#: systems that store whole seconds, or only every other second
_YOUNG_NS = 20_000_000
_YOUNG_IN_SECONDS_NS = 2_100_000_000
#: most bytes of the cache; beyond that, the oldest files are removed
_MOST_BYTES = 2**28
#: the size of the cache is checked once per this many writes
_SWEEP_EVERY = 64
#: most indexes that are held in memory because they cannot be written to disk
_MOST_HELD = 8

#: samples of a file: number and size; size of a larger one at its end, where the structure is
_SAMPLES = 32
_SAMPLE_BYTES = 1024
_END_BYTES = 2**16


class Stamp(NamedTuple):
    """Identifies one version of one file."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Stamp:
        """Return the stamp for a stat result."""
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether any further change of the file would change its stamp."""
        # on Windows, the other one is the creation time
        changed = self.modified_ns if os.name == "nt" else self.changed_ns
        young = _YOUNG_NS if changed % 1_000_000_000 else _YOUNG_IN_SECONDS_NS
        return time.time_ns() - changed > young

    @property
    def name(self) -> str:
        """Name of its index file in the cache."""
        return f"{self.device:x}-{self.inode:x}.idx"


@dataclass(frozen=True)
class StoredIndex:
    """The stored form of a :class:`FileIndex`.

    Attributes:
        episodes: number of episodes in the file.
        runs: the parts; other episodes are read through the structure of the file.
        attributes: the attributes of all episodes.
        spaces: signature of the spaces for which parts may be missing; empty if valid for any.
    """

    episodes: int
    runs: tuple[Runs, ...]
    attributes: Attributes
    spaces: str = ""

    @classmethod
    def of(cls, index: FileIndex) -> StoredIndex:
        """Convert an index to the stored form."""
        runs = tuple(Runs.of(part, index.steps) for part in merged(index.parts))
        return cls(len(index), runs, Attributes.of(index.attributes))

    @property
    def is_of_own_layout(self) -> bool:
        """Whether the file is one of ``hdf5.writer``, which can continue it."""
        return not self.spaces

    def index(self) -> FileIndex | None:
        """Return the index, or None if the attributes of an episode cannot be read."""
        attributes = self.attributes.whole_table()
        if attributes is None:
            return None
        steps = np.full(self.episodes, -1, np.int64)
        for runs in self.runs:
            steps[runs.episodes] = runs.steps
        return FileIndex(steps, tuple(runs.part() for runs in self.runs), attributes)


_held: OrderedDict[str, bytes] = OrderedDict()
_writes = 0


def remember(path: str | Path, index: FileIndex, written: os.stat_result) -> None:
    """Store the index of a file that was just written and moved into place.

    Args:
        path: the file.
        index: the index of all its episodes.
        written: stat result of the file after it was written; any other file is ignored.
    """
    with suppress(OSError, ValueError):
        with open(path, "rb") as file:
            stamp = Stamp.of(os.fstat(file.fileno()))
            ours = (written.st_dev, written.st_ino, written.st_size, written.st_mtime_ns)
            if (stamp.device, stamp.inode, stamp.size, stamp.modified_ns) != ours:
                return
            samples = sample(lambda start, size: _read_at(file, start, size), stamp.size)
        save(StoredIndex.of(index), stamp, samples)


def _folder() -> Path:
    folder = cache_folder() / "index"
    refuse_tracked_links_once(folder)
    return folder


def save(index: StoredIndex, stamp: Stamp, samples: int | None) -> None:
    """Store an index.

    Args:
        index: the index of all episodes of the file.
        stamp: stamp of the file, taken before the index was made.
        samples: :func:`sample` of the file, if it is not settled.
    """
    global _writes
    content = _packed(index, stamp, samples)
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{stamp.name}.{os.getpid()}.tmp"
        try:
            beside.write_bytes(content)
            os.replace(beside, folder / stamp.name)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _held.pop(stamp.name, None)
        if _writes % _SWEEP_EVERY == 0:
            _sweep(folder)
        _writes += 1
    except OSError:
        _held[stamp.name] = content
        while len(_held) > _MOST_HELD:
            _held.popitem(last=False)


def load(stamp: Stamp, take: Callable[[int, int], bytes]) -> StoredIndex | None:
    """Return the stored index for a version of a file, or None if there is none.

    Args:
        stamp: stamp of the file.
        take: returns bytes of the file, given an offset and a size.
    """
    path = None
    content = _held.get(stamp.name)
    if content is None:
        try:
            path = _folder() / stamp.name
            content = path.read_bytes()
        except OSError:
            return None
    try:
        index = _unpacked(content, stamp, take)
    except Exception:  # any error: it is only a cache
        return None
    if index is not None and path is not None and not content[_SETTLED_AT] and stamp.is_settled:
        with suppress(OSError), open(path, "r+b") as file:
            file.seek(_SETTLED_AT)
            file.write(b"\1")
    return index


def sample(take: Callable[[int, int], bytes], size: int) -> int:
    """Return a checksum of samples, which is unlikely to be equal for another content.

    Args:
        take: returns bytes of the content, given an offset and a size.
        size: size of the content.
    """
    end = max(0, size - _END_BYTES)
    found = zlib.crc32(take(end, size - end))
    for start in range(0, end, max(_SAMPLE_BYTES, end // _SAMPLES)):
        found = zlib.crc32(take(start, min(_SAMPLE_BYTES, end - start)), found)
    return found


def _read_at(file: Any, start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def _packed(index: StoredIndex, stamp: Stamp, samples: int | None) -> bytes:
    arrays: list[Any] = []
    texts = index.attributes.texts
    header: dict[str, Any] = {
        "stamp": stamp,
        "samples": samples,
        "episodes": index.episodes,
        "spaces": index.spaces,
        "runs": [],
        "numbers": [[key, array.dtype.str] for key, array in index.attributes.numbers.items()],
        "texts": texts is not None,
    }
    for runs in index.runs:
        leaves = [[leaf.path, leaf.dtype.str, leaf.shape, leaf.more] for leaf in runs.leaves]
        header["runs"].append([leaves, len(runs.episodes), len(runs.firsts)])
        arrays += [runs.episodes, runs.steps, runs.firsts, runs.addresses]
    arrays += index.attributes.numbers.values()
    if texts is not None:
        arrays.append(np.cumsum([0, *map(len, texts)]))
    encoded = json.dumps(header).encode()
    encoded += b" " * (-(len(encoded) + _HEAD.size) % 8)
    pieces = [encoded, *(np.ascontiguousarray(array).tobytes() for array in arrays), *(texts or ())]
    body = b"".join(pieces)
    settled = samples is None
    return _HEAD.pack(_MARK, settled, zlib.adler32(body), len(body), len(encoded)) + body


def _unpacked(
    content: bytes, stamp: Stamp, take: Callable[[int, int], bytes]
) -> StoredIndex | None:
    mark, settled, checksum, size, header_size = _HEAD.unpack_from(content)
    body = memoryview(content)[_HEAD.size :]
    if mark != _MARK or size != len(body) or zlib.adler32(body) != checksum:
        return None
    header = json.loads(bytes(body[:header_size]))
    if tuple(header["stamp"]) != stamp:
        return None
    if not settled and header["samples"] != sample(take, stamp.size):
        return None
    at = _HEAD.size + header_size

    def array(dtype: Any, *shape: int) -> Any:
        nonlocal at
        found = np.ndarray(shape, dtype, content, at)
        at += found.nbytes
        return found

    runs = []
    for stored, count, own in header["runs"]:
        leaves = tuple(
            Leaf(tuple(path), np.dtype(dtype), tuple(shape), more)
            for path, dtype, shape, more in stored
        )
        arrays = (array("=i8", count), array("=i8", count), array("=i8", own))
        runs.append(Runs(arrays[0], leaves, *arrays[1:], array("=i8", len(leaves), own)))
    episodes = header["episodes"]
    numbers = {name: array(dtype, episodes) for name, dtype in header["numbers"]}
    texts = None
    if header["texts"]:
        ends = array("=i8", episodes + 1).tolist()
        texts = [content[at + start : at + end] for start, end in pairwise(ends)]
    if not all(one.fits(episodes, stamp.size) for one in runs):
        return None
    return StoredIndex(episodes, tuple(runs), Attributes(numbers, texts), header["spaces"])


def _sweep(folder: Path) -> None:
    """Remove files that killed processes left behind, and the oldest indexes if too large."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                found.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    size = sum(entry[1] for entry in found)
    for modified, own, path in sorted(found):
        left_over = path.endswith(".tmp") and time.time() - modified > 3600
        if size > _MOST_BYTES or left_over:
            with suppress(OSError):
                os.unlink(path)
                size -= own
