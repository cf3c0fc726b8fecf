"""In a workspace of a stranger no code of the folder runs that the user does not trust."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import py_compile
import sys
from pathlib import Path

import pytest

import minari_pipe
from tests.conftest import FULL
from tests.support.repositories import Workspace

MODULE = (sys.executable, "-m", "minari_pipe")
SCRIPT = ("minari-pipe",)

real_processes = pytest.mark.usefixtures("real_processes")


def plant(workspace: Workspace) -> Path:
    """Code in the places where Python, Hydra and importlib look; it leaves a file when it runs."""
    told = workspace.home / "executed"
    code = f"open({str(told)!r}, 'a').write(__name__)\n"
    for file in ("yaml.py", "shimmy.py", "evil.py", "hydra_plugins/evil/__init__.py"):
        (workspace.root / file).parent.mkdir(parents=True, exist_ok=True)
        (workspace.root / file).write_text(code)
    info = workspace.root / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    groups = ("minari_pipe.environments", "minari_pipe.policies", "minari_pipe.storages")
    text = "".join(f"[{group}]\nx = evil\n" for group in groups)
    (info / "entry_points.txt").write_text(text)
    return told


LAST_STAGES = ("+dataset=tiny", "validate.replay_steps=1")
"""Every stage starts like the last two."""


@real_processes
@pytest.mark.parametrize(
    ("command", "words"),
    [(MODULE, ("+dataset=tiny", "collect.seed=5")), (SCRIPT, LAST_STAGES)],
    ids=["python -m", "minari-pipe"],
)
def test_no_code_of_the_folder_runs(command, words, workspace):
    told = plant(workspace)
    workspace.run(*command, "+dataset=tiny", "--cfg", "job")
    workspace.run(*command, *words)
    assert workspace.call(*command, "+dataset=tiny", "env.id=Nope-v0").returncode == 1
    assert not told.exists(), told.read_text()


@real_processes
def test_trust_in_an_installed_module_opens_the_folder_to_nobody(workspace):
    told = plant(workspace)
    (workspace.root / "numpy").mkdir()
    environment = {"MINARI_PIPE_TRUSTED_MODULES": "numpy"}
    workspace.run(*SCRIPT, *LAST_STAGES, **environment)
    assert not told.exists(), told.read_text()


def test_what_a_namesake_of_an_installed_module_imports_is_not_opened(workspace):
    """The installed one runs, so what the file in the folder says to import is not asked for."""
    told = plant(workspace)
    (workspace.root / "mine.py").write_text("import numpy\n")
    (workspace.root / "numpy.py").write_text("import hydra_plugins, shimmy\n")
    workspace.run(*SCRIPT, "bump", "tiny", MINARI_PIPE_TRUSTED_MODULES="mine")
    assert not told.exists(), told.read_text()


INSTALLED = {
    "a package": {"site/my_envs/__init__.py": "", "site/my_envs/a.py": ""},
    "a part of a namespace": {"site/my_envs/a.py": ""},
    "what an editable install finds": {
        "site/sitecustomize.py": (
            "import importlib.util, pathlib, sys\n"
            "class Finder:\n"
            "    @staticmethod\n"
            "    def find_spec(name, path=None, target=None):\n"
            "        file = pathlib.Path(__file__).parent.parent / 'source' / f'{name}.py'\n"
            "        if name == 'my_envs':\n"
            "            return importlib.util.spec_from_file_location(name, file)\n"
            "sys.meta_path.append(Finder)\n"
        ),
        "source/my_envs.py": "",
    },
}


@real_processes
@pytest.mark.parametrize("files", INSTALLED.values(), ids=INSTALLED)
def test_what_is_installed_otherwise_has_no_namesake_opened(files, workspace, tmp_path):
    """As above, where the trusted name is found by no file of its own on the import path."""
    told = plant(workspace)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (workspace.root / "my_envs").mkdir()
    for name in ("__init__", "a"):
        (workspace.root / "my_envs" / f"{name}.py").write_text("import hydra_plugins, shimmy\n")
    trust = {"MINARI_PIPE_TRUSTED_MODULES": "my_envs", "PYTHONPATH": str(tmp_path / "site")}
    workspace.run(*SCRIPT, "bump", "tiny", **trust)
    assert not told.exists(), told.read_text()


@real_processes
def test_a_python_that_an_imported_package_starts_looks_for_nothing_in_the_folder(workspace):
    """MuJoCo imports glfw, which tries in another process whether it can load its library."""
    pytest.importorskip("mujoco")
    told = plant(workspace)
    (workspace.root / "ctypes.py").write_text((workspace.root / "evil.py").read_text())
    choice = ("env.id=InvertedPendulum-v5", "collect.n_episodes=2", "ref_scores.n_episodes=2")
    workspace.run(*MODULE, "+dataset=tiny", *choice)
    assert not told.exists(), told.read_text()


OWN = {
    "my_policies.py": "import my_tools\ndef go(observation): return my_tools.action()\n",
    "my_tools/__init__.py": "from .choice import action\n",
    "my_tools/choice.py": "def action():\n    import my_action\n    return my_action.LEFT\n",
    "my_action.py": "LEFT = 0\n",
}
"""Modules of the user's, of which one is named; it imports the others, also in a function."""


