"""``upload``, ``download``, and ``list`` and ``show`` of remotes, as a shell sees them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import minari_pipe
from minari_pipe.cli import app, datasets, tables
from minari_pipe.core.datasets_root import data_path_of, get_dataset_path
from minari_pipe.testing.remotes import tree
from tests.cli.test_cli import HOSTILE, error, make, run
from tests.support.cards import dataset_with_card
from tests.support.legacy_files import write_attributes
from tests.support.servers.hub import WRITER, enter, hub_server

ID = "tests/tiny-v0"


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of MINARI_REMOTE, an empty directory."""
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("MINARI_REMOTE", f"file://{tmp_path}/shared")
    return f"file://{tmp_path}/shared"


@pytest.fixture
def folder(shared: str) -> Path:
    return Path(shared.removeprefix("file://"))


def change_published(folder: Path, dataset_id: str, **values: object) -> None:
    path = folder / dataset_id / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata.pop("manifest_sha256", None)
    path.write_text(json.dumps({**metadata, **values}))


# upload


def test_upload_says_of_each_dataset_what_was_sent(shared) -> None:
    make(ID)
    make("tests/other-v0", 2)
    lines = run("upload", ID, "tests/other-v0").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [ID, "tests/other-v0"]
    for line in lines:
        assert f"uploaded to {shared}, 3 files, " in line and " kB, content_sha256 " in line
    assert list(minari_pipe.list_remote_datasets()) == ["tests/other-v0", ID]
    again = run("upload", ID)
    assert again.stdout.startswith(f"{ID}: already in {shared}, with the same content_sha256 ")
    assert again.stderr == ""


def test_upload_states_the_date_of_a_release_of_the_workspace(
    tmp_path, folder, monkeypatch
) -> None:
    for name in ("tests/here-v0", "tests/other-v0"):
        dataset_with_card(name)
        minari_pipe.publish_dataset(name, tmp_path / "first")  # its manifest has all checksums
        minari_pipe.delete_dataset(name)
        minari_pipe.download_dataset(f"{tmp_path}/first/{name}")
    workspace = tmp_path / "workspace"
    (workspace / ".dvc").mkdir(parents=True)
    (workspace / "releases" / "tests").mkdir(parents=True)
    manifest = json.loads((get_dataset_path("tests/here-v0") / "manifest.json").read_text())
    for name in ("here", "other"):
        record = {"manifest": manifest, "time": "2026-11-23T22:15:00Z"}
        (workspace / "releases" / "tests" / f"{name}-v0.json").write_text(json.dumps(record))
    monkeypatch.chdir(workspace)
    run("upload", "tests/here-v0", "tests/other-v0")
    cards = [folder / "tests" / f"{n}-v0" / "card" / "croissant.json" for n in ("here", "other")]
    dates = [json.loads(card.read_text()).get("datePublished") for card in cards]
    assert dates == ["2026-11-23", None]
    monkeypatch.chdir(tmp_path)
    run("upload", "tests/here-v0", "--to", str(tmp_path / "elsewhere"))
    card = tmp_path / "elsewhere" / "tests" / "here-v0" / "card" / "croissant.json"
    assert "datePublished" not in json.loads(card.read_text())


def test_upload_goes_to_the_address_that_is_given(tmp_path) -> None:
    make(ID)
    run("upload", ID, "--to", str(tmp_path / "another"))
    assert minari_pipe.list_remote_datasets() == {}
    assert list(minari_pipe.list_remote_datasets(str(tmp_path / "another"))) == [ID]


def test_an_empty_address_is_not_that_of_the_usual_remote() -> None:
    make(ID)
    assert "'' does not name a directory" in error("upload", ID, "--to", "")
    assert "'' does not name a directory" in error("download", ID, "--from", "")
    assert minari_pipe.list_remote_datasets() == {}


