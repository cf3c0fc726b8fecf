"""Google Cloud Storage: its emulator in a process of its own, as strict as the service in uploads.

=============================================  ============  =====  ===========
                                               the emulator  here   the service
=============================================  ============  =====  ===========
keeps a body that its connection cut short     yes           no     no
loses a CR that ends what gcsfs uploads        yes           no     ?
one silent connection stops all others         yes           no     no
parses an object of type ``application/json``  yes           no     no
says that nothing came of a new upload         no            yes    yes
an upload in pieces can be given up            no            yes    yes
takes a piece, or its end, that is sent again  no            yes    yes
``ifGenerationMatch`` of an upload counts      no            yes    yes
``ifGenerationMatch`` of anything else counts  no            no     yes
asks who you are, and what you may             no            no     yes
=============================================  ============  =====  ===========

What is said of the service is from its documentation: there is none to ask on one's own machine.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import requests
from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import BadRequest
from gcp_storage_emulator.storage import Storage

from tests.support.servers.running import server_process


def variables(address: str) -> dict[str, str]:
    """What lets gcsfs, DVC and Google's own library find the server, without an account."""
    return {
        "STORAGE_EMULATOR_HOST": address,
        "GOOGLE_CLOUD_PROJECT": "test-project",
    }


@contextmanager
def gcs_server(*buckets: str, folder: Path | None = None) -> Iterator[dict[str, str]]:
    """Serve from memory, or from ``folder/.cloudstorage/bucket/key``."""

    def command(port: int) -> list[str]:
        place = [] if folder is None else ["--folder", str(folder)]
        return [sys.executable, "-m", "tests.support.servers.gcs", str(port), *place]

    with server_process(command) as port:
        address = f"http://127.0.0.1:{port}"
        for bucket in buckets:
            create_bucket(address, bucket)
        yield variables(address)


def create_bucket(address: str, bucket: str) -> None:
    reply = requests.post(f"{address}/storage/v1/b", json={"name": bucket}, timeout=60)
    reply.raise_for_status()


class PreconditionFailedError(Exception):
    """An object is not of the generation that the request expects."""


class ConditionalStorage(Storage):
    """The emulator's objects; what a request says of the generation that it replaces holds."""

    expected: str | None = None
    """``ifGenerationMatch`` of the request that is answered now; "0" is: no object."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.expected_by_upload: dict[str, str | None] = {}
        self.arrived: dict[str, bytearray] = {}
        self.finished: dict[str, dict[str, Any]] = {}

    def create_resumable_upload(self, bucket: str, name: str, resource: dict[str, Any]) -> str:
        self._check(bucket, name, self.expected)
        upload = super().create_resumable_upload(bucket, name, resource)
        self.expected_by_upload[upload] = self.expected
        return upload

    def create_file(
        self, bucket: str, name: str, content: bytes, resource: Any, upload: str | None = None
    ) -> None:
        expected = self.expected if upload is None else self.expected_by_upload.get(upload)
        self._check(bucket, name, expected)
        # Where the uploader found the server, such as at a proxy, is no place for everybody else.
        resource.pop("mediaLink", None)
        super().create_file(bucket, name, content, resource, upload)
        if upload is not None:
            self.finished[upload] = resource

    def get_resumable_byte_count(self, upload: str) -> int:
        return len(self.arrived.get(upload, b""))

    def add_to_resumable_upload(
        self, upload: str, content: bytes, total_size: int | None, expected_start: int | None
    ) -> bytes | None:
        """Keep what is new of a piece; the emulator copies all that came before with each."""
        arrived = self.arrived.setdefault(upload, bytearray())
        known = len(arrived) - (expected_start or 0)
        if known < 0:
            raise BadRequest(f"byte {len(arrived)} is next, and not {expected_start}")
        arrived += content[known:]
        if total_size is None or len(arrived) < total_size:
            return None
        return bytes(self.arrived.pop(upload)[:total_size])

    def _check(self, bucket: str, name: str, expected: str | None) -> None:
        found = self.objects.get(bucket, {}).get(name, {}).get("generation", "0")
        if expected not in (None, found):
            raise PreconditionFailedError


class WholeRequests(emulator.RequestHandler):
    """Answers when all of a request's body is here, one request at a time."""

    turn = threading.Lock()

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if "Transfer-Encoding" in self.headers:
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
            return False
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        whole = len(body) == length
        body = self._with_whole_lines(body)
        del self.headers["Content-Length"]
        self.headers["Content-Length"] = str(len(body))
        self.rfile = io.BytesIO(body)
        return whole

    def _with_whole_lines(self, body: bytes) -> bytes:
        """End the last part as the emulator reads it.

        gcsfs ends lines with LF alone, and the emulator would take a CR that ends the data for a
        part of the line's end.
        """
        boundary = self.headers.get_param("boundary")
        end = f"\n--{boundary}--".encode()
        if body.startswith(f"--{boundary}\n".encode()) and body.endswith(end):
            return body.removesuffix(end) + b"\r" + end
        return body

    def do_GET(self) -> None:  # noqa: N802 - the standard library calls it by this name
        method = self.headers.get("X-HTTP-Method-Override", self.command)
        query = parse_qs(urlparse(self.path).query)
        # A client that reads slowly waits for its answer alone.
        connection, self.wfile = self.wfile, io.BytesIO()
        with self.turn:
            self.storage.expected = query.get("ifGenerationMatch", [None])[0]
            try:
                upload = query.get("upload_id", [""])[0]
                if method == "DELETE" and upload:
                    self._give_up(upload)
                elif upload in self.storage.finished:
                    self._say(HTTPStatus.OK, json.dumps(self.storage.finished[upload]))
                else:
                    emulator.Router(self).handle(method)
            except PreconditionFailedError:
                self.send_error(HTTPStatus.PRECONDITION_FAILED)
        connection.write(self.wfile.getbuffer())

    def _give_up(self, upload: str) -> None:
        known = self.storage.resumable.pop(upload, None)
        self.storage.arrived.pop(upload, None)
        self._say(499 if known else HTTPStatus.NOT_FOUND)

    def _say(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def send_header(self, keyword: str, value: str) -> None:
        """The emulator says ``bytes=0-0`` of an upload that has no byte, as if it had one."""
        if (keyword, value) != ("Range", "bytes=0-0"):
            super().send_header(keyword, value)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *args: Any) -> None:
        """Say nothing: nobody reads it."""


def _read_data(handler: emulator.RequestHandler, query: dict[str, list[str]]) -> Any:
    """Leave the content of an object as it is, whatever type its upload states."""
    if query.get("uploadType") == ["media"]:
        return emulator._read_raw_data(handler) or None
    return _read_parsed(handler, query)


_read_parsed = emulator._read_data
emulator._read_data = _read_data


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--folder")
    chosen = parser.parse_args(arguments)
    storage = ConditionalStorage(use_memory_fs=chosen.folder is None, data_dir=chosen.folder)
    handler = partial(WholeRequests, storage)
    ThreadingHTTPServer(("127.0.0.1", chosen.port), handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
