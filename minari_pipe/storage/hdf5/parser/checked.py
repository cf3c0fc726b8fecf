"""Open any HDF5 file safely: h5py reads what the parser does not support, after a probe.

libhdf5 crashes on some damaged files and hangs on others. So before it may open a file in this
process, another process must have read all of that file with it.
"""

from __future__ import annotations

import math
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py

from minari_pipe.core.files.links import PathLike, opener, path_of, status_below
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.hdf5.parser import nodes, probe
from minari_pipe.storage.hdf5.parser.reader import FREE_BYTES, MOST_PACKED, File, walk
from minari_pipe.storage.hdf5.parser.source import NotUnderstoodError

#: seconds that libhdf5 gets for any file, and file bytes per additional second: of small arrays, it
#: reads 400 kB a second
_SECONDS = 10
_BYTES_PER_SECOND = 200_000
#: memory that it may use for any file, and for each byte of the file
_MEMORY, _MEMORY_PER_BYTE = 2**28, 64

_Version = tuple[int, int, int, int]
#: links of every group by its path
Members = dict[str, nodes.Links]
#: kinds of links in this file; all others lead to another one
_KINDS = {h5py.h5l.TYPE_HARD: "hard", h5py.h5l.TYPE_SOFT: "soft"}

#: error of each file version that was probed, None if there is none
_verdicts: dict[_Version, str | None] = {}
#: file versions that this process wrote, each with whether it wrote all of it
_written: dict[_Version, bool] = {}
_MOST_WRITTEN = 1000
#: file versions whose values libhdf5 may read
_readable: set[_Version] = set()


def open_checked(path: str | Path, below: PathLike | None = None) -> nodes.File:
    """Open any HDF5 file; libhdf5 opens it only if necessary and after a successful probe.

    Args:
        path: the file.
        below: the folder below which links are not followed; by default the file's own.

    Raises:
        CorruptDatasetError: it is damaged.
        LinkError: it is a link, or in a linked folder.
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


def check_readable(path: str | Path) -> None:
    """Raise an error if a file is damaged, before libhdf5 reads any of it in this process.

    Raises:
        CorruptDatasetError: it is damaged.
    """
    path = Path(path)
    version = _version(path)
    if version in _readable or not version[2]:
        return
    members: Members = {}
    try:
        with File(path) as file:
            if not walk(file, members):  # only libhdf5 knows the size of filtered values
                prove(path)
    except NotUnderstoodError:
        prove(path)
        with open_checked(path) as found:
            members = _members(found)
    with h5py.File(path, "r") as opened:
        _check_opened(opened, members)
        _refuse_unsafe_below(opened)
    if _version(path) == version:
        _readable.add(version)


def _members(file: nodes.File) -> Members:
    """Return the links of every group of a file, without those that cannot be read here."""
    members: Members = {}
    seen: set[int] = set()
    pending: list[nodes.Group] = [file]
    while pending:
        group = pending.pop()
        try:
            members[group.name] = group.links
        except NotUnderstoodError:
            continue
        for name, (kind, address) in group.links.items():
            if kind != "hard" or address in seen:
                continue
            seen.add(address)
            with suppress(CorruptDatasetError):  # such as a named type
                node = group[name]
                if isinstance(node, nodes.Group):
                    pending.append(node)
    return members


def _check_opened(file: h5py.File, members: Members) -> None:
    """Raise an error unless libhdf5 finds the objects of a file that were checked.

    A file can hold two root groups, of which libhdf5 takes one.

    Raises:
        CorruptDatasetError: a group has other members, or they are at other addresses.
    """
    for name, expected in members.items():
        found = H5pyGroup(file[name]).links
        if _hard(found) != _hard(expected) or found.keys() != expected.keys():
            raise CorruptDatasetError(f"{name}: libhdf5 finds other members than are in the file")


def _hard(links: nodes.Links) -> nodes.Links:
    return {name: link for name, link in links.items() if link[0] == "hard"}


def _refuse_unsafe_below(file: h5py.File) -> None:
    """Raise an error for opaque values or those of another file, as libhdf5 itself finds them.

    It may see other values than this package does: a file can hold two headers of one object.

    Raises:
        CorruptDatasetError: an attribute or a dataset has such values.
    """
    seen: set[int] = set()
    pending: list[Any] = [file]
    while pending:
        node = pending.pop()
        if (address := h5py.h5o.get_info(node.id).addr) in seen:
            continue
        seen.add(address)
        try:
            probe.refuse_opaque(node)
            if isinstance(node, h5py.Group):
                pending += [node[name] for name in probe.own_members(node)]
        except ValueError as error:
            raise CorruptDatasetError(str(error)) from None
        if isinstance(node, h5py.Dataset) and probe.is_elsewhere(node):
            raise CorruptDatasetError(f"{node.name} takes its values from another file")


def wrote(path: Path, *, wholly: bool = True) -> None:
    """Record that this process wrote a file; not wholly if it copied bytes of another process."""
    _written[_version(path)] = wholly
    if len(_written) > _MOST_WRITTEN:
        del _written[next(iter(_written))]


def is_written_here(path: Path) -> bool | None:
    """Return whether this process wrote all of a file; None if it wrote nothing of it."""
    return _written.get(_version(path))


def prove(path: Path) -> None:
    """Let another process read a whole file with libhdf5, unless one has done so.

    Raises:
        CorruptDatasetError: the process reports an error, crashes or hangs.
    """
    version = _version(path)
    if version not in _verdicts:
        with open(path, "rb") as file:
            if _version(file.fileno()) != version:
                raise CorruptDatasetError("the file changed while it was opened")
            _verdicts[version] = _probed("whole", path, file.fileno(), version[2])
    problem = _verdicts[version]
    if problem is not None:
        raise CorruptDatasetError(problem)


def check_inside(path: Path, below: PathLike | None = None) -> None:
    """Raise an error if other programs, which use libhdf5, find ways out of a file.

    Whatever this package makes of the file: both may see different links.

    Args:
        path: the file.
        below: as in :func:`open_checked`.

    Raises:
        CorruptDatasetError: libhdf5 finds links, values of another file or opaque ones, or fails.
    """
    with open(path, "rb", opener=opener(below or path.parent)) as file:
        problem = _probed("structure", path, file.fileno(), os.fstat(file.fileno()).st_size)
    if problem is not None:
        raise CorruptDatasetError(problem)


def _probed(how: str, path: Path, opened: int, size: int) -> str | None:
    """Return what another process says against a file that it reads with libhdf5."""
    seconds = _SECONDS + size // _BYTES_PER_SECOND
    limits = (seconds, max(_MEMORY, _MEMORY_PER_BYTE * size), size)
    # The file that is opened here: in that process, a path may lead to another one.
    own_path = path_of(opened)
    place = own_path or os.path.abspath(path)
    # -P: do not import a module beside the script, or in the current folder, by mistake
    command = [sys.executable, "-P", probe.__file__, how, place, *map(str, limits)]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            # the CPU time is limited; the timeout only ends a process that waits forever
            timeout=6 * seconds,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            pass_fds=(opened,) if own_path else (),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "reading it timed out"
    if result.returncode == 0:
        return None
    said = result.stdout.decode("utf-8", "replace")
    return said or f"it is damaged and crashes libhdf5 (exit code {result.returncode})"


def _version(file: Path | int) -> _Version:
    stat = os.stat(file)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


class UnderstoodFile(File):
    """A file that the parser reads, except for objects that only h5py supports."""

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
        return _attributes(self._group)

    @property
    def links(self) -> nodes.Links:
        """Kind of link and address of every member, by name."""
        links: nodes.Links = {}

        def add(name: bytes, info: Any) -> None:
            kind = _KINDS.get(info.type, "external")
            links[name.decode("utf-8", "surrogateescape")] = (kind, info.u)

        self._group.id.links.iterate(add, info=True)
        return links

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all members."""
        return iter(self._group)

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._group)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a member of this name, even if its link is broken."""
        return isinstance(name, str) and self._group.get(name, getlink=True) is not None

    def __getitem__(self, name: str) -> nodes.Group | nodes.Dataset:
        """Return a member that is in this file."""
        if self.link_kind(name) != "hard":
            raise CorruptDatasetError(f"{self.name}/{name} is a soft or external link")
        return adapt(self._group[name])

    def link_kind(self, name: str) -> str:
        """Return the kind of a member's link."""
        link = self._group.get(name, getlink=True)
        if link is None:
            raise KeyError(name)
        kinds = {h5py.SoftLink: "soft", h5py.ExternalLink: "external"}
        return kinds.get(type(link), "hard")


