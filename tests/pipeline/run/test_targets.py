"""A run uploads what it published: where the user says so, once, and never half."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.oc_env import check_targets, literal_texts
from minari_pipe.pipeline.signals import INTERRUPTED
from minari_pipe.remotes.hosting import download_dataset, list_remote_datasets
from minari_pipe.testing.remotes import another_root, tree
from tests.conftest import FULL
from tests.support.interruption import Place, Run, complete, copy_place, end_all
from tests.support.repositories import Workspace, dvc_workspace, hashes
from tests.support.servers.gcs import gcs_server
from tests.support.servers.hub import WRITER, hub_server
from tests.support.servers.running import entered
from tests.support.servers.s3 import s3_server
from tests.support.workspaces import stages_that_ran, tiny

ID = "tests/one-v0"
RECORD = f".minari_pipe/published/{ID}.json"
REFUSING = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "FSSPEC_S3_ENDPOINT_URL": ""}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3"), "bucket") as variables:
        yield variables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Two datasets, published in their workspace and nowhere else."""
    workspace = dvc_workspace(
        tmp_path_factory.mktemp("targets"), one=tiny(ID), two=tiny("tests/two-v0")
    )
    workspace.run(sys.executable, "-m", "minari_pipe", "-m", "+dataset=one,two")
    return workspace


@pytest.fixture
def workspace(made: Workspace, tmp_path: Path) -> Workspace:
    return made.copy(tmp_path)