@real_processes
@pytest.mark.parametrize("engine", ["processes", "ray"] if FULL else ["ray"])
def test_only_the_trusted_modules_and_what_they_import_come_from_the_folder(engine, workspace):
    told = plant(workspace)
    hostile = (workspace.root / "evil.py").read_text()
    for name in ("_winapi", "msvcrt", "envwrap", "cv2", "pygame", "numpy", "gymnasium"):
        (workspace.root / f"{name}.py").write_text(hostile)
    for file, text in OWN.items():
        (workspace.root / file).parent.mkdir(exist_ok=True)
        (workspace.root / file).write_text(text)
    choice = ("policy=scripted", "+policy.controller._target_=my_policies.go", f"engine={engine}")
    workspace.run(*SCRIPT, "+dataset=tiny", *choice, "--trust-module=my_policies")
    assert not told.exists(), told.read_text()


@pytest.mark.parametrize("command", [MODULE, SCRIPT], ids=["python -m", "minari-pipe"])
def test_a_link_to_the_installed_package_opens_the_folder_to_nobody(command, workspace):
    told = plant(workspace)
    (workspace.root / "numpy.py").write_text((workspace.root / "evil.py").read_text())
    link = workspace.root / "minari_pipe"
    link.symlink_to(Path(minari_pipe.__file__).parent)
    done = workspace.call(*command, "+dataset=tiny", "collect.seed=5")
    assert not told.exists(), told.read_text()
    assert done.returncode == 1
    assert f"{link} is a symlink to" in done.stdout


