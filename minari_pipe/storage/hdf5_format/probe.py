"""Read a whole HDF5 file with libhdf5, in a process that may die of it.

Run as a script by :mod:`minari_pipe.storage.hdf5_format.checked`; it imports nothing of this
package, so that it starts quickly from anywhere.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import h5py

#: rows are read in parts of about this many bytes
_PART = 2**26


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


def _read(dataset: h5py.Dataset, size: int) -> None:
    properties = dataset.id.get_create_plist()
    elsewhere = properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count()
    if dataset.shape is None or elsewhere:
        return
    for shape in (dataset.shape, dataset.chunks or ()):
        declared = math.prod(shape) * dataset.dtype.itemsize
        if declared > _PART and declared > 1100 * size:
            raise ValueError(f"{dataset.name} declares {declared} bytes, its file has {size}")
    if not dataset.shape:
        dataset[()]
        return
    row = max(1, math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)
    step = max(1, _PART // row)
    for start in range(0, len(dataset), step):
        dataset[start : start + step]


def main(path: str, seconds: int, memory: int, size: int) -> int:
    """Read the file within limits on time and memory; say on stdout what is wrong."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
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
