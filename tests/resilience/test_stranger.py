"""In a workspace of a stranger nothing outside it is read, written or sent, whatever it says."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from dvc_data.hashfile.db.local import LocalHashFileDB
from dvc_objects.fs.local import LocalFileSystem

from minari_pipe.core.environments import make_environment, recover
from minari_pipe.core.files import links
from minari_pipe.core.trust import NAMED_FILES_VARIABLE, naming, texts
from minari_pipe.errors import ConfigError, LinkError, TrustError
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.model_files import referenced_files
from minari_pipe.pipeline.config.oc_env import literal_texts
from minari_pipe.pipeline.config.typed import read
from minari_pipe.pipeline.config.validate_config import check_files
from minari_pipe.pipeline.releases.dvc_remote import push
from minari_pipe.pipeline.repository import git, is_tracked, tracked_files, uncommitted
from minari_pipe.pipeline.run import driver, dvc_settings, sync
from minari_pipe.pipeline.run.dry_run import DryRun
from minari_pipe.pipeline.run.dvc_settings import check_dvc
from minari_pipe.pipeline.workspace_links import check_links
from tests.conftest import FULL
from tests.support import forks
from tests.support.repositories import Workspace, hashes
from tests.support.servers.running import entered
from tests.support.servers.s3 import moto_server
from tests.support.workspaces import make_workspace, tiny

MODULE = (sys.executable, "-m", "minari_pipe")
SCRIPT = ("minari-pipe",)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of the user's own, as the stages' scratch of pipeline `tiny` would lie in it."""
    (tmp_path / "mine" / "tiny").mkdir(parents=True)
    (tmp_path / "mine" / "tiny" / "thesis.txt").write_text("precious")
    return tmp_path / "mine"


def test_help_prints_no_file_that_a_link_leads_to(workspace, elsewhere):
    policy = workspace.root / "conf" / "policy" / "mine.yaml"
    policy.parent.mkdir(exist_ok=True)
    policy.symlink_to(elsewhere / "tiny" / "thesis.txt")
    done = workspace.call(*SCRIPT, "--help", "policy=mine")
    assert done.returncode == 1
    assert f"{policy} is a symlink to" in done.stdout
    assert "precious" not in done.stdout


def test_help_looks_into_no_folder_that_conf_is_a_link_to(workspace, elsewhere):
    shutil.rmtree(workspace.root / "conf")
    (elsewhere / "dataset").mkdir()
    (elsewhere / "dataset" / "secretname.yaml").touch()
    (workspace.root / "conf").symlink_to(elsewhere)
    done = workspace.call(*SCRIPT, "--help")
    assert (done.returncode, "secretname" in done.stdout) == (1, False)
    assert f"{workspace.root / 'conf'} is a symlink to" in done.stdout


TITLE = "\x1b]0;title\x07\x9b1m"
"""Sets the title of a terminal's window, and prints bold from then on."""


def names_of_files(workspace: Workspace) -> None:
    for group in ("dataset", "family"):
        (workspace.root / "conf" / group).mkdir(exist_ok=True)
        (workspace.root / "conf" / group / f"{TITLE}.yaml").touch()


def text_of_a_policy(workspace: Workspace) -> None:
    (workspace.root / "conf" / "policy").mkdir(exist_ok=True)
    (workspace.root / "conf" / "policy" / "mine.yaml").write_text(f"# {TITLE}\n")


def versions(workspace: Workspace) -> None:
    def edit(params: dict[str, Any]) -> None:
        for packages in params["packages"].values():
            packages["numpy"] = TITLE

    edit_yaml(workspace, "params.yaml", edit)


def keys_of_the_lock(workspace: Workspace) -> None:
    def edit(lock: dict[str, Any]) -> None:
        recorded = lock["stages"]["collect"]["params"]["pipelines/tiny/params.yaml"]
        recorded["env"]["kwargs"] = {TITLE: "\x9b1m"}

    edit_yaml(workspace, "dvc.lock", edit)


def name_of_a_policy(workspace: Workspace) -> None:
    (workspace.root / "conf" / "policy").mkdir(exist_ok=True)
    (workspace.root / "conf" / "policy" / f"{TITLE}.yaml").write_text("defaults: [random]\n")
    config = workspace.root / "conf" / "dataset" / "tiny.yaml"
    named = json.dumps({"/policy": TITLE})
    config.write_text(config.read_text().replace("{/policy: random}", named))


def entry_of_the_catalog(workspace: Workspace) -> None:
    file = workspace.root / "catalog" / "tests" / "tiny-v0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"id": TITLE}))


def edit_yaml(workspace: Workspace, name: str, edit: Callable[[Any], object]) -> None:
    file = workspace.root / "pipelines" / "tiny" / name
    content = yaml.safe_load(file.read_text())
    edit(content)
    file.write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("plant", "command"),
    [
        (names_of_files, (*SCRIPT, "--help")),
        (text_of_a_policy, (*SCRIPT, "--help", "policy=mine")),
        (name_of_a_policy, (*MODULE, "+dataset=tiny", "--info", "defaults-tree")),
        (versions, (*MODULE, "+dataset=tiny", "--dry-run")),
        (versions, (sys.executable, "-m", "minari_pipe.pipeline.run.sync")),
        # a process of its own, into which DVC is not imported yet
        (keys_of_the_lock, ("env", *MODULE, "+dataset=tiny", "--dry-run")),
        (entry_of_the_catalog, (sys.executable, "-m", "minari_pipe.pipeline.stages.catalog")),
    ],
)
def test_no_text_of_a_workspace_commands_the_terminal(plant, command, workspace):
    plant(workspace)
    done = workspace.call(*command)
    assert "\\x1b]0;title\\x07\\x9b1m" in done.stdout, done.stdout
    assert [c for c in done.stdout if not c.isprintable() and c not in "\n\t"] == []
    assert "Traceback" not in done.stdout


def test_packages_that_a_clone_says_a_stage_has_are_not_believed(workspace):
    """The sources of an editable one would be read, and their paths released."""

    def edit(params: dict[str, Any]) -> None:
        for packages in params["packages"].values():
            packages["psutil"] = importlib.metadata.version("psutil")
        collected = sorted(params["packages"]["collect"].items())
        params["dataset"]["requirements"] = [f"{name}=={version}" for name, version in collected]

    edit_yaml(workspace, "params.yaml", edit)
    workspace.run(*MODULE, "+dataset=tiny")
    params = workspace.root / "pipelines" / "tiny" / "params.yaml"
    assert "psutil" not in params.read_text()
    before = params.stat().st_mtime_ns
    workspace.run(*MODULE, "+dataset=tiny")
    assert params.stat().st_mtime_ns == before


def test_no_program_of_the_folder_runs_where_no_search_path_is_set(workspace):
    told = workspace.root / "told"
    for name in ("git", "sh", "uname", "python"):
        (workspace.root / name).write_text(f"#!/bin/sh\necho {name} >> {told}\n")
        (workspace.root / name).chmod(0o755)
    environment = workspace.environment()
    del environment["PATH"]
    done = forks.run((*MODULE, "+dataset=tiny", "collect.seed=9"), workspace.root, environment)
    assert done.returncode == 0, done.stdout
    assert not told.exists()


def test_a_sweep_of_packaged_configs_writes_through_no_link(workspace, elsewhere):
    before = hashes(elsewhere)
    shutil.rmtree(workspace.root / "conf")
    told = workspace.root / ".minari_pipe" / "hydra" / "multirun.yaml"
    told.parent.mkdir(parents=True, exist_ok=True)
    told.symlink_to(elsewhere / "tiny" / "thesis.txt")
    done = workspace.call(*SCRIPT, "-m", "+dataset=cartpole_random,pendulum_random")
    assert (done.returncode, hashes(elsewhere)) == (1, before), done.stdout
    assert f"{told} is a symlink to" in done.stdout


def bare_repository(folder: Path, told: Path) -> None:
    """Files that git takes for a repository, of which any clone can have a folder full."""
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    command = f"sh -c 'touch {told}; false'"
    settings = f'\tbare = false\n\tworktree = .\n\tfsmonitor = "{command}"\n'
    (folder / "config").write_text(f"[core]\n\trepositoryformatversion = 0\n{settings}")


IN_REPOSITORY = {
    "dry run": ("+dataset=tiny", "--dry-run"),
    "release": ("release", "tests/tiny-v0", "--no-push"),
    "init": ("init",),
}


@pytest.mark.parametrize("command", IN_REPOSITORY.values(), ids=IN_REPOSITORY)
@pytest.mark.parametrize("above", [False, True], ids=["itself", "above"])
def test_a_folder_that_git_takes_for_a_repository_runs_no_command(above, command, workspace):
    told = workspace.home / "executed"
    shutil.rmtree(workspace.root / ".git", ignore_errors=True)
    if command == ("init",):
        shutil.rmtree(workspace.root / ".dvc")
    folder = workspace.root.parent if above else workspace.root
    bare_repository(folder, told)
    with (folder / "config").open("a") as file:
        file.write(f'[filter "x"]\n\tclean = touch {told}\n')
    (workspace.root / ".gitattributes").write_text("* filter=x\n")
    done = workspace.call(*SCRIPT, *command)
    assert not told.exists()
    assert done.returncode == 1
    assert f"{folder} has folders objects and refs, so git takes it for a" in done.stdout


def test_settings_of_git_are_read_through_no_link(workspace, tmp_path):
    (tmp_path / "key").write_text("secret\n")
    (workspace.root / ".gitmodules").symlink_to(tmp_path / "key")
    done = workspace.call(*SCRIPT, "+dataset=tiny", "--dry-run")
    assert (done.returncode, "secret" in done.stdout) == (1, False)
    assert ".gitmodules is a symlink" in done.stdout


def test_settings_of_git_include_no_other_file(workspace, tmp_path):
    (tmp_path / "key").write_text("secret\n")
    subprocess.run(["git", "init", "--quiet"], cwd=workspace.root, check=True)
    (workspace.root / ".gitmodules").write_text(f"[Include]\n    path = {tmp_path / 'key'}\n")
    done = workspace.call(*SCRIPT, "+dataset=tiny", "--dry-run")
    assert (done.returncode, "secret" in done.stdout) == (1, False)
    assert ".gitmodules includes another file" in done.stdout


REMOTES = {
    "another remote": "url = REMOTE://z\n['remote \"z\"']\n    url = s3://y\n    profile = x",
    "command": "configpath = ../aws",
    "credentials": "endpointurl = http://127.0.0.1:9",
    "files": "keyfile = ../key",
    "readers": "acl = public-read",
    "files that are overwritten": "worktree = true",
}


@pytest.mark.parametrize("setting", REMOTES.values(), ids=REMOTES)
def test_a_file_says_of_a_dvc_remote_no_more_than_where_it_is(setting, workspace):
    if "url" not in setting.partition(" ")[0][:4]:
        setting = f"{setting}\n    url = {'ssh' if 'keyfile' in setting else 's3'}://x/y"
    settings = workspace.root / ".dvc" / "config"
    settings.write_text(
        f"[core]\n    remote = far\n    no_scm = true\n['remote \"far\"']\n    {setting}\n"
    )
    name, key = ("z", "profile") if "://z" in setting else ("far", setting.partition(" ")[0])
    told = f"{settings}: the remote {name!r} sets {key}, which could send your credentials"
    with pytest.raises(TrustError, match=re.escape(told)):
        check_dvc(workspace.root)
    if FULL or "configpath" in setting:
        done = workspace.call(*SCRIPT, "+dataset=tiny", "--pull")
        assert done.returncode == 1
        assert done.stdout.startswith(f"error: {told}")