class H5pyFile(H5pyGroup, nodes.File):
    """A file that h5py reads, after a successful probe."""

    def __init__(self, path: Path, below: PathLike | None = None) -> None:
        version = _version(path)
        prove(path)
        self.file = h5py.File(path, "r")
        opened = os.fstat(self.file.id.get_vfd_handle())
        there = status_below(path, below or path.parent)
        if _version(path) != version or not os.path.samestat(opened, there):
            self.file.close()
            raise CorruptDatasetError("the file changed while it was opened, or is a symlink")
        super().__init__(self.file)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class H5pyDataset(nodes.Dataset):
    """A dataset that h5py reads."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset = dataset
        self.name, self.dtype = dataset.name, dataset.dtype
        self.gzip = dataset.compression_opts if dataset.compression == "gzip" else None
        self.is_elsewhere = probe.is_elsewhere(dataset)
        if not self.is_elsewhere:
            self.shape, self.chunks, self.maxshape = dataset.shape, dataset.chunks, dataset.maxshape

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes."""
        return _attributes(self._dataset)

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
        values = dataset[()]
        nodes.check_bools(self.name, values)
        return values


def _attributes(node: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    found = dict(node.attrs)
    for name, value in found.items():
        nodes.check_bools(f"attributes of {node.name}: {name}", value)
    return found


def adapt(node: Any) -> Any:
    """Wrap an h5py object in this package's interface; return other objects unchanged."""
    if isinstance(node, nodes.Node):
        return node
    if isinstance(node, h5py.Group):
        return H5pyGroup(node)
    return H5pyDataset(node) if isinstance(node, h5py.Dataset) else node
