"""Lets real Minari collect without jax, of which it uses one function."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest


def let_minari_collect(monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Provide ``jax.tree_util.tree_map``, for the time of a test or for good."""
    jax, tree_util = types.ModuleType("jax"), types.ModuleType("jax.tree_util")
    tree_util.tree_map = _tree_map  # type: ignore[attr-defined]
    jax.tree_util = tree_util  # type: ignore[attr-defined]
    for name, module in (("jax", jax), ("jax.tree_util", tree_util)):
        if monkeypatch is None:
            sys.modules[name] = module
        else:
            monkeypatch.setitem(sys.modules, name, module)


def _tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    if isinstance(tree, dict):
        for other in others:
            if other.keys() != tree.keys():
                raise ValueError(f"Dict key mismatch: {list(tree)} and {list(other)}")
        return {key: _tree_map(function, tree[key], *(o[key] for o in others)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(
            _tree_map(function, part, *(o[i] for o in others)) for i, part in enumerate(tree)
        )
    return function(tree, *others)
