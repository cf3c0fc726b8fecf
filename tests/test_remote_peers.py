"""Datasets go from real Minari 0.5.4 to a remote and back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.namespace import create_namespace

from tests.real_minari import PeerError, RealMinari, content_of
from tests.servers.gcs import gcs_server


@pytest.fixture(scope="module")
def gcs() -> Iterator[dict[str, str]]:
    """The variables by which real Minari finds a bucket of the emulator's."""
    with gcs_server("bucket") as variables:
        yield {**variables, "MINARI_REMOTE": "gcp://bucket"}


@pytest.fixture
def publisher(gcs, tmp_path) -> Iterator[RealMinari]:
    with RealMinari(gcs, tmp_path / "publisher") as peer:
        yield peer


@pytest.fixture
def user(gcs, tmp_path) -> Iterator[RealMinari]:
    with RealMinari(gcs, tmp_path / "user") as peer:
        yield peer


def make(root: Path, dataset_id: str, n_episodes: int, patch: pytest.MonkeyPatch) -> dict:
    """Let real Minari write a dataset below ``root``; what is in it."""
    buffers = [
        EpisodeBuffer(
            observations=np.arange(n + 3, dtype=np.float32)[:, None],
            actions=np.full(n + 2, n % 2),
            rewards=np.full(n + 2, 0.5 * n),
            terminations=np.arange(n + 2) > n,
            truncations=np.zeros(n + 2, bool),
            infos={},
        )
        for n in range(n_episodes)
    ]
    patch.setenv("MINARI_DATASETS_PATH", str(root))
    namespace, _, _ = dataset_id.rpartition("/")
    if namespace and not (root / namespace).exists():
        create_namespace(namespace, description="Doors")
    with warnings.catch_warnings(action="ignore"):  # it has no environment
        dataset = minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            observation_space=spaces.Box(0, 100, (1,)),
            action_space=spaces.Discrete(2),
            algorithm_name="none",
            code_permalink="https://example.org",
            author="A",
            author_email="a@example.org",
            description="Counts.",
        )
    return content_of(dataset)


def test_what_real_minari_uploaded_it_lists_and_downloads(publisher, user, monkeypatch):
    content = make(publisher.datasets, "doors/wide/human-v1", 4, monkeypatch)
    publisher.upload_dataset("doors/wide/human-v1")
    listed = user.list_remote_datasets(prefix="doors/wide")
    assert listed["doors/wide/human-v1"]["total_episodes"] == 4
    assert "doors/wide" in user.list_remote_namespaces()
    user.download_dataset("doors/wide/human-v1")
    assert user.load_dataset("doors/wide/human-v1") == content
    publisher.upload_dataset("doors/wide/human-v1")
    assert "already in remote" in publisher.warnings[0]


def test_an_error_of_real_minari_is_told(user):
    with pytest.raises(PeerError, match="ValueError: Couldn't find any version for dataset none"):
        user.download_dataset("none-v0")