BESIDE = {
    "the run cache": "store/runs",
    "a run": "store/runs/ab/abcd/abcd",
    "the objects": "store/files/md5",
    "the objects of one beginning": "store/files/md5/ab",
    "the objects of DVC 2": "store/ab",
    "the remote": "store",
    "a folder above it": "",
}


WAYS = {
    "relative": "../../near/store",
    "by the current folder": "/proc/self/cwd/../near/store",
    "from the top": "{parent}/near/store",
    "from the home": "~/{way}/near/store",
    "in a folder of it": "remote://base/../near/store",
}


@pytest.mark.parametrize(
    ("place", "way"),
    [(p, "relative") for p in BESIDE]
    + [(p, w) for w in WAYS if w != "relative" for p in ("the objects", "the remote")],
)
def test_no_link_in_a_dvc_remote_beside_the_workspace_is_followed(place, way, workspace, tmp_path):
    """A clone may hold both, and a run would read what it leads to, a release write there."""
    place = BESIDE[place]
    private = tmp_path / "private"
    shutil.copytree(workspace.root / ".dvc", private / "store" / "runs")
    link = workspace.root.parent / "near" / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(private)
    settings = workspace.root / ".dvc" / "config"
    parent = workspace.root.parent
    url = WAYS[way].format(parent=parent, way=os.path.relpath(parent, workspace.home))
    base = "['remote \"base\"']\n    url = ..\n"
    settings.write_text(
        f"[core]\n    no_scm = true\n    remote = s\n['remote \"s\"']\n    url = {url}\n{base}"
    )
    told = workspace.refused("+dataset=tiny", "--pull")
    named = told.replace("/proc/self/cwd", str(workspace.root)).partition(" is a symlink to")[0]
    named = Path(named.rpartition(" ")[2])
    assert named.parent.resolve() / named.name == link
    assert not (workspace.root / ".dvc" / "cache" / "runs" / "config").exists()


@pytest.mark.parametrize(
    "url", ["local:///store", "file:///store", "any:///store", "a_b://store", "git:///store"]
)
def test_a_dvc_remote_whose_address_dvc_takes_for_a_folder_is_refused(url, workspace):
    """The name of the scheme would be a folder of the clone, ``any:``, with links in it."""
    settings = workspace.root / ".dvc" / "config"
    settings.write_text(f"[core]\n    remote = s\n['remote \"s\"']\n    url = {url}\n")
    with pytest.raises(TrustError, match=f"is at {url}, which DVC treats as a folder"):
        check_dvc(workspace.root)


CHAINS = {
    "without an end": (
        "['remote \"b\"']\n    url = remote://a/y\n",
        "'a' refers to itself",
    ),
    "to one of another file": (
        "['remote \"b\"']\n    url = remote://c/y\n",
        "so DVC would use your own settings of 'c' for it",
    ),
}


@pytest.mark.parametrize(("others", "told"), CHAINS.values(), ids=CHAINS)
def test_a_chain_of_dvc_remotes_that_leads_nowhere_is_refused_in_words(others, told, workspace):
    settings = workspace.root / ".dvc" / "config"
    settings.write_text(f"['remote \"a\"']\n    url = remote://b/x\n{others}")
    with pytest.raises((ConfigError, TrustError), match=told):
        check_dvc(workspace.root)


def depend_on_model(workspace: Workspace) -> Path:
    """Have the pipeline depend on a file that DVC keeps; the path of what DVC says of it."""
    file = workspace.root / "pipelines" / "tiny" / "dvc.yaml"
    declared = yaml.safe_load(file.read_text())
    declared["stages"]["collect"].setdefault("deps", []).append("model.xml")
    file.write_text(yaml.safe_dump(declared))
    (workspace.root / "model.xml").write_text("<mujoco/>")
    return workspace.root / "model.xml.dvc"


def track(workspace: Workspace, file: Path) -> None:
    for words in (["init", "--quiet"], ["add", "--force", file.name]):
        subprocess.run(["git", *words], cwd=workspace.root, check=True)


def test_no_link_is_followed_to_what_dvc_says_of_a_dependency(workspace, tmp_path):
    told = depend_on_model(workspace)
    (tmp_path / "secrets.yaml").write_text("hunter2: 1\n")
    told.symlink_to(tmp_path / "secrets.yaml")
    track(workspace, told)
    with pytest.raises(LinkError, match=r"model\.xml\.dvc is a symlink to"):
        push("tiny", workspace.root)


@pytest.mark.parametrize("path", ["model.xml", "{private}"])
def test_a_dependency_is_pushed_only_if_it_is_what_dvc_keeps(path, workspace, tmp_path):
    """DVC pushes what the cache has of a hash, and all workspaces of a user may share the cache."""
    private = tmp_path / "private.csv"
    private.write_text("hunter2")
    md5 = hashlib.md5(b"hunter2").hexdigest()
    cached = workspace.root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
    cached.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(private, cached)
    told = depend_on_model(workspace)
    out = {"md5": md5, "size": 7, "hash": "md5", "path": path.format(private=private)}
    told.write_text(yaml.safe_dump({"outs": [out]}))
    track(workspace, told)
    store = tmp_path / "store"
    settings = workspace.root / ".dvc" / "config"
    url = f"[core]\n    remote = far\n['remote \"far\"']\n    url = {store}\n"
    settings.write_text(url)
    with pytest.raises(ConfigError, match=r"model\.xml\.dvc"):
        push("tiny", workspace.root)
    assert not store.exists() or not any(p.is_file() for p in store.rglob("*"))


@pytest.mark.parametrize("level", range(4), ids=["object", "prefix", "md5", "files"])
@pytest.mark.parametrize("end", [".dir", ""], ids=["folder", "file"])
def test_a_link_in_the_place_of_an_object_is_not_written_through(end, level, workspace, tmp_path):
    """A clone may hold both the workspace and the folder that is its DVC remote."""
    store = tmp_path / "store"
    objects = workspace.root / ".dvc" / "cache" / "files" / "md5"
    object_ = next(p for p in objects.rglob("*") if p.is_file() and p.suffix == end)
    path = store / object_.relative_to(objects.parent.parent)
    link = [path, *path.parents][level]
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "planted")
    track(workspace, workspace.root / "conf")
    settings = workspace.root / ".dvc" / "config"
    # as the user's own, of which no file of the workspace says anything
    settings.with_name("config.local").write_text(
        f"[core]\n    remote = far\n['remote \"far\"']\n    url = {store}\n"
    )
    with pytest.raises(LinkError, match="is a symlink to .*planted"):
        push("tiny", workspace.root)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("layout", ["files/md5", ""], ids=["now", "before DVC 3"])
def test_a_cache_or_remote_may_be_reached_by_a_link_of_the_user_s(layout, workspace, tmp_path):
    check_dvc(workspace.root)
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    place = os.path.join(tmp_path, "store", layout).rstrip("/")
    database = LocalHashFileDB(LocalFileSystem(), place)
    assert database.oid_to_path("ab" * 16) == f"{place}/ab/{'ab' * 15}"


@pytest.mark.parametrize("mode", [0o600, 0o444])
def test_a_pull_changes_nothing_of_what_a_link_in_the_place_of_an_object_leads_to(
    mode, workspace, tmp_path
):
    store, private = tmp_path / "store", tmp_path / "private"
    objects = workspace.root / ".dvc" / "cache" / "files" / "md5"
    object_ = next(p for p in objects.rglob("*.dir"))
    path = store / object_.relative_to(objects.parent.parent)
    path.parent.mkdir(parents=True)
    private.write_bytes(object_.read_bytes())
    private.chmod(mode)
    path.symlink_to(private)
    settings = workspace.root / ".dvc" / "config"
    settings.write_text(f"[core]\n    remote = far\n['remote \"far\"']\n    url = {store}\n")
    track(workspace, workspace.root / "conf")
    shutil.rmtree(objects)
    (workspace.root / "pipelines" / "tiny" / "episodes").rename(tmp_path / "gone")
    told = workspace.call(sys.executable, "-m", "minari_pipe", "+dataset=tiny", "--pull").stdout
    assert "is a symlink to" in told
    assert stat.S_IMODE(private.stat().st_mode) == mode


@pytest.mark.parametrize("how", ["a file of the workspace", "trust", "the user's settings"])
def test_of_a_shared_cache_nothing_is_pushed_where_a_stranger_says(
    how, workspace, tmp_path, monkeypatch
):
    """Whoever knows the hash of a file in the cache could have it pushed as an output."""
    store, shared = tmp_path / "store", tmp_path / "shared"
    (workspace.root / ".dvc" / "cache").rename(shared)
    track(workspace, workspace.root / "conf")
    cache = f"[cache]\n    dir = {shared}\n"
    remote = f"['remote \"far\"']\n    url = {store}\n"
    own = Path(os.environ["DVC_GLOBAL_CONFIG_DIR"]) / "config"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(cache + (remote if how == "the user's settings" else ""))
    (workspace.root / ".dvc" / "config").write_text(f"[core]\n    remote = far\n{remote}")
    if how == "a file of the workspace":
        with pytest.raises(TrustError, match=f"may share DVC's cache {shared}/files/md5, and"):
            push("tiny", workspace.root)
        assert not store.exists()
        return
    if how == "trust":
        monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", str(store))
    assert push("tiny", workspace.root).n_files > 0


@pytest.mark.parametrize("name", ["far", "Far"])
@pytest.mark.parametrize("is_shared", [True, False])
def test_nothing_is_pushed_where_a_file_says_of_one_output(is_shared, name, workspace, tmp_path):
    """DVC lets each output name a remote of its own, in letters of any case."""
    store, shared, mine = (tmp_path / name for name in ("store", "shared", "mine"))
    if is_shared:
        (workspace.root / ".dvc" / "cache").rename(shared)
    else:
        shared = workspace.root / ".dvc" / "cache"
    told = depend_on_model(workspace)
    md5 = hashlib.md5(b"<mujoco/>").hexdigest()
    (shared / "files" / "md5" / md5[:2]).mkdir(parents=True, exist_ok=True)
    (shared / "files" / "md5" / md5[:2] / md5[2:]).write_text("<mujoco/>")
    out = {"md5": md5, "size": 9, "hash": "md5", "path": "model.xml", "remote": name}
    told.write_text(yaml.safe_dump({"outs": [out]}))
    track(workspace, told)
    own = Path(os.environ["DVC_GLOBAL_CONFIG_DIR"]) / "config"
    own.parent.mkdir(parents=True, exist_ok=True)
    default = f"[core]\n    remote = mine\n['remote \"mine\"']\n    url = {mine}\n"
    own.write_text((f"[cache]\n    dir = {shared}\n" if is_shared else "") + default)
    (workspace.root / ".dvc" / "config").write_text(f"['remote \"far\"']\n    url = {store}\n")
    with pytest.raises(
        TrustError, match=f"sends model.xml to the DVC remote '{name}', not to the def"
    ):
        push("tiny", workspace.root)
    assert not store.exists() and not mine.exists()


