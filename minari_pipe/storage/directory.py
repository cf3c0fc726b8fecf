"""What every format of files is: a directory whose changes count wholly or not at all."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym

from minari_pipe.files import transaction
from minari_pipe.manifest import stage_manifest
from minari_pipe.metadata import dump_metadata
from minari_pipe.storage.base import METADATA_FILE_NAME, Change, MinariStorage, directory_size
from minari_pipe.storage.writer import EpisodeWriter


class DirectoryStorage(MinariStorage):
    """A storage whose data are files in a directory, ``metadata.json`` among them.

    A format implements the reading of :class:`MinariStorage` and :meth:`_writer`.
    """

    @classmethod
    def _create(
        cls,
        data_path: Path,
        observation_space: gym.Space,
        action_space: gym.Space,
        jpeg_encoding: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> DirectoryStorage:
        made = not data_path.exists()
        data_path.mkdir(parents=True, exist_ok=True)
        try:
            cls._create_files(data_path)
            if metadata is not None:  # else the caller, such as a test of Minari's, wrote it
                with transaction(data_path) as stage:
                    _write_metadata(stage, metadata)
        except BaseException:
            if made:
                shutil.rmtree(data_path, ignore_errors=True)
            raise
        return cls(data_path, observation_space, action_space, jpeg_encoding)

    @classmethod
    def _create_files(cls, data_path: Path) -> None:
        """Write the files of a storage without episodes, if the format has any."""

    @abstractmethod
    def _writer(self, stage: Path, total_episodes: int) -> AbstractContextManager[EpisodeWriter]:
        """Begin to write episodes.

        Args:
            stage: folder for new versions of the files; each takes the place of the one of the
                same relative path when the change is committed.
            total_episodes: number of episodes that count. Files may hold more, if real Minari was
                killed between writing them and the metadata; those are dropped with a warning.
        """

    @contextmanager
    def _change(self) -> Iterator[Change]:
        with transaction(self.data_path) as stage:
            metadata: dict[str, Any] = {"total_episodes": 0, "total_steps": 0}
            metadata |= self.read_raw_metadata(self.data_path)
            count = metadata["total_episodes"]
            with ExitStack() as stack:
                change = Change(metadata, lambda: stack.enter_context(self._writer(stage, count)))
                yield change
            if change.has_episodes:
                metadata["dataset_size"] = directory_size(self.data_path, stage)
            _write_metadata(stage, metadata)
            stage_manifest(self.data_path, stage, metadata)


def _write_metadata(stage: Path, metadata: Mapping[str, Any]) -> None:
    (stage / METADATA_FILE_NAME).write_text(dump_metadata(metadata), encoding="utf-8")