def test_all_datasets_must_be_there_before_one_is_sent() -> None:
    make(ID)
    told = error("upload", ID, "tests/gone-v0")
    assert "no dataset 'tests/gone-v0'" in told and "download" not in told
    assert "no datasets 'tests/gone-v0', 'x-v1' in" in error("upload", "tests/gone-v0", ID, "x-v1")
    assert "'tests/tiny' has no version; to upload the latest, use 'tests/tiny-v0'" in error(
        "upload", "tests/tiny"
    )
    assert "Malformed dataset ID" in error("upload", ID, "../x-v0")

    assert minari_pipe.list_remote_datasets() == {}


def test_an_address_in_the_place_of_an_id_is_told_where_it_belongs() -> None:
    told = error("upload", ID, "s3://bucket")
    assert "minari-pipe upload ID --to s3://bucket" in told


def test_a_dataset_that_fails_does_not_stop_the_others(folder) -> None:
    make("tests/a-v0", 2)
    make("tests/b-v0", 2)
    make("tests/c-v0", 2)
    run("upload", "tests/b-v0")
    minari_pipe.delete_dataset("tests/b-v0")
    make("tests/b-v0", 3)
    result = run("upload", "tests/a-v0", "tests/b-v0", "tests/c-v0", code=1)
    assert result.stderr.startswith("error: tests/b-v0: tests/b-v0 already exists in")
    assert len(result.stderr.splitlines()) == 1
    assert list(minari_pipe.list_remote_datasets()) == ["tests/a-v0", "tests/b-v0", "tests/c-v0"]
    told = json.loads(run("upload", "tests/b-v0", "tests/c-v0", "--json", code=1).stdout)
    assert [entry["outcome"] for entry in told] == ["failed", "present"]
    assert "already exists" in told[0]["error"]


def test_a_dry_run_shows_the_files_and_sends_none(folder) -> None:
    make(ID, 3)
    out = run("upload", ID, "--dry-run").stdout
    assert f"{ID} would be uploaded to file://" in out
    for name in ("data/main_data.hdf5", "data/metadata.json", "manifest.json"):
        assert name in out
    (entry,) = json.loads(run("upload", ID, "--dry-run", "--json").stdout)
    assert entry["outcome"] == "planned"
    assert sum(entry["files"].values()) == entry["n_bytes"] > 0
    assert not list(folder.iterdir())


def test_a_dry_run_shows_the_files_of_all_episodes_in_one_line() -> None:
    make(ID, 30, data_format="arrow")
    lines = run("upload", ID, "--dry-run").stdout.splitlines()
    (row,) = [line.split() for line in lines if "part-0.arrow" in line]
    assert row[:2] == ["data/*/part-0.arrow", "30"]
    assert len(lines) < 12


def test_what_the_metadata_name_is_uploaded_if_the_user_names_it_too() -> None:
    make("tests/a-v0")
    make("tests/b-v0")
    minari_pipe.combine_datasets(
        [minari_pipe.load_dataset(f"tests/{name}-v0") for name in "ab"], "tests/ab-v0"
    )
    minari_pipe.delete_dataset("tests/b-v0")
    result = run("upload", "tests/ab-v0")
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["tests/ab-v0"]
    lines = result.stderr.splitlines()
    said = "warning: tests/ab-v0 was combined from tests"
    assert lines[0].startswith(f"{said}/a-v0, which Minari also downloads; to publish it, name it")
    assert lines[1].startswith(f"{said}/b-v0, which is not in the local root")
    result = run("upload", "tests/ab-v0", "tests/a-v0")
    assert "tests/a-v0: uploaded to" in result.stdout