def test_a_dvc_remote_of_the_workspace_is_not_at_the_address_of_the_user_s(workspace):
    settings = workspace.root / ".dvc" / "config"
    own = "[core]\n    no_scm = true\n['remote \"near\"']\n    url = http://x/y\n"
    settings.write_text(f"{own}['remote \"far\"']\n    url = remote://near/../z\n")
    check_dvc(workspace.root)
    settings.write_text(f"{own}['remote \"far\"']\n    url = REMOTE://Company/../z\n")
    with pytest.raises(TrustError, match="would use your own settings of 'company' for it"):
        check_dvc(workspace.root)


def test_no_remote_of_the_workspace_begins_at_one_that_the_user_s_settings_know(workspace):
    known = workspace.root.parent / "home" / "dvc-global" / "config"
    known.parent.mkdir(exist_ok=True)
    text = "['remote \"store\"']\n    url = http://x/y\n"
    known.write_text(f"{text}    password = secret\n")
    settings = workspace.root / ".dvc" / "config"
    for store in (text, "['remote \"store\"']\n    jobs = 1\n", ""):
        settings.write_text(f"{store}['remote \"far\"']\n    url = remote://Store/../z\n")
        told = workspace.refused("+dataset=tiny", "--pull")
        assert "DVC would use your own settings of 'store' for it" in told


def test_an_account_of_the_user_goes_to_no_address_of_the_workspace(workspace):
    """DVC merges what the levels of its settings say of a remote of one name."""
    for config, url in (
        ("work/.dvc/config", "http://stranger"),
        ("home/dvc-global/config", "s3://x"),
    ):
        file = workspace.root.parent / config
        file.parent.mkdir(exist_ok=True)
        user = "" if "work" in config else "    user = ada\n    password = secret\n"
        file.write_text(f"['remote \"store\"']\n    url = {url}\n{user}")
    told = workspace.refused("+dataset=tiny", "--pull")
    assert "gives the remote 'store' the url http://stranger, which would receive the" in told
    assert "(password, url, user)" in told
    assert "secret" not in told


