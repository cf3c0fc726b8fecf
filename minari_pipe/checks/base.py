"""Define checks, the dataset that they examine and the findings that they return."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeGuard

import gymnasium as gym

from minari_pipe.core.files.atomic import read_whole
from minari_pipe.core.json_object import json_object
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.core.tree import Path as LeafPath
from minari_pipe.errors import ConfigError
from minari_pipe.storage.base import METADATA_FILE_NAME, MinariStorage
from minari_pipe.storage.legacy.base import LegacyStorage

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One fault: its level, the check that found it, its place and a message.

    An ``error`` blocks publishing; a ``warning`` and a ``note`` do not.
    """

    level: Level
    check: str
    path: str
    """The place, such as ``episode 17 / actions.arm`` or ``metadata / ref_min_score``."""
    message: str
    id: str = ""
    """Id by which a warning can be acknowledged; usually empty."""

    def to_json(self) -> dict[str, str]:
        """Return the other four fields, and ``id`` unless it is empty."""
        fields = {
            "level": self.level,
            "check": self.check,
            "path": self.path,
            "message": self.message,
        }
        return {**fields, "id": self.id} if self.id else fields

    @classmethod
    def from_json(cls, fields: Mapping[str, str], *, check: str = "") -> Finding:
        """Return the finding that other code, such as a policy, reported as a mapping.

        Args:
            fields: ``level``, ``path``, ``message`` and optionally ``check`` and ``id``.
            check: name of the check if ``fields`` has none.

        Raises:
            ConfigError: the level is none of the three.
        """
        levels: dict[str, Level] = {level: level for level in LEVELS}
        level = levels.get(fields["level"])
        if level is None:
            expected = ", ".join(LEVELS)
            raise ConfigError(
                f"invalid finding level {fields['level']!r}; expected one of {expected}"
            )
        name = fields.get("check", check)
        return cls(level, name, fields["path"], fields["message"], fields.get("id", ""))


@dataclass(frozen=True)
class Options:
    """Settings of a validation; the defaults are the strictest."""

    environment: str | None = None
    """``EnvSpec`` JSON of the environment to replay in; ``None``: the ``env_spec`` of the
    metadata. Without either, checks that need an environment do not apply."""
    trusted_modules: tuple[str, ...] = ()
    """Modules that the user trusts, as in :func:`core.environments.recover`."""
    acknowledge: tuple[str, ...] = ()
    """Ids of warnings that the maintainer accepts; the report lists them separately."""
    skip: tuple[str, ...] = ()
    """Names of checks that do not run; the report lists them."""
    is_own: bool = False
    """Whether minari_pipe wrote the files, so that other programs need not be asked how they read
    them."""
    require_scores: bool = True
    """Whether a dataset with an environment must have reference scores."""
    replay_steps: int | None = 50_000
    """Recorded steps to simulate again, each of them twice; ``None``: all."""
    replay_tolerance: float = 0.0
    """Largest allowed difference, absolute or relative, of a replayed value. 0: exact on the
    versions that made the data, the defaults of :mod:`checks.replay` on others."""
    recorded_platform: str | None = None
    """``replay.platform_name()`` of the machine that made the data; ``None``: this one."""


