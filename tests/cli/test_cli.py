"""The commands of ``minari-pipe``, as a shell sees them: output, exit code, one line of error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console
from typer.testing import CliRunner

import minari_pipe
from minari_pipe.__main__ import main
from minari_pipe.cli import app, datasets, tables
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.manifest import entry_of
from minari_pipe.errors import ConfigError, CorruptDatasetError
from tests.conftest import CHECKOUT
from tests.support.legacy_files import (
    d4rl_columns,
    write_attributes,
    write_d4rl,
    write_flat,
    write_links,
)

ID = "tests/tiny-v0"


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a remote be asked that is a directory, and holds nothing."""
    (tmp_path / "remote").mkdir()
    monkeypatch.setenv("MINARI_REMOTE", f"file://{tmp_path}/remote")


def make(dataset_id: str = ID, n_episodes: int = 5, **description) -> minari_pipe.MinariDataset:
    buffers = [
        EpisodeBuffer(
            observations=np.arange(n + 2, dtype=np.float32)[:, None],
            actions=np.zeros(n + 1, np.int64),
            rewards=np.full(n + 1, float(n)),
            terminations=np.zeros(n + 1, bool),
            truncations=np.arange(n + 1) == n,
        )
        for n in range(n_episodes)
    ]
    with warnings.catch_warnings(action="ignore"):  # about what a published one should have
        return minari_pipe.create_dataset_from_buffers(
            dataset_id,
            buffers,
            observation_space=spaces.Box(0, 100, (1,)),
            action_space=spaces.Discrete(2),
            **description,
        )


def run(*arguments: str, code: int = 0, answer: str | None = None):
    result = CliRunner().invoke(app, arguments, input=answer)
    assert result.exit_code == code, result.output
    return result


def error(*arguments: str) -> str:
    """The one line that a refused command says."""
    lines = run(*arguments, code=1).stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0]


def test_list_shows_the_latest_versions_and_all_versions_on_demand() -> None:
    make("tests/tiny-v0")
    make("tests/tiny-v10", author="Ada Lovelace")
    make("tests/tiny-v9")
    assert "tests/tiny-v10" in run("list").stdout
    assert "tests/tiny-v9" not in run("list", "local").stdout
    everything = run("list", "--all").stdout
    assert [name in everything for name in ("v0", "v9", "v10", "Ada Lovelace")] == [True] * 4
    assert list(json.loads(run("list", "-a", "--json").stdout)) == [
        "tests/tiny-v0",
        "tests/tiny-v9",
        "tests/tiny-v10",
    ]
    assert json.loads(run("list", "--json", "--prefix", "other").stdout) == {}
    assert "expected local, remote, or an address" in error("list", "elsewhere")


def test_show_describes_a_dataset_and_takes_the_latest_version() -> None:
    make("tests/tiny-v0", description="an old one")
    make("tests/tiny-v1", description="counts its steps", ref_min_score=1.0, ref_max_score=10.0)
    out = run("show", "tests/tiny").stdout
    for text in ("tests/tiny-v1", "counts its steps", "Discrete(2)", "mean 8.00", "expert 10.00"):
        assert text in out, text
    assert json.loads(run("show", "tests/tiny", "--json").stdout)["dataset_id"] == "tests/tiny-v1"
    assert "Did you mean 'tests/tiny-v0'" in error("show", "tests/tyni-v0")
    root = minari_pipe.get_dataset_path()
    assert "an old one" in run("show", f"{root}/tests/tiny-v0").stdout


@pytest.mark.parametrize(
    "wrong",
    [
        {"author": 3},
        {"combined_datasets": 3},
        {"requirements": 5},
        {"ref_min_score": "low"},
        {"env_spec": "null"},
        {"env_spec": "[]"},
        {"env_spec": 3},
        {"eval_env_spec": '{"additional_wrappers": 7}'},
    ],
    ids=str,
)
def test_metadata_of_wrong_types_is_shown_as_such(wrong) -> None:
    path = make().storage.data_path / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    assert ID in run("list").stdout
    assert "ot valid" in run("show", ID).stdout


