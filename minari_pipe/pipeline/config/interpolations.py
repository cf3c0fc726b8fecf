"""Limits what interpolations resolve to: ``${a}${a}`` over 33 keys is more than memory holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, ListConfig, Node
from omegaconf.base import Container

from minari_pipe.errors import ConfigError

#: Limit of one composition, in characters of what its interpolations resolve to.
_MOST_CHARACTERS = 10_000_000
#: Each interpolation counts as that many more, as it takes 0.5 ms, and each key or value in it.
_PER_INTERPOLATION, _PER_VALUE = 2_000, 100

_n_characters = 0
_node, _custom = Container._resolve_node_interpolation, Container._evaluate_custom_resolver
_resolve = Container.resolve_parse_tree


def limit_interpolations() -> None:
    """Let OmegaConf refuse interpolations that resolve to too much."""
    Container._resolve_node_interpolation = _counted(_node)  # type: ignore[method-assign]
    Container._evaluate_custom_resolver = _counted(_custom)  # type: ignore[method-assign]
    Container.resolve_parse_tree = _limited_resolve  # type: ignore[method-assign]


def start_counting() -> None:
    """Count from zero, for another composition."""
    global _n_characters
    _n_characters = 0


def _counted(method: Callable[..., Any]) -> Callable[..., Any]:
    def count(*args: Any, **more: Any) -> Any:
        global _n_characters
        found = method(*args, **more)
        _n_characters += _PER_INTERPOLATION + _characters(found)
        if _n_characters > _MOST_CHARACTERS:
            raise OverflowError  # `_limited_resolve` says why
        return found

    return count


def _limited_resolve(
    self: Container, parse_tree: Any, node: Node, memo: Any = None, key: Any = None
) -> Any:
    """Resolve a text with interpolations; the error names the outermost key."""
    try:
        return _resolve(self, parse_tree, node, memo, key)
    finally:
        if _n_characters > _MOST_CHARACTERS:
            raise ConfigError(
                f"{node._get_full_key(None)}: the interpolations (${{...}}) of the config resolve "
                f"to more than {_MOST_CHARACTERS} characters, where each counts as "
                f"{_PER_INTERPOLATION} more; refer to less, or write values out"
            )


def _characters(value: Any) -> int:
    """Return the length of a value whose own interpolations are not resolved."""
    parts = value.__dict__["_content"] if isinstance(value, DictConfig | ListConfig) else value
    if isinstance(parts, dict):
        return _PER_VALUE + sum(_characters(k) + _characters(v) for k, v in parts.items())
    if isinstance(parts, list):
        return _PER_VALUE + sum(map(_characters, parts))
    text = parts._value() if isinstance(parts, Node) else parts
    return _PER_VALUE + (len(text) if isinstance(text, str | bytes) else 0)
