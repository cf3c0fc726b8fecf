"""The pip requirements of a dataset: whether they are met, and whether they can be."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_MAX_LENGTH = 1000
"""Of a requirement; longer numbers and deeper brackets are none."""


def parse(text: str) -> Requirement:
    """Read a requirement that may come from a stranger.

    Raises:
        InvalidRequirement: it is none.

    Example:
        >>> parse("numpy>=1").name
        'numpy'
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidRequirement(f"it has {len(text)} characters, at most {_MAX_LENGTH} expected")
    try:
        return Requirement(text)
    except RecursionError as error:
        raise InvalidRequirement("its brackets are nested too deep") from error


def warn_unless_met(text: str) -> None:
    """Warn, in the name of the caller's caller, if an installed package is not what is asked for.

    Example:
        >>> warn_unless_met("numpy>=1")
    """
    try:
        requirement = parse(text)
    except InvalidRequirement:
        warnings.warn(f"Ignoring malformed requirement `{text}`", stacklevel=3)
        return
    try:
        installed = Version(importlib.metadata.version(requirement.name))
    except importlib.metadata.PackageNotFoundError:
        warnings.warn(
            f'Package {requirement.name} is not installed. Install it with `pip install "{text}"`',
            stacklevel=3,
        )
        return
    if not requirement.specifier.contains(installed, prereleases=True):
        warnings.warn(
            f"Installed {requirement.name} version {installed} does not meet the requirement "
            f"{requirement.specifier}.\n"
            f'We recommend to install the required version with `pip install "{text}"`',
            stacklevel=3,
        )


def exclusions(requirements: Iterable[str]) -> Iterator[str]:
    """Yield the requirements of each package of which no version can meet all.

    Example:
        >>> list(exclusions(["mujoco>=3", "numpy", "mujoco<3"]))
        ['mujoco>=3 and mujoco<3']
    """
    by_package: dict[str, list[Requirement]] = {}
    for text in dict.fromkeys(requirements):
        try:
            requirement = parse(text)
        except InvalidRequirement:
            continue  # recover_environment reports it
        if requirement.marker is None:
            by_package.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    for found in by_package.values():
        together = SpecifierSet(",".join(str(requirement.specifier) for requirement in found))
        if len(found) > 1 and not any(
            together.contains(version, prereleases=True) for version in _near(together)
        ):
            yield " and ".join(map(str, found))


def _near(specifiers: SpecifierSet) -> Iterator[Version]:
    """Yield versions of which one fits if any does: those named, right after, and far before."""
    yield Version("0")
    for specifier in specifiers:
        try:
            version = Version(specifier.version.removesuffix(".*"))
        except InvalidVersion:  # `===` takes any text
            continue
        yield version
        yield Version(version.base_version)
        yield Version(f"{version.base_version}.0.1")
