"""What a check is, what it looks at and what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeGuard

import gymnasium as gym

from minari_pipe.core.files.links import read_below
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.core.tree import Path as LeafPath
from minari_pipe.errors import ConfigError
from minari_pipe.storage.base import METADATA_FILE_NAME, MinariStorage
from minari_pipe.storage.legacy.base import LegacyStorage

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One fault: how bad it is, who found it, where, and what is wrong.

    An ``error`` stops publishing, a ``warning`` and a ``note`` do not.
    """

    level: Level
    check: str
    path: str
    """Such as ``episode 17 / actions.arm`` or ``metadata / ref_min_score``."""
    message: str
    id: str = ""
    """By which a warning can be acknowledged; usually empty."""

    def to_json(self) -> dict[str, str]:
        """The four plain fields, and ``id`` where there is one."""
        fields = {
            "level": self.level,
            "check": self.check,
            "path": self.path,
            "message": self.message,
        }
        return {**fields, "id": self.id} if self.id else fields

    @classmethod
    def from_json(cls, fields: Mapping[str, str], *, check: str = "") -> Finding:
        """Read a finding that somebody else reported, such as a policy.

        Args:
            fields: ``level``, ``path``, ``message`` and, unless given here, ``check``.
            check: name of the check when ``fields`` has none.

        Raises:
            ConfigError: the level is none of the three.
        """
        levels: dict[str, Level] = {level: level for level in LEVELS}
        level = levels.get(fields["level"])
        if level is None:
            expected = ", ".join(LEVELS)
            raise ConfigError(f"level {fields['level']!r} of a finding; expected one of {expected}")
        name = fields.get("check", check)
        return cls(level, name, fields["path"], fields["message"], fields.get("id", ""))


@dataclass(frozen=True)
class Options:
    """Settings of a validation; the defaults are the strictest."""

    environment: str | None = None
    """``EnvSpec`` JSON of the environment to replay in; ``None``: the ``env_spec`` of the
    metadata. With neither, the checks that need an environment are not applicable."""
    trusted_modules: tuple[str, ...] = ()
    """Modules that the person at the keyboard trusts, as of :func:`core.environments.recover`."""
    acknowledge: tuple[str, ...] = ()
    """Ids of warnings that the maintainer knows about: listed apart, not as findings."""
    skip: tuple[str, ...] = ()
    """Names of checks that are not run; the report names them."""
    require_scores: bool = True
    """Whether a dataset with an environment must have reference scores."""
    replay_steps: int | None = 50_000
    """Recorded steps to re-simulate (each of them twice), ``None``: all."""
    replay_tolerance: float = 0.0
    """Largest allowed difference, absolute or relative, of a replayed value. 0: exact on the
    versions that made the data, on others the documented defaults of :mod:`checks.replay`."""
    recorded_platform: str | None = None
    """``replay.platform_name()`` of the machine that made the data; ``None``: this one."""


@dataclass(frozen=True)
class Subject:
    """The dataset under test: its data, and its metadata as they are going to be published."""

    storage: MinariStorage | None
    """``None`` if the data cannot be opened; ``fault`` says why."""
    metadata: Mapping[str, Any]
    data_path: Path
    """The folder with the data files."""
    options: Options = Options()
    fault: str = ""
    environment_faults: dict[str, str | None] = field(default_factory=dict, compare=False)
    """What :func:`environment.spec_fault` found out about each spec: some take long to make."""

    @classmethod
    def open(
        cls,
        data_path: Path,
        metadata: Mapping[str, Any] | None = None,
        options: Options = Options(),
    ) -> Subject:
        """The dataset in a folder; raises nothing, as a check has to report what is damaged.

        Args:
            data_path: the folder with ``metadata.json`` and the data files.
            metadata: the final metadata; ``None``: those in ``metadata.json``. Of an older layout
                its own, in the form that migrating gives them: its data is judged, not its age.
            options: settings of the validation.
        """
        storage, fault = None, ""
        try:
            storage = MinariStorage.read(data_path, trusted_modules=options.trusted_modules)
        except Exception as exc:  # an environment may be asked for missing spaces
            fault = relative(f"{type(exc).__name__}: {exc}", data_path)
        if metadata is None:
            if isinstance(storage, LegacyStorage):
                metadata = storage.todays_metadata()
            else:
                metadata = _raw_metadata(Path(data_path) / METADATA_FILE_NAME)
        return cls(storage, metadata, Path(data_path), options, fault)

    @cached_property
    def observation_space(self) -> gym.Space | None:
        """The space of the metadata, ``None`` if it cannot be read (a finding of ``metadata``)."""
        return _space(self.metadata.get("observation_space"))

    @cached_property
    def action_space(self) -> gym.Space | None:
        """The space of the metadata, ``None`` if it cannot be read (a finding of ``metadata``)."""
        return _space(self.metadata.get("action_space"))

    @property
    def total_episodes(self) -> int | None:
        """How many episodes the storage counts, ``None`` if it cannot be opened."""
        return None if self.storage is None else self.storage.total_episodes

    @property
    def environment(self) -> str | None:
        """``EnvSpec`` JSON of the environment that made the data, if there is one."""
        return self.options.environment or self.metadata.get("env_spec")


