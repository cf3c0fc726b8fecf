"""Nothing runs because a file said so; trust is the user's alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from minari_pipe.core.trust import (
    NAMED_ADDRESSES_VARIABLE,
    NAMED_FILES_VARIABLE,
    check_address,
    check_file,
    importing,
    is_trusted_address,
    is_trusted_module,
    is_trusted_sha256,
    naming,
    resolve,
    trusted_modules,
    user_config_dir,
)
from minari_pipe.errors import ConfigError, TrustError
from minari_pipe.policies import CONTROLLERS, registered_policies

POLICIES = registered_policies()


def own_module(tmp_path, monkeypatch, source: str, name: str = "own_policies") -> None:
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_registered_name_resolves_to_its_class():
    found = resolve("minari_pipe.policies.RandomPolicy", POLICIES, what="policy._target_")
    assert found.__name__ == "RandomPolicy"


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "shutil.rmtree",
        "pathlib.Path.unlink",
        "webbrowser.open",
        "torch.load",
        "numpy.load",
        "stable_baselines3.common.save_util.pathlib.Path.unlink",
        "stable_baselines3.PPO.load",
        "minari_pipe.core.files.fetch.requests.get",
        "minari_pipe.policies.random.RandomPolicy",
        "gymnasium.make",
    ],
)
def test_any_other_name_is_refused_without_an_import(target, monkeypatch):
    def no_import(name, *args):
        raise AssertionError(f"imported {name}")

    monkeypatch.setattr("importlib.import_module", no_import)
    with pytest.raises(TrustError, match="--trust-module"):
        resolve(target, POLICIES, what="policy._target_")


@pytest.mark.parametrize(
    "target", ["", "os", "os..system", "a b.c", "x.y;z", "../x.y", ".os.system"]
)
def test_what_is_not_a_dotted_name_is_refused(target):
    with pytest.raises(ConfigError):
        resolve(target, POLICIES, what="policy._target_")


def test_an_untrusted_module_of_the_user_is_not_imported(tmp_path, monkeypatch):
    own_module(tmp_path, monkeypatch, "raise SystemExit('imported')")
    with pytest.raises(TrustError, match="own_policies"):
        resolve("own_policies.Policy", POLICIES, what="policy._target_")
    assert "own_policies" not in sys.modules


@pytest.mark.parametrize("how", ["variable", "file"])
def test_a_module_the_user_trusts_is_used(how, tmp_path, monkeypatch):
    own_module(tmp_path, monkeypatch, "class Policy: pass")
    if how == "variable":
        monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "another, own_policies")
    else:
        user_config_dir().mkdir(parents=True)
        (user_config_dir() / "trusted_modules").write_text("# mine\nown_policies  # here\n")
    assert resolve("own_policies.Policy", POLICIES, what="policy").__name__ == "Policy"
    assert is_trusted_module("own_policies.sub") and not is_trusted_module("own_policies2")


@pytest.mark.parametrize("name", ["Popen", "system", "Renamed"])
def test_what_a_trusted_module_only_passes_on_is_refused(name, tmp_path, monkeypatch):
    imports = "from os import system\nfrom subprocess import Popen\n"
    source = imports + "class Policy: pass\nRenamed = Policy\n"
    own_module(tmp_path, monkeypatch, source)
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "own_policies")
    with pytest.raises(TrustError, match="is really"):
        resolve(f"own_policies.{name}", POLICIES, what="policy._target_")


def test_a_registered_name_that_was_replaced_is_refused(monkeypatch):
    import os

    import minari_pipe.policies.controllers as controllers

    monkeypatch.setattr(controllers, "PointMazeWaypoints", os.system)
    with pytest.raises(TrustError, match="is really"):
        resolve("minari_pipe.policies.controllers.PointMazeWaypoints", CONTROLLERS, what="x")


def test_a_missing_module_or_name_is_one_clear_line(tmp_path, monkeypatch):
    own_module(tmp_path, monkeypatch, "class Policy: pass")
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "own_policies,nowhere")
    with pytest.raises(ConfigError, match="has no 'Policie'"):
        resolve("own_policies.Policie", POLICIES, what="policy")
    with pytest.raises(ConfigError, match="no module 'nowhere'"):
        resolve("nowhere.Policy", POLICIES, what="policy")


def test_trust_does_not_come_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "trusted_modules").write_text("evil\n")
    (tmp_path / ".config" / "minari_pipe").mkdir(parents=True)
    (tmp_path / ".config" / "minari_pipe" / "trusted_modules").write_text("evil\n")
    monkeypatch.chdir(tmp_path)
    assert trusted_modules() == frozenset()


def test_a_list_of_trusted_names_that_is_no_text_is_refused():
    file = user_config_dir() / "trusted_modules"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xff")
    with pytest.raises(TrustError, match=f"{file} is not UTF-8 text; expected one name per line"):
        trusted_modules()


def test_a_checkpoint_is_trusted_by_its_sha256(monkeypatch):
    assert not is_trusted_sha256("ab" * 32)
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_SHA256", "AB" * 32)
    assert is_trusted_sha256("ab" * 32) and not is_trusted_sha256("ac" * 32)


@pytest.mark.parametrize(
    ("trusted", "address", "expected"),
    [
        ("s3://bucket", "s3://bucket", True),
        ("s3://bucket", "s3://bucket/", True),
        ("s3://bucket/", "s3://bucket/folder", True),
        ("S3://bucket", "s3://bucket/folder", True),
        ("s3://bucket/folder", "s3://bucket/folder/more", True),
        ("s3://bucket", "s3://bucket-of-mallory", False),
        ("s3://bucket/folder", "s3://bucket", False),
        ("s3://bucket/folder", "s3://bucket/folder/../other", False),
        ("s3://bucket/folder", "s3://bucket/folder//more", False),
        ("s3://", "s3://bucket", False),
        ("s3://bucket", "gs://bucket", False),
        ("/data/shared", "file:///data/shared/ours", True),
        ("file:///data/shared/", "/data/shared/ours", True),
        ("/data/shared", "/data/shared-by-mallory", False),
        ("/data/shared", "/data/shared/../other", False),
        ("/", "shared", False),
        (".", "shared", False),
        ("/", "10.0.0.1:6379", False),
        ("10.0.0.1:6379", "10.0.0.1:6379", True),
        ("10.0.0.1", "10.0.0.1:6379", False),
        ("", "", False),
    ],
)
def test_an_address_is_trusted_with_all_that_lies_below(trusted, address, expected, monkeypatch):
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", trusted)
    assert is_trusted_address(address) == expected


def test_a_link_below_a_trusted_folder_is_not_trusted_to_lead_out(tmp_path, monkeypatch):
    (tmp_path / "trusted").mkdir()
    (tmp_path / "trusted" / "link").symlink_to(tmp_path / "other")
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", str(tmp_path / "trusted"))
    assert is_trusted_address(str(tmp_path / "trusted" / "folder"))
    assert not is_trusted_address(str(tmp_path / "trusted" / "link"))


@pytest.mark.parametrize("exactly", [False, True])
def test_a_trusted_path_that_is_a_link_trusts_nothing_that_it_leads_to(
    exactly, tmp_path, monkeypatch
):
    """A clone may hold it, or a later pull put it in the place of what the user trusted."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "root").symlink_to("/")
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", f"{tmp_path}/link,{tmp_path}/root")
    for place in ("link", "real", "root", "link/file", "real/file"):
        assert not is_trusted_address(str(tmp_path / place), exactly=exactly)
    with pytest.raises(TrustError, match=rf"TRUSTED_ADDRESSES={tmp_path}/real, or add the line"):
        check_file("fault", str(tmp_path / "link"))
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", f"{tmp_path}/real")
    for place in ("link", "real"):
        assert is_trusted_address(str(tmp_path / place), exactly=exactly)
        assert is_trusted_address(str(tmp_path / place / "file"), exactly=exactly) != exactly


