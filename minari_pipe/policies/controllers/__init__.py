"""Controllers for :class:`policies.scripted.ScriptedPolicy`, by the package they act in.

They load on first use, as those packages may not be installed.
"""

from __future__ import annotations

from typing import Any

from minari_pipe.core.plugins import load
from minari_pipe.policies import CONTROLLERS


def __getattr__(name: str) -> Any:
    return load(f"{__name__}.{name}", CONTROLLERS)
