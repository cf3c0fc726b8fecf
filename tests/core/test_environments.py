"""Environments come from registered names; a stored spec brings no code of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings

import gymnasium as gym
import pytest

from minari_pipe.core import environments
from minari_pipe.core.environments import (
    make_environment,
    packages_of,
    recover,
    registered_spec,
    wrapper_class,
)
from minari_pipe.errors import (
    ConfigError,
    EnvironmentNotFoundError,
    MissingDependencyError,
    TrustError,
)

DEEP: list = []
for _ in range(200):
    DEEP = [DEEP]


def spec_json(env_id: str = "CartPole-v1", **changes) -> str:
    fields = json.loads(gym.make(env_id).spec.to_json())
    return json.dumps({**fields, **changes})


def test_an_id_of_a_known_package_needs_no_import_by_the_user():
    env = make_environment("AdroitHandDoor-v1", {"max_episode_steps": 300})
    assert env.spec.max_episode_steps == 300
    env.close()


def test_an_unknown_id_is_answered_with_the_nearest():
    with pytest.raises(EnvironmentNotFoundError, match="Did you mean 'CartPole-v1'"):
        make_environment("CartPol-v1")


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("MetaWorld/reach-v3", "minari_pipe.environments.metaworld", "metaworld"),
        ("MinAtar/Breakout-v1", "minatar.gym", "minatar"),
    ],
)
def test_a_missing_package_is_answered_with_the_pip_line(env_id, module, extra, monkeypatch):
    monkeypatch.delitem(gym.registry, env_id, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'minari_pipe\[{extra}\]'"):
        make_environment(env_id)


def test_a_wrapper_of_a_missing_package_is_answered_with_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid.wrappers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'minari_pipe\[minigrid\]'"):
        wrapper_class("minigrid.wrappers.FullyObsWrapper")


def test_a_missing_simulator_of_gymnasium_is_answered_with_the_pip_line():
    with pytest.raises(MissingDependencyError, match=r"pip install 'gymnasium\[box2d\]'"):
        packages_of("LunarLander-v3")


def test_a_mistyped_wrapper_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'FlattenObservation'"):
        wrapper_class("gymnasium.wrappers.FlatenObservation")


def test_a_wrapper_that_needs_another_package_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "array_api_compat", None)
    with pytest.raises(MissingDependencyError, match="'array_api_compat', which is not installed"):
        wrapper_class("gymnasium.wrappers.ArrayConversion")


@pytest.mark.parametrize("env_id", environments.GYM_ADAPTERS)
def test_a_registered_environment_that_imports_what_its_arguments_name_needs_trust(env_id):
    with pytest.raises(TrustError, match="--trust-module gym"):
        make_environment(env_id, {"env_id": "stranger:Env-v0"})
    with pytest.raises(TrustError, match="--trust-module gym"):
        recover(spec_json(id=env_id, entry_point="shimmy:X", kwargs={"env_id": "stranger:Env-v0"}))


def test_a_module_before_a_colon_needs_trust(tmp_path, monkeypatch):
    (tmp_path / "own_envs.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Own-v0', 'gymnasium.envs.classic_control:CartPoleEnv',"
        " max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TrustError, match="--trust-module own_envs"):
        make_environment("own_envs:Own-v0")
    assert "own_envs" not in sys.modules
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "own_envs")
    assert make_environment("own_envs:Own-v0").spec.max_episode_steps == 9


def test_an_unknown_id_of_a_module_is_answered_with_the_module(monkeypatch):
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "gymnasium")
    with pytest.raises(EnvironmentNotFoundError, match="Did you mean 'gymnasium:CartPole-v1'"):
        make_environment("gymnasium:CartPole")


@pytest.mark.parametrize(
    "wrapper",
    [
        {"_target_": "gymnasium.wrappers.FlattenObservation", "no_such": 1},
        {"_target_": "gymnasium.wrappers.FlattenObservation", 1: 3},
        {"_target_": "gymnasium.wrappers.RescaleObservation", "min_obs": {}, "max_obs": []},
        {"_target_": "gymnasium.wrappers.RescaleAction", "min_action": [], "max_action": "x"},
        {"_target_": "gymnasium.wrappers.FilterObservation", "filter_keys": 7},
    ],
    ids=lambda wrapper: " ".join(map(str, wrapper)),
)
def test_arguments_that_a_wrapper_does_not_take_are_one_clear_line(wrapper):
    with pytest.raises(ConfigError, match=r"env\.wrappers: gymnasium\.wrappers\."):
        make_environment("CartPole-v1", wrappers=[wrapper])


def test_arguments_the_environment_does_not_take_are_one_clear_line():
    with pytest.raises(ConfigError, match="env.kwargs"):
        make_environment("CartPole-v1", {"no_such": 1})


@pytest.mark.parametrize("name", sorted(environments.REFUSED_WRAPPERS))
def test_wrappers_that_break_a_dataset_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"{name}' is refused"):
        make_environment("CartPole-v1", wrappers=[{"_target_": f"gymnasium.wrappers.{name}"}])


@pytest.mark.parametrize(
    "target",
    ["os.system", "gymnasium.make", "gymnasium.wrappers.common.gym.make", "gymnasium.wrappers.np"],
)
def test_a_wrapper_that_is_none_is_refused(target):
    with pytest.raises((TrustError, ConfigError)):
        wrapper_class(target)


def test_wrappers_are_applied_from_the_inside_out():
    wrappers = [
        {"_target_": "gymnasium.wrappers.TimeAwareObservation"},
        {"_target_": "gymnasium.wrappers.FlattenObservation"},
    ]
    env = make_environment("CartPole-v1", wrappers=wrappers)
    assert isinstance(env, gym.wrappers.FlattenObservation)
    assert isinstance(env.env, gym.wrappers.TimeAwareObservation)


def test_a_registered_spec_is_recovered_with_its_changes():
    env = recover(spec_json(max_episode_steps=7, kwargs={"sutton_barto_reward": True}))
    assert env.spec.max_episode_steps == 7
    assert env.unwrapped._sutton_barto_reward


def test_a_spec_of_an_old_gymnasium_is_recovered():
    old = spec_json(apply_api_compatibility=False, autoreset=False, order_enforce=True)
    assert recover(old).spec.id == "CartPole-v1"


@pytest.mark.parametrize("entry_point", ["os:system", "builtins:eval", "hydra:main"])
def test_an_entry_point_of_a_file_is_not_imported(entry_point):
    for env_id in ("CartPole-v1", "Unknown-v0"):
        with pytest.raises(TrustError, match="comes from a file and would import"):
            recover(spec_json(id=env_id, entry_point=entry_point))


@pytest.mark.parametrize("entry_point", ["no_such_package:Env", "no_such_package.envs:Env"])
def test_a_missing_package_of_a_file_s_environment_is_named_as_in_real_minari(entry_point):
    with pytest.raises(ModuleNotFoundError, match="^No module named 'no_such_package'") as caught:
        recover(spec_json(id="Unknown-v0", entry_point=entry_point))
    assert isinstance(caught.value, MissingDependencyError)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"id": 7}',
        '{"id": "CartPole-v1", "no_such": 1}',
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(spec_json(additional_wrappers=7), id="wrappers"),
        pytest.param(spec_json(entry_point=None), id="entry point"),
        pytest.param(spec_json(max_episode_steps="x"), id="limit"),
        pytest.param(spec_json(kwargs={"a": DEEP}), id="deep arguments"),
        pytest.param(spec_json(id="??"), id="id"),
    ],
)
def test_a_stored_spec_that_is_none_is_a_clear_error(text):
    with pytest.raises(ConfigError, match="stored env_spec"):
        recover(text)


def test_stored_arguments_that_the_environment_does_not_take_are_a_clear_error():
    with pytest.raises(ConfigError, match="CartPole-v1.*no_such.*unexpected keyword"):
        recover(spec_json(kwargs={"no_such": 1}))
    with pytest.raises(ConfigError, match="CartPole-v1"):
        recover(spec_json(kwargs=7))


def test_a_missing_package_cannot_hide_behind_a_registered_id():
    with pytest.raises(TrustError, match="comes from a file and would import"):
        recover(spec_json(id="CartPole-v1", entry_point="no_such_package:Env"))


@pytest.mark.parametrize(
    "entry_point",
    ["os:system", "gymnasium.wrappers.common:gym", "gymnasium.wrappers:RecordVideo", "own:Wrapper"],
)
def test_a_wrapper_of_a_file_is_not_applied(entry_point):
    wrapper = {"name": "W", "entry_point": entry_point, "kwargs": {}}
    with pytest.raises(TrustError):
        recover(spec_json(additional_wrappers=[wrapper]))


@pytest.mark.parametrize("name", ["", ":No", ".no:No", "/../own:Wrapper", ".common:os.system"])
def test_a_wrapper_that_gymnasium_lacks_is_named(name):
    wrapper = {"name": "W", "entry_point": f"gymnasium.wrappers{name}", "kwargs": {}}
    with pytest.raises((ConfigError, TrustError), match="'W'"):
        recover(spec_json(additional_wrappers=[wrapper]))


def test_a_dtype_that_numpy_crashes_on_is_refused():
    wrapper = {"name": "W", "entry_point": "gymnasium.wrappers:DtypeObservation"}
    with pytest.raises(ConfigError, match=r"wrapper 'W': data type 'M8\[s/0\]' not understood"):
        recover(spec_json(additional_wrappers=[{**wrapper, "kwargs": {"dtype": "M8[s/0]"}}]))
    target = {"_target_": "gymnasium.wrappers.DtypeObservation", "dtype": "M8[s/0]"}
    with pytest.raises(ConfigError, match="not understood"):
        make_environment("CartPole-v1", wrappers=[target])


def test_whatever_an_environment_raises_at_its_arguments_is_one_error():
    for kwargs in ({"render_mode": {"a": 1}}, {"sutton_barto_reward": 1, "render_mode": [1]}):
        with pytest.raises(ConfigError, match="cannot be created from the stored env_spec"):
            recover(spec_json(kwargs=kwargs))


def test_gymnasiums_own_wrappers_of_a_file_are_applied():
    env = gym.wrappers.FlattenObservation(gym.make("CartPole-v1"))
    assert isinstance(recover(env.spec.to_json()), gym.wrappers.FlattenObservation)


def test_a_module_trusted_for_one_call_is_imported(tmp_path, monkeypatch):
    (tmp_path / "own_entry.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\nclass Env(CartPoleEnv): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = spec_json(id="Elsewhere-v0", entry_point="own_entry:Env")
    with pytest.raises(TrustError):
        recover(text)
    assert type(recover(text, trusted_modules=["own_entry"]).unwrapped).__name__ == "Env"


@pytest.mark.parametrize("entry_point", ["own_calls:run", "own_calls:Popen", "own_calls:Path"])
def test_what_a_trusted_module_imports_is_not_called_because_a_file_says_so(
    entry_point, tmp_path, monkeypatch
):
    (tmp_path / "own_calls.py").write_text(
        "from pathlib import Path\nfrom subprocess import Popen, run\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    kwargs = {"args": "touch ran", "shell": True}
    text = spec_json(id="Elsewhere-v0", entry_point=entry_point, kwargs=kwargs)
    with pytest.raises(TrustError, match="expected an environment, a wrapper or a function that"):
        recover(text, trusted_modules=["own_calls"])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "path", ["{folder}/model.xml", "../model.xml", "~/model.xml", "./model.xml"]
)
def test_no_file_elsewhere_is_read_because_a_file_says_so(path, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.xml").write_text("precious")
    path = path.format(folder=tmp_path)
    spec = json.loads(gym.spec("Ant-v5").to_json()) | {"kwargs": {"xml_file": path}}
    with pytest.raises(TrustError, match=f"xml_file is '{path}', which is a file elsewhere"):
        recover(json.dumps(spec))
    trusted = os.path.abspath(os.path.expanduser(path))
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", trusted)
    with pytest.raises(ConfigError, match="cannot be created"):
        recover(json.dumps(spec))


@pytest.mark.parametrize(
    "path",
    [
        *("{folder}/model", "{folder}/new", "{folder}/new/run", "~/new", "robots/model"),
        *("file:{folder}/x", "$HOME/x", "${{HOME}}/x", "a.xml,{folder}/x", "--log {folder}/x"),
        *("--log={folder}/x", " {folder}/x", "'{folder}/x'", "x::{folder}/x"),
        *("-f{folder}/x", "a+{folder}/x", "-$HOME/x", "/tm", "lin", "link", "link/x"),
    ],
)
def test_a_name_that_an_environment_may_complete_or_make_is_one_of_a_file_elsewhere(
    path, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robots").mkdir()
    (tmp_path / "link.txt").symlink_to("/etc/hostname")
    (tmp_path / "link").symlink_to("/nowhere")
    path = path.format(folder=tmp_path)
    spec = json.loads(gym.spec("Ant-v5").to_json()) | {"kwargs": {"log_dir": path}}
    with pytest.raises(TrustError, match=r"log_dir is .*, which is a file elsewhere"):
        recover(json.dumps(spec))
    assert {file.name for file in tmp_path.iterdir()} == {"robots", "link", "link.txt"}


@pytest.mark.parametrize("text", ["a/b", "~x", "$x", "a\\b", "--log=a/b", "a:b/c"])
def test_no_path_of_a_dataset_reaches_an_environment_of_an_unknown_package(text, monkeypatch):
    """What such an environment takes for a path, and where it looks for it, only its code says."""
    made = []
    gym.register("Unknown-v0", entry_point="unknown_package.envs:Unknown")
    monkeypatch.setattr(gym, "make", lambda spec, **_: made.append(spec.kwargs))
    monkeypatch.setattr("minari_pipe.core.environments._load", lambda entry_point: None)
    try:
        for kwargs, refused in (({"map": [text]}, True), ({"map": "4x4", "n": 1.5}, False)):
            spec = json.loads(gym.spec("Unknown-v0").to_json()) | {"kwargs": kwargs}
            if refused:
                with pytest.raises(TrustError, match=r"kwargs\.map\[0\] .*which unknown_pack"):
                    recover(json.dumps(spec))
            recover(json.dumps(spec), trusted_modules=["unknown_package"] if refused else [])
            assert made.pop() == kwargs
    finally:
        gym.registry.pop("Unknown-v0")


def test_trust_in_a_path_is_none_in_the_target_of_a_link_on_it(tmp_path, monkeypatch):
    """The system goes on from the target of a link, where ``..`` is cut off as text elsewhere."""
    models, private = tmp_path / "work" / "models", tmp_path / "private"
    for folder in (models, private / "runs"):
        folder.mkdir(parents=True)
    (models / "link").symlink_to(private / "runs")
    (private / "model.xml").write_text("precious")
    (models / "model.xml").write_text("<mujoco/>")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_ADDRESSES", str(models))
    for path in ("./models/link/../model.xml", f"{models}/link/../model.xml"):
        spec = json.loads(gym.spec("Ant-v5").to_json()) | {"kwargs": {"xml_file": path}}
        with pytest.raises(TrustError, match=f"{private}/model.xml"):
            recover(json.dumps(spec))
        with pytest.raises(TrustError, match=f"{private}/model.xml"):
            make_environment("Ant-v5", {"xml_file": path})


def test_no_file_of_the_current_folder_is_read_because_a_file_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "robot.xml").write_text("precious")
    spec = json.loads(registered_spec("AntMaze_UMaze-v5").to_json())
    spec["kwargs"] |= {"xml_file": "models/robot.xml"}
    with pytest.raises(TrustError, match="xml_file is 'models/robot.xml', which is a file elsewh"):
        recover(json.dumps(spec))


def test_a_simulator_appends_its_warnings_to_no_file_of_the_folder(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    env = make_environment("HalfCheetah-v5")
    env.reset(seed=0)
    env.unwrapped.data.qvel[:] = 1e12
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env.step(env.action_space.sample())
    assert "simulation is unstable" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


WARNS = """\
import gymnasium as gym
import mujoco
import numpy as np

