"""Find what collecting scripts have left behind and make datasets of it.

A :class:`~minari_pipe.recording.collector.DataCollector` leaves a journal; that of real Minari
leaves a folder ``tmpXXXXXXXX`` in the datasets root, with the files of a storage in it.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from minari_pipe.core.datasets_root import get_dataset_path, refuse_foreign_links
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.datasets.create import Description
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.library import new_dataset, open_dataset
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    DatasetNotFoundError,
    InvalidEpisodeError,
    MinariPipeError,
)
from minari_pipe.recording.journal.folders import JOURNAL, is_alive, journals, remove_journal
from minari_pipe.recording.journal.reader import JournalReader
from minari_pipe.storage.base import METADATA_FILE_NAME, MinariStorage, PathLike, file_format
from minari_pipe.storage.columns import episode_columns
from minari_pipe.storage.reading import file_sizes
from minari_pipe.storage.writer import StableBuffers

#: Name of the folder that real Minari makes by ``tempfile``, and of what its storages write there.
_MINARI_FOLDER = re.compile(r"tmp[a-z0-9_]{8}")
_MINARI_NAMES = re.compile(r"metadata\.json|main_data\.hdf5|\d+")


@dataclass(frozen=True)
class Leftover:
    """Recorded episodes of a collector that no dataset has taken.

    Attributes:
        path: the folder.
        kind: package that made it: ``minari_pipe`` or ``minari``.
        alive: whether the process that writes it is alive; None if unknown, as with real
            Minari's.
        pid: id of that process.
        episodes: number of finished episodes.
        steps: number of their steps.
        env_id: id of the environment.
        started: when its collector was made, or real Minari's metadata written; UTC, ISO 8601.
        damage: why a part of it cannot be read, None if all of it can.

    Example:
        >>> from minari_pipe.recording.recovery import Leftover, list_leftovers
        >>> any(isinstance(place, Leftover) and place.episodes for place in list_leftovers())
        False
    """

    path: Path
    kind: str
    alive: bool | None
    pid: int | None = None
    episodes: int = 0
    steps: int = 0
    env_id: str | None = None
    started: str | None = None
    damage: str | None = None


def list_leftovers() -> list[Leftover]:
    """Return what collectors have left in the datasets root and in the temporary directory.

    Collectors that are still running are listed too; their ``alive`` is true.

    Example:
        >>> from minari_pipe.recording.recovery import list_leftovers
        >>> list_leftovers()
        []
        >>> import gymnasium as gym
        >>> from minari_pipe import DataCollector
        >>> env = DataCollector(gym.make("CartPole-v1"))
        >>> _ = env.reset(seed=1)
        >>> _ = env.step(0)
        >>> env.close()  # and nobody has called create_dataset()
        >>> [(place.env_id, place.episodes, place.alive) for place in list_leftovers()]
        [('CartPole-v1', 1, False)]
    """
    found = [_of_journal(path) for path in journals()]
    try:
        folders = sorted(get_dataset_path().glob("tmp*"))
    except (OSError, ConfigError):
        folders = []
    return found + [_of_minari(folder) for folder in folders if _is_minari_folder(folder)]


def recover(
    dataset_id: str,
    leftover: Leftover | PathLike | None = None,
    *,
    force: bool = False,
    data_format: str | None = None,
    **description: Any,
) -> MinariDataset:
    """Make a dataset of the episodes that a collector has left.

    A leftover of this package is removed once all of it is in the dataset. One of real Minari
    stays, as its collector may still be running, see :func:`discard`. Episodes that cannot be
    read are skipped with a warning.

    Args:
        dataset_id: id of the new dataset.
        leftover: one of :func:`list_leftovers`, or its folder; None means the only one.
        force: take the episodes although the process that records them is alive; they stay.
        data_format: format of the dataset; None means the collector's.
        **description: see :class:`~minari_pipe.datasets.create.Description`.

    Raises:
        DatasetNotFoundError: there is no leftover, or it has no readable episode.
        ConfigError: there are several and none was named, or its process is alive.
        CorruptDatasetError: nothing in it can be read.
        DatasetExistsError: the id is taken.
        UnknownFormatError: there is no such format, or its datasets do not outlive the process.

    Example:
        >>> import gymnasium as gym
        >>> from minari_pipe import DataCollector
        >>> from minari_pipe.recording.recovery import recover
        >>> env = DataCollector(gym.make("CartPole-v1"))
        >>> _ = env.reset(seed=1)
        >>> _ = env.step(0)
        >>> env.close()  # and nobody has called create_dataset()
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):  # about missing metadata
        ...     recover("cartpole/rescued-v0")
        MinariDataset('cartpole/rescued-v0', 1 episodes)
    """
    chosen = _chosen(leftover)
    _refuse_if_alive(chosen, force=force)
    details = Description(**description)
    with ExitStack() as stack:
        source = _JournalSource(chosen, stack) if _is_ours(chosen) else _MinariSource(chosen)
        spec = _spec(source.env_spec)
        with new_dataset(dataset_id) as data_path:
            metadata = details.metadata(dataset_id, spec)
            storage = MinariStorage.create(
                data_path,
                StableBuffers(source.sound_episodes()),
                metadata=metadata,
                observation_space=source.observation_space,
                action_space=source.action_space,
                env_spec=spec,
                data_format=file_format(data_format or source.data_format),
                jpeg_encoding=source.jpeg_encoding,
            )
            if not storage.total_episodes:
                raise DatasetNotFoundError(
                    f"{chosen.path} has no readable episode"
                    + "".join(f"; {lost}" for lost in source.lost[:1])
                    + "; discard() removes it"
                )
    if source.lost:
        warnings.warn(
            f"{len(source.lost)} parts of {chosen.path} could not be read and are not in "
            f"{dataset_id}; the first: {source.lost[0]}. The leftover is kept",
            stacklevel=2,
        )
    elif _is_ours(chosen) and not chosen.alive:
        remove_journal(chosen.path)
    return open_dataset(dataset_id)


def discard(leftover: Leftover | PathLike, *, force: bool = False) -> None:
    """Remove a leftover and the episodes in it.

    Args:
        leftover: one of :func:`list_leftovers`, or its folder.
        force: remove it although the process that writes it is alive.

    Raises:
        DatasetNotFoundError: it is not a leftover.
        ConfigError: its process is alive.

    Example:
        >>> from minari_pipe.recording.recovery import discard, list_leftovers
        >>> for leftover in list_leftovers():
        ...     if not leftover.alive:
        ...         discard(leftover)
    """
    chosen = _chosen(leftover)
    _refuse_if_alive(chosen, force=force)
    if _is_ours(chosen):
        remove_journal(chosen.path)
    else:
        shutil.rmtree(chosen.path)


def _chosen(leftover: Leftover | PathLike | None) -> Leftover:
    if leftover is not None:
        path = Path(leftover.path if isinstance(leftover, Leftover) else leftover)
        if path.name == JOURNAL:
            path = path.parent
        refuse_foreign_links(path)
        # read again: it may be gone or in use by now
        if (path / JOURNAL).is_file():
            return _of_journal(path / JOURNAL)
        if _is_minari_folder(path):
            return _of_minari(path)
        raise DatasetNotFoundError(
            f"{path} is not a leftover of a collector; list_leftovers() lists them"
        )
    found = [entry for entry in list_leftovers() if entry.episodes and not entry.alive]
    if not found:
        raise DatasetNotFoundError(
            f"no collector left episodes in {get_dataset_path()} or the temporary directory"
        )
    if len(found) > 1:
        lines = "".join(f"\n{one.path}: {one.episodes} episodes of {one.env_id}" for one in found)
        raise ConfigError(f"there are {len(found)} leftovers; name one of them:{lines}")
    return found[0]


def _refuse_if_alive(leftover: Leftover, *, force: bool) -> None:
    if leftover.alive and not force:
        raise ConfigError(
            f"{leftover.path} is still being written by process {leftover.pid}; wait until it "
            "ends, or use force=True"
        )


def _is_ours(leftover: Leftover) -> bool:
    return leftover.kind == "minari_pipe"


def _of_journal(path: Path) -> Leftover:
    alive = is_alive(path)
    try:
        with JournalReader(path) as reader:
            steps = list(reader.steps())
            head = reader.head
            started = head.get("started")
            when = None
            if isinstance(started, int | float):
                when = datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds")
            return Leftover(
                path=path.parent,
                kind="minari_pipe",
                alive=alive,
                pid=head.get("pid"),
                episodes=len(steps),
                steps=sum(steps),
                env_id=head.get("env_id"),
                started=when,
                damage=reader.damage,
            )
    except (MinariPipeError, OSError, ValueError, OverflowError) as error:
        return Leftover(path=path.parent, kind="minari_pipe", alive=alive, damage=str(error))


def _is_minari_folder(folder: Path) -> bool:
    return (
        _MINARI_FOLDER.fullmatch(folder.name) is not None
        and not folder.is_symlink()
        and (folder / METADATA_FILE_NAME).is_file()
        # else it is a namespace, or holds files of the user, which discard() would remove
        and all(_MINARI_NAMES.fullmatch(name) for name in os.listdir(folder))
    )


def _of_minari(folder: Path) -> Leftover:
    try:
        metadata = MinariStorage.read_raw_metadata(folder)
        made = os.stat(folder / METADATA_FILE_NAME).st_mtime
        spec = _spec(metadata.get("env_spec"))
        return Leftover(
            path=folder,
            kind="minari",
            alive=None,
            episodes=metadata.get("total_episodes", 0),
            steps=metadata.get("total_steps", 0),
            env_id=None if spec is None else spec.id,
            started=datetime.fromtimestamp(made, UTC).isoformat(timespec="seconds"),
        )
    except (MinariPipeError, OSError) as error:
        return Leftover(path=folder, kind="minari", alive=None, damage=str(error))


def _spec(text: Any) -> EnvSpec | None:
    """Return the spec of an environment, without creating it; None if damaged."""
    if not isinstance(text, str):
        return None
    try:
        return EnvSpec.from_json(text)
    except Exception:  # Gymnasium may raise anything for unknown fields
        return None


class _Source:
    """The episodes of a leftover, and what a dataset of them needs to know."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    env_spec: str | None
    data_format: str
    jpeg_encoding: bool

    def __init__(self) -> None:
        self.lost: list[str] = []

    def _episodes(self) -> Iterator[EpisodeBuffer]:
        raise NotImplementedError

    def sound_episodes(self) -> Iterator[EpisodeBuffer]:
        """Yield the episodes that can be stored; ``lost`` says why others were skipped."""
        for number, buffer in enumerate(self._episodes()):
            try:
                episode_columns(buffer, self.observation_space, self.action_space, episode=number)
            except InvalidEpisodeError as error:
                self.lost.append(str(error))
                continue
            yield buffer


