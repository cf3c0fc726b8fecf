"""A stand-in for xet, the Hub's storage of large files, on 127.0.0.1.

It takes what ``hf_xet`` sends when it uploads and keeps it as it came, in xorbs: chunks of files
with a header each, compressed where that pays. It gives nothing back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class XetStorage(ThreadingHTTPServer):
    """The server; ``received`` holds the bodies of requests so far."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.received: list[bytes] = []


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: XetStorage

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.server.received.append(self._body())
        if self.path.startswith("/v1/xorbs/"):
            self._answer(200, {"was_inserted": True})
        elif self.path == "/v1/shards":
            self._answer(200, {"result": 1})
        else:
            self._answer(404, {})

    def do_GET(self) -> None:
        """No chunk is known yet."""
        self._answer(404, {})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _answer(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def xet_storage() -> Iterator[XetStorage]:
    """Run a server while the block runs."""
    with XetStorage() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
