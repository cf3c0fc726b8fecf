"""A released version is made again from git alone, or what differs first is named."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from minari_pipe.errors import ConfigError, DatasetNotFoundError, LinkError, MinariPipeError
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.releases.release import release
from minari_pipe.pipeline.releases.reproduce import reproduce
from minari_pipe.pipeline.releases.reproduction import reproduction
from tests.conftest import FULL
from tests.pipeline.releases.test_release import here
from tests.pipeline.run.test_stages_rerun import MY_ENV, REPLAYED
from tests.support import forks
from tests.support.demonstration_files import counting_episodes, write_dapg
from tests.support.repositories import Workspace, git_workspace, hashes

pytest.importorskip("torch")


PUSH = """\
# @package _global_
defaults: [{/policy: scripted}, _self_]
dataset: {id: tests/push-v0, description: a tiny dataset}
author: {name: Ada}
env: {id: Pendulum-v1, kwargs: {max_episode_steps: 20}}
policy: {controller: {_target_: my_policy.push, tables: ./tables}}
collect: {n_episodes: 2, n_envs: 2, seed: 3}
ref_scores: {n_episodes: 2, seed: 1005, ref_max_score: 0.0}
"""
MY_POLICY = """\
from pathlib import Path

import numpy as np


def push(observation, tables):
    gain, sign = (float(Path(tables, name).read_text()) for name in ("gain.txt", "sign.txt"))
    return np.array([gain * sign * np.sign(observation[2])], dtype=np.float32)
"""
TRAINED = """\
# @package _global_
defaults: [{/policy: sb3}, _self_]
dataset: {id: tests/trained-v0, description: a tiny dataset}
author: {name: Ada}
env: {id: CartPole-v1}
policy:
  algorithm: ppo
  policy_kwargs: {net_arch: [8]}
  train:
    total_timesteps: 64
    normalize_observations: true
    hyperparameters: {n_steps: 32, batch_size: 16, n_epochs: 1}
