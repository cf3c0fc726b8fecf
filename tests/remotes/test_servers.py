"""The servers and the proxy that other tests stand on do what these tests think they do."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import urlparse

import fsspec
import psutil
import pytest
import requests

from tests.support.servers.gcs import gcs_server
from tests.support.servers.proxy import Answer, Cut, Delay, Flip, fault_proxy
from tests.support.servers.running import entered, environment
from tests.support.servers.s3 import moto_server, s3_server

DATA = os.urandom(200_000) + b"\r\n\r"


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[dict[str, dict[str, str]]]:
    """One of each for this file, with a bucket; the variables by which clients find it."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("rclone")
        yield {
            "rclone": stack.enter_context(s3_server(folder, "bucket")),
            "moto": stack.enter_context(moto_server("bucket")),
            "gcs": stack.enter_context(gcs_server("bucket")),
        }


each_server = pytest.mark.parametrize("name", ["rclone", "moto", "gcs"])


def files(name: str) -> fsspec.AbstractFileSystem:
    if name == "gcs":
        return fsspec.filesystem("gs", use_listings_cache=False)
    # rclone sends the checksum of a whole object with every part of it.
    config = {"response_checksum_validation": "when_required"}
    return fsspec.filesystem("s3", use_listings_cache=False, config_kwargs=config)


@each_server
def test_a_client_puts_lists_and_gets(name, servers):
    with entered(servers[name]):
        fs = files(name)
        fs.pipe_file("bucket/folder/data", DATA)
        assert fs.find("bucket/folder") == ["bucket/folder/data"]
        assert fs.cat_file("bucket/folder/data") == DATA
        assert fs.cat_file("bucket/folder/data", start=10, end=20) == DATA[10:20]


@each_server
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_signatures_and_addresses_hold_through_the_proxy(name, servers):
    with fault_proxy(servers[name]) as proxy, entered(proxy.variables):
        fs = files(name)
        fs.pipe_file("bucket/through/small", b"small")
        with fs.open("bucket/through/large", "wb", block_size=5 << 20) as file:
            file.write(bytes(6 << 20))
        assert fs.cat_file("bucket/through/small") == b"small"
        assert fs.info("bucket/through/large")["size"] == 6 << 20
        assert proxy.passed["request"] > 6 << 20


@each_server
def test_half_a_body_is_no_object(name, servers):
    """Where it is one, a client that is killed leaves half a file, as no real service does."""
    with fault_proxy(servers[name]) as proxy, entered(proxy.variables):
        proxy.inject(Cut(100_000, of="request"), times=1, min_size=len(DATA))
        proxy.inject(Answer(403), min_size=len(DATA))
        with pytest.raises(Exception):  # noqa: B017, PT011 - each library has its own
            files(name).pipe_file("bucket/half/data", DATA)
    with entered(servers[name]):
        assert files(name).find("bucket/half") == []


@pytest.mark.parametrize("name", ["moto", "gcs"])
def test_creating_is_exclusive_at_moto_and_the_emulator(name, servers):
    with entered(servers[name]):
        fs = files(name)
        fs.pipe_file("bucket/once", b"first", mode="create")
        with pytest.raises(FileExistsError):
            fs.pipe_file("bucket/once", b"second", mode="create")
        assert fs.cat_file("bucket/once") == b"first"


def test_a_finished_upload_in_pieces_creates_exclusively_too(servers):
    address = servers["gcs"]["STORAGE_EMULATOR_HOST"]
    place = f"{address}/upload/storage/v1/b/bucket/o"
    query = {"uploadType": "resumable", "name": "raced", "ifGenerationMatch": "0"}
    begun = requests.post(place, params=query, json={}, timeout=60)
    requests.post(place, params={"uploadType": "media", "name": "raced"}, data=b"1", timeout=60)
    late = requests.put(begun.headers["Location"], data=b"2", timeout=60)
    again = requests.post(place, params=query, json={}, timeout=60)
    assert (begun.status_code, late.status_code, again.status_code) == (200, 412, 412)


def test_an_upload_in_pieces_goes_on_where_it_was_and_can_be_given_up(servers):
    address = servers["gcs"]["STORAGE_EMULATOR_HOST"]
    place = f"{address}/upload/storage/v1/b/bucket/o"
    query = {"uploadType": "resumable", "name": "pieces"}
    upload = requests.post(place, params=query, json={}, timeout=60).headers["Location"]

    def put(data: bytes, span: str) -> tuple[int, str | None]:
        answer = requests.put(upload, data=data, headers={"Content-Range": span}, timeout=60)
        return answer.status_code, answer.headers.get("Range")

    assert put(b"", "bytes */6") == (308, None)
    assert put(b"123", "bytes 0-2/6") == (308, "bytes=0-2")
    assert put(b"", "bytes */6") == (308, "bytes=0-2")
    assert put(b"3", "bytes 4-4/6") == (400, None)
    assert put(b"234", "bytes 1-3/6") == (308, "bytes=0-3")
    assert put(b"3456", "bytes 2-5/6") == (200, None)
    assert put(b"", "bytes */6") == put(b"3456", "bytes 2-5/6") == (200, None)
    assert requests.get(f"{address}/bucket/pieces", timeout=60).content == b"123456"
    upload = requests.post(place, params=query, json={}, timeout=60).headers["Location"]
    assert requests.delete(upload, timeout=60).status_code == 499
    assert put(b"123456", "bytes 0-5/6") == (404, None)