def test_no_episodes_are_claimed_for_a_declared_score() -> None:
    path = make().storage.data_path / "metadata.json"
    scores = {"ref_min_score": 1.0, "ref_max_score": 9.0, "num_episodes_average_score": 100}
    for measured, shown in (
        (
            {"ref_max": {"declared": True}},
            "random 1.00 (over 100 episodes), expert 9.00 (declared)",
        ),
        ({k: {"declared": True} for k in ("ref_min", "ref_max")}, "expert 9.00 (declared)\n"),
        ({}, "random 1.00, expert 9.00 (over 100 episodes)"),
    ):
        made = {**scores, "minari_pipe": {"ref_scores": measured}}
        path.write_text(json.dumps(json.loads(path.read_text()) | made))
        assert shown in run("show", ID).stdout


def test_statistics_that_are_no_numbers_are_computed() -> None:
    make().storage.update_episode_metadata([{"rewards_sum": "much"}], [4])
    assert "mean 8.00, from 0.00 to 20.00" in run("show", ID).stdout


def test_data_of_older_layouts_is_validated_like_todays(tmp_path) -> None:
    root = minari_pipe.get_dataset_path()
    write_attributes(root, "old-v0", [0, 1])
    write_flat(root / "flat.hdf5", [2, 3])
    file = write_d4rl(tmp_path / "maze.hdf5", d4rl_columns([2, 3]))
    for name in ("old-v0", str(root / "old-v0"), "flat", str(file)):
        out = run("validate", name).stdout
        assert f"{name}: ok, " in out
        assert "0 episodes replayed (the dataset has no environment)" in out
        assert "no environment is recorded" in out
    with h5py.File(root / "old-v0/data/main_data.hdf5", "r+") as opened:
        opened["episode_1/observations"][0] = -5
        opened.attrs["author_email"] = "nobody"
    out = run("validate", "old-v0", code=1).stdout
    for text in ("author_email", "episode 1 / observations", "old-v0: 1 error, "):
        assert text in out, out


def test_delete_asks_unless_told_not_to() -> None:
    make("tests/a-v0")
    make("tests/b-v0")
    result = run("delete", "tests/a-v0", code=1, answer="n\n")
    assert "Aborted" in result.stderr
    assert "no dataset 'tests/x-v0'" in error("delete", "tests/a-v0", "tests/x-v0", "--yes")
    assert len(minari_pipe.list_local_datasets()) == 2
    out = run("delete", "tests/a-v0", answer="y\n").stdout
    assert "Dataset tests/a-v0 deleted!" in out
    run("delete", "tests/b-v0", "--yes")
    assert minari_pipe.list_local_datasets() == {}


def test_combine_and_split_make_new_datasets_and_keep_the_old() -> None:
    make("tests/a-v0", 6)
    make("tests/b-v0", 4)
    run("combine", "tests/a-v0", "tests/b-v0", "--dataset-id", "tests/ab-v0")
    assert minari_pipe.load_dataset("tests/ab-v0").total_episodes == 10
    run(
        *("split", "tests/ab-v0", "--seed", "1"),
        *("--into", "tests/train-v0=0.7", "--into", "tests/test-v0=0.3"),
    )
    parts = [minari_pipe.load_dataset(f"tests/{name}-v0") for name in ("train", "test")]
    assert [part.total_episodes for part in parts] == [7, 3]
    run("split", "tests/ab-v0", "--into", "tests/two-v0=2")
    assert minari_pipe.load_dataset("tests/two-v0").total_episodes == 2
    assert "already exists" in error(
        "combine", "tests/a-v0", "tests/b-v0", "--dataset-id=tests/ab-v0"
    )
    assert "two or more" in error("combine", "tests/a-v0", "--dataset-id=tests/c-v0")
    for bad, words in {
        "tests/x-v0": "expected NEW_ID=SIZE",
        "tests/x-v0=much": "expected NEW_ID=SIZE",
        "tests/x-v0=-1": "sizes must be",
        "tests/x-v0=11": "exceeds the number of episodes",
        "tests/x=1": "version",
    }.items():
        assert words in error("split", "tests/ab-v0", "--into", bad)
    assert "must be all" in error(
        "split", "tests/ab-v0", "--into=tests/x-v0=1", "--into=tests/y-v0=.5"
    )
    assert "seed must be None or" in error(
        "split", "tests/ab-v0", "--into=tests/x-v0=1", "--seed=-1"
    )
    assert len(minari_pipe.list_local_datasets()) == 6


def test_a_failed_split_leaves_none_of_its_datasets() -> None:
    make("tests/a-v0", 6)
    make("tests/taken-v0", 1)
    arguments = ("split", "tests/a-v0", "--into", "tests/new-v0=3", "--into", "tests/taken-v0=3")
    assert "tests/taken-v0 already exists" in error(*arguments)
    assert run(*arguments, code=1).stdout == ""
    assert sorted(minari_pipe.list_local_datasets()) == ["tests/a-v0", "tests/taken-v0"]


