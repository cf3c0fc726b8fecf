"""The dataset that users work with: episodes to iterate, sample, filter and append to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import EpisodeBuffer, EpisodeData
from minari_pipe.core.scores import get_normalized_score
from minari_pipe.datasets import sampling
from minari_pipe.datasets.bounds import SpaceChecker
from minari_pipe.datasets.cards import folder
from minari_pipe.datasets.cards.notebook import notebook_html
from minari_pipe.datasets.copying import copy_without
from minari_pipe.datasets.description import DatasetDescription, check_metadata
from minari_pipe.datasets.episodes_table import EpisodeTable, returns, select
from minari_pipe.datasets.indices import (
    checked_indices,
    ids_to_delete,
    positions_of,
    sample_size,
    total_steps,
    whole_index,
)
from minari_pipe.datasets.legacy_buffers import as_buffers
from minari_pipe.datasets.spec import MinariDatasetSpec
from minari_pipe.datasets.statistics import Columns
from minari_pipe.errors import ConfigError
from minari_pipe.storage.base import MinariStorage, PathLike, opened


class MinariDataset(DatasetDescription):
    """A dataset, or a view of some of its episodes.

    A view is a list of episode indices into the same storage. Filtering, slicing and splitting
    make views and copy nothing. Views can be pickled, so that the workers of a PyTorch DataLoader
    can read them.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> dataset = step_index_dataset(lengths=(2, 3, 4))
        >>> [len(episode) for episode in dataset]
        [2, 3, 4]
        >>> dataset[-1].observations
        array([0, 1, 2, 3, 4])
        >>> long = dataset.where("total_steps > 2")
        >>> long, long.episode_indices, long.total_steps
        (MinariDataset('example/steps-v0', 2 episodes), array([1, 2]), 7)
        >>> dataset.view([1, 2]).total_episodes
        2

        What it is:

        >>> dataset.id, dataset.minari_version, dataset.storage.total_episodes
        ('example/steps-v0', '0.5.4', 3)
        >>> dataset.observation_space, dataset.action_space
        (Discrete(5), Discrete(2))
        >>> dataset.env_spec, dataset.combined_datasets
        (None, [])
        >>> dataset.spec.total_steps
        9
    """

    def __init__(
        self,
        data: MinariStorage | PathLike,
        episode_indices: npt.NDArray[np.int_] | None = None,
        *,
        trusted_modules: Collection[str] = (),
        copy: bool | None = None,
    ) -> None:
        """Open a dataset.

        Args:
            data: a storage, or its data directory.
            episode_indices: the episodes of the view, shape ``(N,)``; None means all.
            trusted_modules: modules whose code the environment of the data may name; it is made
                only if an older layout stores no spaces.
            copy: whether the arrays of episodes are writable. If not, those of HDF5 files are
                read-only views of the file, which take no time and no memory of their own;
                PyTorch warns about such arrays. None means False, but True where
                :mod:`minari_pipe.alias` stands in for Minari, whose arrays are writable.

        Raises:
            DatasetNotFoundError: there is no data.
            CorruptDatasetError: the metadata has no dataset id, or lacks a total.
            UnsupportedVersionError: the dataset follows an unknown version of the standard.
            ConfigError: an index is out of range.
        """
        if isinstance(data, MinariStorage):
            self._data = data
            metadata = data.read_raw_metadata(data.data_path)
        elif isinstance(data, str | os.PathLike):
            self._data, metadata = opened(Path(data), trusted_modules)
        else:
            raise ValueError(f"Unrecognized type {type(data)} for data")
        check_metadata(metadata, self._data)
        self._metadata = metadata
        self._total_steps: int | None = None
        if episode_indices is None:
            episode_indices = np.arange(metadata["total_episodes"])
            self._total_steps = metadata["total_steps"]
        self._episode_indices = checked_indices(episode_indices, metadata["total_episodes"])
        #: created when first needed: asking the system for a seed is slow compared with opening
        self._generator: np.random.Generator | None = None
        self._copy = copy

    def set_seed(self, seed: int) -> None:
        """Seed the generator of :meth:`sample_episodes`.

        Args:
            seed: the same seed gives the same samples.

        Raises:
            ConfigError: it is negative or not a whole number.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3, 4))
            >>> for _ in range(2):
            ...     dataset.set_seed(7)
            ...     print([episode.id for episode in dataset.sample_episodes(2)])
            [1, 2]
            [1, 2]
        """
        self._generator = sampling.generator(seed)

    def view(self, episode_indices: npt.NDArray[np.int_]) -> MinariDataset:
        """Return a view of some episodes of the storage, including ones that this view lacks.

        Args:
            episode_indices: their indices in the storage, shape ``(N,)``.

        Raises:
            ConfigError: an index is out of range.
        """
        return MinariDataset(self.storage, episode_indices, copy=self._copy)

    def _part(self, episode_indices: npt.NDArray[np.int_]) -> MinariDataset:
        """Return a view of some of this view's episodes, without reading anything."""
        part = object.__new__(MinariDataset)
        part.__dict__.update(self.__dict__)
        part._episode_indices = episode_indices.copy()  # a slice would keep the whole array alive
        part._total_steps = None
        part._generator = None
        return part

    def filter_episodes(self, condition: Callable[[EpisodeData], bool]) -> MinariDataset:
        """Return a view of the episodes that meet a condition; :meth:`where` reads no arrays.

        Args:
            condition: takes an episode and returns whether to keep it.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3, 4))
            >>> dataset.filter_episodes(lambda episode: episode.observations[-1] == 3)
            MinariDataset('example/steps-v0', 1 episodes)
        """
        kept = [bool(condition(episode)) for episode in self.iterate_episodes()]
        return self._part(self.episode_indices[np.array(kept, dtype=bool)])

    @property
    def episodes(self) -> EpisodeTable:
        """A table of the metadata of this view's episodes, read anew on each access.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> table = step_index_dataset(lengths=(2, 3)).episodes
            >>> table["total_steps"].mean()
            np.float64(2.5)
        """
        return EpisodeTable(self.storage, self.episode_indices)

    def where(self, query: str) -> MinariDataset:
        """Return a view of the episodes whose metadata meets a condition, without reading arrays.

        Args:
            query: a Python expression over the columns of :attr:`episodes`, such as
                ``"total_steps > 100 and 50 < return <= 90"``. It can compare, compute (``+ - * /
                // % **``), use ``and``, ``or``, ``not``, ``in`` and ``is None``, ``abs``, ``len``
                and ``isnan``, and access parts of a value: ``options.goal``, ``options['goal']``,
                ``options.goal[0]``. An episode that lacks a needed value is not selected;
                ``seed is None`` selects it.

        Raises:
            ConfigError: the query is malformed, uses anything else, or names a column that does
                not exist.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3, 4))
            >>> dataset.where("return / total_steps >= 2 and seed not in [2]").episode_indices
            array([1])
        """
        return self._part(self.episode_indices[select(self.storage, self.episode_indices, query)])

    def delete_episodes(
        self, episodes: Iterable[int] | MinariDataset, new_dataset_id: str
    ) -> MinariDataset:
        """Create a new version of this dataset or view without some of its episodes.

        The other episodes are copied with everything that belongs to them, and renumbered;
        description, scores and environments are kept. ``derived_from`` in the metadata records
        which episodes of which dataset were left out. This dataset does not change.

        Args:
            episodes: their ids, or a view of them.
            new_dataset_id: id of the new dataset in the local root.

        Raises:
            ConfigError: an id is not in this view.
            DatasetExistsError: the new id is taken.
            InvalidDatasetIdError: the new id is malformed.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3, 4))
            >>> long = dataset.delete_episodes(dataset.where("return < 5"), "example/steps-v1")
            >>> [len(episode) for episode in long]
            [3, 4]
        """
        if isinstance(episodes, MinariDataset):
            if episodes.storage.data_path != self.storage.data_path:
                raise ConfigError(
                    f"the episodes to delete are a view of {episodes.id}, not of {self.id}"
                )
            episodes = episodes.episode_indices
        deleted = ids_to_delete(episodes, self.episode_indices, self)
        kept = self.episode_indices[~np.isin(self.episode_indices, deleted)]
        return MinariDataset(copy_without(self.storage, kept, deleted, new_dataset_id))

    def sample_episodes(self, n_episodes: int, *, copy: bool | None = None) -> list[EpisodeData]:
        """Return distinct random episodes; see :meth:`set_seed`.

        Args:
            n_episodes: number of episodes.
            copy: whether all arrays are writable; None means as this dataset was opened.

        Raises:
            ConfigError: the number is negative, not whole or larger than the view.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3, 4))
            >>> dataset.set_seed(7)
            >>> len(dataset.sample_episodes(2))
            2
        """
        size = sample_size(n_episodes, len(self))
        if self._generator is None:
            self._generator = sampling.generator(None)
        indices = self._generator.choice(self.episode_indices, size=size, replace=False)
        return list(self.iterate_episodes(indices, copy=copy))

    def transitions(
        self,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        shuffle: bool | None = None,
        buffer_episodes: int | None = None,
        drop_last: bool = False,
        split: bool = True,
    ) -> Iterator[sampling.TransitionBatch]:
        """Yield all transitions ``(o, a, r, o', terminated, truncated)`` once, in batches.

        The last step of an episode is left out if its final observation was never recorded
        (``final_observation_missing`` in the episode's metadata).

        In the view's order, one episode is held in memory at a time. A random order holds the
        whole view (without infos), or only ``buffer_episodes`` random episodes, from whose
        transitions it draws before it goes on to others.

        Args:
            batch_size: transitions of a batch, the last may have fewer; None puts all in one.
            seed: seed of a random order; the same seed gives the same batches.
            shuffle: whether the order is random; None means that it is if there is a seed.
            buffer_episodes: number of episodes held for a random order; None holds all, so that
                each order is equally likely.
            drop_last: leave out a last batch that is not full.
            split: in a worker of a PyTorch ``DataLoader``, yield only this worker's batches: every
                ``n``-th of ``n`` workers, so that together they yield each transition once. False
                for a view that already is the worker's share.

        Raises:
            ConfigError: a number is not positive, or the seed is negative.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> for batch in step_index_dataset(lengths=(2, 2)).transitions(3):
            ...     print(batch.observations, batch.next_observations, batch.terminations)
            [0 1 0] [1 2 1] [False  True False]
            [1] [2] [ True]
        """
        order = sampling.Order(batch_size, seed, shuffle, buffer_episodes, drop_last, split)
        return sampling.transitions(self.storage, self.episode_indices, order)

    def windows(
        self,
        length: int,
        batch_size: int | None = None,
        *,
        stride: int = 1,
        pad: str | None = "right",
        seed: int | None = None,
        shuffle: bool | None = None,
        buffer_episodes: int | None = None,
        drop_last: bool = False,
        split: bool = True,
    ) -> Iterator[sampling.WindowBatch]:
        """Yield windows of consecutive steps of one episode, in batches.

        Windows begin at steps 0, ``stride``, 2 ``stride``, ... of every episode and hold
        ``length`` steps, or those up to the end of the episode plus padding.

        Args:
            length: steps of a window, ``L``.
            batch_size: windows of a batch, the last may have fewer; None puts all in one.
            stride: steps between the starts of windows.
            pad: side of the padding, ``"right"`` or ``"left"``; None leaves out windows that need
                padding.
            seed: see :meth:`transitions`, as for the arguments below, which count windows.
            shuffle: whether the order is random.
            buffer_episodes: number of episodes held for a random order.
            drop_last: leave out a last batch that is not full.
            split: share the batches among the workers of a ``DataLoader``.

        Raises:
            ConfigError: a number is not positive, or ``pad`` is unknown.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> (batch,) = step_index_dataset(lengths=(3,)).windows(2, pad="left")
            >>> batch.rewards
            array([[1., 2.],
                   [2., 3.],
                   [0., 3.]])
            >>> batch.mask[-1]
            array([False,  True])
        """
        order = sampling.Order(batch_size, seed, shuffle, buffer_episodes, drop_last, split)
        return sampling.windows(
            self.storage, self.episode_indices, order, length=length, stride=stride, pad=pad
        )

    def returns(self) -> npt.NDArray[np.float64]:
        """Return the undiscounted return of each episode, shape ``(N,)``, in reward units.

        The returns are read from the metadata, or computed where it has none.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> step_index_dataset(lengths=(2, 3)).returns()
            array([3., 6.])
        """
        return returns(self.storage, self.episode_indices)

    def normalized_scores(self) -> npt.NDArray[np.float64]:
        """Return the normalized score of each episode, shape ``(N,)``, dimensionless.

        Raises:
            MissingReferenceScoreError: the dataset lacks a reference score.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3))
            >>> dataset.storage.update_metadata({"ref_min_score": 0.0, "ref_max_score": 12.0})
            >>> dataset.normalized_scores()
            array([0.25, 0.5 ])
        """
        return get_normalized_score(self, self.returns())

    @property
    def stats(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """The statistics of this view's columns, with which a trainer normalizes them.

        Computed on each access: ``count``, ``min``, ``max``, ``mean``, ``std`` and the quantiles
        of each element, by names such as ``observations/desired_goal``. For shapes and
        definitions see :func:`minari_pipe.datasets.statistics.statistics_of`.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> step_index_dataset(lengths=(2, 3)).stats["rewards"]["q50"]
            array([2.])
        """
        return Columns(self.storage, self.episode_indices).statistics()

    @overload
    def report(self) -> str: ...

    @overload
    def report(self, path: PathLike) -> Path: ...

    def report(self, path: PathLike | None = None) -> str | Path:
        """Show this view's episodes on one HTML page: returns, lengths, columns, origin.

        The page needs no network and runs no scripts. ``minari-pipe report`` writes the same.

        Args:
            path: file to write the page to; it replaces an older report, but no other file.

        Returns:
            The path, or the text of the page if there is none.

        Raises:
            ConfigError: the path is taken by something else than a report.
            CorruptDatasetError: an episode is damaged.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3, 4))
            >>> dataset.report("steps.html").name
            'steps.html'
            >>> "A view: 2 of the 3 episodes" in dataset[1:].report()
            True
        """
        return folder.report(self.storage, self.episode_indices, path)

    def iterate_episodes(
        self, episode_indices: Iterable[int] | None = None, *, copy: bool | None = None
    ) -> Iterator[EpisodeData]:
        """Yield episodes.

        Args:
            episode_indices: indices of episodes in the storage; None means those of this view.
            copy: whether all arrays are writable; None means as this dataset was opened.

        Raises:
            IndexError: an index is out of range.
            TypeError: an index is not a whole number, such as an entry of a mask.
            CorruptDatasetError: an episode is damaged.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3, 4))
            >>> [len(episode) for episode in dataset.iterate_episodes([2, 0])]
            [4, 2]
        """
        if episode_indices is None:
            episode_indices = self.episode_indices
        if isinstance(episode_indices, np.ndarray) and episode_indices.dtype.kind in "iu":
            whole: Iterable[int] = episode_indices.tolist()
        else:
            whole = map(whole_index, episode_indices)
        return self.storage.read_episodes(whole, copy=self._copy if copy is None else copy)

    def update_dataset_from_buffer(
        self, buffer: list[EpisodeBuffer], *, strict: bool = False
    ) -> None:
        """Append episodes to the dataset and to this view, all or none of them.

        Values outside their space, NaN, other dtypes and an episode without an end are stored
        with one warning per episode.

        Args:
            buffer: the episodes. One with the ``id`` of a stored episode continues it: it has no
                row for a reset, so it has as many observations as actions.
            strict: raise for such episodes instead of warning.

        Raises:
            InvalidEpisodeError: a buffer's values do not fit each other or the spaces.
            CorruptDatasetError: the files do not match their metadata or their manifest.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3))
            >>> dataset.update_dataset_from_buffer(list(dataset.storage.get_buffers([0])))
            >>> dataset.episodes["total_steps"]
            array([2, 3, 2])
        """
        first = self.storage.total_episodes
        judge = SpaceChecker(self.observation_space, self.action_space, strict=strict)
        self.storage.update_episodes(as_buffers(buffer), judge=judge)
        new = np.arange(first, self.storage.total_episodes)
        self.episode_indices = np.append(self.episode_indices, new)
        for text in judge.warnings:
            warnings.warn(text, stacklevel=2)

    def update_dataset_from_collector_env(self, collector_env: Any) -> None:
        """Append what a collector has recorded; deprecated, use ``collector_env.add_to_dataset``.

        Args:
            collector_env: the ``DataCollector`` or ``DataCollectorV0``.

        Raises:
            InvalidEpisodeError: the spaces of the dataset and the environment differ.
            CorruptDatasetError: the files do not match their metadata or their manifest.
            DatasetNotFoundError: the collector is closed.
            TypeError: it is not a collector.

        Example:
            >>> import gymnasium as gym, warnings
            >>> from minari_pipe import DataCollector
            >>> env = DataCollector(gym.make("CartPole-v1"))
            >>> with warnings.catch_warnings(action="ignore"):  # it is deprecated
            ...     for seed in (1, 2):
            ...         _ = env.reset(seed=seed)
            ...         _ = env.step(0)
            ...         if seed == 1:
            ...             dataset = env.create_dataset("cartpole/test-v0")
            ...     dataset.update_dataset_from_collector_env(env)
            >>> len(dataset)
            2
            >>> env.close()
        """
        warnings.warn(
            "update_dataset_from_collector_env is deprecated, use DataCollector.add_to_dataset",
            DeprecationWarning,
            stacklevel=2,
        )
        if not hasattr(collector_env, "add_to_dataset"):
            raise TypeError(f"expected a DataCollector, got {collector_env!r:.60}")
        collector_env.add_to_dataset(self)

    def __iter__(self) -> Iterator[EpisodeData]:
        return self.iterate_episodes()

    @overload
    def __getitem__(self, idx: int) -> EpisodeData: ...

    @overload
    def __getitem__(self, idx: slice | Sequence[int] | npt.NDArray[Any]) -> MinariDataset: ...

    def __getitem__(
        self, idx: int | slice | Sequence[int] | npt.NDArray[Any]
    ) -> EpisodeData | MinariDataset:
        """Return an episode, or a view of several.

        Args:
            idx: position in this view, counted from its end if negative; or a slice, positions of
                shape ``(K,)`` or a mask of shape ``(N,)``, as in NumPy.

        Raises:
            IndexError: a position is out of range, or the mask has another length.
            TypeError: the index is none of these.
        """
        if isinstance(idx, slice):
            return self._part(self.episode_indices[idx])
        positions = positions_of(idx)
        try:
            chosen = self.episode_indices[positions]
        except IndexError as error:
            raise IndexError(f"{self!r}: {error}") from None
        return self._part(chosen) if chosen.ndim else next(self.iterate_episodes([chosen]))

    def __len__(self) -> int:
        return self.total_episodes

    def __repr__(self) -> str:
        return f"MinariDataset({self.id!r}, {self.total_episodes} episodes)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: facts and the histogram of the returns."""
        return notebook_html(self.storage, self.episode_indices, self.id, repr(self))

    @property
    def total_episodes(self) -> int:
        """Number of episodes of this view."""
        return len(self.episode_indices)

    @property
    def total_steps(self) -> int:
        """Number of steps of this view."""
        if self._total_steps is None:
            self._total_steps = total_steps(self.storage, self.episode_indices)
        return int(self._total_steps)

    @property
    def episode_indices(self) -> npt.NDArray[np.int_]:
        """Indices of this view's episodes in the storage, shape ``(N,)``."""
        return self._episode_indices

    @episode_indices.setter
    def episode_indices(self, new_value: npt.NDArray[np.int_]) -> None:
        self._episode_indices = checked_indices(new_value, self.storage.total_episodes)
        self._total_steps = None

    @property
    def spec(self) -> MinariDatasetSpec:
        """Description of the dataset without its data."""
        return MinariDatasetSpec(
            env_spec=self.env_spec,
            total_episodes=self.total_episodes,
            total_steps=self.total_steps,
            dataset_id=self.id,
            combined_datasets=self.combined_datasets,
            observation_space=self.observation_space,
            action_space=self.action_space,
            data_path=str(self.storage.data_path),
            minari_version=self.minari_version,
        )
