"""What the user is told of an exception, in one line."""

from __future__ import annotations

import errno

from minari_pipe.errors import MinariPipeError


def user_message(exc: BaseException) -> str:
    """What to tell the user of an exception that ends a block or a stage."""
    if isinstance(exc, MinariPipeError):
        return str(exc)
    if isinstance(exc, OSError):
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        return f"the disk is full: {exc}" if full else str(exc)
    if isinstance(exc, MemoryError):
        return "out of memory"
    if isinstance(exc, SystemExit):
        return f"the policy or the environment called sys.exit({exc.code!r})"
    # Of the user's policy or environment, or a fault of ours.
    return f"{type(exc).__name__}: {exc}; --debug shows where"
