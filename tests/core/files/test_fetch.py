"""Downloads are checked, whole, and asked for in the order path, cache, mirror, address."""

from __future__ import annotations

import base64
import errno
import hashlib
import http.server
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from minari_pipe.core.files import fetch
from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.fetch import FileSource, locate
from minari_pipe.errors import ConfigError, RemoteError

CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = b"something else"
OTHER_SHA256 = hashlib.sha256(OTHER).hexdigest()
WHAT = "the demonstrations"
OVERRIDE = "policy.source.path=FILE"

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def send(body: bytes, *, announced: int | None = None, status: int = 200) -> Answer:
    """An answer with ``body``, which may be shorter than what it announces."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body) if announced is None else announced))
        request.end_headers()
        request.wfile.write(body)

    return answer


def redirect(to: str) -> Answer:
    """An answer that sends the client elsewhere."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", to)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def one_after_another(*answers: Answer) -> Answer:
    """The answers in turn, the last one for good."""
    left = list(answers)

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(request)

    return answer


class Server:
    """A web server on this machine; ``pages`` maps paths to answers, ``asked`` counts requests."""

    def __init__(self) -> None:
        self.pages: dict[str, Answer] = {}
        self.asked: Counter[str] = Counter()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = self.path.partition("?")[0]
                server.asked[page] += 1
                server.pages.get(page, send(b"", status=404))(self)

            def log_message(self, *args: object) -> None:
                pass

        self._httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.02,))
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._httpd.server_port}"

    def close(self) -> None:
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no mirror, no proxy, no waiting."""
    monkeypatch.setenv(fetch.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(fetch.MIRROR_VARIABLE, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch, "_WAITS", (0.01, 0.01, 0.01))
    return tmp_path / "cache"


def get(address: str, sha256: str | None = SHA256, path: str | None = None) -> Path:
    return locate(FileSource(path, address, sha256), what=WHAT, override=OVERRIDE)


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_a_download_is_cached_under_its_sha256(server: Server, cache: Path) -> None:
    server.pages["/a/demos.pickle"] = send(CONTENT)
    path = get(server.address + "/a/demos.pickle?raw=true")  # the query is not part of the name
    assert path == cache / "downloads" / SHA256 / "demos.pickle"
    assert path.read_bytes() == CONTENT
    assert get(server.address + "/a/demos.pickle", SHA256.upper()) == path
    assert server.asked["/a/demos.pickle"] == 1
    assert files(cache) == ["demos.pickle"]


def test_a_download_obeys_the_umask(server: Server) -> None:
    server.pages["/demos.pickle"] = send(CONTENT)
    old = os.umask(0o027)
    try:
        path = get(server.address + "/demos.pickle")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_damaged_cached_file_is_fetched_again(server: Server) -> None:
    server.pages["/demos.pickle"] = send(CONTENT)
    path = get(server.address + "/demos.pickle")
    path.write_bytes(CONTENT[:-1] + b"\0")
    assert get(server.address + "/demos.pickle").read_bytes() == CONTENT
    assert server.asked["/demos.pickle"] == 2


def test_the_cache_is_found_the_usual_way(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pages["/demos.pickle"] = send(CONTENT)
    monkeypatch.delenv(fetch.CACHE_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value, base in (
        (tmp_path / "xdg", tmp_path / "xdg"),
        ("relative", tmp_path / "home/.cache"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", str(value))
        path = get(server.address + "/demos.pickle")
        assert path.is_relative_to(base / "minari_pipe")


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([send(CONTENT[:9], announced=len(CONTENT))], id="the connection is cut"),
        pytest.param(
            [send(b"", status=503), send(b"", status=429)], id="the server is busy, twice"
        ),
        pytest.param([lambda request: request.connection.close()], id="no answer at all"),
    ],
)
def test_a_passing_fault_is_tried_again(server: Server, cache: Path, faults: list[Answer]) -> None:
    server.pages["/demos.pickle"] = one_after_another(*faults, send(CONTENT))
    assert get(server.address + "/demos.pickle").read_bytes() == CONTENT
    assert server.asked["/demos.pickle"] == len(faults) + 1
    assert files(cache) == ["demos.pickle"]


@pytest.mark.parametrize("text", ["\N{SUPERSCRIPT TWO}", "9" * 5000])
def test_a_length_or_a_wait_that_is_no_number_is_none(server: Server, monkeypatch, text) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def busy(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(503)
        request.send_header("Retry-After", text)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def odd(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", text)
        request.end_headers()
        request.wfile.write(CONTENT)

    server.pages["/demos.pickle"] = one_after_another(busy, odd, send(CONTENT))
    assert get(server.address + "/demos.pickle").read_bytes() == CONTENT


def test_a_server_may_ask_for_a_longer_wait(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)

    def busy(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(503)
        request.send_header("Retry-After", "7000")
        request.send_header("Content-Length", "0")
        request.end_headers()

    server.pages["/demos.pickle"] = one_after_another(busy, send(CONTENT))
    get(server.address + "/demos.pickle")
    assert [wait for wait in waits if wait >= 1] == [10.0]


@pytest.mark.parametrize(
    ("answer", "attempts", "reason"),
    [
        pytest.param(send(CONTENT[:9], announced=99), 4, "was lost, 4 attempts", id="always cut"),
        pytest.param(send(b"", status=500), 4, "HTTP 500, 4 attempts", id="always a server error"),
        pytest.param(send(b"", status=403), 1, "HTTP 403", id="forbidden is not tried again"),
        pytest.param(send(b"", status=404), 1, "HTTP 404: no such file", id="absent, likewise"),
        *(
            pytest.param(redirect(to), 1, "it redirects to an address that is invalid", id=to[:20])
            for to in ("http://[::1", "/\xff")
        ),
    ],
)
def test_an_address_out_of_reach_says_what_to_do(
    server: Server, cache: Path, answer: Answer, attempts: int, reason: str
) -> None:
    server.pages["/demos.pickle"] = answer
    address = server.address + "/demos.pickle"
    with pytest.raises(RemoteError) as caught:
        get(address)
    message = str(caught.value)
    for part in (WHAT, address, reason, "MINARI_PIPE_MIRROR", "demos.pickle", OVERRIDE):
        assert part in message
    assert "\n" not in message
    assert server.asked["/demos.pickle"] == attempts
    assert files(cache) == []


def test_nothing_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RemoteError, match="no connection, 4 attempts"):
        get(f"http://127.0.0.1:{port}/demos.pickle")


def test_a_body_without_an_end_is_given_up(server: Server, cache: Path, monkeypatch):
    monkeypatch.setattr(fetch, "_LARGEST", 2**22)

    def endless(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        with suppress(OSError):
            while True:
                request.wfile.write(bytes(2**16))

    server.pages["/policy.zip"] = endless
    with pytest.raises(RemoteError, match=r"cannot be downloaded.*it has more than 4\d{6} bytes"):
        get(server.address + "/policy.zip")
    assert not files(cache)


NETRC = "machine 127.0.0.1 login ada password {}\ndefault login ada password {}\n"


def test_a_password_goes_only_to_a_machine_that_netrc_names(server: Server, tmp_path, monkeypatch):
    told: list[str | None] = []

    def listening(answer: Answer) -> Answer:
        def page(request: http.server.BaseHTTPRequestHandler) -> None:
            told.append(request.headers["Authorization"])
            answer(request)

        return page

    def moved(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", f"{elsewhere}/policy.zip")
        request.send_header("Content-Length", "0")
        request.end_headers()

    elsewhere = server.address.replace("127.0.0.1", "localhost")
    server.pages["/moved.zip"] = listening(moved)
    server.pages["/policy.zip"] = listening(send(b"other"))
    (tmp_path / "netrc").write_text(NETRC.format("own", "any"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for page in ("/moved.zip", "/policy.zip"):
        with pytest.raises(RemoteError, match="the download was discarded"):
            get(server.address + page)
    own = "Basic " + base64.b64encode(b"ada:own").decode()
    assert told == [own, None, own]


def test_another_file_at_the_address_is_refused_and_not_kept(server: Server, cache: Path) -> None:
    server.pages["/demos.pickle"] = send(OTHER)
    with pytest.raises(RemoteError, match=f"sha256 {OTHER_SHA256}, but {SHA256} is expected"):
        get(server.address + "/demos.pickle")
    assert files(cache) == []
    assert server.asked["/demos.pickle"] == 1


def test_many_at_once_get_the_same_whole_file(server: Server, cache: Path) -> None:
    def slow(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for start in range(0, len(CONTENT), 100_000):
            request.wfile.write(CONTENT[start : start + 100_000])
            time.sleep(0.005)

    server.pages["/demos.pickle"] = slow
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(get, [server.address + "/demos.pickle"] * 8))
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == CONTENT
    assert files(cache) == ["demos.pickle"]


def test_part_files_of_killed_processes_are_removed(server: Server, cache: Path) -> None:
    folder = cache / "downloads" / SHA256
    folder.mkdir(parents=True)
    old, young = folder / "demos.pickle.1.part", folder / "demos.pickle.2.part"
    for part in (old, young):
        part.write_bytes(b"x")
    os.utime(old, (0, 0))
    server.pages["/demos.pickle"] = send(CONTENT)
    get(server.address + "/demos.pickle")
    assert files(cache) == ["demos.pickle", young.name]


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(fetch.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(
        RemoteError, match=r"cannot be stored in .*: Not a directory.*MINARI_PIPE_CACHE"
    ):
        get(server.address + "/demos.pickle")


def test_a_full_disk_leaves_nothing_behind(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server.pages["/demos.pickle"] = send(CONTENT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RemoteError, match=r"No space left.*Make room"):
            get(server.address + "/demos.pickle")
    assert files(cache) == []
    assert get(server.address + "/demos.pickle").is_file()


# --- the mirror ---------------------------------------------------------------------------------


@pytest.fixture(params=["a folder", "a relative folder", "an address"])
def mirror(
    request: pytest.FixtureRequest, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> Callable[[bytes], None]:
    """Sets the mirror up to answer with the bytes it is called with."""
    value = {
        "a folder": str(tmp_path / "mirror"),
        "a relative folder": "mirror",
        "an address": server.address + "/mirror/",
    }[request.param]
    (tmp_path / "mirror").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(fetch.MIRROR_VARIABLE, value)

    def hold(content: bytes) -> None:
        server.pages["/mirror/demos.pickle"] = send(content)
        (tmp_path / "mirror" / "demos.pickle").write_bytes(content)

    return hold


def test_the_mirror_is_asked_first(server: Server, mirror: Callable[[bytes], None]) -> None:
    mirror(CONTENT)
    path = get(server.address + "/a/demos.pickle")
    assert path.read_bytes() == CONTENT
    assert server.asked["/a/demos.pickle"] == 0


def test_a_wrong_file_in_the_mirror_warns_and_falls_through(
    server: Server, cache: Path, mirror: Callable[[bytes], None]
) -> None:
    mirror(OTHER)
    server.pages["/a/demos.pickle"] = send(CONTENT)
    with pytest.warns(UserWarning, match=f"demos.pickle has sha256 {OTHER_SHA256}, but {SHA256}"):
        path = get(server.address + "/a/demos.pickle")
    assert path.read_bytes() == CONTENT
    assert files(cache) == ["demos.pickle"]


@pytest.mark.filterwarnings("ignore:.*the mirror's file is not used")
def test_what_the_mirror_lacks_comes_from_the_address(
    server: Server, mirror: Callable[[bytes], None]
) -> None:
    server.pages["/a/demos.pickle"] = send(CONTENT)
    assert get(server.address + "/a/demos.pickle").read_bytes() == CONTENT
    with pytest.raises(RemoteError, match=r"HTTP 404.*; MINARI_PIPE_MIRROR=.* has no 'x.pickle'"):
        get(server.address + "/a/x.pickle")
    mirror(OTHER)
    with pytest.raises(RemoteError, match=f"demos.pickle has the wrong sha256 {OTHER_SHA256}"):
        get(server.address + "/b/demos.pickle", "0" * 64)


def test_a_mirror_that_does_not_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.pages["/mirror/demos.pickle"] = send(b"", status=500)
    monkeypatch.setenv(
        fetch.MIRROR_VARIABLE, server.address.replace("//", "//me:secret@") + "/mirror"
    )
    with pytest.raises(RemoteError, match=r"does not answer \(HTTP 500, 4 attempts\)") as caught:
        get(server.address + "/a/demos.pickle")
    assert "secret" not in str(caught.value)


def test_a_mirror_that_is_no_web_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fetch.MIRROR_VARIABLE, "ftp://example.org/")
    with pytest.raises(
        ConfigError, match=r"MINARI_PIPE_MIRROR: 'ftp://example\.org/' is not a usable address"
    ):
        get("http://127.0.0.1:9/demos.pickle")


# --- paths and shipped files --------------------------------------------------------------------


def test_a_path_wins_over_an_address(tmp_path: Path) -> None:
    own = tmp_path / "own.pickle"
    own.write_bytes(OTHER)
    # The sha256 belongs to the address: whoever names a file of their own means that file.
    assert get("http://127.0.0.1:9/demos.pickle", SHA256, str(own)) == own
    assert locate(FileSource(path=str(own)), what=WHAT, override=OVERRIDE) == own
    assert locate(FileSource(str(own), sha256=OTHER_SHA256), what=WHAT, override=OVERRIDE) == own
    with pytest.raises(ConfigError, match=f"{OTHER_SHA256}, but {SHA256} is expected.*{OVERRIDE}"):
        locate(FileSource(str(own), sha256=SHA256), what=WHAT, override=OVERRIDE)
    with pytest.raises(ConfigError, match=r"no\.pickle' does not exist"):
        locate(FileSource(str(tmp_path / "no.pickle")), what=WHAT, override=OVERRIDE)
    with pytest.raises(ConfigError, match="is a folder, not a file"):
        locate(FileSource(str(tmp_path)), what=WHAT, override=OVERRIDE)


def test_shipped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "SHIPPED", tmp_path)
    (tmp_path / "expert.zip").write_bytes(CONTENT)
    assert get("shipped:expert.zip", None) == tmp_path / "expert.zip"
    assert get("shipped:expert.zip") == tmp_path / "expert.zip"
    with pytest.raises(ConfigError, match=f"sha256 {SHA256}, but {OTHER_SHA256} is expected"):
        get("shipped:expert.zip", OTHER_SHA256)
    with pytest.raises(ConfigError, match="does not exist"):
        get("shipped:other.zip", None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (FileSource(), "neither a path nor an address is given"),
        (FileSource(address="http://h/demos.pickle"), "without the sha256"),
        (FileSource(address="http://h/demos.pickle", sha256="abc"), "'abc' is not a sha256"),
        (FileSource(address="ftp://h/demos.pickle", sha256=SHA256), "http://… or https://…"),
        (FileSource(address="file:///etc/passwd", sha256=SHA256), "expected http://… or https://…"),
        (FileSource(address="/etc/passwd", sha256=SHA256), "expected http://… or https://…"),
        (FileSource(address="http://[::1/x", sha256=SHA256), "expected http://… or https://…"),
        (FileSource(address="http:///demos.pickle", sha256=SHA256), "http://… or https://…"),
        (
            FileSource(address="http://me:secret@h/x", sha256=SHA256),
            "contains a user name or password",
        ),
        (FileSource(address="http://h/", sha256=SHA256), "not a plain file name"),
        (FileSource(address="http://h/..", sha256=SHA256), "not a plain file name"),
        (FileSource(address="http://h/a/%2e%2e", sha256=SHA256), "not a plain file name"),
        (FileSource(address="http://h/a%2Fb", sha256=SHA256), "not a plain file name"),
        (FileSource(address="http://h/" + "x" * 300, sha256=SHA256), "not a plain file name"),
        (FileSource(address="shipped:../../secret"), "shipped:NAME with a plain file name"),
        (FileSource(address="shipped:/etc/passwd"), "shipped:NAME with a plain file name"),
        (FileSource(address="shipped:"), "shipped:NAME with a plain file name"),
    ],
    ids=lambda value: re.sub(r"\W+", "-", value)[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_meant_is_refused(source: FileSource, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        locate(source, what=WHAT, override=OVERRIDE)
    assert "secret@" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sha256_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    assert sha256_file(tmp_path / "file") == SHA256


@pytest.mark.parametrize(
    "source",
    [
        FileSource(address="http://127.0.0.1:9/x.hdf5?sig=hunter2", sha256=SHA256),
        FileSource(address="http://127.0.0.1:9/x.hdf5?sig=hunter2"),
        FileSource(address="http://127.0.0.1:9/?sig=hunter2", sha256=SHA256),
        FileSource(address="ftp://h/x?sig=hunter2", sha256=SHA256),
    ],
)
def test_no_error_shows_the_query_of_an_address(source, monkeypatch):
    monkeypatch.setattr(fetch, "_WAITS", ())
    monkeypatch.setenv("MINARI_PIPE_MIRROR", "http://127.0.0.1:9/mirror?sig=hunter2")
    with pytest.raises((ConfigError, RemoteError), match=r"\?…") as caught:
        locate(source, what=WHAT, override=OVERRIDE)
    assert "hunter2" not in str(caught.value)
