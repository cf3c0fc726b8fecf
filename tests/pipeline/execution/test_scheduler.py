"""The scheduler: order, retries, limits of time and failures, what is taken and what is redone."""

from __future__ import annotations

import itertools
import time
from functools import partial

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minari_pipe.errors import MinariPipeError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.execution.block_task import BlockPlace
from minari_pipe.pipeline.execution.engines.local import LocalEngine
from minari_pipe.pipeline.execution.engines.processes import ProcessesEngine
from minari_pipe.pipeline.execution.progress import Progress
from minari_pipe.pipeline.execution.scheduler import POLL_SECONDS, Skipped
from tests.support.engine_works import ShuffledEngine, Text, Told
from tests.support.engine_works import scheduler as any_scheduler
from tests.support.interruption import wait_until

scheduler = partial(any_scheduler, suffix=".txt", max_retries=1, max_failures=100)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    n=st.integers(0, 12),
    n_workers=st.integers(1, 6),
    seed=st.integers(0, 99),
    ahead=st.integers(1, 12),
    failing=st.sets(st.integers(0, 11)),
)
def test_records_come_in_order_whatever_the_order_of_their_making(
    n, n_workers, seed, ahead, failing, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("order")
    works = [Text(f"block {i}", "raises" if i in failing else "") for i in range(n)]
    found = list(scheduler(folder, ShuffledEngine(n_workers, seed)).records(works, ahead=ahead))
    assert [record["text"] for record in found] == [work.text for work in works]
    assert [(folder / "blocks" / r["block"]).read_text() for r in found] == [w.text for w in works]


def test_of_endless_blocks_only_a_few_are_begun_ahead(tmp_path):
    works = (Text(f"block {i}") for i in itertools.count())
    records = scheduler(tmp_path, ShuffledEngine(3, 0)).records(works)
    assert [next(records)["text"] for _ in range(2)] == ["block 0", "block 1"]
    records.close()
    assert len(list(tmp_path.glob("failures of *"))) <= 2 + 3


def test_several_blocks_made_again_for_one_reason_are_counted():
    lines: list[str] = []
    progress = Progress("collect", lines.append)
    for index in range(3):
        progress.ignored(index, "it was made with another config")
    progress.tell_reused(4)
    assert lines == [
        "block 0 runs again: it was made with another config",
        "3 blocks ran again, each because it was made with another config",
    ]


def test_finished_blocks_are_taken_and_others_made_again_with_a_word(tmp_path):
    works = [Text(f"block {i}") for i in range(4)]
    list(scheduler(tmp_path, LocalEngine(schema.Engine())).records(works))
    (tmp_path / "blocks" / "block_00002.txt").write_text("block 2, changed")
    told = Told()
    list(scheduler(tmp_path, LocalEngine(schema.Engine()), watcher=told).records(works))
    assert told.n_reused == 3
    assert told.lines == ["block 2 runs again: its file is damaged"]
    told = Told()
    list(
        scheduler(tmp_path, LocalEngine(schema.Engine()), key="another", watcher=told).records(
            works
        )
    )
    assert told.n_reused == 0
    assert told.lines == ["block 0 runs again: it was made with another config"]


def test_a_block_that_fails_is_tried_again_and_then_named(tmp_path):
    told = Told()
    works = [Text("a"), Text("b", "raises", n_failures=2), Text("c")]
    with pytest.raises(MinariPipeError) as raised:
        list(scheduler(tmp_path, LocalEngine(schema.Engine()), watcher=told).records(works))
    reason = "episode 7, step 2: RuntimeError: no battery"
    assert str(raised.value) == f"block 1: {reason} (failed 2 times)"
    assert told.lines == [f"block 1 failed, retry 1 of 1: {reason}"]
    assert not list((tmp_path / "blocks").glob(".*"))
    works[1] = Text("b", "raises", n_failures=2)  # the third attempt, of the next run
    told = Told()
    found = list(scheduler(tmp_path, LocalEngine(schema.Engine()), watcher=told).records(works))
    assert [r["text"] for r in found] == ["a", "b", "c"]
    assert told.n_reused == 1


def test_a_block_that_fails_for_good_is_skipped_where_the_config_says_so(tmp_path):
    # Raised a second time at the same step, it would be a third time.
    works = [Text("a"), Text("b", "raises", n_failures=2), Text("c")]
    several = scheduler(tmp_path, ShuffledEngine(2, 1), skips=True, max_retries=5)
    found = list(several.records(works))
    assert [getattr(r, "index", None) for r in found] == [None, 1, None]
    assert isinstance(found[1], Skipped)
    assert "no battery" in found[1].reason
    assert (tmp_path / "failures of b").stat().st_size == 2


def test_blocks_that_were_skipped_before_are_not_even_tried(tmp_path):
    works = [Text("a"), Text("b"), Text("c")]
    records = scheduler(
        tmp_path, LocalEngine(schema.Engine()), skips=True, skipped_before={1: "no battery"}
    )
    found = list(records.records(works))
    assert isinstance(found[1], Skipped)
    assert not (tmp_path / "failures of b").exists()


@pytest.mark.parametrize(
    ("trouble", "message"), [("mistake", "policy is 'x'"), ("full", "the disk is full")]
)
def test_what_another_attempt_cannot_mend_ends_the_run_at_once(trouble, message, tmp_path):
    told = Told()
    records = scheduler(tmp_path, LocalEngine(schema.Engine()), watcher=told, skips=True)
    with pytest.raises(MinariPipeError, match=message):
        list(records.records([Text("a", trouble)]))
    assert told.lines == []


def test_a_worker_with_other_packages_makes_no_block(tmp_path):
    records = scheduler(tmp_path, LocalEngine(schema.Engine()))
    records.place = BlockPlace(tmp_path, packages=(("numpy", "0.1"),))
    with pytest.raises(MinariPipeError, match=r"numpy is .* where blocks run, but 0\.1 in the st"):
        list(records.records([Text("a")]))
    assert not (tmp_path / "blocks" / "block_00000.txt").exists()


def test_too_many_failures_end_the_run(tmp_path):
    works = (Text(f"block {i}", "raises", n_failures=9) for i in itertools.count())
    records = scheduler(tmp_path, LocalEngine(schema.Engine()), skips=True, max_failures=5)
    with pytest.raises(MinariPipeError, match="6 block attempts failed, more than engine.max_"):
        list(records.records(works))


def test_running_blocks_are_asked_by_the_clock_however_many_end(tmp_path):
    """To ask all workers whenever one ends would take time that grows with their square."""

    class Counting(Told):
        n = 0

        def running(self, tallies) -> None:
            self.n += 1

    told = Counting()
    with ProcessesEngine(schema.Engine("processes", n_workers=2)) as engine:
        records = scheduler(tmp_path, engine, watcher=told).records([Text("a")] * 300)
        next(records)  # the workers have started
        before, began = told.n, time.monotonic()
        assert len(list(records)) == 299
        elapsed = time.monotonic() - began
    assert told.n - before <= 1 + elapsed / (POLL_SECONDS / 2)


def test_a_block_that_hangs_is_ended_with_its_process_and_tried_again(tmp_path):
    told = Told()
    works = [Text("a"), Text("b", "hangs")]
    with ProcessesEngine(schema.Engine("processes", n_workers=2)) as engine:
        records = scheduler(tmp_path, engine, watcher=told, block_timeout_s=4.0)
        assert [r["text"] for r in records.records(works)] == ["a", "b"]
    assert told.lines == [
        "block 1 failed, retry 1 of 1: it did not finish within 4 s (engine.block_timeout_s), "
        "episode 1 or one running alongside it hangs or is slow"
    ]
    pid = int((tmp_path / "hanging").read_text())  # killed, which takes a busy machine a moment
    wait_until(lambda: not psutil.pid_exists(pid), 10, lambda: f"{pid} lives on")
    assert sorted(p.name for p in (tmp_path / "blocks").glob(".*")) == []