@dataclass(frozen=True)
class Subject:
    """The dataset under test: its data, and its metadata as they will be published."""

    storage: MinariStorage | None
    """``None`` if the data cannot be opened; ``fault`` says why."""
    metadata: Mapping[str, Any]
    data_path: Path
    """The folder with the data files."""
    options: Options = Options()
    fault: str = ""
    environment_faults: dict[str, str | None] = field(default_factory=dict, compare=False)
    """Results of :func:`environment.spec_fault` by spec, because some environments start slowly."""

    @classmethod
    def open(
        cls,
        data_path: Path,
        metadata: Mapping[str, Any] | None = None,
        options: Options = Options(),
    ) -> Subject:
        """Open the dataset in a folder without raising, because the checks report any damage.

        Args:
            data_path: the folder with ``metadata.json`` and the data files.
            metadata: the final metadata; ``None``: those in ``metadata.json``. For an older layout,
                its own metadata as migration converts them, so that its age is not a fault.
            options: settings of the validation.
        """
        storage, fault = None, ""
        try:
            storage = MinariStorage.read(data_path, trusted_modules=options.trusted_modules)
        except Exception as exc:  # reading may make an environment to get missing spaces
            fault = relative(f"{type(exc).__name__}: {exc}", data_path)
        if metadata is None:
            if isinstance(storage, LegacyStorage):
                metadata = storage.todays_metadata()
            else:
                metadata = _raw_metadata(Path(data_path) / METADATA_FILE_NAME)
        return cls(storage, metadata, Path(data_path), options, fault)

    @cached_property
    def observation_space(self) -> gym.Space | None:
        """The space in the metadata, ``None`` if unreadable (which ``metadata`` reports)."""
        return _space(self.metadata.get("observation_space"))

    @cached_property
    def action_space(self) -> gym.Space | None:
        """The space in the metadata, ``None`` if unreadable (which ``metadata`` reports)."""
        return _space(self.metadata.get("action_space"))

    @property
    def total_episodes(self) -> int | None:
        """Number of episodes in the storage, ``None`` if it cannot be opened."""
        return None if self.storage is None else self.storage.total_episodes

    @property
    def environment(self) -> str | None:
        """``EnvSpec`` JSON of the environment that made the data, if there is one."""
        return self.options.environment or self.metadata.get("env_spec")


def _raw_metadata(path: Path) -> dict[str, Any]:
    """Return the unchecked content of ``metadata.json``, empty if it is not a JSON object.

    The storage rejects metadata with wrong totals; the metadata check names the wrong field.
    """
    try:
        return json_object(read_whole(path))
    except (OSError, ValueError):
        return {}


def _space(text: Any) -> gym.Space | None:
    try:
        return deserialize_space(text)
    except Exception:  # a damaged file may raise anything; the metadata check reports it
        return None


@dataclass
class Episode:
    """One episode as it was read, with the results of earlier checks."""

    index: int
    """Position in the dataset, from 0; a path shows it as ``episode 17``."""
    observations: Any
    """Tree of columns with ``T + 1`` rows."""
    actions: Any
    """Tree of columns with ``T`` rows."""
    rewards: Any
    terminations: Any
    truncations: Any
    infos: Any
    """Tree of columns with ``T + 1`` rows, ``None`` or empty if none were recorded."""
    metadata: Mapping[str, Any]
    """Attributes: ``id``, ``seed``, ``options``, ``total_steps``, ``rewards_*`` and others."""
    extras: Any = None
    """Tree of columns with ``T`` or ``T + 1`` rows, ``None`` or empty if none were recorded."""
    n_steps: int | None = None
    """``T``, set by the shapes check; ``None`` if unknown."""
    unreadable: str = ""
    """Why the episode cannot be read; its columns are then ``None``."""
    faults: set[str] = field(default_factory=set)
    """Names of the checks that reported an error in this episode."""
    is_verified: bool = False
    """Whether replay reproduced the whole episode, apart from its infos."""
    is_exact: bool = False
    """Whether replay reproduced it bit for bit."""
    replayed_infos: set[LeafPath] = field(default_factory=set)
    """Infos that replay compared with the environment's; NaN equals NaN."""
    reported: set[str] = field(default_factory=set)
    """Paths of all findings in this episode, warnings included."""

    def path(self, *parts: str) -> str:
        """Return a place such as ``episode 17`` or ``episode 17 / observations.arm``."""
        return " / ".join([f"episode {self.index}", *parts])

    @property
    def infos_filled(self) -> Mapping[str, Any]:
        """Rows of infos that the environment did not give: ``{"success": [[begin, end], ...]}``.

        The shapes check reports an attribute of any other form.
        """
        return self.metadata.get("infos_filled") or {}

    @property
    def filled(self) -> dict[str, Any]:
        """The same for infos and extra step data, by path: ``{"extras.contact.force": ...}``."""
        return {
            f"{root}.{name}": ranges
            for root in ("infos", "extras")
            for name, ranges in (self.metadata.get(f"{root}_filled") or {}).items()
        }

    @property
    def is_sound(self) -> bool:
        """Whether the arrays have the shapes and dtypes that other checks rely on."""
        return not self.faults & {"shapes", "dtypes", "readable"}


