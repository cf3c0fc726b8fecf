"""A stand-in for the Hugging Face Hub: the calls that ``huggingface_hub`` makes, on 127.0.0.1.

It speaks what huggingface_hub 2.4 asks of repositories of datasets: create and delete, lists by
author and name in pages, information, trees, paths, files by branch or commit with ranges and
redirects, upload modes, the LFS protocol in one piece or many, commits with ``parentCommit``, and
tokens, with the status codes and ``X-Error-Code`` of the Hub. It was written from that package's
source, so it shows what clients do, not what the Hub does. What it does not enforce:

- xet, which the Hub's own client prefers: ``HF_HUB_DISABLE_XET=1`` is in its variables. Large files
  go by LFS, as they do with clients that lack ``hf_xet``.
- limits of rate, size and number, but for those that a test orders with :meth:`HubServer.answer`;
  of 1000 paths and 256 upload modes in a request it does enforce.
- expiry of the storage's signed addresses, gated repositories, pull requests, ``.gitignore``,
  the binary files that the Hub refuses outside of LFS, and all of a card but that it is YAML.
- search: the Hub's is fuzzy, this one finds the text in the name.
- one thing more than the Hub is known to: the storage refuses bytes whose sha256 is not their oid.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

WRITER, READER, STRANGER = "hf_writer", "hf_reader", "hf_stranger"
TOKENS = {
    WRITER: {"name": "ada", "orgs": ["org", "org-*"], "role": "write"},
    READER: {"name": "ben", "orgs": ["org", "org-*"], "role": "read"},
    STRANGER: {"name": "eve", "orgs": [], "role": "write"},
}
CHECKOUT = Path(__file__).resolve().parents[2]


class HubServer:
    """A server process over a folder, which keeps everything: it may be killed and started again.

    Attributes:
        folder: what it has on disk, see :mod:`tests.support.servers.hub_store`.
        endpoint: its address, the same after every start.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        """Prepare a server; ``options`` are those of :mod:`tests.support.servers.hub_http`."""
        self.folder = folder
        self._options = options
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokens.json").write_text(json.dumps(TOKENS))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        assert self._process is None
        command = [sys.executable, "-m", "tests.support.servers.hub_http", str(self.folder)]
        self._process = subprocess.Popen(
            [*command, "--port", str(self._port), *self._options],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server ended at once"
        self._port = int(line)

    def kill(self) -> None:
        """End it as a loss of power would."""
        assert self._process is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._process = None

    def variables(self, token: str | None = WRITER) -> dict[str, str]:
        """What the environment of a client's process says."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            **({"HF_TOKEN": token} if token else {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}),
        }

    def answer(
        self,
        pattern: str,
        status: int,
        *,
        times: int = 1,
        skip: int = 0,
        headers: Mapping[str, str] | None = None,
        body: str = "{}",
    ) -> None:
        """Order an answer for the next requests that fit.

        Args:
            pattern: searched in method and path, such as ``"POST .*/commit/"``.
            status: of the answer; 0 means that what is asked for is done and the answer lost, -n
                that the server is silent for n seconds and then closes the connection.
            times: for how many requests.
            skip: how many requests that fit pass before.
            headers: of the answer.
            body: of the answer.
        """
        order = {"pattern": pattern, "status": status, "times": times, "skip": skip, "body": body}
        self._control("POST", json.dumps(order | {"headers": dict(headers or {})}).encode())

    def forget_answers(self) -> None:
        """Take back what was ordered."""
        self._control("DELETE")

    def _control(self, method: str, data: bytes | None = None) -> None:
        url = f"{self.endpoint}/control/faults"
        request = urllib.request.Request(url, data=data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=20):
            pass

    def requests(self) -> list[str]:
        """Method, path and status of every request so far."""
        lines = (self.folder / "requests.log").read_text().splitlines()
        return [line for line in lines if "/control/" not in line]


def enter(hub: HubServer, patch: pytest.MonkeyPatch, token: str | None = WRITER) -> None:
    """Let clients in this process find a server, and no token of the developer's own."""
    for name in ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        patch.delenv(name, raising=False)
    for name, value in hub.variables(token).items():
        patch.setenv(name, value)
    # huggingface_hub reads its variables when it is imported
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", token is None)
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)


@contextmanager
def hub_server(folder: Path, *options: str) -> Iterator[HubServer]:
    """Run a server while the block runs."""
    hub = HubServer(folder, *options)
    hub.start()
    try:
        yield hub
    finally:
        if hub._process is not None:
            hub.kill()
