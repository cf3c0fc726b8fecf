"""The HTTP side of the stand-in for the Hub: ``python -m tests.support.servers.hub_http FOLDER``.

:mod:`tests.support.servers.hub` starts it, and says what it does not enforce. It prints its port
when it is ready. Two hosts answer on that port, as the Hub and the storage behind it do:
``127.0.0.1`` is the Hub, ``localhost`` the storage. The storage's addresses carry a signature and
are good for whoever has them; like S3 it refuses a request that has both that and a token.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit

import yaml

from tests.support.servers.hub_store import Commit, Entry, HubStore, RefusedError, pointer

PIECE = 1 << 20
ROUTES: list[tuple[str, re.Pattern[str], Callable[..., None]]] = []


def route(methods: str, pattern: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a handler; in its pattern ``REPO`` is ``org/name`` and ``REV`` a revision."""
    pattern = pattern.replace("REPO", r"(?P<repo>[^/]+/[^/]+?)").replace("REV", r"(?P<rev>[^/]+)")

    def register(handler: Callable[..., None]) -> Callable[..., None]:
        for method in methods.split():
            ROUTES.append((method, re.compile(pattern), handler))
        return handler

    return register


class Hub(ThreadingHTTPServer):
    """The server with what all its requests share."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, port: int, options: argparse.Namespace) -> None:
        self.store = HubStore(folder)
        self.options = options
        self.faults: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.log = open(folder / "requests.log", "a", buffering=1)  # noqa: SIM115
        super().__init__(("127.0.0.1", port), Request)

    def fault(self, line: str) -> dict[str, Any] | None:
        """The answer that a test has ordered for this request, once as often as it said."""
        with self.lock:
            for fault in self.faults:
                if fault["times"] > 0 and re.search(fault["pattern"], line):
                    if fault["skip"] > 0:
                        fault["skip"] -= 1
                        return None
                    fault["times"] -= 1
                    return fault
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no error of the server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Request(BaseHTTPRequestHandler):
    """One connection; each method that is routed answers a request of it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    # -- the frame of every request ---------------------------------------------------------

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.has_body = True
        self.answer()
        self.wfile.flush()

    def answer(self) -> None:
        self.store, self.is_lost = self.server.store, False
        address = urlsplit(self.path)
        self.query = parse_qs(address.query)
        host = self.headers.get("Host", "")
        self.base = f"http://{host}"
        self.storage = f"http://localhost:{host.rpartition(':')[2]}"
        is_storage = host.startswith("localhost:")
        try:
            is_control = address.path.startswith("/control/")
            fault = None if is_control else self.server.fault(f"{self.command} {self.path}")
            self.is_lost = fault is not None and fault["status"] == 0
            if fault and fault["status"] < 0:
                time.sleep(-fault["status"])
                self.close_connection = True
                return
            if fault and fault["status"]:
                self.drain()
                self.send(fault["status"], fault["body"].encode(), fault["headers"])
                return
            if is_storage:
                self.check_signature(address.path)
            else:
                header = self.headers.get("Authorization")
                token = header.removeprefix("Bearer ") if header else None
                self.user = self.store.user(token)
            for method, pattern, handler in ROUTES:
                match = pattern.fullmatch(address.path)
                if match and method == self.command.replace("HEAD", "GET"):
                    if is_storage != address.path.startswith("/storage/"):
                        break
                    handler(self, **{k: v and unquote(v) for k, v in match.groupdict().items()})
                    return
            raise RefusedError(404, "Sorry, we can't find the page you are looking for.")
        except RefusedError as refused:
            self.drain()
            headers = {"X-Error-Message": refused.message}
            if refused.code:
                headers["X-Error-Code"] = refused.code
            self.send_json({"error": refused.message}, refused.status, headers)

    def check_signature(self, path: str) -> None:
        if self.headers.get("Authorization"):
            raise RefusedError(400, "Only one auth mechanism allowed")
        signature = self.query.get("signature", [""])[0]
        if signature != self.store.signature(f"{self.command.replace('HEAD', 'GET')} {path}"):
            raise RefusedError(403, "SignatureDoesNotMatch")

    def signed(self, method: str, path: str) -> str:
        return f"{self.storage}{path}?signature={self.store.signature(f'{method} {path}')}"

    def body(self) -> Iterator[bytes]:
        """Yield the body of the request in pieces, once."""
        if not self.has_body:
            return
        self.has_body = False
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                yield self.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            piece = self.read(min(left, PIECE))
            left -= len(piece)
            yield piece

    def read(self, size: int) -> bytes:
        piece = self.rfile.read(size)
        if len(piece) < size:
            raise ConnectionError("the client has gone")
        return piece

    def drain(self) -> None:
        for _ in self.body():
            pass

    def json(self) -> Any:
        return json.loads(b"".join(self.body()))

    def send(
        self,
        status: int,
        content: bytes | BinaryIO,
        headers: dict[str, str],
        size: int | None = None,
    ) -> None:
        if self.is_lost:
            self.close_connection = True
            return
        size = len(content) if isinstance(content, bytes) else size
        self.server.log.write(f"{self.command} {self.path} {status}\n")
        self.send_response_only(status)
        self.send_header("X-Request-Id", f"Root={secrets.token_hex(8)}")
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command == "HEAD":
            return
        if isinstance(content, bytes):
            self.wfile.write(content)
            return
        left = size or 0
        while left:
            piece = content.read(min(left, PIECE))
            self.wfile.write(piece)
            left -= len(piece)

    def send_json(
        self, content: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self.drain()
        kind = {"Content-Type": "application/json; charset=utf-8"}
        self.send(status, json.dumps(content).encode(), kind | (headers or {}))

    def send_pages(self, items: list[Any], size: int) -> None:
        """Send one page of a list, with the address of the next one in the ``Link`` header."""
        start = int(self.query.get("cursor", ["0"])[0])
        headers = {}
        if start + size < len(items):
            address = urlsplit(self.path)
            rest = [(k, v) for k, v in parse_qsl(address.query) if k != "cursor"]
            query = urlencode([*rest, ("cursor", str(start + size))])
            headers["Link"] = f'<{self.base}{address.path}?{query}>; rel="next"'
        self.send_json(items[start : start + size], headers=headers)

    def commit(self, repo: str, rev: str | None) -> Commit:
        self.store.check_exists(repo, self.user)
        return self.store.commit(repo, rev or "main")

    def check_write(self, repo: str) -> None:
        self.store.check_exists(repo, self.user)
        self.store.check_write(repo.split("/")[0], self.user, f"change {repo}")

    # -- repositories -----------------------------------------------------------------------

    @route("GET", "/api/whoami-v2")
    def who_am_i(self) -> None:
        if self.user is None:
            raise RefusedError(401, "Invalid username or password.")
        orgs = [{"type": "org", "name": name} for name in self.user["orgs"]]
        access = {"accessToken": {"displayName": "test", "role": self.user["role"]}}
        self.send_json({"type": "user", "name": self.user["name"], "orgs": orgs, "auth": access})

    @route("GET", "/api/(?:organizations|users)/(?P<name>[^/]+)/overview")
    def overview(self, name: str) -> None:
        if not self.store.is_owner(name):
            raise RefusedError(404, "This organization does not exist")
        self.send_json({"name": name, "fullname": name})

    @route("POST", "/api/validate-yaml")
    def validate_yaml(self) -> None:
        errors = card_errors(self.json()["content"])
        self.send_json({"errors": errors, "warnings": []}, 400 if errors else 200)

    @route("POST", "/api/repos/create")
    def create_repo(self) -> None:
        asked = self.json()
        if self.user is None:
            raise RefusedError(401, "Invalid username or password.")
        owner = asked.get("organization") or self.user["name"]
        if asked.get("type") != "dataset":
            raise RefusedError(400, "This server has repositories of datasets only")
        self.store.check_write(owner, self.user, "create a dataset")
        repo = f"{owner}/{asked['name']}"
        url = f"{self.base}/datasets/{repo}"
        private = asked.get("private") or asked.get("visibility") == "private"
        try:
            self.store.create(repo, private=bool(private), author=self.user["name"])
        except RefusedError as refused:
            if refused.status != 409:
                raise
            self.send_json({"error": refused.message, "url": url}, 409)
        else:
            self.send_json({"url": url, "name": repo, "id": repo})

    @route("DELETE", "/api/repos/delete")
    def delete_repo(self) -> None:
        asked = self.json()
        repo = f"{asked['organization']}/{asked['name']}"
        self.check_write(repo)
        self.store.delete(repo)
        self.send_json({})

    @route("GET", "/api/datasets")
    def list_repos(self) -> None:
        author = self.query.get("author", [None])[0]
        words = [word.lower() for word in self.query.get("search", [])]
        repos = [
            repo
            for repo in self.store.repos(self.user)
            if author in (None, repo.split("/")[0])
            and all(word in repo.split("/")[1].lower() for word in words)
        ]
        limit = int(self.query.get("limit", [self.server.options.page_size])[0])
        details = {"sha", "private", "lastModified", "author", "createdAt"}
        wanted = set(self.query.get("expand", details)) | {"id", "_id"}
        infos = (self.info(repo, self.store.commit(repo, "main")) for repo in repos)
        self.send_pages(
            [{k: v for k, v in info.items() if k in wanted} for info in infos],
            min(limit, self.server.options.page_size),
        )

    @route("GET", "/api/datasets/REPO(?:/revision/REV)?")
    def repo_info(self, repo: str, rev: str | None) -> None:
        commit = self.commit(repo, rev)
        info = self.info(repo, commit)
        if "blobs" in self.query:
            info["siblings"] = [
                {"rfilename": path, "size": entry.size, "blobId": entry.oid, **lfs(entry, "sha256")}
                for path, entry in commit.files.items()
            ]
        if "expand" in self.query:
            info = {k: v for k, v in info.items() if k in {"id", "_id", *self.query["expand"]}}
        self.send_json(info)

    def info(self, repo: str, commit: Commit) -> dict[str, Any]:
        settings = self.store.settings(repo)
        return {
            "_id": hashlib.sha1(repo.encode()).hexdigest()[:24],
            "id": repo,
            "author": repo.split("/")[0],
            "sha": commit.sha,
            "private": settings["private"],
            "gated": False,
            "disabled": False,
            "createdAt": settings["created"],
            "lastModified": commit.date,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [{"rfilename": path} for path in commit.files],
        }

    @route("POST", "/api/datasets/REPO/branch/REV")
    def create_branch(self, repo: str, rev: str) -> None:
        self.check_write(repo)
        self.store.create_branch(repo, rev, self.json().get("startingPoint", "main"))
        self.send_json({})

    @route("GET", "/api/datasets/REPO/commits/REV")
    def list_commits(self, repo: str, rev: str) -> None:
        self.commit(repo, rev)
        commits = [
            {
                "id": commit.sha,
                "title": commit.title,
                "message": "",
                "date": commit.date,
                "authors": [{"user": commit.author}],
            }
            for commit in self.store.history(repo, rev)
        ]
        self.send_pages(commits, self.server.options.page_size)

    # -- reading ----------------------------------------------------------------------------

    @route("GET", "/api/datasets/REPO/tree/REV(?:/(?P<path>.*))?")
    def tree(self, repo: str, rev: str, path: str | None) -> None:
        below = f"{path.strip('/')}/" if path else ""
        recursive = self.query.get("recursive", ["false"])[0].lower() == "true"
        found: dict[str, dict[str, Any]] = {}
        for name, entry in self.commit(repo, rev).files.items():
            if not name.startswith(below):
                continue
            parts = name.removeprefix(below).split("/")
            for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
                folder = below + "/".join(parts[:depth])
                found.setdefault(folder, folder_info(folder))
            if recursive or len(parts) == 1:
                found[name] = file_info(name, entry)
        if below and not found:
            raise RefusedError(404, f"{path} does not exist on {rev!r}", "EntryNotFound")
        self.send_pages([found[name] for name in sorted(found)], self.server.options.page_size)

    @route("POST", "/api/datasets/REPO/paths-info/REV")
    def paths_info(self, repo: str, rev: str) -> None:
        commit = self.commit(repo, rev)
        paths = parse_qs(b"".join(self.body()).decode()).get("paths", [])
        if len(paths) > 1000:
            raise RefusedError(413, "too many parameters")
        found = []
        for path in paths:
            if path in commit.files:
                found.append(file_info(path, commit.files[path]))
            elif any(name.startswith(f"{path}/") for name in commit.files):
                found.append(folder_info(path))
        self.send_json(found)

    @route("GET", "/datasets/REPO/resolve/REV/(?P<path>.+)")
    def resolve(self, repo: str, rev: str, path: str) -> None:
        """Redirect to the content: that of large files lies in the storage."""
        commit, entry = self.find(repo, rev, path)
        if entry.sha256 is None:
            place = f"/api/resolve-cache/datasets/{repo}/{commit.sha}/{quote(path)}"
            self.send(307, b"", self.file_headers(commit, entry) | {"Location": place})
            return
        headers = self.file_headers(commit, entry) | {
            "Location": self.signed("GET", f"/storage/{entry.sha256}"),
            "X-Linked-Size": str(entry.size),
            "X-Linked-ETag": f'"{entry.sha256}"',
        }
        self.send(302, b"", headers)

    @route("GET", "/api/resolve-cache/datasets/REPO/REV/(?P<path>.+)")
    def cached(self, repo: str, rev: str, path: str) -> None:
        commit, entry = self.find(repo, rev, path)
        headers = self.file_headers(commit, entry)
        is_text = path.endswith((".json", ".md", ".txt"))
        if is_text and "gzip" in self.headers.get("Accept-Encoding", ""):
            content = gzip.compress(self.store.path_of(entry).read_bytes(), 1)
            self.send(200, content, headers | {"Content-Encoding": "gzip"})
        else:
            self.send_file(entry, headers)

    @route("GET", "/storage/(?P<sha256>[0-9a-f]{64})")
    def stored(self, sha256: str) -> None:
        path = self.store.lfs_path(sha256)
        if not path.exists():
            raise RefusedError(404, "NoSuchKey")
        entry = Entry("", path.stat().st_size, sha256)
        self.send_file(entry, {"ETag": f'"{sha256}"'})

    def find(self, repo: str, rev: str, path: str) -> tuple[Commit, Entry]:
        commit = self.commit(repo, rev)
        if path not in commit.files:
            raise RefusedError(404, "Entry not found", "EntryNotFound")
        return commit, commit.files[path]

    def file_headers(self, commit: Commit, entry: Entry) -> dict[str, str]:
        return {"X-Repo-Commit": commit.sha, "ETag": f'"{entry.etag}"'}

    def send_file(self, entry: Entry, headers: dict[str, str]) -> None:
        headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        status, first, last = 200, 0, entry.size - 1
        if asked and any(asked.groups()):
            status = 206
            if asked[1]:
                first, last = int(asked[1]), min(int(asked[2] or last), last)
            else:
                first = max(0, entry.size - int(asked[2]))
            if first > last:
                self.send(416, b"", {"Content-Range": f"bytes */{entry.size}"})
                return
            headers["Content-Range"] = f"bytes {first}-{last}/{entry.size}"
        with open(self.store.path_of(entry), "rb") as file:
            file.seek(first)
            self.send(status, file, headers, size=last + 1 - first)

    # -- writing ----------------------------------------------------------------------------

    @route("POST", "/api/datasets/REPO/preupload/REV")
    def preupload(self, repo: str, rev: str) -> None:
        self.check_write(repo)
        commit = self.commit(repo, rev)
        files = self.json()["files"]
        if len(files) > 256:
            raise RefusedError(413, "too many files")
        answers = []
        for file in files:
            path, size = file["path"], file["size"]
            large = self.store.uses_lfs(commit, path, size, self.server.options.lfs_threshold)
            answer = {"path": path, "uploadMode": "lfs" if large else "regular"}
            if path in commit.files:
                answer["oid"] = commit.files[path].etag
            answers.append(answer | {"shouldIgnore": False})
        self.send_json({"files": answers, "commitOid": commit.sha})

    @route("POST", r"/datasets/REPO\.git/info/lfs/objects/batch")
    def lfs_batch(self, repo: str) -> None:
        self.check_write(repo)
        options, objects = self.server.options, []
        asked = self.json()
        multipart = "multipart" in asked["transfers"]
        for item in asked["objects"]:
            oid, size = item["oid"], item["size"]
            answer = {"oid": oid, "size": size}
            if not self.store.lfs_path(oid).exists():
                verify = {"href": f"{self.base}/api/datasets/{repo}/lfs/verify"}
                upload: dict[str, Any] = {"href": self.signed("PUT", f"/storage/{oid}")}
                if multipart and size > options.part_size:
                    n_parts = -(-size // options.part_size)
                    header = {
                        str(number): self.signed("PUT", f"/storage/{oid}/{number}")
                        for number in range(1, n_parts + 1)
                    }
                    upload["header"] = header | {"chunk_size": str(options.part_size)}
                    upload["href"] = self.signed("POST", f"/storage/{oid}/complete")
                answer["actions"] = {"upload": upload, "verify": verify}
            objects.append(answer)
        kind = {"Content-Type": "application/vnd.git-lfs+json"}
        transfer = "multipart" if multipart else "basic"
        self.send_json({"transfer": transfer, "objects": objects}, headers=kind)

    @route("PUT", "/storage/(?P<sha256>[0-9a-f]{64})")
    def put(self, sha256: str) -> None:
        self.keep(self.body(), sha256)
        self.send(200, b"", {"ETag": f'"{sha256[:32]}"'})

    @route("PUT", "/storage/(?P<sha256>[0-9a-f]{64})/(?P<number>[0-9]+)")
    def put_part(self, sha256: str, number: str) -> None:
        path = self.store.part_path(sha256, int(number))
        path.parent.mkdir(exist_ok=True)
        etag = receive(self.body(), path, hashlib.md5())
        self.send(200, b"", {"ETag": f'"{etag}"'})

    @route("POST", "/storage/(?P<sha256>[0-9a-f]{64})/complete")
    def complete(self, sha256: str) -> None:
        numbers = [part["partNumber"] for part in self.json()["parts"]]
        paths = [self.store.part_path(sha256, number) for number in numbers]
        if not paths or not all(path.exists() for path in paths):
            raise RefusedError(400, "InvalidPart")
        self.keep((path.read_bytes() for path in paths), sha256)
        shutil.rmtree(paths[0].parent, ignore_errors=True)
        self.send_json({})

    def keep(self, pieces: Iterator[bytes], sha256: str) -> None:
        """Take the content of a large file, if it is what its name says."""
        target = self.store.lfs_path(sha256)
        beside = target.with_name(f".{sha256}.{secrets.token_hex(4)}")
        try:
            if receive(pieces, beside, hashlib.sha256()) != sha256:
                raise RefusedError(400, "The content does not have the sha256 of its oid")
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)

    @route("POST", "/api/datasets/REPO/lfs/verify")
    def lfs_verify(self, repo: str) -> None:
        self.check_write(repo)
        asked = self.json()
        path = self.store.lfs_path(asked["oid"])
        if not path.exists() or path.stat().st_size != asked["size"]:
            raise RefusedError(404, "The object was not uploaded")
        self.send_json({})

    @route("POST", "/api/datasets/REPO/commit/REV")
    def make_commit(self, repo: str, rev: str) -> None:
        self.check_write(repo)
        lines = [json.loads(line) for line in b"".join(self.body()).splitlines()]
        for line in lines:
            if line["key"] != "file":
                continue
            value = line["value"]
            content = base64.b64decode(value.pop("content"))
            if value["path"] == "README.md" and card_errors(content.decode(errors="replace")):
                raise RefusedError(400, "Invalid metadata in README.md")
            value["entry"] = self.store.add_blob(content)
        assert self.user is not None  # checked above
        commit = self.store.apply(repo, rev, self.user["name"], lines)
        url = f"{self.base}/datasets/{repo}/commit/{commit.sha}"
        self.send_json({"success": True, "commitOid": commit.sha, "commitUrl": url})

    # -- for tests --------------------------------------------------------------------------

    @route("POST", "/control/faults")
    def order_fault(self) -> None:
        with self.server.lock:
            self.server.faults.append(self.json())
        self.send_json({})

    @route("DELETE", "/control/faults")
    def forget_faults(self) -> None:
        with self.server.lock:
            self.server.faults.clear()
        self.send_json({})


def receive(pieces: Iterator[bytes], path: Path, digest: Any) -> str:
    """Write pieces to a file; their hash."""
    with open(path, "wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def card_errors(text: str) -> list[dict[str, str]]:
    """What the Hub would refuse in the YAML that a README begins with."""
    match = re.match(r"---\r?\n(.*?)\r?\n---(\r?\n|$)", text, re.DOTALL)
    if match is None:
        return []
    try:
        content = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        return [{"message": f"YAML: {error}"}]
    if content is not None and not isinstance(content, dict):
        return [{"message": "YAML metadata must be an object"}]
    return []


def folder_info(path: str) -> dict[str, Any]:
    oid = hashlib.sha1(path.encode()).hexdigest()
    return {"type": "directory", "path": path, "size": 0, "oid": oid}


def file_info(path: str, entry: Entry) -> dict[str, Any]:
    return {
        "type": "file",
        "path": path,
        "size": entry.size,
        "oid": entry.oid,
        **lfs(entry, "oid"),
    }


def lfs(entry: Entry, key: str) -> dict[str, Any]:
    if entry.sha256 is None:
        return {}
    size = len(pointer(entry.sha256, entry.size))
    return {"lfs": {key: entry.sha256, "size": entry.size, "pointerSize": size}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--page-size", type=int, default=1000, help="entries of a list at once")
    parser.add_argument("--lfs-threshold", type=int, default=10 << 20, help="bytes")
    parser.add_argument("--part-size", type=int, default=64 << 20, help="bytes, larger in parts")
    options = parser.parse_args()
    with Hub(options.folder, options.port, options) as hub:
        print(hub.server_port, flush=True)
        hub.serve_forever()


if __name__ == "__main__":
    main()