def test_a_dvc_remote_is_not_sent_the_password_for_any_machine(workspace, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("default login ada password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    settings = workspace.root / ".dvc" / "config"
    settings.write_text("[core]\n    no_scm = true\n['remote \"far\"']\n    url = http://x/y\n")
    with pytest.raises(TrustError, match="send it the password of the entry 'default' in your ~"):
        check_dvc(workspace.root)
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", "http://x")
    check_dvc(workspace.root)


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_a_hash_that_is_a_path_reads_and_removes_no_file(how, workspace, tmp_path):
    """DVC joins it to the folder of its cache, and removes what does not have that hash."""
    victim = tmp_path / "thesis.txt"
    victim.write_text("precious")
    lock_file = workspace.root / "pipelines" / "tiny" / "dvc.lock"
    lock = yaml.safe_load(lock_file.read_text())
    cache = workspace.root / ".dvc" / "cache" / "files" / "md5"
    for stage in lock["stages"].values():
        for entry in (*stage.get("deps", ()), *stage.get("outs", ())):
            if entry["path"].endswith("validation.json"):
                entry["md5"] = f"../../{os.path.relpath(victim, cache)}"[3:]
    lock_file.write_text(yaml.safe_dump(lock))
    (workspace.root / "pipelines" / "tiny" / "validation.json").unlink()
    told = workspace.call(*MODULE, "+dataset=tiny", *how).stdout
    assert "a hash, in DVC's cache or remote or in dvc.lock, names '../" in told
    assert victim.read_text() == "precious"


def test_a_remote_that_lists_a_file_outside_of_its_folder_has_none_written(workspace, tmp_path):
    boto3 = pytest.importorskip("boto3")
    settings = workspace.root / ".dvc" / "config"
    remote = "    remote = far\n['remote \"far\"']\n    url = s3://bucket/store\n"
    settings.write_text(settings.read_text() + remote)
    with moto_server("bucket") as account, entered(account):
        key = "store/runs/../../../../planted"
        boto3.client("s3").put_object(Bucket="bucket", Key=key, Body=b"")
        told = workspace.refused("+dataset=tiny", "--pull", **account)
    assert "a remote's file list, in DVC's cache or remote or in dvc.lock, names " in told
    assert not list(tmp_path.rglob("planted"))


def test_a_remote_whose_run_cache_holds_settings_of_git_has_none_written(workspace, tmp_path):
    """Beside the index of a clone that names the folder as a repository, git would heed them."""
    remote = tmp_path / "store"
    run = f"ab/{64 * 'a'}/{64 * 'b'}"
    for name in (".git/config", run):
        (remote / "runs" / name).parent.mkdir(parents=True)
        (remote / "runs" / name).write_text("")
    settings = workspace.root / ".dvc" / "config"
    url = f"    remote = far\n['remote \"far\"']\n    url = {remote}\n"
    settings.write_text(settings.read_text() + url)
    workspace.pipe("+dataset=tiny", "--pull")
    runs = workspace.root / ".dvc" / "cache" / "runs"
    assert (runs / run).is_file()
    assert not (runs / ".git").exists()


@pytest.mark.parametrize("named", ["../../../thesis.txt", ".git/config", "x/.GIT./config"])
def test_a_list_of_files_names_nothing_but_files_of_its_folder(named, workspace, tmp_path):
    victim = tmp_path / "thesis.txt"
    victim.write_text("precious")
    lock_file = workspace.root / "pipelines" / "tiny" / "dvc.lock"
    lock = yaml.safe_load(lock_file.read_text())
    (out,) = lock["stages"]["collect"]["outs"]
    cache = workspace.root / ".dvc" / "cache" / "files" / "md5"
    entries = json.loads((cache / out["md5"][:2] / out["md5"][2:]).read_text())
    relpath = os.path.relpath(victim, workspace.root / out["path"]) if ".." in named else named
    raw = json.dumps([*entries, {"md5": entries[0]["md5"], "relpath": relpath}]).encode()
    digest = hashlib.md5(raw).hexdigest() + ".dir"
    (cache / digest[:2]).mkdir(exist_ok=True)
    (cache / digest[:2] / digest[2:]).write_bytes(raw)
    lock_file.write_text(lock_file.read_text().replace(out["md5"], digest))
    for run in (workspace.root / ".dvc" / "cache" / "runs").glob("*/*/*"):
        run.chmod(0o644)
        run.write_text(run.read_text().replace(out["md5"], digest))
    shutil.rmtree(workspace.root / out["path"])
    shutil.rmtree(workspace.root / ".dvc" / "tmp")
    done = workspace.call(*SCRIPT, "+dataset=tiny")
    assert victim.read_text() == "precious"
    assert done.returncode == 1
    assert f"names {relpath!r}, which may lie outside" in done.stdout


def test_a_name_that_holds_the_end_of_a_line_is_one_name(tmp_path):
    names = {"x\u2028.dvc", "y\n.dvc", "z"}
    for name in names:
        (tmp_path / name).touch()
    assert git(tmp_path, "init").returncode == git(tmp_path, "add", ".").returncode == 0
    assert tracked_files(tmp_path) == names


def test_what_is_uncommitted_is_asked_of_no_submodule(tmp_path):
    inner, ran = tmp_path / "inner", tmp_path / "ran"
    inner.mkdir()
    (inner / ".gitattributes").write_text("* filter=evil")
    (inner / "a.txt").touch()
    for folder, names in ((inner, ["a.txt", ".gitattributes"]), (tmp_path, ["inner"])):
        for words in (["init"], ["add", *names], ["commit", "-m", "x"]):
            assert (
                git(folder, "-c", "user.name=a", "-c", "user.email=a@b.c", *words).returncode == 0
            )
    with (inner / ".git" / "config").open("a") as file:
        file.write(f'[filter "evil"]\n\tclean = "touch {ran}; cat"\n')
    (inner / "a.txt").write_text("changed")
    assert uncommitted(tmp_path) == []
    assert not ran.exists()


def test_the_run_cache_adds_no_output_to_a_stage(workspace, tmp_path):
    (tmp_path / "mine").mkdir()
    (workspace.root / "lnk").symlink_to(tmp_path / "mine")
    cache = workspace.root / ".dvc" / "cache"
    text = b"evil\n"
    digest = hashlib.md5(text).hexdigest()
    (cache / "files" / "md5" / digest[:2]).mkdir(exist_ok=True)
    (cache / "files" / "md5" / digest[:2] / digest[2:]).write_bytes(text)
    for run in (cache / "runs").glob("*/*/*"):
        entry = yaml.safe_load(run.read_text())
        entry["outs"].append(
            {"path": "lnk/trusted_modules", "hash": "md5", "md5": digest, "size": len(text)}
        )
        run.chmod(0o644)
        run.write_text(yaml.safe_dump(entry))
    shutil.rmtree(workspace.root / "pipelines")
    workspace.run(*SCRIPT, "+dataset=tiny")
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("key", ["/policy", "/family", "/../../mine/hosts@env.kwargs"])
def test_no_config_is_read_from_outside_of_conf(key, workspace, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "hosts.yaml").write_text("token: open-sesame\n")
    config = workspace.root / "conf" / "dataset" / "tiny.yaml"
    entry = key if "@" in key else f"{key}: ../../../mine/hosts"
    config.write_text(config.read_text().replace("_self_", f"{{{entry}}}, _self_", 1))
    if "@" in key:
        config.write_text(config.read_text().replace(f"{{{entry}}}", entry))
    done = workspace.call(*SCRIPT, "+dataset=tiny")
    assert done.returncode == 1
    assert "open-sesame" not in done.stdout
    assert "'../../../mine/hosts'" in done.stdout or "'..'" in done.stdout


PLACES = (
    *(".minari_pipe", ".minari_pipe/work", ".minari_pipe/work/tiny", ".minari_pipe/locks/tiny.ran"),
    *(".dvc", ".dvc/config", ".dvc/config.local", ".dvc/tmp", ".dvc/tmp/lock", ".dvc/tmp/rwlock"),
    *(".dvc/cache", ".dvc/cache/files", ".dvc/cache/files/md5/00", ".dvc/cache/runs"),
    *("conf", "conf/dataset/more.yaml", "conf/hydra", "dvc.yaml", ".gitignore", ".dvcignore"),
    *("pipelines", "pipelines/tiny", "pipelines/tiny/dvc.lock", "pipelines/tiny/.x.1.tmp"),
    *("pipelines/tiny/episodes", "pipelines/tiny/dataset/data/main_data.hdf5", "catalog"),
    *("catalog/tests/tiny-v0.json", "datasets/tests/tiny-v0/policies/policy.zip", "datasets"),
    *("datasets/tests/tiny-v0", "datasets/tests/.tiny-v0.old", "releases/tests/tiny-v0.json"),
    *("conf/a.new/tmp/x.yaml", "pipelines/.dvc/tmp/exps/x", ".minari_pipe/work/a/b/c.new/tmp/x"),
    ".git",
)
"""Where this program, or DVC for it, reads, writes or removes."""


def to_a_file(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere / "tiny" / "thesis.txt")


def to_a_folder(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere)


def to_nowhere(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere / "new")


def within(place: Path, elsewhere: Path) -> None:
    place.symlink_to(".")


def a_pipe(place: Path, elsewhere: Path) -> None:
    os.mkfifo(place)


@pytest.mark.parametrize("plant", [to_a_file, to_a_folder, to_nowhere, within, a_pipe])
def test_no_link_and_no_pipe_of_a_workspace_is_used(plant, tmp_path, elsewhere):
    for number, place in enumerate(PLACES):
        root = make_workspace(tmp_path / str(number))
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            (root / place).rename(root / "aside")
        plant(root / place, elsewhere)
        with pytest.raises((LinkError, TrustError), match=f"{re.escape(place)} is .*remove"):
            check_links(root)


WRITTEN = (".dvc/tmp/lock", ".dvc/cache", "pipelines/tiny/params.yaml")


@pytest.mark.parametrize(
    ("command", "place"),
    [*((c, p) for c in ("a run", "init") for p in WRITTEN), ("dvc repro", "catalog")],
)
def test_a_link_out_of_the_workspace_is_not_written_through(command, place, workspace, elsewhere):
    before = hashes(elsewhere)
    link = workspace.root / place
    if link.is_dir():
        link.rename(workspace.root / "aside")
    link.unlink(missing_ok=True)
    is_folder = place in (".dvc/cache", "catalog")
    link.symlink_to(elsewhere if is_folder else elsewhere / "tiny" / "thesis.txt")
    commands = {
        "a run": (*MODULE, "+dataset=tiny", "collect.seed=5"),
        "init": (*SCRIPT, "init"),
        "dvc repro": ("dvc", "repro", "--force", "pipelines/tiny/dvc.yaml:collect"),
    }
    done = workspace.call(*commands[command])
    assert done.returncode != 0, done.stdout
    assert "is a symlink to" in done.stdout
    assert hashes(elsewhere) == before


SETTINGS = {
    "type = 'symlink'": "[cache]\n    type = 'symlink'\n",
    "TYPE = hardlink": "[cache]\n    TYPE = reflink, hardlink\n",
    "a list": "[cache]\ntype = reflink,symlink\n",
    "in capitals": "[CACHE]\n type=symlink\n",
    "a remote as cache": "[cache]\n local = evil\n['remote \"evil\"']\n url = {elsewhere}\n",
    "core.site_cache_dir": "[core]\n    site_cache_dir = {elsewhere}\n",
    "cache.shared": "[cache]\n    shared = group\n",
    "core.hardlink_lock": "[core]\n    hardlink_lock = true\n",
    "core.autostage": "[core]\n    autostage = true\n",
    "cache.dir": "[cache]\n    dir = {elsewhere}\n",
    "cache.dir beside": "[cache]\n    dir = ../../mine\n",
    "cache.dir by a link": "[cache]\n    dir = ../link/cache\n",
}


@pytest.mark.parametrize("file", ["config", "config.local"])
@pytest.mark.parametrize("text", SETTINGS.values(), ids=SETTINGS)
def test_settings_of_a_workspace_do_not_lead_dvc_out_of_it(text, file, tmp_path, elsewhere):
    root = make_workspace(tmp_path / "work")
    (root / "link").symlink_to(elsewhere)
    (root / ".dvc" / file).write_text(text.format(elsewhere=elsewhere))
    with pytest.raises((LinkError, TrustError, ConfigError)):
        check_dvc(root)


@pytest.fixture
def own_cache(monkeypatch) -> Callable[[Path], None]:
    """Has the user's own settings ask for links into a cache."""

    def choose(folder: Path) -> None:
        own = Path(os.environ["DVC_GLOBAL_CONFIG_DIR"])
        own.mkdir()
        (own / "config").write_text(f"[cache]\n    dir = {folder}\n    type = symlink\n")

    monkeypatch.setattr(links, "_allowed", [])
    return choose


def test_a_cache_elsewhere_is_the_users_to_choose(tmp_path, elsewhere, own_cache):
    root = make_workspace(tmp_path / "work")
    own_cache(elsewhere)
    (root / "datasets" / "tests").mkdir(parents=True)
    (root / "datasets" / "tests" / "data").symlink_to(elsewhere / "tiny" / "thesis.txt")
    check_dvc(root)
    (root / "conf").symlink_to(tmp_path)
    with pytest.raises(LinkError):
        check_links(root)


def test_links_that_dvc_is_going_to_make_are_read(tmp_path, elsewhere, own_cache):
    root = make_workspace(tmp_path / "work")
    own_cache(elsewhere)
    check_dvc(root)
    (root / "link").symlink_to(elsewhere / "tiny" / "thesis.txt")
    assert links.read_below(root / "link", root) == b"precious"


def test_the_stage_config_names_a_link_in_one_line(tmp_path, elsewhere, monkeypatch, capfd):
    root = make_workspace(tmp_path / "work")
    (root / "conf").symlink_to(elsewhere)
    monkeypatch.chdir(root)
    assert sync.main() == 1
    assert capfd.readouterr().err.startswith(f"error: {root / 'conf'} is a symlink to")


def test_a_cache_of_the_workspace_that_is_a_link_is_not_followed(tmp_path, elsewhere, monkeypatch):
    monkeypatch.setattr(links, "_allowed", [])
    root = make_workspace(tmp_path / "work")
    own = Path(os.environ["DVC_GLOBAL_CONFIG_DIR"])
    own.mkdir()
    (own / "config").write_text("[cache]\n    type = symlink\n")
    (root / ".dvc" / "cache").symlink_to(elsewhere)
    (root / "datasets").symlink_to(elsewhere / "tiny")
    with pytest.raises(LinkError, match=r"cache is a symlink to .*dvc config --global cache\.dir"):
        check_links(root)
    assert links._allowed == []


@pytest.mark.parametrize("place", ["conf", "pipelines/tiny", "datasets", ".dvc/tmp"])
def test_no_folder_of_the_users_own_cache_stands_for_one_of_a_workspace(
    place, tmp_path, elsewhere, own_cache
):
    root = make_workspace(tmp_path / "work")
    own_cache(elsewhere)
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    if (root / place).exists():
        (root / place).rmdir()
    (root / place).symlink_to(elsewhere / "tiny")
    with pytest.raises(LinkError, match=f"{place} is a symlink to"):
        check_dvc(root)


@pytest.mark.parametrize(
    "place", ["dvc.lock", "pipelines/tiny/dvc.lock", ".dvc/tmp/rwlock", "conf/dataset/x.yaml"]
)
def test_no_file_of_the_users_own_cache_stands_for_one_that_is_no_output(
    place, tmp_path, elsewhere, own_cache
):
    root = make_workspace(tmp_path / "work")
    own_cache(elsewhere)
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).symlink_to(elsewhere / "tiny" / "thesis.txt")
    with pytest.raises(LinkError, match=f"{place} is a symlink to"):
        check_dvc(root)


def test_a_cache_in_a_workspace_may_be_named_by_the_users_link_to_it(tmp_path):
    root = make_workspace(tmp_path / "work")
    (tmp_path / "link").symlink_to(root)
    (root / ".dvc" / "config").write_text(f"[cache]\n    dir = {tmp_path}/link/cache\n")
    check_dvc(root)
    (root / ".dvc" / "config").write_text(f"[cache]\n    dir = {root}/../mine\n")
    with pytest.raises(TrustError, match="lets a file of the workspace make DVC write outside it"):
        check_dvc(root)


def test_a_workspace_and_the_minari_root_may_be_reached_by_links_of_the_user(workspace, tmp_path):
    (tmp_path / "way").symlink_to(workspace.root)
    (tmp_path / "root").symlink_to(workspace.minari_root)
    reached = Workspace(tmp_path / "way", workspace.home)
    own = {"MINARI_DATASETS_PATH": str(tmp_path / "root"), "PWD": str(reached.root)}
    assert reached.pipe("+dataset=tiny", **own) == []
    assert reached.pipe("+dataset=tiny", "dataset.description=other", **own)[-1] == "publish"
    assert "tests/tiny-v0: ok" in reached.run("minari-pipe", "validate", "tests/tiny-v0", **own)


def test_settings_that_no_clone_brings_are_the_users(tmp_path, elsewhere):
    root = make_workspace(tmp_path / "work")
    (root / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {elsewhere}\n")
    for command in (("init", "--quiet"), ("add", ".dvc/config")):
        subprocess.run(["git", *command], cwd=root, check=True)
    check_dvc(root)
    subprocess.run(["git", "add", "--force", ".dvc/config.local"], cwd=root, check=True)
    with pytest.raises(TrustError, match=r"dvc config --global cache\.dir"):
        check_dvc(root)


@pytest.mark.parametrize("chosen", [None, "setting", "variable"])
def test_databases_that_dvc_unpickles_lie_in_a_folder_of_the_user(
    chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC's default is a folder in which every user of the machine may write."""
    made: list[Path] = []
    monkeypatch.setattr(dvc_settings, "own_folder", lambda path: made.append(path) or tmp_path)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "mine"))
    if chosen != "variable":
        monkeypatch.delenv("DVC_SITE_CACHE_DIR")
    root = make_workspace(tmp_path / "work")
    if chosen == "setting":
        setting = ("core.site_cache_dir", str(tmp_path / "mine"))
        command = [sys.executable, "-m", "dvc", "config", "--global", *setting]
        subprocess.run(command, cwd=tmp_path, check=True)
    check_dvc(root)
    with dvc_settings.repository(root) as repo:
        place = Path(repo.site_cache_dir).parents[1]
    assert place.name == ("mine" if chosen else tmp_path.name)
    assert made == ([] if chosen else [Path(f"/var/tmp/minari_pipe-dvc-{os.getuid()}")])


def a_repository_of_its_own(root: Path) -> None:
    """As a submodule is: the workspace's repository knows none of its files."""
    own = root / ".dvc"
    for command in (("init", "--quiet"), ("add", "--force", "config.local", "config")):
        subprocess.run(["git", *command], cwd=own, check=True)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, "commit", "--quiet", "--message=x"], cwd=own, check=True)
    subprocess.run(["git", "-c", "advice.addEmbeddedRepo=false", "add", "."], cwd=root, check=True)


def an_archive(root: Path) -> None:
    """Unpacked in a repository of the user's, which has none of its files yet."""


def a_repository_below_a_strangers(root: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=root.parent, check=True)
    (root / ".git").rename(root.parent / "own")
    subprocess.run(["git", "add", "--force", "work/.dvc"], cwd=root.parent, check=True)
    (root.parent / "own").rename(root / ".git")
    subprocess.run(["git", "add", ".dvc/config"], cwd=root, check=True)


