"""What every storage must do; a format's test is a subclass that names its ``data_format``."""

from __future__ import annotations

from minari_pipe.testing.changes import ChangesContract
from minari_pipe.testing.images import ImagesContract
from minari_pipe.testing.processes import ProcessesContract
from minari_pipe.testing.values import ValuesContract


class StorageContract(ValuesContract, ChangesContract, ImagesContract, ProcessesContract):
    """Inherit and set ``data_format``; pytest collects what a format must do.

    Attributes:
        data_format: the name under which the format is registered.

    Example:
        >>> from minari_pipe.testing import StorageContract
        >>> class TestMemory(StorageContract):
        ...     data_format = "memory"
    """
