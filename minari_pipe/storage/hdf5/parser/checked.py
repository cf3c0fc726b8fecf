"""Open any HDF5 file safely: what is not understood here is left to h5py, once it is proven.

libhdf5 crashes on some damaged files and never comes back from others. So before it may open a
file in this process, another process has read all of that file with it.
"""

from __future__ import annotations

import math
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from minari_pipe.core.files.links import PathLike, opener, status_below
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.parser import nodes, probe
from minari_pipe.storage.hdf5.parser.reader import FREE_BYTES, MOST_PACKED, File, walk
from minari_pipe.storage.hdf5.parser.source import NotUnderstoodError

#: time that libhdf5 gets for a file: so much, and so much more for each of these bytes
_SECONDS = 10
_BYTES_PER_SECOND = 10_000_000
#: memory that it may take for any file, and for each of its bytes
_MEMORY, _MEMORY_PER_BYTE = 2**28, 64

_Version = tuple[int, int, int, int]
#: what is wrong with the versions of files that were proven, None if nothing is
_verdicts: dict[_Version, str | None] = {}
#: versions of files whose structure was checked and is right
_checked: set[_Version] = set()
#: those of which libhdf5 may read the values, too
_readable: set[_Version] = set()


def open_checked(path: str | Path, below: PathLike | None = None) -> nodes.File:
    """Open a file of any kind; libhdf5 only sees it if it needs to and is proven not to mind.

    Args:
        path: the file.
        below: the folder from which no link is followed to it, its own if not given.

    Raises:
        CorruptDatasetError: it is damaged.
        LinkError: it is a link.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    try:
        with open(path, "rb", opener=opener(below or path.parent)) as file:
            is_empty = not os.fstat(file.fileno()).st_size
            mapped = None if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return UnderstoodFile(path, mapped, below)
    except NotUnderstoodError:
        return H5pyFile(path, below)


def check_structure(path: str | Path, *, values: bool = False) -> None:
    """Check all structure of a file, before libhdf5 opens it in this process.

    Args:
        path: of the file.
        values: libhdf5 will read them, too; what packed ones unpack to, nobody can tell before.

    Raises:
        CorruptDatasetError: it is damaged.
    """
    path = Path(path)
    version = _version(path)
    if version in (_readable if values else _checked):
        return
    try:
        with File(path) as file:
            to_prove = not walk(file, values=values) and values
    except NotUnderstoodError:
        to_prove = True
    if to_prove:
        prove(path)
    elif values:
        _refuse_elsewhere(path)
    if _version(path) == version:
        _checked.add(version)
        if values:
            _readable.add(version)


def _refuse_elsewhere(path: Path) -> None:
    """Refuse values of another file, as libhdf5 itself finds them.

    It may see others than this package does: a file can hold two headers of one object.
    """
    seen: set[int] = set()
    with h5py.File(path, "r") as file:
        pending: list[Any] = [file]
        while pending:
            node = pending.pop()
            if (address := h5py.h5o.get_info(node.id).addr) in seen:
                continue
            seen.add(address)
            if isinstance(node, h5py.Group):
                try:
                    pending += [node[name] for name in probe.own_members(node)]
                except ValueError as error:
                    raise CorruptDatasetError(str(error)) from None
            elif isinstance(node, h5py.Dataset) and probe.is_elsewhere(node):
                raise CorruptDatasetError(f"{node.name} takes its values from another file")


def trust(path: Path) -> None:
    """Remember that the structure of a file is right: libhdf5 wrote it in this process."""
    _checked.add(_version(path))


def is_trusted(path: Path) -> bool:
    """Tell whether the structure of this version of a file is known to be right."""
    return _version(path) in _checked


def prove(path: Path) -> None:
    """Let another process read a whole file with libhdf5, unless one has.

    Raises:
        CorruptDatasetError: it cannot, or does not survive it.
    """
    version = _version(path)
    if version not in _verdicts:
        _verdicts[version] = _prove(path, version[2])
    problem = _verdicts[version]
    if problem is not None:
        raise CorruptDatasetError(problem)


def _prove(path: Path, size: int) -> str | None:
    seconds = _SECONDS + size // _BYTES_PER_SECOND
    limits = (seconds, max(_MEMORY, _MEMORY_PER_BYTE * size), size)
    # -P: no module beside the script, or in the current folder, is imported by mistake
    command = [sys.executable, "-P", probe.__file__, os.path.abspath(path), *map(str, limits)]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            # it is limited in CPU time; a clock only ends one that waits for ever
            timeout=6 * seconds,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "reading it does not end"
    if result.returncode == 0:
        return None
    said = result.stdout.decode("utf-8", "replace")
    return said or f"it is damaged so that libhdf5 crashes (exit code {result.returncode})"


def _version(path: Path) -> _Version:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


class UnderstoodFile(File):
    """A file that is read here, but for those of its objects that only h5py understands."""

    def __init__(
        self, path: Path, mapped: mmap.mmap | None = None, below: PathLike | None = None
    ) -> None:
        self._proven: H5pyFile | None = None
        self._below = below
        super().__init__(path, self._from_h5py, mapped)

    def _from_h5py(self, name: str) -> Any:
        if self._proven is None:
            self._proven = H5pyFile(self.source.path, self._below)
        node: Any = self._proven
        for part in filter(None, name.split("/")):  # h5py would follow every kind of link
            node = node[part]
        return node

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._proven is not None:
            self._proven.close()


class H5pyGroup(nodes.Group):
    """A group that h5py reads."""

    def __init__(self, group: h5py.Group) -> None:
        self._group = group
        self.name = group.name

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes."""
        return dict(self._group.attrs)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all members."""
        return iter(self._group)

    def __len__(self) -> int:
        """Number of members."""
        return len(self._group)

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a member of this name, even if its link leads nowhere."""
        return isinstance(name, str) and self._group.get(name, getlink=True) is not None

    def __getitem__(self, name: str) -> nodes.Group | nodes.Dataset:
        """Return a member that lies in this file."""
        if self.link_kind(name) != "hard":
            raise CorruptDatasetError(f"{self.name}/{name} is a link to another place")
        return adapt(self._group[name])

    def link_kind(self, name: str) -> str:
        """Return the kind of link that a member is."""
        link = self._group.get(name, getlink=True)
        if link is None:
            raise KeyError(name)
        kinds = {h5py.SoftLink: "soft", h5py.ExternalLink: "external"}
        return kinds.get(type(link), "hard")


