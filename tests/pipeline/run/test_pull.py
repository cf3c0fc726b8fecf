"""``--pull`` takes from the DVC remote what is there, and leaves the rest to the run."""

from __future__ import annotations

import re
import shutil
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.repositories import Workspace, git_workspace, hashes
from tests.support.workspaces import tiny

PULL = (sys.executable, "-m", "minari_pipe", "+dataset=one", "--pull")


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace whose maintainer made a dataset, pushed it to ``../remote`` and committed."""
    folder = tmp_path_factory.mktemp("pushed")
    workspace = git_workspace(folder, one=tiny("tests/one-v0"))
    workspace.pipe("+dataset=one")
    workspace.dvc("remote", "add", "--default", "store", str(folder / "remote"))
    workspace.dvc("push", "--quiet", "--run-cache")
    workspace.commit("one")
    return workspace


@pytest.fixture
def clone(pushed: Workspace, tmp_path: Path) -> Workspace:
    """A fresh clone, with a copy of the remote to change."""
    clone = pushed.clone(tmp_path / "clone")
    shutil.copytree(pushed.root.parent / "remote", tmp_path / "remote")
    config = clone.root / ".dvc" / "config.local"
    config.write_text(f"['remote \"store\"']\n    url = {tmp_path}/remote\n")
    return clone


def objects(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "remote" / "files").rglob("*") if path.is_file())


def test_a_fresh_clone_pulls_everything_and_runs_no_stage(pushed, clone):
    assert clone.pipe(*PULL[3:]) == []
    for folder in ("datasets", "catalog", "pipelines"):
        assert hashes(clone.root / folder) == hashes(pushed.root / folder)
    installed = "tests/one-v0/data/main_data.hdf5"
    assert hashes(clone.minari_root)[installed] == hashes(pushed.minari_root)[installed]
    assert clone.git("status", "--porcelain") == ""
    # What is there is not pulled again, and without the flag nobody asks the remote.
    assert "one: pulled 0 outputs from the DVC remote 'store'\n" in clone.run(*PULL)
    config = clone.root / ".dvc" / "config.local"
    config.write_text(config.read_text().replace("remote\n", "gone\n"))
    assert clone.pipe("+dataset=one") == []


def test_no_workspace_writes_results_of_another_where_they_share_a_cache(pushed, clone, tmp_path):
    """A run believes the run cache, and a stranger's workspace could write anything there."""
    clone.dvc("config", "--global", "cache.dir", str(tmp_path / "shared"))
    (clone.root / "pipelines" / "one" / "dvc.lock").unlink()
    assert clone.pipe(*PULL[3:]) == ["create", "ref_scores", "validate", "publish"]
    clone.pipe("+dataset=one")  # DVC would save what it restores by dvc.lock
    mine = git_workspace(tmp_path / "mine", one=tiny("tests/one-v0"))
    mine.dvc("config", "--global", "cache.dir", str(tmp_path / "shared"))
    assert mine.pipe("+dataset=one")[0] == "collect"
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == ["files"]
    # An entry that is there, say from dvc itself, counts for no run either.
    (mine.root / ".dvc" / "cache" / "runs").rename(tmp_path / "shared" / "runs")
    (mine.root / "pipelines" / "one" / "dvc.lock").unlink()
    assert mine.pipe("+dataset=one")[0] == "collect"


def test_the_run_cache_comes_along(pushed, clone):
    (clone.root / "pipelines" / "one" / "dvc.lock").unlink()
    # DVC pushes no copies of metrics and plots, so the stages that write some run.
    assert clone.pipe(*PULL[3:]) == ["create", "ref_scores", "validate", "publish"]
    assert hashes(clone.root / "datasets") == hashes(pushed.root / "datasets")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dvc.yaml", "vars: [../secrets.yaml]\nstages: {more: {cmd: 'true', deps: ['${a}']}}\n"),
        (
            "x.dvc",
            "deps: [{path: 's3://b/x', fs_config: {configpath: aws}, etag: a}]\n"
            "outs: [{path: x}]\n",
        ),
    ],
)
def test_no_other_declaration_of_the_workspace_is_read(name, text, clone):
    """It may name files and hosts, and commands that have credentials."""
    (clone.root / "aws").write_text("[default]\ncredential_process = touch told\n")
    (clone.root.parent / "secrets.yaml").write_text("a: [secret\n")
    (clone.root / name).write_text(text)
    assert clone.pipe(*PULL[3:]) == []
    assert not (clone.root / "told").exists()


