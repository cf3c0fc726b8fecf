"""Read a whole HDF5 file with libhdf5, in a process that may die of it.

Run as a script by :mod:`minari_pipe.storage.hdf5.parser.checked`; it imports nothing of this
package, so that it starts quickly from anywhere.
"""

from __future__ import annotations

import itertools
import math
import sys
import zlib
from collections.abc import Iterable
from typing import Any

import h5py
import numpy as np
from h5py import h5z

#: rows are read in parts of about this many bytes
_PART = 2**26


def walk(file: h5py.File, size: int) -> None:
    """Read every object that hard links lead to, each once.

    Raises:
        ValueError: an array declares far more bytes than a file of this size can hold.
    """
    seen = set()
    left = size  # of what is not of one length, which a sound file has once
    pending: list[Any] = [file]
    while pending:
        node = pending.pop()
        address = h5py.h5o.get_info(node.id).addr
        if address in seen:
            continue
        seen.add(address)
        for name in node.attrs:
            left = _take(left, [node.attrs[name]], f"the attribute {name!r} of {node.name}")
        if isinstance(node, h5py.Group):
            pending += [node[name] for name in own_members(node)]
        elif isinstance(node, h5py.Dataset):
            left = _read(node, size, left)


def own_members(group: h5py.Group) -> list[str]:
    """Return the names of members that lie in the file itself.

    Raises:
        ValueError: h5py takes a name for a path, which may lead through a link to another file.
    """
    names = list(group)
    for name in names:
        if "/" in name or name == ".":
            raise ValueError(f"{group.name} has a member that is named {name!r}, which is a path")
    return [n for n in names if isinstance(group.get(n, getlink=True), h5py.HardLink)]


def is_elsewhere(dataset: h5py.Dataset) -> bool:
    """Tell whether the values are in another file; its shape would have libhdf5 open that."""
    properties = dataset.id.get_create_plist()
    return bool(properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count())


def check_chunks(dataset: h5py.Dataset) -> None:
    """Refuse chunks that unpack to less than they should.

    libhdf5 does not compare, and gives for the rest what lay there in the memory of the process.

    Raises:
        ValueError: a chunk does, or has a filter whose result is not known here.
    """
    if dataset.chunks is None:
        return
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(at)[0] for at in range(properties.get_nfilters())]
    for code in filters:
        if code not in _LENGTHS:
            raise ValueError(
                f"{dataset.name} has filter {code}; read are gzip, shuffle, fletcher32 and lzf: "
                f"write the file anew with h5repack -f GZIP=6"
            )
    expected = math.prod(dataset.chunks) * _stored_size(dataset)
    steps = (range(0, end, step) for end, step in zip(dataset.shape, dataset.chunks))
    left = dataset.id.get_num_chunks()
    for place in itertools.product(*steps):
        try:
            skipped, data = dataset.id.read_direct_chunk(place)
        except (OSError, RuntimeError, ValueError):
            continue  # it was never written
        left -= 1
        for at in reversed(range(len(filters))):
            if not skipped >> at & 1:
                data = _LENGTHS[filters[at]](data, 2 * expected + _SPARE)
        if len(data) != expected:
            raise ValueError(
                f"{dataset.name}: the chunk at {place} has {len(data)} bytes, expected {expected}"
            )
    if left:
        raise ValueError(f"{dataset.name} has {left} chunks that cannot be read, or not by place")


def _stored_size(dataset: h5py.Dataset) -> int:
    """Bytes of a value in the file, where one of no fixed length is a length and a place."""
    if dataset.dtype.kind != "O":
        return dataset.dtype.itemsize
    return 8 + int(h5py.h5i.get_file_id(dataset.id).get_create_plist().get_sizes()[0])


def _inflated(data: bytes, most: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, most)
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be decompressed: {error}") from None


def _unpacked_lzf(data: bytes, most: int) -> bytes:
    """As many bytes as LZF unpacks to; which ones is of no importance after it."""
    at = size = 0
    while at < len(data) and size <= most:
        code = data[at]
        if code < 32:  # as many bytes and one follow as they are
            at += code + 2
            size += code + 1
        else:  # bytes that were there before: how many, and where
            is_long = code >> 5 == 7 and at + 1 < len(data)
            size += (code >> 5) + 2 + (data[at + 1] if is_long else 0)
            at += 3 if is_long else 2
    return bytes(min(size, most))


#: what each filter makes of a chunk that is read, as far as its length goes
_LENGTHS = {
    h5z.FILTER_DEFLATE: _inflated,
    h5z.FILTER_SHUFFLE: lambda data, _: data,
    h5z.FILTER_FLETCHER32: lambda data, _: data[:-4],
    h5z.FILTER_LZF: _unpacked_lzf,
}
#: more bytes than a chunk has that packed twice may have in between
_SPARE = 1024


def _take(left: int, values: Iterable[Any], what: str) -> int:
    """Return how many of the bytes are left that the file may still have in values like these.

    Raises:
        ValueError: none, so many places refer to the same values.
    """
    for value in values:
        if isinstance(value, np.ndarray) and value.dtype.kind == "O":
            left = _take(left, value.flat, what)
        elif isinstance(value, bytes | str):
            left -= len(value)
        elif isinstance(value, np.ndarray):
            left -= value.nbytes
    if left < 0:
        raise ValueError(f"{what} refers to values that others have referred to, again and again")
    return left


def _read(dataset: h5py.Dataset, size: int, left: int) -> int:
    if is_elsewhere(dataset):
        raise ValueError(
            f"{dataset.name} takes its values from another file; only data in the file itself is "
            f"read"
        )
    if dataset.shape is None:
        return left
    for shape in (dataset.shape, dataset.chunks or ()):
        declared = math.prod(shape) * dataset.dtype.itemsize
        if declared > _PART and declared > 1100 * size:
            raise ValueError(f"{dataset.name} declares {declared} bytes, its file has {size}")
    check_chunks(dataset)
    is_text = dataset.dtype.kind == "O"
    if not dataset.shape:
        value = dataset[()]
        return _take(left, [value] if is_text else [], dataset.name)
    # each text may be as long as the file
    row = max(1, math.prod(dataset.shape[1:]) * (size if is_text else dataset.dtype.itemsize))
    step = max(1, _PART // row)
    for start in range(0, len(dataset), step):
        values = dataset[start : start + step]
        if is_text:
            left = _take(left, values.flat, dataset.name)
    return left


def main(path: str, seconds: int, memory: int, size: int) -> int:
    """Read the file within limits on time and memory; say on stdout what is wrong.

    Args:
        path: of the file.
        seconds: of CPU time.
        memory: bytes that it may take.
        size: of the file.
    """
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        with open("/proc/self/statm", encoding="ascii") as statm:
            memory += int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (ImportError, ValueError, OSError):  # not on this system; the parent has a clock too
        pass
    try:
        with h5py.File(path, "r") as file:
            walk(file, size)
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
