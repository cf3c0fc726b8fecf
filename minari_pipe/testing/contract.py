"""Define the tests of every storage; a format subclasses them and names its ``data_format``."""

from __future__ import annotations

from minari_pipe.testing.changes import ChangesContract
from minari_pipe.testing.images import ImagesContract
from minari_pipe.testing.processes import ProcessesContract
from minari_pipe.testing.values import ValuesContract


class StorageContract(ValuesContract, ChangesContract, ImagesContract, ProcessesContract):
    """All tests of a storage format; inherit from it and set ``data_format`` to run them.

    Attributes:
        data_format: the name under which the format is registered.

    Example:
        >>> from minari_pipe.testing import StorageContract
        >>> class TestMemory(StorageContract):
        ...     data_format = "memory"
    """
