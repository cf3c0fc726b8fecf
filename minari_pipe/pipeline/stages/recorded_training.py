"""Records every episode of a training, as its environments saw it, while SB3 trains.

The files of a training lie in one folder::

    episodes/
    ├─ block_00000.hdf5     episodes in the layout of the standard, in the order in which they ended
    ├─ ...
    └─ index.json           spaces, env_spec, blocks, and the step at which each episode ended

Actions are those that the environments received, after SB3 clipped or scaled them; observations
are those that they returned, before normalization. Episode ``k`` of environment ``i`` is reset
with its own seed, from ``np.random.SeedSequence(seed, spawn_key=(i, k))``, so each episode can be
replayed. Episodes that are unfinished when the training ends are not recorded.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from minari_pipe.core.datasets_root import ROOT_VARIABLE
from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.core.spaces import serialize_space
from minari_pipe.pipeline.workspace import dump_json
from minari_pipe.recording.vector_collector import VectorDataCollector
from minari_pipe.storage.columns import check_space_names
from minari_pipe.storage.hdf5.file import EpisodeFile

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

#: Number of steps at which a file is full.
BLOCK_STEPS = 250_000


def training_seed(seed: int, env: int, episode: int) -> int:
    """Return the reset seed of a training episode.

    It has 32 bits: environments that seed NumPy's legacy generator accept no larger ones.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(env, episode))
    return int(sequence.generate_state(1, np.uint32)[0])


@contextmanager
def recorded_training(
    out: Path, *, seed: int, record_infos: bool = False
) -> Iterator[Callable[[list[gym.Env]], VecEnv]]:
    """Yield the argument ``vector_env`` for :func:`minari_pipe.policies.training.train`.

    Args:
        out: the folder to create; it is complete when the block exits without an error.
        seed: seed from which all reset seeds are derived.
        record_infos: also record the infos.
    """
    out.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(_rows_in(out / "open"))
        # `validate` reports values outside their space, for the episodes of each dataset.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=re.escape(__name__))
        blocks = _Blocks(out)
        stack.callback(blocks.close)
        described: dict[str, Any] = {}

        def vector_env(envs: list[gym.Env]) -> VecEnv:
            first = envs[0]
            check_space_names(first.observation_space, first.action_space)
            assert first.spec is not None
            described.update(
                env_spec=spec_json(first.spec),
                observation_space=serialize_space(first.observation_space),
                action_space=serialize_space(first.action_space),
            )
            together = SyncVectorEnv(
                [partial(_Kept, env) for env in envs], autoreset_mode=AutoresetMode.DISABLED
            )
            recorded = VectorDataCollector(
                together,
                record_infos=record_infos,
                unfinished="drop",
                on_episode=blocks.append,
            )
            stack.callback(recorded.close)
            return seeded_vec_env(recorded, seed)

        yield vector_env
        blocks.finish(described)


class _Kept(gym.Wrapper):
    """Ignores ``close``, as the caller owns the environment, and resets it as a replay does."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        # SyncVectorEnv removes the mask from the options, and passes on an empty dict.
        return self.env.reset(seed=seed, options=options or None)

    def close(self) -> None:
        pass


@contextmanager
def _rows_in(folder: Path) -> Iterator[None]:
    """Buffer the rows of long, unfinished episodes in ``folder`` instead of the Minari root."""
    before = os.environ.get(ROOT_VARIABLE)
    os.environ[ROOT_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[ROOT_VARIABLE]
        else:
            os.environ[ROOT_VARIABLE] = before
        shutil.rmtree(folder, ignore_errors=True)


class _Blocks:
    """Writes episodes into one file after another; only the open file's index is in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._ended_at, self._lengths = array("q"), array("q")
        self._stack = ExitStack()
        self._file: EpisodeFile | None = None
        self._n_steps = 0

    def append(self, episode: EpisodeBuffer, total_steps: int) -> None:
        """Write an episode that ended after ``total_steps`` steps of the training."""
        if self._file is None:
            name = f"block_{len(self._names):05d}.hdf5"
            self._file = self._stack.enter_context(EpisodeFile.create(self._folder / name))
            self._names.append(name)
            self._n_steps = 0
        self._file.append(episode)
        self._ended_at.append(total_steps)
        self._lengths.append(len(episode))
        self._n_steps += len(episode)
        if self._n_steps >= BLOCK_STEPS:
            self._close_file()

    def _close_file(self) -> None:
        self._file = None
        self._stack.close()

    def finish(self, described: dict[str, Any]) -> None:
        self._close_file()
        columns = {"ended_at": self._ended_at.tolist(), "n_steps": self._lengths.tolist()}
        index = {**described, "blocks": self._names, "episodes": columns}
        (self._folder / "index.json").write_text(dump_json(index), encoding="utf-8")

    def close(self) -> None:
        """Close the open file, if any, even after an error."""
        self._stack.close()