def test_validate_finds_a_changed_file_and_exits_with_1() -> None:
    dataset = make()
    assert "ok, " in run("validate", ID).stdout
    assert json.loads(run("validate", ID, "--json").stdout)["ok"] is True
    metadata = dataset.storage.data_path / "metadata.json"
    metadata.write_text(metadata.read_text().replace('"total_steps": 15', '"total_steps": 16'))
    out = run("validate", str(dataset.storage.data_path.parent), code=1).stdout
    assert f"{dataset.storage.data_path.parent}: 1 error, " in out
    assert "total_steps" in out
    assert json.loads(run("validate", ID, "--json", code=1).stdout)["errors"] == 1


def test_validate_names_the_id_and_the_place_of_a_misplaced_dataset() -> None:
    folder = make().storage.data_path.parent
    other = folder.rename(folder.with_name("moved-v0"))
    for name in ("tests/moved-v0", str(other)):
        found = json.loads(run("validate", name, "--json", code=1).stdout)["findings"]
        (finding,) = [one for one in found if one["level"] == "error"]
        assert finding["path"] == "metadata / dataset_id"
        assert finding["message"].startswith(f"is '{ID}', but the dataset lies at 'tests/moved-v0'")
    elsewhere = other.rename(minari_pipe.get_dataset_path().parent / "elsewhere")
    assert "ok, " in run("validate", str(elsewhere)).stdout


def test_validate_compares_with_the_manifest_however_the_data_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make().storage.data_path
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        file["episode_2/actions"][0] = 1
    (tmp_path / "door").symlink_to(data)
    names = [ID, str(data.parent), str(data), str(tmp_path / "door"), "."]
    monkeypatch.chdir(data)
    for name in names:
        assert "has different content (xxh3_128)" in run("validate", name, code=1).stdout, name
    # It counts where a change was broken off, too.
    (data / ".minari_pipe-commit").mkdir()
    manifest = data.parent / "manifest.json"
    shutil.copy(manifest, data / ".minari_pipe-commit" / ".manifest.json")
    before = json.loads(manifest.read_text())
    before["data"]["main_data.hdf5"] = entry_of(data / "main_data.hdf5")
    manifest.write_text(json.dumps(before))
    assert "has different content (xxh3_128)" in run("validate", ID, code=1).stdout


def test_what_links_of_an_older_dataset_lead_to_is_not_verified_unseen() -> None:
    """Minari 0.3 and 0.4 appended and combined by links to other files."""
    root = minari_pipe.get_dataset_path()
    write_attributes(root, "other-v0", [50])
    data = write_links(root, "old-v0", [("../../other-v0/data/main_data.hdf5", "/episode_0")])
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        file.attrs["total_steps"] = 3
        file.attrs["combined_datasets"] = ["other-v0"]
    entries = {"main_data.hdf5": entry_of(data / "main_data.hdf5")}
    manifest = {"format": 2, "total_episodes": 1, "total_steps": 3, "data": entries}
    (data.parent / "manifest.json").write_text(json.dumps(manifest))
    assert minari_pipe.load_dataset("old-v0").total_steps == 3
    with pytest.raises(CorruptDatasetError, match="other-v0/data/main_data.hdf5, which its manif"):
        minari_pipe.load_dataset("old-v0", verify=True)
    assert "has episodes, but is not in the manifest" in run("validate", "old-v0", code=1).stdout


def test_an_upgrade_compares_the_content_of_a_manifest_of_today_as_well() -> None:
    manifest = make().storage.data_path.parent / "manifest.json"
    assert "has format 2; its files were" in run("validate", ID, "--upgrade").stdout
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "content_sha256": "0" * 64}))
    assert "has content_sha256 000000000000, but the data" in error("validate", ID, "--upgrade")


def test_migrate_and_recover_are_commands_of_the_library() -> None:
    make()
    run("migrate", ID, "tests/again-v0")
    assert minari_pipe.load_dataset("tests/again-v0").total_episodes == 5
    assert "already exists" in error("migrate", ID, "tests/again-v0")
    assert run("recover").stdout == "no leftovers\n"
    assert json.loads(run("recover", "--json").stdout) == []
    assert "no leftovers in the datasets root" in error("recover", "tests/r-v0")


