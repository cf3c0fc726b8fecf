"""Cache the indexes of HDF5 files on disk, so that a user's processes index each file once.

There is one small file for each HDF5 file, named after its device and inode::

    $MINARI_PIPE_CACHE | $XDG_CACHE_HOME/minari_pipe | ~/.cache/minari_pipe
    └─ index/2a-1f00c3.idx
       ├─ record
       │  ├─ mark of the format, checksum and size of the rest, whether it is settled
       │  ├─ header, JSON  which version of which file, its structures, names of columns
       │  └─ arrays        steps, runs, addresses, columns of attributes, in native byte order
       └─ record ...       the same of episodes that were added to the file where it was

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minari_pipe.core.files.fetch import cache_folder
from minari_pipe.core.files.words import Word
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
#: most records of a file; beyond that, it is written anew
_MOST_PARTS = 64
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


def joined(chain: Sequence[StoredIndex]) -> StoredIndex | None:
    """Join indexes of the episodes of one file, each of those after the ones before.

    Returns:
        The index of all episodes, or None if the attributes of one cannot be read.
    """
    chain = [index for index in chain if index.episodes] or chain[:1]
    if len(chain) == 1:
        return chain[0]
    attributes = Attributes.joined([index.attributes for index in chain])
    if attributes is None:
        return None
    same: dict[tuple[Leaf, ...], list[tuple[int, Runs]]] = {}
    first = 0
    for index in chain:
        for runs in index.runs:
            same.setdefault(runs.leaves, []).append((first, runs))
        first += index.episodes
    found = tuple(map(Runs.joined, same.values()))
    return StoredIndex(first, found, attributes, chain[0].spaces)


_held: OrderedDict[str, bytes] = OrderedDict()
_writes = 0


class _Grown(NamedTuple):
    """The index of the file that this process changed last, in the parts that it learned."""

    stamp: Stamp
    samples: int
    chain: tuple[StoredIndex, ...]


_grown: _Grown | None = None


def remember(path: str | Path, index: FileIndex, written: os.stat_result) -> None:
    """Store the index of a file that was just written and moved into place.

    Args:
        path: the file.
        index: the index of all its episodes.
        written: stat result of the file after it was written; any other file is ignored.
    """
    with suppress(OSError, ValueError):
        stamp, samples = _sampled(path)
        ours = (written.st_dev, written.st_ino, written.st_size, written.st_mtime_ns)
        if (stamp.device, stamp.inode, stamp.size, stamp.modified_ns) == ours:
            save(StoredIndex.of(index), stamp, samples)


def remember_more(
    path: Path, word: Word, before: Stamp, chain: tuple[StoredIndex, ...], added: FileIndex
) -> None:
    """Store the index of a file to which this process just added episodes, where it is.

    Args:
        path: the file.
        word: what was written to it last; any other file is ignored.
        before: its stamp before that.
        chain: the index of the episodes before; see :func:`joined`.
        added: the index of the added ones, if any.
    """
    global _grown
    more = StoredIndex.of(added)
    is_alike = not len(added) or more.attributes.continues(chain[0].attributes)
    with suppress(OSError, ValueError):
        stamp, samples = _sampled(path)
        if not word.is_in(path):  # another process has gone on since, before the stamp or after it
            return
        is_stored = is_alike and _extend(_packed(more, stamp, samples), before, stamp)
        chain = (*chain, more)
        if len(chain) > _MOST_PARTS or not is_stored:
            whole = joined(chain)
            if whole is None:
                return
            chain = (whole,)
        if not is_stored:
            save(chain[0], stamp, samples)
        _grown = _Grown(stamp, samples, chain)


def known(path: Path, stamp: Stamp) -> tuple[StoredIndex, ...] | None:
    """Return the index of a version of a file, if this process made it by adding episodes."""
    if _grown is None or _grown.stamp != stamp:
        return None
    return _grown.chain if _sampled(path) == _grown[:2] else None


def _sampled(path: str | Path) -> tuple[Stamp, int]:
    with open(path, "rb", buffering=0) as file:
        stamp = Stamp.of(os.fstat(file.fileno()))
        return stamp, sample(lambda start, size: _read_at(file, start, size), stamp.size)


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


def _extend(record: bytes, before: Stamp, stamp: Stamp) -> bool:
    """Add a record to the stored index of a file; return whether that was possible."""
    if stamp.name in _held or stamp.name != before.name:
        return False
    try:
        with open(_folder() / stamp.name, "r+b", buffering=0) as file:
            for _ in range(_MOST_PARTS):
                at, (_, _, _, size, header_size) = file.tell(), _HEAD.unpack(file.read(_HEAD.size))
                end = file.seek(at + _HEAD.size + size)
                if end == os.fstat(file.fileno()).st_size:
                    header = json.loads(_read_at(file, at + _HEAD.size, header_size))
                    file.seek(end)
                    return header["stamp"] == list(before) and file.write(record) == len(record)
    except Exception:  # any error: it is only a cache
        pass
    return False


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
        index, settled_at = _unpacked(content, stamp, take)
    except Exception:  # any error: it is only a cache
        return None
    if index is not None and path is not None and not content[settled_at] and stamp.is_settled:
        with suppress(OSError), open(path, "r+b") as file:
            file.seek(settled_at)
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
) -> tuple[StoredIndex | None, int]:
    """Return an index from its records, and the place where it says whether it is settled."""
    chain: list[StoredIndex] = []
    header: dict[str, Any] = {}
    at = last = settled = 0
    while at < len(content):
        mark, settled, checksum, size, header_size = _HEAD.unpack_from(content, at)
        body = memoryview(content)[at + _HEAD.size : at + _HEAD.size + size]
        if mark != _MARK or size != len(body) or zlib.adler32(body) != checksum:
            return None, 0
        header = json.loads(bytes(body[:header_size]))
        chain.append(_record(header, content, at + _HEAD.size + header_size))
        last, at = at, at + _HEAD.size + size
    if tuple(header["stamp"]) != stamp:
        return None, 0
    if not settled and header["samples"] != sample(take, stamp.size):
        return None, 0
    index = joined(chain)
    if index is None or not all(one.fits(index.episodes, stamp.size) for one in index.runs):
        return None, 0
    return index, last + _SETTLED_AT


def _record(header: dict[str, Any], content: bytes, at: int) -> StoredIndex:
    """Return the index of the episodes of one record, whose arrays begin at ``at``."""

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
