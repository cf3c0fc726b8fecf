"""Hold what a collector has recorded and no dataset has taken: open and finished episodes.

A recording outlives the collector that feeds it: :meth:`Recording.leave` does what remains to be
done when a script ends, however it ends.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym

from minari_pipe.core.episode import (
    EPISODE_COLUMNS,
    STEP_DATA_KEYS,
    EpisodeBuffer,
    EpisodeMetadataCallback,
    StepData,
)
from minari_pipe.errors import ConfigError, InvalidEpisodeError
from minari_pipe.recording.checked_recorder import CheckedRecorder, StrictRecorder
from minari_pipe.recording.journal.format import is_word
from minari_pipe.recording.journal.writer import Journal
from minari_pipe.storage.attributes import flatten_attributes
from minari_pipe.storage.columns import RESERVED_GROUPS, episode_columns
from minari_pipe.storage.segment import Segment
from minari_pipe.storage.writer import BUFFER_FIELDS

logger = logging.getLogger(__name__)

_RECORD_FIELDS = ("id", *EPISODE_COLUMNS, "seed")


class Recording:
    """Takes steps, and keeps finished episodes in a :class:`~.journal.writer.Journal`.

    One episode of each environment is open at a time. Finished episodes are in the order in which
    they ended.

    Attributes:
        recorders: one per environment, which takes its steps; those of a strict recording refuse
            a step with a value outside of its space.
        journal: the finished episodes.
        episode_metadata: computes the attributes of a finished episode.
        on_episode: takes finished episodes, each with ``total_steps``, instead of the journal.
        total_steps: number of steps so far, as the collector counts them.
        warnings: warnings about finished episodes that are not issued yet, one text for each.

    Example:
        >>> import gymnasium as gym
        >>> space = gym.spaces.Discrete(3)
        >>> recording = Recording(space, space, lambda episode: {}, Journal({}),
        ...                       record_infos=False, strict=False)
        >>> recording.start(0, {})
        >>> recording.recorders[0].step(1, 7, 0.5, False, False, {})
        >>> recording.close_episode()
        >>> [episode.observations for episode in recording.journal.episodes()]
        [array([0, 7])]
        >>> print(recording.warnings[0].splitlines()[0])
        Observation is not in observation space.
        >>> recording.journal.clear()
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        episode_metadata: Callable[[dict[str, Any]], Mapping[str, Any]],
        journal: Journal,
        *,
        record_infos: bool,
        strict: bool,
        n_envs: int = 1,
        drops_unfinished: bool = False,
        on_episode: Callable[[EpisodeBuffer, int], object] | None = None,
    ) -> None:
        self.journal = journal
        self.warnings: list[str] = []
        recorder = StrictRecorder if strict else CheckedRecorder
        self.recorders: list[CheckedRecorder | StrictRecorder] = [
            recorder(
                observation_space,
                action_space,
                record_infos=record_infos,
                store=journal.rows_of(env),
                n_recorders=n_envs,
            )
            for env in range(n_envs)
        ]
        self._drops_unfinished = drops_unfinished
        self.on_episode = on_episode
        self.total_steps = self._n_given = 0
        self._observation_space, self._action_space = observation_space, action_space
        self.episode_metadata = episode_metadata
        self._known_extras: set[str] = set()
        self._expected_first = 0  # number of the journal's first episode in a dataset
        # finished episodes that the journal has not taken: the disk was full, or Ctrl-C came
        self._unkept: list[EpisodeBuffer] = []
        # recorder whose episode the journal is taking, and number of episodes that it had before
        self._adding: tuple[CheckedRecorder | StrictRecorder, int] | None = None
        # form of the last regular episode without metadata
        self._form: list[Any] | None = None
        self._header = b""
        self._pid = 0

    def start(
        self,
        observation: Any,
        info: dict[str, Any],
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        extras: dict[str, Any] | None = None,
        env: int = 0,
    ) -> None:
        """Start an episode of an environment; other arguments as in :meth:`EpisodeRecorder.start`.

        Raises:
            InvalidEpisodeError: a value does not have the structure or the shape of its space, or
                lies outside of it and the recording is strict.
        """
        self._pid = os.getpid()
        self._forget_added()
        self.journal.release(env)
        recorder = self.recorders[env]
        recorder.start(observation, info, seed=seed, options=options, extras=extras)

    def extras(self, data: StepData) -> dict[str, Any] | None:
        """Return the groups of extra step data in a record, None if there are none.

        Raises:
            InvalidEpisodeError: a group has an invalid name.
        """
        if len(data) == len(STEP_DATA_KEYS):
            return None
        extras = {name: value for name, value in data.items() if name not in STEP_DATA_KEYS}
        for name in extras.keys() - self._known_extras:
            if not isinstance(name, str) or name in RESERVED_GROUPS or not name or "/" in name:
                raise InvalidEpisodeError(
                    f"the step data has the invalid key {name!r}; extra keys must be non-empty "
                    f"strings without a slash, other than {sorted(RESERVED_GROUPS)}"
                )
            self._known_extras.add(name)
        return extras

    def close_episode(self, env: int = 0) -> None:
        """Finish an episode that was cut off, as truncated, if it has any steps."""
        self._forget_added()
        if len(self.recorders[env]):
            self.recorders[env].truncate()
            self.finish_episode(env)

    def break_off(self) -> None:
        """Finish the open episodes, or drop them, as chosen at the beginning.

        Raises:
            InvalidEpisodeError, OSError: see :meth:`finish_episode`; the others are finished.
        """
        fault = None
        for env, recorder in enumerate(self.recorders):
            if self._drops_unfinished:
                recorder.forget()
                continue
            try:
                self.close_episode(env)
            except Exception as error:
                fault = fault or error
        if fault is not None:
            raise fault

    def finish_episode(self, env: int = 0) -> None:
        """Add the episode to the journal; if the callback fails, only its metadata are lost.

        Raises:
            InvalidEpisodeError: it has a value that cannot be stored, or the callback returned
                one.
            OSError: the disk is full; :meth:`keep` tries again.
        """
        self._forget_added()
        recorder = self.recorders[env]
        number = self._n_given + len(self.journal) + len(self._unkept)
        warning = recorder.warning(number)
        if warning is not None:
            self.warnings.append(warning)
        if self._add_regular(recorder):
            return
        form = recorder.form if _is_regular(recorder) else None
        episode = recorder.finish(number)
        if episode.infos or episode.extras or not recorder.is_plain:
            # refuse here what the storage would refuse, before the episode joins the others
            episode_columns(episode, self._observation_space, self._action_space, episode=number)
        fault = None
        if type(self.episode_metadata) is not EpisodeMetadataCallback:  # storage adds the defaults
            own = dict(episode.metadata)
            try:
                episode.metadata.update(self._added(episode, self._expected_first + number))
                _check_attributes(episode, number)
            except BaseException as error:
                fault = error
                episode.metadata.clear()
                episode.metadata.update(own)
        self._hand_over(episode, env)
        if form is not None and type(self.episode_metadata) is EpisodeMetadataCallback:
            self._form, self._header = form, self.journal.header
        if fault is not None:
            raise fault

    def _hand_over(self, episode: EpisodeBuffer, env: int) -> None:
        """Pass the episode to ``on_episode``, or to the journal if there is none or it fails."""
        if self.on_episode is not None:
            try:
                self.on_episode(episode, self.total_steps)
            except BaseException:
                self._unkept.append(replace(episode, id=len(self.journal) + len(self._unkept)))
                self.keep()
                raise
            self._n_given += 1
            if not self._unkept:
                self.journal.remove_rows(env)
            return
        self._unkept.append(episode)
        self.keep()

    def _add_regular(self, recorder: CheckedRecorder | StrictRecorder) -> bool:
        """Add the episode to the journal, and return True, if it has the form of an earlier one."""
        if self._unkept or not _is_regular(recorder) or recorder.form != self._form:
            return False
        if type(self.episode_metadata) is not EpisodeMetadataCallback or self.on_episode:
            return False
        self._adding = recorder, len(self.journal)
        try:
            arrays = recorder.take_bytes()
            self.journal.append_alike(self._header, len(recorder), recorder.seed, arrays)
        except OSError:
            return False  # to keep it until the disk has room
        finally:
            self._forget_added()
        return True

    def _forget_added(self) -> None:
        """Clear the recorder if the journal has taken its episode, even before a Ctrl-C."""
        if self._adding is not None:
            recorder, count = self._adding
            if len(self.journal) > count:
                recorder.forget()
            self._adding = None

    def keep(self) -> None:
        """Add the episodes to the journal that it could not take before.

        Raises:
            OSError: it still cannot.
        """
        self._forget_added()
        while self._unkept:
            # the journal has it already if Ctrl-C came before the deletion
            if (self._unkept[0].id or 0) >= len(self.journal):
                self.journal.append(self._unkept[0])
            del self._unkept[0]

    def _added(self, episode: EpisodeBuffer, number: int) -> Mapping[str, Any]:
        record = {name: getattr(episode, name) for name in _RECORD_FIELDS} | {"id": number}
        added = self.episode_metadata(record)
        if not isinstance(added, Mapping):
            raise InvalidEpisodeError(
                f"episode {number}: the episode metadata callback must return a dict, got "
                f"{type(added).__name__} {added!r:.60}"
            )
        return added

    def episodes(self, first: int) -> Iterator[EpisodeBuffer | Segment]:
        """Yield the finished episodes, to be stored under the numbers from ``first`` on.

        The metadata callback, which was called when an episode ended, is called again if it was
        given another number then.
        """
        other = first != self._expected_first
        asks = other and type(self.episode_metadata) is not EpisodeMetadataCallback
        if not asks:
            yield from self.journal.segments()
            return
        for number, episode in enumerate(self.journal.episodes(), first):
            episode.metadata.update(self._added(episode, number))
            yield episode

    def taken(self, first: int) -> None:
        """Start over: the episodes are stored under the numbers from ``first`` on."""
        # the next ones are most likely added to the same dataset
        self._expected_first = first + len(self.journal)
        self.journal.clear()

    def leave(self) -> None:
        """Keep episodes for ``minari-pipe recover`` and log that, or remove an empty journal."""
        if self._pid == os.getpid():  # an episode that a parent process began is not ours
            before = len(self.journal)
            try:
                self.break_off()
                self.keep()
            except Exception as error:
                what = "is lost" if len(self.journal) == before else "lacks its metadata"
                logger.warning("The last episode of a DataCollector %s: %s", what, error)
        count = len(self.journal)
        path = self.journal.leave()
        if path is not None:
            logger.warning(
                "%d episodes were recorded but not saved as a dataset. They are kept in %s: "
                "`minari-pipe recover` saves them as a dataset or discards them",
                count,
                path.parent,
            )


