"""Index all episodes of a file from this package's own writer at once.

The blocks of its episodes (see ``hdf5.writer.layout``) are equal except for a few numbers. So the
structure of one episode is read and checked, laid out as the writer would do it, and compared with
the bytes of all others: thousands of episodes cost as much as a few that are read one by one. If a
file differs in any byte from what the writer would have written, it is read episode by episode.
Only this file of another process is continued where its root group begins: nothing that an episode
needs is there.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.errors import MinariPipeError
from minari_pipe.storage.attributes import EXACT
from minari_pipe.storage.hdf5.index.build import Builder
from minari_pipe.storage.hdf5.index.cache import StoredIndex
from minari_pipe.storage.hdf5.index.index import Attributes, Part, Runs, merged
from minari_pipe.storage.hdf5.parser.messages import REFERENCE
from minari_pipe.storage.hdf5.parser.reader import Group
from minari_pipe.storage.hdf5.parser.source import DAMAGE, FileBytes, NotUnderstoodError
from minari_pipe.storage.hdf5.parser.trees import GlobalHeap
from minari_pipe.storage.hdf5.writer.direct import CHUNK_BYTES, read_back
from minari_pipe.storage.hdf5.writer.layout import Attribute, Found, Template, template_of
from minari_pipe.storage.hdf5.writer.layout_root import FIRST_ADDRESS, Root, find_root
from minari_pipe.storage.hdf5.writer.layout_types import InexpressibleError
from minari_pipe.storage.segment import AttributeTable, Ints

#: blocks are compared in batches of about this many bytes
_AT_ONCE = 2**24
#: hardly any file has more structures; the episodes of one that does are read one by one
_MOST_KINDS = 64
_PLAIN = frozenset({"i8", "u8", "f8", "b1"})
#: attributes that need decoding, or that are needed to decode others
_SPECIAL = frozenset({EXACT, "infos_slashes", "infos_filled"})

#: reads the structure of an episode for a builder and returns its group
Look = Callable[[int, Builder], Any]


@dataclass(frozen=True)
class _Kind:
    """The episodes of one template."""

    part: Part
    steps: Ints
    attributes: AttributeTable


def match_all(
    mapped: mmap.mmap, look: Look, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> StoredIndex | None:
    """Return the index of a file, or None unless this package's writer wrote all of it.

    Args:
        mapped: the file.
        look: reads the structure of one episode.
        observation_space: space of one observation.
        action_space: space of one action.
    """
    try:
        root = find_root(mapped)
        if root is None or not len(root.headers):
            return None
        source = FileBytes.whole(mapped)
        source.size = root.start  # which the writer overwrites when it continues the file
        builder = Builder(len(root.headers), observation_space, action_space)
        kinds: list[_Kind] = []
        left = np.arange(len(root.headers))
        while len(left):
            kind = None
            if len(kinds) < _MOST_KINDS:
                kind = _kind(source, root.headers, left, look, builder)
            if kind is None:
                return None
            kinds.append(kind)
            left = np.setdiff1d(left, kind.part.episodes, assume_unique=True)
        return _joined(mapped, root, kinds)
    except (MinariPipeError, NotUnderstoodError, InexpressibleError, *DAMAGE):
        return None


def _kind(
    source: FileBytes, headers: Ints, left: Ints, look: Look, builder: Builder
) -> _Kind | None:
    """Return the remaining episodes that match the first of them."""
    first = int(left[0])
    group = look(first, builder)
    entry = builder.entries[first]
    if entry is None or not isinstance(group, Group):
        return None
    attributes = tuple(_attribute(name, value) for name, value in group.attrs.items())
    template = template_of(entry.leaves, attributes)
    starts = headers[left] - template.group
    possible = (starts >= FIRST_ADDRESS) & (starts + template.size <= source.size)
    left, starts = left[possible], starts[possible]
    if template.size * len(starts) > source.size:  # the file has no room for all of them
        return None
    found = []
    for begin, blocks in _blocks(source.data, starts, template.size):
        one = template.match(blocks, starts[begin : begin + len(blocks)])
        found.append(replace(one, values=tuple(values.copy() for values in one.values)))
    whole = np.concatenate([one.whole for one in found])
    episodes = left[whole]
    if not len(episodes) or episodes[0] != first:
        return None
    steps = np.concatenate([one.steps for one in found])[whole]
    addresses = np.concatenate([one.addresses for one in found], axis=1)[:, whole]
    table = _table(source, template, found, whole)
    total = table.numbers.get("total_steps")
    if total is None or total.dtype.kind not in "iu":
        return None
    if (total.astype(np.int64) < np.minimum(1, steps)).any() or (total > steps).any():
        return None
    if "seed" in table.numbers and table.numbers["seed"].dtype.kind not in "iu":
        return None
    return _Kind(Part(episodes, entry.leaves, addresses), steps, table)


def _attribute(name: str, value: Any) -> Attribute:
    value = np.asarray(value, None if not isinstance(value, str) else object)
    return Attribute(name, None if value.dtype.kind == "O" else value.dtype, value.shape)


def _blocks(data: Any, starts: Ints, size: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yield batches of the blocks at these addresses, each with the index of its first block."""
    breaks = np.flatnonzero(np.diff(starts) != size) + 1
    runs = np.concatenate([[0], breaks, [len(starts)]]).tolist()
    run = 0
    count = max(1, _AT_ONCE // size)
    for begin in range(0, len(starts), count):
        end = min(begin + count, len(starts))
        blocks = np.empty((end - begin, size), np.uint8)
        at = begin
        while at < end:
            if runs[run + 1] <= at:
                run += 1
                continue
            last = min(end, runs[run + 1])
            shape = (last - at, size)
            blocks[at - begin : last - begin] = np.ndarray(shape, np.uint8, data, int(starts[at]))
            at = last
        yield begin, blocks


def _table(
    source: FileBytes, template: Template, found: list[Found], whole: npt.NDArray[np.bool_]
) -> AttributeTable:
    """Return the attributes of the matching blocks."""
    numbers: dict[str, npt.NDArray[Any]] = {}
    others: dict[str, list[Any]] = {}
    heap = GlobalHeap(source)
    names = [attribute.name for attribute in template.attributes]
    plain = not _SPECIAL & set(names)
    for which, attribute in enumerate(template.attributes):
        raw = np.concatenate([one.values[which] for one in found])[whole]
        dtype = attribute.dtype
        if dtype is None:
            others[attribute.name] = [
                _texts(heap, row, attribute.shape, (which, at)) for at, row in enumerate(raw)
            ]
            continue
        if dtype.kind == "b" and (raw > 1).any():
            raise ValueError("a bool is neither 0 nor 1")
        values = np.ascontiguousarray(raw).view(dtype).reshape(len(raw), *attribute.shape)
        is_plain = dtype.str[1:] in _PLAIN and not attribute.shape
        if plain and is_plain and "/" not in attribute.name:
            numbers[attribute.name] = values.astype(dtype.newbyteorder("="))
        else:
            others[attribute.name] = [value[()] for value in values]
    if not others:
        return AttributeTable(numbers)
    rows = [
        read_back(dict(zip(others, row, strict=True))) for row in zip(*others.values(), strict=True)
    ]
    return AttributeTable(numbers, rows)


def _texts(
    heap: GlobalHeap, row: npt.NDArray[np.uint8], shape: tuple[int, ...], of: tuple[int, int]
) -> Any:
    # like C programs, libhdf5 ends a string at the first NUL
    texts = [
        heap.get(address, number, length, (*of, at)).partition(b"\0")[0].decode() if length else ""
        for at, (length, address, number) in enumerate(
            np.ascontiguousarray(row).view(REFERENCE).tolist()
        )
    ]
    if not shape:
        return texts[0]
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def _joined(mapped: mmap.mmap, root: Root, kinds: list[_Kind]) -> StoredIndex | None:
    episodes = len(root.headers)
    steps = np.full(episodes, -1, np.int64)
    for kind in kinds:
        steps[kind.part.episodes] = kind.steps
    runs = [Runs.of(part, steps) for part in merged([kind.part for kind in kinds])]
    for one in runs:
        if not (one.fits(episodes, root.start) and _is_sound(mapped, one)):
            return None
    if len(kinds) == 1:
        return StoredIndex(episodes, tuple(runs), Attributes.of(kinds[0].attributes))
    rows: list[Mapping[str, Any]] = [{}] * episodes
    for kind in kinds:
        for place, episode in enumerate(kind.part.episodes.tolist()):
            rows[episode] = kind.attributes[place]
    return StoredIndex(episodes, tuple(runs), Attributes.gather(rows))


def _is_sound(mapped: mmap.mmap, runs: Runs) -> bool:
    """Return whether values are as the writer writes them.

    None are in the superblock, no chunk is larger than its own, and all bools are 0 or 1. The
    caller has checked that they end where the root group begins, at the latest.
    """
    steps, own = runs.rows()
    for leaf, addresses in zip(runs.leaves, runs.addresses, strict=True):
        if leaf.row_bytes and addresses.min() < FIRST_ADDRESS:
            return False
        if (int(runs.steps.max()) + leaf.more) * leaf.row_bytes > CHUNK_BYTES:
            return False
        if leaf.dtype.kind == "b" and leaf.row_bytes:
            sizes = (steps + leaf.more * own) * leaf.row_bytes
            for address, size in zip(addresses.tolist(), sizes.tolist(), strict=True):
                # translate() leaves nothing of valid bools
                if mapped[address : address + size].translate(None, b"\0\1"):
                    return False
    return True
