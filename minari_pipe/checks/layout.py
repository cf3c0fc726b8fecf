"""Check what readers ignore in the layout: stray names, gaps, and seeds they would round."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from minari_pipe.checks.base import Check, Episode, Finding, Subject, is_count, typed
from minari_pipe.core.files.atomic import is_left
from minari_pipe.errors import CorruptDatasetError
from minari_pipe.storage.attributes import EXACT, unflatten_attributes
from minari_pipe.storage.base import METADATA_FILE_NAME
from minari_pipe.storage.hdf5.parser import nodes
from minari_pipe.storage.hdf5.parser.checked import check_inside, open_checked
from minari_pipe.storage.hdf5.storage import MAIN_FILE_NAME, HDF5Storage
from minari_pipe.storage.hdf5.values import member
from minari_pipe.storage.legacy.attributes import AttributesStorage

# Readers look only for these names; `episode_01` is not one of them.
_EPISODE = re.compile(r"episode_(0|[1-9][0-9]{0,17})")
_FOLDER = re.compile(r"0|[1-9][0-9]{0,17}")
#: Real Minari reads all other files in the folder of an episode as its data.
_UNREAD = (".", "_", METADATA_FILE_NAME)


class Layout(Check):
    """Checks that data have only episodes, without gaps, and integer seeds.

    Of an HDF5 file it checks the names at the root: real Minari numbers the next episode by their
    count, stray ones included. Of Arrow and Parquet it checks the folders and the files in them.
    Files that this reader does not read, but other programs (TorchRL) do, are errors: the checks
    say nothing about them.
    """

    name = "layout"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._seeds: dict[int, str] = {}
        """Messages about wrong seeds, by episode."""
        self._part: str | None = None
        """Name of an episode's file of data, for Arrow and Parquet."""

    def begin(self) -> Iterator[Finding]:
        storage, data_path = self.subject.storage, self.subject.data_path
        if storage is not None and is_left(data_path):
            yield self.error(
                "data",
                "holds an unfinished change, which only minari_pipe reads; finish it by a change, "
                "such as an append, or by an upload",
            )
        if isinstance(storage, HDF5Storage | AttributesStorage):
            path = data_path / MAIN_FILE_NAME if data_path.is_dir() else data_path
            yield from self._groups(path)
            if isinstance(storage, HDF5Storage) and not self.subject.options.is_own:
                yield from self._ways_out(path)
        elif storage is not None and storage.FORMAT in ("arrow", "parquet"):
            self._part = f"part-0.{storage.FORMAT}"
            yield from self._folders()
            if os.path.lexists(data_path / MAIN_FILE_NAME):
                yield self.error(
                    f"data / {MAIN_FILE_NAME}",
                    f"is no part of a dataset in {storage.FORMAT}, but other programs may read it; "
                    f"remove it",
                )

    def _folders(self) -> Iterator[Finding]:
        """Yield an error for each folder that is not an episode, one for those not counted."""
        with os.scandir(self.subject.data_path) as entries:
            names = [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]
        for name in sorted(names):
            if not _FOLDER.fullmatch(name):
                yield self.error(
                    f"data / {name}", "is not an episode; expected only the folders 0, 1 and so on"
                )
        expected = self.subject.metadata.get("total_episodes")
        numbers = sorted(int(name) for name in names if _FOLDER.fullmatch(name))
        beyond = [number for number in numbers if is_count(expected) and number >= expected]
        if beyond:
            more = f" ({len(beyond)} folders are not counted)" if len(beyond) > 1 else ""
            yield self.error(
                f"data / {beyond[0]}",
                f"is not read, as the metadata count {expected} episodes; remove it{more}",
            )

    def _groups(self, path: Path) -> Iterator[Finding]:
        try:
            with open_checked(path) as file:
                names = list(file)
                found = {int(m[1]): name for name in names if (m := _EPISODE.fullmatch(name))}
                if isinstance(self.subject.storage, HDF5Storage):  # others have text or numbers
                    for number in found:
                        self._look_at_seed(file, number)
        except Exception:  # the runner reports a file that cannot be read
            return
        for name in names:
            if not _EPISODE.fullmatch(name):
                yield self.error(
                    f"data / {name}",
                    "is not an episode; expected only episode_0, episode_1 and so on",
                )
        yield from self._gap(set(found))

    def _ways_out(self, path: Path) -> Iterator[Finding]:
        try:
            check_inside(path)
        except CorruptDatasetError as error:
            yield self.error(f"data / {path.name}", f"is not safe for other programs: {error}")

    def _gap(self, numbers: set[int]) -> Iterator[Finding]:
        """Yield an error for episodes after a gap, unless the metadata count the missing one."""
        gap = next(number for number in itertools.count() if number not in numbers)
        behind = sorted(number for number in numbers if number > gap)
        expected = self.subject.metadata.get("total_episodes")
        if behind and is_count(expected) and gap >= expected:
            more = f" ({len(behind)} groups after the gap)" if len(behind) > 1 else ""
            yield self.error(
                f"data / episode_{behind[0]}",
                f"episode_{gap} is missing; episodes are numbered from 0 without gaps{more}",
            )

    def _look_at_seed(self, file: nodes.File, number: int) -> None:
        """Record a wrong seed as it is stored, because a reader would convert it to an int."""
        try:
            stored = member(file, f"episode_{number}").attrs
            seed = unflatten_attributes({k: stored[k] for k in ("seed", EXACT) if k in stored})
        except Exception:  # the runner reports an episode that cannot be read
            return
        value = seed.get("seed")
        if "seed" in seed and not (is_count(value) and value >= 0):
            what = "empty" if value is None else typed(value)
            self._seeds[number] = f"is {what}, expected a non-negative integer"

    def episode(self, episode: Episode) -> Iterator[Finding]:
        fault = self._seeds.get(episode.index)
        if fault and not episode.unreadable:
            yield self.error(episode.path("seed"), fault)
        if self._part is None:
            return
        names: list[str] = []
        with suppress(OSError):  # the runner reports a folder that cannot be read
            names = os.listdir(f"{self.subject.data_path}/{episode.index}")
        for name in sorted(names):
            if name != self._part and not name.startswith(_UNREAD):
                yield self.error(
                    episode.path(name),
                    f"is not a file of an episode; expected only {METADATA_FILE_NAME} and "
                    f"{self._part}, as real Minari would read it as data",
                )
