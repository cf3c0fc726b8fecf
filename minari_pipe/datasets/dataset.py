"""A dataset as its users see it: episodes to iterate, sample, filter and append to."""

from __future__ import annotations

import logging
import operator
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, overload

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec

from minari_pipe.core.environments import recover
from minari_pipe.core.episode import EpisodeBuffer, EpisodeData
from minari_pipe.core.metadata import (
    MINARI_VERSION,
    is_supported_version,
    metadata_faults,
    supported_dataset_versions,
)
from minari_pipe.core.requirements import warn_unless_met
from minari_pipe.core.scores import get_normalized_score
from minari_pipe.datasets import sampling
from minari_pipe.datasets.bounds import Judge
from minari_pipe.datasets.copying import copy_without
from minari_pipe.datasets.episodes_table import EpisodeTable, returns, select
from minari_pipe.datasets.legacy_buffers import as_buffers
from minari_pipe.datasets.spec import MinariDatasetSpec, parse_spec
from minari_pipe.errors import (
    ConfigError,
    CorruptDatasetError,
    EnvironmentNotFoundError,
    UnsupportedVersionError,
)
from minari_pipe.storage.base import MinariStorage, PathLike, opened

#: from this number on the size of the files is asked whether it can be true
_MANY_EPISODES = 1_000_000


