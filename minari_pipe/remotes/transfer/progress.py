"""Show how many bytes of a transfer are done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from minari_pipe.core.progress_bar import ProgressBar
from minari_pipe.remotes.base import OnBytes

_LONGEST = 36  # characters, of the 80 columns of a terminal


@contextmanager
def progress(what: str, size: int) -> Iterator[OnBytes]:
    """Show how many bytes of a transfer are done: a bar on a terminal, else a line per minute.

    Args:
        what: label of the transfer, such as ``upload door/human-v2``.
        size: total number of bytes.

    Yields:
        A callback that takes the number of bytes just done, from any thread.
    """
    lock = threading.Lock()
    n_done = 0
    with ProgressBar(_short(what), size, "B", leave=False) as bar:

        def on_bytes(n_bytes: int) -> None:
            nonlocal n_done
            with lock:
                n_done += n_bytes
                bar.show(n_done)

        yield on_bytes


def _short(what: str) -> str:
    """Shorten a label with a long id, to leave room for the bar."""
    if len(what) <= _LONGEST:
        return what
    verb, _, dataset_id = what.partition(" ")
    return f"{verb} .../{dataset_id.rpartition('/')[2]}"
