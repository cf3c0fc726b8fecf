"""A proxy between a client and a server that breaks what networks and busy servers break.

It listens on the loopback interface and passes all bytes on unchanged, the Host header included,
so that signatures hold: the client is told this address for the server's, and a server that builds
addresses from the Host header (the GCS emulator, the Hub's stand-in) names this one in them.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from io import BufferedReader
from itertools import chain
from queue import SimpleQueue
from urllib.parse import urlparse

PIECE = 1 << 16


@dataclass(frozen=True)
class Cut:
    """End the connection after so many bytes of a message, headers included, if it has more."""

    after: int
    of: str = "response"
    """The message: ``request`` or ``response``."""


@dataclass(frozen=True)
class Answer:
    """Answer in the place of the server, which never sees the request."""

    status: int
    retry_after: str | None = None
    location: str | None = None
    body: bytes = b""
    packed: str | None = None


@dataclass(frozen=True)
class Delay:
    """Hold a request back before it is passed on."""

    seconds: float


@dataclass(frozen=True)
class Flip:
    """Change one bit of this byte of a response's body, if it has as many."""

    at: int


Fault = Cut | Answer | Delay | Flip


@dataclass
class Request:
    """A request that came: its line, the size of its body, and what became of it."""

    method: str
    path: str
    size: int
    waits_to_continue: bool
    status: int | None = None
    """Of the answer, which the server or a fault gave; none while there is no answer."""
    fault: Fault | None = None


@dataclass
class Rule:
    """A fault, and which requests meet it."""

    fault: Fault
    times: int | None
    method: str
    path: str
    min_size: int

    def fits(self, request: Request) -> bool:
        line = re.fullmatch(self.method, request.method) and re.search(self.path, request.path)
        return bool(line) and request.size >= self.min_size and self.times != 0


class CutError(Exception):
    """A connection ends here because a fault says so."""


@contextmanager
def fault_proxy(variables: Mapping[str, str]) -> Iterator[Proxy]:
    """Stand before the server that ``variables`` name; those of the result name the proxy."""
    addresses = {value for value in variables.values() if value.startswith("http://127.0.0.1:")}
    assert len(addresses) == 1, f"not one server, but {sorted(addresses)}"
    proxy = Proxy(addresses.pop(), variables)
    try:
        yield proxy
    finally:
        proxy.disconnect()


