"""Join the records of many short episodes, so that a storage writes them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import EPISODE_COLUMNS
from minari_pipe.core.tree import PADDED, Path, has_other_bools
from minari_pipe.recording.journal.format import Body, Record, stored_dtype
from minari_pipe.storage.joining import attribute_table
from minari_pipe.storage.segment import Leaf, Segment


class RecordJoiner:
    """Joins the records that share a header.

    The checks of storages are left out, so the journal must be of this process.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        # the arrays in the bodies, in order; None if a storage must check the values one by one
        self._leaves: tuple[Leaf, ...] | None = None
        if header["options"] is None and header["seed"] in (None, ["seed"]):
            self._has_seeds = header["seed"] is not None
            with suppress(TypeError, ValueError):
                self._leaves = tuple(
                    leaf for name in EPISODE_COLUMNS for leaf in _leaves(header[name], (name,))
                )

    def segment(
        self, records: Sequence[Record], bodies: Sequence[Body], metadata: Mapping[str, Any]
    ) -> Segment | None:
        """Return episodes as a segment from number 0 on, or None if they cannot be joined.

        Args:
            records: their prefixes, at least one.
            bodies: their bodies, whose checksums were compared.
            metadata: what all of them have, as the header holds it.
        """
        if self._leaves is None:
            return None
        steps = np.array([record.steps for record in records], np.int64)
        begins, arrays, rewards = np.zeros_like(steps), [], None
        for leaf in self._leaves:
            sizes = (steps + leaf.more) * leaf.row_bytes
            places = zip(bodies, begins.tolist(), (begins + sizes).tolist(), strict=True)
            data = bytearray().join([body[begin:end] for body, begin, end in places])
            shape = (int(steps.sum()) + leaf.more * len(steps), *leaf.shape)
            if len(data) != sizes.sum():
                return None
            rows: npt.NDArray[Any] = np.ndarray(shape, leaf.dtype, data)
            if has_other_bools(rows):
                return None
            if leaf.path == ("rewards",):
                rewards = rows
            arrays.append(rows)
            begins += sizes + (-sizes & 7)
        if rewards is None or not steps.all() or begins.tolist() != [*map(len, bodies)]:
            return None
        count = len(records)
        seeds = [record.seed if self._has_seeds else None for record in records]
        others = [None] * count, [metadata] * count
        table = attribute_table(seeds, *others, 0, steps, rewards)
        return Segment(0, steps, self._leaves, tuple(arrays), table)


def _leaves(form: Any, path: Path) -> Iterator[Leaf]:
    """Yield the leaves of a form.

    Raises:
        TypeError, ValueError: a storage must check the values one by one.
    """
    kind, *rest = form
    if kind == "rows":
        name, shape, more = rest
        dtype = stored_dtype(name)
        if dtype.kind not in "biufc" or dtype.char in PADDED:
            raise ValueError(f"no segment holds {dtype}")
        yield Leaf(path, dtype, tuple(shape), more)
    elif kind in ("dict", "tuple") and (rest[0] or path in (("infos",), ("extras",))):
        for key, part in rest[0] if kind == "dict" else enumerate(rest[0]):
            yield from _leaves(part, (*path, key))
    else:
        raise ValueError(f"no segment holds a {kind}")