def test_compact_says_how_much_it_saved() -> None:
    dataset = make()
    assert run("compact", ID).stdout == f"{ID}: no unused bytes\n"
    dataset.storage.update_episodes(list(dataset.storage.get_buffers([0])))
    size = dataset.storage.data_path.joinpath("main_data.hdf5").stat().st_size
    assert run("compact", ID).stdout == f"{ID}: 33 kB saved\n"
    assert dataset.storage.data_path.joinpath("main_data.hdf5").stat().st_size == size - 2**15
    assert json.loads(run("compact", ID, "--json").stdout) == [{"id": ID, "saved_bytes": 0}]
    assert "no dataset 'tests/none-v0'" in error("compact", "tests/none-v0")


def test_a_leftover_without_episodes_is_not_in_the_way_of_the_one_with_some() -> None:
    env = minari_pipe.DataCollector(gym.make("CartPole-v1"))
    env.reset(seed=1)
    env.step(0)
    env.close()
    # what kill -9 leaves before a first episode is written
    empty = minari_pipe.get_dataset_path() / ".minari_pipe/collecting/1-killed"
    empty.mkdir()
    (empty / "journal").touch()
    recovered = run("recover", "tests/r-v0", "--format", "arrow")
    assert recovered.stdout == "tests/r-v0: 1 episode, 1 step\n"
    assert minari_pipe.load_dataset("tests/r-v0").storage.FORMAT == "arrow"
    assert "it is incomplete" in error("recover", "tests/s-v0")


def test_commands_are_reached_from_the_shell(tmp_path: Path) -> None:
    make()

    def shell(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "minari_pipe", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), **variables},
        )

    listed = shell("list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert ID in listed.stdout
    missing = shell("show", "tests/none-v0")
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: no dataset 'tests/none-v0'")
    assert "Traceback" in shell("--debug", "show", "tests/none-v0").stderr
    asked = {"COMP_WORDS": "minari-pipe mi", "COMP_CWORD": "1"}
    completion = shell(_MINARI_PIPE_COMPLETE="complete_bash", **asked)
    assert completion.stdout.split() == ["migrate"], completion


def test_a_shell_is_suggested_no_name_in_which_it_would_run_a_command(tmp_path: Path) -> None:
    """Bash replaces `$(...)` in what it is to suggest by what the command prints."""
    (tmp_path / ".dvc").mkdir()
    for name in ("mine", "`id`", "x$(touch${IFS}ran)"):
        path = tmp_path / "conf" / "dataset" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('# @package _global_\nenv: {kwargs: {a-b: 1, "$(id)": 1}}\n')
    for line, wanted in (("+dataset=", "mine"), ("+dataset=mine env.kwargs.", "env.kwargs.a-b=")):
        asked = {"COMP_LINE": f"minari-pipe {line}", "PYTHONPATH": str(CHECKOUT)}
        found = subprocess.run(
            [sys.executable, "-m", "minari_pipe", "-sc", "query=bash"],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, **asked},
        )
        assert wanted in found.stdout
        assert not set(found.stdout) & set("$`()'\"\\{}*?~")


