"""No value of the environment is recorded: ``oc.env`` is for places of the user's own alone."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import oc_env
from minari_pipe.pipeline.config.hydra_compose import recompose
from minari_pipe.pipeline.config.oc_env import literal_texts
from tests.support.workspaces import make_workspace, minari_pipe, tiny, write_config

SECRET = "open-sesame-7431"


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.chdir(make_workspace(tmp_path / "work", tiny=tiny("tests/tiny-v0")))
    return tmp_path / "work"


REFUSED = {
    "a value": (["author.name='${oc.env:TOKEN}'"], "author.name"),
    "inside a text": (["dataset.description='by ${oc.env:TOKEN}'"], "dataset.description"),
    "with a default": (["dataset.license='${oc.env:NONE,MIT}'"], "dataset.license"),
    "decoded": (["author.name='${oc.decode:${oc.env:TOKEN}}'"], "author.name"),
    "in a part without a schema": (["+env.kwargs.key='${oc.env:TOKEN}'"], "env.kwargs.key"),
    "in the name": (["pipeline='x${oc.env:TOKEN}'"], "pipeline"),
}


@pytest.mark.parametrize(("overrides", "where"), REFUSED.values(), ids=REFUSED)
def test_a_value_of_the_environment_is_refused_where_it_would_be_recorded(
    overrides, where, workspace
):
    with pytest.raises(ConfigError, match=rf"^{where} uses .*oc.env is only for engine.address"):
        recompose(["+dataset=tiny", *overrides])


def test_a_file_is_refused_too_and_so_is_its_defaults_list(workspace):
    write_config(workspace, "tiny", tiny("tests/tiny-v0").replace("Ada", '"${oc.env:TOKEN}"'))
    with pytest.raises(ConfigError, match=r"^author.name uses \$\{oc.env:TOKEN\}, whose value"):
        recompose(["+dataset=tiny"])
    text = tiny("tests/tiny-v0").replace("/policy: random", '/policy: "${oc.env:TOKEN}"')
    write_config(workspace, "tiny", text)
    with pytest.raises(ConfigError) as raised:
        recompose(["+dataset=tiny"])
    assert SECRET not in str(raised.value)


def test_places_of_the_users_own_are_recorded_as_they_are_written(workspace):
    places = ["publish.targets=['s3://x/${oc.env:TOKEN}']", "engine.address='${oc.env:TOKEN}'"]
    places.append("engine.storage='s3://${oc.env:TOKEN}/x'")
    copied = "dataset.license='${engine.address}'"
    composed = recompose(["+dataset=tiny", *places, copied])
    assert composed.config.engine.storage == "s3://${oc.env:TOKEN}/x"
    assert composed.config.publish.targets == ["s3://x/${oc.env:TOKEN}"]
    assert composed.config.engine.address == "${oc.env:TOKEN}"
    assert composed.config.dataset.license == "${oc.env:TOKEN}"
    assert composed.overrides[1:] == [*places, copied]
    assert literal_texts(composed.overrides, "publish") == {
        ("publish.targets[0]", "s3://x/${oc.env:TOKEN}")
    }
    assert oc_env.resolved("s3://x/${oc.env:TOKEN}") == f"s3://x/{SECRET}"
    assert oc_env.without_values(f"no {SECRET}") == "no ${oc.env:TOKEN}"
    with pytest.raises(ConfigError, match="the environment variable NONE is not set"):
        oc_env.resolved("${oc.env:NONE}")


@pytest.mark.parametrize("value", ["a//b  c/", "CORP\\ada:Passw0rd", "ü/öä", "./x/../secret/y"])
def test_a_value_is_taken_out_however_a_message_writes_it(value, monkeypatch):
    monkeypatch.setenv("ODD", value)
    oc_env.resolved("s3://x/${oc.env:ODD}")
    address = f"/x/{value}"
    plain = " ".join(address.split())
    for text in (address, repr(address), str(Path(address)), os.path.normpath(plain), quote(value)):
        told = oc_env.without_values(text)
        assert "${oc.env:ODD}" in told, text
        assert oc_env.holds_value(text)


def test_a_value_that_no_address_can_hold_is_refused_and_not_told(monkeypatch):
    monkeypatch.setenv("KEY", "-----BEGIN-----\nsecret\n")
    with pytest.raises(ConfigError) as raised:
        oc_env.resolved("${oc.env:KEY}")
    assert "KEY contains a line break" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_trust_in_a_place_lets_no_file_name_a_folder_in_it_after_a_secret(workspace, own_home):
    shared = own_home / "shared"
    text = tiny("tests/tiny-v0") + f'publish: {{targets: ["{shared}/${{oc.env:TOKEN}}"]}}\n'
    write_config(workspace, "tiny", text)
    settings = {"MINARI_PIPE_TRUSTED_ADDRESSES": str(shared)}
    done = minari_pipe(workspace, "+dataset=tiny", "--draft", **settings)
    assert done.returncode == 1
    assert "a file names it, not you" in done.stderr
    assert not shared.exists()


def test_a_run_uses_the_value_and_writes_it_nowhere(workspace, own_home):
    target = workspace.parent / SECRET
    target.mkdir()
    done = minari_pipe(
        workspace,
        "+dataset=tiny",
        "--draft",
        "publish.targets=['../${oc.env:TOKEN}','s3://${oc.env:TOKEN}/x']",
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_MAX_ATTEMPTS="1",
    )
    assert "tiny: uploaded to ../${oc.env:TOKEN}\n" in done.stdout
    assert "error: tiny: not uploaded to s3://${oc.env:TOKEN}/x" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert (target / "tests" / "tiny-v0" / "data" / "main_data.hdf5").is_file()
    for folder in (workspace, own_home, target):
        for path in folder.rglob("*"):
            if path.is_file():
                assert SECRET.encode() not in path.read_bytes(), path
    assert os.environ["TOKEN"] == SECRET


@pytest.mark.parametrize(
    ("key", "address", "shown"),
    [
        ("engine.storage", "s3://ada:hunter2@bucket/x", "s3://…@bucket/x"),
        ("engine.storage", "file://ada:hunter2@host/x", "file://…@host/x"),
        ("engine.storage", "simplecache::s3://ada:hunter2@bucket", "simplecache::s3://…@bucket"),
        ("engine.address", "ray://ada:hunter2@host:1", "ray://…@host:1"),
        ("engine.address", "ada:hunter2@host:1", "…@host:1"),
        ("publish.targets", "[s3://ada:hunter2@bucket/x]", "s3://…@bucket/x"),
        ("publish.targets", "['file://ada:hunter2@host/x']", "file://…@host/x"),
    ],
)
def test_a_password_in_an_address_is_refused_before_it_is_recorded(key, address, shown, workspace):
    done = minari_pipe(workspace, "+dataset=tiny", "engine=ray", f"{key}={address}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {key}: ")
    assert shown in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert not (workspace / "pipelines").exists()


def test_addresses_without_a_password_are_taken():
    oc_env.check_engine_address("engine.storage", "s3://bucket/x")
    oc_env.check_engine_address("engine.storage", "file:///home/ada@work/x")
    oc_env.check_engine_address("engine.storage", "/home/ada@work/x")
    oc_env.check_engine_address("engine.storage", "ada@work/x")
    oc_env.check_engine_address("engine.address", "auto")
    oc_env.check_engine_address("engine.address", "ray://host:1")
    oc_env.check_engine_address("engine.address", "host:1")


def test_a_password_from_the_environment_is_refused_and_not_told(monkeypatch):
    monkeypatch.setenv("LOGIN", "ada:hunter2")
    with pytest.raises(ConfigError, match="check the value of the environment") as caught:
        oc_env.check_engine_address("engine.storage", "s3://${oc.env:LOGIN}@bucket")
    assert "hunter2" not in str(caught.value)
