"""Real Minari in a process of its own: what it lists, transfers and loads, asked by tests.

The process stays, so that a test can ask again and again while others upload::

    with RealMinari({**variables, "MINARI_REMOTE": "gcp://bucket"}, home) as peer:
        peer.list_remote_datasets()  # as Minari's function; an error comes as PeerError
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.servers.running import environment


class PeerError(Exception):
    """What real Minari raised: ``kind`` is the name of its class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class RealMinari:
    """Minari with a home, a datasets root and a remote of its own.

    Attributes:
        datasets: its datasets root.
        warnings: what the last call warned of.
    """

    def __init__(self, variables: Mapping[str, str], home: Path) -> None:
        self.datasets = home / "datasets"
        places = {"HOME": str(home), "MINARI_DATASETS_PATH": str(self.datasets)}
        self._environment = environment({**variables, **places})
        self._process: subprocess.Popen[str] | None = None
        self.warnings: list[str] = []

    def __enter__(self) -> RealMinari:
        self.datasets.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.real_minari"],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        process.kill()
        # Closes the pipes too.
        process.communicate()

    def ask(self, function: str, **arguments: Any) -> Any:
        """Call one of :data:`FUNCTIONS` there."""
        print(json.dumps([function, arguments]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"real Minari ended in {function}, with {self._process.wait()}"
        answer = json.loads(line)
        self.warnings = answer["warnings"]
        if "error" in answer:
            raise PeerError(*answer["error"])
        return answer["result"]

    def list_remote_datasets(self, **arguments: Any) -> dict[str, dict[str, Any]]:
        """Return the metadata of datasets at the remote, by id."""
        return self.ask("list_remote_datasets", **arguments)

    def list_remote_namespaces(self) -> list[str]:
        return self.ask("list_remote_namespaces")

    def upload_dataset(self, dataset_id: str, token: str | None = None) -> None:
        self.ask("upload_dataset", dataset_id=dataset_id, token=token)

    def download_dataset(self, dataset_id: str, *, force_download: bool = False) -> None:
        self.ask("download_dataset", dataset_id=dataset_id, force_download=force_download)

    def load_dataset(self, dataset_id: str) -> dict[str, Any]:
        """Return what :func:`content_of` tells of a dataset in its root."""
        return self.ask("load_dataset", dataset_id=dataset_id)


def content_of(dataset: Any) -> dict[str, Any]:
    """Tell totals, and the sha256 of every array of every episode, of Minari's dataset or ours."""
    digest = hashlib.sha256()
    for episode in dataset.iterate_episodes():
        for part in ("observations", "actions", "rewards", "terminations", "truncations"):
            _add(digest, part, getattr(episode, part))
    return {
        "id": dataset.id,
        "total_episodes": int(dataset.total_episodes),
        "total_steps": int(dataset.total_steps),
        "sha256": digest.hexdigest(),
    }


def _add(digest: Any, name: str, value: Any) -> None:
    if isinstance(value, dict | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            _add(digest, f"{name}/{key}", part)
    else:
        array = np.asarray(value)
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())


def main() -> None:
    """Answer calls, one in a line, until the input ends."""
    import minari
    from minari.namespace import list_remote_namespaces

    functions = {
        "list_remote_datasets": minari.list_remote_datasets,
        "list_remote_namespaces": list_remote_namespaces,
        "upload_dataset": minari.upload_dataset,
        "download_dataset": minari.download_dataset,
        "load_dataset": lambda dataset_id: content_of(minari.load_dataset(dataset_id)),
    }
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    for line in sys.stdin:
        name, arguments = json.loads(line)
        answer: dict[str, Any] = {}
        # Minari prints its progress.
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                answer["result"] = functions[name](**arguments)
            except Exception as error:
                answer["error"] = [type(error).__name__, str(error)]
        answer["warnings"] = [str(one.message) for one in seen]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
