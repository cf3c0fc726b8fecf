"""Make ``import minari`` mean this library in the running process, for code that names Minari.

Opt-in: nothing happens until :func:`install` is called, or a program is started with ::

    python -m minari_pipe.alias train.py --its-own arguments
    python -m minari_pipe.alias -m some.module

Arrays of episodes are then writable by default, as in Minari.

The objects are the same (``minari.MinariDataset is minari_pipe.MinariDataset``), so pickles and
``isinstance`` work whichever name was imported. A newly started process (``spawn`` of
multiprocessing) must install the alias itself if it imports Minari by name.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import runpy
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from minari_pipe.core import views
from minari_pipe.core.metadata import MINARI_VERSION
from minari_pipe.errors import MinariPipeError

#: The value of ``minari.__version__``: the version of the standard, not of this package.
__version__ = MINARI_VERSION

#: The keys that a step callback returned before Minari 0.5.
STEP_DATA_KEYS = {"actions", "observations", "rewards", "terminations", "truncations", "infos"}

_HERE = "minari_pipe.alias"
_PUBLIC = "minari_pipe"
_IDS = "minari_pipe.core.dataset_id"
_CLOUD = "minari_pipe.remotes.cloud_storage"
_REMOTES = "minari_pipe.remotes"
_ROOT = "minari_pipe.core.datasets_root"
_SPACES = "minari_pipe.core.spaces"
_STORAGE = "minari_pipe.storage.base"
_TABLES = "minari_pipe.datasets.spec_tables"

#: Every module path of Minari 0.5.4, and of 0.4 where it differs, mapped to its names by the module
#: that they come from.
_MODULES: dict[str, dict[str, str]] = {
    "minari": {
        _PUBLIC: """
            MinariDataset EpisodeData StepData DataCollector EpisodeMetadataCallback
            StepDataCallback download_dataset list_remote_datasets upload_dataset delete_dataset
            list_local_datasets load_dataset combine_datasets create_dataset_from_buffers
            split_dataset get_normalized_score supported_dataset_versions
            DataCollectorV0 create_dataset_from_collector_env""",
        _HERE: "__version__",
    },
    "minari.cli": {
        "minari_pipe.cli": "app",
        "minari.storage": "hosting local",
        _PUBLIC: "combine_datasets",
        _IDS: "namespace_hierarchy parse_dataset_id",
        _ROOT: "get_dataset_path",
        _TABLES: "get_dataset_spec_dict get_env_spec_dict",
        _REMOTES: "DEFAULT_REMOTE",
        _HERE: "__version__",
    },
    "minari.data_collector": {_PUBLIC: "DataCollector EpisodeBuffer DataCollectorV0"},
    "minari.data_collector.data_collector": {
        _PUBLIC: """
            DataCollector EpisodeBuffer EpisodeMetadataCallback MinariDataset StepDataCallback
            create_namespace list_local_namespaces DataCollectorV0""",
        _IDS: "parse_dataset_id",
        _STORAGE: "MinariStorage",
        "minari_pipe.recording.collector": "AUTOSEED_BIT_SIZE",
    },
    "minari.data_collector.episode_buffer": {_PUBLIC: "EpisodeBuffer StepData"},
    "minari.data_collector.callbacks": {
        _PUBLIC: "EpisodeMetadataCallback StepDataCallback",
        _HERE: "STEP_DATA_KEYS",
    },
    "minari.data_collector.callbacks.episode_metadata": {_PUBLIC: "EpisodeMetadataCallback"},
    "minari.data_collector.callbacks.step_callback": {_PUBLIC: "StepDataCallback StepData"},
    # removed after 0.4.3
    "minari.data_collector.callbacks.step_data": {
        _PUBLIC: "StepDataCallback",
        _HERE: "STEP_DATA_KEYS",
    },
    "minari.dataset": {},
    "minari.dataset.episode_data": {_PUBLIC: "EpisodeData"},
    "minari.dataset.step_data": {_PUBLIC: "StepData"},
    "minari.dataset.minari_dataset": {
        _PUBLIC: "MinariDataset EpisodeBuffer EpisodeData",
        "minari_pipe.datasets.dataset": "MinariDatasetSpec",
        _IDS: """
            gen_dataset_id parse_dataset_id DATASET_ID_RE DATASET_NAME_RE NAMESPACE_RE
            VERSION_RE""",
        _STORAGE: "MinariStorage PathLike",
    },
    "minari.dataset.minari_storage": {
        _STORAGE: "MinariStorage METADATA_FILE_NAME PathLike get_minari_storage get_storage_keys",
        _SPACES: "is_image_space serialize_space deserialize_space",
        _PUBLIC: "EpisodeBuffer",
    },
    "minari.dataset._storages": {
        _STORAGE: "MinariStorage get_minari_storage get_storage_keys",
    },
    "minari.dataset._storages.hdf5_storage": {
        "minari_pipe.storage.hdf5.storage": "HDF5Storage",
        _STORAGE: "MinariStorage",
        _SPACES: "is_image_space",
        _PUBLIC: "EpisodeBuffer",
    },
    "minari.dataset._storages.arrow_storage": {
        "minari_pipe.storage.arrow.storage": "ArrowStorage ParquetStorage",
        _STORAGE: "MinariStorage",
        _SPACES: "is_image_space",
        _PUBLIC: "EpisodeBuffer",
    },
    "minari.namespace": {
        _PUBLIC: """
            create_namespace update_namespace_metadata get_namespace_metadata delete_namespace
            list_local_namespaces list_remote_namespaces download_namespace_metadata
            upload_namespace""",
        _IDS: "namespace_hierarchy validate_namespace NAMESPACE_REGEX",
        _ROOT: "get_dataset_path",
        _CLOUD: "get_cloud_storage",
        "minari_pipe.datasets.namespaces": "NAMESPACE_METADATA_FILENAME",
        _HERE: "list_non_hidden_dirs",
    },
    "minari.serialization": {_SPACES: "serialize_space deserialize_space"},
    "minari.storage": {_ROOT: "get_dataset_path"},
    "minari.storage.datasets_root_dir": {_ROOT: "get_dataset_path"},
    "minari.storage.local": {
        _PUBLIC: "load_dataset list_local_datasets delete_dataset MinariDataset",
        _IDS: "dataset_id_sort_key gen_dataset_id parse_dataset_id",
        _ROOT: "get_dataset_path",
        _STORAGE: "MinariStorage",
        "minari.storage": "hosting",
        _HERE: "list_non_hidden_dirs __version__",
    },
    "minari.storage.hosting": {
        _PUBLIC: "download_dataset list_remote_datasets upload_dataset load_dataset",
        _IDS: "gen_dataset_id parse_dataset_id",
        _ROOT: "get_dataset_path",
        _STORAGE: "MinariStorage",
        _CLOUD: "get_cloud_storage",
        _HERE: "__version__",
    },
    "minari.storage.remotes": {
        _CLOUD: "CloudStorage get_cloud_storage",
        _REMOTES: "DEFAULT_REMOTE",
    },
    "minari.storage.remotes.cloud_storage": {_CLOUD: "CloudStorage"},
    "minari.storage.remotes.gcp": {
        _CLOUD: "CloudStorage GCPStorage",
        _PUBLIC: "METADATA_FILE_NAME",
        _ROOT: "get_dataset_path",
    },
    "minari.storage.remotes.huggingface": {
        _CLOUD: "CloudStorage HuggingFaceStorage",
        _PUBLIC: "METADATA_FILE_NAME",
        _ROOT: "get_dataset_path",
    },
    "minari.utils": {
        _PUBLIC: """
            combine_datasets create_dataset_from_buffers get_normalized_score split_dataset
            validate_datasets_to_combine EpisodeBuffer MinariDataset create_namespace
            list_local_namespaces create_dataset_from_collector_env""",
        "minari_pipe.core.scores": "RandomPolicy get_average_reference_score",
        _IDS: "parse_dataset_id",
        _ROOT: "get_dataset_path",
        _SPACES: "deserialize_space",
        _STORAGE: "MinariStorage",
        _TABLES: "get_dataset_spec_dict get_env_spec_dict",
        _HERE: "__version__",
    },
}

#: The names that ``from minari import *`` imports in Minari.
_STAR = """
    MinariDataset EpisodeData StepData DataCollector EpisodeMetadataCallback StepDataCallback
    download_dataset list_remote_datasets upload_dataset delete_dataset list_local_datasets
    load_dataset combine_datasets create_dataset_from_buffers split_dataset get_normalized_score
    """

_ANY = importlib.metadata.DistributionFinder.Context()

#: Modules of the real Minari that ``force=True`` removed; :func:`uninstall` restores them.
_replaced: dict[str, ModuleType] = {}


class _Distribution(importlib.metadata.Distribution):
    """Answers ``importlib.metadata.version("minari")``, which other libraries check."""

    def read_text(self, filename: str) -> str | None:
        text = f"Metadata-Version: 2.1\nName: minari\nVersion: {MINARI_VERSION}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return Path(__file__).parent / path


class _Alias(MetaPathFinder, Loader):
    """Finds and creates the modules of :data:`_MODULES`; their names are resolved on first use."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        # A package without a folder, so that no file of this library is found under Minari's name.
        spec = ModuleSpec(fullname, self, origin=__file__, is_package=bool(_children(fullname)))
        spec.has_location = True
        return spec

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context = _ANY
    ) -> Iterable[importlib.metadata.Distribution]:
        return [_Distribution()] if (context.name or "minari").lower() == "minari" else []

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = f"{module.__name__} of the Minari standard, implemented by minari_pipe."
        homes = _homes(module.__name__)
        children = _children(module.__name__)
        # Omit names from modules that do not exist: a star import would resolve all of them.
        public = [
            name
            for name, home in homes.items()
            if not name.startswith("_") and (home in _MODULES or _is_there(home))
        ]

        def __getattr__(name: str) -> Any:  # noqa: N807 - PEP 562 names it
            if name in children:
                return importlib.import_module(f"{module.__name__}.{name}")
            value = _resolve(module.__name__, name, homes)
            setattr(module, name, value)
            return value

        def __dir__() -> list[str]:  # noqa: N807 - likewise
            return sorted({*vars(module), *homes, *children})

        vars(module).update(
            __getattr__=__getattr__,
            __dir__=__dir__,
            __all__=_STAR.split() if module.__name__ == "minari" else public,
        )


