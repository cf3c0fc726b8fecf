"""Scratch folders and outputs of a stage: what is finished is kept, for that very work only."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium as gym
import pytest
import yaml

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.execution.stage import StageRun, _load_yaml, _run

PARAMS = {"env": {"id": "X-v0"}, "collect": {"seed": 1}, "author": {"name": "Ada"}}
OF_A_FAMILY = {"family": {}, "policy": {"_target_": "x"}, "ref_scores": {}, "packages": {}}


def stage(root: Path, **changes) -> StageRun:
    """The stage ``collect`` of pipeline ``x``, which reads ``env``, ``collect.seed`` and a file."""
    folder = root / "pipelines" / "x"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "deps").mkdir(exist_ok=True)
    if not (root / "deps" / "a").exists():
        (root / "deps" / "a").write_text("1")
    keys = [{"pipelines/x/params.yaml": ["env", "collect.seed"]}]
    entry = {"cmd": "", "params": keys, "deps": ["deps"]}
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"collect": entry}}))
    return StageRun("collect", "x", root, {**PARAMS, **changes})


def change_content(root: Path) -> None:
    (root / "deps" / "a").write_text("2")


def change_name(root: Path) -> None:
    (root / "deps" / "a").rename(root / "deps" / "b")


def test_the_same_work_finds_its_scratch_again(tmp_path):
    scratch = stage(tmp_path).scratch
    (scratch / "block").touch()
    assert stage(tmp_path, author={"name": "Bob"}).scratch == scratch
    assert (scratch / "block").exists()


@pytest.mark.parametrize("change", [change_content, change_name])
def test_other_files_have_another_scratch_and_the_old_one_goes(change, tmp_path):
    scratch = stage(tmp_path).scratch
    change(tmp_path)
    assert stage(tmp_path).scratch != scratch
    assert not scratch.exists()


def test_other_parameters_have_another_scratch_and_the_old_one_goes(tmp_path):
    scratch = stage(tmp_path).scratch
    assert stage(tmp_path, collect={"seed": 2}).scratch != scratch
    assert not scratch.exists()


def test_an_output_appears_whole_and_replaces_what_was_there(tmp_path):
    run = stage(tmp_path)
    target = run.folder / "episodes"
    target.mkdir()
    (target / "old").touch()
    with run.output("episodes") as out:
        (out / "new").touch()
        assert [p.name for p in target.iterdir()] == ["old"]
    assert [p.name for p in target.iterdir()] == ["new"]


def test_an_output_that_fails_does_not_appear(tmp_path):
    run = stage(tmp_path)

    def fail() -> None:
        with run.output("episodes") as out:
            (out / "half").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not (run.folder / "episodes").exists()
    with run.output("episodes") as out:
        assert list(out.iterdir()) == []


def test_an_output_does_not_follow_a_link_out_of_the_workspace(tmp_path):
    from minari_pipe.errors import LinkError

    work, outside = tmp_path / "work", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    run = stage(work)
    (run.folder / "episodes").symlink_to(outside)
    with pytest.raises(LinkError, match="episodes is a symlink to"), run.output("episodes"):
        pass
    assert (outside / "precious").exists()


class Trainer:
    """Fills a folder, and counts."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.n = 0

    def __call__(self, out: Path) -> None:
        self.n += 1
        (out / "policy.zip").write_text("weights")
        if self.fails:
            raise KeyboardInterrupt


@pytest.mark.parametrize("text", ["a: [", "a: &a [1]\nb: *a", "a: " + "[" * 50_000])
def test_parameters_that_nothing_generates_are_told_with_their_file(text, tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"params\.yaml is damaged: .*; to write it again, run"):
        _load_yaml(path)


def test_work_without_blocks_is_done_once(tmp_path):
    """DVC removes the output of a run that was killed while it hashed; the work is not lost."""
    trainer = Trainer()
    assert not stage(tmp_path).output_once("train", trainer)
    policy = tmp_path / "pipelines" / "x" / "train" / "policy.zip"
    policy.unlink()
    assert stage(tmp_path).output_once("train", trainer)
    assert policy.read_text() == "weights"
    assert trainer.n == 1
    assert not stage(tmp_path, collect={"seed": 2}).output_once("train", trainer)
    assert trainer.n == 2


def test_work_that_was_interrupted_is_done_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        stage(tmp_path).output_once("train", Trainer(fails=True))
    assert not (tmp_path / "pipelines" / "x" / "train").exists()
    assert not stage(tmp_path).output_once("train", Trainer())
    assert (tmp_path / "pipelines" / "x" / "train" / "policy.zip").read_text() == "weights"


def test_warnings_of_a_stage_are_said_once_and_in_plain_text(tmp_path, monkeypatch, capsys):
    """Also where a module of the user's asks for all of them, and Gymnasium colours them."""
    folder = tmp_path / "pipelines" / "x"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text(yaml.safe_dump({**PARAMS, **OF_A_FAMILY}))
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"collect": {"cmd": ""}}}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["collect", "x"])
    monkeypatch.setattr("tempfile.tempdir", None)

    def body(run: StageRun) -> None:
        with warnings.catch_warnings(action="always"):
            for _ in range(4):
                gym.logger.warn("The obs is not within the observation space.")
        run.say("done \x1b[31m")

    assert _run("collect", body) == 0
    assert capsys.readouterr().err.splitlines() == [
        "collect: warning: The obs is not within the observation space.",
        "collect: done \\x1b[31m",
    ]
