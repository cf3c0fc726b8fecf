"""Run a network on batches of one size so that no row influences another.

The low bits of a matrix product depend on the number of rows, so the batch has one size: the number
of environments, padded to a multiple of 8. Even then a row's bits may depend on its place: PyTorch
2.13 with MKL on an AMD EPYC gave different bits in three rows of four if a layer had 2 to 11
outputs (the usual number of actions), in none if it had 12 or more. So small layers are padded with
outputs that are discarded, and a network whose rows still disagree on this machine runs row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import nn

_SMALLEST_LAYER = 16  # outputs; a multiple of the widest vector register's floats

Batch = np.ndarray | dict[str, np.ndarray]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Limit PyTorch and its BLAS to one thread; restore the number of threads on exit."""
    import torch

    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pad_small_layers(module: nn.Module) -> None:
    """Pad every small linear layer with outputs of weight zero, and cut off their results."""
    import torch
    from torch import nn

    class PaddedLinear(nn.Module):
        weight: torch.Tensor
        bias: torch.Tensor

        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.n = layer.out_features
            weight = torch.zeros(_SMALLEST_LAYER, layer.in_features)
            weight[: self.n] = layer.weight.detach()
            self.register_buffer("weight", weight)
            bias = torch.zeros(_SMALLEST_LAYER)
            if layer.bias is not None:
                bias[: self.n] = layer.bias.detach()
            self.register_buffer("bias", bias)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(features, self.weight, self.bias)[:, : self.n]

    for name, child in module.named_children():
        if type(child) is nn.Linear and child.out_features < _SMALLEST_LAYER:
            setattr(module, name, PaddedLinear(child))
        else:
            pad_small_layers(child)


class BatchedNetwork:
    """Runs a network on batches of one size; a row of the result depends on that row alone."""

    def __init__(
        self, forward: Callable[..., tuple[torch.Tensor, ...]], example: Sequence[Batch]
    ) -> None:
        """Test whether rows are independent, and fall back to one row at a time if not.

        Args:
            forward: maps tensors of shape ``(B, ...)``, or dicts of them, to tensors of shape
                ``(B, ...)``.
            example: batches of the size that will be used, one for each argument of ``forward``,
                with distinct rows.
        """
        self._forward = forward
        self.by_row = not self._rows_are_independent(example)

    def __call__(self, *batches: Batch) -> tuple[np.ndarray, ...]:
        """Apply the network to ``batches``; return arrays of shape ``(B, ...)``."""
        if self.by_row:
            n = _length(batches[0])
            rows = [self._run(*(_take(b, slice(i, i + 1)) for b in batches)) for i in range(n)]
            return tuple(np.concatenate(parts) for parts in zip(*rows, strict=True))
        return self._run(*batches)

    def _run(self, *batches: Batch) -> tuple[np.ndarray, ...]:
        import torch

        with one_torch_thread(), torch.inference_mode():
            return tuple(out.numpy() for out in self._forward(*map(_tensors, batches)))

    def _rows_are_independent(self, example: Sequence[Batch]) -> bool:
        n = _length(example[0])
        expected = self._run(*example)
        orders = [np.roll(np.arange(n), shift) for shift in (1, 2, 3, n // 2)]
        orders += [np.zeros(n, int), np.full(n, n - 1)]
        for order in orders:
            result = self._run(*(_take(batch, order) for batch in example))
            pairs = zip(result, expected, strict=True)
            if any(new.tobytes() != old[order].tobytes() for new, old in pairs):
                return False
        return True


def _tensors(batch: Batch) -> Any:
    """Copy a batch to tensors, which would otherwise share the memory of the caller's batch."""
    import torch

    if isinstance(batch, dict):
        return {key: torch.tensor(column) for key, column in batch.items()}
    return torch.tensor(batch)


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)


def _take(batch: Batch, rows: slice | np.ndarray) -> Batch:
    if isinstance(batch, dict):
        return {key: column[rows] for key, column in batch.items()}
    return batch[rows]