collect: {n_episodes: 2, n_envs: 2}
ref_scores: {n_episodes: 2, expert: "${policy}", ref_min_score: 0.0}
"""
IDS = {name: f"tests/{name}-v0" for name in ("push", "trained", "replayed")}
TRUSTED = {"MINARI_PIPE_TRUSTED_MODULES": "my_policy,my_env"}


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Workspace:
    """Three released and tagged versions: scripted, trained, and of demonstrations."""
    folder = tmp_path_factory.mktemp("reproduce")
    workspace = git_workspace(folder, push=PUSH, trained=TRAINED, replayed=REPLAYED)
    (workspace.root / "my_policy.py").write_text(MY_POLICY)
    (workspace.root / "my_env.py").write_text(MY_ENV)
    write_dapg(workspace.root / "demos.pickle", counting_episodes())
    (workspace.root / "tables").mkdir()
    (workspace.root / "tables" / "gain.txt").write_text("1.0")
    (workspace.root / "tables" / "sign.txt").write_text("1.0")
    workspace.dvc("add", "--quiet", "demos.pickle", "tables/sign.txt")  # which git has not
    workspace.pipe("-m", f"+dataset={','.join(IDS)}", **TRUSTED)
    workspace.commit("made")
    with pytest.MonkeyPatch.context() as patch:
        here(workspace, patch)
        for dataset_id in IDS.values():
            release(dataset_id, pushes=False)
            workspace.commit("released")
            workspace.git("tag", dataset_id)
    return workspace


@pytest.fixture
def workspace(released: Workspace, tmp_path: Path) -> Workspace:
    return released.copy(tmp_path)


def again(workspace: Workspace, name: str, *arguments: str) -> str:
    """Reproduce a version, and see that nothing was changed or left behind; what was said."""
    before = hashes(workspace.root), hashes(workspace.minari_root)
    temporary = workspace.home / "temporary"
    temporary.mkdir(exist_ok=True)
    command = ("minari-pipe", "reproduce", IDS[name], *arguments)
    done = workspace.call(*command, **TRUSTED, TMPDIR=str(temporary))
    after = hashes(workspace.root), hashes(workspace.minari_root)
    assert after == before
    assert list(temporary.iterdir()) == []
    lines = done.stdout.splitlines()
    assert (done.returncode == 0) == (f"{IDS[name]} is reproduced" in lines[-1]), done.stdout
    return done.stdout


def test_a_scripted_dataset_is_made_again_whatever_lies_about(workspace, tmp_path):
    # Neither another cache nor what is not committed has a say.
    workspace.dvc("cache", "dir", "--local", str(tmp_path / "elsewhere"))
    (workspace.root / "my_policy.py").write_text("of tomorrow")
    output = again(workspace, "push")
    assert "push: ran collect, create, ref_scores, validate, card, publish" in output
    manifest = workspace.json("datasets/tests/push-v0/manifest.json")
    assert output.splitlines()[-1] == (
        f"tests/push-v0 is reproduced: content_sha256 {manifest['content_sha256'][:12]} and the "
        f"bytes of all 2 files match the release"
    )


def test_demonstrations_are_replayed_again_from_a_file_under_dvc(workspace):
    # Without a tag the commit of the record is taken, whatever came later.
    workspace.git("tag", "--delete", IDS["replayed"])
    workspace.replace("conf/dataset/replayed.yaml", "tiny demonstrations", "of tomorrow")
    workspace.commit("later")
    assert "is reproduced: content_sha256" in again(workspace, "replayed")


def test_a_published_checkpoint_stands_for_its_training(released, monkeypatch, tmp_path):
    output = again(released, "trained")
    assert "train: using the published checkpoint instead of training" in output
    assert "is reproduced from its published checkpoint: content_sha256" in output
    assert "the bytes of all 6 files" in output
    # Without the checkpoint there is only training.
    clone = released.clone(tmp_path)
    here(clone, monkeypatch)
    with pytest.raises(ConfigError, match="checkpoint of tests/trained-v0 is not here; run dvc pu"):
        reproduce(IDS["trained"], say=print)
    policy = released.root / "datasets" / IDS["trained"] / "policies" / "policy.zip"
    shutil.copytree(policy.parent.parent, clone.root / "datasets" / IDS["trained"])
    (clone.root / "datasets" / IDS["trained"] / "policies" / "expert.zip").write_text("of another")
    with pytest.raises(ConfigError, match="expert.zip is not the checkpoint that tests/trained-v0"):
        reproduce(IDS["trained"], say=print)


def test_a_training_is_done_again_from_scratch(released):
    output = again(released, "trained", "--from-scratch")
    assert "train: ppo, 64 steps" in output
    assert "is reproduced: content_sha256" in output


def retag(workspace: Workspace, name: str, old: str, new: str) -> None:
    """Let the tag of a version say something else than was released."""
    for file in (f"conf/dataset/{name}.yaml", f"pipelines/{name}/params.yaml"):
        path = workspace.root / file
        text = path.read_text()
        path.write_text(text.replace(old, new) if old in text else text)
    workspace.commit("another config")
    workspace.git("tag", "--force", IDS[name])


SEEDS = {"collect": (3, 4), "ref_scores": (1005, 1006)}


@pytest.mark.parametrize("stage", SEEDS if FULL else ["collect"])
def test_a_changed_seed_is_named_with_its_stage(stage, workspace):
    old, new = SEEDS[stage]
    retag(workspace, "push", f"seed: {old}", f"seed: {new}")
    output = again(workspace, "push")
    last = output.splitlines()[-1]
    assert f"the config at {workspace.git('rev-parse', 'HEAD')[:12]} differs from the rel" in output
    assert last.startswith(f"error: {IDS['push']} is not reproduced (compared: bytes): ")
    assert f"the first stage that differs is {stage}; {stage}.seed: {new}, not {old}; " in last


def of_another_processor(workspace: Workspace, dataset_id: str) -> None:
    path = workspace.root / "releases" / f"{dataset_id}.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "cpu": "riscv64 RVV"}))


def test_where_no_config_says_why_the_first_value_is_named_and_elsewhere_it_may_be_near(workspace):
    """Code that rounds otherwise stands for another processor."""
    workspace.replace("my_policy.py", "gain * sign", "1.000001 * gain * sign")
    workspace.commit("other code")
    workspace.git("tag", "--force", IDS["push"])
    last = again(workspace, "push").splitlines()[-1]
    assert "the first stage that differs is collect; episode 0, actions[0, 0]: " in last
    assert "(largest difference 9.54e-07)" in last
    of_another_processor(workspace, IDS["push"])
    last = again(workspace, "push").splitlines()[-1]
    assert "is reproduced within 0.001: 2 episodes and 40 steps as in the release, " in last
    assert "bytes were not compared because the processor is " in last
    shutil.rmtree(workspace.root / "datasets" / IDS["push"])
    shutil.rmtree(workspace.minari_root / IDS["push"])
    first, *_, last = again(workspace, "push").splitlines()
    assert first.startswith("bytes may differ here (the processor is ")
    assert first.endswith(f"if that matters, stop and run dvc pull datasets/{IDS['push']} first")
    assert last.endswith(f"is not here to compare values with; run dvc pull datasets/{IDS['push']}")
    workspace.dvc("checkout")
    if FULL:
        last = again(workspace, "push", "--tolerance", "1e-9").splitlines()[-1]
        assert "(compared: counts, and values within 1e-09): the first stage that differs" in last
        assert "was riscv64 RVV" in last


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_signal_ends_it_and_nothing_goes_on(signum, workspace):
    retag(workspace, "push", "n_episodes: 2", "n_episodes: 200000")
    temporary = workspace.home / "temporary"
    temporary.mkdir(exist_ok=True)
    process = forks.start(
        ("minari-pipe", "reproduce", IDS["push"]),
        workspace.root,
        workspace.environment(**TRUSTED, TMPDIR=str(temporary)),
    )
    while not any(
        temporary.glob("*/clone/.minari_pipe/work/*/collect.blocks/blocks/*")
    ):  # it collects
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signum)
    _, told = process.communicate(timeout=60)
    assert not psutil.wait_procs(started, timeout=10)[1]
    if signum == signal.SIGKILL:
        return
    assert process.returncode == 128 + signal.SIGTERM
    assert told.splitlines()[-1] == "stopped; partial results were removed"
    assert list(temporary.iterdir()) == []


def test_a_stranger_s_repository_brings_no_setting_no_output_and_no_way_out(
    workspace, tmp_path, monkeypatch
):
    here(workspace, monkeypatch)
    root = workspace.root
    kept = tmp_path / "of the user"
    kept.mkdir()
    (kept / "file").touch()
    workspace.dvc("config", "cache.dir", str(kept))
    shutil.rmtree(root / "pipelines" / "push" / "episodes")
    for link in (".minari_pipe/link", "pipelines/push/episodes", ".dvc/config.local"):
        (root / link).symlink_to(kept)
    said = ["engine=ray", "engine.address=evil:1", "publish.replace=true", "hydra.run.dir=/evil"]
    workspace.replace(
        "pipelines/push/params.yaml",
        "- +dataset=push",
        "\n".join(["- +dataset=push", *(f"- {s}" for s in said)]),
    )
    workspace.git("add", "--force", ".")
    workspace.commit("of a stranger")
    hook = tmp_path / "hooks" / "post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    workspace.git("config", "--global", "core.hooksPath", str(hook.parent))
    workspace.git("checkout", "--quiet", "--detach")
    (tmp_path / "ran").unlink()  # it would run
    with reproduction(root, "push", workspace.git("rev-parse", "HEAD").strip()) as found:
        params = dvc_yaml.read_params("push", found.root)
        assert params is not None
        assert params["overrides"] == ["+dataset=push"]
        assert not (found.root / ".minari_pipe").exists()
        assert not (found.root / "datasets").exists()
        made = {path.name for path in (found.root / "pipelines" / "push").iterdir()}
        assert made == {"params.yaml", "dvc.yaml"}
        own = Workspace(found.root, workspace.home)
        assert own.dvc("cache", "dir").strip() == str(found.root / ".dvc" / "cache")
    assert not found.root.exists()
    assert [path.name for path in kept.iterdir()] == ["file"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "place", ["catalog/aa/b-v0.json", "pipelines/push/params.yaml", "pipelines/evil"]
)
def test_no_link_of_the_tag_is_read_through(place, workspace, tmp_path, monkeypatch):
    here(workspace, monkeypatch)
    (tmp_path / "mine").write_text('{"pipeline": "precious/x"}')
    link = workspace.root / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "mine")
    workspace.git("add", "--force", ".")
    workspace.commit("of a stranger")
    with (
        pytest.raises(LinkError, match=f"{place} is a symlink to"),
        reproduction(workspace.root, "push", workspace.git("rev-parse", "HEAD").strip()),
    ):
        pass


def test_a_tree_of_git_with_two_entries_of_a_name_leads_nowhere(workspace, tmp_path, monkeypatch):
    """The clone has the last one, a link, where the record was read from the first one."""
    top, own = workspace.root.parent / "top", tmp_path / "mine"
    (own / ".dvc").mkdir(parents=True)
    (own / "datasets").mkdir()
    shutil.copytree(workspace.root, top / "ws", ignore=shutil.ignore_patterns(".git"))
    moved = Workspace(top, workspace.home)
    moved.git("init", "--quiet")
    moved.commit("of a stranger")

    def hashed(data: bytes, *how: str) -> str:
        command = ["git", "hash-object", "-w", "--stdin", *how]
        done = subprocess.run(command, cwd=top, input=data, capture_output=True, check=True)
        return done.stdout.decode().strip()

    entries = {"40000": moved.git("rev-parse", "HEAD:ws").strip(), "120000": hashed(bytes(own))}
    tree = b"".join(f"{m} ws\0".encode() + bytes.fromhex(name) for m, name in entries.items())
    made = hashed(tree, "-t", "tree", "--literally")
    commit = moved.git("commit-tree", made, "-m", "two").strip()
    here(moved, monkeypatch)
    with (
        pytest.raises(LinkError, match="ws is a symlink to"),
        reproduction(top / "ws", "push", commit),
    ):
        pass
    assert (own / "datasets").is_dir()


def test_nothing_is_copied_through_a_link_of_the_workspace(workspace, tmp_path, monkeypatch):
    here(workspace, monkeypatch)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "key").write_text("secret")
    workspace.replace("pipelines/push/dvc.yaml", "deps:\n", "deps:\n    - inputs\n")
    workspace.commit("of a stranger")
    link = workspace.root / "inputs"
    link.symlink_to(tmp_path / "mine")
    with (
        pytest.raises(LinkError, match=f"{link} is a symlink to"),
        reproduction(workspace.root, "push", workspace.git("rev-parse", "HEAD").strip()),
    ):
        pass


@pytest.mark.parametrize(
    "named", [".git/new", "./.git/new", "a/../.git/new", "a/.git/new", ".DVC/new"]
)
def test_no_dependency_brings_a_file_into_a_repository_s_own_folder(named, workspace, monkeypatch):
    here(workspace, monkeypatch)
    workspace.replace("pipelines/push/dvc.yaml", "deps:\n", f"deps:\n    - {named}\n")
    workspace.commit("of a stranger")
    with (
        pytest.raises(ConfigError, match="which no stage reads"),
        reproduction(workspace.root, "push", workspace.git("rev-parse", "HEAD").strip()),
    ):
        pass


def no_record(w: Workspace) -> None:
    shutil.rmtree(w.root / "releases")
    w.git("tag", "--delete", IDS["push"])


def damaged_record(w: Workspace) -> None:
    (w.root / "releases" / f"{IDS['push']}.json").write_text("<<<<<<<")


def deep_record(w: Workspace) -> None:
    (w.root / "releases" / f"{IDS['push']}.json").write_text("[" * 100_000)


def other_record(w: Workspace) -> None:
    w.replace(f"releases/{IDS['push']}.json", '"stage": ', '"step": ')


def lost_commit(w: Workspace) -> None:
    w.git("tag", "--delete", IDS["push"])
    w.replace(f"releases/{IDS['push']}.json", '"git_commit": "', '"git_commit": "0')


def another_version(w: Workspace) -> None:
    retag(w, "push", "push-v0", "push-v1")


def no_pipeline(w: Workspace) -> None:
    w.git("rm", "--quiet", "pipelines/push/params.yaml")
    w.commit()
    w.git("tag", "--force", IDS["push"])


def no_input(w: Workspace) -> None:
    (w.root / "demos.pickle").unlink()


def no_repository(w: Workspace) -> None:
    (w.root / ".git").rename(w.root.parent / "git")


ROWS: dict[Callable[[Workspace], None], tuple[str, type[MinariPipeError], str]] = {
    no_record: ("push", DatasetNotFoundError, "'tests/push-v0' is not released .*Released: none"),
    damaged_record: ("push", ConfigError, "releases/tests/push-v0.json is damaged; restore it"),
    deep_record: ("push", ConfigError, "releases/tests/push-v0.json is damaged; restore it"),
    other_record: ("push", ConfigError, "releases/tests/push-v0.json is damaged; restore it"),
    lost_commit: ("push", ConfigError, "the commit '0.* was made from is not in .*; try git fetch"),
    another_version: ("push", ConfigError, "makes 'tests/push-v1', not 'tests/push-v0'; give the"),
    no_pipeline: ("push", ConfigError, "at .* pipelines/push/params.yaml is missing or damaged"),
    no_input: ("replayed", ConfigError, "reads demos.pickle, which is neither in git at this com"),
    no_repository: ("push", ConfigError, "is not a git repository, so no version can be repr"),
}


@pytest.mark.parametrize(
    ("spoil", "expected"), ROWS.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_what_cannot_be_made_again_is_told_in_one_line(spoil, expected, workspace, monkeypatch):
    spoil(workspace)
    here(workspace, monkeypatch)
    name, error, message = expected
    with pytest.raises(error, match=message) as caught:
        reproduce(IDS[name], say=print)
    assert "\n" not in str(caught.value)


def test_a_revision_that_is_none_is_told(released, monkeypatch):
    here(released, monkeypatch)
    for revision in ("nowhere", "--all", "HEAD:conf"):
        with pytest.raises(ConfigError, match="no revision .*; try git fetch --tags"):
            reproduce(IDS["push"], revision=revision, say=print)


def test_the_record_may_be_in_the_tag_alone_and_nothing_runs_that_is_not_trusted(workspace):
    workspace.git("rm", "--quiet", "-r", "releases")
    workspace.commit("no records")
    done = workspace.call("minari-pipe", "reproduce", IDS["push"], "--rev", IDS["push"])
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "my_policy.push' is not trusted" in lines[-2]
    assert lines[-1] == "error: reproducing push failed; see the output above"
    assert "Traceback" not in done.stdout
