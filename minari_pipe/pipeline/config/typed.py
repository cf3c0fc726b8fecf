"""Converts plain values to frozen dataclasses and back, and derives dataclasses for Hydra.

Two keys of a field's metadata change this. ``hydra`` is the type that Hydra gets instead, for a
value that is checked elsewhere; None hides the field from Hydra. With ``omitted``, plain values
leave the field out while it has its default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, field, fields, is_dataclass, make_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Optional, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from minari_pipe.errors import ConfigError

T = TypeVar("T")

#: Default of a required key; the value of ``omegaconf.MISSING``, whose import would take 0.1 s.
MISSING: Any = "???"


class OpenSettings(ABC):
    """A part of a config whose keys are not fixed."""

    @classmethod
    @abstractmethod
    def of(cls, values: Any, where: str) -> Self:
        """Return an instance made from plain values.

        Raises:
            ConfigError: the values do not describe such a part.
        """

    @property
    @abstractmethod
    def values(self) -> dict[str, Any]:
        """The plain values."""


@cache
def hydra_node(cls: type) -> type:
    """Return a mutable copy of a dataclass for Hydra: OmegaConf makes frozen ones read-only."""
    made = []
    for each, kind in _kinds(cls):
        kind = each.metadata.get("hydra", kind)
        if kind is None:
            continue
        inner: Any = next((k for k in get_args(kind) or (kind,) if is_dataclass(k)), None)
        if inner is not None:
            kind = Optional[hydra_node(inner)] if NoneType in get_args(kind) else hydra_node(inner)
        factory: Any = each.default_factory
        if factory is NO_DEFAULT:
            made.append((each.name, kind, field(default=each.default)))
        else:
            factory = hydra_node(inner) if factory is inner else factory
            made.append((each.name, kind, field(default_factory=factory)))
    return make_dataclass(cls.__name__, made)


@cache
def _kinds(cls: type) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(cls)
    return [(each, hints[each.name]) for each in fields(cls)]


def read(cls: type[T], values: Any, where: str = "") -> T:
    """Return an instance of a dataclass made from plain values.

    Args:
        cls: the dataclass.
        values: values by key; missing keys get their defaults.
        where: dotted key of the whole, for error messages.

    Raises:
        ConfigError: a value has the wrong type, or a required key is missing.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or 'the config'} is {values!r:.80}; expected keys and values")
    found = {}
    for each, kind in _kinds(cls):  # type: ignore[arg-type]  # mypy denies that classes are hashable
        key = f"{where}.{each.name}" if where else each.name
        if each.name in values:
            found[each.name] = _typed(kind, values[each.name], key, "hydra" not in each.metadata)
        elif each.default in (MISSING, NO_DEFAULT) and each.default_factory is NO_DEFAULT:
            raise ConfigError(f"no value for {key}")
    return cls(**found)


def _typed(kind: Any, value: Any, where: str, is_checked: bool) -> Any:
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and NoneType in options:
        return None
    for option in options:
        if isinstance(option, type) and issubclass(option, OpenSettings):
            return option.of(value, where)
        if isinstance(option, type) and is_dataclass(option):
            return read(option, value, where)
    plain = tuple(get_origin(option) or option for option in options)
    if float in plain:
        plain += (int,)
    is_flag = isinstance(value, bool) and bool not in plain
    if is_checked and (is_flag or not isinstance(value, plain)):
        names = " or ".join(option.__name__ for option in plain)
        raise ConfigError(f"{where} is {value!r:.80}; expected {names}")
    return value


def values_of(part: Any) -> Any:
    """Return the plain values of a dataclass; any other value is returned unchanged."""
    if isinstance(part, OpenSettings):
        return part.values
    if is_dataclass(part) and not isinstance(part, type):
        found = {each.name: (each, values_of(vars(part)[each.name])) for each in fields(part)}
        return {
            name: value
            for name, (each, value) in found.items()
            if not ("omitted" in each.metadata and value == _default(each))
        }
    return part


def _default(each: Field[Any]) -> Any:
    factory = each.default_factory
    return each.default if factory is NO_DEFAULT else values_of(factory())
