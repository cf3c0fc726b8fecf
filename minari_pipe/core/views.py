"""Decide whether episode arrays are read-only views of files unless the caller asks otherwise."""

from __future__ import annotations

#: False where :mod:`minari_pipe.alias` stands in for Minari: code written for Minari may write
#: into the arrays that it reads
unasked = True
