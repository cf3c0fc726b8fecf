"""Runs a network on one fixed batch so that no row influences another.

The low bits of a matrix product depend on the number of rows, so the batch has one size: the number
of environments, padded to a multiple of 8. Even then a row's bits may depend on its place: PyTorch
2.13 with MKL on an AMD EPYC gave other bits to three rows of four where a layer had 2 to 11 outputs
(the usual number of actions), none where it had 12 or more. So small layers are padded with outputs
that are thrown away, and a network whose rows still disagree on this machine runs row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import nn

BATCH_MULTIPLE = 8
_SMALLEST_LAYER = 16  # outputs; a multiple of the widest vector register's floats

Batch = np.ndarray | dict[str, np.ndarray]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread for PyTorch and its BLAS inside; the number of before afterwards."""
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


def padded(n_rows: int) -> int:
    """``n_rows`` rounded up to a multiple of ``BATCH_MULTIPLE``."""
    return -(-n_rows // BATCH_MULTIPLE) * BATCH_MULTIPLE


def pad_small_layers(module: nn.Module) -> None:
    """Give every linear layer with few outputs further ones of weight zero, and cut them off."""
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
    """A network on a batch of one size, each row of the result a function of that row alone."""

    def __init__(self, forward: Callable[[Any], tuple[torch.Tensor, ...]], example: Batch) -> None:
        """Prove that rows are independent, or fall back to one row at a time.

        Args:
            forward: from a tensor of shape ``(B, ...)``, or a dict of such, to tensors of shape
                ``(B, ...)``.
            example: a batch of the size that will be used, its rows distinct.
        """
        self._forward = forward
        self.by_row = not self._rows_are_independent(example)

    def __call__(self, batch: Batch) -> tuple[np.ndarray, ...]:
        """Apply the network to ``batch``; arrays of shape ``(B, ...)``."""
        if self.by_row:
            rows = [self._run(_take(batch, slice(i, i + 1))) for i in range(_length(batch))]
            return tuple(np.concatenate(parts) for parts in zip(*rows, strict=True))
        return self._run(batch)

    def _run(self, batch: Batch) -> tuple[np.ndarray, ...]:
        import torch

        # Copies: a tensor would otherwise share the memory of the caller's batch.
        with one_torch_thread(), torch.inference_mode():
            if isinstance(batch, dict):
                tensors: Any = {key: torch.tensor(column) for key, column in batch.items()}
            else:
                tensors = torch.tensor(batch)
            return tuple(out.numpy() for out in self._forward(tensors))

    def _rows_are_independent(self, example: Batch) -> bool:
        n = _length(example)
        expected = self._run(example)
        orders = [np.roll(np.arange(n), shift) for shift in (1, 2, 3, n // 2)]
        orders += [np.zeros(n, int), np.full(n, n - 1)]
        for order in orders:
            result = self._run(_take(example, order))
            pairs = zip(result, expected, strict=True)
            if any(new.tobytes() != old[order].tobytes() for new, old in pairs):
                return False
        return True


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)


def _take(batch: Batch, rows: slice | np.ndarray) -> Batch:
    if isinstance(batch, dict):
        return {key: column[rows] for key, column in batch.items()}
    return batch[rows]