XML = "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>"

class Env(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self):
        model = mujoco.MjModel.from_xml_string(XML)
        data = mujoco.MjData(model)
        data.qvel[:] = 1e12
        mujoco.mj_step(model, data)

gym.register("Warns-v0", entry_point="warns:Env")
"""


def test_a_simulator_that_warns_while_it_is_made_appends_to_no_file_either(tmp_path):
    (tmp_path / "warns.py").write_text(WARNS)
    (tmp_path / "here").mkdir()
    code = (
        "from minari_pipe.core.environments import make_environment; "
        "make_environment('warns:Warns-v0')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "here",
        env={**os.environ, "PYTHONPATH": str(tmp_path), "MINARI_PIPE_TRUSTED_MODULES": "warns"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Nan, Inf or huge value in QVEL" in done.stderr
    assert not list((tmp_path / "here").iterdir())


def test_the_packages_of_an_environment_name_its_simulator():
    assert set(packages_of("AdroitHandDoor-v1")) == {"gymnasium", "gymnasium-robotics", "mujoco"}
    assert set(packages_of("HalfCheetah-v5")) == {"gymnasium", "mujoco"}
    assert set(packages_of("CartPole-v1")) == {"gymnasium"}


def test_what_is_known_is_not_looked_for_in_all_that_is_installed(monkeypatch):
    monkeypatch.setattr("importlib.metadata.distributions", lambda: pytest.fail("slow"))
    assert set(packages_of("CartPole-v1")) == {"gymnasium"}


def test_a_wrapper_without_its_arguments_is_left_out_with_a_warning():
    wrappers = [
        {"name": "Monitor", "entry_point": "no_such_package:Monitor", "kwargs": None},
        {"name": "Flat", "entry_point": "gymnasium.wrappers:FlattenObservation", "kwargs": {}},
    ]
    with pytest.warns(UserWarning, match="CartPole-v1' is recovered without Monitor") as caught:
        env = recover(spec_json(additional_wrappers=wrappers))
    assert len(caught) == 1
    assert isinstance(env, gym.wrappers.FlattenObservation)
    assert env.env.unwrapped is env.unwrapped


class Plain(gym.Wrapper):
    """A wrapper that keeps no arguments, as most of a user's own."""


