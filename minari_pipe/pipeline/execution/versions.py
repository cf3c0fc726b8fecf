"""Compare package versions with those that the parameters record, and identify the processor."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Iterable
from pathlib import Path

from minari_pipe._version import __version__


def other_version(packages: Iterable[tuple[str, str]]) -> tuple[str, str, str] | None:
    """Return the first package whose version differs: name, version here, recorded version.

    Example:
        >>> other_version([("numpy", "0.1")])[2]
        '0.1'
    """
    for package, version in packages:
        here = installed(package)
        if here != version:
            return package, here, version
    return None


@functools.cache
def installed(package: str) -> str:
    """Return the version of a package, or ``not installed``."""
    if package == "minari_pipe":  # may be on the path without being installed
        return __version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def processor() -> str:
    """Return the model of the processor, which decides how floating-point numbers are rounded."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.cache
def processor_kind() -> str:
    """Return the properties that numeric libraries pick their code by, as ``x86_64 AVX2 ...``.

    These are the processor's instruction sets and, for some libraries, its vendor.
    """
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    flags = set(fields.get("flags", "").split())
    kinds = {"AVX512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "AVX2": {"avx2", "fma"}}
    best = next((kind for kind, needed in kinds.items() if needed <= flags), "")
    return " ".join(filter(None, [platform.machine(), best, fields.get("vendor_id", "")]))
