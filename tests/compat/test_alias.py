"""Under the alias ``import minari`` is this library: its paths, its names, the same objects."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import minari as real_minari
import pytest

import minari_pipe
from minari_pipe import alias
from minari_pipe.errors import MinariPipeError

#: built together with what they do; the alias names them already
PLANNED = {
    "CloudStorage",
    "DEFAULT_REMOTE",
    "GCPStorage",
    "HuggingFaceStorage",
    "get_cloud_storage",
}

#: how Minari does things inside: nobody's API
INSIDE = {
    "NumpyEncoder",
    "TableTree",
    "encode_frame",
    "flatten_dict",
    "get_arrow_storage",
    "get_gcps",
    "get_hdf5_storage",
    "get_hfs",
    "get_parquet_storage",
    "type_value_dispatch",
    "unflatten_dict",
    # the commands of its command line, which are called by their words
    "combine",
    "common",
    "delete",
    "download",
    "list_cmd",
    "show",
    "upload",
}


@pytest.fixture
def aliased() -> Iterator[None]:
    alias.install(force=True)  # this module has imported the real one, to compare with
    yield
    alias.uninstall()


def _paths_of_real_minari() -> list[str]:
    found = pkgutil.walk_packages(real_minari.__path__, "minari.", onerror=lambda name: None)
    return ["minari", *(module.name for module in found)]


def _names_of(module: ModuleType) -> set[str]:
    """The names that a module of the real Minari defines, or has from another one of them."""

    def is_own(name: str, value: object) -> bool:
        home = getattr(value, "__module__", None)
        if isinstance(value, ModuleType):
            return value.__name__.startswith("minari.")
        return (home or "minari").startswith("minari") and (home is not None or name.isupper())

    return {
        name
        for name, value in vars(module).items()
        if name == "__version__" or (not name.startswith("_") and is_own(name, value))
    }


PATHS = _paths_of_real_minari()
NAMES = {}
for _path in PATHS:
    with contextlib.suppress(ImportError):  # its remotes need packages that nothing else does
        NAMES[_path] = _names_of(importlib.import_module(_path))


@pytest.mark.parametrize("path", PATHS)
def test_every_module_path_of_minari_is_importable(aliased: None, path: str) -> None:
    module = importlib.import_module(path)
    assert module.__spec__.loader is sys.modules["minari"].__spec__.loader
    assert importlib.util.find_spec(path) is module.__spec__


@pytest.mark.parametrize("path", NAMES)
def test_every_name_that_minari_has_at_a_path_is_there(aliased: None, path: str) -> None:
    module = importlib.import_module(path)
    missing = {name for name in NAMES[path] - INSIDE if not hasattr(module, name)}
    assert missing <= PLANNED
    assert NAMES[path] - INSIDE <= set(dir(module))


@pytest.mark.parametrize("path", alias._MODULES)
def test_every_home_of_the_table_has_its_name(aliased: None, path: str) -> None:
    module = importlib.import_module(path)
    names = {name for name in alias._homes(path) if not name.startswith("_")}
    assert {name for name in names if not hasattr(module, name)} <= PLANNED
    found: dict[str, object] = {}
    exec(f"from {path} import *", found)
    assert found.keys() >= (set(alias._STAR.split()) if path == "minari" else names - PLANNED)


def test_what_is_named_here_but_not_built_says_so(aliased: None) -> None:
    with pytest.raises(AttributeError, match="'minari.utils' has no attribute 'no_such'"):
        _ = importlib.import_module("minari.utils").no_such
    with pytest.raises(ImportError, match="cannot import name 'no_such' from 'minari'"):
        from minari import no_such  # noqa: F401


def test_the_objects_are_the_same_by_either_name(aliased: None) -> None:
    import minari
    from minari.dataset.minari_dataset import MinariDatasetSpec
    from minari.dataset.minari_storage import MinariStorage
    from minari.serialization import serialize_space

    assert minari is not real_minari
    assert minari.MinariDataset is minari_pipe.MinariDataset
    assert minari.storage.local.load_dataset is minari_pipe.load_dataset
    assert minari.utils.combine_datasets is minari_pipe.combine_datasets
    assert minari.data_collector.callbacks.StepDataCallback is minari_pipe.StepDataCallback
    assert MinariDatasetSpec.__module__.startswith("minari_pipe")
    assert MinariStorage.__module__.startswith("minari_pipe")
    assert serialize_space.__module__.startswith("minari_pipe")


def test_the_version_is_the_standard_s(aliased: None) -> None:
    import minari

    assert minari.__version__ == real_minari.__version__ == "0.5.4"
    assert importlib.metadata.version("Minari") == "0.5.4"
    assert "minari_pipe" not in importlib.metadata.packages_distributions().get("minari", [])
    assert minari.supported_dataset_versions is minari_pipe.supported_dataset_versions
    assert minari_pipe.__version__ != minari.__version__


def test_a_star_import_brings_what_minari_s_does(aliased: None) -> None:
    import minari

    assert sorted(minari.__all__) == sorted(real_minari.__all__)


def test_no_file_of_this_library_is_found_under_minari_s_name(aliased: None) -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'minari.errors'"):
        importlib.import_module("minari.errors")


def test_old_code_finds_its_step_data_keys(aliased: None) -> None:
    from minari.data_collector.callbacks.step_data import STEP_DATA_KEYS

    assert {"observations", "actions", "infos"} < STEP_DATA_KEYS


def test_constants_are_minari_s(aliased: None) -> None:
    from minari.data_collector.data_collector import AUTOSEED_BIT_SIZE
    from minari.dataset.minari_dataset import DATASET_ID_RE
    from minari.dataset.minari_storage import METADATA_FILE_NAME

    assert AUTOSEED_BIT_SIZE == 64
    assert DATASET_ID_RE.fullmatch("D4RL/door/human-v2").group("namespace") == "D4RL/door"
    assert METADATA_FILE_NAME == "metadata.json"


def test_subfolders_are_listed_without_hidden_ones(aliased: None, tmp_path: Path) -> None:
    from minari.storage.local import list_non_hidden_dirs

    for name in ("seen", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    assert list(list_non_hidden_dirs(tmp_path)) == ["seen"]


def test_reloading_changes_nothing(aliased: None) -> None:
    import minari

    before = minari.MinariDataset
    assert importlib.reload(minari) is minari
    assert minari.MinariDataset is before
    assert importlib.reload(minari.utils).get_normalized_score is minari_pipe.get_normalized_score


def test_a_pickle_that_names_minari_is_read_under_the_alias(aliased: None) -> None:
    import minari

    buffer = minari_pipe.EpisodeBuffer(seed=3)
    assert pickle.loads(pickle.dumps(buffer)) == buffer
    by_name = b"cminari.data_collector.episode_buffer\nEpisodeBuffer\n."
    assert pickle.loads(by_name) is minari_pipe.EpisodeBuffer
    assert pickle.loads(pickle.dumps(minari.MinariDataset)) is minari_pipe.MinariDataset


def test_a_name_can_be_patched_and_put_back(aliased: None, monkeypatch) -> None:
    import minari

    with monkeypatch.context() as patch:
        patch.setattr("minari.load_dataset", 7)
        assert minari.load_dataset == 7
    assert minari.load_dataset is minari_pipe.load_dataset


def test_the_real_minari_is_not_pushed_aside_unasked() -> None:
    with pytest.raises(MinariPipeError, match=r"^minari is already imported, from .*force=True"):
        alias.install()
    assert sys.modules["minari"] is real_minari


def test_it_is_installed_once_and_leaves_no_trace() -> None:
    before = list(sys.meta_path)
    modules = {name: module for name, module in sys.modules.items() if "minari" in name}
    alias.install(force=True)
    alias.install()
    import minari.utils

    assert minari.__file__ == alias.__file__
    assert len(sys.meta_path) == len(before) + 1
    alias.uninstall()
    alias.uninstall()
    assert sys.meta_path == before
    assert sys.modules["minari"] is real_minari
    assert {n: m for n, m in sys.modules.items() if "minari" in n}.items() >= modules.items()


# --- Programs of their own ------------------------------------------------------------------------


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(minari_pipe.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=env, timeout=120
    )


SCRIPT = """
import json, sys
import minari, minari_pipe, beside
from minari.dataset.minari_storage import MinariStorage
assert __name__ == "__main__"
print(json.dumps([sys.argv, minari.MinariDataset is minari_pipe.MinariDataset, beside.here]))
"""


def test_a_script_runs_under_the_alias_as_python_would_run_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("here = 1")
    done = run("-m", "minari_pipe.alias", "folder/script.py", "--flag", "7", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["folder/script.py", "--flag", "7"], True, 1]
    done = run("-m", "minari_pipe.alias", "-m", "script", "--flag", cwd=folder)
    assert done.returncode == 0, done.stderr
    (argv, same, here) = json.loads(done.stdout)
    assert (Path(argv[0]).name, argv[1:], same, here) == ("script.py", ["--flag"], True, 1)


def test_a_requirement_of_minari_is_met_by_the_alias_alone(tmp_path: Path) -> None:
    program = """
