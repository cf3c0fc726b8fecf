"""Small demonstrations for the tests, and the files they are written to."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import h5py
import numpy as np
import pytest

from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.policies.demonstration_formats import read_demonstrations

Episode = dict[str, Any]


class CountingEnv(gym.Env):
    """Its observation is ``[step, qpos]``; it starts from the option ``initial_state_dict``.

    It terminates when ``step`` reaches ``last``; the reward is the first entry of the action.
    """

    def __init__(self, last: int = 10**9, dtype: type = np.float32) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Box(-1, 1, (3,), dtype)
        self.last = last
        self.actions: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        assert options is not None
        self.state = options["initial_state_dict"]
        assert isinstance(self.state["qpos"], np.ndarray)
        self.step_index = 0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.actions.append(action)
        self.step_index += 1
        terminated = self.step_index >= self.last
        return self._observation(), float(action[0]), terminated, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.step_index, self.state["qpos"][0]])


def counting_episodes(lengths: Sequence[int] = (4, 2, 5), seed: int = 0) -> list[Episode]:
    """Episodes of :class:`CountingEnv` in DAPG's layout, some actions outside the space."""
    rng = np.random.default_rng(seed)
    episodes = []
    for length in lengths:
        qpos = rng.normal(size=1)
        actions = rng.normal(size=(length, 3))
        episodes.append(
            {
                "actions": actions,
                "observations": np.column_stack([np.arange(length), np.full(length, qpos[0])]),
                "rewards": np.clip(actions[:, 0], -1, 1).astype(np.float32).astype(np.float64),
                "init_state_dict": {"qpos": qpos, "qvel": np.zeros(1)},
            }
        )
    return episodes


class _Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 did, where both are one type; its memo works alike."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def _save_str(self, value: str | bytes) -> None:
        data = value if isinstance(value, bytes) else value.encode("latin-1")
        if not self.bin:
            self.write(pickle.STRING + repr(data).removeprefix("b").encode() + b"\n")
        elif len(data) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(data)]) + data)
        else:
            self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = _save_str


def numpy_1_names(data: bytes) -> bytes:
    """A pickle as NumPy 1 would have written it (the lengths of its frames are not adapted)."""
    for module in (b"multiarray", b"numeric"):
        new, old = b"numpy._core." + module, b"numpy.core." + module
        data = data.replace(bytes([len(new)]) + new, bytes([len(old)]) + old).replace(new, old)
    return data


def _python_2_dumps(value: Any, protocol: int) -> bytes:
    file = io.BytesIO()
    _Python2Pickler(file, protocol).dump(value)
    return numpy_1_names(file.getvalue())


PICKLERS = {
    **{f"protocol {n}": partial(pickle.dumps, protocol=n) for n in range(6)},
    **{f"Python 2, protocol {n}": partial(_python_2_dumps, protocol=n) for n in range(3)},
}
"""Every way in which Python wrote pickles."""


def write_dapg(path: Path, episodes: Any, protocol: int = 4) -> Path:
    """Pickle episodes as DAPG did."""
    path.write_bytes(pickle.dumps(episodes, protocol=protocol))
    return path


def write_d4rl(
    path: Path,
    episodes: Sequence[Episode],
    *,
    ends: str = "timeouts",
    **options: Any,
) -> Path:
    """Re-save episodes in D4RL's flat layout, the initial state in the first row of each.

    Args:
        path: the file to write.
        episodes: in DAPG's layout.
        ends: which of ``terminals`` and ``timeouts`` is set at the last step of each episode.
        options: of h5py's ``create_dataset``.
    """
    lengths = [len(episode["actions"]) for episode in episodes]
    last = np.zeros(sum(lengths), bool)
    last[np.cumsum(lengths) - 1] = True
    with h5py.File(path, "w") as file:
        for key in ("observations", "actions", "rewards"):
            data = np.concatenate([episode[key] for episode in episodes])
            file.create_dataset(key, data=data, **options)
        for key in ("terminals", "timeouts"):
            file.create_dataset(key, data=last if key == ends else last & False, **options)
        for key in episodes[0]["init_state_dict"]:
            rows = []
            for episode, length in zip(episodes, lengths, strict=True):
                state = episode["init_state_dict"][key]
                # Only the first row of an episode is its initial state; the others differ.
                rows += [state + step for step in range(length)]
            file.create_dataset(f"infos/{key}", data=np.stack(rows), **options)
        file.create_dataset("infos/action_log_std", data=np.zeros((sum(lengths), 3)))
        file["metadata/algorithm"] = np.bytes_("none")
    return path


