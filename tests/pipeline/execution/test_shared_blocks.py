"""Blocks by way of an object store: whole or not there, and the bytes of any other engine."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.config
import pytest

from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.errors import MinariPipeError, RemoteError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.execution.block_task import BlockCall, BlockPlace
from minari_pipe.pipeline.execution.blocks import BlockStore, NotFinishedError
from minari_pipe.pipeline.execution.build import PolicyConfig
from minari_pipe.pipeline.execution.collection import CollectBlock, Stop
from minari_pipe.pipeline.execution.engines import make_engine
from minari_pipe.pipeline.execution.engines.base import Engine
from minari_pipe.pipeline.execution.engines.local import LocalEngine
from minari_pipe.pipeline.execution.inputs import Expected
from minari_pipe.pipeline.execution.shared_blocks import SharedBlocks
from minari_pipe.policies.checkpoint import write_checkpoint
from tests.support import ray_clusters  # noqa: F401 - one token for all of Ray here
from tests.support.engine_works import ShuffledEngine, Text, scheduler
from tests.support.servers.s3 import s3_server


@pytest.fixture(scope="module")
def bucket(tmp_path_factory) -> Iterator[Path]:
    """The folder behind ``s3://blocks``, which the environment lets s3fs find."""
    folder = tmp_path_factory.mktemp("server")
    with s3_server(folder, "blocks") as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        # fsspec reads its variables once, when it is imported.
        patch.setitem(
            fsspec.config.conf, "s3", {"endpoint_url": variables["FSSPEC_S3_ENDPOINT_URL"]}
        )
        yield folder / "blocks"


@pytest.fixture(params=["s3", "file"])
def shared(request, tmp_path) -> SharedBlocks:
    if request.param == "file":
        return SharedBlocks(f"file://{tmp_path}/shared", ".txt")
    request.getfixturevalue("bucket")
    return SharedBlocks(f"s3://blocks/{tmp_path.name}", ".txt")


def write(path: Path) -> dict[str, Any]:
    path.write_text("the block")
    return {"episodes": [1]}


def test_a_block_is_put_and_fetched_with_its_record(shared, tmp_path):
    store = BlockStore(tmp_path / "blocks", ".txt")
    assert shared.fetch(3, "key", store) is None
    record = shared.make(3, "key", write)
    assert shared.fetch(3, "key", store) == record == store.find(3, "key")
    assert store.path(3).read_text() == "the block"
    assert sorted(p.name for p in store.folder.iterdir()) == [
        "block_00003.json.record",
        "block_00003.txt",
    ]
    shared.remove(3, "key")
    assert shared.fetch(3, "key", store) is None