def test_what_the_command_line_names_is_allowed_exactly_and_to_this_run_alone(tmp_path):
    folder, file = str(tmp_path), str(tmp_path / "file")
    with naming(NAMED_FILES_VARIABLE, [folder]):
        check_file("fault", folder)
        with pytest.raises(TrustError):
            check_file("fault", file)
        with naming(NAMED_FILES_VARIABLE, []), pytest.raises(TrustError):
            check_file("fault", folder)
        assert not is_trusted_address(folder)
        with pytest.raises(TrustError):
            check_address("engine.storage", folder)
    with naming(NAMED_ADDRESSES_VARIABLE, [f"engine.storage={folder}"]):
        check_address("engine.storage", folder)
        for key, refused in (("storage", file), ("storage", "/"), ("address", folder)):
            with pytest.raises(TrustError):
                check_address(f"engine.{key}", refused)
        with pytest.raises(TrustError):
            check_file("fault", folder)
    with pytest.raises(TrustError):
        check_file("fault", folder)


def test_imports_that_overlap_in_threads_leave_the_environment_as_it_was(monkeypatch) -> None:
    for value in (None, "x"):
        if value is not None:
            monkeypatch.setenv("PYTHONSAFEPATH", value)
        one, other = importing(), importing()
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert os.environ["PYTHONSAFEPATH"] == (value or "1")
        other.__exit__(None, None, None)
        assert os.environ.get("PYTHONSAFEPATH") == value


