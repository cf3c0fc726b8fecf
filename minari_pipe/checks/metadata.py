"""Check that the metadata have the fields of the standard, with valid types and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement
from packaging.version import InvalidVersion, Version

from minari_pipe.checks.advisory import installed_version
from minari_pipe.checks.base import Check, Finding, shown
from minari_pipe.checks.scores import EPISODES
from minari_pipe.checks.scores import NAMES as SCORES
from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.metadata import REQUIRED_KEYS, metadata_faults, supported_dataset_versions
from minari_pipe.core.requirements import parse
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.errors import MinariPipeError
from minari_pipe.storage.base import get_storage_keys


class Metadata(Check):
    """Checks every field of the standard that is given, and that no required one is missing.

    Fields outside the standard are allowed. :class:`checks.scores.Scores` checks the reference
    scores, :class:`totals.Totals` compares the totals with the data.
    """

    name = "metadata"
    warnings = ("missing-author", "missing-description", "unmet-requirement")

    def begin(self) -> Iterator[Finding]:
        metadata = self.subject.metadata
        for key in REQUIRED_KEYS:
            if metadata.get(key) is None:
                yield self.error(f"metadata / {key}", "is missing; the standard requires it")
        given = {key: value for key, value in metadata.items() if value is not None}
        faulty = dict(metadata_faults(given))
        for key, fault in faulty.items():
            if key not in (*SCORES, EPISODES):
                yield self.error(f"metadata / {key}", shown(fault, 300))
        for key, expected in CONTENTS.items():
            if key in given and key not in faulty:
                missed = expected(given[key])
                if missed:
                    value = shown(repr(given[key]))
                    yield self.error(f"metadata / {key}", f"is {value}, expected {missed}")
        if "author_email" in given and "author_email" not in faulty:
            wrong = [email for email in given["author_email"] if "@" not in email]
            if wrong:
                yield self.warning(
                    "metadata / author_email", f"{wrong[0]!r} is not an email address: it has no @"
                )
        for key in ("author", "description"):
            if key not in faulty and not str(metadata.get(key) or "").strip():
                yield self.warning(f"metadata / {key}", "is missing", f"missing-{key}")
        parents = [] if "combined_datasets" in faulty else given.get("combined_datasets", [])
        if metadata.get("dataset_id") in parents:
            yield self.warning(
                "metadata / combined_datasets",
                f"names {shown(metadata['dataset_id'])}, which is this dataset itself",
            )
        if "requirements" not in faulty and "requirements" in given:
            for fault in _unmet(given["requirements"]):
                yield self.warning("metadata / requirements", fault, "unmet-requirement")


def _unmet(requirements: list[str]) -> Iterator[str]:
    """Yield a message for each requirement that is not installed here, or far newer than here.

    Such a version may not exist. Versions older than the installed ones are normal in datasets.
    """
    for text in requirements:
        try:
            requirement = parse(text)
        except InvalidRequirement:  # CONTENTS reports it as an error
            continue
        if (installed := installed_version(requirement.name)) is None:
            yield f"{text!r}: package {requirement.name!r} is not installed here; check its name"
        elif any(_is_far_newer(s.version, installed) for s in requirement.specifier):
            yield f"{text!r}: {installed} is installed here; check that such a version exists"


def _is_far_newer(version: str, installed: str) -> bool:
    try:
        return Version(version.removesuffix(".*")).major > Version(installed).major + 1
    except InvalidVersion:
        return False


#: What was expected in place of a value that has the right type, ``None`` if the value is valid.
Missed = str | None


def _dataset_id(value: str) -> Missed:
    version = parse_dataset_id(value)[2]
    return None if version is not None else "a version at the end, such as '-v0'"


def _dataset_ids(values: list[str]) -> Missed:
    for value in values:
        try:
            parse_dataset_id(value)
        except MinariPipeError as exc:
            return f"dataset ids: {exc}"
    return None


def _data_format(value: str) -> Missed:
    known = sorted(get_storage_keys())
    return None if value in known else f"one of {', '.join(known)}"


def _space(value: str) -> Missed:
    try:
        deserialize_space(value)
    except Exception as exc:  # the deserializer of a third-party space may raise anything
        return f"a space of the Minari standard: {shown(exc, 300)}"
    return None


def _version(value: str) -> Missed:
    # Real Minari and this package refuse to load a dataset of any other version.
    known = ", ".join(sorted(supported_dataset_versions))
    return None if value in supported_dataset_versions else f"one of {known}"


def _names(values: list[str]) -> Missed:
    return "non-empty names" if any(not value.strip() for value in values) else None


def _requirements(values: list[str]) -> Missed:
    for value in values:
        try:
            parse(value)
        except InvalidRequirement as exc:
            return f"requirements in pip's format; {value!r}: {str(exc).splitlines()[0]}"
    return None


def _web_address(value: str) -> Missed:
    missed = "a URL such as 'https://example.org/code'"
    try:
        parts = urlsplit(value)
    except ValueError:
        return missed
    sound = parts.scheme in ("http", "https") and parts.netloc and " " not in value
    return None if sound else missed


CONTENTS: dict[str, Callable[[Any], Missed]] = {
    "dataset_id": _dataset_id,
    "data_format": _data_format,
    "observation_space": _space,
    "action_space": _space,
    "minari_version": _version,
    "author": _names,
    "requirements": _requirements,
    "combined_datasets": _dataset_ids,
    "code_permalink": _web_address,
}