_ALIAS = _Alias()


def install(*, force: bool = False) -> None:
    """Make ``import minari`` and all of Minari's module paths mean this library in this process.

    Call it before anything imports Minari. Calling it again changes nothing.

    Args:
        force: install even if the real Minari is imported; objects already imported from it keep
            their own classes, and :func:`uninstall` restores it.

    Raises:
        MinariPipeError: the real Minari is already imported.

    Example:
        >>> import minari_pipe.alias
        >>> minari_pipe.alias.install(force=True)
        >>> import minari
        >>> minari.MinariDataset is minari_pipe.MinariDataset
        True
        >>> minari_pipe.alias.uninstall()
    """
    if _ALIAS in sys.meta_path:
        return
    real = _loaded()
    if real and not force:
        origin = getattr(sys.modules["minari"], "__file__", None) or "an unknown location"
        raise MinariPipeError(
            f"minari is already imported, from {origin}; call minari_pipe.alias.install() "
            "before the first import of minari, or install(force=True), which does not replace "
            "names that were already imported from it"
        )
    _replaced.update((name, sys.modules.pop(name)) for name in real)
    sys.meta_path.insert(0, _ALIAS)
    views.unasked = False


def uninstall() -> None:
    """Remove the alias and restore the real Minari if :func:`install` replaced it.

    Example:
        >>> import minari_pipe.alias
        >>> minari_pipe.alias.install(force=True)
        >>> minari_pipe.alias.uninstall()
    """
    if _ALIAS not in sys.meta_path:
        return
    sys.meta_path.remove(_ALIAS)
    views.unasked = True
    for name in _loaded():
        del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced.clear()


