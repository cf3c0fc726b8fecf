"""Test that images are stored exactly, or as JPEG on request, which loses data only once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

from minari_pipe.core.episode import EpisodeBuffer
from minari_pipe.errors import InvalidEpisodeError, MissingDependencyError, UnsupportedSpaceError
from minari_pipe.storage import MinariStorage, jpeg
from minari_pipe.testing.base import Contract, steps_of
from minari_pipe.testing.comparison import assert_episode, assert_same, assert_stored, state
from minari_pipe.testing.strategies import episode

PICTURE = Box(0, 255, (40, 32, 3), np.uint8)
CAMERAS = gym.spaces.Dict(
    cameras=gym.spaces.Tuple([PICTURE, Box(0, 255, (32, 32), np.uint8)]),
    grid=Box(0, 255, (7, 7, 3), np.uint8),
    joints=Box(-1, 1, (2,)),
)


def gradient(rows: int, shape: tuple[int, ...], first: int = 0) -> np.ndarray:
    """Return pictures that JPEG changes slightly, each of them different."""
    height, width = np.arange(shape[0]), np.arange(shape[1])
    plane = height[:, None] * 3 + width[None]
    picture = plane if len(shape) == 2 else np.stack([plane * (i + 1) for i in range(shape[2])], -1)
    return (
        (picture + 5 * np.arange(first, first + rows).reshape(-1, *[1] * len(shape))) % 256
    ).astype(np.uint8) // 2


def filmed(steps: int, *, first: int = 0) -> EpisodeBuffer:
    """Return an episode of ``CAMERAS`` whose actions are pictures too."""
    buffer = episode(CAMERAS, PICTURE, np.random.default_rng(first), steps)
    rows = len(buffer) + 1
    cameras = (gradient(rows, (40, 32, 3), first), gradient(rows, (32, 32), first))
    return replace(
        buffer,
        observations={**buffer.observations, "cameras": cameras},
        actions=gradient(rows - 1, (40, 32, 3), first + 7),
        infos={"view": gradient(rows, (40, 32, 3))},
        extras={"state": {"view": gradient(rows, (64, 64))}},
    )


def pictures(fields: Any) -> list[np.ndarray]:
    """Return the columns that JPEG encodes."""
    fields = fields if isinstance(fields, dict) else vars(fields)
    return [*fields["observations"]["cameras"], fields["actions"]]


class ImagesContract(Contract):
    """Tests of images without and with JPEG."""

    @pytest.mark.parametrize(
        "shape",
        [(64, 64), (64, 64, 1), (64, 48, 2), (48, 64, 3), (64, 64, 4), (2, 64, 64), (7, 7, 3)],
        ids=str,
    )
    def test_images_are_lossless(self, path: Path, shape: tuple[int, ...]) -> None:
        space = Box(0, 255, shape, np.uint8)
        buffers = [episode(space, space, np.random.default_rng(0), 3)]
        self.new(path, space, space).update_episodes(buffers)
        assert_stored(MinariStorage.read(path), buffers)

    def test_jpeg_changes_pictures_a_little_and_nothing_else(self, path: Path) -> None:
        buffers = [filmed(3), filmed(1, first=9)]
        storage = self.new(path, CAMERAS, PICTURE, jpeg_encoding=True)
        storage.update_episodes(buffers)
        again = MinariStorage.read(path)
        assert again.jpeg_encoding is storage.jpeg_encoding is True
        for buffer, found in zip(buffers, again.get_episodes([0, 1]), strict=True):
            for before, after in zip(pictures(buffer), pictures(found), strict=True):
                assert (after.dtype, after.shape) == (before.dtype, before.shape)
                difference = np.abs(after.astype(int) - before)
                assert 0 < difference.mean() < 8
            assert_episode(with_pictures_of(found, buffer), buffer)
        assert_same(state(path), state(path))

    def test_copies_of_jpeg_lose_nothing_more(self, path: Path, tmp_path: Path) -> None:
        storage = self.new(path, CAMERAS, PICTURE, jpeg_encoding=True)
        storage.update_episodes([filmed(3), filmed(2, first=9)])
        stored = list(storage.get_episodes([0, 1]))
        for name, jpeg_encoding in {"jpeg": True, "exact": False}.items():
            copy = self.new(tmp_path / name, CAMERAS, PICTURE, jpeg_encoding=jpeg_encoding)
            copy.update_from_storage(storage)
            assert_same(list(copy.get_episodes([0, 1])), stored)
            copy.update_from_storage(copy, [1])
            assert_same({**stored[1], "id": 2}, next(iter(copy.get_episodes([2]))))

    @pytest.mark.parametrize("jpeg_encoding", [False, True], ids=["exact", "jpeg"])
    def test_an_episode_of_images_can_be_continued(self, path: Path, jpeg_encoding: bool) -> None:
        storage = self.new(path, CAMERAS, PICTURE, jpeg_encoding=jpeg_encoding)
        whole = filmed(5)
        storage.update_episodes([whole, steps_of(whole, 0, 3, first=True)])
        rest = steps_of(whole, 3, 5, first=False)
        MinariStorage.read(path).update_episodes([replace(rest, id=1, metadata={})])
        one, other = storage.get_episodes([0, 1])
        assert_same({**one, "id": 1}, other)

    def test_jpeg_takes_no_other_number_of_channels(self, path: Path, tmp_path: Path) -> None:
        for shape in ((84, 84, 4), (64, 64, 1)):
            space = gym.spaces.Dict(camera=Box(0, 255, shape, np.uint8))
            with pytest.raises(UnsupportedSpaceError, match=r"JPEG.*actions\.camera.*False"):
                self.new(path, CAMERAS, space, jpeg_encoding=True)
        assert list(tmp_path.iterdir()) == []

    def test_jpeg_takes_no_other_dtype(self, path: Path) -> None:
        storage = self.new(path, PICTURE, PICTURE, jpeg_encoding=True)
        good = episode(PICTURE, PICTURE, np.random.default_rng(0), 2)
        before = state(path)
        bad = replace(good, observations=good.observations.astype(np.float32))
        with pytest.raises(InvalidEpisodeError, match=r"^episode 0: .*JPEG must.* got float32"):
            storage.update_episodes([bad])
        assert_same(before, state(path))

    def test_jpeg_without_pillow_is_refused(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = self.new(path, CAMERAS, PICTURE, jpeg_encoding=True)
        storage.update_episodes([filmed(2)])
        monkeypatch.setattr(jpeg, "Image", None)
        with pytest.raises(MissingDependencyError, match=r"pip install 'minari_pipe\[jpeg\]'"):
            storage.update_episodes([filmed(2)])
        with pytest.raises(MissingDependencyError, match="pillow"):
            list(storage.get_episodes([0]))


def with_pictures_of(found: dict[str, Any], buffer: EpisodeBuffer) -> dict[str, Any]:
    """Return the episode ``found`` with the pictures of ``buffer``."""
    cameras = buffer.observations["cameras"]
    observations = {**found["observations"], "cameras": cameras}
    return {**found, "observations": observations, "actions": buffer.actions}