def _raw_metadata(path: Path) -> dict[str, Any]:
    """What ``metadata.json`` says, however wrong; empty if it is no JSON object.

    The storage refuses wrong totals as a whole, where the check of the metadata names the field.
    """
    try:
        metadata = json.loads(read_below(path, path.parent))
    except (OSError, ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _space(text: Any) -> gym.Space | None:
    try:
        return deserialize_space(text)
    except Exception:  # whatever a damaged file makes of it; the check of the metadata reports it
        return None


@dataclass
class Episode:
    """One episode as it was read, with what the earlier checks found out about it."""

    index: int
    """Position in the dataset, from 0; what a path calls ``episode 17``."""
    observations: Any
    """Tree of columns of ``T + 1`` rows."""
    actions: Any
    """Tree of columns of ``T`` rows."""
    rewards: Any
    terminations: Any
    truncations: Any
    infos: Any
    """Tree of columns of ``T + 1`` rows, ``None`` or empty if none were recorded."""
    metadata: Mapping[str, Any]
    """Attributes: ``id``, ``seed``, ``options``, ``total_steps``, ``rewards_*`` and others."""
    n_steps: int | None = None
    """``T``, set by the check of the shapes; ``None`` if it cannot be told."""
    unreadable: str = ""
    """Why the episode cannot be read; its columns are ``None`` then."""
    faults: set[str] = field(default_factory=set)
    """Names of the checks that reported an error in this episode."""
    is_verified: bool = False
    """Whether replay found all of it, but for infos, to be what the simulator does."""
    is_exact: bool = False
    """Whether it found that to the bit."""
    replayed_infos: set[LeafPath] = field(default_factory=set)
    """Infos that replay compared with the environment's, NaN being equal to NaN."""
    reported: set[str] = field(default_factory=set)
    """Paths of all findings in this episode, warnings included."""

    def path(self, *parts: str) -> str:
        """``episode 17`` or ``episode 17 / observations.arm``."""
        return " / ".join([f"episode {self.index}", *parts])

    @property
    def infos_filled(self) -> Mapping[str, Any]:
        """Rows of infos that the environment did not give: ``{"success": [[begin, end], ...]}``.

        The check of the shapes reports an attribute that is none of this form.
        """
        return self.metadata.get("infos_filled") or {}

    @property
    def is_sound(self) -> bool:
        """Whether its arrays have the shapes and dtypes that other checks rely on."""
        return not self.faults & {"shapes", "dtypes", "readable"}


class Check:
    """Looks at a dataset for one kind of fault; made anew for every run.

    ``begin`` is called first, then ``episode`` once for every episode in order, then ``finish``.
    A check raises nothing for broken data, keeps nothing of an episode that grows with its length
    and reports one fault once: where an earlier check spoke (``episode.faults``), it is silent.
    """

    name: ClassVar[str]
    warnings: ClassVar[tuple[str, ...]] = ()
    """Ids of its warnings that can be acknowledged."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def begin(self) -> Iterable[Finding]:
        """Findings about the dataset as a whole that need no episode."""
        return ()

    def episode(self, episode: Episode) -> Iterable[Finding]:
        """Findings about one episode."""
        return ()

    def finish(self) -> Iterable[Finding]:
        """Findings that need all episodes to have been seen."""
        return ()

    def error(self, path: str, message: str) -> Finding:
        """An error of this check."""
        return Finding("error", self.name, path, message)

    def warning(self, path: str, message: str, id: str = "") -> Finding:
        """A warning of this check, with the id by which it can be acknowledged."""
        return Finding("warning", self.name, path, message, id)


class Missing:
    """Stands for a leaf that the space has and the data have not."""

    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()


def paired_leaves(
    space: gym.Space | None, tree: Any, path: LeafPath = ()
) -> Iterator[tuple[LeafPath, gym.Space | None, Any]]:
    """Walk a space and the columns recorded for it side by side.

    Yields:
        ``(path, leaf space, column)``; the column is ``MISSING`` where only the space has the
        leaf, the space is ``None`` where only the data have it.
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


# HDF5 tells when a file could not be read, with which descriptor and into which buffer.
_HDF5_DETAILS = re.compile(r"time = .*?error message = ('[^']*')[^)]*", re.DOTALL)


def relative(text: str, data_path: Path) -> str:
    """A message in one line, the same in every workspace and at every time."""
    text = _HDF5_DETAILS.sub(r"\1", text)
    text = text.replace(f"{data_path}/", "").replace(str(data_path), "the data folder")
    return " ".join(text.split())


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number of whatever integer type; ``True`` is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def typed(value: Any) -> str:
    """A value of a type that was not expected: ``'300' (str)``."""
    return f"{shown(repr(value))} ({type(value).__name__})"


def shown(value: Any, limit: int = 60) -> str:
    """A value as a message shows it: in one line, cut if long."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def counted(number: int, noun: str) -> str:
    """A number of things, such as ``1 dataset`` or ``2 datasets``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