class H5pyFile(H5pyGroup, nodes.File):
    """A file that h5py reads, after it was proven."""

    def __init__(self, path: Path, below: PathLike | None = None) -> None:
        version = _version(path)
        prove(path)
        self.file = h5py.File(path, "r")
        opened = os.fstat(self.file.id.get_vfd_handle())
        there = status_below(path, below or path.parent)
        if _version(path) != version or not os.path.samestat(opened, there):
            self.file.close()
            raise CorruptDatasetError("the file was changed while it was opened, or is a link")
        super().__init__(self.file)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class H5pyDataset(nodes.Dataset):
    """A dataset that h5py reads."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset = dataset
        self.name, self.dtype = dataset.name, dataset.dtype
        self.is_elsewhere = probe.is_elsewhere(dataset)
        if not self.is_elsewhere:
            self.shape, self.chunks, self.maxshape = dataset.shape, dataset.chunks, dataset.maxshape

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes."""
        return dict(self._dataset.attrs)

    def read(self) -> Any:
        """Return all values."""
        if self.is_elsewhere:
            raise CorruptDatasetError(f"{self.name}: its values are in another file")
        file_size = self._dataset.file.id.get_filesize()
        for shape in (self.shape or (), self.chunks or ()):
            size = math.prod(shape) * self.dtype.itemsize
            if size > FREE_BYTES and size > MOST_PACKED * file_size:
                raise CorruptDatasetError(
                    f"{self.name} declares {size} bytes of shape {shape}, far more than its file "
                    "can hold"
                )
        dataset = self._dataset
        if self.shape is not None and h5py.check_string_dtype(self.dtype) is not None:
            dataset = dataset.asstr()
        return dataset[()]


def adapt(node: Any) -> Any:
    """Give an object of h5py the interface of this package; others are returned as they are."""
    if isinstance(node, nodes.Node):
        return node
    if isinstance(node, h5py.Group):
        return H5pyGroup(node)
    return H5pyDataset(node) if isinstance(node, h5py.Dataset) else node
