"""A film shows an episode as it was recorded, or one line says why there is none."""

from __future__ import annotations

import dataclasses
import importlib
import io
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from PIL import Image

import minari_pipe
from minari_pipe.checks import film as films
from minari_pipe.checks.film import MOST_BYTES, MOST_FRAMES, RENDERERS, WIDTH, film
from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import MinariPipeError
from minari_pipe.storage import MinariStorage

#: an environment of a stranger: the colour of its pictures is its observation
PAINTER = """
import os, time
import gymnasium as gym
import numpy as np


class Painter(gym.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gym.spaces.Box(0, 255, (1,), np.float64)
    action_space = gym.spaces.Discrete(9)

    def __init__(self, render_mode=None, fault=None):
        self.render_mode, self.fault = render_mode, fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.value = float(self.np_random.integers(50))
        return np.array([self.value]), {}

    def step(self, action):
        self.value += action
        return np.array([self.value]), 1.0, False, False, {}

    def render(self):
        if self.fault == "hangs":
            time.sleep(100)
        if self.fault == "prints":
            os.write(1, b"hello from C")
        if self.fault == "exits":
            os._exit(0)
        if self.fault == "crashes":
            os._exit(11)
        if self.fault == "raises":
            raise RuntimeError("no display\\nat all")
        return np.full((60, 80, 3), int(self.value * 37) % 256, np.uint8)
"""


@pytest.fixture
def painter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[gym.Env]:
    (tmp_path / "painter.py").write_text(PAINTER)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return importlib.import_module("painter").Painter


def recorded(path: Path, painter: type[gym.Env], steps: int, **kwargs: str) -> Path:
    """An episode of the painter; the folder of its data."""
    env = painter()
    first, _ = env.reset(seed=5)
    actions = np.arange(steps) % 3 + 1
    rows = [first, *(env.step(int(action))[0] for action in actions)]
    spec = EnvSpec("Painter-v0", entry_point="painter:Painter", kwargs=kwargs)
    storage = MinariStorage.new(path / "data", env.observation_space, env.action_space, spec)
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    storage.update_episodes(
        [
            EpisodeBuffer(
                seed=5,
                observations=np.array(rows),
                actions=actions,
                rewards=np.ones(steps),
                terminations=np.zeros(steps, bool),
                truncations=np.arange(1, steps + 1) == steps,
            )
        ]
    )
    return path / "data"


def frames(data: bytes) -> list[np.ndarray]:
    picture = Image.open(io.BytesIO(data), formats=["WEBP"])
    found = []
    for number in range(picture.n_frames):
        picture.seek(number)
        found.append(np.asarray(picture.convert("RGB")))
    return found


@pytest.fixture
def trusted() -> list[str]:
    return ["painter"]


def test_each_frame_is_that_of_its_step(tmp_path: Path, painter, trusted) -> None:
    data = recorded(tmp_path, painter, 12)
    (episode,) = MinariStorage.read(data).get_episodes([0])
    found = frames(film(data, 0, trusted))
    assert [frame.shape for frame in found] == [(240, WIDTH, 3)] * 13
    colours = [float(frame.mean()) for frame in found]
    assert colours == pytest.approx(episode["observations"][:, 0] * 37 % 256, abs=4)


def test_a_long_episode_is_shown_in_part(tmp_path: Path, painter, trusted) -> None:
    shown = film(recorded(tmp_path, painter, 230), 0, trusted)
    assert len(frames(shown)) == 77 <= MOST_FRAMES
    assert len(shown) <= MOST_BYTES


def test_images_that_were_recorded_need_no_environment(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (4, 64, 64, 3), np.uint8)
    space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    storage = MinariStorage.new(tmp_path / "data", space, gym.spaces.Discrete(2))
    storage.update_metadata({"dataset_id": "aa/b-v0", "minari_version": "0.5.4"})
    flags = np.array([False, False, True])
    storage.update_episodes([EpisodeBuffer(
        observations=pictures, actions=np.zeros(3, np.int64), rewards=np.ones(3),
        terminations=flags, truncations=flags & False,
    )])  # fmt: skip
    assert len(frames(film(tmp_path / "data", 0))) == 4


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raises", "RuntimeError: no display at all|at all"),
        ("crashes", "the renderer ended with exit code 11"),
        ("hangs", "the renderer took longer than 4 s"),
    ],
)
def test_a_renderer_that_fails_is_one_line(
    tmp_path: Path, painter, trusted, monkeypatch, fault: str, reason: str
) -> None:
    monkeypatch.setattr(films, "SECONDS", 4)
    with pytest.raises(MinariPipeError, match=reason) as caught:
        film(recorded(tmp_path, painter, 3, fault=fault), 0, trusted)
    assert "\n" not in str(caught.value)


