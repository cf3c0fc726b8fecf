"""Build the environments and policies that a stage runs from its parameters."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import gymnasium as gym

from minari_pipe.core.environments import make_environment, wrapped
from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.fetch import FileSource, locate
from minari_pipe.core.trust import resolve
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.import_graph import make_importable
from minari_pipe.pipeline.config.policy_refs import source_file
from minari_pipe.pipeline.config.schema import SOURCE_KEYS, Environment, PolicySettings, Source
from minari_pipe.pipeline.execution.block_task import BlockPlace
from minari_pipe.policies import CONTROLLERS, NOISY, registered_policies
from minari_pipe.policies.algorithms import trained_policy_kwargs
from minari_pipe.policies.base import Policy
from minari_pipe.policies.recorded import Recorded


def environment_factory(env: Environment, root: Path) -> Callable[[], gym.Env]:
    """Return a function that makes the environment that ``env`` describes, as a policy sees it."""
    make_importable(root)

    def make() -> gym.Env:
        made = make_environment(env.id, env.kwargs, env.wrappers)
        if not env.policy_wrappers:
            return made
        return wrapped(Recorded(made), env.policy_wrappers, "env.policy_wrappers")

    return make


def make_policy(
    settings: PolicySettings,
    *,
    where: str,
    root: Path,
    trained: Path | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> Policy:
    """Return the policy that ``settings`` describe.

    Args:
        settings: the section ``policy``: ``_target_`` and its arguments.
        where: the key of the section, for messages.
        root: the workspace, against which relative paths and the user's modules are resolved.
        trained: folder that the training stage filled, if there is a ``train:`` block.
        files: files of that folder that lie elsewhere, by their names.

    Raises:
        TrustError: the user does not trust a name.
        ConfigError: the policy does not take the arguments.
    """
    make_importable(root)
    arguments = dict(settings.arguments)
    found = resolve(settings.target, registered_policies(), what=f"{where}._target_")
    train = settings.train
    for key in ("train", "noise", *SOURCE_KEYS):
        arguments.pop(key, None)
    arguments |= {key: file_source(source, root) for key, source in settings.sources.items()}
    if train:
        assert trained is not None
        made = {name: str(trained / name) for name in ("policy.zip", "normalize.npz")}
        made |= files
        arguments["checkpoint"] = FileSource(path=made["policy.zip"])
        arguments["policy_kwargs"] = trained_policy_kwargs(
            arguments["policy_kwargs"], train.hyperparameters
        )
        if train.normalize_observations:
            arguments["normalize"] = FileSource(path=made["normalize.npz"])
    if isinstance(arguments.get("controller"), dict):
        rest = dict(arguments.pop("controller"))
        controller = resolve(
            str(rest.pop("_target_")), CONTROLLERS, what=f"{where}.controller._target_"
        )
        arguments |= {"controller": controller, "kwargs": rest}
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(
            f"{where}._target_: {settings.target!r} is not a minari_pipe.policies.base.Policy; for "
            f"a plain callable, use policy=scripted and controller._target_"
        )
    try:
        policy = found(**arguments)
    except TypeError as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    if settings.noise is None:
        return policy
    # By its name, as all policies: only stages that run it depend on its code.
    noisy: Policy = importlib.import_module(NOISY).NoisyPolicy(
        policy, settings.noise, f"{where}.noise"
    )
    return noisy


@dataclass(frozen=True)
class PolicyConfig:
    """A policy as plain values, from which each process makes its own."""

    settings: PolicySettings
    where: str
    """The key of the settings, for messages."""
    trained: str | None = None
    """Folder below the workspace that the training stage filled, if there is one."""

    @classmethod
    def of(
        cls, settings: PolicySettings, where: str, root: Path, trained: Path | None
    ) -> PolicyConfig:
        """Return a config that stores the folder ``trained`` relative to the workspace ``root``."""
        return cls(settings, where, None if trained is None else str(trained.relative_to(root)))

    def make(self, place: BlockPlace) -> Policy:
        """Return the policy; raise the errors of :func:`make_policy`.

        A process caches the last policy, so that a network is not built again for each block.

        Args:
            place: where the files are.
        """
        values, files = self.settings.values, dict(place.files)
        text = json.dumps(
            [values, self.where, self.trained, str(place.root), files], sort_keys=True
        )
        return _made(text)

    def files(self, root: Path) -> dict[str, Path]:
        """Return the files that the policy is made from, by the key that names them."""
        found = {}
        for key, source in self.settings.sources.items():
            found[key] = locate(
                file_source(source, root),
                what=f"the {key}",
                override=f"{self.where}.{key}.path=FILE",
            )
        if self.settings.train and self.trained is not None:
            folder = root / self.trained
            found |= {f"{self.trained}/{f.name}": f for f in folder.iterdir() if f.is_file()}
        return found


@functools.lru_cache(maxsize=1)
def _made(text: str) -> Policy:
    values, where, trained, root, files = json.loads(text)
    values |= {key: {"path": path} for key, path in files.items() if key in SOURCE_KEYS}
    settings = PolicySettings.of(values, where)
    folder = Path(root) / trained if trained else None
    elsewhere = {
        key.rpartition("/")[2]: path
        for key, path in files.items()
        if key.rpartition("/")[0] == trained
    }
    return make_policy(settings, where=where, root=Path(root), trained=folder, files=elsewhere)


def file_source(source: Source, root: Path) -> FileSource:
    """Return the file that a config names; a relative path starts at the workspace."""
    path = source.path if source.path is None else str(source_file(source.path, root))
    return FileSource(path=path, address=source.address, sha256=source.sha256)


def source_hashes(
    settings: PolicySettings, root: Path, trained: Path | None = None
) -> dict[str, str]:
    """Return the sha256 of every file that a policy is made from, by the key that names it."""
    hashes = {}
    for key, source in settings.sources.items():
        file = file_source(source, root)
        hashes[key] = sha256_file(file.path) if file.path else str(file.sha256)
    if settings.train and trained is not None:
        for path in sorted(path for path in trained.iterdir() if path.is_file()):
            hashes[f"train/{path.name}"] = sha256_file(path)
    return hashes