def a_repository_that_has_forgotten_them(root: Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (
        ("add", "--force", ".dvc"),
        (*who, "commit", "--quiet", "--message=x"),
        ("rm", "--quiet", "--cached", ".dvc/config.local"),
        (*who, "commit", "--quiet", "--message=y"),
    ):
        subprocess.run(["git", *command], cwd=root, check=True)


@pytest.mark.parametrize(
    "kind",
    [
        *(a_repository_of_its_own, an_archive),
        *(a_repository_below_a_strangers, a_repository_that_has_forgotten_them),
    ],
)
def test_settings_that_the_repository_of_the_workspace_does_not_know_are_a_strangers(
    kind, tmp_path, elsewhere
):
    root = make_workspace(tmp_path / "work")
    (root / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {elsewhere}\n")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    kind(root)
    with pytest.raises(TrustError, match=r"dvc config --global cache\.dir"):
        check_dvc(root)


IN_PLACE = (
    *("dvc.lock", ".gitignore", "pipelines/tiny/dvc.lock", "pipelines/tiny/.gitignore"),
    *(".dvc/config", ".dvc/config.local", ".dvc/.gitignore", ".dvc/tmp/rwlock", ".dvc/tmp/lock"),
    *(".dvc/tmp/rwlock.lock", "datasets/.gitignore", "datasets/tests/.gitignore"),
)
"""What DVC writes without a new file."""


def test_what_dvc_writes_in_place_has_no_other_name(tmp_path, elsewhere):
    root = make_workspace(tmp_path / "work")
    texts = {}
    (root / "datasets" / "data").mkdir(parents=True)  # as in a dataset
    for place in IN_PLACE:
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        texts[place] = b"[core]\n" if "config" in place else place.encode()
        other = elsewhere / place.replace("/", "-")
        other.write_bytes(texts[place])
        path.unlink(missing_ok=True)
        path.hardlink_to(other)
    claim = root / ".dvc" / "tmp" / "claim.lock"  # of another DVC, with core.hardlink_lock
    claim.touch()
    (root / ".dvc" / "tmp" / "held").hardlink_to(claim)
    check_dvc(root)
    assert claim.stat().st_nlink == 2
    for place, text in texts.items():
        assert ((root / place).stat().st_nlink, (root / place).read_bytes()) == (1, text), place


def test_the_list_of_stages_that_ran_is_a_new_file(workspace, elsewhere):
    before = hashes(elsewhere)
    ran = workspace.root / ".minari_pipe" / "locks" / "tiny.ran"
    ran.unlink()
    ran.hardlink_to(elsewhere / "tiny" / "thesis.txt")
    workspace.pipe("+dataset=tiny")
    assert hashes(elsewhere) == before


def test_init_writes_into_no_repository_that_a_link_leads_to(tmp_path, workspace):
    mine, folder = tmp_path / "repository", workspace.root / "new"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", str(mine)], check=True)
    (folder / ".git").symlink_to(mine / ".git")
    before = hashes(mine)
    done = workspace.call(*SCRIPT, "init", folder="new")
    assert (done.returncode, hashes(mine)) == (1, before), done.stdout
    assert f"{folder / '.git'} is a symlink to" in done.stdout


def test_a_link_below_the_scratch_of_a_pipeline_called_tmp_is_refused_as_well(workspace, elsewhere):
    before = hashes(elsewhere)
    scratch = workspace.root / ".minari_pipe" / "work" / "tmp" / "collect.blocks"
    scratch.mkdir(parents=True)
    (scratch / "blocks").symlink_to(elsewhere)
    told = workspace.refused("+dataset=tiny", "pipeline=tmp", "dataset.id=tests/tmp-v0")
    assert "remove the symlink" in told
    assert hashes(elsewhere) == before


def test_what_lies_where_workers_tell_how_far_they_are_is_not_written_through(workspace, elsewhere):
    before = hashes(elsewhere)
    temporary = workspace.root / ".minari_pipe" / "work" / "tiny" / "collect.new" / "tmp"
    temporary.mkdir(parents=True)
    for ticket in range(4):
        (temporary / f"tally-{ticket}").symlink_to(elsewhere / "tiny" / "thesis.txt")
    workspace.pipe("+dataset=tiny", "collect.seed=5", "engine=processes", "engine.n_workers=2")
    assert hashes(elsewhere) == before


def test_where_a_stage_died_is_read_through_no_link(tmp_path, elsewhere):
    """Of a stage that did not begin, they are still those that came with the workspace."""
    temporary = tmp_path / ".minari_pipe" / "work" / "tiny" / "collect.new" / "tmp"
    temporary.mkdir(parents=True)
    (temporary / "tally-0").symlink_to(elsewhere / "tiny" / "thesis.txt")
    assert driver._in_block("collect", "tiny", tmp_path) == ""


def test_a_workspace_that_came_with_the_name_of_another_does_not_pass_for_it(workspace):
    state = workspace.root / ".minari_pipe" / "workspace_id"
    for command in (("init", "--quiet"), ("add", "--force", str(state))):
        subprocess.run(["git", *command], cwd=workspace.root, check=True)
    told = workspace.refused("+dataset=tiny", "collect.seed=5")
    assert f"{state} came with the clone" in told
    subprocess.run(["git", "rm", "-rq", "--cached", ".minari_pipe"], cwd=workspace.root, check=True)
    workspace.pipe("+dataset=tiny", "collect.seed=5")


def test_files_of_a_submodule_came_with_the_clone_as_well(tmp_path):
    for folder in ("inner", "outer"):
        (tmp_path / folder).mkdir()
        git(tmp_path / folder, "init", "-q")
    (tmp_path / "inner" / "workspace_id").write_text("0" * 32)
    git(tmp_path / "inner", "add", ".")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    git(tmp_path / "inner", *identity, "commit", "-qm", "id")
    local = ("-c", "protocol.file.allow=always")
    root = tmp_path / "outer"
    git(root, *local, "submodule", "add", "-q", str(tmp_path / "inner"), ".minari_pipe")
    assert (root / ".minari_pipe" / "workspace_id").exists()
    assert is_tracked(root, ".minari_pipe/workspace_id")
    assert not is_tracked(root, "minari_pipe/workspace_id")


def test_what_names_the_workspace_cannot_lead_out_of_the_minari_root(workspace, elsewhere):
    target = elsewhere / "deep.tiny.installing"
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    way = os.path.relpath(elsewhere / "deep", workspace.minari_root)
    (workspace.root / ".minari_pipe" / "workspace_id").write_text(f"/../{way}")
    (workspace.minari_root / "tests" / "tiny-v0").rename(workspace.home / "aside")
    workspace.pipe("+dataset=tiny")
    assert (target / "thesis.txt").read_text() == "precious"


def test_a_file_among_the_pipelines_own_outputs_is_refused_before_it_is_removed(workspace):
    file = workspace.root / "pipelines" / "tiny" / "dataset" / "mine.zip"
    file.write_bytes(b"precious")
    choice = ("policy=sb3", "policy.algorithm=ppo")
    path = file.relative_to(workspace.root)
    told = workspace.refused("+dataset=tiny", *choice, f"policy.checkpoint.path={path}")
    assert f"is in {file.parent.parent}, which this pipeline overwrites" in told
    assert file.read_bytes() == b"precious"


FILES_IN = {
    "policy": {"checkpoint": {"path": "FILE"}},
    "ref_scores": {"expert": {"normalize": {"path": "FILE"}}},
    "env": {"id": "Ant-v5", "kwargs": {"xml_file": "FILE"}, "wrappers": [{"file": ["FILE"]}]},
}


def config_of(given: dict[str, Any]) -> schema.Config:
    """A config with what is given of its environment and its policies."""
    scores = given.get("ref_scores", {})
    expert, evaluation = scores.get("expert"), scores.get("eval_env", {})
    return schema.Config(
        env=read(schema.Environment, {"id": "X-v0", **given.get("env", {})}),
        policy=schema.PolicySettings("x", given.get("policy", {})),
        ref_scores=schema.ReferenceScores(
            expert=expert and schema.PolicySettings("x", expert),
            eval_env=read(schema.EvaluationEnvironment, evaluation),
        ),
    )


PATHS_OUT = (
    *("../mine/tiny/thesis.txt", "{elsewhere}/tiny/thesis.txt", "x://../../mine/tiny/thesis.txt"),
    *("link/../tiny/thesis.txt", "/proc/self/cwd/link/../tiny/thesis.txt"),
    "within/../../mine/tiny/thesis.txt",  # of which the link is left out where it is read
    # which the system does not find, but who reduces paths does
    *("{elsewhere}/tiny/thesis.txt/", "{elsewhere}/tiny/thesis.txt/."),
    # which an environment may complete, or make
    *("{elsewhere}/tiny/thesis", "{elsewhere}/new/folder"),
    "/" + "./" * 2100 + "{elsewhere}/tiny/thesis.txt",
)


@pytest.mark.parametrize("path", PATHS_OUT, ids=lambda path: path[-40:])
@pytest.mark.parametrize("section", FILES_IN)
def test_a_file_elsewhere_is_read_only_if_the_user_names_it(
    section, path, tmp_path, elsewhere, monkeypatch
):
    root = make_workspace(tmp_path / "work")
    monkeypatch.chdir(root)
    (root / "x:").mkdir()
    (elsewhere / "deep").mkdir()
    (root / "link").symlink_to(elsewhere / "deep")
    (root / "a" / "b" / "c" / "d").mkdir(parents=True)
    (root / "within").symlink_to("a/b/c/d")
    path = path.format(elsewhere=elsewhere)
    values = json.loads(json.dumps(FILES_IN[section]).replace("FILE", path))
    config = config_of({section: values})
    with pytest.raises(TrustError, match=rf"^{section}\..* is '{path}', which is a file elsewhere"):
        check_files(config, root, [])
    assert check_files(config, root, list(texts(section, values)))
    if "link" not in path and "x:" not in path:
        monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", str(elsewhere))
        assert check_files(config, root, []) == []


@pytest.mark.parametrize(
    "text",
    ["models/thesis", "out/new", "out/new/folder", "thesis", "the", "--log=out/new", "a.xml,out/b"],
)
def test_a_name_that_an_environment_may_complete_or_make_leads_over_no_link(
    text, tmp_path, elsewhere
):
    root = make_workspace(tmp_path / "work")
    (root / "models").mkdir()
    for place in ("models/thesis.txt", "thesis.txt"):
        (root / place).symlink_to(elsewhere / "tiny" / "thesis.txt")
    (root / "out").symlink_to(elsewhere)
    config = config_of({"env": {"kwargs": {"level": text}}})
    with pytest.raises(LinkError, match="is a symlink to"):
        check_files(config, root, [])
    others = {"render_mode": "human", "topic": "/top/ic", "map": "4x4", "new": "results/new"}
    assert check_files(config_of({"env": {"kwargs": others}}), root, []) == []


@pytest.mark.parametrize("text", ["$HOME/thesis.txt", "a.xml,{mine}/thesis.txt"])
def test_a_file_of_the_workspace_hides_no_path_in_its_name(text, tmp_path, monkeypatch):
    root = make_workspace(tmp_path / "work")
    mine = tmp_path / "mine"
    monkeypatch.setenv("HOME", str(mine))
    text = text.format(mine=mine)
    for file in (mine / "thesis.txt", root / text):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious")
    config = config_of({"env": {"kwargs": {"level": text}}})
    with pytest.raises(TrustError, match="which is a file elsewhere"):
        check_files(config, root, [])


def test_a_file_that_was_typed_for_one_key_is_read_for_no_other(tmp_path, elsewhere):
    """A checkpoint is published; an argument of the user's own controller is not."""
    root = make_workspace(tmp_path / "work")
    path = str(elsewhere / "tiny" / "thesis.txt")
    typed = literal_texts([f"policy.controller.teacher={path}"], "policy")
    own = {"controller": {"teacher": path}}
    assert check_files(config_of({"policy": own}), root, typed) == [path]
    # An expert is often the policy itself: `expert: ${policy}`.
    both = config_of({"policy": own, "ref_scores": {"expert": own}})
    assert check_files(both, root, typed) == [path]
    taken = config_of({"policy": own, "ref_scores": {"expert": {"checkpoint": {"path": path}}}})
    with pytest.raises(TrustError, match=r"ref_scores\.expert\.checkpoint\.path is .* elsewhere"):
        check_files(taken, root, typed)


def test_a_file_beside_the_workspace_is_read_through_no_link_of_its_repository(tmp_path, elsewhere):
    root = make_workspace(tmp_path / "clone" / "work")
    (tmp_path / "clone" / "best.zip").symlink_to(elsewhere / "tiny" / "thesis.txt")
    assert git(root.parent, "init", "--quiet").returncode == 0
    assert git(root.parent, "add", "best.zip").returncode == 0
    values = {"checkpoint": {"path": "../best.zip"}}
    with pytest.raises(LinkError, match="best.zip is a symlink to"):
        check_files(config_of({"policy": values}), root, list(texts("policy", values)))


def test_a_file_that_was_typed_for_a_mixture_is_not_read_for_its_parents(
    workspace, elsewhere, monkeypatch
):
    monkeypatch.chdir(workspace.root)
    path = str(elsewhere / "tiny" / "thesis.txt")
    config = config_of({"policy": {"checkpoint": {"path": path}}})
    with (
        naming(NAMED_FILES_VARIABLE, [path]),
        pytest.raises(TrustError, match="a file elsewhere that you did not name"),
    ):
        driver.run_pipeline("tiny", config, [], is_parent=True, dry_run=DryRun())


def test_dvc_repro_reads_a_file_elsewhere_only_if_it_was_typed_here(workspace, elsewhere):
    """A config and ``params.yaml`` may come with a commit of somebody else."""
    sync = ("python", "-m", "minari_pipe.pipeline.run.sync")
    trusted = {"MINARI_PIPE_TRUSTED_MODULES": "own"}
    path = elsewhere / "tiny" / "thesis.txt"
    (workspace.root / "own.py").write_text("def act(observation, table):\n    return 0\n")
    (workspace.root / "here.txt").touch()
    workspace.replace("conf/dataset/tiny.yaml", "/policy: random", "/policy: scripted")
    conf = workspace.root / "conf" / "dataset" / "tiny.yaml"
    config = conf.read_text() + "policy: {controller: {_target_: own.act, table: here.txt}}\n"
    conf.write_text(config.replace("here.txt", str(path)))
    fault = f"tiny: policy.controller.table is '{path}', which is a file elsewhere"
    done = workspace.call(*sync, **trusted)
    assert (done.returncode, fault in done.stdout) == (1, True), done.stdout

    conf.write_text(config)
    workspace.pipe("+dataset=tiny", f"policy.controller.table={path}", **trusted)
    assert f"policy.controller.table={path}" in workspace.run(*sync, **trusted)

    params = workspace.root / "pipelines" / "tiny" / "params.yaml"
    pulled = params.read_text()
    params.unlink()
    params.write_text(pulled)
    done = workspace.call(*sync, **trusted)
    assert (done.returncode, fault in done.stdout) == (1, True), done.stdout

    # Of two overrides the last counts, but a later commit could make use of the first.
    word = f"- policy.controller.table={path}\n"
    params.write_text(pulled.replace(word, f"{word}- policy.controller.table=here.txt\n"))
    workspace.call(*sync, **trusted)  # the first time, the stages are new
    workspace.run(*sync, **trusted)
    expert = f"ref_scores: {{expert: {{controller: {{_target_: own.act, table: {path}}}}}}}\n"
    config = config.replace("ref_scores: {n_episodes: 4, ref_max_score: 500.0}\n", expert)
    conf.write_text(
        config.replace("/policy@ref_scores.expert: random", "/policy@ref_scores.expert: scripted")
    )
    done = workspace.call(*sync, **trusted)
    fault = f"tiny: ref_scores.expert.controller.table is '{path}', which is a file elsewhere"
    assert (done.returncode, fault in done.stdout) == (1, True), done.stdout


def test_the_name_of_a_pipeline_is_no_path_before_it_is_checked(workspace):
    workspace.replace("conf/dataset/tiny.yaml", "collect:", "pipeline: ../work/x\ncollect:")
    mix = "defaults: [{/policy: mixture}, _self_]\npolicy: {parents: {tiny: 1.0}}\n"
    text = "dataset: {id: tests/mix-v0, description: a}\nauthor: {name: A}\npipeline: mix\n"
    workspace.write_config("mix", f"# @package _global_\n{mix}{text}")
    told = workspace.call("python", "-m", "minari_pipe.pipeline.run.sync").stdout
    for name in ("tiny", "mix"):
        assert f"error: {name}: pipeline name '../work/x' is not valid" in told
    assert not (workspace.root / "pipelines" / "mix").exists()
    mixture = schema.PolicySettings(schema.MIXTURE, {"parents": [], "scores": "../work/x"})
    with pytest.raises(ConfigError, match="name '../work/x' is not valid"):
        replace(config_of({}), policy=mixture).scores_pipeline("mix")


SUBDIR = "hydra.output_subdir=.hydra"
#: Links of a clone, and what a user types.
HYDRA_WRITES = {
    "a sweep": ("runs/multirun.yaml", ("-m", "hydra.sweep.dir=runs")),
    "a job of a sweep": (
        "runs/0/.hydra",
        ("-m", "hydra.sweep.dir=runs", "hydra.sweep.subdir='${hydra.job.num}'", SUBDIR),
    ),
    "a run": ("out/.hydra/config.yaml", ("hydra.run.dir=out", SUBDIR)),
    "the folder": ("out/.hydra", ("hydra.run.dir=out", SUBDIR)),
    "at the top": (".hydra/hydra.yaml", ("hydra.run.dir=.", SUBDIR)),
    "a later job of a sweep": (
        "run_1",
        ("-m", "hydra.sweep.dir=.", "hydra.sweep.subdir='run_${hydra.job.num}'", SUBDIR),
    ),
    "on the way": ("out", ("hydra.run.dir=out/today", SUBDIR)),
    "a moment later": ("out/2099", ("hydra.run.dir='out/${now:%Y}'", SUBDIR)),
    "a log": ("out/hydra_compose.log", ("hydra.run.dir=out", "hydra/job_logging=default")),
    "a log by name": (
        "hydra.log",
        ("hydra/job_logging=default", "hydra.job_logging.handlers.file.filename=hydra.log"),
    ),
}


@pytest.mark.parametrize(("link", "typed"), HYDRA_WRITES.values(), ids=HYDRA_WRITES)
def test_hydra_writes_through_no_link_in_a_folder_that_the_user_names(
    link, typed, workspace, elsewhere
):
    before = hashes(elsewhere)
    place = workspace.root / link
    place.parent.mkdir(parents=True, exist_ok=True)
    ends_in_file = place.suffix in (".yaml", ".log")
    place.symlink_to(elsewhere / "tiny" / "thesis.txt" if ends_in_file else elsewhere)
    told = workspace.refused("+dataset=tiny", *typed)
    assert f"{place} is a symlink to" in told
    assert hashes(elsewhere) == before


def test_hydra_writes_to_no_folder_that_a_config_chooses(workspace, elsewhere):
    words = ("+dataset=tiny", f"dataset.license={elsewhere}/made")
    taken = ("hydra.run.dir='${dataset.license}'", SUBDIR)
    again = ("hydra.run.dir='out/${hydra:job.override_dirname}'", "dataset.citation='${env.id}'")
    missing = ("hydra.run.dir='${oc.select:dataset.license,out}'", SUBDIR)
    inner = ("hydra.run.dir='out/${hydra.job.${dataset.license}}'", SUBDIR)
    typed_twice = ("hydra.run.dir='out/${hydra:overrides.task.1}'", SUBDIR)
    for typed in (taken, again, missing, inner, typed_twice):
        assert "make Hydra write anywhere" in workspace.refused(*words, *typed)
    assert not (elsewhere / "made").exists()


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ("../../mine/made", "cannot be resolved"),
        (r"'\${oc.select:dataset.license,x}'", "make Hydra write anywhere"),
        (r"'\${hydra.job.name}/../../mine/made'", "cannot be resolved"),
    ],
)
def test_hydra_writes_to_no_folder_that_a_choice_names(choice, why, workspace, elsewhere):
    """A choice that is optional need not exist."""
    optional = f"defaults: [{{optional /author: {choice}}}, "
    workspace.replace("conf/dataset/tiny.yaml", "defaults: [", optional)
    words = ("+dataset=tiny", f"dataset.license={elsewhere}/made", SUBDIR)
    chosen = "hydra.run.dir='out/${hydra:runtime.choices.author}'"
    assert why in workspace.refused(*words, chosen)
    assert not (elsewhere / "made").exists()