def test_an_episode_that_replays_otherwise_is_not_shown(tmp_path: Path, painter, trusted) -> None:
    data = recorded(tmp_path, painter, 9)
    storage = MinariStorage.read(data)
    (buffer,) = storage.get_buffers([0])
    observations = buffer.observations.copy()
    observations[6] += 1e-9
    storage.update_episodes([dataclasses.replace(buffer, observations=observations)])
    with pytest.raises(MinariPipeError, match="the replay of episode 1 leaves the recording at s"):
        film(data, 1, trusted)


def test_an_episode_without_a_seed_is_not_shown(tmp_path: Path, painter, trusted) -> None:
    data = recorded(tmp_path, painter, 9)
    storage = MinariStorage.read(data)
    (buffer,) = storage.get_buffers([0])
    storage.update_episodes([dataclasses.replace(buffer, seed=None)])
    with pytest.raises(MinariPipeError, match="episode 1 has no seed"):
        film(data, 1, trusted)


def test_the_environment_of_a_stranger_is_not_run(tmp_path: Path, painter) -> None:
    with pytest.raises(MinariPipeError, match="painter"):
        film(recorded(tmp_path, painter, 3, fault="raises"), 0)


def test_nothing_is_imported_from_the_current_folder(
    tmp_path: Path, painter, trusted, monkeypatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("gymnasium.py", "numpy.py", "PIL.py", "json.py"):
        (here / name).write_text("raise SystemExit('imported from here')")
    monkeypatch.chdir(here)
    assert len(frames(film(recorded(tmp_path, painter, 2), 0, trusted))) == 3


def test_without_pillow_the_line_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(films, "Image", None)
    with pytest.raises(MinariPipeError, match=r"pip install 'minari_pipe\[jpeg\]'"):
        film(tmp_path, 0)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mujoco_is_filmed_without_a_display(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    with minari_pipe.DataCollector(gym.make("InvertedPendulum-v5")) as env:
        env.reset(seed=3)
        for _ in range(20):
            _, _, terminated, _, _ = env.step(np.zeros(1, np.float32))
            if terminated:
                break
        dataset = env.create_dataset("pole/still-v0")
    try:
        shown = film(dataset.storage.data_path, 0)
    except MinariPipeError as error:
        pytest.skip(f"no renderer on this machine: {error}")
    found = frames(shown)
    assert len(found) == len(dataset[0]) + 1
    assert np.ptp(found[0]) > 100


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_next_renderer_is_tried_and_without_any_the_line_says_what_to_install(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with minari_pipe.DataCollector(gym.make("InvertedPendulum-v5")) as env:
        env.reset(seed=3)
        env.step(np.zeros(1, np.float32))
        dataset = env.create_dataset("pole/still-v0")
    monkeypatch.setattr(films, "RENDERERS", ("bogus",))
    with pytest.raises(MinariPipeError, match="apt install libegl1"):
        film(dataset.storage.data_path, 0)
    monkeypatch.setattr(films, "RENDERERS", ("bogus", *RENDERERS))
    try:
        assert frames(film(dataset.storage.data_path, 0))
    except MinariPipeError as error:
        pytest.skip(f"no renderer on this machine: {error}")


@pytest.mark.parametrize(("fault", "is_film"), [("prints", True), ("exits", False)])
def test_what_an_environment_prints_is_no_film(
    tmp_path: Path, painter, trusted, fault: str, is_film: bool
) -> None:
    data = recorded(tmp_path, painter, 3, fault=fault)
    if is_film:
        assert len(frames(film(data, 0, trusted))) == 4
    else:
        with pytest.raises(MinariPipeError, match="ended the process that films it"):
            film(data, 0, trusted)


@pytest.mark.parametrize("shape", [(96, 96, 3), (2000, 64, 3)])
def test_a_film_of_noise_is_small_too(tmp_path: Path, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(256, size=shape).astype(np.uint8) for _ in range(MOST_FRAMES)]
    assert len(films._webp(pictures)) <= MOST_BYTES