def test_a_silent_connection_to_the_emulator_stops_no_other(servers):
    address = servers["gcs"]["STORAGE_EMULATOR_HOST"]
    with socket.create_connection(("127.0.0.1", urlparse(address).port)) as silent:
        silent.sendall(b"POST /storage/v1/b HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
        assert requests.get(address, timeout=20).text == "OK"


@pytest.mark.parametrize("start", [s3_server, moto_server, gcs_server], ids=lambda s: s.__name__)
def test_a_server_listens_on_loopback_alone_and_ends_with_its_block(start, tmp_path):
    arguments = [tmp_path] if start is s3_server else []
    before = set(psutil.Process().children())
    with suppress(KeyError), start(*arguments) as variables:
        (process,) = set(psutil.Process().children()) - before
        address = next(v for v in variables.values() if v.startswith("http://"))
        places = {c.laddr for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
        assert [f"http://{ip}:{port}" for ip, port in places] == [address]
        raise KeyError
    assert not process.is_running()
    with pytest.raises(requests.ConnectionError):
        requests.get(address, timeout=20)


def test_clients_see_nothing_of_the_developers_accounts(monkeypatch, servers):
    for name in ("AWS_PROFILE", "HTTP_PROXY", "https_proxy", "HF_TOKEN", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, "mine")
    assert "mine" not in environment(servers["gcs"]).values()
    with entered(servers["rclone"]):
        assert "mine" not in os.environ.values()
    assert os.environ["AWS_PROFILE"] == "mine"


@pytest.fixture
def proxied(servers):
    """The proxy before the emulator, which holds ``proxied``; and the address of that object."""
    with entered(servers["gcs"]):
        files("gcs").pipe_file("bucket/proxied", DATA)
    with fault_proxy(servers["gcs"]) as proxy:
        yield proxy, f"{proxy.address}/bucket/proxied"


def get(address: str) -> requests.Response:
    return requests.get(address, timeout=20)


def test_a_busy_server_answers_k_times_and_then_serves(proxied):
    proxy, address = proxied
    proxy.inject(Answer(503, retry_after="7", body=b"busy"), times=2, path="proxied")
    answers = [get(address) for _ in range(3)]
    assert [a.status_code for a in answers] == [503, 503, 200]
    assert (answers[0].headers["Retry-After"], answers[0].content) == ("7", b"busy")
    assert answers[2].content == DATA
    assert [r.status for r in proxy.requests] == [503, 503, 200]


def test_a_response_is_cut_at_the_byte_that_is_named(proxied):
    proxy, address = proxied
    assert get(address).content == DATA
    head = proxy.passed["response"] - len(DATA)
    proxy.inject(Cut(head + 5_000), times=1)
    with requests.get(address, timeout=20, stream=True) as answer:
        pieces = answer.iter_content(1000)
        assert b"".join(itertools.islice(pieces, 5)) == DATA[:5_000]
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            next(pieces)
    assert get(address).content == DATA


@pytest.mark.parametrize("of", ["request", "response"])
def test_all_connections_end_after_so_many_bytes(of, proxied):
    proxy, address = proxied
    get(address)
    size = proxy.passed[of]
    proxy.cut_after(size + size // 2, of, disconnect=True)
    get(address)
    with pytest.raises(requests.RequestException):
        get(address)
    with pytest.raises(requests.ConnectionError, match="refused"):
        get(address)
    assert proxy.passed[of] == 2 * size + size // 2
    proxy.connect()
    assert get(address).content == DATA


def test_one_bit_of_a_body_is_wrong(proxied):
    proxy, address = proxied
    proxy.inject(Flip(100_000), times=1)
    wrong = get(address).content
    assert [i for i in range(len(DATA)) if wrong[i] != DATA[i]] == [100_000]
    assert get(address).content == DATA


def get_nothing(address: str) -> None:
    with pytest.raises(requests.ConnectionError):
        get(address)


def test_a_delayed_request_holds_no_other_back(proxied):
    proxy, address = proxied
    proxy.inject(Delay(60), times=1, path="slow")
    slow = threading.Thread(target=get_nothing, args=(f"{address}?slow",))
    slow.start()
    while not proxy.requests:
        time.sleep(0.01)
    assert get(address).content == DATA
    proxy.disconnect()
    slow.join(timeout=20)
    assert not slow.is_alive()