def test_an_interrupt_before_a_command_has_begun_is_no_traceback(monkeypatch) -> None:
    def interrupted(**_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minari_pipe.cli.app", interrupted)
    monkeypatch.setattr("sys.argv", ["minari-pipe", "list"])
    with pytest.raises(SystemExit, match="Aborted!"):
        main()


def test_a_long_id_is_broken_after_its_slashes_on_a_narrow_terminal(monkeypatch, capsys) -> None:
    make("some-longer-namespace/and-another/of-the-test-v0", author="Ada Lovelace")
    monkeypatch.setattr(tables, "_console", lambda: Console(file=sys.stdout, width=80))
    datasets.print_datasets("Datasets", minari_pipe.list_local_datasets())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    parts = ["some-longer-namespace/", "and-another/of-the-test-v0"]
    assert [line[0] for line in lines[4:6]] == parts
    assert lines[-1][:2] == ["1", "dataset,"]


def test_ids_are_completed() -> None:
    make()
    assert datasets.complete_id("tests/") == [ID]
    assert datasets.complete_id("x") == []


HOSTILE = "\x1b]0;title\x07\x1b[31mred\x9b1m\u202e[bold][/] \ud800\r\nnext"


def change(dataset: minari_pipe.MinariDataset, **values) -> None:
    path = dataset.storage.data_path / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_no_text_of_a_file_commands_the_terminal_or_stops_the_command() -> None:
    texts = dict.fromkeys(["description", "algorithm_name", "license", "code_permalink"], HOSTILE)
    names = {key: [HOSTILE] for key in ("author", "author_email", "combined_datasets")}
    spec = json.dumps({"id": HOSTILE, "kwargs": {"a": HOSTILE}, "additional_wrappers": []})
    dataset = make()
    change(dataset, **texts, **names, env_spec=spec, dataset_size=float("nan"))
    change(make("tests/format-v0"), data_format=HOSTILE)
    change(make("tests/other-v0"), dataset_id=HOSTILE)
    (minari_pipe.get_dataset_path("tests") / "esc\x1b[31m-v0" / "data").mkdir(parents=True)
    listed = run("list")
    assert "[bold][/]" in listed.stdout and "\\x1b]0;title" in listed.stdout
    assert listed.stderr.count("warning: Misconfigured") == 3
    results = [
        listed,
        run("list", "--json"),
        run("show", ID),
        run("show", ID, "--json"),
        run("show", "tests/other-v0"),
        run("show", "tests/format-v0", code=1),
        run("validate", ID, code=1),
        run("validate", "tests/other-v0", code=1),
    ]
    for result in results:
        obeyed = [c for c in result.output if not c.isprintable() and c != "\n"]
        assert not obeyed, result.output
    shown = json.loads(results[3].stdout, parse_constant=lambda name: 1 / 0)
    assert shown["description"] == HOSTILE and shown["dataset_size"] is None


def test_nothing_is_cut_on_a_narrow_terminal(monkeypatch, capsys) -> None:
    make("tests/" + "a-rather-long-name" + "-v0", author="Ada Lovelace")
    for width in (80, 40):
        monkeypatch.setattr(tables, "_console", lambda: Console(file=sys.stdout, width=width))  # noqa: B023
        datasets.print_datasets("Datasets", minari_pipe.list_local_datasets())
        words = capsys.readouterr().out.split()
        for text in ("a-rather-long-name-v0", "Episodes", "15", "MB", "hdf5", "Ada", "Lovelace"):
            assert any(word.endswith(text) for word in words), (width, words)


def test_metadata_of_wrong_types_is_shown_as_far_as_it_goes() -> None:
    dataset = make(ref_min_score=1.0, ref_max_score=2.0)
    change(dataset, ref_min_score="x", author=3, license=[1], env_spec="[1]", eval_env_spec="}")
    shown = run("show", ID).stdout
    assert "expert 2.00" in shown and "[1]" in shown and "random" not in shown


def test_a_damaged_dataset_can_be_deleted_and_a_version_is_not_guessed() -> None:
    dataset = make()
    (dataset.storage.data_path / "metadata.json").write_text("{")
    assert "the latest, use 'tests/tiny-v0'" in error("delete", "tests/tiny", "--yes")
    assert "?" in run("delete", ID, code=1, answer="n\n").stdout
    run("delete", ID, ID, "--yes")
    assert not dataset.storage.data_path.exists()


def test_what_was_made_is_told_to_programs_too() -> None:
    make("tests/a-v0", 4)
    made = [
        *json.loads(run("split", "tests/a-v0", "--into", "tests/b-v0=3", "--json").stdout),
        json.loads(run("migrate", "tests/a-v0", "tests/c-v0", "--json").stdout),
        json.loads(
            run("combine", "tests/a-v0", "tests/b-v0", "--dataset-id=tests/d-v0", "--json").stdout
        ),
    ]
    assert [(m["dataset_id"], m["total_episodes"]) for m in made] == [
        ("tests/b-v0", 3),
        ("tests/c-v0", 4),
        ("tests/d-v0", 7),
    ]
    assert all(Path(m["path"]).is_dir() and m["total_steps"] for m in made)


def test_closed_streams_are_no_traceback(monkeypatch) -> None:
    make()
    command = datasets.delete
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ConfigError, match="--yes"):
        command([ID])
    monkeypatch.setattr("sys.stdout", None)
    datasets.list_datasets(prefix=None)
    datasets.show(ID)


def test_an_unforeseen_error_is_one_line_too(monkeypatch) -> None:
    monkeypatch.setattr(datasets, "list_local_datasets", lambda **_: 1 / 0)
    assert error("list") == (
        "error: ZeroDivisionError: division by zero; --debug before the command shows where"
    )


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({"algorithm_name": 3}, ("combine", ID, ID, "--dataset-id", "tests/two-v0")),
        ({"requirements": [["a"]]}, ("combine", ID, ID, "--dataset-id", "tests/two-v0")),
    ],
)
def test_the_key_of_a_wrong_type_is_named(values, command) -> None:
    change(make(), **values)
    assert f"{ID}: metadata {next(iter(values))!r} must be" in error(*command)


