"""Watches and deceives the processes of a pipeline; on PYTHONPATH in tests only.

``MINARI_PIPE_TEST_IMPORTS`` names a folder, into which every stage writes ``STAGE.NAME.json``: the
names of its imported modules of the package, each with its file, and itself as ``__main__``.

``MINARI_PIPE_TEST_VERSION`` is ``NAME==VERSION``: that distribution claims to be of this version.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import os
import sys
from pathlib import Path

_STAGES = "minari_pipe.pipeline.stages."


def _write(folder: Path, stage: str, name: str) -> None:
    found = {
        module: file
        for module in sorted(sys.modules)
        if module.partition(".")[0] in ("minari_pipe", "__main__")
        and (file := getattr(sys.modules[module], "__file__", None))
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stage}.{name}.json").write_text(json.dumps(found))


def _begin() -> None:
    folder, words = os.environ.get("MINARI_PIPE_TEST_IMPORTS"), sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if folder and module.startswith(_STAGES):
        name = words[words.index("-m") + 2]
        atexit.register(_write, Path(folder), module.removeprefix(_STAGES), name)


_begin()

if claimed := os.environ.get("MINARI_PIPE_TEST_VERSION"):
    claimed_name, _, claimed_version = claimed.partition("==")
    true_version = importlib.metadata.version
    importlib.metadata.version = lambda name: (
        claimed_version if name == claimed_name else true_version(name)
    )
