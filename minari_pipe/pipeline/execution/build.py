"""From a stage's parameters to the objects it runs: environments and policies."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium as gym

from minari_pipe.core.environments import make_environment
from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.fetch import FileSource, locate
from minari_pipe.core.trust import resolve
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.import_graph import make_importable
from minari_pipe.pipeline.config.policy_refs import SOURCE_KEYS, PolicyRef, source_file, sources
from minari_pipe.pipeline.execution.block_task import BlockPlace
from minari_pipe.policies import CONTROLLERS, registered_policies
from minari_pipe.policies.algorithms import trained_policy_kwargs
from minari_pipe.policies.base import Policy


def environment_factory(env: dict[str, Any], root: Path) -> Callable[[], gym.Env]:
    """A function that makes the environment that ``env`` describes."""
    make_importable(root)
    return lambda: make_environment(env["id"], env["kwargs"], env["wrappers"])


def make_policy(
    config: dict[str, Any],
    *,
    where: str,
    root: Path,
    trained: Path | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> Policy:
    """The policy that ``config`` describes.

    Args:
        config: as under ``policy``: ``_target_`` and its arguments.
        where: the key of ``config``, for messages.
        root: the workspace, from which relative paths and the user's modules are looked up.
        trained: folder that the training stage filled, where ``config`` has a ``train:`` block.
        files: of that folder, by their names, those that are elsewhere.

    Raises:
        TrustError: a name that the user does not trust.
        ConfigError: arguments that the policy does not take.
    """
    make_importable(root)
    arguments = dict(config)
    target = str(arguments.pop("_target_"))
    found = resolve(target, registered_policies(), what=f"{where}._target_")
    train = arguments.pop("train", None)
    given = [where.rpartition(".")[2] for where, _ in sources(PolicyRef("", config))]
    for key in SOURCE_KEYS:
        if key in given:
            arguments[key] = _source(arguments[key], root)
        else:
            arguments.pop(key, None)
    if train:
        assert trained is not None
        made = {name: str(trained / name) for name in ("policy.zip", "normalize.npz")}
        made |= files
        arguments["checkpoint"] = FileSource(path=made["policy.zip"])
        arguments["policy_kwargs"] = trained_policy_kwargs(
            arguments["policy_kwargs"], train["hyperparameters"]
        )
        if train["normalize_observations"]:
            arguments["normalize"] = FileSource(path=made["normalize.npz"])
    if isinstance(arguments.get("controller"), dict):
        rest = dict(arguments.pop("controller"))
        controller = resolve(
            str(rest.pop("_target_")), CONTROLLERS, what=f"{where}.controller._target_"
        )
        arguments |= {"controller": controller, "kwargs": rest}
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(
            f"{where}._target_: {target!r} is not a minari_pipe.policies.base.Policy; a plain "
            f"callable goes under policy=scripted, controller._target_"
        )
    try:
        return found(**arguments)
    except TypeError as exc:
        raise ConfigError(f"{where}: {exc}") from exc


@dataclass(frozen=True)
class PolicyConfig:
    """A policy as plain values, from which each process makes its own."""

    config: dict[str, Any]
    """As under ``policy``."""
    where: str
    """The key of ``config``, for messages."""
    trained: str | None = None
    """Folder below the workspace that the training stage filled, if there is one."""

    @classmethod
    def of(
        cls, config: dict[str, Any], where: str, root: Path, trained: Path | None
    ) -> PolicyConfig:
        """The same with the folder of the training below the workspace ``root``, if any."""
        return cls(config, where, None if trained is None else str(trained.relative_to(root)))

    def make(self, place: BlockPlace) -> Policy:
        """The policy; errors as :func:`make_policy`.

        A process keeps the last one that it made: a network need not be built for each block.

        Args:
            place: where the files are.
        """
        root, files = str(place.root), dict(place.files)
        text = json.dumps([self.config, self.where, self.trained, root, files], sort_keys=True)
        return _made(text)

    def files(self, root: Path) -> dict[str, Path]:
        """The files that the policy is made from, by the key that names them."""
        found = {}
        for where, values in sources(PolicyRef("", self.config)):
            key = where.rpartition(".")[2]
            found[key] = locate(
                _source(values, root), what=f"the {key}", override=f"{self.where}.{key}.path=FILE"
            )
        if self.config.get("train") and self.trained is not None:
            folder = root / self.trained
            found |= {f"{self.trained}/{f.name}": f for f in folder.iterdir() if f.is_file()}
        return found


@functools.lru_cache(maxsize=1)
def _made(text: str) -> Policy:
    config, where, trained, root, files = json.loads(text)
    config |= {key: {"path": path} for key, path in files.items() if key in SOURCE_KEYS}
    folder = Path(root) / trained if trained else None
    elsewhere = {
        key.rpartition("/")[2]: path
        for key, path in files.items()
        if key.rpartition("/")[0] == trained
    }
    return make_policy(config, where=where, root=Path(root), trained=folder, files=elsewhere)


def _source(config: dict[str, Any], root: Path) -> FileSource:
    path = config.get("path")
    if path is not None:
        path = str(source_file(path, root))
    return FileSource(path=path, address=config.get("address"), sha256=config.get("sha256"))


def source_hashes(
    config: dict[str, Any], root: Path, trained: Path | None = None
) -> dict[str, str]:
    """sha256 of every file a policy was made from, by the key that names it."""
    hashes = {}
    for where, values in sources(PolicyRef("", config)):
        source = _source(values, root)
        hashes[where.rpartition(".")[2]] = (
            sha256_file(source.path) if source.path else str(source.sha256)
        )
    if config.get("train") and trained is not None:
        for file in sorted(path for path in trained.iterdir() if path.is_file()):
            hashes[f"train/{file.name}"] = sha256_file(file)
    return hashes
