"""Turn the outputs of a policy's network into actions: modes and samples.

Random numbers come row by row from the episodes' own generators. Everything else is computed for
the whole batch, element by element or along one row, so that no row influences another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Outputs = Sequence[np.ndarray]
FloatArray = npt.NDArray[np.floating]
IndexArray = npt.NDArray[np.integer]


class ActionHead(ABC):
    """Chooses the actions of a whole batch; row ``i`` draws from the generator of its episode."""

    def __init__(self) -> None:
        self._rngs: dict[int, np.random.Generator] = {}

    def start(self, row: int, rng: np.random.Generator) -> None:
        """Start an episode in ``row``; everything random in it comes from ``rng``."""
        self._rngs[row] = rng

    @abstractmethod
    def __call__(
        self, outputs: Outputs, rows: Sequence[int], masks: np.ndarray | None = None
    ) -> np.ndarray:
        """Return actions, shape ``(B, *space.shape)``.

        Args:
            outputs: outputs of the network, each of shape ``(B, ...)``.
            rows: rows with an episode; the others draw nothing, and their actions are meaningless.
            masks: which actions are allowed, shape ``(B, logits)``, for heads that take masks.
        """


class ActionNoise(Protocol):
    """ActionNoise that is added to the mean of a continuous action."""

    def start(self, row: int, rng: np.random.Generator) -> None: ...

    def __call__(self, outputs: Outputs, rows: Sequence[int]) -> FloatArray: ...


class NormalNoise:
    """Normal noise that is drawn anew at every step."""

    def __init__(self, n_rows: int, n_actions: int, std: FloatArray | None = None) -> None:
        """Set ``std`` for each action, or ``None`` if the network outputs its logarithm."""
        self._draws, self._std = np.zeros((n_rows, n_actions)), std
        self._rngs: dict[int, np.random.Generator] = {}

    def start(self, row: int, rng: np.random.Generator) -> None:
        self._rngs[row] = rng

    def __call__(self, outputs: Outputs, rows: Sequence[int]) -> FloatArray:
        for row in rows:
            self._rngs[row].standard_normal(out=self._draws[row])
        std = np.exp(outputs[1], dtype=np.float64) if self._std is None else self._std
        return std * self._draws


class MatrixNoise:
    """gSDE noise: a matrix drawn at the start of an episode, times the features of each step.

    In training, SB3 redraws it every ``sde_sample_freq`` steps; here an episode keeps its matrix.
    """

    def __init__(self, n_rows: int, std: FloatArray) -> None:
        """Set ``std`` for the entries of the matrix, shape ``(features, actions)``."""
        self._std = std.astype(np.float64)
        self._matrices = np.zeros((n_rows, *std.shape))

    def start(self, row: int, rng: np.random.Generator) -> None:
        self._matrices[row] = self._std * rng.standard_normal(self._std.shape)

    def __call__(self, outputs: Outputs, rows: Sequence[int]) -> FloatArray:
        # In a matrix product, the low bits may depend on a row's place in the batch.
        return np.add.reduce(outputs[1][:, :, None] * self._matrices, axis=1)


class ContinuousHead(ActionHead):
    """Chooses actions of a ``Box``: a mean plus noise, clipped or scaled to the bounds."""

    def __init__(
        self,
        space: spaces.Box,
        *,
        noise: ActionNoise | None,
        tanh: bool = False,
        scaled: bool = False,
    ) -> None:
        """Set how ``model.predict`` processes the output of the network.

        Args:
            space: space of one action.
            noise: noise to add to the mean; ``None`` for the mean itself.
            tanh: whether to squash the sum of mean and noise.
            scaled: whether the result is in [-1, 1] and must be scaled to the bounds of the space.
        """
        super().__init__()
        self._space, self._noise = space, noise
        self._tanh, self._scaled = tanh, scaled

    def start(self, row: int, rng: np.random.Generator) -> None:
        if self._noise is not None:
            self._noise.start(row, rng)

    def __call__(
        self, outputs: Outputs, rows: Sequence[int], masks: np.ndarray | None = None
    ) -> np.ndarray:
        actions, low, high = outputs[0], self._space.low, self._space.high
        if self._noise is not None:
            actions = (actions + self._noise(outputs, rows)).astype(np.float32)
        if self._tanh:
            actions = np.tanh(actions)
        actions = actions.reshape((-1, *low.shape))
        if self._scaled:
            actions = low + (0.5 * (actions + 1.0) * (high - low))
        return np.clip(actions, low, high)


class CategoricalHead(ActionHead):
    """Makes one or several choices, each from its own group of logits."""

    def __init__(
        self,
        space: spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary,
        n_rows: int,
        sizes: Sequence[int],
        *,
        deterministic: bool,
    ) -> None:
        super().__init__()
        self._space = space
        self._bounds = np.cumsum([0, *sizes])
        self._draws = None if deterministic else np.zeros((n_rows, len(sizes)))

    def __call__(
        self, outputs: Outputs, rows: Sequence[int], masks: np.ndarray | None = None
    ) -> np.ndarray:
        logits = outputs[0] if masks is None else np.where(masks, outputs[0], -np.inf)
        if self._draws is not None:
            for row in rows:
                self._rngs[row].random(out=self._draws[row])
        parts = zip(self._bounds[:-1], self._bounds[1:], strict=True)
        choices = [self._choose(logits[:, a:b], i) for i, (a, b) in enumerate(parts)]
        indices = np.stack(choices, axis=1).astype(self._space.dtype)
        return indices.reshape((-1, *(self._space.shape or ())))

    def _choose(self, logits: FloatArray, part: int) -> IndexArray:
        if self._draws is None:
            return np.argmax(logits, axis=1)
        weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        below = np.cumsum(weights, axis=1)
        # The first choice whose cumulative share exceeds the draw; its weight is never zero.
        return np.sum(below / below[:, -1:] <= self._draws[:, part, None], axis=1)


class BernoulliHead(ActionHead):
    """Sets switches independently of each other."""

    def __init__(self, space: spaces.MultiBinary, n_rows: int, *, deterministic: bool) -> None:
        super().__init__()
        self._space = space
        self._draws = None if deterministic else np.zeros((n_rows, int(np.prod(space.shape))))

    def __call__(
        self, outputs: Outputs, rows: Sequence[int], masks: np.ndarray | None = None
    ) -> np.ndarray:
        logits = outputs[0].astype(np.float64)
        if self._draws is None:
            on = logits > 0
        else:
            for row in rows:
                self._rngs[row].random(out=self._draws[row])
            with np.errstate(over="ignore"):  # a switch that is practically never on
                on = self._draws < 1 / (1 + np.exp(-logits))
        return on.astype(self._space.dtype).reshape((-1, *self._space.shape))


class GreedyHead(ActionHead):
    """Chooses the action of the highest value."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self._space = space

    def __call__(
        self, outputs: Outputs, rows: Sequence[int], masks: np.ndarray | None = None
    ) -> np.ndarray:
        return np.argmax(outputs[0], axis=1).astype(self._space.dtype)