def seeded_vec_env(env: VectorEnv, seed: int) -> VecEnv:
    """Adapt a ``SyncVectorEnv`` without autoreset, or a wrapper of one, to SB3's ``VecEnv``.

    Every episode is reset with its own seed (:func:`training_seed`). ``close`` does nothing: the
    caller owns the environments.
    """
    from stable_baselines3.common.env_util import is_wrapped
    from stable_baselines3.common.vec_env import VecEnv

    together = env.unwrapped
    assert isinstance(together, SyncVectorEnv)
    envs = together.envs

    class SeededVecEnv(VecEnv):
        def __init__(self) -> None:
            self._n_resets = np.zeros(env.num_envs, dtype=int)
            super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

        def reset(self) -> Any:
            return self._reset(np.ones(env.num_envs, dtype=bool))

        def _reset(self, mask: np.ndarray) -> Any:
            seeds = [
                training_seed(seed, i, int(self._n_resets[i])) if mask[i] else None
                for i in range(env.num_envs)
            ]
            self._n_resets += mask
            # Gymnasium's annotation omits that each environment may have its own seed.
            observations, _ = env.reset(seed=seeds, options={"reset_mask": mask})  # type: ignore[arg-type]
            return observations

        def step_async(self, actions: np.ndarray) -> None:
            # Cast to the space's dtype, as recorded, so that a replay steps the same actions.
            self._actions = np.asarray(actions, dtype=env.single_action_space.dtype)

        def step_wait(self) -> Any:
            observations, rewards, terminated, truncated, _ = env.step(self._actions)
            ended = terminated | truncated
            infos: list[dict[str, Any]] = [
                {"TimeLimit.truncated": bool(truncated[i] and not terminated[i])}
                for i in range(env.num_envs)
            ]
            if ended.any():
                for i in np.flatnonzero(ended):
                    infos[i]["terminal_observation"] = _row(observations, int(i))
                observations = self._reset(ended)
            return observations, rewards.astype(np.float32), ended, infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [each.get_wrapper_attr(attr_name) for each in self._chosen(indices)]

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            for each in self._chosen(indices):
                setattr(each, attr_name, value)

        def env_method(
            self, method_name: str, *method_args: Any, indices: Any = None, **kwargs: Any
        ) -> list[Any]:
            chosen = self._chosen(indices)
            return [each.get_wrapper_attr(method_name)(*method_args, **kwargs) for each in chosen]

        def env_is_wrapped(
            self, wrapper_class: type[gym.Wrapper], indices: Any = None
        ) -> list[bool]:
            return [is_wrapped(each, wrapper_class) for each in self._chosen(indices)]

        def _chosen(self, indices: Any) -> list[gym.Env]:
            return [envs[i] for i in self._get_indices(indices)]

    return SeededVecEnv()


def _row(observations: Any, i: int) -> Any:
    """Return a copy of the observation of one environment."""
    if isinstance(observations, dict):
        return {key: column[i].copy() for key, column in observations.items()}
    return observations[i].copy()
