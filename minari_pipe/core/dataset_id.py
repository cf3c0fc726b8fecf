"""Parse, build and validate dataset ids: ``(namespace/)name(-v(version))``.

An id becomes a path below the datasets root, so every id is validated before anything is written
or removed: the alphabet has no dot, no backslash and no empty path component.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from minari_pipe.errors import InvalidDatasetIdError

VERSION_RE = r"(?:-v(?P<version>[0-9]+))"
DATASET_NAME_RE = r"(?:(?P<dataset>[-_\w]+?))"
# Minari's pattern has a + at the end, which matches nothing more and takes minutes for a long id
NAMESPACE_RE = r"(?:(?P<namespace>[-_\w][-_\w/]*[-_\w])\/)"
DATASET_ID_RE = re.compile(rf"^{NAMESPACE_RE}?{DATASET_NAME_RE}{VERSION_RE}?$")
NAMESPACE_REGEX = re.compile(r"[-_\w][-_\w/]*[-_\w]")
#: Python refuses to parse numbers of more than 4300 digits; no file system has such long names
_LONGEST_VERSION = 255


def parse_dataset_id(dataset_id: str) -> tuple[str | None, str, int | None]:
    """Split an id into its namespace, name and version.

    Args:
        dataset_id: the id; the dataset need not exist.

    Returns:
        ``(namespace, name, version)``; namespace and version are None where the id has none.

    Raises:
        InvalidDatasetIdError: the id is malformed.

    Example:
        >>> from minari_pipe import parse_dataset_id
        >>> parse_dataset_id("D4RL/door/human-v2")
        ('D4RL/door', 'human', 2)
        >>> parse_dataset_id("human")
        (None, 'human', None)
    """
    match = DATASET_ID_RE.fullmatch(dataset_id) if isinstance(dataset_id, str) else None
    if match is None or "//" in dataset_id or dataset_id.endswith("\n"):
        raise InvalidDatasetIdError(
            f"Malformed dataset ID: {_shown(dataset_id)}. (IDs must be of the form "
            "(namespace/)(dataset_name)-v(version). The namespace is optional, and needs at "
            "least two characters; letters, digits, '-' and '_' are allowed.)"
        )
    namespace, name, version = match.group("namespace", "dataset", "version")
    if version is not None and len(version) > _LONGEST_VERSION:
        raise InvalidDatasetIdError(
            f"Malformed dataset ID: {dataset_id[:80]}... has a version of {len(version)} digits; "
            f"at most {_LONGEST_VERSION} are allowed"
        )
    return namespace or None, name, None if version is None else int(version)


def _shown(name: object) -> str:
    """Return a name as it is, or its repr if a terminal would interpret its characters."""
    text = str(name)[:300]
    return text if text.isprintable() else repr(text)


def gen_dataset_id(namespace: str | None, dataset_name: str, version: int | None = None) -> str:
    """Build an id from its parts; the inverse of :func:`parse_dataset_id`.

    Args:
        namespace: None for a dataset without one.
        dataset_name: the part before the version.
        version: None for an id without one, which means the latest.

    Example:
        >>> from minari_pipe import gen_dataset_id
        >>> gen_dataset_id("D4RL/door", "human", 2)
        'D4RL/door/human-v2'
    """
    prefix = "" if namespace is None else f"{namespace}/"
    suffix = "" if version is None else f"-v{version}"
    return f"{prefix}{dataset_name}{suffix}"


def dataset_id_sort_key(dataset_id: str) -> tuple[str, str, int]:
    """Return a key that sorts by namespace, name and numeric version, ids without one first."""
    namespace, name, version = parse_dataset_id(dataset_id)
    return namespace or "", name, -1 if version is None else version


def validate_namespace(namespace: str | None) -> None:
    """Raise if a namespace is malformed.

    Args:
        namespace: its name, such as ``D4RL/door``.

    Raises:
        TypeError: it is None.
        InvalidDatasetIdError: it is malformed.

    Example:
        >>> from minari_pipe import validate_namespace
        >>> validate_namespace("D4RL/door")
        >>> validate_namespace("../door")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        minari_pipe.errors.InvalidDatasetIdError: Malformed namespace: ../door. Expected ...
    """
    if namespace is None:
        raise TypeError("Namespace cannot be None")
    if (
        not isinstance(namespace, str)
        or not NAMESPACE_REGEX.fullmatch(namespace)
        or "//" in namespace
    ):
        raise InvalidDatasetIdError(
            f"Malformed namespace: {_shown(namespace)}. Expected names of letters, digits, '-' and "
            "'_', separated by single slashes, at least two characters long"
        )


def check_new_namespace(namespace: str | None) -> None:
    """Raise if a namespace or one of its parents may not be created.

    More can be read than created: real Minari lists a namespace of one character, but refuses
    every other use of it, and a dataset in one breaks its listing of the whole root.

    Raises:
        TypeError: it is None.
        InvalidDatasetIdError: it is malformed, has only one character, or has a part ``data``.

    Example:
        >>> check_new_namespace("D4RL/door")
        >>> check_new_namespace("d/door")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        minari_pipe.errors.InvalidDatasetIdError: Malformed namespace: d. Expected ...
    """
    validate_namespace(namespace)
    for parent in namespace_hierarchy(namespace):
        validate_namespace(parent)
    refuse_data(str(namespace))


def check_new_dataset_id(dataset_id: str) -> None:
    """Raise if a dataset of this id may not be created; more ids can be read.

    Raises:
        InvalidDatasetIdError: it is malformed, has no version or one with leading zeros, is in a
            namespace that may not be created, or has a part ``data``.

    Example:
        >>> check_new_dataset_id("D4RL/door/human-v2")
        >>> check_new_dataset_id("human")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        minari_pipe.errors.InvalidDatasetIdError: 'human' has no version; ...
    """
    namespace, _, version = parse_dataset_id(dataset_id)
    if version is None:
        raise InvalidDatasetIdError(
            f"{dataset_id!r} has no version; a new dataset needs one, such as '{dataset_id}-v0'"
        )
    if not dataset_id.endswith(f"-v{version}"):
        raise InvalidDatasetIdError(
            f"{dataset_id!r} has a version with leading zeros; write -v{version} instead"
        )
    if namespace is not None:
        check_new_namespace(namespace)
    refuse_data(dataset_id)


def refuse_data(path: str) -> None:
    """Raise if a folder of an id or a namespace would make a dataset of its parent folder.

    Raises:
        InvalidDatasetIdError: it has a part ``data``.
    """
    if "data" in path.split("/"):
        raise InvalidDatasetIdError(
            f"{path!r} has a part named 'data', which is reserved for the directory that marks a "
            "dataset; use another name"
        )


def namespace_hierarchy(namespace: str | None) -> Iterator[str]:
    """Yield a namespace's parents from the outermost inwards, then the namespace itself.

    Args:
        namespace: its name; None has no parents.

    Example:
        >>> from minari_pipe import namespace_hierarchy
        >>> list(namespace_hierarchy("D4RL/door"))
        ['D4RL', 'D4RL/door']
    """
    parts = [] if namespace is None else namespace.split("/")
    for depth in range(1, len(parts) + 1):
        yield "/".join(parts[:depth])