def test_hydra_writes_where_the_user_lets_it(workspace):
    place = "hydra.run.dir='out/${now:%Y}/${hydra.job.name}'"
    workspace.pipe("+dataset=tiny", place, SUBDIR, "hydra/job_logging=default")
    found = {path.name for path in (workspace.root / "out").rglob("*.*") if path.is_file()}
    assert found == {"config.yaml", "hydra.yaml", "overrides.yaml", "hydra_compose.log"}


def test_no_config_is_read_through_a_link_in_a_search_path_of_the_user_s(workspace, elsewhere):
    (workspace.root / "extra" / "author").mkdir(parents=True)
    (elsewhere / "me.yaml").write_text("name: secret\nemail: null\n")
    (workspace.root / "extra" / "author" / "me.yaml").symlink_to(elsewhere / "me.yaml")
    typed = ("+dataset=tiny", "hydra.searchpath=[file://extra]")
    told = workspace.refused(*typed, "+author=me", "--cfg", "job")
    assert "me.yaml is a symlink to" in told
    (workspace.root / "extra" / "author" / "me.yaml").unlink()
    (workspace.root / "extra" / "author" / "me.yaml").write_text("name: mine\nemail: null\n")
    assert "name: mine" in workspace.call(*SCRIPT, *typed, "+author=me", "--cfg", "job").stdout


@pytest.mark.parametrize("address", ["blocks", "simplecache::file://{root}/blocks", "local:blocks"])
def test_a_storage_that_the_user_names_holds_no_link(address, workspace, elsewhere):
    before = hashes(elsewhere)
    (workspace.root / "blocks").mkdir()
    (workspace.root / "blocks" / "tiny").symlink_to(elsewhere)
    storage = f"engine.storage={address.format(root=workspace.root)}"
    typed = ("engine=ray", "engine.n_workers=1", storage, "collect.seed=5")
    assert "blocks/tiny is a symlink to" in workspace.refused("+dataset=tiny", *typed)
    assert hashes(elsewhere) == before


def test_no_cache_and_no_remote_of_the_user_s_is_reached_by_a_link_of_a_repository(
    workspace, elsewhere, tmp_path
):
    """The workspace is a folder of a clone."""
    before = hashes(elsewhere)
    place = tmp_path / "clone" / "store"
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    assert git(tmp_path / "clone", "init", "--quiet").returncode == 0
    assert git(tmp_path / "clone", "add", "--all").returncode == 0
    workspace.dvc("config", "--global", "cache.dir", str(tmp_path / "clone" / "store"))
    assert "is a symlink to" in workspace.refused("+dataset=tiny", "collect.seed=6")
    assert hashes(elsewhere) == before


