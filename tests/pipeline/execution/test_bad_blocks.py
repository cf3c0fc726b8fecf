"""An environment that fails in one episode: named, tried again, and nothing else is lost.

And the rules by which episodes are enough, on the real stage functions.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.errors import ConfigError, MinariPipeError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.schema import Collect, Engine, Environment, Until
from minari_pipe.pipeline.execution.block_task import BlockPlace
from minari_pipe.pipeline.execution.blocks import BlockStore
from minari_pipe.pipeline.execution.build import PolicyConfig
from minari_pipe.pipeline.execution.engines import make_engine
from minari_pipe.pipeline.execution.scheduler import Scheduler
from minari_pipe.pipeline.stages.collect import collect, skipped_before
from minari_pipe.pipeline.stages.create import create
from tests.conftest import FULL
from tests.pipeline.stages.test_collect_create import DATASET
from tests.support.engine_works import ShuffledEngine, Told, scheduler

RANDOM = PolicyConfig(schema.RANDOM, "policy")


@pytest.fixture(autouse=True)
def _trusted(monkeypatch):
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "tests")


def run(
    folder: Path,
    kwargs: dict[str, Any],
    engine: str | Any = "local",
    *,
    timeout: float | None = None,
    skips: bool = False,
    skipped: Mapping[int, str] = MappingProxyType({}),
    **changes: Any,
) -> tuple[dict[str, Any], Told]:
    """Collect from :class:`tests.support.trouble_env.Trouble`; the index, and what was told."""
    told = Told()
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    options = {"n_episodes": 20, "block_episodes": 5, "n_envs": 1}
    if isinstance(engine, str):
        engine = make_engine(Engine(engine, n_workers=2, block_timeout_s=timeout))
    with engine:
        index = collect(
            env=Environment("tests.support.trouble_env:Trouble-v0", kwargs),
            policy=RANDOM,
            collection=Collect(**{**options, **changes}),
            scheduler=scheduler(
                folder,
                engine,
                max_retries=1,
                max_failures=9,
                block_timeout_s=timeout,
                watcher=told,
                skips=skips,
                skipped_before=skipped,
            ),
            out=out,
            files={},
            progress=told,
        )
    return index, told


def created(folder: Path) -> MinariDataset:
    (folder / "dataset").mkdir()
    create(
        episodes=folder / "out",
        dataset=DATASET,
        author=schema.Author("Ada"),
        out=folder / "dataset",
        returns=folder / "returns.csv",
        say=lambda text: None,
    )
    return MinariDataset(folder / "dataset" / "data")


def data(folder: Path) -> bytes:
    created(folder)
    return (folder / "dataset" / "data" / "main_data.hdf5").read_bytes()


REASONS = {
    "raises": "episode 17, step 2: RuntimeError: no battery",
    "wrong shape": r"episode 17, step 2: .*\(2,\)",
    "NaN observation": "episode 17, step 2: observations is NaN; the environment returned",
    "NaN reward": "episode 17, step 2: rewards is NaN",
    "infinite observation": r"episode 17, step 2: observations is infinite; .* \[inf\]",
    "infinite reward": "episode 17, step 2: rewards is infinite; the environment returned -inf",
    "exits": "episode 17, step 2: SystemExit: 2",
    "panics": "episode 17, step 2: Panic: index out of bounds",
    "long": r"episode 17, step 2: RuntimeError: x{900,990}\.\.\.",
    "dies": "its process was killed",
    "hangs": r"it did not finish within 2 s \(engine.block_timeout_s\), episode 17 or one running",
}


@pytest.mark.parametrize("kind", REASONS)
def test_what_fails_in_an_episode_is_named_retried_and_costs_nothing_else(kind, tmp_path):
    """Episode 17 is number 2 of block 3."""
    in_process = kind not in ("dies", "hangs")
    engine, timeout = ("local", None) if in_process else ("processes", 2.0)
    kwargs = {"kind": kind, "episode": 17, "seed": 4}
    if in_process or FULL:  # what a failed block comes to does not depend on the engine
        with pytest.raises(MinariPipeError, match=f"block 3: {REASONS[kind]}") as raised:
            run(tmp_path, kwargs, engine, timeout=timeout, seed=4)
        assert str(raised.value).endswith("(failed 2 times)")
        assert "\n" not in str(raised.value)
    index, told = run(tmp_path / "skipping", kwargs, engine, timeout=timeout, skips=True, seed=4)
    assert [entry["block"] for entry in index["skipped"]] == [3]
    assert index["total_episodes"] == 15
    assert any(line.startswith("block 3 failed, retry 1 of 1: ") for line in told.lines)
    (warning,) = [line for line in told.lines if line.startswith("warning: block 3 is skipped: ")]
    assert re.search(REASONS[kind], warning)
    assert created(tmp_path / "skipping").total_episodes == 15


@pytest.mark.parametrize("kind", ["raises", "panics", "NaN reward", "dies"])
def test_trouble_that_passes_leaves_no_trace_in_the_dataset(kind, tmp_path):
    kwargs = {"kind": kind, "episode": 7, "seed": 4, "times": 1, "log": str(tmp_path / "log")}
    _, told = run(tmp_path / "bad", kwargs, "processes", seed=4)
    assert [line[:30] for line in told.lines] == ["block 1 failed, retry 1 of 1: "]
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    (tmp_path / "log").unlink()
    good = {**kwargs, "times": 0}
    run(tmp_path / "good", good, seed=4)
    assert data(tmp_path / "bad") == data(tmp_path / "good")


def test_a_dataset_that_is_made_again_lacks_the_same_blocks(tmp_path):
    """Though they do not fail this time."""
    log = str(tmp_path / "log")
    kwargs = {"kind": "raises", "episode": 7, "seed": 4, "times": 2, "log": log}
    index, _ = run(tmp_path / "first", kwargs, skips=True, seed=4)
    assert [entry["block"] for entry in index["skipped"]] == [1]
    listed = tmp_path / "skipped.json"
    listed.write_text(json.dumps({"key": "key", "skipped": index["skipped"]}))
    skipped = skipped_before(listed, "key")
    again, _ = run(tmp_path / "again", kwargs, skips=True, skipped=skipped, seed=4)
    assert again["skipped"] == index["skipped"]
    assert data(tmp_path / "first") == data(tmp_path / "again")
    assert skipped_before(listed, "another key") == {}


# --- when there are enough episodes


@functools.cache
def successes(n: int) -> tuple[bool, ...]:
    """Whether episodes of seed 4 succeed, from the environment itself."""
    from minari_pipe.policies.rollout import episode_seed
    from tests.support.trouble_env import Trouble

    found = []
    for episode in range(n):
        env = Trouble()
        env.reset(seed=episode_seed(4, episode)[0])
        info: dict[str, Any] = {}
        for _ in range(5):
            info = env.step(0)[4]
        found.append(bool(info["success"]))
    return tuple(found)


@settings(
    deadline=None,
    max_examples=60 if FULL else 10,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(1, 6),
    wanted=st.booleans(),
    keep=st.sampled_from(["all", "matching"]),
    block=st.integers(1, 4),
    n_workers=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_episodes_are_collected_until_so_many_match_in_the_order_of_their_numbers(
    n, wanted, keep, block, n_workers, seed, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("until")
    index, _ = run(
        folder,
        {},
        ShuffledEngine(n_workers, seed),
        n_episodes=None,
        until=Until(n_episodes=n, success=wanted),
        keep=keep,
        block_episodes=block,
        seed=4,
    )
    matching = [e for e, s in enumerate(successes(40)) if s == wanted][:n]
    kept = matching if keep == "matching" else list(range(matching[-1] + 1))
    assert index["n_collected"] == matching[-1] + 1
    assert index["total_episodes"] == len(kept)
    seeds = [m["seed"] for m in created(folder).storage.get_episode_metadata(range(len(kept)))]
    from minari_pipe.policies.rollout import episode_seed

    assert seeds == [episode_seed(4, e)[0] for e in kept]


def test_of_a_number_of_episodes_only_those_that_match_are_kept(tmp_path):
    index, _ = run(tmp_path, {}, n_episodes=20, until=Until(success=True), keep="matching", seed=4)
    assert index["total_episodes"] == sum(successes(20))
    assert index["n_collected"] == 20


def test_too_few_matches_are_refused_with_both_numbers(tmp_path):
    until = Until(n_episodes=3, min_return=99.0)
    with pytest.raises(ConfigError, match="n_episodes is 3, but of .* 20 episodes only 0 match"):
        run(tmp_path, {}, until=until, seed=4)
    with pytest.raises(ConfigError, match="nothing to make a dataset from: none of the policy's"):
        run(tmp_path / "none", {}, until=Until(min_return=99.0), keep="matching", seed=4)


def test_a_condition_that_no_episode_meets_is_told_while_there_is_no_other_end(
    tmp_path, monkeypatch
):
    told = Told()
    monkeypatch.setattr("tests.pipeline.execution.test_bad_blocks.Told", lambda: told)
    endless = {"n_episodes": None, "until": Until(n_episodes=1, min_return=6.0)}
    kwargs = {"kind": "raises", "episode": 2100, "seed": 0}
    with pytest.raises(MinariPipeError, match="episode 2100"):
        run(tmp_path, kwargs, block_episodes=500, **endless)
    assert told.lines[:-1] == [
        "warning: none of the first 1000 episodes matches collect.until; set collect.n_episodes "
        "to limit how many are tried"
    ]


DAMAGED = [
    "{}",
    '{"skipped": 3}',
    '{"skipped": [3]}',
    '{"skipped": [{"block": "x", "reason": ""}]}',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_list_of_blocks_left_out_is_one_clear_line(text, tmp_path):
    listed = tmp_path / "skipped.json"
    listed.write_text(json.dumps({"key": "key", **json.loads(text)}))
    with pytest.raises(ConfigError, match=r"skipped.json is damaged: .*; restore it from git, or"):
        skipped_before(listed, "key")


def test_a_success_that_no_environment_tells_of_is_refused(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    told = Told()
    with make_engine(Engine()) as engine:
        scheduler = Scheduler(
            engine,
            BlockStore(tmp_path / "blocks", ".npz"),
            "key",
            Engine(max_retries=3, max_failures=9),
            told,
            BlockPlace(tmp_path),
            tmp_path / "temporary",
        )
        with pytest.raises(MinariPipeError, match="until.success needs an environment whose info"):
            collect(
                env=Environment("CartPole-v1"),
                policy=RANDOM,
                collection=Collect(until=Until(n_episodes=1, success=True)),
                scheduler=scheduler,
                out=out,
                files={},
                progress=told,
            )
    assert told.lines == []  # to try again would not help


def test_the_last_block_ends_early_where_its_own_episodes_are_enough(tmp_path):
    """The bytes of a block depend on no other block, nor on how many workers there are."""
    index, _ = run(tmp_path, {}, n_episodes=None, n_steps=12, block_episodes=50, seed=4)
    assert index["blocks"] == [{"name": "block_00000.npz", "n_episodes": 3}]
    record = json.loads((tmp_path / "blocks" / "block_00000.json.record").read_text())
    assert len(record["episodes"]) == 3