class MinariDataset:
    """A dataset, or a view of some of its episodes.

    A view is a list of episode indices into the same storage; filtering, slicing and splitting
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
            data: a storage, or the directory of its data.
            episode_indices: the episodes of the view, shape ``(N,)``; None means all.
            trusted_modules: modules whose code the environment of the data may name; it is made
                only where an older layout has no spaces.
            copy: whether the arrays of episodes can be written to. If not, those of HDF5 files
                are read-only views of the file, which take no time and no memory of their own;
                PyTorch warns of such arrays. None means False, but True where
                :mod:`minari_pipe.alias` stands for Minari, whose arrays can be written to.

        Raises:
            DatasetNotFoundError: there is no data.
            CorruptDatasetError: the metadata has no dataset id.
            UnsupportedVersionError: the dataset follows an unknown version of the standard.
            ConfigError: an index is not that of an episode.
        """
        if isinstance(data, MinariStorage):
            self._data = data
            metadata = data.read_raw_metadata(data.data_path)
        elif isinstance(data, str | os.PathLike):
            self._data, metadata = opened(Path(data), trusted_modules)
        else:
            raise ValueError(f"Unrecognized type {type(data)} for data")
        if not isinstance(metadata.get("dataset_id"), str):
            raise CorruptDatasetError(
                f"{self._data.data_path} has no dataset_id in its metadata.json; it was not "
                "finished. Its episodes can be read with MinariStorage.read(path)"
            )
        for key in ("total_episodes", "total_steps"):
            if key not in metadata:
                raise CorruptDatasetError(f"{self._data.data_path}: its metadata.json has no {key}")
        _check_count(metadata["total_episodes"], self._data)
        version = metadata.get("minari_version")
        if not is_supported_version(version):
            raise UnsupportedVersionError(
                f"The installed Minari version {MINARI_VERSION} does not support the dataset "
                f"generated by Minari {version}. "
                f"Supported versions: {sorted(supported_dataset_versions)}"
            )
        self._metadata = metadata
        self._total_steps: int | None = None
        if episode_indices is None:
            episode_indices = np.arange(metadata["total_episodes"])
            self._total_steps = metadata["total_steps"]
        self._episode_indices = _checked_indices(episode_indices, metadata["total_episodes"])
        #: made when it is first needed: to ask the system for a seed takes long beside opening
        self._generator: np.random.Generator | None = None
        self._copy = copy

    def recover_environment(
        self, eval_env: bool = False, *, trusted_modules: Collection[str] = (), **kwargs: Any
    ) -> gym.Env:
        """Make the environment that the data comes from.

        Warns where an installed package is not what the dataset's ``requirements`` ask for.

        Args:
            eval_env: make the environment for evaluation instead, if the dataset names one.
            trusted_modules: modules whose code the dataset's specs may name.
            **kwargs: passed on to ``gymnasium.make``.

        Raises:
            EnvironmentNotFoundError: the dataset names none, or it is not registered.
            TrustError: the spec names code that nobody has trusted.

        Example:
            >>> import gymnasium
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset()
            >>> spec = gymnasium.spec("CartPole-v1").to_json()
            >>> dataset.storage.update_metadata({"env_spec": spec})
            >>> dataset.recover_environment().spec.id
            'CartPole-v1'
        """
        metadata = self.storage.read_raw_metadata(self.storage.data_path)
        requirements = metadata.get("requirements") or []
        for key, what in metadata_faults({"requirements": requirements}):
            raise CorruptDatasetError(f"{self.storage.data_path}: metadata {key!r} {what}")
        for requirement in requirements:
            warn_unless_met(requirement)
        spec = metadata.get("env_spec")
        if eval_env:
            if metadata.get("eval_env_spec") is not None:
                spec = metadata["eval_env_spec"]
            else:
                logging.getLogger(__name__).info(
                    "`eval_env` has been set to True but the dataset %s doesn't provide an "
                    "evaluation environment. The environment of the collection is returned.",
                    self.id,
                )
        if spec is None:
            raise EnvironmentNotFoundError(
                f"Environment cannot be recovered when env_spec is None; {self.id} was created "
                "without an environment"
            )
        return recover(spec, trusted_modules=trusted_modules, **kwargs)

    def set_seed(self, seed: int) -> None:
        """Seed the generator of :meth:`sample_episodes`.

        Args:
            seed: the same one gives the same samples.

        Raises:
            ConfigError: it is no whole number, or negative.

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
        """Return a view of some episodes of the storage, also of such as this view lacks.

        Args:
            episode_indices: their numbers in the storage, shape ``(N,)``.

        Raises:
            ConfigError: a number is not that of an episode.
        """
        return MinariDataset(self.storage, episode_indices, copy=self._copy)

    def _part(self, episode_indices: npt.NDArray[np.int_]) -> MinariDataset:
        """Return a view of some of this view's episodes, of which nothing has to be read."""
        part = object.__new__(MinariDataset)
        part.__dict__.update(self.__dict__)
        part._episode_indices = episode_indices.copy()  # a slice would hold on to all of them
        part._total_steps = None
        part._generator = None
        return part

    def filter_episodes(self, condition: Callable[[EpisodeData], bool]) -> MinariDataset:
        """Return a view of the episodes that meet a condition; :meth:`where` reads no arrays.

        Args:
            condition: takes an episode; anything that is true keeps it.

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
        """A table of the metadata of this view's episodes, read anew each time.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> table = step_index_dataset(lengths=(2, 3)).episodes
            >>> table["total_steps"].mean()
            np.float64(2.5)
        """
        return EpisodeTable(self.storage, self.episode_indices)

    def where(self, query: str) -> MinariDataset:
        """Return a view of the episodes whose metadata meets a condition; reads no array.

        Args:
            query: a Python expression over the columns of :attr:`episodes`, such as
                ``"total_steps > 100 and 50 < return <= 90"``. It can compare, compute (``+ - * /
                // % **``), use ``and``, ``or``, ``not``, ``in`` and ``is None``, ``abs``, ``len``
                and ``isnan``, and take parts of a value: ``options.goal``, ``options['goal']``,
                ``options.goal[0]``. An episode without a value that it needs is not selected;
                ``seed is None`` selects it.

        Raises:
            ConfigError: the query is malformed, holds anything else, or names a column that is
                not there.

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

        The rest is copied with all that belongs to it, and numbered anew; description, scores and
        environments are kept. ``derived_from`` in the metadata says what was left out of what.
        This dataset does not change.

        Args:
            episodes: their ids, or a view of them.
            new_dataset_id: id of the new dataset in the local root.

        Raises:
            ConfigError: an id is not that of an episode of this view.
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
        if not isinstance(episodes, Iterable):
            raise ConfigError(
                f"the episodes to delete are a list of ids or a view, got {episodes!r}; a single "
                "one is dataset.delete_episodes([0], ...)"
            )
        deleted = _checked_indices(list(episodes), None)
        unknown = np.setdiff1d(deleted, self.episode_indices).tolist()
        if unknown:
            raise ConfigError(
                f"{self!r} has no episodes with the ids {unknown[:10]}; it has "
                "those in dataset.episodes['id']"
            )
        kept = self.episode_indices[~np.isin(self.episode_indices, deleted)]
        return MinariDataset(copy_without(self.storage, kept, deleted, new_dataset_id))

    def sample_episodes(self, n_episodes: int, *, copy: bool | None = None) -> list[EpisodeData]:
        """Return different episodes, drawn at random; see :meth:`set_seed`.

        Args:
            n_episodes: how many.
            copy: whether all arrays can be written to; None means as this dataset was opened.

        Raises:
            ConfigError: there are not so many, or it is no whole number.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3, 4))
            >>> dataset.set_seed(7)
            >>> len(dataset.sample_episodes(2))
            2
        """
        try:
            size = operator.index(n_episodes)
        except TypeError:
            raise ConfigError(f"n_episodes must be a whole number, got {n_episodes!r}") from None
        if not 0 <= size <= len(self):
            raise ConfigError(
                "Cannot take a larger sample than population, nor a negative one: asked for "
                f"{size} different episodes of {len(self)}"
            )
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

        The last step of an episode is left out where its final observation was never recorded
        (``final_observation_missing`` in the episode's metadata).

        In order, one episode is held in memory at a time. A random order holds all of the view
        (without infos), or only ``buffer_episodes`` random episodes, among whose transitions it
        then draws before it goes on to others.

        Args:
            batch_size: transitions of a batch, the last may have fewer; None means all in one.
            seed: seed of a random order; the same one gives the same batches.
            shuffle: whether the order is random; None means: if there is a seed.
            buffer_episodes: number of episodes to hold for a random order; None means all, so
                that each order is equally likely.
            drop_last: leave out a last batch that is not full.
            split: in a worker of a PyTorch ``DataLoader``, yield only this worker's batches: every
                ``n``-th of ``n`` workers, so that all of them together give each transition once.
                False for a view that is the worker's own share.

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

        A window begins at the steps 0, ``stride``, 2 ``stride``, ... of every episode and holds
        ``length`` steps, or those up to the end of the episode and padding.

        Args:
            length: steps of a window, ``L``.
            batch_size: windows of a batch, the last may have fewer; None means all in one.
            stride: steps between the beginnings of windows.
            pad: side of the padding, ``"right"`` or ``"left"``; None leaves out the windows that
                would need any.
            seed: see :meth:`transitions`, as for the arguments below, which count windows.
            shuffle: whether the order is random.
            buffer_episodes: number of episodes to hold for a random order.
            drop_last: leave out a last batch that is not full.
            split: among the workers of a ``DataLoader``.

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

        They are read from the metadata, or computed where it has none.

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

    def iterate_episodes(
        self, episode_indices: Iterable[int] | None = None, *, copy: bool | None = None
    ) -> Iterator[EpisodeData]:
        """Yield episodes.

        Args:
            episode_indices: numbers of episodes in the storage; None means those of this view.
            copy: whether all arrays can be written to; None means as this dataset was opened.

        Raises:
            IndexError: there is no such episode.
            TypeError: an index is no whole number, but part of a mask for example.
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
            whole = map(_whole_index, episode_indices)
        return self.storage.read_episodes(whole, copy=self._copy if copy is None else copy)

    def update_dataset_from_buffer(
        self, buffer: list[EpisodeBuffer], *, strict: bool = False
    ) -> None:
        """Append episodes to the dataset and to this view, all or none of them.

        Values outside of their space, NaN, other dtypes and an episode without an end are stored
        with one warning for each episode.

        Args:
            buffer: the episodes. One whose ``id`` is that of a stored episode continues it: it
                has no row for a reset, so as many observations as actions.
            strict: refuse such episodes instead of the warning.

        Raises:
            InvalidEpisodeError: a buffer's values do not fit together or to the spaces.

        Example:
            >>> from minari_pipe.datasets.examples import step_index_dataset
            >>> dataset = step_index_dataset(lengths=(2, 3))
            >>> dataset.update_dataset_from_buffer(list(dataset.storage.get_buffers([0])))
            >>> dataset.episodes["total_steps"]
            array([2, 3, 2])
        """
        first = self.storage.total_episodes
        judge = Judge(self.observation_space, self.action_space, strict=strict)
        self.storage.update_episodes(as_buffers(buffer), judge=judge)
        new = np.arange(first, self.storage.total_episodes)
        self.episode_indices = np.append(self.episode_indices, new)
        for text in judge.told:
            warnings.warn(text, stacklevel=2)

    def update_dataset_from_collector_env(self, collector_env: Any) -> None:
        """Append what a collector has recorded; now ``collector_env.add_to_dataset(dataset)``.

        Args:
            collector_env: the ``DataCollector`` or ``DataCollectorV0``.

        Raises:
            InvalidEpisodeError: the dataset's spaces are not those of the environment.
            DatasetNotFoundError: the collector is closed.

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
            idx: position in this view, negative ones from its end; or a slice, positions of shape
                ``(K,)`` or a mask of shape ``(N,)``, as NumPy takes them.

        Raises:
            IndexError: there is no such episode, or the mask has another length.
            TypeError: the index is none of these.
        """
        if isinstance(idx, slice):
            return self._part(self.episode_indices[idx])
        positions = np.asarray(idx)
        if positions.dtype.kind not in "iu" and not (
            positions.dtype.kind == "b" and positions.ndim
        ):
            if positions.size or not positions.ndim:
                raise TypeError(
                    "an index is a whole number, a slice, or an array of whole numbers or of "
                    f"true and false; got {idx!r}"
                )
            positions = positions.astype(np.int_)
        if positions.ndim > 1:
            raise IndexError(f"an index has one axis, got shape {positions.shape}")
        try:
            chosen = self.episode_indices[positions]
        except IndexError as error:
            raise IndexError(f"{self!r}: {error}") from None
        if positions.ndim:
            return self._part(chosen)
        return next(self.iterate_episodes([chosen]))

    def __len__(self) -> int:
        return self.total_episodes

    def __repr__(self) -> str:
        return f"MinariDataset({self.id!r}, {self.total_episodes} episodes)"

    @property
    def total_episodes(self) -> int:
        """Number of episodes of this view."""
        return len(self.episode_indices)

    @property
    def total_steps(self) -> int:
        """Number of steps of this view."""
        if self._total_steps is None:
            table = self.storage.get_attribute_table(self.episode_indices, ["total_steps"])
            steps = table.numbers.get("total_steps") if table is not None else None
            if steps is not None and steps.dtype.kind in "iu":
                self._total_steps = int(steps.sum())
                return self._total_steps
            attributes = self.storage.get_episode_metadata(self.episode_indices)
            self._total_steps = sum(steps_of(episode, self.storage) for episode in attributes)
        return int(self._total_steps)

    @property
    def episode_indices(self) -> npt.NDArray[np.int_]:
        """Numbers of this view's episodes in the storage, shape ``(N,)``."""
        return self._episode_indices

    @episode_indices.setter
    def episode_indices(self, new_value: npt.NDArray[np.int_]) -> None:
        self._episode_indices = _checked_indices(new_value, self.storage.total_episodes)
        self._total_steps = None

    @property
    def observation_space(self) -> gym.Space:
        """Space of one observation."""
        return self.storage.observation_space

    @property
    def action_space(self) -> gym.Space:
        """Space of one action."""
        return self.storage.action_space

    @property
    def env_spec(self) -> EnvSpec | None:
        """Spec of the environment that the data comes from; only its text is trusted so far."""
        return parse_spec(self._metadata.get("env_spec"), self.id)

    @property
    def combined_datasets(self) -> list[str]:
        """Ids of the datasets that this one was combined from, if it was."""
        return self._metadata.get("combined_datasets") or []

    @property
    def id(self) -> str:
        """Id of the dataset."""
        return self._metadata["dataset_id"]

    @property
    def minari_version(self) -> str:
        """Version of the standard that the dataset follows; empty if it does not say."""
        return self._metadata.get("minari_version") or ""

    @property
    def storage(self) -> MinariStorage:
        """The storage of the data."""
        return self._data

    @property
    def spec(self) -> MinariDatasetSpec:
        """What the dataset is, without its data."""
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


def _check_count(total_episodes: int, storage: MinariStorage) -> None:
    """Check a number before memory is filled with the numbers below it."""
    if total_episodes > _MANY_EPISODES and total_episodes > storage.get_size() * 1e6:
        raise CorruptDatasetError(
            f"{storage.data_path}: its metadata.json says {total_episodes} episodes, more than its "
            f"{storage.get_size()} MB can hold"
        )


def steps_of(attributes: Mapping[str, Any], storage: MinariStorage) -> int:
    """Return the number of steps that the attributes of an episode say.

    Raises:
        CorruptDatasetError: they say none.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> steps_of({"total_steps": 3}, step_index_dataset().storage)
        3
    """
    try:
        return int(attributes["total_steps"])
    except (LookupError, TypeError, ValueError, OverflowError):
        raise CorruptDatasetError(
            f"{storage.data_path}: episode {attributes.get('id', '?')} must have total_steps, a "
            f"whole number; it has {attributes.get('total_steps')!r}"
        ) from None


def _whole_index(index: Any) -> int:
    if type(index) is int:
        return index
    if not isinstance(index, bool | np.bool_):
        with suppress(TypeError):
            return operator.index(index)
    raise TypeError(
        f"an episode index must be a whole number, got {index!r}; a mask or slice goes in "
        "brackets: dataset[mask]"
    )


def _checked_indices(indices: npt.ArrayLike, total: int | None) -> npt.NDArray[np.int_]:
    array = np.asarray(indices)
    if not array.size and array.ndim == 1:
        array = array.astype(np.int_)  # NumPy takes an empty list for floats
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigError(
            "episode indices must be whole numbers in one axis, got "
            f"{array.dtype} of shape {array.shape}; a mask or slice goes in brackets: dataset[mask]"
        )
    if total is not None and array.size and not 0 <= array.min() <= array.max() < total:
        raise ConfigError(
            f"episode indices must be from 0 to {total - 1}, the storage has {total} episodes; got "
            f"{array.min()} to {array.max()}"
        )
    return array.astype(np.int_)
