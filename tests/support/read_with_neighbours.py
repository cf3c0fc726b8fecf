"""Reads datasets as TorchRL, d3rlpy and AgileRL do, under real Minari and then under the alias.

A program of its own: these packages take seconds to import and warn while they do. They import
Minari when they use it, so one process serves for both. What was read is left in
``<out>/<real or alias>/<dataset>/<reader>.npz``.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np


def read_with_torchrl(dataset_id: str, out: Path) -> None:
    import minari
    import torch
    from tensordict import TensorDictBase
    from torchrl.data.datasets.minari_data import MinariExperienceReplay

    torch.set_num_threads(1)
    # TorchRL 0.14.1 fills its columns and then saves empty ones of the same shape in their place,
    # whoever wrote the dataset; this saves the columns.
    TensorDictBase.memmap_like = lambda self, prefix: self.memmap(prefix)
    source = minari.storage.get_dataset_path(dataset_id)

    def download_dataset(dataset_id: str) -> None:  # no network: the copy is the download
        shutil.copytree(source, minari.storage.get_dataset_path(dataset_id))

    minari.download_dataset = download_dataset
    for name, arguments in {"local": {"load_from_local_minari": True}, "download": {}}.items():
        root = out / f"torchrl-{name}"
        replay = MinariExperienceReplay(dataset_id, batch_size=4, root=root, **arguments)
        assert replay.sample().batch_size == (4,)
        leaves = replay[:].flatten_keys("/")
        np.savez(root.with_suffix(".npz"), **{k: v.numpy() for k, v in leaves.items()})
        described = {k: str(replay.metadata[k]) for k in ("dataset_id", "total_steps")}
        root.with_suffix(".json").write_text(json.dumps(described))


def read_with_d3rlpy(dataset_id: str, out: Path) -> None:
    from d3rlpy.datasets import get_minari

    dataset, env = get_minari(dataset_id)
    columns = {}
    for number, episode in enumerate(dataset.episodes):
        for name in ("observations", "actions", "rewards", "terminated"):
            columns[f"{number}/{name}"] = np.asarray(getattr(episode, name))
    np.savez(out / "d3rlpy.npz", **columns)
    (out / "d3rlpy.json").write_text(json.dumps(env.spec.id))


def read_with_agilerl(dataset_id: str, out: Path) -> None:
    """As ``agilerl.utils.minari_utils`` documents it: flat columns in a file beside the dataset."""
    import h5py
    from minari.storage.datasets_root_dir import get_dataset_path
    from minari.storage.local import load_dataset

    columns: dict[str, list] = {}
    for episode in load_dataset(dataset_id).iterate_episodes():
        for name, rows in {
            "observations": episode.observations[:-1],
            "next_observations": episode.observations[1:],
            "actions": episode.actions[:],
            "rewards": episode.rewards[:],
            "terminals": episode.terminations[:],
        }.items():
            columns.setdefault(name, []).extend(rows)
    path = get_dataset_path(dataset_id + "_agile") / "data" / "main_data.hdf5"
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w") as file:
        for name, rows in columns.items():
            file.create_dataset(name, data=rows)
    with h5py.File(path) as file:
        np.savez(out / "agilerl.npz", **{name: file[name][:] for name in columns})
    shutil.rmtree(path.parents[1])
    # Others open the file of the dataset itself.
    with h5py.File(get_dataset_path(dataset_id) / "data" / "main_data.hdf5") as file:
        lengths = {name: group["actions"].shape[0] for name, group in file.items()}
    (out / "agilerl.json").write_text(json.dumps(lengths))


def main(plain_id: str, nested_id: str, out: Path) -> None:
    import minari_pipe.alias

    for library in ("real", "alias"):
        if library == "alias":
            minari_pipe.alias.install(force=True)
        import minari

        assert minari.MinariDataset.__module__.startswith("minari_pipe.") == (library == "alias")
        for dataset_id, name in ((plain_id, "plain"), (nested_id, "nested")):
            folder = out / library / name
            folder.mkdir(parents=True)
            read_with_torchrl(dataset_id, folder)
        read_with_d3rlpy(plain_id, out / library / "plain")
        read_with_agilerl(plain_id, out / library / "plain")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
