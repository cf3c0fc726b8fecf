"""Whether data would be made under the package versions that the parameters record."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Iterable
from pathlib import Path

from minari_pipe._version import __version__


def other_version(packages: Iterable[tuple[str, str]]) -> tuple[str, str, str] | None:
    """The first package that is another here than is recorded: name, what is here, what should be.

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
    """The version of a package here, or that it is not installed."""
    if package == "minari_pipe":  # also where it is not installed, but on the path
        return __version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def processor() -> str:
    """The kind of processor, which decides how floating-point numbers are rounded."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.cache
def processor_kind() -> str:
    """What of the processor decides how numeric libraries compute, such as ``x86_64 AVX2 ...``.

    They choose their code by its instructions, and some by its maker.
    """
    told: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            told.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    flags = set(told.get("flags", "").split())
    kinds = {"AVX512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "AVX2": {"avx2", "fma"}}
    best = next((kind for kind, needed in kinds.items() if needed <= flags), "")
    return " ".join(filter(None, [platform.machine(), best, told.get("vendor_id", "")]))
