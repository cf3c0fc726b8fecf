"""Write and read a block's file: collected episodes on their way to a dataset, in columns.

::

    block_00003.npz              NumPy's own format: a ZIP archive, stored, not compressed
    ├─ 0/header.json             describes the first segment: see below
    ├─ 0/steps.npy               T of each of its episodes, shape (N,)
    ├─ 0/rows/0.npy, 1.npy, ...  one leaf each, the rows of all N episodes one after another
    ├─ 0/numbers/0.npy, ...      one attribute each (seed, rewards_sum, ...), shape (N,)
    ├─ 1/...                     the next segment, whose episodes may have another structure
    └─ 2/record                  a single episode, with texts in its infos, in the format of a
                                 journal

``header.json`` has ``leaves`` (path, rows beyond the number of steps), ``numbers`` (names), and
``others`` (the further attributes of each episode). Nothing is lossy. The same episodes, added in
the same order, give the same bytes: no member has a timestamp, and only the episodes decide where
a segment ends.
"""

from __future__ import annotations

import ast
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.tree import named_dtype
from minari_pipe.errors import CorruptDatasetError, InvalidEpisodeError
from minari_pipe.recording.journal.format import (
    EPISODE,
    EpisodeDecoder,
    EpisodeEncoder,
    read_prefix,
)
from minari_pipe.storage.columns import Columns
from minari_pipe.storage.json_attributes import dump_attributes, load_attributes
from minari_pipe.storage.segment import AttributeTable, Leaf, Segment
from minari_pipe.storage.writer import EpisodeWriter, buffer_of

#: The oldest date that a member of a ZIP archive can have.
_NO_TIME = (1980, 1, 1, 0, 0, 0)

#: What reading a damaged archive, array or header raises.
_DAMAGE = (
    zipfile.BadZipFile,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    EOFError,
    MemoryError,
    NotImplementedError,  # unknown compression method, or encryption
    RecursionError,
    RuntimeError,  # a member with a password
    SyntaxError,  # from the header of an array
)


