"""Collect a block of episodes: which of them are kept, and when there are enough."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.messages import without_credentials
from minari_pipe.core.tree import leaves
from minari_pipe.errors import ConfigError, InvalidEpisodeError, did_you_mean
from minari_pipe.pipeline.config.schema import Until
from minari_pipe.pipeline.execution.block_file import BlockWriter
from minari_pipe.pipeline.execution.block_task import (
    LONGEST_REASON,
    BlockPlace,
    EpisodesWork,
    Tally,
)
from minari_pipe.pipeline.execution.build import environment_factory
from minari_pipe.policies.base import Policy
from minari_pipe.policies.evaluation import succeeded
from minari_pipe.policies.rollout import episode_seed, make_recorder, run_lockstep
from minari_pipe.recording.recorded_view import OBSERVATION, RecordedObservation, RecordedView
from minari_pipe.storage.writer import StableBuffers


@dataclass
class Count:
    """Totals of what is collected, episode by episode in the order of their numbers."""

    n_steps: int = 0
    """Steps of the episodes that are kept."""
    n_kept: int = 0
    n_matching: int = 0

    def add(self, n_steps: int, *, kept: bool, matches: bool) -> None:
        """Count one episode."""
        self.n_steps += n_steps if kept else 0
        self.n_kept += kept
        self.n_matching += matches


@dataclass(frozen=True)
class Stop:
    """When there are enough episodes: limits from the config, each optional."""

    n_steps: int | None = None
    n_matching: int | None = None

    def is_met(self, count: Count) -> bool:
        """Return whether no further episode is needed."""
        return (self.n_steps is not None and count.n_steps >= self.n_steps) or (
            self.n_matching is not None and count.n_matching >= self.n_matching
        )


@dataclass(frozen=True)
class CollectBlock(EpisodesWork):
    """Collects a block's episodes into its file.

    A block ends early if its own episodes already suffice for the whole dataset, so its bytes
    depend on no other block.
    """

    record_infos: bool | list[str]
    record_state: bool
    until: Until
    keeps_all: bool
    stop: Stop
    skips_episodes: bool = False
    """Leave out episodes that the policy cannot end."""
    record_observation: Any = None

    def write(self, path: Path, tally: Tally, place: BlockPlace) -> dict[str, Any]:
        """Write the block and return a record with a summary of every episode.

        Raises:
            InvalidEpisodeError: the environment or the policy failed; names episode and step.
        """
        make_env = environment_factory(self.env, place.root)
        policy = self.policy.make(place)
        episodes: list[dict[str, Any]] = []
        spaces: list[tuple[gym.Space, gym.Space]] = []
        collected = self._collected(make_env, policy, tally, episodes, spaces, place.root)
        with BlockWriter.create(path) as block:
            first = next(collected, None)  # creates the environment, which adds to `spaces`
            if first is not None:
                block.add(StableBuffers(itertools.chain([first], collected)), *spaces[0])
        return {"episodes": episodes}

    def _collected(
        self,
        make_env: Callable[[], gym.Env],
        policy: Policy,
        tally: Tally,
        episodes: list[dict[str, Any]],
        spaces: list[tuple[gym.Space, gym.Space]],
        root: Path,
    ) -> Iterator[EpisodeBuffer]:
        """Yield the episodes that are kept.

        Append a summary of each episode to ``episodes``, and the spaces of each environment to
        ``spaces``.
        """
        count = Count()

        def make_sink(env: gym.Env) -> _Sink:
            sink = _Sink(env, self)
            spaces.append((sink.observation_space, env.action_space))
            return sink

        numbers = range(self.first, self.last)
        running = run_lockstep(
            make_env,
            make_sink,
            policy,
            numbers,
            seed=self.seed,
            n_envs=self.n_envs,
            on_fail=_failed if self.skips_episodes else None,
            options=self.env.reset_options,
            on_step=tally.step,
        )
        for number, (buffer, success) in zip(numbers, running, strict=True):
            if isinstance(buffer, str):
                episodes.append(_left_out(number, self.seed, _stable(buffer, root)))
                tally.episode(0.0)
                continue
            _check_values(number, buffer)
            episode_return = float(buffer.rewards.sum())
            matches = bool(self.until) and self.until.matches(episode_return, success)
            kept = self.keeps_all or matches
            episodes.append(
                {
                    "episode": number,
                    "n_steps": len(buffer),
                    "return": episode_return,
                    "success": success,
                    "matches": matches,
                    "kept": kept,
                    "report": policy.finish(number, buffer),
                }
            )
            tally.episode(episode_return)
            if kept:
                yield replace(buffer, id=None)
            count.add(len(buffer), kept=kept, matches=matches)
            if self.stop.is_met(count):
                return


class _Sink:
    """Records an episode as a block's config says, and whether the environment reported success."""

    def __init__(self, env: gym.Env, block: CollectBlock) -> None:
        values = block.record_observation
        self._recorded = None if values is None else RecordedObservation.of(values, OBSERVATION)
        view = env if self._recorded is None else RecordedView(env, self._recorded, OBSERVATION)
        self.observation_space = view.observation_space
        infos = block.record_infos
        self._recorder = make_recorder(
            view, record_infos=bool(infos), record_state=block.record_state
        )
        self._infos = infos if isinstance(infos, list) else None
        self._last_info: dict[str, Any] = {}
        self._step = self._recorder.step
        self._success: bool | None = None
        self._success_key = block.env.success_key

    def start(self, observation: Any, info: dict, **kwargs: Any) -> None:
        self._success = None
        self._recorder.start(self._observation(observation), self._chosen(info), **kwargs)

    def _observation(self, observation: Any) -> Any:
        return observation if self._recorded is None else self._recorded(observation)

    def _chosen(self, info: dict[str, Any]) -> dict[str, Any]:
        if self._infos is None:
            return info
        self._last_info = info
        return {name: info[name] for name in self._infos if name in info}

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict,
    ) -> None:
        if info:
            self._success = succeeded(info, self._success, self._success_key)
        observation, info = self._observation(observation), self._chosen(info)
        self._step(action, observation, reward, terminated, truncated, info)

    def truncate(self) -> None:
        self._recorder.truncate()

    def finish(self, episode: int) -> tuple[EpisodeBuffer | str, bool | None]:
        buffer = self._recorder.finish(episode)
        for name in self._infos or ():
            if name not in (buffer.infos or {}):
                known = ", ".join(map(str, self._last_info)) or "nothing"
                raise ConfigError(
                    f"collect.record_infos names {name!r}, which no info of episode {episode} has."
                    f"{did_you_mean(name, map(str, self._last_info))} Its last info has: {known}"
                )
        return buffer, self._success