@pytest.mark.parametrize("auth", ["basic", "custom"])
def test_no_password_of_a_remote_follows_it_to_another_host(auth, clone):
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.server is other:
                came.append(str(self.headers))
            self.send_response(404 if self.server is other else 302)
            if self.server is not other:
                self.send_header("Location", f"http://127.0.0.1:{other.server_port}{self.path}")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815  # as http.server calls it

        def log_message(self, *args: object) -> None:
            pass

    with ExitStack() as stack:
        first, other = (ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
        for server in (first, other):
            stack.callback(server.server_close)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        url = f"http://127.0.0.1:{first.server_port}/store"
        given = {"url": url, "auth": auth, "user": "ada", "password": "secret"}
        given["custom_auth_header"] = "X-Token"
        settings = "".join(f"    {key} = {value}\n" for key, value in given.items())
        config = clone.root / ".dvc" / "config.local"
        config.write_text(f"['remote \"store\"']\n{settings}")
        error = clone.refused(*PULL[3:])
    assert "redirects to http://127.0.0.1" in error
    assert "would receive the remote's password" in error
    assert came == []


@pytest.mark.parametrize("fault", ["gone", "damaged"])
def test_what_the_remote_lacks_is_made(fault, pushed, clone, tmp_path):
    for path in objects(tmp_path)[::2]:
        if fault == "gone":
            path.unlink()
        else:
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    output = clone.run(*PULL)
    assert " not found there, so their stages run\n" in output
    assert "WARNING" not in output and "ERROR" not in output
    assert hashes(clone.root / "datasets") == hashes(pushed.root / "datasets")
    assert clone.git("status", "--porcelain") == ""


def test_a_clone_that_lags_behind_gets_what_is_new_and_keeps_what_only_it_has(
    pushed, clone, tmp_path
):
    clone.pipe(*PULL[3:])
    maintainer = pushed.copy(tmp_path / "maintainer")
    maintainer.replace("conf/dataset/one.yaml", "n_envs: 2", "n_envs: 2, seed: 7")
    maintainer.pipe("+dataset=one")
    maintainer.commit("another seed")
    maintainer.dvc("remote", "modify", "--local", "store", "url", str(tmp_path / "remote"))
    maintainer.dvc("push", "--quiet")
    clone.git("pull", "--quiet", str(maintainer.root), "main")
    own = clone.root / "datasets" / "tests" / "one-v0" / "notes.txt"
    own.write_text("of nobody else")
    output = clone.run(*PULL)
    # Both folders of episodes and data, not the one with a file that DVC does not know.
    assert "one: pulled 3 outputs" in output
    assert "one: ran publish -> " in output
    published = hashes(maintainer.root / "datasets")
    assert hashes(clone.root / "datasets") == published


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (None, "--pull: this workspace has no default DVC remote; add one with `dvc remote add "),
        ("/nowhere/at/all", "'store' does not exist: /nowhere/at/all; check that it is reachable"),
        ("nonsense://here", "DVC: config file error: Unsupported URL type nonsense://"),
        ("s3://nowhere/here", "--pull: the DVC remote 'store' failed: EndpointConnectionError"),
    ],
)
def test_a_remote_that_cannot_be_asked_is_one_line_and_nothing_is_lost(url, words, clone):
    config = clone.root / ".dvc" / "config.local"
    if url is None:
        config.unlink()
        clone.replace(".dvc/config", "remote = store", "")
    else:
        config.write_text(f"['remote \"store\"']\n    url = {url}\n")
    before = hashes(clone.root)
    account = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "secret-word")
    endpoint = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    output = clone.refused(*PULL[3:], **account, **endpoint, AWS_EC2_METADATA_DISABLED="true")
    assert re.search(words, output)
    assert output.count("\n") == 1
    assert "secret-word" not in output
    after = hashes(clone.root)
    assert {k: v for k, v in after.items() if k in before} == before
    assert not (clone.root / "datasets").exists()
