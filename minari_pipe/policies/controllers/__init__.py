"""Controllers for :class:`policies.scripted.ScriptedPolicy`, by the package they act in.

They load on first use, as those packages may not be installed.
"""

from __future__ import annotations

import importlib
from typing import Any

from minari_pipe.policies import CONTROLLERS


def __getattr__(name: str) -> Any:
    target = CONTROLLERS.get(f"{__name__}.{name}")
    if target is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
