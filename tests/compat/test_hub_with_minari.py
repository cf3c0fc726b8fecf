"""What the Hub holds is read by real Minari, and what that uploaded is read here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from minari_pipe import create_namespace, get_namespace_metadata, load_dataset
from minari_pipe.core.datasets_root import ROOT_VARIABLE
from minari_pipe.datasets.examples import step_index_dataset
from minari_pipe.remotes import open_remote
from minari_pipe.remotes.hosting import (
    download_dataset,
    list_remote_datasets,
    list_remote_namespaces,
    publish_dataset,
)
from tests.support.cards import dataset_with_card
from tests.support.servers.hub import WRITER, HubServer, enter, hub_server
from tests.support.servers.minari_process import COLLECT, run_minari

IDS = ["plain-v0", "pole/near-v1", "pole/near-v10", "pole/cart/far-v0"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server(tmp_path / "hub", "--lfs-threshold=20000") as server:
        enter(server, monkeypatch)
        yield server


def test_minari_lists_and_downloads_what_was_published(hub, tmp_path) -> None:
    create_namespace("pole", description="Poles")
    create_namespace("pole/cart", description="Poles on carts")
    for dataset_id in IDS:
        step_index_dataset(dataset_id)
        assert publish_dataset(dataset_id, "hf://org").outcome == "uploaded"
    printed = run_minari(
        hub.variables(),
        tmp_path / "reader",
        """
import json, minari
from minari.namespace import get_namespace_metadata, list_remote_namespaces
listed = sorted(minari.list_remote_datasets())
namespaces = sorted(list_remote_namespaces())
rewards = {}
for dataset_id in listed:
    if dataset_id != "pole/near-v10":
        minari.download_dataset(dataset_id)
        dataset = minari.load_dataset(dataset_id)
        rewards[dataset_id] = [episode.rewards.tolist() for episode in dataset]
local = sorted(minari.list_local_datasets())
print(json.dumps([listed, namespaces, rewards, local, get_namespace_metadata("pole/cart")]))
""",
    )
    listed, namespaces, rewards, local, described = json.loads(printed.splitlines()[-1])
    assert listed == sorted(IDS)
    assert set(namespaces) >= {"pole", "pole/cart"}
    assert local == sorted(set(IDS) - {"pole/near-v10"})
    assert described == {"description": "Poles on carts"}
    for dataset_id in local:
        mine = [episode.rewards.tolist() for episode in load_dataset(dataset_id)]
        assert rewards[dataset_id] == mine


def test_minari_lists_downloads_and_loads_a_dataset_with_a_card(hub, tmp_path) -> None:
    for dataset_id in ("pole/near-v1", "plain-v0"):
        dataset_with_card(dataset_id)
        done = publish_dataset(dataset_id, "hf://org", published="2026-11-23")
        assert "card/report.html" in done.sizes
    printed = run_minari(
        hub.variables(),
        tmp_path / "reader",
        """
import json, minari
rewards = {}
for dataset_id in sorted(minari.list_remote_datasets()):
    minari.download_dataset(dataset_id)
    dataset = minari.load_dataset(dataset_id)
    rewards[dataset_id] = [episode.rewards.tolist() for episode in dataset]
print(json.dumps([rewards, sorted(minari.list_local_datasets())]))
""",
    )
    rewards, local = json.loads(printed.splitlines()[-1])
    assert local == ["plain-v0", "pole/near-v1"]
    for dataset_id in local:
        mine = [episode.rewards.tolist() for episode in load_dataset(dataset_id)]
        assert rewards[dataset_id] == mine


def test_minari_adds_to_what_was_published_and_the_other_way_round(hub, tmp_path) -> None:
    step_index_dataset("pole/near-v0")
    publish_dataset("pole/near-v0", "hf://org")
    run_minari(
        hub.variables(),
        tmp_path / "publisher",
        COLLECT
        + """
minari.download_dataset("pole/near-v0")
collect("pole/far-v0")
minari.upload_dataset("pole/far-v0", token="hf_writer")
""",
    )
    step_index_dataset("pole/near-v1")
    publish_dataset("pole/near-v1", "hf://org")
    assert list(list_remote_datasets("hf://org")) == ["pole/far-v0", "pole/near-v0", "pole/near-v1"]
    remote = open_remote("hf://org")
    card = remote.read("pole/README.md").decode()
    assert all(f"[`pole/{name}`](" in card for name in ("far-v0", "near-v0", "near-v1"))
    assert "CartPole-v1" in card


def test_what_minari_uploaded_is_listed_under_its_own_id_and_downloaded(
    hub, tmp_path, monkeypatch
) -> None:
    made = run_minari(
        hub.variables(),
        tmp_path / "publisher",
        COLLECT
        + """
from minari.namespace import create_namespace
create_namespace("pole/cart", description="Poles on carts")
for dataset_id in ("pole/cart/far-v0", "plain-v0"):
    collect(dataset_id)
    minari.upload_dataset(dataset_id, token="hf_writer")
print(sum(len(episode) for episode in minari.load_dataset("plain-v0")))
try:
    minari.list_remote_datasets()
except Exception as error:
    print("Minari's own listing:", type(error).__name__)
""",
    ).splitlines()
    # its defect: it takes org/plain-v0 for the id, for which there is no repository
    assert made[-1] == "Minari's own listing: RepositoryNotFoundError"
    assert list(list_remote_datasets("hf://org")) == ["plain-v0", "pole/cart/far-v0"]
    assert list_remote_namespaces("hf://org") == ["pole", "pole/cart"]
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "root"))
    (tmp_path / "root").mkdir()
    for dataset_id in ("plain-v0", "pole/cart/far-v0"):
        download_dataset(f"hf://org/{dataset_id}")
        assert load_dataset(dataset_id).total_steps == int(made[-2])
    assert get_namespace_metadata("pole/cart") == {"description": "Poles on carts"}


@pytest.mark.parametrize("same", [True, False], ids=["same content", "other content"])
def test_what_minari_left_between_its_two_commits_is_not_listed_and_taken_over(
    hub, tmp_path, monkeypatch, same: bool
) -> None:
    home = tmp_path / "publisher"
    run_minari(
        hub.variables(),
        home,
        COLLECT
        + """
import os
from huggingface_hub import HfApi
from minari.namespace import create_namespace
create_namespace("pole")
upload_namespace = HfApi.upload_file
def killed(self, **options):
    if "datasets" in open(options["path_or_fileobj"]).read():
        os._exit(0)
    return upload_namespace(self, **options)
HfApi.upload_file = killed
collect("pole/far-v0")
minari.upload_dataset("pole/far-v0", token="hf_writer")
""",
    )
    files = HfApi(hub.endpoint, token=WRITER).list_repo_files("org/pole", repo_type="dataset")
    assert "far-v0/data/metadata.json" in files
    assert list_remote_datasets("hf://org") == {}
    if same:
        monkeypatch.setenv(ROOT_VARIABLE, str(home / "root"))
    else:
        step_index_dataset("pole/far-v0")
    assert publish_dataset("pole/far-v0", "hf://org").outcome == "uploaded"
    found = list_remote_datasets("hf://org")
    assert found["pole/far-v0"]["total_steps"] == load_dataset("pole/far-v0").total_steps