def list_non_hidden_dirs(path: Path) -> Iterable[str]:
    """Yield the names of a folder's subfolders that do not begin with a dot."""
    return (entry.name for entry in path.iterdir() if entry.is_dir() and entry.name[0] != ".")


def _loaded() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "minari"]


def _homes(module: str) -> dict[str, str]:
    """Map each name of a module to the module of this library that has it."""
    return {name: home for home, names in _MODULES[module].items() for name in names.split()}


def _is_there(home: str) -> bool:
    # Look only for the part directly below minari_pipe: find_spec imports the parents of the rest.
    return importlib.util.find_spec(".".join(home.split(".")[:2])) is not None


def _children(module: str) -> set[str]:
    return {name.rpartition(".")[2] for name in _MODULES if name.rpartition(".")[0] == module}


def _resolve(module: str, name: str, homes: dict[str, str]) -> Any:
    if name not in homes:
        raise AttributeError(
            f"module {module!r} has no attribute {name!r} (it is an alias of minari_pipe with the "
            f"public names of Minari {MINARI_VERSION})"
        )
    try:
        return getattr(importlib.import_module(homes[name]), name)
    except ModuleNotFoundError as exc:
        if exc.name != homes[name]:
            raise
    except AttributeError:
        pass
    raise AttributeError(f"{module}.{name} is not in this version of minari_pipe")


def main(arguments: Sequence[str]) -> None:
    """Run a script, or ``-m`` a module, under the alias with the remaining arguments."""
    is_module = arguments[:1] == ["-m"]
    command = arguments[1:] if is_module else arguments
    if not command or command[0].startswith("-"):
        sys.exit("usage: python -m minari_pipe.alias (SCRIPT | -m MODULE) [ARGUMENT ...]")
    install()
    sys.argv = list(command)
    if is_module:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(command[0]).resolve().parent)  # as Python does for a script
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    # Use the module under its own name, not a second copy called __main__.
    sys.exit(importlib.import_module(_HERE).main(sys.argv[1:]))