@real_processes
def test_no_module_is_read_because_a_config_names_it(workspace, tmp_path):
    """Its names and texts would be kept in the workspace, which may track the file."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "acme_secret.py").write_text("import acme_billing\nPASSWORD = 'hunter2'\n")
    named = "id: CartPole-v1, wrappers: [{_target_: acme_secret.Wrap}]"
    workspace.replace("conf/dataset/tiny.yaml", "id: CartPole-v1", named)
    assert "'acme_secret.Wrap' is neither" in workspace.refused(
        "+dataset=tiny", PYTHONPATH=str(private)
    )
    kept = [f.read_text() for f in (workspace.root / ".minari_pipe").glob("*.json")]
    assert not [text for text in kept if "acme" in text or "hunter2" in text]


def test_python_s_own_library_comes_from_python(workspace):
    hostile = f"open({str(workspace.home / 'executed')!r}, 'a').write(__name__)\n"
    for name in ("typing", "json", "hashlib", "platform", "dataclasses"):
        (workspace.root / f"{name}.py").write_text(hostile)
    workspace.run(*MODULE, "list")
    assert not (workspace.home / "executed").exists()


def compile_hostile(source: Path, told: Path) -> None:
    """Bytecode beside a source, which Python runs without a look at that."""
    code = source.with_name("hostile.txt")
    code.write_text(f"open({str(told)!r}, 'a').write(__name__)\n{source.read_text()}")
    py_compile.compile(
        str(code),
        cfile=importlib.util.cache_from_source(str(source)),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def test_bytecode_of_the_folder_is_not_run_in_place_of_a_trusted_source(workspace):
    told = workspace.home / "executed"
    (workspace.root / "my_tools.py").write_text("LEFT = 0\n")
    source = "import my_tools\ndef go(observation): return my_tools.LEFT\n"
    (workspace.root / "my_policies.py").write_text(source)
    for name in ("my_tools", "my_policies"):
        compile_hostile(workspace.root / f"{name}.py", told)
    choice = ("policy=scripted", "+policy.controller._target_=my_policies.go")
    workspace.run(*SCRIPT, "+dataset=tiny", *choice, "--trust-module=my_policies")
    assert not told.exists(), told.read_text()


def test_of_a_trusted_package_its_sources_are_imported_and_nothing_else(workspace):
    told = workspace.home / "executed"
    package = workspace.root / "my_policies"
    package.mkdir()
    (package / "__init__.py").touch()
    optional = "try:\n    from my_policies import _fast\nexcept ImportError:\n    pass\n"
    (package / "push.py").write_text(f"{optional}def go(observation): return 0\n")
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (package / f"push{suffix}").write_bytes(b"of other code")  # Python takes it first
    (workspace.root / "fast.py").write_text(f"open({str(told)!r}, 'w')")
    py_compile.compile(str(workspace.root / "fast.py"), cfile=str(package / "_fast.pyc"))
    choice = ("policy=scripted", "+policy.controller._target_=my_policies.push.go")
    workspace.run(*SCRIPT, "+dataset=tiny", *choice, "--trust-module=my_policies")
    assert not told.exists()


@real_processes
def test_what_conf_says_to_hydra_is_not_run_by_its_own_help(workspace):
    told = workspace.home / "executed"
    (workspace.root / "evil.py").write_text(f"open({str(told)!r}, 'w')\n")
    handlers = "{h: {(): runpy.run_path, path_name: evil.py}}"
    text = f"# @package _global_\nhydra: {{hydra_logging: {{version: 1, handlers: {handlers}}}}}\n"
    (workspace.root / "conf" / "dataset" / "evil.yaml").write_text(text)
    done = workspace.call(*SCRIPT, "+dataset=evil", "--hydra-help")
    assert not told.exists()
    assert "--multirun" in done.stdout


@real_processes
def test_init_runs_no_code_of_the_folder(workspace):
    told = plant(workspace)
    (workspace.root / "dvc.py").write_text((workspace.root / "evil.py").read_text())
    workspace.run(*SCRIPT, "init")
    assert not told.exists(), told.read_text()


def test_every_command_imports_the_trusted_modules_of_the_workspace(workspace):
    (workspace.root / "my_envs.py").write_text(
        "from my_cart import Cart\n"
        "import gymnasium as gym\n"
        "gym.register('Cart-v0', entry_point='my_envs:Cart', max_episode_steps=20)\n"
    )
    (workspace.root / "my_cart.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Cart(CartPoleEnv): __module__ = 'my_envs'\n"
    )
    workspace.pipe("+dataset=tiny", "env.id=my_envs:Cart-v0", "--trust-module=my_envs")
    validate = (*SCRIPT, "validate", "tests/tiny-v0")
    assert "ok, " in workspace.run(*validate, "--trust-module", "my_envs")
    assert "ok, " in workspace.run(*validate, MINARI_PIPE_TRUSTED_MODULES="my_envs")
    workspace.replace("pipelines/tiny/params.yaml", "seed: 0", "seed: 7")
    told = workspace.call("dvc", "repro", "-f", "pipelines/tiny/dvc.yaml:collect").stdout
    assert "set MINARI_PIPE_TRUSTED_MODULES=my_envs" in told


def test_a_package_of_our_name_is_not_run_in_place_of_this_one(workspace):
    (workspace.root / "minari_pipe").mkdir()
    (workspace.root / "minari_pipe" / "__init__.py").write_text("")
    done = workspace.call(*SCRIPT, "+dataset=tiny", "collect.seed=5")
    assert done.returncode == 1
    assert "is not the running package" in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_module_that_python_takes_from_elsewhere_is_refused(workspace):
    (workspace.root / "yaml.py").write_text("")
    (workspace.root / "mine.py").write_text("import yaml\ndef go(observation): return 0\n")
    choice = ("policy=scripted", "+policy.controller._target_=mine.go", "--trust-module=mine")
    told = workspace.refused("+dataset=tiny", *choice)
    assert f"{workspace.root / 'yaml.py'} is hidden by " in told
    (workspace.root / "yaml.py").rename(workspace.root / "helper.py")
    (workspace.root / "mine.py").write_text("import helper\ndef go(observation): return 0\n")
    assert "collect" in workspace.pipe("+dataset=tiny", *choice)
