"""Wrong settings, and answers that are none of an object store's, are told of in one line."""

from __future__ import annotations

import gzip
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from minari_pipe.errors import ConfigError, DatasetExistsError, MinariPipeError, RemoteError
from minari_pipe.remotes import base, open_remote
from minari_pipe.remotes.base import PART, UploadSource
from minari_pipe.remotes.hosting import list_remote_datasets
from minari_pipe.testing.remotes import an_upload, publish
from tests.support.servers.gcs import gcs_server
from tests.support.servers.proxy import Answer, Proxy, fault_proxy
from tests.support.servers.running import entered
from tests.support.servers.s3 import s3_server
from tests.support.workspaces import minari_pipe

Variables = dict[str, str]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Variables]]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("s3")
        yield {
            "s3": stack.enter_context(s3_server(folder, "bucket")),
            "gs": stack.enter_context(gcs_server("bucket")),
        }


@pytest.fixture(params=["s3", "gs"])
def scheme(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def proxy(scheme: str, servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Before the server of this scheme, which clients in this process find through it."""
    monkeypatch.setattr(base, "_WAITS", (0.01, 0.01))
    with fault_proxy(servers[scheme]) as proxy, entered(proxy.variables):
        yield proxy


@pytest.fixture
def address(scheme: str, tmp_path: Path) -> str:
    return f"{scheme}://bucket/{tmp_path.name}"


def refusal(call: Callable[[], object], kind: type[MinariPipeError] = RemoteError) -> str:
    """The line that a refused call says."""
    with pytest.raises(kind) as raised:
        call()
    text = str(raised.value)
    assert len(text) < 700 and text.isprintable(), text
    return text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"AWS_PROFILE": "nobody"}, "profile (nobody) could not be found"),
        ({"AWS_CONFIG_FILE": "broken"}, "Unable to parse config file"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "missing: AWS_SECRET_ACCESS_KEY"),
        ({"AWS_DEFAULT_REGION": "no region"}, "no region"),
    ],
    ids=["a profile that is not there", "a broken file", "half of a key", "no region"],
)
def test_settings_of_the_aws_tools_that_are_wrong(changes, reason, servers, tmp_path) -> None:
    (tmp_path / "broken").write_text("[[[\n")
    changes = {k: str(tmp_path / v) if v == "broken" else v for k, v in changes.items()}
    variables = {k: v for k, v in ({**servers["s3"], **changes}).items() if v is not None}
    with entered(variables):
        assert reason in refusal(lambda: list_remote_datasets("s3://bucket"), MinariPipeError)


@pytest.mark.parametrize("content", ["no JSON", "{}", "[]", '{"type": "service_account"}'])
def test_a_token_that_is_no_key_of_google(content: str, tmp_path) -> None:
    (tmp_path / "key").write_text(content)
    with entered({}):
        text = refusal(lambda: open_remote("gs://bucket", str(tmp_path / "key")), ConfigError)
    assert "no service account key" in text


def test_a_login_page_is_not_taken_for_a_store_without_datasets(proxy, address) -> None:
    proxy.inject(Answer(200, body=b"<html><body>Please log in</body></html>"))
    assert address in refusal(lambda: list_remote_datasets(address))


@pytest.mark.parametrize("status", [302, 307, 412])
def test_answers_that_no_store_gives_to_readers_are_one_line(status, proxy, address) -> None:
    proxy.inject(Answer(status))
    text = refusal(lambda: list_remote_datasets(address))
    assert address in text
    assert "recursion" not in text


@pytest.mark.parametrize("scheme", ["gs"], indirect=True)
def test_a_file_that_google_refuses_as_if_it_were_written(proxy, address) -> None:
    proxy.inject(Answer(412))
    remote = open_remote(address)
    assert address in refusal(lambda: remote.retried(lambda: remote.read("steps-v0/a.json")))


def test_what_a_server_says_is_one_short_line_without_control_characters(
    proxy, scheme, address
) -> None:
    text = r"\u001b[31mred" if scheme == "gs" else "red\x7f"
    page = {
        "gs": f'{{"error": {{"code": 400, "message": "{text}\\n{"x" * 50_000}"}}}}',
        "s3": f"<Error><Code>A</Code><Message>{text}\n{'x' * 50_000}</Message></Error>",
    }
    proxy.inject(Answer(400, body=page[scheme].encode()))
    assert "red" in refusal(lambda: list_remote_datasets(address))


@pytest.mark.parametrize("status", [400, 403, 404])
@pytest.mark.parametrize("scheme", ["s3"], indirect=True)
def test_no_credential_that_a_store_repeats_is_shown(status, proxy, address, monkeypatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "SESSION")
    said = f"bad SESSION, {os.environ['AWS_SECRET_ACCESS_KEY']}"
    page = f"<Error><Code>A</Code><Message>{said}</Message></Error>"
    proxy.inject(Answer(status, body=page.encode()))
    assert "bad (secret), (secret)" in refusal(lambda: list_remote_datasets(address))


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize("scheme", ["gs"], indirect=True)
def test_an_unfinished_upload_that_the_server_has_dropped(status, proxy, address) -> None:
    upload = an_upload(size=PART + 1)
    proxy.inject(Answer(status), method="PUT", path="upload_id", min_size=1)
    text = refusal(lambda: publish(open_remote(address), upload))
    # Who knows it may write there.
    assert "run the upload again" in text and "upload_id" not in text
    proxy.clear()
    publish(open_remote(address), upload)
    assert open_remote(address).dataset_ids() == [upload.dataset_id]


def test_no_listed_name_that_leads_elsewhere_is_removed_before_an_upload() -> None:
    hostile = ["data/../../victim", "data/./a", "data//a"]
    files = [*an_upload().files, *hostile, "data/metadata.json"]
    content = an_upload().files["manifest.json"].read()
    upload = replace(an_upload(), files={"data/new.hdf5": UploadSource.of(b"")})
    found = base.left_over(files, upload, "s3://bucket", lambda: content)
    assert found == ["data/main_data.bin", "data/part/empty.bin", "manifest.json"]


@pytest.mark.parametrize("name", ["data/train.csv", "policies/mine.zip", "card/x.md"])
@pytest.mark.parametrize("manifest", [None, b"{}", b"of another upload"])
def test_files_that_are_no_dataset_are_neither_removed_nor_replaced(
    manifest: bytes | None, name: str, proxy, address
) -> None:
    remote, upload = open_remote(address), an_upload()
    mine = {name: b"mine"}
    if manifest is not None:
        other = an_upload(seed=1).files["manifest.json"].read()
        mine["manifest.json"] = manifest if manifest == b"{}" else other
    for file, content in mine.items():
        source = UploadSource.of(content)
        remote._put(f"{upload.dataset_id}/{file}", source, lambda n_bytes: None)
    told = refusal(lambda: publish(open_remote(address), upload), DatasetExistsError)
    first = name if manifest != b"{}" else min(mine)  # a text that is no manifest is the user's
    assert f"has files that are not of a dataset, such as {first}" in told
    for file, content in mine.items():
        assert open_remote(address).read(f"{upload.dataset_id}/{file}") == content


@pytest.mark.parametrize("scheme", ["s3"], indirect=True)
def test_an_upload_gives_up_no_unfinished_upload_of_another_file(proxy, address) -> None:
    remote, upload = open_remote(address), an_upload()
    place = f"{remote.folder}{upload.dataset_id}"
    for name in ("data/main_data.bin", "data/mine.csv", "raw/video.mp4"):
        where = {"Bucket": remote.bucket, "Key": f"{place}/{name}"}
        remote._call("create_multipart_upload", **where)
    publish(open_remote(address), upload)
    left = sorted(entry["Key"] for entry in remote._unfinished(f"{place}/"))
    assert left == [f"{place}/data/mine.csv", f"{place}/raw/video.mp4"]


@pytest.mark.parametrize(
    "content",
    [bytes(3_000_000), b"one\n--==0==\ntwo", b"ends with\r", b"\r\n", b"\n"],
    ids=["megabytes", "a boundary", "CR", "CRLF", "LF"],
)
def test_small_files_of_any_bytes_arrive(content: bytes, proxy, address) -> None:
    upload = an_upload()
    files = {**upload.files, "data/main_data.bin": UploadSource.of(content)}
    publish(open_remote(address), base.Upload(upload.dataset_id, files, upload.metadata, {}))
    found = open_remote(address).read(f"{upload.dataset_id}/data/main_data.bin")
    assert found == content


def test_a_store_that_sends_more_than_was_asked_for_is_not_listened_to(proxy, address) -> None:
    proxy.inject(Answer(206, body=bytes(5000)))
    remote = open_remote(address)
    assert "more than 1000 bytes" in refusal(
        lambda: remote.retried(lambda: remote.read("steps-v0/data/main_data.hdf5", 0, 1000))
    )


def test_a_file_of_unknown_length_ends(proxy, address, monkeypatch) -> None:
    monkeypatch.setattr(base, "MOST_BYTES", 1000)
    proxy.inject(Answer(200, body=bytes(5000)))
    remote = open_remote(address)
    assert "more than 1000 bytes" in refusal(
        lambda: remote.retried(lambda: remote.read(f"steps-v0/{base.METADATA}"))
    )


@pytest.mark.parametrize("scheme", ["gs"], indirect=True)
def test_an_answer_of_google_that_was_packed_unasked_is_not_unpacked(proxy, address) -> None:
    packed = gzip.compress(bytes(2**20), 9)
    proxy.inject(Answer(200, body=packed, packed="gzip"))
    assert open_remote(address).read(f"steps-v0/{base.METADATA}") == packed


def test_a_long_answer_about_an_error_is_told_at_once(proxy, address) -> None:
    """Addresses are searched for what nobody may see in the time that their length takes."""
    proxy.inject(Answer(403, body=b"://" * 200_000))
    start = time.process_time()
    refusal(lambda: list_remote_datasets(address))
    assert time.process_time() - start < 5


class Hub(BaseHTTPRequestHandler):
    """Answers every question with the same thing, which no Hub does."""

    headers_too: ClassVar[dict[str, str]] = {}
    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        for name, value in {**self.headers_too, "Content-Length": str(len(self.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    pytest.importorskip("huggingface_hub")
    kind = type("Hub", (Hub,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield kind
    server.shutdown()
    server.server_close()


def test_an_answer_of_the_hub_that_was_packed_unasked_is_not_unpacked(hub) -> None:
    hub.headers_too, hub.body = {"Content-Encoding": "gzip"}, gzip.compress(bytes(2**20), 9)
    assert "sent a compressed response (gzip)" in refusal(lambda: list_remote_datasets("hf://org"))


def test_an_answer_of_the_hub_ends(hub, monkeypatch) -> None:
    monkeypatch.setattr(base, "MOST_BYTES", 1000)
    hub.body = b"[" + b" " * 1000 + b"]"
    assert "more than 1000 bytes" in refusal(lambda: list_remote_datasets("hf://org"))


def test_a_list_of_the_hub_that_goes_on_elsewhere_is_not_followed(hub) -> None:
    hub.headers_too = {"Link": '<http://127.0.0.1:9/api/datasets?page=2>; rel="next"'}
    hub.body = b'[{"id": "org/x", "sha": "0"}]'
    text = refusal(lambda: list_remote_datasets("hf://org"))
    assert "continues at another address" in text and "127.0.0.1:9" in text


def test_warnings_of_the_hub_hold_nothing_that_a_terminal_would_obey(
    hub, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    hub.headers_too, hub.body = {"X-HF-Warning": "a;\x1b]0;title\x07 old"}, b"[]"
    assert list_remote_datasets("hf://org") == {}
    assert "old" in caplog.text and caplog.messages[0].isprintable()


def test_a_list_of_the_hub_ends(hub, monkeypatch) -> None:
    monkeypatch.setattr("minari_pipe.remotes.hub.client._MOST_PAGES", 5)
    hub.headers_too = {"Link": f'<{os.environ["HF_ENDPOINT"]}/api/datasets?page=2>; rel="next"'}
    hub.body = b'[{"id": "org/x", "sha": "0"}]'
    assert "does not end; the server may not be the Hub" in refusal(
        lambda: list_remote_datasets("hf://org")
    )


PAGES = {
    "s3": b"<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Name>bucket</Name>"
    b"<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
    b"</ListBucketResult>",
    "gs": b'{"kind": "storage#objects", "nextPageToken": "x"}',
}


def test_a_list_of_a_store_ends(scheme, proxy, address, monkeypatch) -> None:
    monkeypatch.setattr("minari_pipe.remotes.objects._MOST_PAGES", 5)
    proxy.inject(Answer(200, body=PAGES[scheme]))
    assert "the list of its files does not end" in refusal(lambda: list_remote_datasets(address))


@pytest.mark.parametrize("size", ["-1", "9" * 400])
def test_a_size_that_no_file_has_is_one_line(size, scheme, proxy, address) -> None:
    key = address.partition("://bucket/")[2] + "/x-v0/data/metadata.json"
    entry = {
        "s3": f"<Contents><Key>{key}</Key><Size>{size}</Size></Contents><IsTruncated>true<",
        "gs": f'"kind": "storage#objects", "items": [{{"name": "{key}", "size": "{size}"}}]',
    }
    start = {"s3": "<IsTruncated>true<", "gs": '"kind": "storage#objects"'}[scheme]
    page = PAGES[scheme].decode().replace(start, entry[scheme])
    proxy.inject(Answer(200, body=page.encode()))
    assert "no size of a file" in refusal(lambda: list_remote_datasets(address))


def test_a_page_of_a_list_of_a_store_ends(scheme, proxy, address, monkeypatch) -> None:
    monkeypatch.setattr(base, "MOST_BYTES", 1000)
    proxy.inject(Answer(200, body=PAGES[scheme] + b" " * 1000))
    assert "more than 1000 bytes" in refusal(lambda: list_remote_datasets(address))


LAST = "<NextPartNumberMarker>{}</NextPartNumberMarker><IsTruncated>true</IsTruncated>"


@pytest.mark.parametrize("scheme", ["s3"], indirect=True)
@pytest.mark.parametrize(
    "last", ["<IsTruncated>true</IsTruncated>", LAST.format(0), LAST.format(1)]
)
def test_a_list_of_parts_that_were_sent_ends(last, proxy, address) -> None:
    upload = an_upload(size=PART + 1)
    (name,) = (name for name, file in upload.files.items() if file.size > PART)
    key = f"{address.partition('://bucket/')[2]}/{upload.dataset_id}/{name}"
    began = (
        "<Upload><UploadId>a</UploadId><Initiated>2026-01-01T00:00:00Z</Initiated>"
        f"<Key>{key}</Key></Upload>"
    )
    space = "xmlns='http://s3.amazonaws.com/doc/2006-03-01/'"
    uploads = f"<ListMultipartUploadsResult {space}>{began}</ListMultipartUploadsResult>"
    parts = f"<ListPartsResult {space}>{last}</ListPartsResult>"
    proxy.inject(Answer(200, body=uploads.encode()), method="GET", path="uploads")
    proxy.inject(Answer(200, body=parts.encode()), method="GET", path="uploadId")
    with pytest.raises(MinariPipeError, match="dropped the unfinished upload"):
        publish(open_remote(address), upload)
    asked = [request for request in proxy.requests if "uploadId=a" in request.path]
    assert 1 <= sum(request.method == "GET" for request in asked) <= 2


class Elsewhere(BaseHTTPRequestHandler):
    """Another host, which counts what comes with a credential."""

    secrets: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.secrets.extend(
            f"{key}: {value}"
            for key, value in self.headers.items()
            if key.lower() in ("authorization", "x-amz-security-token", "x-token")
        )
        self.send_response(404)
        self.end_headers()

    do_PUT = do_POST = do_HEAD = do_GET  # noqa: N815  # as http.server calls them

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[str]:
    Elsewhere.secrets.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("scheme", ["s3"], indirect=True)
def test_no_credential_follows_a_store_to_another_host(
    status, proxy, address, elsewhere, monkeypatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "SESSION")
    proxy.inject(Answer(status, location=f"{elsewhere}/bucket"))
    refusal(lambda: list_remote_datasets(address))
    assert Elsewhere.secrets == []


@pytest.mark.parametrize("scheme", ["gs"], indirect=True)
def test_an_upload_that_is_to_go_on_at_another_host_does_not(proxy, address, elsewhere) -> None:
    proxy.inject(Answer(200, location=f"{elsewhere}/session"), method="POST", path="resumable")
    upload = an_upload(size=PART + 1)
    text = refusal(lambda: publish(open_remote(address), upload))
    assert f"continues an upload at another address, '{elsewhere}/session'" in text


def test_the_token_of_the_hub_goes_to_no_other_host(hub, elsewhere, monkeypatch) -> None:
    from huggingface_hub.utils import close_session, get_session

    from minari_pipe.remotes.hub.commits import _configured

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    client = open_remote("hf://org", "hf_secret")._client
    with _configured(client):
        headers = {"authorization": "Bearer hf_secret"}
        hub_host = client.endpoint.partition("://")[2]
        for way in ("", f"?x@{hub_host}", f"#x@{hub_host}"):
            with pytest.raises(RemoteError, match="redirects the token to another address"):
                get_session().post(f"{elsewhere}{way}/verify", headers=headers)
        get_session().put(f"{elsewhere}/signed", content=b"x")
        close_session()  # as huggingface_hub does after a lost connection
        with pytest.raises(RemoteError, match="redirects the token to another address"):
            get_session().post(f"{elsewhere}/verify", headers=headers)
    get_session().get(f"{client.endpoint}/api", headers=headers)
    assert Elsewhere.secrets == []


def test_a_password_in_the_address_of_the_hub_is_not_shown(hub, monkeypatch) -> None:
    shown = os.environ["HF_ENDPOINT"]
    monkeypatch.setenv("HF_ENDPOINT", shown.replace("//", "//ada:pa@ss@"))
    hub.body = b"no JSON"
    text = refusal(lambda: list_remote_datasets("hf://org"))
    assert "ada" not in text and "ss@" not in text
    assert open_remote("hf://org")._client.page("x") == f"{shown}/datasets/org/x"


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("http://127.0.0.1:99999", "http://127.0.0.1:99999"),
        ("http://ada:hunter2@host:x", "http://…@host:x"),
        ("http://ada:hun ter2@host", "http://…@host"),
        ("huggingface.co", "huggingface.co"),
        ("ftp://host/x?token=hunter2", "ftp://host/x?…"),
        ("http://", "http:"),
        ("http://[::1", "http://[::1"),
    ],
)
def test_an_endpoint_that_is_no_address_is_named_without_its_password(
    endpoint, shown, monkeypatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    text = refusal(lambda: list_remote_datasets("hf://org"), ConfigError)
    assert text == (
        f"HF_ENDPOINT is {shown!r}; expected an address such as https://huggingface.co, with a "
        "port from 0 to 65535 if it has one"
    )


def test_the_command_line_names_such_an_endpoint_too(tmp_path) -> None:
    """In a new process: ``huggingface_hub`` cannot be imported with it."""
    done = minari_pipe(tmp_path, "list", "hf://org", HF_ENDPOINT="http://127.0.0.1:99999")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: HF_ENDPOINT is 'http://127.0.0.1:99999'; expected")


@pytest.mark.parametrize(
    "text", ["http://ada:pa@ss@host/x", "ada:pa@ss@host:1", "GET http://ada:pa@ss@host failed"]
)
def test_a_password_with_an_at_sign_is_not_shown(text: str) -> None:
    shown = base.safe_text(text)
    assert "pa" not in shown and "ss" not in shown and "host" in shown


@pytest.mark.parametrize("scheme", ["gs"], indirect=True)
def test_a_status_that_is_no_number_is_one_line(proxy, address) -> None:
    proxy.inject(Answer(403, body='{"error": {"code": "²"}}'.encode()))
    assert address in refusal(lambda: list_remote_datasets(address))


def test_a_home_of_nobody_is_one_line() -> None:
    text = refusal(lambda: list_remote_datasets("~nobody-of-that-name/x"), ConfigError)
    assert "this machine has no user of that name" in text


@pytest.mark.parametrize(
    ("answer", "ask"),
    [
        *((answer, "head") for answer in ("[]", '"x"', "{}", '{"sha": 5}', "null")),
        *((answer, "tree") for answer in ('"x"', "{}", "[[]]", "null", "5")),
    ],
)
def test_an_answer_of_another_server_is_one_line(answer, ask, hub) -> None:
    hub.body = answer.encode()
    remote = open_remote("hf://org")
    call = partial(getattr(remote._client, ask), *("a", "0", "")[: 1 if ask == "head" else 3])
    assert "the server may not be the Hub" in refusal(lambda: remote.retried(call))


@pytest.mark.parametrize("size", ["5", -5, 5.5, None, [1], True])
def test_a_size_of_the_hub_that_is_none_is_one_line(size, hub) -> None:
    hub.body = json.dumps([{"type": "file", "path": "a/x", "size": size, "oid": "0"}]).encode()
    remote = open_remote("hf://org")
    text = refusal(lambda: remote.retried(lambda: remote._client.tree("a", "0", "")))
    assert f"the size of 'a/x' as {size!r}; the server may not be the Hub" in text