class _JournalSource(_Source):
    def __init__(self, leftover: Leftover, stack: ExitStack) -> None:
        super().__init__()
        self._reader = stack.enter_context(JournalReader(leftover.path / JOURNAL))
        head = self._reader.head
        try:
            self.observation_space = deserialize_space(head["observation_space"])
            self.action_space = deserialize_space(head["action_space"])
            self.env_spec = head["env_spec"]
            self.data_format, self.jpeg_encoding = head["data_format"], head["jpeg_encoding"]
            if not (isinstance(self.data_format, str) and isinstance(self.env_spec, str | None)):
                raise TypeError(f"data_format {self.data_format!r}, env_spec {self.env_spec!r}")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptDatasetError(
                f"{leftover.path}: the header of the journal is invalid: {error!r}"
            ) from error

    def _episodes(self) -> Iterator[EpisodeBuffer]:
        yield from self._reader.episodes()
        if self._reader.damage is not None:
            self.lost.append(self._reader.damage)


class _MinariSource(_Source):
    def __init__(self, leftover: Leftover) -> None:
        super().__init__()
        self._storage = MinariStorage.read(leftover.path)
        metadata = self._storage.read_raw_metadata(leftover.path)
        self.observation_space = self._storage.observation_space
        self.action_space = self._storage.action_space
        self.env_spec = metadata.get("env_spec")
        self.data_format = self._storage.FORMAT
        self.jpeg_encoding = self._storage.jpeg_encoding
        n_episodes, n_bytes = self._storage.total_episodes, sum(file_sizes(leftover.path).values())
        if n_episodes > n_bytes:
            raise CorruptDatasetError(
                f"{leftover.path}: its metadata says total_episodes {n_episodes}, but its files "
                f"have only {n_bytes} bytes; correct the number in {METADATA_FILE_NAME}"
            )

    def _episodes(self) -> Iterator[EpisodeBuffer]:
        for number in range(self._storage.total_episodes):
            try:
                yield next(self._storage.get_buffers([number]))
            except (MinariPipeError, OSError, LookupError) as error:
                self.lost.append(f"episode {number}: {error}")