class BlockWriter(EpisodeWriter):
    """Writes a block's file; :meth:`add` takes the episodes.

    Example:
        >>> import gymnasium as gym, tempfile
        >>> space, folder = gym.spaces.Discrete(9), tempfile.TemporaryDirectory()
        >>> buffer = EpisodeBuffer(seed=7, observations=np.array([0, 1]), actions=np.array([1]),
        ...                        rewards=np.array([0.5]), terminations=np.array([True]),
        ...                        truncations=np.array([False]))
        >>> path = Path(folder.name) / "block.npz"
        >>> with BlockWriter.create(path) as block:
        ...     block.add([buffer, buffer], space, space)
        2
        >>> [segment.steps for segment in read_block(path)]
        [array([1]), array([1])]
        >>> folder.cleanup()
    """

    _KEEPS = False

    def __init__(self, archive: zipfile.ZipFile) -> None:
        """Use :meth:`create` instead."""
        self._archive = archive
        self._count = 0
        self._n_parts = 0

    @classmethod
    @contextmanager
    def create(cls, path: Path) -> Iterator[BlockWriter]:
        """Write a new file at ``path``; it is complete only after a clean exit.

        Raises:
            OSError: the file cannot be written.
        """
        with (
            path.open("wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
        ):
            yield cls(archive)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self._count

    def episode_metadata(self, index: int) -> dict[str, Any]:
        raise self._final(index)

    def _extend(self, index: int, columns: Columns) -> npt.NDArray[np.float64]:
        raise self._final(index)

    def _set_attributes(self, index: int, attributes: Mapping[str, Any]) -> None:
        raise self._final(index)

    def _final(self, index: int) -> InvalidEpisodeError:
        return InvalidEpisodeError(f"episode {index} is finished; a block only takes new episodes")

    def _append_segment(self, segment: Segment) -> None:
        for part in segment.each():
            self._write_segment(part)

    def _write_segment(self, segment: Segment) -> None:
        table = segment.attributes
        header: dict[str, Any] = {
            "leaves": [[list(leaf.path), leaf.more] for leaf in segment.leaves],
            "numbers": list(table.numbers),
            "others": None if table.others is None else [dump_attributes(o) for o in table.others],
        }
        self._write("header.json", json.dumps(header).encode())
        self._write_array("steps", segment.steps)
        for which, (_, rows) in enumerate(segment.pairs()):
            self._write_array(f"rows/{which}", rows)
        for which, values in enumerate(table.numbers.values()):
            self._write_array(f"numbers/{which}", values)
        self._n_parts += 1
        self._count += len(segment)

    def _append(self, columns: Columns, attributes: Mapping[str, Any]) -> None:
        record = EpisodeEncoder().record(buffer_of(columns, attributes))
        self._write("record", b"".join(record))
        self._n_parts += 1
        self._count += 1

    def _write(self, name: str, data: bytes) -> None:
        with self._member(name) as member:
            member.write(data)

    def _write_array(self, name: str, array: npt.NDArray[Any]) -> None:
        array = np.ascontiguousarray(array)
        with self._member(f"{name}.npy") as member:
            header = np.lib.format.header_data_from_array_1_0(array)
            np.lib.format.write_array_header_1_0(member, header)
            member.write(array.reshape(-1).view(np.uint8).data)

    def _member(self, name: str) -> Any:
        info = zipfile.ZipInfo(f"{self._n_parts}/{name}", _NO_TIME)
        return self._archive.open(info, "w", force_zip64=True)


def read_block(path: Path) -> Iterator[Segment | EpisodeBuffer]:
    """Yield the episodes of a block's file, joined ones as one segment.

    Args:
        path: the file, which may come from a stranger: reading it executes nothing and takes no
            more memory than the file's own size.

    Raises:
        CorruptDatasetError: the file is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            reader = _Reader(archive, path.stat().st_size)
            for part in range(len(reader)):
                yield reader.part(part)
    except FileNotFoundError:
        raise
    except _DAMAGE as exc:
        text = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise CorruptDatasetError(f"{path} is damaged: {text}") from exc


class _Reader:
    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        self._members = {info.filename: info for info in archive.infolist()}
        if len(self._members) != len(archive.infolist()):
            raise ValueError("two members have the same name")
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("a member is compressed")
        if sum(info.file_size for info in archive.infolist()) > size:
            raise ValueError("its members are larger than the file")
        self._first = 0

    def __len__(self) -> int:
        return len({name.partition("/")[0] for name in self._members})

    def part(self, part: int) -> Segment | EpisodeBuffer:
        if f"{part}/record" in self._members:
            self._first += 1
            return _decoded(self._archive.read(f"{part}/record"))
        header = json.loads(self._archive.read(f"{part}/header.json"))
        steps = self._array(f"{part}/steps")
        if steps.dtype != np.int64 or steps.ndim != 1 or not (steps > 0).all() or not len(steps):
            raise ValueError(f"the step counts of part {part} are invalid")
        n, total = len(steps), int(steps.sum(dtype=object))
        leaves, arrays = [], []
        for which, (path, more) in enumerate(header["leaves"]):
            rows = self._array(f"{part}/rows/{which}")
            if type(more) is not int or more < 0 or len(rows) != total + more * n:
                raise ValueError(f"the rows of {path} do not match the steps of part {part}")
            leaves.append(Leaf(_path(path), rows.dtype, rows.shape[1:], more))
            arrays.append(rows)
        if len({leaf.path for leaf in leaves}) != len(leaves):
            raise ValueError(f"part {part} has a duplicate leaf")
        numbers = {
            str(name): self._array(f"{part}/numbers/{which}")
            for which, name in enumerate(header["numbers"])
        }
        others = header["others"]
        if others is not None:
            others = [load_attributes(text) for text in others]
        if any(values.shape != (n,) for values in numbers.values()) or len(others or steps) != n:
            raise ValueError(f"the attributes of part {part} do not match its episodes")
        segment = Segment(
            self._first, steps, tuple(leaves), tuple(arrays), AttributeTable(numbers, others)
        )
        self._first += n
        return segment

    def _array(self, name: str) -> npt.NDArray[Any]:
        data = self._archive.read(f"{name}.npy")  # compares the checksum
        begin = 10 + int.from_bytes(data[8:10], "little")
        if data[:8] != b"\x93NUMPY\x01\x00" or len(data) < begin:
            raise ValueError(f"{name} is not an array in NumPy's format 1.0")
        header = ast.literal_eval(data[10:begin].decode("ascii"))
        # A malformed dtype name can crash NumPy's own reader.
        dtype = named_dtype(header["descr"])
        if header["fortran_order"] or dtype.kind not in "biufc":
            raise ValueError(f"{name} is not a plain array of numbers; its dtype is {dtype}")
        # A copy in a bytearray, so that the array is writable.
        return np.frombuffer(bytearray(data[begin:]), dtype).reshape(header["shape"])


def _path(parts: Any) -> tuple[Any, ...]:
    if not parts or not all(type(part) in (str, int) for part in parts):
        raise ValueError(f"{parts!r:.60} is not the path of a leaf")
    return tuple(parts)


def _decoded(data: bytes) -> EpisodeBuffer:
    file = io.BytesIO(data)
    record = read_prefix(file.read)
    if record is None or record.kind != EPISODE:
        raise ValueError("the record of an episode is damaged")
    text = file.read(record.header_size)
    body = bytearray(file.read())
    if len(body) != record.body_size or not record.holds(body):
        raise ValueError("the arrays of an episode are damaged")

    def elsewhere(*_: Any) -> Any:
        raise ValueError("an episode of a block cannot have its rows in another file")

    return EpisodeDecoder(json.loads(text)).episode(record, body, elsewhere)