def wrapped_by_itself() -> gym.Env:
    return gym.wrappers.ClipReward(Plain(gym.make("CartPole-v1").unwrapped), -1, 1)


def test_a_wrapper_of_a_file_whose_name_is_none_is_left_out_with_a_warning():
    wrapper = {"name": 3, "entry_point": "no_such_package:Monitor", "kwargs": None}
    with pytest.warns(UserWarning, match="is recovered without 3, which"):
        recover(spec_json(additional_wrappers=[wrapper]))


@pytest.mark.parametrize("kwargs", [7, [1], "x", {"no_such": 1}])
def test_arguments_of_a_file_that_a_wrapper_does_not_take_are_a_clear_error(kwargs):
    entry_point = "gymnasium.wrappers:FlattenObservation"
    wrapper = {"name": "W", "entry_point": entry_point, "kwargs": kwargs}
    with pytest.raises(ConfigError, match="cannot be created from the stored env_spec"):
        recover(spec_json(additional_wrappers=[wrapper]))


def test_wrappers_that_an_entry_point_applies_itself_are_not_said_to_be_lost(monkeypatch):
    gym.register("WrappedByItself-v0", wrapped_by_itself, max_episode_steps=5)
    try:
        env = gym.wrappers.FlattenObservation(gym.make("WrappedByItself-v0"))
        names = [wrapper.name for wrapper in env.spec.additional_wrappers]
        found = recover(environments.spec_json(env.spec))  # a warning would be an error
        assert [wrapper.name for wrapper in found.spec.additional_wrappers] == names
        with pytest.warns(UserWarning, match="is recovered without Plain, which") as caught:
            recover(environments.spec_json(Plain(env).spec))
        assert len(caught) == 1
    finally:
        del gym.registry["WrappedByItself-v0"]
