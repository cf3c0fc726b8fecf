"""Define the interface of groups and datasets in an HDF5 file, whatever library reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from minari_pipe.errors import CorruptDatasetError

#: members of a group by name: kind of link (hard, soft, external), and address if hard
Links = dict[str, tuple[str, int]]


def check_bools(name: str, values: Any) -> None:
    """Raise an error if values are an array with a bool that is neither 0 nor 1.

    Raises:
        CorruptDatasetError: they are.
    """
    # As core.tree.has_other_bools; the parser imports nothing of the package but errors and files.
    is_bool = isinstance(values, np.ndarray) and values.dtype == np.bool_
    if is_bool and (values.view(np.uint8) > 1).any():
        raise CorruptDatasetError(f"{name}: a bool is neither 0 nor 1")


class Node(ABC):
    """A group or a dataset.

    Attributes:
        name: path in the file, such as ``/episode_0/rewards``.
    """

    name: str

    @property
    @abstractmethod
    def attrs(self) -> dict[str, Any]:
        """The attributes, with values as h5py returns them."""


class Group(Node):
    """A group: a mapping of names to groups and datasets."""

    @property
    @abstractmethod
    def links(self) -> Links:
        """Kind of link and address of every member, by name."""

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """Yield the names of all members."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of members."""

    @abstractmethod
    def __contains__(self, name: object) -> bool:
        """Return whether there is a member of this name."""

    @abstractmethod
    def __getitem__(self, name: str) -> Group | Dataset:
        """Return a member.

        Raises:
            KeyError: there is no member of this name.
            CorruptDatasetError: it is damaged, or a link to another place.
        """

    @abstractmethod
    def link_kind(self, name: str) -> str:
        """Return ``hard``, ``soft`` or ``external``; only hard links are followed.

        Raises:
            KeyError: there is no member of this name.
        """


class File(Group):
    """A file and its root group; a context manager."""

    @abstractmethod
    def close(self) -> None:
        """Close the file; arrays that were read are copies and remain valid."""

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()


class Dataset(Node):
    """An array.

    Attributes:
        shape: None if there are no values at all; :meth:`read` then returns ``h5py.Empty``.
        dtype: as h5py reports it.
        chunks: shape of a chunk, or None if the dataset is not chunked.
        maxshape: maximum shape, with None for unlimited dimensions.
        is_elsewhere: True if the values are those of other files or datasets.
        gzip: level at which the chunks are compressed, or None.
    """

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None
    maxshape: tuple[int | None, ...] | None
    is_elsewhere: bool
    gzip: int | None = None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape or ())

    def __len__(self) -> int:
        """Return the number of rows."""
        if not self.shape:
            raise TypeError(f"{self.name} is not an array")
        return self.shape[0]

    @abstractmethod
    def read(self) -> Any:
        """Return all values as new arrays; text becomes an array of strings.

        Raises:
            CorruptDatasetError: they are damaged, or in another place.
        """
