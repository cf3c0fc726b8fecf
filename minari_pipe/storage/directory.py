"""Define the base class of formats with files: changes to the directory are all or nothing."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.files.atomic import check_size, holds_other, transaction
from minari_pipe.core.files.checksums import entry_of, entry_of_bytes, size_of
from minari_pipe.core.files.links import OpenedFolder, files_below, opener
from minari_pipe.core.files.manifest import CARD, write_manifest
from minari_pipe.core.files.manifest_update import (
    known_manifest,
    remove_card,
    sizes_named,
    stage_manifest,
)
from minari_pipe.core.metadata import dump_metadata
from minari_pipe.errors import DatasetNotFoundError
from minari_pipe.storage.base import METADATA_FILE_NAME, Change, MinariStorage
from minari_pipe.storage.reading import file_sizes, folder_of, megabytes
from minari_pipe.storage.segment import Segment
from minari_pipe.storage.writer import BufferChecker, EpisodeWriter

#: opens a writer of episodes; see :meth:`DirectoryStorage._writer`
OpenWriter = Callable[[Path, int], AbstractContextManager[EpisodeWriter]]


class DirectoryStorage(MinariStorage):
    """A storage whose data are files in a directory, including ``metadata.json``.

    A format implements the reading methods of :class:`MinariStorage` and :meth:`_writer`. Its files
    may be damaged or hostile, so a reader

    * opens them below ``self._opened``, so that no link is followed
      (:func:`.links.read_below`, :mod:`.episode_files`);
    * raises only ``CorruptDatasetError`` for damaged data (:func:`.episode_files.translated`), and
      allocates no more memory than the size of a file explains (:mod:`.unpacking`);
    * compares the arrays of ``get_episodes`` with the spaces and the number of steps
      (:func:`.agreement.check_agreement`); ``get_unchecked_episodes`` leaves that to the checks;
    * calls :meth:`check_version` after it has read: a download may replace the directory in
      between, so that some files would come from another version.

    The contract tests little of this; the random damages of ``tests/resilience/fuzz.py`` do.
    """

    def __init__(
        self,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool = False,
    ) -> None:
        super().__init__(data_path, observation_space, action_space, jpeg_encoding)
        #: during a change, the manifest before it
        self._manifest: dict[str, Any] | None = None
        try:
            self._opened: OpenedFolder = folder_of(self.data_path)
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetNotFoundError(f"The data path {data_path} doesn't exist") from None

    @classmethod
    def _create(
        cls,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> DirectoryStorage:
        made = not data_path.exists()
        data_path.mkdir(parents=True, exist_ok=True)
        try:
            cls._create_files(data_path)
            if metadata is not None:  # else the caller wrote it, such as a test of Minari
                with transaction(data_path) as stage:
                    _write_metadata(stage, metadata)
        except BaseException:
            if made:
                shutil.rmtree(data_path, ignore_errors=True)
            raise
        return cls(data_path, observation_space, action_space, jpeg_encoding)

    @classmethod
    def _create_whole(
        cls,
        data_path: Path,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        jpeg_encoding: bool,
        metadata: dict[str, Any],
        episodes: Iterable[EpisodeBuffer | Segment],
        judge: BufferChecker | None,
    ) -> DirectoryStorage:
        """Write all files in place: no other process reads them before all of them exist."""
        data_path.mkdir(parents=True, exist_ok=True)
        before = set(data_path.iterdir())
        try:
            cls._create_files(data_path)
            storage = cls(data_path, observation_space, action_space, jpeg_encoding)
            with storage._writer(data_path, 0) as writer:
                steps = writer.add(
                    episodes,
                    observation_space,
                    action_space,
                    jpeg_encoding=jpeg_encoding,
                    judge=judge,
                )
                metadata |= {"total_episodes": len(writer), "total_steps": steps}
            entries = writer.entries() or _entries_below(data_path)
            sizes = {name: size_of(entry) for name, entry in entries.items()}
            entries[METADATA_FILE_NAME] = _write_metadata(data_path, metadata, sizes)
            if data_path.name == "data" and not holds_other(data_path.parent):
                write_manifest(data_path.parent, metadata, entries)
            storage._wrote(writer)
        except BaseException:
            for path in set(data_path.iterdir()) - before:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            raise
        return storage

    @classmethod
    def _create_files(cls, data_path: Path) -> None:
        """Write the files of a storage without episodes, if the format needs any."""

    @abstractmethod
    def _writer(self, stage: Path, total_episodes: int) -> AbstractContextManager[EpisodeWriter]:
        """Open a writer of episodes.

        Args:
            stage: folder for new versions of the files; each replaces the file of the same
                relative path when the change is committed. For a new dataset it is the data
                directory itself, which no other process reads yet.
            total_episodes: number of episodes that count. Files may hold more, if real Minari was
                killed between writing them and the metadata; those are dropped with a warning.
        """

    @contextmanager
    def _change(self, opening: OpenWriter | None = None) -> Iterator[Change]:
        with transaction(self.data_path) as stage:
            self.check_version()
            metadata: dict[str, Any] = {"total_episodes": 0, "total_steps": 0}
            metadata |= self._raw_metadata()
            self._manifest = known_manifest(self.data_path)
            count = metadata["total_episodes"]
            with ExitStack() as stack:
                writing = opening or self._writer
                change = Change(metadata, lambda: stack.enter_context(writing(stage, count)))
                yield change
            entries, sizes = {}, None
            if change.has_episodes:
                entries = change.writer.entries()
                sizes = self._sizes(stage, entries)
            entries[METADATA_FILE_NAME] = _write_metadata(stage, metadata, sizes)
            if self._manifest is not None:
                stage_manifest(self.data_path, stage, metadata, entries, self._manifest)
        if self._manifest is not None and (card := self._manifest.get(CARD)):
            remove_card(self.data_path.parent, card)
        if change.has_episodes:
            self._wrote(change.writer)

    def _sizes(self, stage: Path, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """Return the sizes of all files after a change, by relative path.

        Args:
            stage: the new versions of files.
            entries: the manifest entries of those that the writer knows.
        """
        own = {name: size_of(entry) for name, entry in entries.items()}
        named = sizes_named(self._manifest)
        if named is None:
            return file_sizes(self.data_path, stage) | own
        return named | file_sizes(stage) | own

    def _wrote(self, writer: EpisodeWriter) -> None:
        """Record what a writer knows about the files that are now in place."""


def _write_metadata(
    stage: Path, metadata: dict[str, Any], sizes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Write the metadata file and return its manifest entry.

    Args:
        stage: the folder to write to.
        metadata: if sizes are given, receives a ``dataset_size`` that counts this file too.
        sizes: bytes of all data files; an entry for the metadata file itself is ignored.
    """
    if sizes is not None:
        others = sum(size for name, size in sizes.items() if name != METADATA_FILE_NAME)
        metadata["dataset_size"] = megabytes(others)
    text = dump_metadata(metadata)
    if sizes is not None and megabytes(others + len(text)) != metadata["dataset_size"]:
        metadata["dataset_size"] = megabytes(others + len(text))
        text = dump_metadata(metadata)
    data = text.encode("utf-8")
    check_size(METADATA_FILE_NAME, data)
    with open(stage / METADATA_FILE_NAME, "wb", opener=opener(stage)) as file:
        file.write(data)
    return entry_of_bytes([data])


def _entries_below(directory: Path) -> dict[str, dict[str, Any]]:
    return {name: entry_of(directory / name) for name in files_below(directory)}