def _failed(episode: int, reason: str) -> tuple[EpisodeBuffer | str, bool | None]:
    """Return the reason in place of an episode, which the recorder discards with its next start."""
    return reason, None


def _stable(reason: str, root: Path) -> str:
    """Return a reason as the metadata can hold it: on one line, the same wherever it is made."""
    text = " ".join(without_credentials(reason).split()).replace(str(root), ".")
    text = re.sub(r"\b0x[0-9a-fA-F]{6,}", "0x\N{HORIZONTAL ELLIPSIS}", text)  # where objects lay
    return text.encode("utf-8", "replace").decode()[:LONGEST_REASON]


def _left_out(number: int, seed: int, reason: str) -> dict[str, Any]:
    """Return the summary of an episode that the policy could not end."""
    return {
        "episode": number,
        "n_steps": 0,
        "return": 0.0,
        "success": None,
        "matches": False,
        "kept": False,
        "report": None,
        "failed": {
            "episode": number,
            "seed": episode_seed(seed, number)[0],
            "reason": reason,
        },
    }


def _check_values(number: int, buffer: EpisodeBuffer) -> None:
    """Raise on NaN or infinity: learning from them yields NaN, and ``validate`` rejects both.

    Raises:
        InvalidEpisodeError: names the first step.
    """
    found: Mapping[str, Any] = {"observations": buffer.observations, "rewards": buffer.rewards}
    for path, leaf in leaves(found):
        if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "fc":
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            total = leaf.sum()  # needs no boolean array, but may overflow for finite numbers
        if not np.isfinite(total) and (bad := ~np.isfinite(leaf)).any():
            row, *within = np.argwhere(bad)[0]
            step = row - 1 if path[0] == "observations" else row
            where = "reset" if step < 0 else f"step {step}"
            name = ".".join(map(str, path))
            what = "NaN" if np.isnan(leaf[(row, *within)]) else "infinite"
            raise InvalidEpisodeError(
                f"episode {number}, {where}: {name} is {what}; the environment returned "
                f"{np.array2string(leaf[row], threshold=10)}"
            )
