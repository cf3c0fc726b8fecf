"""Define every error of the package, as one tree.

::

    MinariPipeError
    ├─ DatasetNotFoundError (FileNotFoundError)    ├─ InvalidDatasetIdError (ValueError)
    ├─ DatasetExistsError (FileExistsError)        ├─ InvalidEpisodeError (ValueError)
    ├─ CorruptDatasetError (OSError)               ├─ InvalidMetadataError (ValueError)
    ├─ UnsupportedVersionError (ValueError)        ├─ UnsupportedSpaceError (TypeError)
    ├─ UnknownFormatError (LookupError)            ├─ MissingReferenceScoreError (LookupError)
    ├─ RemoteError (OSError)                       ├─ MissingDependencyError (ModuleNotFoundError)
    ├─ EnvironmentNotFoundError (LookupError)      ├─ TrustError (PermissionError)
    └─ ConfigError (ValueError)

    CorruptDatasetError
    └─ LinkError

A class also inherits a second builtin if real Minari raises that one for the same fault, so that
``except`` clauses of existing user code keep working.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

#: characters other than printable ASCII and those that lay out a text
_SPECIAL = re.compile(r"[^ -~\n\t]")


def printable(text: str) -> str:
    r"""Escape the characters that a terminal would interpret or that no encoding has.

    Metadata, file names and errors may hold text from a stranger.

    Example:
        >>> printable("\x1b[31mred")
        '\\x1b[31mred'
    """
    return _SPECIAL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")


class MinariPipeError(Exception):
    """Base of all errors that this package raises on purpose; see :func:`printable`."""

    def __str__(self) -> str:
        return printable(super().__str__())


class Stopped(BaseException):
    """The user or the system asked this process to stop; not an error, and not to be caught."""

    def __init__(self, signum: int) -> None:
        """Store the exit code for a signal.

        Args:
            signum: the signal's number.
        """
        super().__init__(signum)
        self.exit_code = 128 + signum


class DatasetNotFoundError(MinariPipeError, FileNotFoundError, ValueError):
    """No dataset where one was expected (Minari: FileNotFoundError in a root, else ValueError)."""


class DatasetExistsError(MinariPipeError, FileExistsError, ValueError):
    """A dataset already exists and is not overwritten (Minari: ValueError)."""


class CorruptDatasetError(MinariPipeError, OSError, ValueError):
    """The files of a dataset are damaged, contradict each other or point outside themselves."""


class LinkError(CorruptDatasetError):
    """A link where only files and folders of a dataset, a workspace or a remote are allowed."""


class InvalidDatasetIdError(MinariPipeError, ValueError):
    """A dataset id or a namespace is malformed."""


class InvalidEpisodeError(MinariPipeError, ValueError, AssertionError):
    """An episode's values do not fit together (Minari: ValueError or a bare ``assert``)."""


class InvalidMetadataError(MinariPipeError, ValueError, AssertionError):
    """Metadata has a wrong type or may not be changed (Minari: ValueError or ``assert``)."""


class UnsupportedVersionError(MinariPipeError, ValueError):
    """The dataset follows a version of the standard that this package does not know."""


class UnsupportedSpaceError(MinariPipeError, TypeError, NotImplementedError):
    """A space cannot be stored, or its data is encoded in a way that cannot be read."""


class UnknownFormatError(MinariPipeError, LookupError, ValueError):
    """No storage is registered under this ``data_format``."""


class MissingReferenceScoreError(MinariPipeError, LookupError, ValueError):
    """A normalized score needs reference scores that the dataset does not have."""


class EnvironmentNotFoundError(MinariPipeError, LookupError, ValueError):
    """The environment is not registered, not installed, or was never recorded."""


class TrustError(MinariPipeError, PermissionError):
    """A file asks for something that needs the user's trust, such as running code."""


class RemoteError(MinariPipeError, OSError):
    """A remote could not be reached or sent something other than what was requested."""


class MissingDependencyError(MinariPipeError, ModuleNotFoundError):
    """A package is not installed: an optional one, or one that a dataset's environment needs."""


class ConfigError(MinariPipeError, ValueError):
    """A configuration has a wrong key, a wrong type or a missing value."""


class ReportedError(MinariPipeError):
    """The error was already printed; the caller only has to fail."""


def did_you_mean(
    name: object, known: Iterable[str], *, prefix: str = "", cutoff: float = 0.6
) -> str:
    """Return the hint after an unknown name: `` Did you mean 'x'?``, or an empty string.

    Args:
        name: the unknown name.
        known: the names that exist.
        prefix: written before the nearest name, such as the section of a key.
        cutoff: how similar they must be, from 0 to 1; see ``difflib.get_close_matches``.
    """
    near = difflib.get_close_matches(str(name), list(known), n=3, cutoff=cutoff)
    near.sort(key=lambda found: sorted(found) != sorted(str(name)))  # letters that changed places
    return f" Did you mean {prefix + near[0]!r}?" if near else ""