@pytest.mark.parametrize("end", ["\0x", "\ud800"], ids=["NUL", "surrogate"])
def test_a_text_that_no_path_can_be_is_refused_for_where_it_is_cut_off(end, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.xml").write_text('<mujoco><include file="/a"/></mujoco>')
    for text in ("m.xml", str(tmp_path / "m.xml")):
        with pytest.raises(TrustError, match=r"holds a character that no path can hold"):
            make_environment("InvertedPendulum-v5", {"xml_file": text + end})
        stored = json.loads(gym.spec("InvertedPendulum-v5").to_json())
        stored["kwargs"] = {"xml_file": text + end}
        with pytest.raises(TrustError, match=r"holds a character that no path can hold"):
            recover(json.dumps(stored))


@pytest.mark.parametrize("way", ["/proc/self/cwd", "/proc/self/root{root}", "{link}"])
def test_a_path_from_outside_that_leads_back_into_the_workspace_is_one_elsewhere(
    way, tmp_path, monkeypatch
):
    """Else no check of the files of a workspace would take it for one."""
    root = make_workspace(tmp_path / "work")
    monkeypatch.chdir(root)
    (tmp_path / "link").symlink_to(root)
    (root / "model.xml").write_text("<x/>")
    path = way.format(root=root, link=tmp_path / "link") + "/model.xml"
    config = config_of({"env": {"kwargs": {"xml_file": path}}})
    with pytest.raises(TrustError, match="which is a file elsewhere"):
        check_files(config, root, [])


def test_a_file_of_the_workspace_is_read_and_a_link_to_one_elsewhere_is_not(tmp_path, elsewhere):
    root = make_workspace(tmp_path / "work")
    (root / "model.xml").write_text("")
    given = {"env": {"kwargs": {"xml_file": "model.xml", "render_mode": "human"}}}
    given |= {"policy": {"checkpoint": {"path": str(root / "model.xml")}}}
    assert check_files(config_of(given), root, []) == []
    for name in ("model.xml", "model"):
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(elsewhere / "tiny" / "thesis.txt")
        given["env"]["kwargs"]["xml_file"] = name
        with pytest.raises(LinkError, match=f"{name} is a symlink"):
            check_files(config_of(given), root, [])


def test_a_model_that_is_named_by_a_path_of_this_machine_is_refused_before_any_work(tmp_path):
    root = make_workspace(tmp_path / "work")
    (root / "model.xml").write_text("")
    config = config_of({"env": {"kwargs": {"xml_file": str(root / "model.xml")}}})
    with pytest.raises(
        ConfigError, match=r"env.kwargs.xml_file is .*, an absolute path, .* \./model.xml"
    ):
        check_files(config, root, [])
    with pytest.raises(ConfigError, match=r"env.kwargs.folder is .*, an absolute path, which"):
        check_files(config_of({"env": {"kwargs": {"folder": str(root)}}}), root, [])


#: Characters of a model that is longer than any part of a file that is read at once.
LONG = 1 << (24 if FULL else 21)

#: Models that name a file of the user's.
MODELS_OUT = (
    '<mujoco><include file="{mine}"/></mujoco>',
    '<mujoco><include file\n=\n"{mine}" name="/"/></mujoco>',
    "any text, then <mujoco><include file='{mine}'/></mujoco>",
    "<mujoco><x a=\"<y b='\"/><include file='{mine}'/></mujoco>",
    '<mujoco><include file="{mine}&#0;.xml"/></mujoco>',
    '<mujoco><include file="&#x002f;{mine_relative_to_top}"/></mujoco>',
    '<mujoco><include file="../../../mine/tiny/thesis.txt"/></mujoco>',
    '<mujoco><include file="..\\..\\..\\mine\\tiny\\thesis.txt"/></mujoco>',
    '<mujoco><include file="a/../../../../mine/tiny/thesis.txt"/></mujoco>',
    '<mujoco><compiler meshdir="/"/><mesh file="{mine_relative_to_top}"/></mujoco>',
    '<mujoco><compiler meshdir=".."/><mesh file="../../mine/tiny/thesis.txt"/></mujoco>',
    '<mujoco><compiler meshdir="gone/../../.."/><mesh file="../mine/tiny/thesis.txt"/></mujoco>',
    '<mujoco><mesh file="C:/secret.stl"/></mujoco>',
    '<mujoco><include file="x/..//{mine_relative_to_top}"/></mujoco>',
    '<mujoco><include file="a//../parts/deep.xml"/></mujoco>',
    '<!DOCTYPE m [<!ENTITY a "/home">]><mujoco><include file="&a;/b.xml"/></mujoco>',
    '<!DOCTYPE m [<!ATTLIST include file CDATA "/b.xml">]><mujoco><include/></mujoco>',
    '<?xml version="1.0" encoding="cp037"?><mujoco></mujoco>',
    '<mujoco><compiler strippath="true"/><mesh file="gone/link.stl"/></mujoco>',
    '<robot><mesh filename="package:///secret.stl"/></robot>',
    '<robot><mesh filename="package://arm/../../secret.stl"/></robot>',
    '<mujoco><include file="parts/within.xml"/></mujoco>',
    '<mujoco><model file="parts/deep.xml"/></mujoco>',
)


#: Models that simulators would open files for, in the workspace or elsewhere.
MODELS_WITH_FILES = (
    '<mujoco><model file="parts/deep.xml"/></mujoco>',
    '<mujoco><asset><texture fileright = "right.png"/></asset></mujoco>',
    '<robot><mesh filename="package://arm/a.stl"/></robot>',
    '<robot xmlns:a="b"><a:mesh a:filename="a.stl"/></robot>',
    "<sdf><mesh><uri>model://arm/a.stl</uri></mesh></sdf>",
    '<?xml version="1.0" encoding="utf-16"?><x a="b"/>',
    " " * LONG + '<x><include file="a.xml"/></x>',
    "<!--" + "x" * LONG + '--><x><include file="a.xml"/></x>',
    '1\0<x><include file="a.xml"/></x>',
)


@pytest.mark.parametrize("model", MODELS_OUT + MODELS_WITH_FILES)
def test_a_model_that_names_files_is_not_read_because_a_config_says_so(model, tmp_path, elsewhere):
    root = make_workspace(tmp_path / "work")
    mine = elsewhere / "tiny" / "thesis.txt"
    text = model.format(mine=mine, mine_relative_to_top=str(mine).lstrip("/"))
    (root / "models").mkdir()
    (root / "models" / "arm.xml").write_text(text)
    kwargs = {"kwargs": {"xml_file": "./models/arm.xml"}}
    wrappers = {"wrappers": [{"_target_": "x.Y", "file": "./models/arm.xml"}]}
    told = r"file names .*arm\.xml, a model that .*; a simulator reads what .*; if you trust it"
    for given in ({"env": kwargs}, {"env": wrappers}, {"ref_scores": {"eval_env": kwargs}}):
        with pytest.raises(TrustError, match=told):
            check_files(config_of(given), root, [])
    with pytest.raises(
        TrustError, match=r"(?s)env\.kwargs\.xml (is a model that|is .*elsewhere|holds a char)"
    ):
        check_files(config_of({"env": {"kwargs": {"xml": text}}}), root, [])
    for mark, encoding in (("\ufeff", "utf-16-le"), ("\n\n", "utf-16-be"), ("", "utf-32-le")):
        (root / "models" / "arm.xml").write_bytes((mark + text).encode(encoding))
        with pytest.raises(TrustError, match=told):
            check_files(config_of({"env": kwargs}), root, [])


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b""), (b"<mujoco/>", b""), (b"", b"c" * 69_500)]
)
def test_a_model_in_an_archive_is_not_read_because_a_config_says_so(before, after, tmp_path):
    """MuJoCo opens them."""
    root = make_workspace(tmp_path / "work")
    (root / "arm.mjz").write_bytes(before)
    with zipfile.ZipFile(root / "arm.mjz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arm.xml", '<mujoco><include file="/a"/></mujoco>')
    with (root / "arm.mjz").open("ab") as file:
        file.write(after)
    config = config_of({"env": {"kwargs": {"xml_file": "./arm.mjz"}}})
    with pytest.raises(TrustError, match=r"arm\.mjz, a model that .*: it is a zip archive"):
        check_files(config, root, [])
    typed = [("env.kwargs.xml_file", "./arm.mjz")]
    assert check_files(config, root, typed) == [str(root / "arm.mjz")]


def test_no_environment_is_made_of_a_model_that_names_files(tmp_path, monkeypatch):
    """As a stage makes it, whatever was checked before, or restored since."""
    (tmp_path / "arm.xml").write_text('<mujoco><include file="part.xml"/></mujoco>')
    monkeypatch.chdir(tmp_path)
    for kwargs, wrappers in (
        ({"xml_file": "./arm.xml"}, []),
        ({}, [{"_target_": "gymnasium.wrappers.TimeLimit", "max_episode_steps": "arm.xml"}]),
    ):
        with pytest.raises(TrustError, match="a model that names other files"):
            make_environment("InvertedPendulum-v5", kwargs, wrappers)
    made = {"_target_": "gymnasium.wrappers.TimeAwareObservation", "dict_time_key": "arm"}
    assert make_environment("InvertedPendulum-v5", {}, [made | {"flatten": True}])


PATHS_OF_SIMULATORS = {
    "'//'": (".//{outside}", "{outside}"),  # which MuJoCo opens
    "a backslash": ("./x\\..\\..\\evil.xml", "../evil.xml"),
    "'..'": ("./link/../m.xml", "deep/m.xml"),
    "a leading '~'": ("~/m.xml", "~/m.xml"),
    "more than 1024 characters": ("./" + "a" * 100 + ("/" + "a" * 100) * 11, "a.xml"),
}


@pytest.mark.parametrize("what", PATHS_OF_SIMULATORS)
def test_a_path_that_a_simulator_may_take_for_another_one_is_refused(what, tmp_path, monkeypatch):
    root = make_workspace(tmp_path / "work")
    monkeypatch.chdir(root)
    (root / "deep" / "sub").mkdir(parents=True)
    (root / "link").symlink_to("deep/sub")
    given, opened = (
        text.format(outside=tmp_path / "evil.xml") for text in PATHS_OF_SIMULATORS[what]
    )
    evil = Path(os.path.join(root, opened))
    evil.parent.mkdir(exist_ok=True)
    evil.write_text('<mujoco><include file="/a"/></mujoco>')
    with pytest.raises(TrustError, match=f"a path with {what}, by which|a file elsewhere"):
        check_files(config_of({"env": {"kwargs": {"xml_file": given}}}), root, [])
    with pytest.raises(TrustError, match=f"a path with {what}, by which|a file elsewhere"):
        make_environment("InvertedPendulum-v5", {"xml_file": given})
    spec = json.loads(gym.spec("InvertedPendulum-v5").to_json()) | {"kwargs": {"xml_file": given}}
    with pytest.raises(TrustError, match=f"a path with {what}, by which|a file elsewhere"):
        recover(json.dumps(spec))


