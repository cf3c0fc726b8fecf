"""Dataset ids, ``(namespace/)name(-v(version))``: parse, build and validate them.

An id becomes a path below the datasets root, so every id is validated before anything is written
or removed: the alphabet has no dot, no backslash and no empty path component.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from minari_pipe.errors import InvalidDatasetIdError

VERSION_RE = r"(?:-v(?P<version>[0-9]+))"
DATASET_NAME_RE = r"(?:(?P<dataset>[-_\w]+?))"
NAMESPACE_RE = r"(?:(?P<namespace>[-_\w][-_\w/]*[-_\w]+)\/)"
DATASET_ID_RE = re.compile(rf"^{NAMESPACE_RE}?{DATASET_NAME_RE}{VERSION_RE}?$")
NAMESPACE_REGEX = re.compile(r"[-_\w][-_\w/]*[-_\w]+")


def parse_dataset_id(dataset_id: str) -> tuple[str | None, str, int | None]:
    """Split an id into its namespace, name and version.

    Returns:
        ``(namespace, name, version)``; namespace and version are None where the id has none.

    Raises:
        InvalidDatasetIdError: the id is malformed.

    Example:
        >>> parse_dataset_id("D4RL/door/human-v2")
        ('D4RL/door', 'human', 2)
        >>> parse_dataset_id("human")
        (None, 'human', None)
    """
    match = DATASET_ID_RE.fullmatch(dataset_id) if isinstance(dataset_id, str) else None
    if match is None or "//" in dataset_id or dataset_id.endswith("\n"):
        raise InvalidDatasetIdError(
            f"Malformed dataset ID: {dataset_id}. (IDs must be of the form "
            "(namespace/)(dataset_name)-v(version). The namespace is optional, and needs at "
            "least two characters; letters, digits, '-' and '_' are allowed.)"
        )
    namespace, name, version = match.group("namespace", "dataset", "version")
    return namespace or None, name, None if version is None else int(version)


def gen_dataset_id(namespace: str | None, dataset_name: str, version: int | None = None) -> str:
    """Build an id from its parts; the inverse of :func:`parse_dataset_id`.

    Example:
        >>> gen_dataset_id("D4RL/door", "human", 2)
        'D4RL/door/human-v2'
    """
    prefix = "" if namespace is None else f"{namespace}/"
    suffix = "" if version is None else f"-v{version}"
    return f"{prefix}{dataset_name}{suffix}"


def dataset_id_sort_key(dataset_id: str) -> tuple[str, str, int]:
    """Order ids by namespace, then name, then version (a number); without a version comes first."""
    namespace, name, version = parse_dataset_id(dataset_id)
    return namespace or "", name, -1 if version is None else version


def validate_namespace(namespace: str | None) -> None:
    """Check a namespace's form.

    Raises:
        TypeError: it is None.
        InvalidDatasetIdError: it is malformed.
    """
    if namespace is None:
        raise TypeError("Namespace cannot be None")
    if (
        not isinstance(namespace, str)
        or not NAMESPACE_REGEX.fullmatch(namespace)
        or "//" in namespace
    ):
        raise InvalidDatasetIdError(
            f"Malformed namespace: {namespace}. Expected names of letters, digits, '-' and '_', "
            "separated by single slashes, at least two characters long"
        )


def namespace_hierarchy(namespace: str | None) -> Iterator[str]:
    """Yield a namespace's parents from the outermost inwards, then the namespace itself.

    Example:
        >>> list(namespace_hierarchy("D4RL/door"))
        ['D4RL', 'D4RL/door']
    """
    parts = [] if namespace is None else namespace.split("/")
    for depth in range(1, len(parts) + 1):
        yield "/".join(parts[:depth])
