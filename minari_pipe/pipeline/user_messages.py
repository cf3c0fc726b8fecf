"""Formats an exception as one line for the user."""

from __future__ import annotations

import errno

from minari_pipe.core.messages import without_credentials
from minari_pipe.errors import MinariPipeError


def user_message(exc: BaseException) -> str:
    """Return the message for an exception that ends a block or a stage, without credentials."""
    return without_credentials(_message(exc))


def _message(exc: BaseException) -> str:
    if isinstance(exc, MinariPipeError):
        return str(exc)
    if isinstance(exc, OSError):
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        return f"the disk is full: {exc}" if full else str(exc)
    if isinstance(exc, MemoryError):
        return "out of memory"
    if isinstance(exc, SystemExit):
        return f"the policy or the environment called sys.exit({exc.code!r})"
    # Raised by the user's policy or environment, or a bug in this package.
    return f"{type(exc).__name__}: {exc}; --debug shows where"