def test_an_episode_without_a_number_of_steps_is_named() -> None:
    dataset = make()
    with h5py.File(dataset.storage.data_path / "main_data.hdf5", "r+") as file:
        file["episode_1"].attrs["total_steps"] = "None"
    assert "episode 1 must have total_steps as a whole number; it has 'None'" in error(
        "migrate", ID, "tests/two-v0"
    )
    with pytest.raises(CorruptDatasetError, match="episode 1 must have total_steps"):
        _ = dataset[[0, 1]].total_steps


@pytest.mark.parametrize("score", ["x", [], float("inf")], ids=str)
def test_a_reference_score_that_is_no_number_is_named(score) -> None:
    dataset = make(ref_min_score=1.0, ref_max_score=2.0)
    change(dataset, ref_max_score=score)
    with pytest.raises(CorruptDatasetError, match="'ref_max_score' must be a finite number"):
        minari_pipe.get_normalized_score(dataset, [1.0])


@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name) -> None:
    path = make().storage.data_path / name
    path.unlink()
    os.mkfifo(path)
    assert f"{path} is not a regular file" in error("show", ID)
    run("list")


@pytest.mark.parametrize(
    ("name", "limit"), [("data/metadata.json", 2**24), ("manifest.json", 2**28)]
)
def test_a_file_too_large_to_read_is_named_and_can_be_deleted(name, limit, tmp_path) -> None:
    folder = make().storage.data_path.parent
    os.truncate(folder / name, limit + 1)
    words = f"{folder / name} has {limit + 1} bytes; expected {limit} at most"
    assert words in error("show", ID)
    assert words in error("upload", ID, "--to", str(tmp_path / "remote"))
    assert words in run("validate", ID, "--no-replay", code=1).output.replace("\n", "")
    if name != "manifest.json":  # which these do not read
        assert words in error("combine", ID, ID, "--dataset-id", "tests/new-v0")
        assert words in run("list").stderr
    run("delete", ID, "--yes")
    assert not folder.exists()


@pytest.mark.parametrize(
    "command",
    [
        ("list", "file://ada:hunter2@host/x"),
        ("list", "https://host/x?token=hunter2"),
        ("migrate", "https://ada:hunter2@host/x.hdf5", "aa/b-v0"),
        ("download", "file://ada:hunter2@host/aa/b-v0"),
        ("upload", ID, "--to", "gs4://host/x?token=hunter2"),
    ],
    ids=" ".join,
)
def test_no_error_shows_credentials_of_an_address(command) -> None:
    make()
    assert "…" in error(*command)
    assert "hunter2" not in error(*command)


@pytest.mark.parametrize("address", ["file://ada:hunter2@host/x", "https://host/x?token=hunter2"])
def test_no_error_shows_credentials_of_the_default_remote(address, monkeypatch) -> None:
    make()
    monkeypatch.setenv("MINARI_REMOTE", address)
    for command in (("list", "remote"), ("upload", ID), ("download", "aa/b-v0")):
        assert "hunter2" not in error(*command)


def test_a_leftover_of_minaris_with_nothing_in_its_metadata_is_listed() -> None:
    folder = minari_pipe.get_dataset_path() / "tmpabcdefgh"
    folder.mkdir()
    (folder / "metadata.json").write_text("{}")
    (listed,) = json.loads(run("recover", "--json").stdout)
    assert (listed["name"], listed["episodes"], listed["steps"]) == ("tmpabcdefgh", 0, 0)
    error("recover", "tests/new-v0", "--leftover", "tmpabcdefgh")


def test_data_that_a_link_leads_to_is_not_migrated_by_its_id(tmp_path) -> None:
    data = make().storage.data_path
    data.rename(tmp_path / "data")
    data.symlink_to(tmp_path / "data")
    assert "leads out of the datasets root" in error("migrate", ID, "tests/copy-v0")


def test_a_current_folder_that_was_removed_is_named(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    told = "error: the current folder does not exist any more; change to another one"
    assert error("init") == told
    monkeypatch.setattr(sys, "argv", ["minari_pipe", "+dataset=x"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.strip() == told