import importlib.metadata as metadata
import warnings

find = metadata.MetadataPathFinder.find_distributions
metadata.MetadataPathFinder.find_distributions = classmethod(  # as if it were not installed
    lambda cls, context: () if context.name == "minari" else find(context)
)
try:
    metadata.version("minari")
except metadata.PackageNotFoundError:
    print("not installed")

import minari_pipe.alias
minari_pipe.alias.install()
import gymnasium, minari

env = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=2))
env.reset(seed=1)
env.step(0)
env.step(1)
dataset = env.create_dataset("aa/b-v0", requirements=[f"minari>=0.4,<={minari.__version__}"])
with warnings.catch_warnings():
    warnings.simplefilter("error")
    print(dataset.recover_environment().spec.id)
"""
    done = run("-W", "ignore", "-c", program, cwd=tmp_path)
    assert done.stdout.split("\n")[:2] == ["not installed", "CartPole-v1"], done.stderr


def test_a_script_s_exit_code_is_the_process_s(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import sys; sys.exit(3)")
    assert run("-m", "minari_pipe.alias", "fails.py", cwd=tmp_path).returncode == 3
    for arguments in ([], ["-m"], ["--help"]):
        done = run("-m", "minari_pipe.alias", *arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith("usage: python -m minari_pipe.alias (SCRIPT | -m MODULE)")


def test_installing_it_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys, minari_pipe.alias as a; a.install(); import minari, minari.utils; "
        "print([m for m in ('gymnasium', 'h5py', 'hydra', 'torch') if m in sys.modules])"
    )
    done = run("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_forked_process_has_the_alias_and_a_dataset_travels(tmp_path: Path) -> None:
    program = """
import multiprocessing, numpy as np
import minari_pipe.alias
minari_pipe.alias.install()
import minari, gymnasium
from minari.data_collector import EpisodeBuffer

def total(dataset):
    import minari
    assert isinstance(dataset, minari.MinariDataset)
    return sum(len(episode) for episode in dataset)

def main():
    space = gymnasium.spaces.Box(-9, 9, (1,), np.float64)
    buffer = EpisodeBuffer(
        observations=np.zeros((4, 1)), actions=np.zeros((3, 1)), rewards=np.zeros(3),
        terminations=np.array([0, 0, 1], bool), truncations=np.zeros(3, bool),
    )
    dataset = minari.create_dataset_from_buffers(
        "aa/b-v0", [buffer] * 2, observation_space=space, action_space=space,
    )
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.apply(total, (dataset,)))

if __name__ == "__main__":
    main()
"""
    (tmp_path / "program.py").write_text(program)
    done = run("-W", "ignore", "program.py", cwd=tmp_path)
    assert done.stdout.split() == ["6", "6"], done.stderr
