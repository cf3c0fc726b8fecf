"""The bytes of one dataset: one module per format behind one interface.

::

    EpisodeBuffer                   what a user hands in, judged by nobody yet
      │  columns.episode_columns    pure: arrays of the spaces' dtypes, or InvalidEpisodeError
      ▼
    writer.EpisodeWriter            numbering, attributes, continued episodes: alike everywhere
      ├─ hdf5, hdf5_values          one file; read by hdf5_format, which spares libhdf5 damage
      │  └─ hdf5_direct             writes numbers as fast as bytes, in what hdf5_layout lays out
      ├─ arrow, arrow_values        arrow and parquet: a folder for each episode
      ├─ memory                     no files, for tests
      └─ of another package         an entry point of the group minari_pipe.storages
      │
      ▼
    files.transaction               new files in a hidden folder, committed by one rename

    base.MinariStorage              what users see: new, create, update_episodes, ...
    reading.StoredEpisodes          its half that changes nothing: read, get_episodes, ...
    formats                         which storage is behind a data_format, or an older layout
    directory.DirectoryStorage      what a format with files inherits
    attributes, json_attributes     attributes of episodes, exact, in what HDF5 and JSON hold
    jpeg                            images under jpeg_encoding, the one lossy thing here
    legacy                          the layouts before Minari 0.5, and D4RL's: read only

A new format implements the abstract methods of ``DirectoryStorage`` and ``EpisodeWriter`` and
passes :class:`minari_pipe.testing.StorageContract`. Each format's module opens with its layout on
the disk.
"""

from __future__ import annotations

from minari_pipe.storage.base import (
    METADATA_FILE_NAME,
    MinariStorage,
    get_minari_storage,
    get_storage_keys,
)

__all__ = ["METADATA_FILE_NAME", "MinariStorage", "get_minari_storage", "get_storage_keys"]