def test_a_token_is_taken_from_a_file_and_shown_nowhere(tmp_path) -> None:
    make(ID)
    secret = tmp_path / "token"
    secret.write_text("hf_secret\n")
    for option in (("--token-file", str(secret)), ("--key-path", "hf_secret")):
        told = error("upload", ID, *option)
        assert "takes no token: the file system's permissions apply" in told
        told = error("upload", ID, *option, "--to", "s3://bucket")
        assert "takes no token: it uses the credentials of the AWS tools" in told
        assert "hf_secret" not in told
    both = ("--token-file", str(secret), "--key-path", "hf_secret")
    assert "pass only one of them" in error("upload", ID, *both, "--to", "hf://org")
    for content, words in {b"": "one word", b"a b": "one word", b"\xff": "not a text"}.items():
        secret.write_bytes(content)
        assert words in error("upload", ID, "--token-file", str(secret), "--to", "hf://org")
    endless = ("--token-file", "/dev/zero")
    assert "must hold one word, the token" in error("upload", ID, *endless, "--to", "hf://org")
    gone = ("--token-file", str(tmp_path / "gone"))
    assert "gone: No such file" in error("upload", ID, *gone, "--to", "hf://org")
    told = error("upload", ID, "--key-path", "hf_secret", "--to", "gs://bucket")
    assert "hf_secret" not in told and "service account's key" in told


def test_a_dataset_of_an_older_layout_is_not_uploaded_but_migrated_first() -> None:
    write_attributes(minari_pipe.get_dataset_path(), "old-v0", [0, 1])
    told = error("upload", "old-v0")
    assert "has the layout of an older Minari" in told and "minari-pipe migrate old-v0" in told


