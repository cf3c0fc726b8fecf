"""Read and write the index of a repository on the Hub: ``namespace_metadata.json`` at its root.

It lists what the repository holds, next to the metadata of the repository's namespace::

    {"description": ..., "datasets": ["door/human-v0", ...], "namespaces": ["door/hard", ...]}

A dataset without a namespace has a repository of its own, named after it. Minari writes no index
there and lists the dataset under a wrong id, which makes its listing of the whole organization
fail. An index that names the dataset fixes both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minari_pipe.core.json_object import json_object

DATASETS, NAMESPACES = "datasets", "namespaces"


@dataclass(frozen=True)
class RepoIndex:
    """The index of a repository, which lists its datasets and namespaces.

    Attributes:
        repo: name of the repository, without the organization.
        content: the whole JSON object, as it was read.
    """

    repo: str
    content: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, repo: str, text: bytes) -> RepoIndex:
        """Parse an index.

        Raises:
            ValueError: it is not a JSON object, or its lists are not lists of names.
        """
        content = json_object(text)
        for key in (DATASETS, NAMESPACES):
            value = content.get(key, [])
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise ValueError(f"its {key!r} must be a list of names, got {str(value)[:60]!r}")
        return cls(repo, content)

    @property
    def datasets(self) -> list[str]:
        """Listed ids that can lie in this repository."""
        return self._own(DATASETS)

    @property
    def namespaces(self) -> list[str]:
        """Names of namespaces, the repository's own first; none if the repository is a dataset."""
        if self.repo in self.datasets:
            return []
        return [self.repo, *(name for name in self._own(NAMESPACES) if name != self.repo)]

    @property
    def description(self) -> object:
        """Description of the namespace, of any type."""
        return self.content.get("description")

    def foreign(self) -> list[str]:
        """Return the listed names that cannot belong to this repository."""
        names = [*self._all(DATASETS), *self._all(NAMESPACES)]
        return [name for name in names if not _is_in(self.repo, name)]

    def adding(self, datasets: Iterable[str] = (), namespaces: Iterable[str] = ()) -> RepoIndex:
        """Return an index that lists these names too."""
        added = {DATASETS: set(datasets), NAMESPACES: set(namespaces) - {self.repo}}
        lists = {key: sorted({*self._all(key), *names}) for key, names in added.items() if names}
        return RepoIndex(self.repo, {**self.content, **lists})

    def describing(self, metadata: Mapping[str, Any]) -> RepoIndex:
        """Return an index with other metadata of the namespace.

        Lists of datasets and namespaces in the metadata come from another index and are ignored.
        """
        lists = {key: value for key, value in self.content.items() if key in (DATASETS, NAMESPACES)}
        own = {k: v for k, v in metadata.items() if k not in (DATASETS, NAMESPACES)}
        return RepoIndex(self.repo, own | lists)

    def dump(self) -> bytes:
        """Return the index as the bytes of its file."""
        return (json.dumps(self.content, indent=2, ensure_ascii=False) + "\n").encode()

    def _own(self, key: str) -> list[str]:
        return [name for name in self._all(key) if _is_in(self.repo, name)]

    def _all(self, key: str) -> list[str]:
        return self.content.get(key, [])


def _is_in(repo: str, name: str) -> bool:
    is_path = re.fullmatch(r"[-\w]+(/[-\w]+)*", name) is not None
    return name == repo or (is_path and name.startswith(f"{repo}/"))