def _is_regular(recorder: CheckedRecorder | StrictRecorder) -> bool:
    """Return whether an episode is regular and its seed, if any, fits into a record's prefix."""
    return recorder.is_regular and (recorder.seed is None or is_word(recorder.seed))


def _check_attributes(episode: EpisodeBuffer, number: int) -> None:
    reserved = {*BUFFER_FIELDS, "infos_slashes"} & episode.metadata.keys()
    if reserved:
        raise InvalidEpisodeError(
            f"episode {number}: the episode metadata callback cannot set {sorted(reserved)}, "
            "which are derived from the episode"
        )
    attributes = {key: value for key, value in episode.metadata.items() if key != "infos_filled"}
    if episode.options is not None:
        attributes["options"] = episode.options
    try:
        flatten_attributes(attributes)
    except InvalidEpisodeError as error:
        raise InvalidEpisodeError(f"episode {number}: {error}") from None


def callback(given: Any, env: Any, what: str) -> Callable[..., Any]:
    """Return the callable of a callback, which is given as a class, an instance or a function.

    Args:
        given: the callback. A class is instantiated without arguments, or with the environment
            if it needs one argument or takes ``env``, as those of Minari 0.3 do.
        env: the environment.
        what: name of the argument, for error messages.

    Raises:
        ConfigError: it is not callable.

    Example:
        >>> callback(len, None, "episode_metadata_callback")
        <built-in function len>
    """
    made = given
    if isinstance(given, type):
        made = given(env) if _takes_the_environment(given) else given()
    if not callable(made):
        raise ConfigError(
            f"{what} must be a class, an instance with __call__ or a function, got {given!r:.80}"
        )
    return made


def _takes_the_environment(given: type) -> bool:
    try:
        parameters = list(inspect.signature(given).parameters.values())
    except ValueError:
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind in positional]
    first = next((p.name for p in parameters if p.kind in positional), None)
    return len(needed) == 1 or (first == "env" and not needed)