def call(
    workspace: Workspace, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    words = arguments if "-m" in arguments else ("+dataset=one", *arguments)
    return workspace.call(sys.executable, "-m", "minari_pipe", *words, **variables)


def upload(workspace: Workspace, *arguments: str, **variables: str) -> list[str]:
    """A run on which no stage runs and nothing fails; what it says after the installation."""
    done = call(workspace, *arguments, **variables)
    assert done.returncode == 0, done.stdout
    assert stages_that_ran(done.stdout) == []
    return done.stdout.splitlines()[2:]


def release(workspace: Workspace, dataset_id: str = ID) -> None:
    """Leave what the driver reads of a release."""
    manifest = (workspace.root / "datasets" / dataset_id / "manifest.json").read_text()
    record = workspace.root / "releases" / f"{dataset_id}.json"
    record.parent.mkdir(parents=True)
    record.write_text(f'{{"manifest": {manifest}}}')


def name_in_the_config(workspace: Workspace, target: str, config: str = "one") -> None:
    file = f"conf/dataset/{config}.yaml"
    workspace.replace(file, "author:", f"publish: {{targets: [{target}]}}\nauthor:")


def test_a_draft_is_not_uploaded_and_one_line_says_how_it_would_be(workspace):
    assert upload(workspace, "publish.targets=[./out]") == [
        f"one: not uploaded, because {ID} is a draft; freeze it with `minari-pipe release {ID}`, "
        "or upload the draft with --draft"
    ]
    assert not (workspace.root / "out").exists()
    assert not (workspace.root / RECORD).exists()


def test_a_dry_run_says_what_would_be_uploaded_and_sends_nothing(workspace):
    told = "publish.targets=[./out]"

    def last(*words: str) -> str:
        return workspace.dry_run("+dataset=one", *words)[-1]

    assert last(told) == f"one: would not be uploaded to ./out, because {ID} is a draft"
    assert last(told, "--draft") == "one: would be uploaded to ./out"
    name_in_the_config(workspace, "./other")
    assert last("--draft").endswith("to ./other, because a file names it, not you")
    release(workspace)
    upload(workspace, told)
    assert last(told) == "one: published in ./out"


def test_a_released_version_is_uploaded_once_and_then_without_a_network(workspace, s3, tmp_path):
    release(workspace)
    before = hashes(workspace.root / "datasets"), workspace.json(f"catalog/{ID}.json")
    place = f"s3://bucket/{tmp_path.name}"
    told = f"publish.targets=[./out,{place}]"
    first = upload(workspace, told, **s3)
    assert first[:2] == ["one: uploaded to ./out", f"one: uploaded to {place}"]
    assert "does not enforce exclusive creation" in first[2]
    record = workspace.json(RECORD)
    assert {name: entry["outcome"] for name, entry in record.items()} == {
        "./out": "uploaded",
        place: "uploaded",
    }
    content = workspace.json(f"catalog/{ID}.json")["content_sha256"]
    assert {entry["content_sha256"] for entry in record.values()} == {content}
    shutil.rmtree(workspace.root / "out")  # it is not even looked at
    again = upload(workspace, told, **{**s3, **REFUSING})
    assert again == [f"one: published in ./out, {place}"]
    assert workspace.json(RECORD) == record
    assert not (workspace.root / "out").exists()
    workspace.git("init", "--quiet")
    workspace.git("add", "--force", RECORD)  # as a clone may bring it
    assert upload(workspace, told, **s3)[0] == "one: uploaded to ./out"
    shutil.rmtree(workspace.root / ".git")
    # The key decides no byte, and no stage depends on it.
    assert (hashes(workspace.root / "datasets"), workspace.json(f"catalog/{ID}.json")) == before
    with entered(s3):
        assert list(list_remote_datasets(place)) == [ID]


def test_every_kind_of_remote_can_be_a_target(workspace, tmp_path):
    with gcs_server("bucket") as gcs, hub_server(tmp_path / "hub") as hub:
        told = ("--draft", "publish.targets=[gs://bucket/folder,hf://org,hf://others]")
        done = call(workspace, *told, **gcs, **hub.variables(WRITER))
    assert done.returncode == 1
    for target in ("gs://bucket/folder", "hf://org"):
        assert f"one: uploaded to {target}\n" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("error: one: not uploaded to hf://others: hf://others does not allow")
    assert WRITER not in done.stdout


def test_the_card_that_is_uploaded_states_the_date_of_the_release(workspace):
    release(workspace)
    path = workspace.root / "releases" / f"{ID}.json"
    record = json.loads(path.read_text())
    before = hashes(workspace.root / "datasets")
    times = {"./dated": "2026-11-23T22:15:00+00:00", "./undated": "long ago"}
    for target, time in times.items():
        path.write_text(json.dumps({**record, "time": time}))
        upload(workspace, f"publish.targets=[{target}]")
    files = {target: f"{target}/{ID}/card/croissant.json" for target in times}
    assert workspace.json(files["./dated"])["datePublished"] == "2026-11-23"
    assert "datePublished" not in workspace.json(files["./undated"])
    assert hashes(workspace.root / "datasets") == before
    changed = {**record["manifest"], "content_sha256": "0" * 64}
    path.write_text(json.dumps({"manifest": changed, "time": times["./dated"]}))
    upload(workspace, "--draft", "publish.targets=[./draft]")
    assert "datePublished" not in workspace.json(f"draft/{ID}/card/croissant.json")


def test_what_the_target_has_already_is_recorded_too(workspace):
    told = ("--draft", "publish.targets=[./shared/folder]")
    assert upload(workspace, *told) == ["one: uploaded to ./shared/folder"]
    (workspace.root / RECORD).write_text("[damaged")
    assert upload(workspace, *told) == ["one: published in ./shared/folder"]
    assert workspace.json(RECORD)["./shared/folder"]["outcome"] == "present"
    assert (workspace.root / "shared" / "folder" / ID / "data" / "main_data.hdf5").is_file()


def test_a_target_that_fails_stops_no_other_and_is_retried_by_the_next_run(workspace, s3, tmp_path):
    bucket = tmp_path.name.replace("_", "-")
    told = ("--draft", f"publish.targets=[s3://{bucket},./out]")
    failed = call(workspace, *told, **s3)
    assert failed.returncode == 1
    assert "one: uploaded to ./out\n" in failed.stdout
    last = failed.stdout.splitlines()[-1]
    assert last.startswith(f"error: one: not uploaded to s3://{bucket}: s3://{bucket} does not ")
    assert "create the bucket" in last
    assert s3["AWS_SECRET_ACCESS_KEY"] not in failed.stdout
    entry = workspace.json(RECORD)[f"s3://{bucket}"]
    assert "outcome" not in entry
    assert entry["error"] in last
    with entered(s3):
        S3FileSystem(use_listings_cache=False, skip_instance_cache=True).mkdir(bucket)
    shutil.rmtree(workspace.root / "out")
    assert upload(workspace, *told, **s3)[:2] == [
        "one: published in ./out",
        f"one: uploaded to s3://{bucket}",
    ]
    assert not (workspace.root / "out").exists()


def test_a_target_that_only_a_file_names_is_refused_until_the_user_trusts_it(workspace):
    name_in_the_config(workspace, "./shared/folder")
    refused = call(workspace, "--draft")
    assert refused.returncode == 1
    last = refused.stdout.splitlines()[-1]
    assert last.startswith("error: one: not uploaded to ./shared/folder: a file names it")
    assert "'publish.targets=[./shared/folder]'" in last
    assert f"the line {workspace.root}/shared/folder to {workspace.home}" in last
    assert not (workspace.root / "shared").exists()
    # A parent is trusted with all that lies below it.
    trusted = f"{workspace.root}/shar,s3://bucket"
    assert call(workspace, "--draft", MINARI_PIPE_TRUSTED_ADDRESSES=trusted).returncode == 1
    config = workspace.home / "config" / "minari_pipe" / "trusted_addresses"
    config.parent.mkdir(parents=True)
    config.write_text(f"file://{workspace.root}/shared  # of all of us\n")
    assert upload(workspace, "--draft") == ["one: uploaded to ./shared/folder"]


@pytest.mark.parametrize("target", ["./out", "out/deeper", "{root}/out"])
def test_no_target_is_reached_through_a_link_of_the_workspace(target, workspace, tmp_path):
    (tmp_path / "victim").mkdir()
    (workspace.root / "out").symlink_to(tmp_path / "victim")
    told = call(workspace, "--draft", f"publish.targets=[{target.format(root=workspace.root)}]")
    assert told.returncode == 1
    assert f"{workspace.root}/out is a symlink to {tmp_path}/victim" in told.stdout
    assert list((tmp_path / "victim").iterdir()) == []


@pytest.mark.parametrize("text", ["/", "'~'", "{folder}"])
def test_a_text_on_the_command_line_allows_no_target_below_it(text, workspace, tmp_path):
    name_in_the_config(workspace, f"{tmp_path}/shared")
    given = f"++env.kwargs.key={text.format(folder=tmp_path)}"
    told = call(workspace, "--draft", "--dry-run", given).stdout
    assert f"would not be uploaded to {tmp_path}/shared, because a file names it" in told


def test_dvc_repro_uploads_nothing_of_what_an_earlier_command_line_named(workspace):
    upload(workspace, "publish.targets=[./out]")
    assert "publish.targets=[./out]" in (workspace.root / "pipelines/one/params.yaml").read_text()
    release(workspace)
    workspace.dvc("repro", "--force", "--single-item", "pipelines/one/dvc.yaml:publish")
    assert not (workspace.root / "out").exists()
    assert not (workspace.root / RECORD).exists()


def test_a_sweep_uploads_each_and_one_that_is_refused_is_the_only_one(workspace):
    told = ("-m", "+dataset=one,two", "--draft", "publish.targets=[./out]")
    assert call(workspace, *told[1:], "-m").returncode == 0
    out = workspace.root / "out"
    assert sorted(p.parent.parent.name for p in out.rglob("metadata.json")) == ["one-v0", "two-v0"]
    # Another dataset under the first one's id, as from somebody else.
    shutil.rmtree(workspace.root / ".minari_pipe" / "published")
    data = out / ID / "data" / "main_data.hdf5"
    before = data.read_bytes()
    shutil.rmtree(out / "tests" / "two-v0")
    workspace.replace("conf/dataset/one.yaml", "n_envs: 2", "n_envs: 2, seed: 3")
    done = call(workspace, *told)
    assert done.returncode == 1
    assert f"error: one: not uploaded to ./out: {ID} already exists in {out} " in done.stdout
    assert "two: uploaded to ./out" in done.stdout
    assert data.read_bytes() == before


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("", "publish.targets contains ''; expected addresses such as s3://bucket"),
        ("s4://bucket", "'s4://bucket' is not a remote: expected a path or an address that"),
        ("s3://ada:secret@bucket", "contains a user name or a password"),
        ("s4://ada:secret@bucket", "contains a user name or a password"),
        ("file://out", "'file://out' does not name a directory: expected a path, or an address"),
        ("file://ada:secret@host/x", "'file://…@host/x' does not name a directory"),
        ("file://~ada:secret@host/x", "does not name a directory"),
        ("s4://bucket?sig=secret", r"'s4://bucket\?…' is not a remote"),
    ],
)
def test_what_can_be_no_target_is_refused_before_any_work(target, words):
    with pytest.raises(ConfigError, match=words) as caught:
        check_targets(["./out", target])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("publish.targets=[s3://a,file:///b/c]", {("[0]", "s3://a"), ("[1]", "file:///b/c")}),
        ("+publish.targets=[s3://a]", {("[0]", "s3://a")}),
        ("++publish.targets=['a b']", {("[0]", "a b")}),
        ("publish={targets: [s3://a], replace: true}", {("[0]", "s3://a")}),
        ("publish.targets=[s3://a,'${dataset.license}']", {("[0]", "s3://a")}),
        ("publish.targets=${dataset.requirements}", set()),
        ("publish.targets=[]", set()),
        ("publish.targets=[2026]", {("[0]", "2026")}),
        ("dataset.description=s3://a", set()),
    ],
)
def test_a_command_line_names_what_it_spells_out(override, named):
    found = literal_texts(["+dataset=one", override], "publish")
    below = {(key.removeprefix("publish.targets"), text) for key, text in found}
    assert {pair for pair in below if pair[0].startswith("[")} == named