def test_a_relative_folder_of_settings_is_not_the_user_s(tmp_path, monkeypatch):
    """A clone may hold one; the XDG specification says to ignore it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", ".config")
    file = tmp_path / ".config" / "minari_pipe" / "trusted_modules"
    file.parent.mkdir(parents=True)
    file.write_text("envs\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_config_dir() == tmp_path / "home" / ".config" / "minari_pipe"
    assert not is_trusted_module("envs")


@pytest.mark.parametrize(
    "name",
    [
        "models/#1.xml",
        "models/a #1.xml",
        "m,/etc/passwd",
        "m, #x",
        "cheetah$(touch${IFS}PWNED).xml",
        "it's; touch PWNED #",
        " padded ",
        "two\nlines",
    ],
)
def test_advice_trusts_the_file_alone_and_runs_nothing(name, tmp_path, monkeypatch):
    """The name is a stranger's, and a trusted folder includes all that lies below it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", "")
    folder = tmp_path / "clone"
    place = str(folder / name)
    with pytest.raises(TrustError) as refusal:
        check_file("env.kwargs.xml_file leads elsewhere", place)
    advice = str(refusal.value).partition("; ")[2]
    written = re.search(
        r"set (MINARI_PIPE_TRUSTED_ADDRESSES=.*?)(, or add the line|$)", advice, re.S
    )
    line = re.search(r"add the line (.*) to ", advice, re.S)
    assert (
        written or line or advice == "no setting can hold its name; rename it first if you trust it"
    )
    if written:
        shell = f'cd {tmp_path}; export {written[1]}; printf %s "$MINARI_PIPE_TRUSTED_ADDRESSES"'
        done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
        monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", done.stdout)
        check_file("", place)
    if line:
        file = user_config_dir() / "trusted_addresses"
        file.parent.mkdir(parents=True)
        file.write_text(line[1] + "\n")
        monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", done.stdout if written else "")
        check_file("", place)
    trusted = (folder, folder / "models", folder / "models" / "a", folder / "m", "/etc/passwd", "/")
    assert not any(is_trusted_address(str(other)) for other in trusted)
    assert not (tmp_path / "PWNED").exists()


def test_advice_names_an_address_as_the_command_line_takes_it(monkeypatch):
    with pytest.raises(TrustError, match=r"pass engine\.storage=s3://lab/a on the command line, "):
        check_address("engine.storage", "s3://lab/a")
    with pytest.raises(TrustError) as refusal:
        check_address("engine.storage", "s3://lab'$(touch PWNED)',s3://other")
    assert "pass " not in str(refusal.value)
    assert "set " not in str(refusal.value)


def test_a_hash_within_a_name_is_no_comment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = user_config_dir() / "trusted_addresses"
    file.parent.mkdir()
    file.write_text("# mine\n/data/C#/x # a comment\n  # s3://other\n")
    assert is_trusted_address("/data/C#/x/y")
    assert not any(is_trusted_address(other) for other in ("/data/C", "/data/C#", "s3://other"))