def test_the_trust_in_a_module_is_none_in_environments_of_others(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").touch()
    (tmp_path / "arm.xml").write_text('<mujoco><include file="part.xml"/></mujoco>')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "my_rules")
    with pytest.raises(TrustError, match="a model that names other files"):
        make_environment("my_rules:InvertedPendulum-v5", {"xml_file": "./arm.xml"})


@pytest.mark.parametrize("trusted", ["work", "work/arm.xml", "typed", "module"])
def test_a_model_that_the_user_trusts_names_what_it_likes(trusted, tmp_path, monkeypatch):
    root = make_workspace(tmp_path / "work")
    (root / "arm.xml").write_text('<x><mesh file="../mine/tiny/thesis.txt"/></x>')
    env = {"id": "my_arms:Arm-v0", "kwargs": {"xml_file": "./arm.xml"}}
    given = [("env.kwargs.xml_file", "./arm.xml")] if trusted == "typed" else []
    if trusted == "module":  # whose code could read any file
        monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "my_arms")
    elif not given:
        monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", str(tmp_path / trusted))
    found = check_files(config_of({"env": env}), root, given)
    assert found == ([str(root / "arm.xml")] if given else [])


@pytest.mark.parametrize(
    "text",
    [
        '<mujoco model="arm"><!-- ... class="a"/--><geom pos="0 0 .5" /></mujoco>',
        '<x name="arm/"><joint joint="arm/hand"/><motor joint="robot0:slide0"/></x>',
        '<?xml version="1.0" encoding="UTF-8"?><!-- see http://a.org/b & more --><x a="b" />',
        '<x><compiler meshdir="../meshes" texturedir="/images" strippath="true"/></x>',
        "a < b\nfile = '/usr/share'\n",
        "<x/>" + " " * LONG,
    ],
    ids=["named", "joints", "comment", "folders", "text", "size"],
)
def test_a_model_that_names_no_file_is_read(text, tmp_path):
    root = make_workspace(tmp_path / "work")
    (root / "models").mkdir()
    (root / "models" / "arm.xml").write_text(text)
    config = config_of({"env": {"kwargs": {"xml_file": "./models/arm.xml"}}})
    assert check_files(config, root, []) == []


@pytest.mark.parametrize(
    "repeated", ["file", "a:file.", "<a:", "< ", "file ", 'file="', "encoding "]
)
def test_a_model_takes_no_time_to_be_checked(repeated, tmp_path):
    root = make_workspace(tmp_path / "work")
    (root / "arm.xml").write_text("<x/>" + repeated * 100_000)
    began = time.process_time()
    with suppress(TrustError):
        check_files(config_of({"env": {"kwargs": {"xml_file": "./arm.xml"}}}), root, [])
    referenced_files(root / "arm.xml", root)
    assert time.process_time() - began < 3


def test_the_files_of_a_model_are_found_however_a_simulator_joins_folders_and_names(tmp_path):
    model = tmp_path / "models" / "arm.xml"
    files = {
        "models/arm.xml": '<x><c meshdir="m"/><include file="d/in.xml"/><uri>s.stl</uri></x>',
        "models/d/in.xml": '<x><include file="e/deep.xml"/><mesh file="part.stl"/>'
        '<include file="escaped&#49;.xml"/><include file="/home/ada/arm/flat.xml"/></x>',
        "models/models/d/e/deep.xml": '<x><hfield file="hills.png"/></x>',
        "models/d/escaped1.xml": '<x><mesh file="R&amp;D.stl"/><mesh file="A&B.stl"/></x>',
        "models/flat.xml": r'<x><mesh file="/gone/a.stl"/><mesh file="C:\gone\b.stl"/></x>',
        **dict.fromkeys(("models/m/models/d/part.stl", "models/d/hills.png", "s.stl"), "any"),
        **dict.fromkeys(("models/m/R&D.stl", "A&B.stl", "models/a.stl", "models/d/b.stl"), "any"),
    }
    for name, text in (files | {"models/other.stl": "", "models/m/other.stl": ""}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {str(file.relative_to(tmp_path)) for file in referenced_files(model, tmp_path)}
    assert found == {*files} - {"models/arm.xml"}


@pytest.mark.parametrize("name", ["link.stl", "folder/thesis.txt", "meshes/link.stl"])
def test_a_file_behind_a_link_is_read_for_no_model(name, tmp_path, elsewhere):
    root = make_workspace(tmp_path / "work")
    (root / "meshes").mkdir()
    (root / "folder").symlink_to(elsewhere / "tiny")
    for link in ("link.stl", "meshes/link.stl"):
        (root / link).symlink_to(elsewhere / "tiny" / "thesis.txt")
    folder, _, file = name.rpartition("/")
    (root / "arm.xml").write_text(f'<x><mesh meshdir="{folder}"/><include file="part.xml"/></x>')
    (root / "part.xml").write_text(f'<x><mesh file="{file}"/></x>')
    with pytest.raises(LinkError, match="is a symlink"):
        referenced_files(root / "arm.xml", root)


def test_a_model_that_leads_to_a_pipe_or_to_countless_places_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "arm.xml").write_text('<x><include file="pipe"/></x>')
    with pytest.raises(TrustError, match="pipe is not a regular file"):
        referenced_files(tmp_path / "arm.xml", tmp_path)
    for number in range(400):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "more.xml").write_text(f'<x file="{number + 1}/more.xml"/>')
    (tmp_path / "arm.xml").write_text('<x file="0/more.xml"/>')
    began = time.monotonic()
    with pytest.raises(ConfigError, match="lead to too many files and folders"):
        referenced_files(tmp_path / "arm.xml", tmp_path)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("value", ["!!binary aGVs", "!!python/object/apply:pathlib.PosixPath [x]"])
def test_a_value_that_is_neither_number_nor_text_is_refused(value, workspace):
    odd = f"id: A-v0, kwargs: {{xml_file: {value}}}"
    text = tiny("tests/tiny-v0")
    assert "id: CartPole-v1" in text
    workspace.write_config("tiny", text.replace("id: CartPole-v1", odd))
    assert "env.kwargs.xml_file is a" in workspace.refused("+dataset=tiny")


MODEL = """\
# @package _global_
defaults: [{/policy: random}, _self_]
dataset: {id: tests/model-v0, description: d}
author: {name: Ada}
env: {id: InvertedPendulum-v5, kwargs: {xml_file: ./model.xml}}
collect: {n_episodes: 2, n_envs: 1}
ref_scores: {ref_min_score: 0.0, ref_max_score: 1.0}
"""


def model_of_gymnasium() -> str:
    import gymnasium.envs.mujoco

    assets = Path(gymnasium.envs.mujoco.__file__).parent / "assets"
    return (assets / "inverted_pendulum.xml").read_text()


@pytest.mark.parametrize("edited", ["parts/option.xml", "model.xml"][: 2 if FULL else 1])
def test_an_edit_of_a_model_that_the_environment_is_told_to_read_runs_its_stages_again(
    edited, workspace
):
    (workspace.root / "parts").mkdir()
    (workspace.root / "parts" / "option.xml").write_text(
        '<x><option wind="9 0 0" density="0"/></x>'
    )
    text = model_of_gymnasium().replace("</worldbody>", '</worldbody><include file="PART"/>', 1)
    (workspace.root / "model.xml").write_text(text.replace("PART", "parts/option.xml"))
    workspace.write_config("model", MODEL)
    run = ("+dataset=model", "env.kwargs.xml_file=./model.xml")  # named by the user
    assert "collect" in workspace.pipe(*run)
    assert workspace.pipe(*run) == []
    model = workspace.root / edited
    changed = model.read_text().replace('gravity="0 0 -9.81"', 'gravity="0 0 -3"')
    model.write_text(changed.replace('density="0"', 'density="9"'))
    assert workspace.pipe(*run)[:2] == ["collect", "create"]


def test_a_model_that_names_files_is_refused_before_any_work(workspace, elsewhere):
    mine = elsewhere / "tiny" / "thesis.txt"
    text = model_of_gymnasium().replace("</mujoco>", f'<include file="{mine}"/></mujoco>')
    (workspace.root / "model.xml").write_text(text)
    workspace.write_config("model", MODEL)
    for flags in ([], ["--dry-run"]):
        told = workspace.refused("+dataset=model", *flags)
        assert "model.xml, a model that names other files; a simulator reads what" in told
    (workspace.root / "model.xml").write_text(text.replace(str(mine), "pipelines/model/own.xml"))
    run = ("+dataset=model", "env.kwargs.xml_file=./model.xml")
    assert "which this pipeline overwrites" in workspace.refused(*run)


def test_a_folder_that_a_config_names_opens_no_model_in_it_to_the_metadata(workspace):
    """The data may come from a stranger's cache, without any stage that made them."""
    (workspace.root / "models").mkdir()
    (workspace.root / "models" / "evil.xml").write_text(model_of_gymnasium())
    named = (
        "wrappers: [{_target_: gymnasium.wrappers.TimeAwareObservation, dict_time_key: ./models}]"
    )
    config = MODEL.replace("kwargs: {xml_file: ./model.xml}", named)
    workspace.write_config("model", config)
    assert "validate" in workspace.pipe("+dataset=model")
    file = workspace.root / "pipelines" / "model" / "eval_env.json"
    spec = json.loads(file.read_text()) | {"kwargs": {"xml_file": "./models/evil.xml"}}
    file.unlink()
    file.write_text(json.dumps(spec))
    done = workspace.call(sys.executable, "-m", "minari_pipe.pipeline.stages.validate", "model")
    assert done.returncode == 1
    assert "kwargs.xml_file is './models/evil.xml', which is a file elsewhere" in done.stdout


def test_the_name_of_a_family_is_checked_before_its_folder_is_looked_into(workspace, tmp_path):
    for name in ("a", "b"):
        config = tiny(f"tests/{name}-v0") + "family: {name: ../../../elsewhere}\n"
        config = config.replace("[{/policy: random}", "[{/family: near}, {/policy: random}", 1)
        workspace.write_config(name, config)
    (workspace.root / "conf" / "family").mkdir()
    (workspace.root / "conf" / "family" / "near.yaml").write_text("# @package _global_\n{}\n")
    (workspace.home / "elsewhere").mkdir()
    (workspace.home / "elsewhere" / "params.yaml").write_text(
        "packages: {}\noverrides: [policy.secret=1]\n"
    )
    text = tiny("tests/mix-v0").replace("/policy: random", "/policy: mixture", 1)
    workspace.write_config("mix", f"{text}policy: {{parents: {{a: 0.5, b: 0.5}}}}\n")
    told = workspace.refused("+dataset=mix", "--dry-run")
    assert "secret" not in told
    assert "../../../elsewhere" in told


def test_a_checkpoint_elsewhere_is_named_on_the_command_line(workspace):
    (workspace.home / "mine.zip").write_bytes(b"precious")
    text = tiny("tests/tiny-v0").replace("/policy: random", "/policy: sb3", 1)
    checkpoint = f"policy: {{algorithm: ppo, checkpoint: {{path: {workspace.home}/mine.zip}}}}"
    workspace.write_config("tiny", f"{text}{checkpoint}\n")
    assert "mine.zip', which is a file elsewhere" in workspace.refused("+dataset=tiny")
    told = workspace.refused("+dataset=tiny", "policy.checkpoint.path=~/mine.zip")
    assert "elsewhere" not in told
    assert "~/mine.zip" in told
