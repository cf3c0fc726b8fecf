"""Transfer pieces of files in a few threads; an interruption does not wait for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable
from concurrent.futures import Future, as_completed
from itertools import islice
from queue import SimpleQueue
from typing import Any, TypeVar

from minari_pipe.errors import MinariPipeError

T = TypeVar("T")

#: Number of pieces that are transferred at the same time.
N_THREADS = 4
#: The same for queries and small pieces, whose round trip takes longer than their bytes.
N_WAITING = 16
_SMALL = 2**20  # bytes

#: The pool that each thread belongs to, as ``pool``.
_here = threading.local()


class ThreadPool:
    """A few threads that work during the block of a ``with`` statement, and no longer.

    An error cancels work that has not begun, and waits for the rest. An interruption, such as
    Ctrl-C, does not wait: a running transfer may take as long as the network does.
    """

    def __init__(self, n_threads: int = N_THREADS) -> None:
        """Start the threads.

        Args:
            n_threads: number of threads.
        """
        self._works: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._ends = threading.Event()
        self._outer = self.current()
        # Unlike the threads of an executor, daemon threads do not keep the process alive.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(n_threads)]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def current() -> ThreadPool | None:
        """Return the pool that this thread belongs to, or None."""
        return getattr(_here, "pool", None)

    @property
    def is_over(self) -> bool:
        """Whether the block of this pool, or of the pool around it, has ended."""
        return self._ends.is_set() or (self._outer is not None and self._outer.is_over)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue a piece of work for the threads, and return its future."""
        future: Future[T] = Future()
        self._works.put((future, work))
        return future

    def pause(self, seconds: float) -> None:
        """Wait for this time, or until the block ends."""
        self._ends.wait(seconds)

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ends.set()
        for _thread in self._threads:
            self._works.put(None)
        if kind is None or issubclass(kind, Exception):
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        _here.pool = self
        while (item := self._works.get()) is not None:
            future, work = item
            try:
                if self.is_over:  # an inner pool may still wait for the result
                    raise OverError("the result is no longer needed")
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)


class OverError(MinariPipeError):
    """The result of a piece of work is no longer needed."""


def threads_for(sizes: Collection[int]) -> int:
    """Return how many threads to use for pieces of these sizes, in bytes.

    Example:
        >>> threads_for([8 * 2**20] * 10), threads_for([100] * 10)
        (4, 16)
    """
    return N_WAITING if sum(sizes) < _SMALL * len(sizes) else N_THREADS


def at_once(works: Iterable[Callable[[], None]], n_threads: int = N_THREADS) -> None:
    """Do independent pieces of work in a few threads; the first error cancels the rest."""
    with ThreadPool(n_threads) as pool:
        for done in as_completed([pool.submit(work) for work in works]):
            done.result()


def in_order(
    works: Iterable[Callable[[], T]], n_threads: int = N_THREADS
) -> Generator[T, None, None]:
    """Do independent pieces of work in a few threads, and yield their results in order.

    Args:
        works: the pieces, of which up to twice as many as threads may be started or done ahead of
            the next result.
        n_threads: number of threads.
    """
    waiting = iter(works)
    with ThreadPool(n_threads) as pool:
        begun = deque(map(pool.submit, islice(waiting, 2 * n_threads)))
        while begun:
            result = begun.popleft().result()
            begun.extend(map(pool.submit, islice(waiting, 1)))
            yield result