class Check:
    """Searches a dataset for one kind of fault; every run creates a new instance.

    ``begin`` is called first, then ``episode`` once for every episode in order, then ``finish``.
    A check does not raise on broken data, stores nothing that grows with the length of an episode,
    and skips what an earlier check has reported (``episode.faults``).
    """

    name: ClassVar[str]
    warnings: ClassVar[tuple[str, ...]] = ()
    """Ids of those of its warnings that can be acknowledged."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def begin(self) -> Iterable[Finding]:
        """Return findings about the dataset that need no episode."""
        return ()

    def episode(self, episode: Episode) -> Iterable[Finding]:
        """Return findings about one episode."""
        return ()

    def finish(self) -> Iterable[Finding]:
        """Return findings that need all episodes."""
        return ()

    def error(self, path: str, message: str) -> Finding:
        """Return an error of this check."""
        return Finding("error", self.name, path, message)

    def warning(self, path: str, message: str, id: str = "") -> Finding:
        """Return a warning of this check; ``id`` is what acknowledges it."""
        return Finding("warning", self.name, path, message, id)


class Missing:
    """Marks a leaf that the space has and the data lack."""

    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()


def paired_leaves(
    space: gym.Space | None, tree: Any, path: LeafPath = ()
) -> Iterator[tuple[LeafPath, gym.Space | None, Any]]:
    """Walk a space and its recorded columns side by side.

    Yields:
        ``(path, leaf space, column)``; the column is ``MISSING`` if only the space has the leaf,
        the space is ``None`` if only the data have it.
    """
    subspaces: Mapping[Any, gym.Space]
    columns: Mapping[Any, Any] | None
    if isinstance(space, gym.spaces.Dict):
        subspaces = space.spaces
        columns = tree if isinstance(tree, Mapping) else None
    elif isinstance(space, gym.spaces.Tuple):
        subspaces = dict(enumerate(space.spaces))
        columns = dict(enumerate(tree)) if isinstance(tree, tuple) else None
    else:
        yield path, space, tree
        return
    if columns is None:
        yield path, space, MISSING
        return
    for key in subspaces:
        if key in columns:
            yield from paired_leaves(subspaces[key], columns[key], (*path, key))
        else:
            yield (*path, key), subspaces[key], MISSING
    for key in columns:
        if key not in subspaces:
            yield (*path, key), None, columns[key]


# HDF5 adds the time, the file descriptor and the buffer of a failed read to its message.
_HDF5_DETAILS = re.compile(r"time = .*?error message = ('[^']*')[^)]*", re.DOTALL)


def relative(text: str, data_path: Path) -> str:
    """Return a message in one line, without paths and times that differ between runs."""
    text = _HDF5_DETAILS.sub(r"\1", text)
    text = text.replace(f"{data_path}/", "").replace(str(data_path), "the data folder")
    return " ".join(text.split())


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer of any type; booleans do not count."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def typed(value: Any) -> str:
    """Return a value and its unexpected type for a message: ``'300' (str)``."""
    return f"{shown(repr(value))} ({type(value).__name__})"


def shown(value: Any, limit: int = 60) -> str:
    """Return a value as text in one line, cut to ``limit`` characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def counted(number: int, noun: str) -> str:
    """Return a count and its noun, such as ``1 dataset`` or ``2 datasets``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
