"""Whether arrays of episodes are read-only views of files where nothing else is asked for."""

from __future__ import annotations

unasked = True
"""False where :mod:`minari_pipe.alias` stands for Minari: code that was written for it may write
into the arrays that it reads."""