def mjl(
    qpos: np.ndarray,
    qvel: np.ndarray,
    ctrl: np.ndarray,
    *,
    name: bytes = b"kitchen",
    others: tuple[int, int, int] = (0, 0, 0),
) -> bytes:
    """A MuJoCo log, a row of each array per frame.

    Args:
        qpos: positions, shape ``(T, nq)``.
        qvel: velocities, shape ``(T, nv)``.
        ctrl: controls, shape ``(T, nu)``.
        name: of the model.
        others: numbers of mocap bodies, sensor values and user values, all recorded as NaN.
    """
    n_frames = len(qpos)
    rest = np.full((n_frames, 7 * others[0] + others[1] + others[2]), np.nan)
    time = 0.002 * np.arange(n_frames)
    sizes = (qpos.shape[1], qvel.shape[1], ctrl.shape[1], *others, len(name))
    records = np.column_stack([time, qpos, qvel, ctrl, rest]).astype("<f4")
    return struct.pack("<7i", *sizes) + name + records.tobytes()


def small_log(n_frames: int = 5, seed: int = 0, nu: int = 2) -> bytes:
    """A log of random numbers, with three positions and two velocities."""
    rng = np.random.default_rng(seed)
    return mjl(*(rng.normal(size=(n_frames, size)) for size in (3, 2, nu)))


def write_zip(path: Path, files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write a zip of files by name; equal files give equal bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return path


def write_kitchen(path: Path, n_logs: int = 3, n_steps: int = 3) -> Path:
    """Write a zip of logs of FrankaKitchen-v1, whose arm a controller of its joints moves."""
    import gymnasium_robotics
    import mujoco

    gym.register_envs(gymnasium_robotics)
    env: Any = gym.make("FrankaKitchen-v1")
    model, data = env.unwrapped.model, env.unwrapped.data
    files = {}
    for number in range(n_logs):
        env.reset(seed=number)
        start = data.qpos[:9].copy()
        goal = start + np.random.default_rng(number).uniform(-0.2, 0.2, 9)
        frames = []
        for frame in range(40 * n_steps + 1):
            data.ctrl[:] = start + (goal - start) * frame / (40 * n_steps)
            frames.append([array.copy() for array in (data.qpos, data.qvel, data.ctrl)])
            mujoco.mj_step(model, data)
        content = mjl(*(np.stack(column) for column in zip(*frames, strict=True)))
        files[f"demos/friday_microwave_kettle_switch_slide/{number}.mjl"] = content
    env.close()
    return write_zip(path, files)


FLOAT64 = (
    b"cnumpy\ndtype\n(X\x02\x00\x00\x00f8K\x00K\x01tR"
    b"(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
"""Pickle code that leaves a dtype on the stack."""


def array_code(shape: bytes, data: bytes) -> bytes:
    """Pickle code of a float64 array; the arguments leave one value on the stack each."""
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
        b"(K\x01" + shape + FLOAT64 + b"\x89" + data + b"tb"
    )


def buffer_code(data: bytes, shape: bytes, order: bytes) -> bytes:
    """Like :func:`array_code`, as protocol 5 writes arrays; ``order`` leaves one or two values."""
    return b"cnumpy.core.numeric\n_frombuffer\n(" + data + FLOAT64 + shape + order + b"tR"


def changed_episodes(index: int, **changes: Any) -> list[Episode]:
    """:func:`counting_episodes` with other entries in one of them."""
    episodes = counting_episodes()
    episodes[index] = {**episodes[index], **changes}
    return episodes


def refused(path: Path, **options: Any) -> str:
    """The message with which a file is refused, which is one line."""
    with pytest.raises(InvalidEpisodeError) as caught:
        read_demonstrations(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


def survive_mutants(path: Path, count: int, format: str, positions: Any = None) -> int:
    """Read ``count`` damaged copies of a file; each reads or is refused in one line."""
    rng = np.random.default_rng(1)
    original = path.read_bytes()
    positions = np.arange(len(original)) if positions is None else positions
    messages = []
    for number in range(count):
        data = bytearray(original)
        for _ in range(rng.integers(1, 5)):
            place = int(rng.choice(positions))
            match rng.integers(5):
                case 0 | 1:
                    data[place : place + 1] = rng.bytes(1)
                case 2:
                    del data[place : place + int(rng.integers(1, 9))]
                case 3:
                    other = int(rng.choice(positions))
                    data[place:place] = original[other : other + int(rng.integers(1, 20))]
                case 4 if rng.random() < 0.1:
                    del data[place:]
        mutant = path.with_name(f"mutant{number % 2}")
        mutant.write_bytes(data)
        try:
            list(read_demonstrations(mutant, format=format))
        except InvalidEpisodeError as error:
            messages.append(str(error))
    assert not any("\n" in message or len(message) > 1000 for message in messages)
    return len(messages)
