"""Store the episodes and metadata of a dataset, with one module or package per format.

::

    EpisodeBuffer                   what a user passes in, not checked yet
      │  columns.episode_columns    pure: arrays in the spaces' dtypes, or InvalidEpisodeError
      ▼
    writer.EpisodeWriter            numbering, attributes, continued episodes: same in all formats
      ├─ hdf5                       one file; hdf5.parser checks it before libhdf5 opens it
      │  └─ hdf5.writer             writes numbers without libhdf5, as fast as raw bytes
      ├─ arrow                      arrow and parquet: one folder per episode
      ├─ memory                     no files, for tests
      └─ other packages             entry points of the group minari_pipe.storages
      │
      ▼
    core.files.atomic.transaction   new files in a hidden folder, committed by one rename

    base.MinariStorage              the public API: new, create, update_episodes, ...
    reading.StoredEpisodes          its read-only half: read, get_episodes, ...
    formats                         maps a data_format, or an older layout, to its storage class
    directory.DirectoryStorage      base class of the formats that use files
    attributes, json_attributes     lossless episode attributes in HDF5 and in JSON
    jpeg                            images under jpeg_encoding, the only lossy encoding
    legacy                          the layouts before Minari 0.5, and D4RL's; read-only

A new format implements the abstract methods of ``DirectoryStorage`` and ``EpisodeWriter`` and
passes :class:`minari_pipe.testing.StorageContract`. The module of each format opens with its
on-disk layout.
"""

from __future__ import annotations

from minari_pipe.storage.base import (
    METADATA_FILE_NAME,
    MinariStorage,
    get_minari_storage,
    get_storage_keys,
)

__all__ = ["METADATA_FILE_NAME", "MinariStorage", "get_minari_storage", "get_storage_keys"]
