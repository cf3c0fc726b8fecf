"""Every mistake of a user's is one clear line and exit code 1, before anything is written."""

from __future__ import annotations

import copy
import pickle
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from minari_pipe.errors import MinariPipeError
from minari_pipe.pipeline.config import hydra_compose, hydra_errors
from minari_pipe.pipeline.config.validate_config import prepare
from minari_pipe.pipeline.run import driver
from minari_pipe.pipeline.run.command import run
from minari_pipe.storage.formats import FORMATS
from tests.conftest import CHECKOUT, FULL, home_variables
from tests.support.workspaces import (
    make_workspace,
    minari_pipe,
    run_ok,
    tiny,
    validation,
    write_config,
)

BASE = "+dataset=tiny"


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    folder = make_workspace(tmp_path / "work", tiny=tiny("tests/tiny-v0"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["minari_pipe"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A workspace in which a run ended well, and the home of who ran it."""
    folder = tmp_path_factory.mktemp("made")
    workspace = make_workspace(folder / "work", tiny=tiny("tests/tiny-v0"))
    run_ok(workspace, BASE, **home_variables(folder / "home"))
    return folder


@pytest.fixture
def finished(made, tmp_path, monkeypatch) -> Path:
    """A copy of it to change; it has been moved, home and all."""
    shutil.copytree(made, tmp_path / "finished", symlinks=True)
    for variable, place in home_variables(tmp_path / "finished" / "home").items():
        monkeypatch.setenv(variable, place)
    return tmp_path / "finished" / "work"


def files(folder: Path) -> set[Path]:
    """Everything of a workspace that a refused command must not have made."""
    ignored = {".minari_pipe", "tmp", "plots"}  # the others are DVC's
    return {
        p
        for p in folder.rglob("*")
        if p.is_file() and not ignored & set(p.relative_to(folder).parts)
    }


ROWS = {
    "numbers in place of a choice": (
        [BASE, "policy=[1]"],
        "cannot compose .*: argument of type 'int' is not iterable; a config group takes a",
    ),
    "a sweep over nothing": (
        ["-m", BASE, "collect.seed=glob(*)"],
        r"the sweep .* has no jobs: glob\(\) matches only config files in conf/; write values as",
    ),
    "a completion for no shell": ([BASE, "--shell-completion"], "takes install=SHELL, uninstall="),
    "lists in place of a choice": (["+dataset=[[1]]"], "a config group takes a name, such as"),
    "no dataset": ([], r"no dataset chosen; add \+dataset=NAME.*tiny"),
    "unknown dataset": (["+dataset=tny"], "no dataset 'tny'. Did you mean 'tiny'"),
    "unknown policy": (
        [BASE, "policy=sb4"],
        "no policy 'sb4'. Did you mean 'sb3'.* Known: demonstrations, mixture, random, sb3, sc.*$",
    ),
    "wrong key": (
        [BASE, "collect.n_episode=3"],
        "n_episode' not in 'Collect'. Did you mean 'n_episodes'.* Known keys: n_episodes, n_steps",
    ),
    "a value in place of a section": (
        [BASE, "author=Ada"],
        r"error: author is 'Ada'; expected its keys \(name, email\), such as author.name=Ada$",
    ),
    "a value in place of a nested section": (
        [BASE, "collect.until=3"],
        r"error: collect.until is '3'; expected its keys .*, such as collect.until.n_episodes=3$",
    ),
    "a character that no text has": (
        [BASE, "author.name='a\x1b[31m'"],
        r"author.name contains the character '\\x1b'; expected text without control characters",
    ),
    "an author without a name": ([BASE, "author.name=' '"], "author.name is empty; name who"),
    "a window": (
        [BASE, "+env.kwargs.render_mode=human"],
        "env.kwargs.render_mode is 'human', which opens a window",
    ),
    "a module that is none": (
        [BASE, "env.id='CartPole-v1:'"],
        "'CartPole-v1' before the colon is not a module name",
    ),
    "an id that is no folder": (
        [BASE, f"dataset.id={'a' * 300}-v0"],
        "has a part of more than 200 characters",
    ),
    "added key": ([BASE, "+colect.n_episodes=3"], "unknown key 'colect'. Did you mean 'collect'"),
    "added inner key": (
        [BASE, "+collect.n_episode=3"],
        "unknown key 'collect.n_episode'. Did you mean 'collect.n_episodes'",
    ),
    "added policy key": (
        [BASE, "+policy.seed=3"],
        "unknown key 'policy.seed'",
    ),
    "argument without a plus": (
        [BASE, "env.kwargs.sutton_barto_reward=true"],
        r"use \+env.kwargs.sutton_barto_reward=true",
    ),
    "key below null": (
        [BASE, "policy=sb3", "policy.algorithm=ppo", "+policy.train.seed=3"],
        "no value for policy.train.total_timesteps",
    ),
    "wrong type in a train block": (
        [BASE, "policy=sb3", "policy.algorithm=ppo", "policy.train={total_timesteps: x}"],
        "policy.train: total_timesteps: Value 'x' of type 'str'",
    ),
    "wrong key in a train block": (
        [BASE, "policy=sb3", "policy.algorithm=ppo", "policy.train={total_timestep: 3}"],
        "policy.train: Key 'total_timestep' not in 'Training'",
    ),
    "an environment that cannot be imported": (
        [BASE, "env.id=phys2d/CartPole-v1"],
        # the benchmark's environment has jax, but not all that this one imports
        r"'phys2d/CartPole-v1' (needs jax, .* Run: pip install 'gymnasium\[jax\]'|cannot be imp)",
    ),
    "neither checkpoint nor training": (
        [BASE, "policy=sb3", "policy.algorithm=ppo"],
        "policy: give a checkpoint or a train block",
    ),
    "wrong type": ([BASE, "collect.n_episodes=few"], "collect.n_episodes=few.*Integer"),
    "missing value": ([BASE, "dataset.id=???"], "no value for dataset.id.*conf/dataset/tiny.yaml"),
    "no equals sign": ([BASE, "collect.n_episodes"], "collect.n_episodes.*missing EQUAL"),
    "shell in the name": (
        [BASE, "pipeline='x; touch INJECTED #'"],
        "pipeline name .* is not valid",
    ),
    "path in the name": ([BASE, "pipeline=../x"], "pipeline name '../x' is not valid"),
    "hidden name": ([BASE, "pipeline=.x"], "pipeline name '.x' is not valid"),
    "option as name": ([BASE, "pipeline=-x"], "pipeline name '-x' is not valid"),
    "path in the id": ([BASE, "dataset.id=../../x-v0"], "Malformed dataset ID: ../../x-v0"),
    "absolute id": ([BASE, "dataset.id=/tmp/x-v0"], "Malformed dataset ID: /tmp/x-v0"),
    "shell in the pipeline name": (
        [BASE, "pipeline=a;b"],
        r"'pipeline=a;b' cannot be read; .* twice: \"pipeline='a;b'\"$",
    ),
    "a quoted pipeline name": ([BASE, "pipeline='a;b'"], "pipeline name 'a;b' is not valid"),
    "an accent": ([BASE, "author.name=Zoë"], "'author.name=Zoë' cannot be read; .*='Zoë'"),
    "shell in the id": ([BASE, "dataset.id='x;id-v0'"], "Malformed dataset ID: x;id-v0"),
    "no version": (
        [BASE, "dataset.id=tests/tiny"],
        "has no version; expected one at its end, such as 'door/human-v0'",
    ),
    "a namespace that the peer lists but cannot use": (
        [BASE, "dataset.id=t/tests/tiny-v0"],
        "Malformed namespace: t",
    ),
    "unknown environment": (
        [BASE, "env.id=CartPoel-v1"],
        "no environment 'CartPoel-v1' is registered. Did you mean 'CartPole-v1'",
    ),
    "missing package": ([BASE, "env.id=LunarLander-v3"], r"pip install 'gymnasium\[box2d\]'"),
    "module of a stranger": (
        [BASE, "env.id='evil_envs:Env-v0'"],
        "would import the module 'evil_envs'; .*--trust-module evil_envs",
    ),
    "target of a stranger": (
        [BASE, "policy._target_=os.system"],
        "policy._target_: 'os.system' is not trusted.*--trust-module os",
    ),
    "expert of a stranger": (
        [BASE, "ref_scores.expert._target_=os.system", "ref_scores.ref_max_score=null"],
        "ref_scores.expert._target_: 'os.system' is not trusted",
    ),
    "controller of a stranger": (
        [BASE, "policy=scripted", "policy.controller={_target_: subprocess.Popen, args: id}"],
        "policy.controller._target_: 'subprocess.Popen' is not trusted",
    ),
    "wrapper of a stranger": (
        [BASE, "env.wrappers=[{_target_: os.system}]"],
        "env.wrappers: 'os.system' is neither gymnasium.wrappers.NAME nor trusted",
    ),
    "wrapper with statistics": (
        [BASE, "env.wrappers=[{_target_: gymnasium.wrappers.NormalizeObservation}]"],
        "NormalizeObservation' is refused",
    ),
    "a wrapper's argument without a name": (
        [BASE, "env.wrappers=[{_target_: gymnasium.wrappers.FlattenObservation, 1: 3}]"],
        r"wrappers\[0\].*with argument names as keys",
    ),
    "a wrapper that is a string": ([BASE, "env.wrappers=[FlattenObservation]"], r"wrappers\[0\]"),
    "a password in an address": (
        [
            BASE,
            "policy=sb3",
            "policy.algorithm=ppo",
            "policy.checkpoint.address=https://u:w@x/a.zip",
        ],
        "policy.checkpoint: the address https://…@x/a.zip contains a user name or password",
    ),
    "no checkpoint": (
        [BASE, "policy=sb3", "policy.algorithm=ppo", "policy.checkpoint.path=no.zip"],
        "policy.checkpoint.path: no file 'no.zip'",
    ),
    "address without sha256": (
        [BASE, "policy=demonstrations", "policy.source.address=https://example.org/x.pickle"],
        "needs policy.source.sha256",
    ),
    "no demonstrations": (
        [BASE, "policy=demonstrations"],
        "policy.source: give policy.source.path",
    ),
    "sha256 that is none": (
        [
            BASE,
            "policy=demonstrations",
            "policy.source.path=conf/dataset/tiny.yaml",
            "policy.source.sha256=12ab",
        ],
        "policy.source.sha256 is '12ab'; expected 64 lowercase hexadecimal digits",
    ),
    "unknown algorithm": (
        [BASE, "policy=sb3", "policy.algorithm=ppx", "policy.train={total_timesteps: 9}"],
        "unknown algorithm 'ppx'. Did you mean 'ppo'",
    ),
    "no time limit": (
        [BASE, "env.id=Blackjack-v1"],
        r"'Blackjack-v1' has no time limit.* set env.kwargs.max_episode_steps, e.g. \+env.kwargs",
    ),
    "no time limit where scores are measured": (
        [BASE, "ref_scores.eval_env.id=Blackjack-v1"],
        "set ref_scores.eval_env.kwargs.max_episode_steps",
    ),
    "nothing to collect": ([BASE, "collect.n_episodes=null"], "set collect.n_episodes or .n_steps"),
    "both limits": ([BASE, "collect.n_steps=9"], "are both given"),
    "exact without steps": ([BASE, "collect.exact=true"], "needs collect.n_steps"),
    "exact and matching": (
        [
            *(BASE, "collect.exact=true", "collect.n_steps=9", "collect.n_episodes=null"),
            *("collect.keep=matching", "collect.until.min_return=1"),
        ],
        "collect.exact=true cuts the last episode, which may then no longer match",
    ),
    "no episodes": ([BASE, "collect.n_episodes=0"], "collect.n_episodes is 0; expected at least 1"),
    "unknown engine": (
        [BASE, "engine=proceses"],
        "no engine 'proceses'. Did you mean 'processes'?",
    ),
    "unknown engine by name": (
        [BASE, "engine.name=proces"],
        "unknown engine.name 'proces'. Did you",
    ),
    "no workers": ([BASE, "engine.n_workers=0"], "engine.n_workers is 0; expected at least 1"),
    "negative retries": (
        [BASE, "engine.max_retries=-1"],
        "engine.max_retries is -1; expected 0 or",
    ),
    "no time at all": (
        [BASE, "engine.block_timeout_s=0"],
        "block_timeout_s is 0.0; expected above",
    ),
    "workers for one process": (
        [BASE, "engine.n_workers=4"],
        "engine.n_workers is 4, but engine=local runs one block at a time; add engine=proc",
    ),
    "a cluster for no cluster": ([BASE, "engine.address=x:1"], "engine.address is only for engine"),
    "unknown key of the engine": ([BASE, "engine.workers=2"], "'?engine.workers'?|Key 'workers'"),
    "kept for no reason": (
        [BASE, "collect.keep=matching"],
        "keep=matching needs a condition",
    ),
    "unknown keep": (
        [BASE, "collect.keep=matches"],
        "collect.keep is 'matches'; .*mean 'matching'",
    ),
    "unknown on_error": (
        [BASE, "collect.on_error=ignore"],
        "on_error is 'ignore'; expected fail or",
    ),
    "until without a condition": ([BASE, "collect.until.n_episodes=3"], "n_episodes needs a cond"),
    "a condition for nothing": (
        [BASE, "collect.until.success=true"],
        "until.success has no effect alone",
    ),
    "two rules": (
        [
            BASE,
            *("collect.n_episodes=null", "collect.n_steps=9"),
            *("collect.until.n_episodes=3", "collect.until.min_return=1"),
        ],
        "collect.n_steps and collect.until.n_episodes are both given",
    ),
    "declared scores that are upside down": (
        [BASE, "ref_scores.ref_min_score=600", "ref_scores.ref_max_score=500"],
        "ref_scores.ref_max_score is 500.0 and ref_min_score is 600.0; the expert's score must be",
    ),
    "a declared score that is no number": (
        [BASE, "ref_scores.ref_min_score=nan"],
        "ref_scores.ref_min_score is nan; expected a finite number",
    ),
    "no standard error": ([BASE, "ref_scores.max_stderr=0"], "max_stderr is 0.0; expected above 0"),
    "negative seed": ([BASE, "collect.seed=-1"], "collect.seed is -1; expected 0 or more"),
    "no expert": (
        [BASE, "ref_scores.expert=null", "ref_scores.ref_max_score=null"],
        "no ref_scores.expert and no ref_scores.ref_max_score",
    ),
    "a cluster of this machine that listens everywhere": (
        [BASE, "engine=ray", "engine.address=local"],
        "engine.address is 'local'; expected auto, HOST:PORT or ray://HOST:PORT",
    ),
    "no address": (
        [BASE, "engine=ray", "engine.address=''"],
        "engine.address is ''; expected auto",
    ),
    "a return between nothing": (
        [BASE, "collect.until={min_return: 9.0, max_return: 1.0, n_episodes: 3}"],
        "collect.until.min_return=9.0 is above collect.until.max_return=1.0",
    ),
    "a return that is no number": (
        [BASE, "collect.until.min_return=nan", "collect.keep=matching"],
        "collect.until.min_return is nan; expected a number",
    ),
    "a format that is none": (
        [BASE, "dataset.data_format=parket"],
        f"data_format is 'parket'; expected {' or '.join(FORMATS)}. Did you mean 'parquet'",
    ),
    "a level of a format that has none": (
        [BASE, "dataset.data_format=arrow", "dataset.compression=3"],
        "dataset.compression: the format arrow does not support compression; hdf5 does",
    ),
    "a level that is none": (
        [BASE, "dataset.compression=10"],
        "dataset.compression: compression is 10; expected a gzip level from 1 to 9",
    ),
    "a section that is taken away": ([BASE, "~author"], "~author removes a required key"),
    "another section": ([BASE, "~pipeline"], "~pipeline removes a required key"),
    "a key that is taken away": ([BASE, "~collect.seed"], "~collect.seed: a key cannot be removed"),
    "keys of a family without one": (
        [BASE, "+family={a: 1}"],
        "unknown keys in family; see --help",
    ),
    "an expert that is text": (
        [BASE, "ref_scores.expert=x"],
        "ref_scores.expert is 'x'; choose one with `- /policy@ref_scores.expert: NAME`",
    ),
    "a training that is a number": (
        [BASE, "policy=sb3", "policy.algorithm=ppo", "policy.train=3"],
        r"policy.train is 3; expected null or \{total_timesteps: N",
    ),
    "a target that is a section": (
        [BASE, "publish.targets=[{}]"],
        r"publish.targets contains \{\}; expected addresses such as s3://bucket",
    ),
    "help on what is not there": (["--help", "policy=sb4"], "no policy 'sb4'. Did you mean 'sb3'"),
    "a dry run that pulls": ([BASE, "--dry-run", "--pull"], "--dry-run fetches nothing"),
    "unknown flag": ([BASE, "--foo"], "unrecognized arguments: --foo; see --help"),
    "a flag without its value": ([BASE, "--trust"], "--trust: expected one argument"),
    "other configs": ([BASE, "--config-dir=."], "--config-dir cannot be used here"),
    "a pickled run": (["--experimental-rerun", "x.pickle"], "--experimental-rerun cannot be used"),
    "swept without a name": (
        ["-m", BASE, "collect.seed=1,2"],
        "the sweep over collect.seed gives two jobs the same pipeline 'tiny'",
    ),
    "swept without an id": (
        ["-m", BASE, "collect.seed=1,2", "pipeline=tiny_${collect.seed}"],
        "the sweep over collect.seed gives two jobs the same dataset.id 'tests/tiny-v0'",
    ),
}


@pytest.mark.parametrize(("argv", "line"), ROWS.values(), ids=ROWS)
def test_a_mistake_is_one_clear_line(argv, line, workspace, capfd):
    before = files(workspace)
    GlobalHydra.instance().clear()
    code = run(argv)
    out, err = capfd.readouterr()
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("error: ")
    assert re.search(line, err), err
    assert files(workspace) == before


SB3 = """\
# @package _global_
defaults: [{/policy: sb3}, _self_]
dataset: {id: tests/sb3-v0}
author: {name: Ada}
env: {id: CartPole-v1}
policy: {algorithm: ppo, train: {total_timesteps: 64}}
collect: {n_episodes: 1}
ref_scores: {expert: "${policy}"}
"""

ODD_VALUES = (
    "null",
    "''",
    "x",
    "-1",
    "nan",
    "1e30",
    "true",
    "[]",
    "[1]",
    "[{}]",
    "{a: null}",
    "???",
)


def keys_below(node: DictConfig, path: str = "") -> Iterator[str]:
    for key in node:
        yield f"{path}{key}"
        below = node._get_node(key)
        if isinstance(below, DictConfig) and not below._is_none() and not below._is_missing():
            yield from keys_below(below, f"{path}{key}.")


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("name", ["tiny", "sb3"])
def test_no_value_of_any_key_is_more_than_one_line(name, workspace):
    """Each key taken away, and given a value of each kind; MINARI_PIPE_FULL tries all pairs."""
    write_config(workspace, "sb3", SB3)
    found = hydra_compose.recompose([f"+dataset={name}"]).body
    settings = HydraConfig.get()
    parser = OverridesParser.create()
    words = [w for k in keys_below(found) for w in (f"~{k}", *(f"{k}={v}" for v in ODD_VALUES))]
    for word in words if FULL else random.Random(0).sample(words, 60):
        changed = copy.deepcopy(found)
        try:
            with hydra_errors.translated():
                ConfigLoaderImpl._apply_overrides_to_config(parser.parse_overrides([word]), changed)
                composed = hydra_compose.plain(changed, settings)
            prepare(composed.name, composed.config, None, workspace)
        except MinariPipeError as exc:
            told = str(exc)
        except Exception as exc:
            raise AssertionError(f"{word} is a {type(exc).__name__}: {exc}") from exc
        else:
            told = "fine"
        assert len(told.splitlines()) == 1, (word, told)


HYDRA_SETTINGS = {
    "environment variables": "hydra: {job: {env_set: {MINARI_PIPE_TRUSTED_MODULES: evil}}}",
    "a callback": "hydra: {callbacks: {x: {_target_: evil.Callback}}}",
    "a launcher": "hydra: {launcher: {_target_: evil.Launcher}}",
    "a logging handler": "hydra: {job_logging: {handlers: {x: {(): evil.Handler}}}}",
    "words of the command line": "hydra: {overrides: {task: ['publish.replace=true']}}",
    "a path of this machine": "hydra: {job: {id: '${hydra.runtime.cwd}'}}",
    "a folder to make": "hydra: {run: {dir: elsewhere}}",
}


@pytest.mark.parametrize("setting", HYDRA_SETTINGS.values(), ids=HYDRA_SETTINGS)
@pytest.mark.parametrize("how", [[], ["--cfg", "job"], ["hydra.job.chdir=true"], ["--mult"]])
def test_a_config_cannot_set_hydra_itself(setting, how, workspace, capfd):
    (workspace / "evil.py").write_text("open('INJECTED', 'w')")
    config = workspace / "conf" / "dataset" / "tiny.yaml"
    config.write_text(config.read_text() + setting + "\n")
    assert run([BASE, *how]) == 1
    err = capfd.readouterr().err
    assert re.search(
        r"conf/dataset/tiny.yaml sets hydra\.\w+, .* only the command line may", err
    ), err
    assert err.count("\n") == 1
    assert not (workspace / "INJECTED").exists()


CALLBACKS = "{a: {_target_: pathlib.Path.touch, self: INJECTED}}"


@pytest.mark.parametrize("how", [["-m", "hydra.verbose=false"], ["hydra.verbose=true"]])
def test_hydra_is_told_no_other_thing_by_a_file_than_what_was_checked(
    how, workspace, monkeypatch, capfd
):
    """It composes once for a sweep and once for each job, under other names and choices."""
    config = workspace / "conf" / "dataset" / "tiny.yaml"
    plain = config.read_text()
    kwargs = f"{{kwargs: {{minari_pipe: {{}}, compose: {CALLBACKS}, test_bad_input: {{}}}}"
    config.write_text(
        plain.replace("env: {", f"env: {kwargs}, ").replace("}}},", "}}}, ")
        + 'hydra: {callbacks: "${env.kwargs.${hydra.job.name}}"}\n'
    )
    assert run([BASE, *how]) == 1
    assert "tiny.yaml sets hydra.callbacks" in capfd.readouterr().err
    policy = workspace / "conf" / "policy" / "evil.yaml"
    policy.parent.mkdir(exist_ok=True)
    policy.write_text(f"# @package _global_\nhydra: {{callbacks: {CALLBACKS}}}\n")
    primary = "defaults: [schema, {engine: local}, {policy: evil}, _self_]\n"
    (workspace / "conf" / "config.yaml").write_text(primary)
    first, second = "{/policy: random}", "{/policy@ref_scores.expert: random}"
    overriding = f"{second}, {{override /policy: random}}"
    config.write_text(plain.replace(f"{first}, {second}", overriding))
    if how[0] == "-m":  # of a sweep the dataset is a choice of its jobs
        other = config.with_name("other.yaml")
        other.write_text(config.read_text().replace("tests/", "others/"))
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        assert run([f"{BASE},other", *how]) == 1
        assert "evil.yaml sets hydra.callbacks" in capfd.readouterr().err
    assert not (workspace / "INJECTED").exists()


@pytest.mark.parametrize("form", ["hydra:runtime.cwd", "hydra.runtime.cwd", "minari_pipe.state:x"])
def test_a_config_holds_no_path_of_this_machine(form, workspace, capfd):
    config = workspace / "conf" / "dataset" / "tiny.yaml"
    config.write_text(config.read_text().replace("a tiny dataset for tests", f"'${{{form}}}'"))
    assert run([BASE, "--dry-run"]) == 1
    captured = capfd.readouterr()
    assert re.search(r"may be a path on this machine|not found|for Hydra's own", captured.err)
    assert str(workspace) not in captured.err + captured.out


def test_the_user_may_set_hydra_but_no_file_what_lies_beside_or_below(workspace):
    config = workspace / "conf" / "dataset" / "tiny.yaml"
    plain = config.read_text()
    config.write_text(plain + "hydra: {job: {env_set: {TOKEN: stolen}}}\n")
    done = minari_pipe(workspace, BASE, "--cfg", "job", "+hydra.job.env_set.MINE=1")
    one_line(done, "tiny.yaml sets hydra.job, ")
    config.write_text(plain)
    run_ok(workspace, BASE, "--cfg", "job", "+hydra.job.env_set.MINE=1")
    launcher = workspace / "conf" / "hydra" / "launcher" / "mine.yaml"
    launcher.parent.mkdir(parents=True)
    launcher.write_text("_target_: evil.Launcher\n")
    done = minari_pipe(workspace, BASE, "--cfg", "job", "hydra/launcher=mine")
    one_line(done, "no hydra 'launcher/mine'. Known: basic")


@pytest.mark.parametrize("how", [[], ["-m"], ["--cfg", "job"]])
def test_no_launcher_starts_processes_that_would_import_modules_of_the_folder(
    how, workspace, capfd
):
    node = {"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"}
    ConfigStore.instance().store(group="hydra/launcher", name="joblib", node=node)
    assert run([BASE, *how, "hydra/launcher=joblib"]) == 1
    assert "hydra/launcher cannot be chosen: " in capfd.readouterr().err


def test_a_fork_of_the_checkout_is_trusted_no_more(tmp_path, monkeypatch):
    """There conf/ lies beside the package; it comes from strangers all the same."""
    for name in ("minari_pipe", "conf", ".dvc"):
        ignored = shutil.ignore_patterns("__pycache__", "cache", "tmp")
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "evil.py").write_text("open('INJECTED', 'w')")
    evil = tiny("tests/evil-v0").replace("CartPole-v1", "'evil:CartPole-v1'")
    evil += HYDRA_SETTINGS["environment variables"]
    (tmp_path / "conf" / "dataset" / "evil.yaml").write_text(evil)
    done = minari_pipe(tmp_path, "+dataset=evil")
    assert "evil.yaml sets hydra.job, " in done.stderr
    (tmp_path / "conf" / "config.yaml").write_text(
        "defaults: [schema, _self_]\nhydra: {searchpath: ['pkg://evil']}\n"
    )
    for flags in ([], ["--info", "defaults"], ["-m"])[: None if FULL else 1]:
        done = minari_pipe(tmp_path, "+dataset=cartpole_expert", *flags)
        assert "config.yaml sets hydra" in done.stderr
    sync = [sys.executable, "-m", "minari_pipe.pipeline.run.sync"]
    done = subprocess.run(sync, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "config.yaml sets hydra" in done.stderr
    assert not (tmp_path / "INJECTED").exists()


def test_the_primary_config_of_a_workspace_cannot_set_hydra_either(workspace, monkeypatch, capfd):
    (workspace / "conf" / "config.yaml").write_text(
        "defaults: [schema, _self_]\nhydra: {searchpath: ['pkg://evil']}\n"
    )
    (workspace / "evil.py").write_text("open('INJECTED', 'w')")
    assert run([BASE]) == 1
    assert "config.yaml sets hydra" in capfd.readouterr().err
    assert not (workspace / "INJECTED").exists()
    # Nor choose a launcher that is installed.
    node = {"_target_": "evil.Launcher"}
    ConfigStore.instance().store(group="hydra/launcher", name="evil", node=node)
    chosen = "defaults: [schema, {engine: local}, {override hydra/launcher: evil}, _self_]\n"
    (workspace / "conf" / "config.yaml").write_text(chosen)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    assert run([BASE]) == 1
    assert "conf/ sets hydra.launcher" in capfd.readouterr().err


def test_an_unknown_group_of_a_defaults_list_is_answered_with_the_nearest(workspace, capfd):
    config = workspace / "conf" / "dataset" / "tiny.yaml"
    config.write_text(config.read_text().replace("/policy: random", "/polcy: random"))
    assert run([BASE]) == 1
    assert "no config group 'polcy'. Did you mean 'policy'" in capfd.readouterr().err


def test_a_config_without_its_header_is_told_of_it(workspace, capfd):
    config = workspace / "conf" / "dataset" / "tiny.yaml"
    config.write_text(config.read_text().replace("# @package _global_", ""))
    assert run([BASE]) == 1
    assert "must begin with the line `# @package _global_`" in capfd.readouterr().err


def test_outside_a_workspace_the_command_that_makes_one_is_named(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["minari_pipe"])
    assert run(["+dataset=cartpole_expert"]) == 1
    assert "is not inside a DVC workspace; run `minari-pipe init`" in capfd.readouterr().err


def test_a_broken_yaml_file_is_named_with_its_line(workspace, capfd):
    (workspace / "conf" / "dataset" / "broken.yaml").write_text(
        "# @package _global_\na: [1\nb: 2\n"
    )
    assert run(["+dataset=broken"]) == 1
    err = capfd.readouterr().err
    assert "broken.yaml:3" in err
    assert err.count("\n") == 1


def one_line(done, *patterns: str) -> None:
    """The run failed in a stage: its one line, no traceback, no pipeline left behind."""
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for pattern in patterns:
        assert pattern in errors[0], errors[0]


def test_a_checkpoint_with_another_sha256_is_refused(workspace):
    (workspace / "policy.zip").write_bytes(b"not a zip")
    done = minari_pipe(
        workspace,
        BASE,
        "policy=sb3",
        "policy.algorithm=ppo",
        "policy.checkpoint.path=policy.zip",
        f"policy.checkpoint.sha256={'0' * 64}",
    )
    one_line(done, "policy.checkpoint" if "policy.checkpoint" in done.stderr else "sha256", "0000")


def test_a_checkpoint_for_other_spaces_is_refused_with_both(workspace):
    done = minari_pipe(
        workspace,
        BASE,
        "policy=sb3",
        "policy.algorithm=ppo",
        "+policy.policy_kwargs={net_arch: {pi: [32, 32], vf: [32, 32]}, activation_fn: tanh}",
        "policy.checkpoint.address='shipped:door_expert.zip'",
        f"policy.checkpoint.sha256={shipped_sha256()}",
    )
    one_line(done, "other spaces")


def shipped_sha256() -> str:
    from minari_pipe.core.files.atomic import sha256_file

    return sha256_file(CHECKOUT / "minari_pipe" / "policies" / "shipped" / "door_expert.zip")


class Evil:
    def __reduce__(self):
        import os

        return os.system, ("touch INJECTED",)


@pytest.mark.parametrize("content", [b"\x80\x03}q\x00X", pickle.dumps(Evil()), pickle.dumps([1])])
def test_demonstrations_that_are_none_are_refused(content, workspace):
    (workspace / "demos.pickle").write_bytes(content)
    arguments = ["policy=demonstrations", "policy.source.path=demos.pickle", "collect.n_episodes=1"]
    done = minari_pipe(workspace, BASE, *arguments)
    one_line(done, "demos.pickle")
    assert not (workspace / "INJECTED").exists()


def test_demonstrations_out_of_reach_name_the_ways_out(workspace):
    done = minari_pipe(
        workspace,
        BASE,
        "policy=demonstrations",
        "policy.source.address=http://127.0.0.1:9/demos.pickle",
        f"policy.source.sha256={'0' * 64}",
        "collect.n_episodes=1",
    )
    one_line(done, "http://127.0.0.1:9/demos.pickle", "MINARI_PIPE_MIRROR", "policy.source.path=")


def test_an_expert_below_random_stops_before_publish_with_both_numbers(workspace):
    done = minari_pipe(workspace, BASE, "ref_scores.ref_max_score=3.0")
    assert done.returncode == 1
    (finding,) = validation(workspace, "tiny")["findings"]
    assert finding["level"] == "error"
    assert "1 error in tests/" in done.stdout + done.stderr
    assert "3.0" in finding["message"]
    scores = (workspace / "pipelines" / "tiny" / "ref_scores.json").read_text()
    assert f"{__import__('json').loads(scores)['ref_min_score']:g}"[:4] in finding["message"]
    assert not (workspace / "datasets" / "tests").exists()


def test_what_fails_in_its_first_stage_leaves_no_pipeline(workspace):
    before = files(workspace)
    one_line(minari_pipe(workspace, BASE, "env.id=Ant-v3"), "moved to the gymnasium-robotics")
    assert files(workspace) == before
    assert not (workspace / "pipelines" / "tiny").exists()


def test_what_fails_later_keeps_the_pipeline_that_was_there(finished):
    one_line(minari_pipe(finished, BASE, "env.id=Ant-v3"), "moved to the gymnasium-robotics")
    assert (finished / "pipelines" / "tiny" / "dvc.lock").is_file()


@pytest.mark.parametrize("finished", ["block_00000.json.record", "policy.done", None])
def test_a_first_run_that_finished_something_keeps_its_pipeline(finished, tmp_path):
    params = tmp_path / "pipelines" / "p" / "params.yaml"
    params.parent.mkdir(parents=True)
    params.write_text("")
    if finished:
        scratch = tmp_path / ".minari_pipe" / "work" / "p" / "collect" / "1a2b" / "blocks"
        scratch.mkdir(parents=True)
        (scratch / finished).write_text("")
    driver._forget("p", tmp_path)
    assert params.exists() == bool(finished)


def test_the_place_of_the_dataset_is_checked_before_the_work(workspace, tmp_path):
    (tmp_path / "file").write_text("")
    done = minari_pipe(workspace, BASE, MINARI_DATASETS_PATH=str(tmp_path / "file"))
    one_line(done, f"datasets root {tmp_path / 'file'} cannot be created", "MINARI_DATASETS_PATH")
    other = tmp_path / "root" / "tests" / "tiny-v0" / "data"
    other.mkdir(parents=True)
    (other / "main_data.hdf5").write_bytes(b"of another tool")
    done = minari_pipe(workspace, BASE, MINARI_DATASETS_PATH=str(tmp_path / "root"))
    one_line(done, "holds another dataset with the id 'tests/tiny-v0'", "publish.replace=true")
    assert not (workspace / "pipelines").exists()
    assert (other / "main_data.hdf5").read_bytes() == b"of another tool"
    # Another pipeline's, made from another config.
    (other / "metadata.json").write_text('{"minari_pipe": {"config_sha256": "0"}}')
    (other.parent / "manifest.json").write_text('{"content_sha256": "0", "files": {}}')
    done = minari_pipe(workspace, BASE, MINARI_DATASETS_PATH=str(tmp_path / "root"))
    one_line(done, "holds another dataset with the id 'tests/tiny-v0'", "publish.replace=true")
    assert not (workspace / "pipelines").exists()


def test_a_pipeline_of_another_config_is_not_taken_over(finished):
    (finished / "conf" / "dataset" / "other.yaml").write_text(tiny("tests/other-v0"))
    before = files(finished)
    one_line(
        minari_pipe(finished, "+dataset=other", "pipeline=tiny"),
        "pipeline 'tiny' belongs to +dataset=tiny, but this command has +dataset=other",
    )
    assert files(finished) == before


def test_a_dry_run_names_a_lock_file_that_would_hang_dvc(finished):
    path = finished / "pipelines" / "tiny" / "dvc.lock"
    path.write_text(f"{path.read_text()}  x:\n    cmd: &a [x]\n    deps: [*a, *a]\n")
    done = minari_pipe(finished, BASE, "--dry-run")
    one_line(done, "tiny/dvc.lock has a YAML anchor or alias in line", "restore it from git")


def test_an_id_of_another_pipeline_is_refused(finished):
    done = minari_pipe(finished, BASE, "pipeline=other")
    assert done.returncode == 1
    assert "dataset id 'tests/tiny-v0' belongs to pipeline 'tiny'" in done.stderr
    assert not (finished / "pipelines" / "other").exists()


HEAD = "# @package _global_\ndefaults: [{/policy: random}, _self_]\n"
BOMB = "x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n" + "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGED = "x0: &x0 {a: 1}\n" + "".join(
    f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)


def doubled(first: str, pattern: str) -> str:
    """Keys of ``env.kwargs``, each of which refers to the one before it twice."""
    more = (pattern.replace("$", f"${{env.kwargs.x{n - 1}}}") for n in range(1, 34))
    return "".join(f"    x{n}: {text}\n" for n, text in enumerate([first, *more]))


KWARGS = f"{HEAD}dataset: {{id: a/b-v0}}\nauthor: {{name: A}}\nenv:\n  id: X-v0\n  kwargs:\n"
ODD_FILES = {
    "defaults that are a number": (
        "defaults: 5\n",
        "must be a list.*list of such choices",
    ),
    "a choice of choices": ("defaults: [{a: {b: c}}]\n", "Unsupported item value in defaults"),
    "a file in itself": ("defaults: [odd]\n", "cannot compose .*: maximum recursion depth"),
    "deep": (HEAD + "x: " + "[" * 3000 + "]" * 3000, "recursion depth|nested too deeply"),
    "a number of digits": (HEAD + f"x: {'9' * 5000}\n", "cannot compose"),
    "a value in itself": (HEAD + "env: {kwargs: &a {x: *a}}\n", r"odd\.yaml has aliases"),
    "ten of ten of ten": (
        HEAD + BOMB,
        r"odd\.yaml has aliases \(\*name\) that expand",
    ),
    "a value in place of a section": (
        HEAD + "author: Ada\n",
        r"In 'dataset/odd': author is 'Ada'; expected its keys \(name, email\), such as author",
    ),
    "a path in place of a source": (
        HEAD.replace("random", "sb3") + "policy: {checkpoint: x.zip}\n",
        r"In 'dataset/odd': a section is 'x.zip'; expected its keys \(path, address, sha256\)$",
    ),
    "ten merged of ten": (HEAD + MERGED, r"odd\.yaml has aliases \(\*name\) that expand"),
    "a long text a thousand times": (
        f"{HEAD}x: &x {'a' * 50_000}\ny: [{', '.join(['*x'] * 1000)}]\n",
        r"odd\.yaml has aliases \(\*name\) that expand",
    ),
    "a text of twice a text of twice": (
        KWARGS + doubled("a" * 50_000, "$$"),
        r"env\.kwargs\.x\d+: the interpolations \(\$\{\.\.\.\}\) of the config resolve to more",
    ),
    "a mapping of twice a mapping of twice": (
        KWARGS + doubled(str([0] * 1000), "{a: '$', b: '$'}"),
        r"env\.kwargs\.x\d+\.[ab]: the interpolations",
    ),
    "a text of twice a selection of twice": (
        KWARGS + doubled("a" * 50_000, "$$").replace("${", "${oc.select:"),
        r"env\.kwargs\.x\d+: the interpolations",
    ),
}


@pytest.mark.parametrize(("text", "line"), ODD_FILES.values(), ids=ODD_FILES)
def test_an_odd_config_file_is_told_in_one_line(text, line, workspace, capfd) -> None:
    (workspace / "conf" / "dataset" / "odd.yaml").write_text(text)
    GlobalHydra.instance().clear()
    assert run(["+dataset=odd", "--dry-run"]) == 1
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert re.search(line, err), err
    assert "Traceback" not in err


def test_aliases_of_the_primary_config_are_counted_before_it_is_read(workspace, capfd) -> None:
    (workspace / "conf" / "config.yaml").write_text(MERGED)
    GlobalHydra.instance().clear()
    assert run([BASE, "--dry-run"]) == 1
    assert re.search(r"conf/config\.yaml has aliases \(\*name\)", capfd.readouterr().err)


def test_aliases_that_stand_for_little_are_replaced(workspace) -> None:
    text = tiny("tests/odd-v0") + "x: &x {a: 1}\ny: [*x, *x]\n"
    (workspace / "conf" / "dataset" / "odd.yaml").write_text(text)
    with pytest.raises(MinariPipeError, match="Key 'x' not in"):
        hydra_compose.recompose(["+dataset=odd"])
