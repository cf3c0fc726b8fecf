"""Define a dataset's metadata: the standard's keys, what each must hold, and the JSON form."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.errors import InvalidDatasetIdError, InvalidMetadataError

#: version of the standard that this package writes, named after the Minari release
MINARI_VERSION = "0.5.4"

#: Versions of the standard that can be read; so can data from before 0.4, which states none.
supported_dataset_versions = {
    "0.4.0",
    "0.4.1",
    "0.4.2",
    "0.4.3",
    "0.5.0",
    "0.5.1",
    "0.5.2",
    "0.5.3",
    "0.5.4",
}


def is_supported_version(version: str | None) -> bool:
    """Return whether data with this ``minari_version`` can be read.

    Args:
        version: a release, or a specifier as in Minari 0.4; None if the data states none.

    Example:
        >>> is_supported_version("0.5.4"), is_supported_version("~=0.4"), is_supported_version(None)
        (True, True, True)
        >>> is_supported_version("0.9.0"), is_supported_version(">=0.9")
        (False, False)
    """
    if not isinstance(version, str):
        return version is None
    if version in supported_dataset_versions:
        return True
    try:
        return any(SpecifierSet(version).filter(supported_dataset_versions))
    except InvalidSpecifier:  # a version that is not supported
        return False


#: keys whose value is fixed once it is saved
FIXED_KEYS = frozenset(
    {
        "dataset_id",
        "observation_space",
        "action_space",
        "env_spec",
        "data_format",
        "jpeg_encoding",
        "minari_version",
        "total_episodes",
        "total_steps",
    }
)

#: keys that every finished dataset must have
REQUIRED_KEYS = (
    "dataset_id",
    "total_episodes",
    "total_steps",
    "data_format",
    "observation_space",
    "action_space",
    "minari_version",
)

_TEXT = "a string"
_COUNT = "a non-negative integer"
_NUMBER = "a finite number"
_NAMES = "a list or set of strings"
_SIZE = "a non-negative number"
_FLAG = "true or false"

#: every key of the standard, with what it holds
STANDARD_KEYS = {
    "dataset_id": _TEXT,
    "total_episodes": _COUNT,
    "total_steps": _COUNT,
    "data_format": _TEXT,
    "jpeg_encoding": _FLAG,
    "observation_space": _TEXT,
    "action_space": _TEXT,
    "env_spec": _TEXT,
    "eval_env_spec": _TEXT,
    "code_permalink": _TEXT,
    "author": _NAMES,
    "author_email": _NAMES,
    "algorithm_name": _TEXT,
    "description": _TEXT,
    "minari_version": _TEXT,
    "requirements": _NAMES,
    "ref_min_score": _NUMBER,
    "ref_max_score": _NUMBER,
    "num_episodes_average_score": _COUNT,
    "combined_datasets": _NAMES,
    "dataset_size": _SIZE,
}


def metadata_faults(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``(key, what is wrong)`` for every value that the standard does not allow.

    Missing keys are not reported: a dataset under construction lacks many; see ``REQUIRED_KEYS``.
    Keys outside the standard may hold anything that JSON can hold.
    """
    for key, value in metadata.items():
        if not isinstance(key, str):
            yield key, "must have a string as its key"
            continue
        expected = STANDARD_KEYS.get(key)
        if expected is not None and not _holds(expected, value):
            yield key, f"must be {expected}, got {value!r:.100}"
        elif key == "dataset_id":
            try:
                parse_dataset_id(value)
            except InvalidDatasetIdError as error:
                yield key, str(error)
        elif key.endswith(("env_spec", "_space")) and key in STANDARD_KEYS:
            try:
                json.loads(value)
            except (ValueError, RecursionError):
                yield key, f"must be JSON, got {value[:80]!r}"
        else:
            try:
                json.dumps(value, default=_to_json)
            except (TypeError, ValueError) as error:
                yield key, f"cannot be written as JSON: {error}"


def validate_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise if metadata that is about to be saved holds a value of a wrong type.

    Raises:
        InvalidMetadataError: at least one does, and the message names every fault; or it is not
            a mapping.
    """
    if not isinstance(metadata, Mapping):
        raise InvalidMetadataError(f"metadata must be a dict, got {metadata!r:.100}")
    faults = [f"metadata {key!r} {what}" for key, what in metadata_faults(metadata)]
    if faults:
        raise InvalidMetadataError("; ".join(faults))


def dump_metadata(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON: keys in order, sets sorted, so that equal values give equal text."""
    return json.dumps(metadata, default=_to_json)


def is_finite_number(value: Any) -> bool:
    """Return whether a value is an integer or float that float64 can hold; a bool is not."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _holds(expected: str, value: Any) -> bool:
    if expected == _TEXT:
        return isinstance(value, str)
    if expected == _FLAG:
        return isinstance(value, bool | np.bool_)
    if expected == _COUNT:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            return False
        return bool(value >= 0)
    if expected in (_NUMBER, _SIZE):
        return is_finite_number(value) and (expected == _NUMBER or bool(value >= 0))
    return isinstance(value, list | tuple | set | frozenset) and all(
        isinstance(entry, str) for entry in value
    )


def _to_json(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"Object of type {type(value)} is not JSON serializable")
