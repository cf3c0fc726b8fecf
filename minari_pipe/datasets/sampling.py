"""Read the steps of many episodes in batches: transitions, or windows of consecutive steps.

Both read each episode once, in the order of the view or in a random order drawn from a seed. They
hold one episode in memory at a time in the view's order, and ``buffer_episodes`` in a random one.
The workers of a PyTorch ``DataLoader`` share the batches of one such order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import count as count_from
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from minari_pipe.core.episode import FINAL_OBSERVATION_MISSING
from minari_pipe.core.tree import join_path, leaves, map_leaves
from minari_pipe.errors import ConfigError, CorruptDatasetError
from minari_pipe.storage.base import MinariStorage

Ints = npt.NDArray[np.int_]
Batch = TypeVar("Batch", "TransitionBatch", "WindowBatch")


@dataclass(frozen=True)
class TransitionBatch:
    """``B`` transitions ``(o_t, a_t, r_t, o_t+1, terminated, truncated)``.

    Attributes:
        observations: ``(B, ...)`` in the dicts and tuples of the space; lists for Text.
        actions: ``(B, ...)``, likewise.
        rewards: ``(B,)`` float64.
        next_observations: as ``observations``.
        terminations: ``(B,)`` bool.
        truncations: ``(B,)`` bool.
        episode_ids: ``(B,)``, the ``id`` of each transition's episode.
        steps: ``(B,)``, the ``t`` of each transition.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> (batch,) = step_index_dataset(lengths=(2, 1)).transitions()
        >>> batch.observations, batch.next_observations
        (array([0, 1, 0]), array([1, 2, 1]))
    """

    observations: Any
    actions: Any
    rewards: npt.NDArray[np.float64]
    next_observations: Any
    terminations: npt.NDArray[np.bool_]
    truncations: npt.NDArray[np.bool_]
    episode_ids: Ints
    steps: Ints

    def __len__(self) -> int:
        """Return the number of transitions ``B``."""
        return len(self.rewards)


@dataclass(frozen=True)
class WindowBatch:
    """``B`` windows of ``L`` consecutive steps of one episode each.

    Where ``mask`` is False there is no step, and all values are padding: 0, False or ``""``.

    Attributes:
        observations: ``(B, L, ...)`` in the dicts and tuples of the space, ``o_t`` of each step;
            ``B`` lists of ``L`` for Text.
        actions: ``(B, L, ...)``, likewise.
        rewards: ``(B, L)`` float64.
        next_observations: ``(B, L, ...)``, ``o_t+1`` of each step; for the last step of an
            episode, the final observation. Also padding where ``next_mask`` is False.
        terminations: ``(B, L)`` bool.
        truncations: ``(B, L)`` bool.
        mask: ``(B, L)`` bool, where there is a step.
        next_mask: ``(B, L)`` bool, where there is a step and its next observation was recorded.
        episode_ids: ``(B,)``, the ``id`` of the episode of each window.
        starts: ``(B,)``, the ``t`` of each window's first step.

    Example:
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> (batch,) = step_index_dataset(lengths=(3,)).windows(2, stride=2)
        >>> batch.observations.tolist(), batch.mask.tolist()
        ([[0, 1], [2, 0]], [[True, True], [True, False]])
    """

    observations: Any
    actions: Any
    rewards: npt.NDArray[np.float64]
    next_observations: Any
    terminations: npt.NDArray[np.bool_]
    truncations: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_]
    next_mask: npt.NDArray[np.bool_]
    episode_ids: Ints
    starts: Ints

    def __len__(self) -> int:
        """Return the number of windows ``B``."""
        return len(self.episode_ids)


@dataclass(frozen=True)
class Order:
    """The order of the items, and the size of their batches.

    Attributes:
        batch_size: items of a batch; None puts all in one.
        seed: seed of the order.
        shuffle: whether the order is random; None means that it is if there is a seed.
        buffer_episodes: for a random order, the number of random episodes that are held at a time
            and from whose items it draws; None holds all, which makes all orders equally likely.
        drop_last: leave out a last batch that is not full.
        split: share the batches among the workers of a PyTorch ``DataLoader``.
    """

    batch_size: int | None = None
    seed: int | None = None
    shuffle: bool | None = None
    buffer_episodes: int | None = None
    drop_last: bool = False
    split: bool = True

    def __post_init__(self) -> None:
        """Check the numbers and the seed.

        Raises:
            ConfigError: a number is not positive, or the seed is invalid.
        """
        for name in ("batch_size", "buffer_episodes"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        if self.buffer_episodes is not None and not self.is_random:
            raise ConfigError(
                "buffer_episodes needs a random order; pass a seed or shuffle=True as well"
            )
        generator(self.seed)

    @property
    def is_random(self) -> bool:
        """Whether the order is random."""
        return self.seed is not None if self.shuffle is None else self.shuffle


def generator(seed: Any) -> np.random.Generator:
    """Return a random number generator.

    Raises:
        ConfigError: NumPy does not accept the seed.

    Example:
        >>> int(generator(7).integers(100))
        94
    """
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise ConfigError(f"seed must be None or a non-negative integer, got {seed!r}") from None


def transitions(
    storage: MinariStorage, episode_indices: Ints, order: Order
) -> Iterator[TransitionBatch]:
    """Yield transitions; see :meth:`minari_pipe.MinariDataset.transitions`."""

    def items(steps: _Steps) -> Ints:
        return np.flatnonzero(steps.next_known)

    return _batches(storage, episode_indices, order, items, _transition_batch)


def windows(
    storage: MinariStorage,
    episode_indices: Ints,
    order: Order,
    *,
    length: int,
    stride: int = 1,
    pad: str | None = "right",
) -> Iterator[WindowBatch]:
    """Yield windows; see :meth:`minari_pipe.MinariDataset.windows`.

    Raises:
        ConfigError: a number is not positive, or ``pad`` is unknown.
    """
    _check_positive("length", length)
    _check_positive("stride", stride)
    if pad not in ("right", "left", None):
        raise ConfigError(f"pad must be 'right', 'left' or None (full windows only), got {pad!r}")

    def items(steps: _Steps) -> Ints:
        starts = steps.step % stride == 0
        if pad is None:
            starts &= steps.left >= length
        return np.flatnonzero(starts)

    def batch(steps: _Steps, first: Ints) -> WindowBatch:
        count = np.minimum(steps.left[first], length)[:, None]
        offset = np.arange(length) - (length - count if pad == "left" else 0)
        mask = (offset >= 0) & (offset < count)
        return _window_batch(steps, first, np.where(mask, first[:, None] + offset, 0), mask)

    return _batches(storage, episode_indices, order, items, batch)


@dataclass(frozen=True)
class _Steps:
    """All steps of some episodes, one after another; ``S`` in all.

    Attributes:
        observations: rows of all episodes, ``T + 1`` each.
        actions: ``(S, ...)``.
        rewards: ``(S,)``.
        terminations: ``(S,)``.
        truncations: ``(S,)``.
        row: ``(S,)``, index of a step's observation among the rows; the next observation follows.
        next_known: ``(S,)``, whether the next observation was recorded, not repeated.
        episode_id: ``(S,)``.
        step: ``(S,)``, number of the step in its episode.
        left: ``(S,)``, number of steps from this one to the end of its episode.
    """

    observations: Any
    actions: Any
    rewards: npt.NDArray[np.float64]
    terminations: npt.NDArray[np.bool_]
    truncations: npt.NDArray[np.bool_]
    row: Ints
    next_known: npt.NDArray[np.bool_]
    episode_id: Ints
    step: Ints
    left: Ints

    @classmethod
    def join(cls, episodes: list[tuple[dict[str, Any], bool]]) -> _Steps:
        """Join at least one episode, each paired with whether its final observation is known."""
        read = [episode for episode, _ in episodes]
        lengths = np.array([len(episode["rewards"]) for episode in read])
        ends = np.cumsum(lengths)
        known = np.array([known for _, known in episodes])
        next_known = np.ones(ends[-1], bool)
        next_known[ends[~known & (lengths > 0)] - 1] = False
        place = np.arange(ends[-1])
        step = place - np.repeat(ends - lengths, lengths)
        return cls(
            observations=_joined_column(read, "observations", lengths + 1),
            actions=_joined_column(read, "actions", lengths),
            rewards=_concatenate([episode["rewards"] for episode in read]),
            terminations=_concatenate([episode["terminations"] for episode in read]),
            truncations=_concatenate([episode["truncations"] for episode in read]),
            # each earlier episode has one row more than steps
            row=place + np.repeat(np.arange(len(read)), lengths),
            next_known=next_known,
            episode_id=np.repeat([int(episode["id"]) for episode in read], lengths),
            step=step,
            left=np.repeat(lengths, lengths) - step,
        )


def _joined_column(episodes: list[dict[str, Any]], name: str, rows: Ints) -> Any:
    """Join a column of episodes, whose leaves must have the given numbers of rows."""

    def joined(*parts: Any) -> Any:
        found = np.array([len(part) for part in parts])
        if (found != rows).any():
            place = int(np.argmax(found != rows))
            episode = episodes[place]
            for path, leaf in leaves(episode[name], (name,)):
                if len(leaf) != rows[place]:
                    raise CorruptDatasetError(
                        f"episode {episode['id']}: {join_path(path)} has {len(leaf)} rows, "
                        f"expected {rows[place]}: it has {len(episode['rewards'])} rewards"
                    )
        return _one_after_another(*parts)

    return map_leaves(joined, *(episode[name] for episode in episodes))


def _transition_batch(steps: _Steps, chosen: Ints) -> TransitionBatch:
    row = steps.row.take(chosen)
    return TransitionBatch(
        observations=_take(steps.observations, row),
        actions=_take(steps.actions, chosen),
        rewards=steps.rewards.take(chosen),
        next_observations=_take(steps.observations, row + 1),
        terminations=steps.terminations.take(chosen),
        truncations=steps.truncations.take(chosen),
        episode_ids=steps.episode_id.take(chosen),
        steps=steps.step.take(chosen),
    )


def _window_batch(
    steps: _Steps, first: Ints, chosen: Ints, mask: npt.NDArray[np.bool_]
) -> WindowBatch:
    next_mask = mask & steps.next_known[chosen]
    row = steps.row[chosen]
    return WindowBatch(
        observations=_take(steps.observations, row, mask),
        actions=_take(steps.actions, chosen, mask),
        rewards=_take(steps.rewards, chosen, mask),
        next_observations=_take(steps.observations, row + 1, next_mask),
        terminations=_take(steps.terminations, chosen, mask),
        truncations=_take(steps.truncations, chosen, mask),
        mask=mask,
        next_mask=next_mask,
        episode_ids=steps.episode_id[first],
        starts=steps.step[first],
    )


def _batches(
    storage: MinariStorage,
    episode_indices: Ints,
    order: Order,
    items: Callable[[_Steps], Ints],
    batch: Callable[[_Steps, Ints], Batch],
) -> Iterator[Batch]:
    """Yield batches of the items of all episodes; a batch may span episodes and buffers.

    The workers of a ``DataLoader`` take turns: each of ``n`` makes every ``n``-th batch of the
    same order, so together they yield what one process yields, in the same order.
    """
    seed, mine, n_workers = _share(order)
    rng = generator(seed)
    held: list[Batch] = []
    count = number = 0
    for steps in _buffers(storage, episode_indices, order, rng):
        chosen = items(steps)
        if order.is_random:
            chosen = rng.permutation(chosen)
        while len(chosen):
            take = len(chosen) if order.batch_size is None else order.batch_size - count
            part, chosen = chosen[:take], chosen[take:]
            if number % n_workers == mine:
                held.append(batch(steps, part))
            count += len(part)
            if count == order.batch_size:
                if held:
                    yield _join(held)
                held, count, number = [], 0, number + 1
    if held and not (order.drop_last and order.batch_size is not None):
        yield _join(held)


#: counts the random orders without a seed that this worker has begun; every worker counts alike
_unseeded = count_from()


def _share(order: Order) -> tuple[Any, int, int]:
    """Return the seed of an order, the number of this worker, and how many there are.

    Without a seed of their own, the workers use the one that PyTorch gave their ``DataLoader``.
    Persistent workers get no new one for later epochs, so they count the orders.
    """
    torch_data = sys.modules.get("torch.utils.data")  # a worker has imported it
    worker = torch_data.get_worker_info() if torch_data is not None and order.split else None
    if worker is None:
        return order.seed, 0, 1
    seed: Any = order.seed
    if seed is None and order.is_random:
        seed = [worker.seed - worker.id, next(_unseeded)]
    return seed, worker.id, worker.num_workers


def _buffers(
    storage: MinariStorage, episode_indices: Ints, order: Order, rng: np.random.Generator
) -> Iterator[_Steps]:
    size: int | None = 1
    if order.is_random:
        episode_indices = rng.permutation(episode_indices)
        size = order.buffer_episodes
    indices = [int(index) for index in episode_indices]
    episodes = zip(
        map(_needed, storage.get_episodes(indices)),
        _finals_known(storage, indices),
        strict=True,
    )
    while held := list(islice(episodes, size)):
        steps = _Steps.join(held)
        held.clear()  # they were copied into steps
        yield steps


def _finals_known(storage: MinariStorage, indices: list[int]) -> Iterable[bool]:
    """Return for each episode whether its final observation was recorded."""
    name = FINAL_OBSERVATION_MISSING
    table = storage.get_attribute_table(np.array(indices, np.int64), [name])
    if table is not None and name in table.numbers:
        return (table.numbers[name] == 0).tolist()
    if table is not None and table.others is None:
        return [True] * len(indices)
    found = storage.get_episode_metadata(indices) if table is None else table.others
    return (not attributes.get(name, False) for attributes in found or ())


def _needed(episode: dict[str, Any]) -> dict[str, Any]:
    """Drop the fields that no batch has, infos above all."""
    names = ("id", "observations", "actions", "rewards", "terminations", "truncations")
    return {name: episode[name] for name in names}


def _join(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    names = [field.name for field in fields(batches[0])]
    joined = {name: _concatenate([getattr(batch, name) for batch in batches]) for name in names}
    return type(batches[0])(**joined)


def _concatenate(trees: list[Any]) -> Any:
    return map_leaves(_one_after_another, *trees)


def _one_after_another(*parts: Any) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    return np.concatenate(parts)


def _take(tree: Any, index: Ints, mask: npt.NDArray[np.bool_] | None = None) -> Any:
    """Take rows of every leaf; with a mask, the index has two axes and rows outside are blank."""

    def taken(leaf: Any) -> Any:
        if isinstance(leaf, list):
            if mask is None:
                return [leaf[i] for i in index]
            return [
                [leaf[i] if shown else "" for i, shown in zip(*row, strict=True)]
                for row in zip(index, mask, strict=True)
            ]
        rows = leaf.take(index, axis=0)
        if mask is not None and not mask.all():
            rows[~mask] = np.zeros((), leaf.dtype)
        return rows

    return map_leaves(taken, tree)


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{name} must be a positive integer, got {value!r}")
    if value > sys.maxsize:
        raise ConfigError(f"{name} is too large, expected at most {sys.maxsize}")