@pytest.mark.parametrize("how", ["cut", "changed", "no record", "record cut"])
def test_an_upload_that_broke_off_counts_for_nothing(how, bucket, tmp_path):
    address = f"s3://blocks/{tmp_path.name}"
    shared = SharedBlocks(address, ".txt")
    shared.make(0, "key", write)
    files = fsspec.filesystem("s3")
    file = f"{address}/block_00000-key.txt"
    record = f"{address}/block_00000-key.json.record"
    if how == "no record":
        files.rm_file(record)
    else:
        name = record if how == "record cut" else file
        data = files.cat_file(name)
        files.pipe_file(name, data[: len(data) // 2] if "cut" in how else data[::-1])
    store = BlockStore(tmp_path / "blocks", ".txt")
    if how == "no record":
        assert shared.fetch(0, "key", store) is None
    else:
        with pytest.raises(NotFinishedError, match="damaged"):
            shared.fetch(0, "key", store)
    assert not store.path(0).exists()
    shared.make(0, "key", write)
    assert shared.fetch(0, "key", store) is not None


def test_a_storage_that_is_not_there_is_one_line(bucket):
    with pytest.raises(RemoteError, match=r"engine.storage='s3://nowhere/x': ") as raised:
        SharedBlocks("s3://nowhere/x", ".txt").make(0, "key", write)
    assert "\n" not in str(raised.value)


def test_blocks_of_workers_that_outlived_their_driver_are_taken(shared, tmp_path):
    def records() -> list[Any]:
        made = scheduler(tmp_path, ShuffledEngine(2, 0), ".txt", shared=shared)
        return list(made.records([Text(f"block {i}") for i in range(3)]))

    first = records()
    (tmp_path / "blocks" / "block_00001.txt").unlink()
    (tmp_path / "blocks" / "block_00001.json.record").unlink()
    key = first[1]["key"]
    shared.make(1, key, lambda path: {"text": str(path.write_text("block 1")), "pid": 0})
    again = records()
    assert again[1]["pid"] == 0
    assert [r["sha256"] for r in again] == [r["sha256"] for r in first]


@pytest.fixture(scope="module")
def ray(bucket) -> Iterator[Engine]:
    """Ray, whose workers have the server in their environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", "s3://blocks/ray")
        with make_engine(schema.Engine("ray", n_workers=1, storage="s3://blocks/ray")) as engine:
            yield engine


def test_workers_without_a_common_disk_make_the_same_blocks(ray, tmp_path):
    """The checkpoint that the config names is nowhere: the workers have it from the storage."""
    import stable_baselines3

    model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", seed=2, device="cpu")
    checkpoint = tmp_path / "policy.zip"
    write_checkpoint(model, checkpoint)

    def records(engine: Engine, folder: Path, path: str, shared: SharedBlocks | None) -> list[str]:
        config = {
            "_target_": "minari_pipe.policies.SB3Policy",
            "algorithm": "ppo",
            "checkpoint": {"path": path},
            "deterministic": False,
        }
        files = (("checkpoint", shared.offer(checkpoint)),) if shared else ()
        place = BlockPlace(folder if shared is None else Path("/nowhere"), files)
        made = scheduler(folder, engine, place=place, shared=shared)
        works = [
            CollectBlock(
                env=schema.Environment("CartPole-v1"),
                policy=PolicyConfig(schema.PolicySettings.of(config, "policy"), "policy"),
                first=first,
                last=first + 2,
                seed=3,
                n_envs=2,
                record_infos=True,
                record_state=False,
                until=schema.Until(),
                keeps_all=True,
                stop=Stop(),
            )
            for first in (0, 2, 4)
        ]
        found = list(made.records(works, ahead=3))
        assert [sha256_file(folder / "blocks" / r["block"]) for r in found] == [
            r["sha256"] for r in found
        ]
        return [r["sha256"] for r in found]

    expected = records(LocalEngine(schema.Engine()), tmp_path / "own", str(checkpoint), None)
    shared = SharedBlocks("s3://blocks/ray", ".npz")
    found = records(ray, tmp_path / "other", "/nowhere/policy.zip", shared)
    assert found == expected


def test_a_worker_without_a_common_disk_that_has_other_code_makes_no_block(ray, tmp_path):
    shared = SharedBlocks("s3://blocks/ray", ".txt")
    code = {"tests.support.engine_works": ("engine_works.py", "0" * 64)}
    for node, told in (("", "engine_works.py differs between "), (platform.node(), "changed")):
        expected = Expected("collect", code, node=node or "elsewhere")
        made = scheduler(tmp_path, ray, ".txt", shared=shared, place=BlockPlace(tmp_path))
        made.place = BlockPlace(Path("/nowhere"), expected=expected)
        with pytest.raises(MinariPipeError, match=told):
            list(made.records([Text("other")]))
    assert shared.fetch(0, "key", made.store) is None


def test_a_worker_that_cannot_reach_the_storage_names_it(tmp_path):
    shared = SharedBlocks("file:///proc/nowhere", ".txt")
    made = scheduler(tmp_path, ShuffledEngine(1, 0), ".txt", shared=shared)
    with pytest.raises(MinariPipeError, match="engine.storage='file:///proc/nowhere'"):
        list(made.records([Text("a")]))


@pytest.mark.parametrize("plant", ["a link", "a folder of another user"])
def test_a_worker_takes_no_files_from_a_folder_of_somebody_else(plant, tmp_path, monkeypatch):
    """All users of a machine write to its folder for temporary files."""
    shared = SharedBlocks(f"file://{tmp_path}/shared", ".txt")
    (tmp_path / "weights").write_text("weights")
    files = (("checkpoint", shared.offer(tmp_path / "weights")),)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "tmp" / f"minari_pipe-files-{os.getuid()}"
    folder.parent.mkdir()
    if plant == "a link":
        folder.symlink_to(tmp_path / "elsewhere")
    elif os.getuid() == 0:
        folder.mkdir()
        os.chown(folder, 12345, -1)
    else:
        pytest.skip("only root makes folders of others")
    outcome = BlockCall(shared, 0, "key", Text("a"), "0", BlockPlace(tmp_path, files))()
    assert outcome.final
    assert "does not belong to this user; remove it" in str(outcome.error)
    assert list((tmp_path / "elsewhere").iterdir()) == []
