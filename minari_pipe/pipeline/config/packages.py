"""Finds the packages that determine the bytes of each stage, with their installed versions."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import sys
from pathlib import Path

from minari_pipe.core.requirements import distributions_of
from minari_pipe.core.trust import split_target
from minari_pipe.errors import MissingDependencyError
from minari_pipe.pipeline.config import import_graph
from minari_pipe.pipeline.config.policy_refs import (
    PolicyRef,
    made_environments,
    policies,
    trains,
)
from minari_pipe.pipeline.config.schema import Config, Dataset, Params
from minari_pipe.pipeline.workspace import PACKAGE


def is_masked(use: PolicyRef) -> bool:
    """Return whether a policy's algorithm uses action masks."""
    from minari_pipe.policies.algorithms import find_algorithm

    algorithm = use.settings.algorithm
    return algorithm is not None and find_algorithm(algorithm).masked


def installed_packages(params: Config, root: Path) -> dict[str, dict[str, str]]:
    """Return the versions of the packages that determine what each stage writes.

    Args:
        params: the parameters of a pipeline.
        root: the workspace, which may hold modules that import packages.
    """
    from minari_pipe.core.environments import packages_of

    env, eval_env = params.env, params.ref_scores.environment
    made = packages_of(env.id)
    numpy = {"numpy": importlib.metadata.version("numpy")}
    files = {**numpy, "h5py": importlib.metadata.version("h5py")}
    found = {
        "collect": {**made, **files, **_policy_packages(params, "collect")},
        "create": {**files, **_writer_packages(params.dataset)},
        "ref_scores": {
            **packages_of(eval_env.id),
            **numpy,
            **_policy_packages(params, "ref_scores"),
        },
    }
    for stage in trains(params):
        found[stage] = {**made, **numpy, **_policy_packages(params, stage)}
    if params.family_name:
        found["train"] = {**found["train"], **files}  # the training records its episodes
        found["checkpoint_scores"] = {
            **packages_of(eval_env.id),
            **numpy,
            **_policy_packages(params, "checkpoint_scores"),
        }
    for stage, versions in found.items():
        names = _imported_packages(params, stage, root)
        versions |= {name: importlib.metadata.version(name) for name in names}
    return {stage: dict(sorted(versions.items())) for stage, versions in sorted(found.items())}


def has_imported(params: Config, packages: dict[str, dict[str, str]], root: Path) -> bool:
    """Return whether ``packages`` hold all that the user's modules import now."""
    return all(
        _imported_packages(params, stage, root) <= found.keys() for stage, found in packages.items()
    )


def named_modules(params: Params, stage: str) -> list[str]:
    """Return the modules that the config names and a stage runs."""
    targets = [target for use in policies(params, stage) for target in use.settings.targets]
    modules = []
    for env in made_environments(params, stage):
        modules += [env.id.rpartition(":")[0]] if ":" in env.id else []
        targets += [str(wrapper["_target_"]) for wrapper in env.all_wrappers]
    return [split_target(target)[0] for target in targets] + modules


def _imported_packages(params: Params, stage: str, root: Path) -> set[str]:
    """Return the installed packages that the user's modules of a stage import."""
    files = import_graph.module_closure(named_modules(params, stage), root)
    tops = import_graph.imported_tops(files) - sys.stdlib_module_names - {PACKAGE.name}
    installed = (top for top in tops if import_graph.is_installed_module(top, root))
    return {name for top in installed for name in distributions_of(top)}


def editable_modules(params: Params, stage: str) -> list[str]:
    """Return the modules of a stage's packages that are editable installs.

    Their version does not change with an edit, so their files are dependencies of the stage.
    """
    stages = params.packages if stage == "validate" else [stage]
    names = {name for of in stages for name in params.packages.get(of, {})}
    return sorted(module for name in names for module in _if_editable(name))


@functools.cache  # stages share packages
def _if_editable(name: str) -> list[str]:
    """Return the top-level modules of a package that is an editable install, else none."""
    try:
        distribution = importlib.metadata.distribution(name)
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if not origin["dir_info"]["editable"]:
            return []
    except (ImportError, ValueError, LookupError, TypeError):  # not installed, or no such record
        return []
    return (distribution.read_text("top_level.txt") or name.replace("-", "_")).split()


def _writer_packages(stored: Dataset) -> dict[str, str]:
    """Return the versions of the optional packages that write the dataset."""
    names = {"pyarrow": "arrow"} if stored.data_format in ("arrow", "parquet") else {}
    names |= {"pillow": "jpeg"} if stored.jpeg_encoding else {}
    found = {}
    for name, extra in names.items():
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as exc:
            raise MissingDependencyError(
                f"storing the dataset needs {name}, which is not installed. Run: pip install "
                f"'minari_pipe[{extra}]'"
            ) from exc
    return found


def _policy_packages(params: Params, stage: str) -> dict[str, str]:
    names: list[str] = []
    for use in policies(params, stage):
        for target in use.settings.targets:
            module, _ = split_target(target)
            if target.endswith(".SB3Policy"):
                names += _sb3_packages(use)
            elif module.split(".")[0] != PACKAGE.name:
                top = module.split(".")[0]
                names += distributions_of(top)
    return {name: importlib.metadata.version(name) for name in names}


def _sb3_packages(use: PolicyRef) -> tuple[str, ...]:
    from minari_pipe.policies.algorithms import find_algorithm, missing_package

    name = str(use.settings.algorithm)
    found = find_algorithm(name).distributions
    for distribution in found:
        try:
            importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError as exc:
            raise missing_package(name, distribution) from exc
    return found
