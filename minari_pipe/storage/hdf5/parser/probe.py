"""Read an HDF5 file with libhdf5, in a process that may crash.

:mod:`minari_pipe.storage.hdf5.parser.checked` runs this as a script; it imports nothing from this
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
from h5py import h5a, h5d, h5g, h5l, h5o, h5t, h5z

#: rows are read in parts of about this many bytes
_PART = 2**26


def walk(file: h5py.File, size: int) -> None:
    """Read every object reachable through hard links, each once.

    Raises:
        ValueError: an array declares far more bytes than a file of this size can hold, or as in
            :func:`refuse_opaque`.
    """
    seen = set()
    left = size  # bytes left for variable-length values, which an intact file stores once
    pending: list[Any] = [file]
    while pending:
        node = pending.pop()
        address = h5py.h5o.get_info(node.id).addr
        if address in seen:
            continue
        seen.add(address)
        refuse_opaque(node)
        for name in node.attrs:
            left = _take(left, [node.attrs[name]], f"the attribute {name!r} of {node.name}")
        if isinstance(node, h5py.Group):
            pending += [node[name] for name in own_members(node)]
        elif isinstance(node, h5py.Dataset):
            left = _read(node, size, left)


def own_members(group: h5py.Group) -> list[str]:
    """Return the names of members that are in the file itself.

    Raises:
        ValueError: h5py takes a name for a path, which may lead through a link to another file.
    """
    names = list(group)
    for name in names:
        if "/" in name or name == ".":
            raise ValueError(f"{group.name} has a member named {name!r}, which is a path")
    return [n for n in names if isinstance(group.get(n, getlink=True), h5py.HardLink)]


def refuse_opaque(node: Any) -> None:
    """Raise an error for opaque values of a dataset or of attributes, before h5py sees their type.

    With the tag ``NUMPY:|O``, h5py takes the bytes of the file for addresses of Python objects.

    Raises:
        ValueError: a type is opaque, or has an opaque part.
    """
    kinds: list[tuple[bytes, Any]] = []
    if isinstance(node, h5py.Dataset):
        kinds.append((b"", node.id.get_type()))
    for at in range(h5a.get_num_attrs(node.id)):
        attribute = h5a.open(node.id, index=at)
        kinds.append((attribute.name, attribute.get_type()))
    while kinds:
        what, kind = kinds.pop()
        if isinstance(kind, h5t.TypeOpaqueID):
            where = f"the attribute {what.decode('utf-8', 'replace')!r} of " if what else ""
            raise ValueError(
                f"{where}{node.name} has opaque values, which no program can read safely"
            )
        if isinstance(kind, h5t.TypeCompoundID):
            kinds += [(what, kind.get_member_type(n)) for n in range(kind.get_nmembers())]
        elif isinstance(kind, h5t.TypeArrayID | h5t.TypeVlenID):
            kinds.append((what, kind.get_super()))


def stay_inside(file: h5py.File) -> None:
    """Read the structure of a file that has hard links alone, and no values of other files.

    Raises:
        ValueError: it has other links, values of another file, or as in :func:`refuse_opaque`.
    """
    seen = set()
    pending: list[Any] = [file.id]
    while pending:
        group = pending.pop()
        refuse_opaque(h5py.Group(group))
        for name, kind, address in _links(group):
            if kind != h5l.TYPE_HARD or b"/" in name or name == b".":
                where = h5py.Group(group).name
                raise ValueError(
                    f"{where} has a member {name.decode('utf-8', 'replace')!r} that is a link, or "
                    f"that h5py takes for a path"
                )
            if address in seen:
                continue
            seen.add(address)
            node = h5o.open(group, name)
            if isinstance(node, h5g.GroupID):
                pending.append(node)
            elif isinstance(node, h5d.DatasetID):
                dataset = h5py.Dataset(node)
                refuse_opaque(dataset)
                if is_elsewhere(dataset):
                    raise ValueError(f"{dataset.name} takes its values from another file")


def _links(group: Any) -> list[tuple[bytes, int, int]]:
    """Return name, type and, of a hard link, address of each link of a group."""
    links: list[tuple[bytes, int, int]] = []
    # h5py hands over the same object for each link
    group.links.iterate(lambda name, info: links.append((name, info.type, info.u)), info=True)
    return links


def is_elsewhere(dataset: h5py.Dataset) -> bool:
    """Return whether the values are in another file, which asking for the shape would open."""
    properties = dataset.id.get_create_plist()
    return bool(properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count())


def check_chunks(dataset: h5py.Dataset) -> None:
    """Raise an error for chunks that do not decompress to their full size.

    libhdf5 does not check this, and fills the rest with whatever is in the process's memory.

    Raises:
        ValueError: a chunk has another size, or a filter whose output size is unknown here.
    """
    if dataset.chunks is None:
        return
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(at)[0] for at in range(properties.get_nfilters())]
    for code in filters:
        if code not in _LENGTHS:
            raise ValueError(
                f"{dataset.name} has filter {code}, expected gzip, shuffle, fletcher32 or lzf; "
                f"rewrite the file with h5repack -f GZIP=6"
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
        raise ValueError(f"{dataset.name} has {left} chunks that cannot be read or are misplaced")


def _stored_size(dataset: h5py.Dataset) -> int:
    """Return the stored bytes of a value; a variable-length one is a length and an address."""
    if dataset.dtype.kind != "O":
        return dataset.dtype.itemsize
    return 8 + int(h5py.h5i.get_file_id(dataset.id).get_create_plist().get_sizes()[0])


def _inflated(data: bytes, most: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, most)
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be decompressed: {error}") from None


def _unpacked_lzf(data: bytes, most: int) -> bytes:
    """Return as many bytes as LZF decompresses to; their values do not matter."""
    at = size = 0
    while at < len(data) and size <= most:
        code = data[at]
        if code < 32:  # code + 1 literal bytes follow
            at += code + 2
            size += code + 1
        else:  # a back reference: length and offset
            is_long = code >> 5 == 7 and at + 1 < len(data)
            size += (code >> 5) + 2 + (data[at + 1] if is_long else 0)
            at += 3 if is_long else 2
    return bytes(min(size, most))


#: the inverse of each filter, correct only in the length of its result
_LENGTHS = {
    h5z.FILTER_DEFLATE: _inflated,
    h5z.FILTER_SHUFFLE: lambda data, _: data,
    h5z.FILTER_FLETCHER32: lambda data, _: data[:-4],
    h5z.FILTER_LZF: _unpacked_lzf,
}
#: bytes by which a chunk with two filters may exceed its final size in between
_SPARE = 1024


def _take(left: int, values: Iterable[Any], what: str) -> int:
    """Return how many variable-length bytes may still be read after these values.

    Raises:
        ValueError: none are left, because many places refer to the same values.
    """
    for value in values:
        if isinstance(value, np.ndarray) and value.dtype.kind == "O":
            left = _take(left, value.flat, what)
        elif isinstance(value, bytes | str):
            left -= len(value)
        elif isinstance(value, np.ndarray):
            left -= value.nbytes
    if left < 0:
        raise ValueError(
            f"{what} refers to the same values as others, together far more than its file can hold"
        )
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


def main(how: str, path: str, seconds: int, memory: int, size: int) -> int:
    """Read the file within limits on time and memory; print what is wrong to stdout.

    Args:
        how: ``whole``, or ``structure`` for :func:`stay_inside`.
        path: the file.
        seconds: limit on CPU time.
        memory: limit on the memory to allocate, in bytes.
        size: size of the file.
    """
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        with open("/proc/self/statm", encoding="ascii") as statm:
            memory += int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (ImportError, ValueError, OSError):  # not on this system; the parent has a timeout too
        pass
    try:
        with h5py.File(path, "r") as file:
            stay_inside(file) if how == "structure" else walk(file, size)
    except Exception as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        sys.stdout.write(f"{kind}{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
