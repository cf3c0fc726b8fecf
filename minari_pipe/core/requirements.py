"""Checks pip requirements, and finds the installed distribution that a package comes from."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from minari_pipe.core.messages import one_line

#: longest text that can be a requirement; this also limits its numbers and nested brackets
_MAX_LENGTH = 1000


def parse(text: str) -> Requirement:
    """Parse a requirement that may come from a stranger.

    Raises:
        InvalidRequirement: the text is not a requirement.

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
    """Warn, on behalf of the caller's caller, if the installed package does not meet a requirement.

    Example:
        >>> warn_unless_met("numpy>=1")
    """
    try:
        requirement = parse(text)
    except InvalidRequirement:
        warnings.warn(f"Ignoring malformed requirement `{one_line(text)}`", stacklevel=3)
        return
    try:
        installed = Version(importlib.metadata.version(requirement.name))
    except importlib.metadata.PackageNotFoundError:
        warnings.warn(
            f"Package {requirement.name} is not installed. {_advice(requirement)}", stacklevel=3
        )
        return
    if not requirement.specifier.contains(installed, prereleases=True):
        warnings.warn(
            f"Installed {requirement.name} version {installed} does not meet the requirement "
            f"{requirement.specifier}.\n{_advice(requirement)}",
            stacklevel=3,
        )


def _advice(requirement: Requirement) -> str:
    """Return what to do about a requirement, whose text may come from a stranger."""
    if requirement.url:
        return f"The requirement names an address, {one_line(requirement.url)!r}, not a release"
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    wanted = shlex.quote(f"{requirement.name}{extras}{requirement.specifier}")
    return f"Install it with `pip install {wanted}`"


def exclusions(requirements: Iterable[str]) -> Iterator[str]:
    """Yield, for each package, its requirements if no version can meet all of them.

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
    """Yield versions, one of which fits if any does: 0, and each named one and the one after it."""
    yield Version("0")
    for specifier in specifiers:
        try:
            version = Version(specifier.version.removesuffix(".*"))
        except InvalidVersion:  # `===` accepts any text
            continue
        yield version
        yield Version(version.base_version)
        yield Version(f"{version.base_version}.0.1")


@functools.cache
def distributions_of(package: str) -> list[str]:
    """Return the names of the distributions that an importable top-level package comes from.

    It searches their lists of files as text: :func:`importlib.metadata.packages_distributions`
    parses each of them, which takes four times as long.

    Example:
        >>> distributions_of("h5py"), distributions_of("yaml"), distributions_of("os")
        (['h5py'], ['PyYAML'], [])
    """
    try:
        return [importlib.metadata.distribution(package).name]
    except importlib.metadata.PackageNotFoundError:
        own_file = re.compile(rf"^{re.escape(package)}(?:/|\.py,|\.[\w.-]*so,)", re.MULTILINE)
        return [
            distribution.name
            for distribution in importlib.metadata.distributions()
            if package in (distribution.read_text("top_level.txt") or "").split()
            or own_file.search(distribution.read_text("RECORD") or "")
        ]