class Proxy:
    """Passes everything on until it is told otherwise.

    Attributes:
        address: as the server's, ``http://127.0.0.1:PORT``.
        variables: those of the server, with this address in the place of its own.
        requests: all that came, in order.
        passed: bytes that went each way, headers included: ``{"request": n, "response": n}``.
    """

    def __init__(self, server: str, variables: Mapping[str, str]) -> None:
        self._server = ("127.0.0.1", int(urlparse(server).port or 80))
        self._lock = threading.RLock()
        self._rules: list[Rule] = []
        self._sockets: set[socket.socket] = set()
        self._cuts: dict[str, int] = {}
        self._disconnect_at_cut = False
        self.requests: list[Request] = []
        self.passed = {"request": 0, "response": 0}
        self._listen(0)
        self._port = self._listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self.variables = {k: self.address if v == server else v for k, v in variables.items()}

    def inject(
        self,
        fault: Fault,
        *,
        times: int | None = None,
        method: str = ".*",
        path: str = "",
        min_size: int = 0,
    ) -> None:
        """Let the first ``times`` requests, or all, of such a method, path and size meet a fault.

        A request meets the first fault that fits it, in the order of injection, and no other.

        Args:
            fault: what happens to them.
            times: how many; the rest pass.
            method: a regular expression for the whole of it.
            path: a regular expression to be found in path and query.
            min_size: bytes of the request's body.
        """
        with self._lock:
            self._rules.append(Rule(fault, times, method, path, min_size))

    def cut_after(self, n_bytes: int, of: str, *, disconnect: bool = False) -> None:
        """End all connections when so many more bytes have passed that way, on all of them.

        With ``disconnect``, for good: see :meth:`disconnect`.
        """
        with self._lock:
            self._cuts[of] = self.passed[of] + n_bytes
            self._disconnect_at_cut = disconnect

    def clear(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._rules.clear()
            self._cuts.clear()

    def disconnect(self) -> None:
        """End all connections and refuse new ones."""
        with self._lock:
            if self._listener is not None:
                # The thread that accepts is woken by this, and not by closing.
                with suppress(OSError):
                    self._listener.shutdown(socket.SHUT_RDWR)
                self._listener.close()
                self._listener = None
            self._drop()

    def connect(self) -> None:
        """Let connections through again."""
        with self._lock:
            if self._listener is None:
                self._listen(self._port)

    def _listen(self, port: int) -> None:
        self._listener: socket.socket | None = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._converse, args=(client,), daemon=True).start()

    def _drop(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _converse(self, client: socket.socket) -> None:
        """Pass on what one connection says, until either side ends it."""
        with client, suppress(OSError), socket.create_connection(self._server) as server:
            pair = {client, server}
            for one in pair:  # heads and bodies go apart, which else would wait for each other
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # Else megabytes count as passed that the other side has not read.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
            with self._lock:
                self._sockets |= pair
            waiting: SimpleQueue[Request] = SimpleQueue()
            back = threading.Thread(target=self._responses, args=(server, client, waiting))
            back.start()
            try:
                self._requests(client, server, waiting)
            except (OSError, CutError):
                pass
            finally:
                with self._lock:
                    self._sockets -= pair
                for one in pair:
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                back.join()

    def _requests(
        self, client: socket.socket, server: socket.socket, waiting: SimpleQueue[Request]
    ) -> None:
        with client.makefile("rb") as reader:
            while head := _head(reader):
                request, size = _parsed(head)
                self._meet(request)
                if isinstance(request.fault, Delay):
                    time.sleep(request.fault.seconds)
                if isinstance(request.fault, Answer):
                    self._answer(request, request.fault, client, _body(reader, size))
                    return
                waiting.put(request)
                self._pass(head, _body(reader, size), server, "request", request)

    def _responses(
        self, server: socket.socket, client: socket.socket, waiting: SimpleQueue[Request]
    ) -> None:
        with suppress(OSError, CutError), server.makefile("rb") as reader:
            while head := _head(reader):
                status = int(head.split()[1])
                if status < HTTPStatus.OK:
                    client.sendall(head)
                    continue
                request = waiting.get()
                request.status = status
                empty = request.method == "HEAD" or status in (204, 304)
                body = _body(reader, 0 if empty else _size(head, otherwise=None))
                if isinstance(request.fault, Flip):
                    body = _flipped(body, request.fault.at)
                self._pass(head, body, client, "response", request)
        for one in (client, server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _meet(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            for rule in self._rules:
                if rule.fits(request):
                    request.fault = rule.fault
                    if rule.times is not None:
                        rule.times -= 1
                    return

    def _answer(
        self, request: Request, answer: Answer, client: socket.socket, body: Iterator[bytes]
    ) -> None:
        if not request.waits_to_continue:
            for _ in body:
                pass
        request.status = answer.status
        lines = [
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            f"Content-Length: {len(answer.body)}",
            "Connection: close",
            *([f"Retry-After: {answer.retry_after}"] if answer.retry_after else []),
            *([f"Location: {answer.location}"] if answer.location else []),
            *([f"Content-Encoding: {answer.packed}"] if answer.packed else []),
        ]
        content = b"" if request.method == "HEAD" else answer.body
        client.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        # Closing while a client still sends would take the answer from it.
        client.shutdown(socket.SHUT_WR)
        client.settimeout(2)
        while client.recv(PIECE):
            pass

    def _pass(
        self, head: bytes, body: Iterator[bytes], to: socket.socket, of: str, request: Request
    ) -> None:
        """Send a message on, up to where a fault ends it."""
        ends = isinstance(request.fault, Cut) and request.fault.of == of
        passed = 0
        for piece in chain([head], body):
            room = min(len(piece), request.fault.after - passed) if ends else len(piece)
            room = self._count(of, room)
            to.sendall(piece[:room])
            if room < len(piece):
                raise CutError
            passed += room

    def _count(self, of: str, n_bytes: int) -> int:
        """Return how many of the next bytes may pass before all connections end."""
        with self._lock:
            room = min(n_bytes, self._cuts.get(of, n_bytes + self.passed[of]) - self.passed[of])
            self.passed[of] += room
            if room < n_bytes:
                del self._cuts[of]
                if self._disconnect_at_cut:
                    self.disconnect()
                else:
                    self._drop()
            return room


def _head(reader: BufferedReader) -> bytes:
    """Read a message up to the empty line; nothing if the connection ends before."""
    lines = [reader.readline()]
    while lines[-1] not in (b"\r\n", b"\n", b""):
        lines.append(reader.readline())
    return b"".join(lines) if lines[-1] else b""


def _header(head: bytes, name: str) -> str:
    found = re.search(rf"^{name}:[ \t]*(.*?)[ \t]*\r?$", head.decode("latin-1"), re.I | re.M)
    return found[1] if found else ""


def _size(head: bytes, otherwise: int | None) -> int | str | None:
    """Return the bytes of a message's body, ``"chunked"``, or None: up to the connection's end."""
    if _header(head, "Transfer-Encoding").lower() == "chunked":
        return "chunked"
    length = _header(head, "Content-Length")
    return int(length) if length else otherwise


def _parsed(head: bytes) -> tuple[Request, int | str | None]:
    method, path, _ = head.decode("latin-1").split(" ", 2)
    size = _size(head, otherwise=0)
    waits = _header(head, "Expect").lower() == "100-continue"
    return Request(method, path, size if isinstance(size, int) else 0, waits), size


def _body(reader: BufferedReader, size: int | str | None) -> Iterator[bytes]:
    """Yield a message's body as it comes."""
    if size == "chunked":
        while line := reader.readline():
            yield line
            length = int(line.split(b";")[0], 16)
            if length == 0:
                # The last chunk, of no bytes: then come trailers and an empty line.
                yield _head(reader)
                return
            yield from _body(reader, length + 2)
    while size is None or size > 0:
        piece = reader.read1(PIECE if size is None else min(PIECE, size))
        if not piece:
            return
        yield piece
        size = None if size is None else size - len(piece)


def _flipped(pieces: Iterator[bytes], at: int) -> Iterator[bytes]:
    for piece in pieces:
        if 0 <= at < len(piece):
            piece = piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
        at -= len(piece)
        yield piece
