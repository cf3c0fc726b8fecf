"""Read a whole HDF5 file with libhdf5, in a process that may die of it.

Run as a script by :mod:`minari_pipe.storage.hdf5_format.checked`; it imports nothing of this
package, so that it starts quickly from anywhere.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

#: rows are read in parts of about this many bytes
_PART = 2**26
#: bytes of what refers to another object
_REFERENCE = 8


def walk(file: h5py.File, size: int) -> None:
    """Read every object that hard links lead to, each once.

    Raises:
        ValueError: an array declares far more bytes than a file of this size can hold.
    """
    seen = set()
    pending: list[Any] = [file]
    while pending:
        node = pending.pop()
        address = h5py.h5o.get_info(node.id).addr
        if address in seen:
            continue
        seen.add(address)
        dict(node.attrs)
        if isinstance(node, h5py.Group):
            for name in node:
                if isinstance(node.get(name, getlink=True), h5py.HardLink):
                    pending.append(node[name])
        elif isinstance(node, h5py.Dataset):
            _read(node, size)


def is_elsewhere(dataset: h5py.Dataset) -> bool:
    """Tell whether the values are in another file; its shape would have libhdf5 open that."""
    properties = dataset.id.get_create_plist()
    return bool(properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count())


def texts(dataset: h5py.Dataset, size: int) -> Iterator[Any]:
    """Yield the values of a dataset, each of its own length, in parts.

    Raises:
        ValueError: together they have more bytes than the file, so many refer to the same ones.
    """
    total, row = 0, max(1, math.prod(dataset.shape[1:]))
    step = max(1, _PART // max(size, 1) // row)
    for start in range(0, len(dataset), step):
        values = dataset[start : start + step]
        total += sum(map(_bytes, values.flat))
        if total > size:
            raise ValueError(f"{dataset.name} has at least {total} bytes, its file has {size}")
        yield values


def _bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return len(value) if isinstance(value, bytes | str) else _REFERENCE


def _read(dataset: h5py.Dataset, size: int) -> None:
    if is_elsewhere(dataset):
        raise ValueError(
            f"{dataset.name} takes its values from another file; only data in the file itself is "
            f"read"
        )
    if dataset.shape is None:
        return
    for shape in (dataset.shape, dataset.chunks or ()):
        declared = math.prod(shape) * dataset.dtype.itemsize
        if declared > _PART and declared > 1100 * size:
            raise ValueError(f"{dataset.name} declares {declared} bytes, its file has {size}")
    if not dataset.shape:
        dataset[()]
        return
    if dataset.dtype.kind == "O":
        for _ in texts(dataset, size):
            pass
        return
    row = max(1, math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)
    step = max(1, _PART // row)
    for start in range(0, len(dataset), step):
        dataset[start : start + step]


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