def test_local_ids_are_completed_for_an_upload() -> None:
    make(ID)
    asked = {"COMP_WORDS": "minari-pipe upload tests/t", "COMP_CWORD": "2"}
    variables = {**asked, "_MINARI_PIPE_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, [], env=variables, prog_name="minari-pipe")
    assert result.stdout.split() == [ID]


# download


def test_download_takes_ids_addresses_and_namespaces(shared) -> None:
    for name in ("tests/a-v0", "tests/a-v1", "tests/b-v0", "other/c-v0"):
        make(name)
        run("upload", name)
        minari_pipe.delete_dataset(name)
    line = run("download", "tests/a").stdout
    assert line.startswith(f"tests/a-v1: downloaded from {shared}, 3 files, ")
    assert " kB, content_sha256 " in line
    run("download", f"{shared}/other/c-v0")
    out = run("download", "tests/").stdout.splitlines()
    assert out[0].startswith("tests/a-v1: already in ")
    assert out[1].startswith("tests/b-v0: downloaded")
    assert list(minari_pipe.list_local_datasets()) == ["other/c-v0", "tests/a-v1", "tests/b-v0"]


def test_download_takes_ids_of_another_remote(tmp_path) -> None:
    make(ID)
    run("upload", ID, "--to", str(tmp_path / "another"))
    minari_pipe.delete_dataset(ID)
    assert "Couldn't find any version" in error("download", ID)
    run("download", "tests/tiny", "--from", str(tmp_path / "another"))
    assert list(minari_pipe.list_local_datasets()) == [ID]
    two = ("download", f"file://{tmp_path}/another/{ID}", "--from", str(tmp_path))
    assert "already contains an address" in error(*two)


@pytest.mark.parametrize("option", [None, "--force", "-f", "--yes", "-y"])
def test_download_asks_before_it_overwrites(option) -> None:
    make(ID)
    run("upload", ID)
    mine = data_path_of(ID) / "main_data.hdf5"
    mine.write_bytes(b"damaged")
    result = run("download", ID, code=1, answer="n\n")
    assert "Are you sure you want to override" in result.stdout
    assert mine.read_bytes() == b"damaged"
    if option is None:
        run("download", ID, answer="y\n")
    else:
        assert "sure" not in run("download", ID, option).stdout
    assert minari_pipe.load_dataset(ID, verify=True).total_episodes == 5


def test_only_force_takes_a_version_that_cannot_be_read(folder) -> None:
    make(ID)
    run("upload", ID)
    minari_pipe.delete_dataset(ID)
    change_published(folder, ID, minari_version="9.0.0")
    assert "Couldn't find any compatible version" in error("download", ID, "--yes")
    result = run("download", ID, "--force")
    assert result.stderr.startswith("warning: Couldn't find any compatible version of dataset")
    assert "not verified, because it was published without checksums" in result.stdout


def test_one_that_cannot_be_downloaded_does_not_stop_the_others() -> None:
    make(ID)
    run("upload", ID)
    minari_pipe.delete_dataset(ID)
    result = run("download", "tests/gone-v0", ID, "tests/tiny-v7", code=1)
    assert result.stdout.startswith(f"{ID}: downloaded from")
    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == ["error", "error"]


def test_what_was_uploaded_by_a_command_comes_back_byte_for_byte() -> None:
    dataset = make(ID)
    mine = tree(dataset.storage.data_path)
    run("upload", ID)
    run("delete", ID, "--yes")
    run("download", ID)
    assert tree(data_path_of(ID)) == mine


# list and show


def test_a_remote_is_listed_as_the_local_root_is(shared, folder) -> None:
    for name in ("tests/a-v0", "tests/a-v1", "tests/a-v2", "other/b-v0"):
        make(name, author="Ada Lovelace")
        run("upload", name)
    change_published(folder, "tests/a-v2", minari_version="9.0.0")
    out = run("list", "remote").stdout
    assert f"Minari datasets in {shared}" in out and "2 datasets, " in out
    assert "tests/a-v1" in out and "tests/a-v0" not in out and "tests/a-v2" not in out
    assert list(json.loads(run("list", "remote", "--all", "--json").stdout)) == [
        "other/b-v0",
        "tests/a-v0",
        "tests/a-v1",
        "tests/a-v2",
    ]
    for arguments in (
        (shared, "--prefix", "tests"),
        (f"{shared}/tests",),
        (f"{shared}/tests/",),
        (f"{shared}/tests/a",),
        (str(folder / "tests"), "--prefix", "a"),
    ):
        assert list(json.loads(run("list", *arguments, "--json").stdout)) == ["tests/a-v1"]
    assert "no datasets in" in run("list", "remote", "--prefix", "x").stdout


def test_a_folder_is_listed_by_its_path(folder, monkeypatch) -> None:
    make(ID)
    run("upload", ID)
    monkeypatch.chdir(folder.parent)
    for source in ("shared", "./shared", "shared/", "shared/tests", str(folder)):
        assert list(json.loads(run("list", source, "--json").stdout)) == [ID]


def test_what_cannot_be_listed_is_told_in_one_line(shared) -> None:
    assert "Did you mean 'remote'?" in error("list", "remot")
    assert "nothing does not exist" in error("list", f"{shared}/nothing")
    assert "is not a remote: expected a path" in error("list", "ftp://host")


def test_broken_datasets_of_a_remote_are_warnings_beside_the_table(folder) -> None:
    make(ID)
    run("upload", ID)
    for number, content in enumerate((b"{", b"[]", b"\xff", json.dumps({"a": HOSTILE}).encode())):
        (folder / f"tests/broken-v{number}/data").mkdir(parents=True)
        (folder / f"tests/broken-v{number}/data/metadata.json").write_bytes(content)
    (folder / "tests/esc\x1b[31m\n-v0/data").mkdir(parents=True)
    (folder / "tests/esc\x1b[31m\n-v0/data/metadata.json").write_text("{}")
    change_published(folder, ID, author=HOSTILE, description=HOSTILE, license=HOSTILE)
    for result in (run("list", "remote"), run("list", "remote", "--json")):
        lines = result.stderr.splitlines()
        assert len(lines) == 5 and all(line.startswith("warning: Skipping '") for line in lines)
        assert ID in result.stdout
        assert not [c for c in result.output if not c.isprintable() and c != "\n"]
    shown = run("show", f"file://{folder}/{ID}").output
    assert "\\x1b]0;title" in shown
    assert not [c for c in shown if not c.isprintable() and c != "\n"]


def test_show_describes_a_dataset_of_a_remote(shared) -> None:
    make(ID, description="counts its steps", ref_min_score=1.0, ref_max_score=10.0)
    run("upload", ID)
    run("delete", ID, "--yes")
    for wanted in (ID, "tests/tiny", f"{shared}/{ID}", f"{shared}/tests/tiny"):
        out = run("show", wanted).stdout
        for text in (ID, "counts its steps", "Discrete(2)", "expert 10.00", f"{shared}/{ID}"):
            assert text in out, text
    told = json.loads(run("show", ID, "--json").stdout)
    assert (told["dataset_id"], told["address"]) == (ID, f"{shared}/{ID}")
    assert set(told["files"]) == {"data/main_data.hdf5", "data/metadata.json", "manifest.json"}
    assert len(told["manifest"]["content_sha256"]) == 64


def test_what_is_neither_here_nor_there_is_told_of_both() -> None:
    make(ID)
    told = error("show", "tests/tyni-v0")
    assert "no dataset 'tests/tyni-v0' in" in told and "Did you mean 'tests/tiny-v0'?" in told
    assert "Couldn't find any version for dataset tests/tyni in file://" in told


def test_a_published_dataset_whose_spaces_are_no_spaces_is_shown(folder) -> None:
    make(ID)
    run("upload", ID)
    run("delete", ID, "--yes")
    change_published(
        folder, ID, observation_space='{"type": "Cheese"}', action_space='{"type": "Box"}'
    )
    out = run("show", ID).stdout
    assert "Cheese" in out and "not a space of the Minari standard" in out


def test_the_tables_fit_80_columns(monkeypatch, capsys, folder) -> None:
    make("some-longer-namespace/and-another/of-the-test-v0", author="Ada Lovelace")
    name = "some-longer-namespace/and-another/of-the-test-v0"
    monkeypatch.setattr(tables, "_console", lambda: Console(file=sys.stdout, width=80))
    from minari_pipe.cli.transfers import upload

    upload([name], dry_run=True)
    upload([name])
    datasets.list_datasets("remote", prefix=None)
    datasets.show(f"file://{folder}/{name}")
    told = capsys.readouterr().out
    lines = [line for line in told.splitlines() if "upload" not in line and "in file:" not in line]
    assert max(map(len, map(str.rstrip, lines))) <= 80
    assert any(line.split()[:1] == ["content_sha256"] and len(line) == 80 for line in lines)


def test_show_of_a_remote_fits_80_columns_in_a_pipe(shared) -> None:
    make(ID, description="many words " * 30, author="a" * 200)
    run("upload", ID)
    run("delete", ID, "--yes")
    address = f"{shared}/{ID}"
    lines = run("show", address).stdout.splitlines()
    assert max(len(line) for line in lines if line != address) == 80


# the Hub


def test_the_commands_speak_with_the_hub_and_never_show_its_token(tmp_path, monkeypatch) -> None:
    make("tests/tiny-v0")
    make("tests/tiny-v1")
    secret = tmp_path / "token"
    secret.write_text(f"{WRITER}\n")
    with hub_server(tmp_path / "server") as hub:
        enter(hub, monkeypatch, token=None)
        denied = error("upload", ID, "--to", "hf://org")
        assert "HF_TOKEN" in denied
        secret.write_text("hf_unknown\n")
        for option in (("--token-file", str(secret)), ("--key-path", "hf_unknown")):
            assert "hf_unknown" not in error("upload", ID, "--to", "hf://org", *option)
        secret.write_text(f"{WRITER}\n")
        run("upload", ID, "--to", "hf://org", "--token-file", str(secret))
        run("upload", "tests/tiny-v1", "--to", "hf://org", "--key-path", WRITER)
        assert "tests/tiny-v1" in run("list", "hf://org/tests/ti").stdout
        assert "no datasets in hf://org" in run("list", "hf://org/other").stdout
        assert "hf://org/tests/tiny-v1" in run("show", "hf://org/tests/tiny").stdout
        run("delete", ID, "tests/tiny-v1", "--yes")
        run("download", "hf://org/tests/tiny-v0", "hf://org/tests/")
        assert "there is no dataset at 'hf://org'" in error("download", "hf://org")
        assert "there is no namespace at 'hf://org/'" in error("download", "hf://org/")
    assert list(minari_pipe.list_local_datasets()) == [ID, "tests/tiny-v1"]
