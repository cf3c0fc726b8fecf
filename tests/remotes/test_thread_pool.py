"""Pieces of work in a few threads: what comes of them, in which order, and how they end."""

from __future__ import annotations

import random
import threading
import time

import pytest

from minari_pipe.remotes.thread_pool import OverError, at_once, in_order


@pytest.mark.parametrize("seed", range(10))
def test_results_come_in_order_whichever_ends_first(seed: int) -> None:
    waits = [random.Random(seed + n).random() / 200 for n in range(30)]

    def work(number: int) -> int:
        time.sleep(waits[number])  # so that they end in another order
        return number

    assert list(in_order((lambda n=n: work(n)) for n in range(30))) == list(range(30))


def test_no_more_is_begun_than_may_wait_for_the_one_that_is_next() -> None:
    begun: list[int] = []
    first = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number == 0:
            first.wait(10)
        return number

    results = in_order(((lambda n=n: work(n)) for n in range(100)), n_threads=3)
    threading.Timer(0.3, first.set).start()
    assert next(results) == 0
    assert max(begun) <= 6  # those ahead of the first, and the one that follows them
    assert list(results) == list(range(1, 100))


@pytest.mark.parametrize("run", [at_once, lambda works: list(in_order(works))])
def test_the_first_error_ends_what_has_not_begun(run) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 1:
            raise OSError("the disk is full")
        time.sleep(0.05)  # or all would be done before the error is seen
        done.append(number)

    with pytest.raises(OSError, match="the disk is full"):
        run((lambda n=n: work(n)) for n in range(1_000))
    time.sleep(0.2)  # in which what was not ended would go on
    assert len(done) < 20


def test_the_first_error_ends_what_others_wait_for_inside_of_their_work() -> None:
    failed = threading.Event()
    ended: list[BaseException] = []

    def fail() -> None:
        failed.set()
        raise OSError("the disk is full")

    def wait() -> None:
        failed.wait(10)
        time.sleep(0.1)  # until the outer pool has seen the error
        try:
            list(in_order([lambda: 1]))
        except BaseException as error:
            ended.append(error)

    def run() -> None:
        with pytest.raises(OSError, match="the disk is full"):
            at_once([wait, fail])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [OverError]


def test_whoever_stops_listening_leaves_no_threads() -> None:
    before = threading.active_count()
    results = in_order((lambda n=n: n) for n in range(100))
    next(results)
    results.close()
    time.sleep(0.2)  # they are told to end, and nobody waits for them
    assert threading.active_count() == before
