"""Datasets go between real Minari 0.5.4 and this library by way of a bucket of Google's.

The Hub is in test_hub_with_minari.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.namespace import create_namespace

import minari_pipe
from minari_pipe.datasets.examples import step_index_dataset
from tests.support.cards import dataset_with_card
from tests.support.real_minari import PeerError, RealMinari, content_of
from tests.support.servers.gcs import create_bucket, gcs_server
from tests.support.servers.running import entered

IDS = ["doors/wide/human-v1", "doors/wide/human-v10", "plain-v0"]


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with gcs_server() as variables:
        yield variables


@pytest.fixture
def gcs(server, tmp_path) -> dict[str, str]:
    """The variables by which both libraries find a bucket of their own."""
    bucket = tmp_path.name.replace("_", "-")
    create_bucket(server["STORAGE_EMULATOR_HOST"], bucket)
    return {**server, "MINARI_REMOTE": f"gcp://{bucket}"}


@pytest.fixture
def here(gcs, own_home) -> Iterator[Path]:
    """Let this library speak with the server; its datasets root."""
    own = {"MINARI_DATASETS_PATH": str(own_home / "datasets")}
    with entered({**gcs, **own}):
        yield own_home / "datasets"


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


def test_what_was_published_here_real_minari_lists_downloads_and_reads(here, user):
    contents = {}
    for number, dataset_id in enumerate(IDS, start=1):
        contents[dataset_id] = content_of(step_index_dataset(dataset_id, lengths=[4] * number))
        assert minari_pipe.publish_dataset(dataset_id).outcome == "uploaded"
    listed = user.list_remote_datasets()
    assert sorted(listed) == IDS
    assert [listed[i]["total_episodes"] for i in IDS] == [1, 2, 3]
    # It asks for all parents of a dataset's namespace before it downloads.
    assert user.list_remote_namespaces() == ["doors", "doors/wide"]
    for dataset_id in IDS:
        user.download_dataset(dataset_id, force_download=True)
        assert user.load_dataset(dataset_id) == contents[dataset_id]


def test_real_minari_lists_downloads_and_loads_a_dataset_with_a_card(here, user):
    content = content_of(dataset_with_card("doors/wide/human-v1"))
    done = minari_pipe.publish_dataset("doors/wide/human-v1", published="2026-11-23")
    assert "card/report.html" in done.sizes
    assert list(user.list_remote_datasets()) == ["doors/wide/human-v1"]
    user.download_dataset("doors/wide/human-v1")
    assert user.load_dataset("doors/wide/human-v1") == content


def test_a_card_is_no_reason_to_refuse_what_real_minari_uploaded(here, publisher, monkeypatch):
    dataset_with_card("plain-v0")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(publisher.datasets))
    shutil.copytree(here / "plain-v0", publisher.datasets / "plain-v0")
    publisher.upload_dataset("plain-v0")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(here))
    done = minari_pipe.publish_dataset("plain-v0", published="2026-11-23")
    assert (done.outcome, done.notes) == ("present", ())


def test_what_real_minari_uploaded_is_listed_downloaded_and_read_here(publisher, here, monkeypatch):
    contents = {}
    for number, dataset_id in enumerate(IDS, start=1):
        contents[dataset_id] = make(publisher.datasets, dataset_id, number, monkeypatch)
        publisher.upload_dataset(dataset_id)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(here))
    assert sorted(minari_pipe.list_remote_datasets()) == IDS
    assert minari_pipe.list_remote_namespaces() == ["doors", "doors/wide"]
    with pytest.warns(UserWarning, match="higher dataset version"):
        minari_pipe.download_dataset(IDS[0])
    assert list(minari_pipe.list_local_datasets()) == IDS[:1]
    assert minari_pipe.get_namespace_metadata("doors/wide")["description"] == "Doors"
    for dataset_id in IDS[1:]:
        minari_pipe.download_dataset(dataset_id)
    for dataset_id in IDS:
        assert content_of(minari_pipe.load_dataset(dataset_id)) == contents[dataset_id]


def test_a_version_that_either_library_published_is_kept(here, publisher, monkeypatch):
    step_index_dataset("plain-v0", lengths=(2, 3))
    minari_pipe.publish_dataset("plain-v0")
    make(publisher.datasets, "plain-v0", 1, monkeypatch)
    publisher.upload_dataset("plain-v0")
    assert "already in remote" in publisher.warnings[0]
    make(publisher.datasets, "other-v0", 1, monkeypatch)
    publisher.upload_dataset("other-v0")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(here))
    step_index_dataset("other-v0", lengths=(2, 3, 4))
    with pytest.raises(minari_pipe.errors.DatasetExistsError, match="other-v0 already exists"):
        minari_pipe.publish_dataset("other-v0")
    found = minari_pipe.list_remote_datasets()
    assert {name: one["total_episodes"] for name, one in found.items()} == {
        "other-v0": 1,
        "plain-v0": 2,
    }


def test_an_error_of_real_minari_is_told(user):
    with pytest.raises(PeerError, match="ValueError: Couldn't find any version for dataset none"):
        user.download_dataset("none-v0")
