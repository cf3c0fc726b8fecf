"""A bar of bytes, where somebody looks at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from minari_pipe.remotes.base import Told

_LONGEST = 36  # letters, of the 80 columns of a terminal


@contextmanager
def progress(what: str, size: int) -> Iterator[Told]:
    """Show how many bytes of a transfer are done, on a terminal; otherwise nothing is printed.

    Args:
        what: is done, such as ``upload door/human-v2``.
        size: bytes of all of it.

    Yields:
        What is told of bytes that are done, by any thread.
    """
    from tqdm import tqdm

    lock = threading.Lock()
    bar = tqdm(total=size, desc=_short(what), unit="B", unit_scale=True, disable=None, leave=False)

    def told(size: int) -> None:
        with lock:
            bar.update(size)

    with bar:
        yield told


def _short(what: str) -> str:
    """Leave room for the bar beside a long id."""
    if len(what) <= _LONGEST:
        return what
    verb, _, dataset_id = what.partition(" ")
    return f"{verb} .../{dataset_id.rpartition('/')[2]}"
