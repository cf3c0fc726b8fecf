"""Threads that carry pieces of files; nobody has to wait for them who wants to stop."""

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

N_THREADS = 4
"""Pieces that travel at the same time."""
N_WAITING = 16
"""The same of small ones, whose way takes longer than their bytes, and of questions."""
_SMALL = 2**20  # bytes

_here = threading.local()
"""Of each thread: the crew that it is of, as ``crew``."""


class ThreadPool:
    """A few threads that work for the block of a ``with``, and no longer than that.

    An error ends what has not begun, and waits for the rest. An interruption, such as Ctrl-C, does
    not wait: what is on its way may take as long as the network likes.
    """

    def __init__(self, n_threads: int = N_THREADS) -> None:
        """Start the threads.

        Args:
            n_threads: how many.
        """
        self._works: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._ends = threading.Event()
        self._outer = self.current()
        # Unlike those of an executor, daemons do not keep the process from ending.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(n_threads)]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def current() -> ThreadPool | None:
        """Return the crew that this thread is of."""
        return getattr(_here, "crew", None)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for the work any more."""
        return self._ends.is_set() or (self._outer is not None and self._outer.is_over)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Let a thread do a piece of work."""
        future: Future[T] = Future()
        self._works.put((future, work))
        return future

    def pause(self, seconds: float) -> None:
        """Wait, or less if the work is over before."""
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
        _here.crew = self
        while (item := self._works.get()) is not None:
            future, work = item
            try:
                if self.is_over:  # told also: a crew inside of another may wait for it
                    raise OverError("nobody waits for this any more")
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)


class OverError(MinariPipeError):
    """Nobody waits for this piece of work any more."""


def threads_for(sizes: Collection[int]) -> int:
    """Return how many threads are to carry pieces of these sizes, in bytes.

    Example:
        >>> threads_for([8 * 2**20] * 10), threads_for([100] * 10)
        (4, 16)
    """
    return N_WAITING if sum(sizes) < _SMALL * len(sizes) else N_THREADS


def at_once(works: Iterable[Callable[[], None]], n_threads: int = N_THREADS) -> None:
    """Do independent pieces of work in a few threads; the first error ends all of it."""
    with ThreadPool(n_threads) as crew:
        for done in as_completed([crew.submit(work) for work in works]):
            done.result()


def in_order(
    works: Iterable[Callable[[], T]], n_threads: int = N_THREADS
) -> Generator[T, None, None]:
    """Do independent pieces of work in a few threads, and yield what each returns, in their order.

    Args:
        works: the pieces, of which twice as many as threads may be begun or done before the one
            whose result is next.
        n_threads: how many.
    """
    waiting = iter(works)
    with ThreadPool(n_threads) as crew:
        begun = deque(map(crew.submit, islice(waiting, 2 * n_threads)))
        while begun:
            result = begun.popleft().result()
            begun.extend(map(crew.submit, islice(waiting, 1)))
            yield result