OF_DIRECTORY = "minari_pipe.remotes.directory:DirectoryRemote"
OF_S3 = "minari_pipe.remotes.objects:ObjectStore"
STOPS = {
    "killed at the second file, directory": (signal.SIGKILL, "file", f"{OF_DIRECTORY}._put", 2),
    "killed before it appears, directory": (signal.SIGKILL, "file", f"{OF_DIRECTORY}.reveal", 1),
    "killed at the second file, S3": (signal.SIGKILL, "s3", f"{OF_S3}._put_verified", 2),
    "killed before it appears, S3": (signal.SIGKILL, "s3", f"{OF_S3}._create", 1),
    "Ctrl-C at the second file, S3": (signal.SIGINT, "s3", f"{OF_S3}._put_verified", 2),
    "Ctrl-C before it appears, directory": (signal.SIGINT, "file", f"{OF_DIRECTORY}.reveal", 1),
}
PART = ["killed at the second file, S3", "Ctrl-C before it appears, directory"]
"""Each signal, moment and kind of remote once."""


@pytest.fixture(scope="module")
def finished(made: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The place of a run that has nothing left to do but to upload."""
    folder = tmp_path_factory.mktemp("finished") / "place"
    made.copy(folder)
    return Place(folder)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    end_all()


@pytest.mark.parametrize("stop", STOPS if FULL else PART)
def test_an_upload_that_is_stopped_is_completed_by_the_next_run(
    stop, finished, s3, tmp_path, monkeypatch
):
    how, scheme, target, number = STOPS[stop]
    place = copy_place(finished, tmp_path / "place")
    folder = tmp_path / "shared"
    folder.mkdir()
    address = f"file://{folder}" if scheme == "file" else f"s3://bucket/{tmp_path.name}"
    words = ("+dataset=one", "--draft", f"publish.targets=[{address}]")
    # Where Ctrl-C comes, the thread of the upload can never be interrupted.
    barrier = {"role": "driver", "target": target, "call": number, "do": "block"}
    run = Run(place, *words, barrier=barrier, **s3)
    run.await_barrier()
    run.tell_group(how)
    code, out, err = run.end(20)
    assert "uploaded" not in out
    if how == signal.SIGINT:
        assert (code, err) == (130, INTERRUPTED + "\n")
    with entered(s3):
        assert list_remote_datasets(address) == {}
        out = complete(place, *words)
        assert f"one: uploaded to {address}" in out
        another_root(monkeypatch, tmp_path / "root")
        monkeypatch.setenv("MINARI_REMOTE", address)
        download_dataset(ID)
    assert tree(tmp_path / "root" / ID) == tree(place.work / "datasets" / ID)
