"""What the stand-in for the Hub keeps on disk: repositories, their commits and their files.

::

    FOLDER/tokens.json                        who may do what, see :class:`HubStore`
    FOLDER/lfs/SHA256                         the content of large files
    FOLDER/lfs/parts/SHA256/NUMBER            pieces of uploads that are under way
    FOLDER/blobs/OID                          the content of regular files, by their git oid
    FOLDER/repos/ORG/NAME/repo.json           {"private": ..., "created": ...}
    FOLDER/repos/ORG/NAME/refs.json           {branch: commit}
    FOLDER/repos/ORG/NAME/commits/SHA.json    parent, title, date, and all files

Every file is renamed into its place, and a commit counts when ``refs.json`` names it, so a server
that is killed leaves no half commit.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

ATTRIBUTES = "".join(
    f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n"
    for suffix in ("7z", "arrow", "bin", "gz", "h5", "npy", "npz", "parquet", "pkl", "pt", "zip")
)
"""Part of the ``.gitattributes`` that the Hub gives a new repository of datasets; no ``*.hdf5``."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}")


class RefusedError(Exception):
    """A request that the Hub answers with an error."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class Entry:
    """A file of a commit: its git oid, that of the pointer if it is a large file, and its size."""

    oid: str
    size: int
    sha256: str | None = None

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid


@dataclass(frozen=True)
class Commit:
    """One state of a repository."""

    sha: str
    parent: str | None
    title: str
    author: str
    date: str
    files: dict[str, Entry]


class HubStore:
    """Repositories below a folder.

    Attributes:
        tokens: for each token its user's ``name``, ``orgs``, which may be patterns, and ``role``,
            ``read`` or ``write``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        for part in ("lfs/parts", "blobs", "repos"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self.tokens: dict[str, dict[str, Any]] = json.loads((folder / "tokens.json").read_text())
        secret = folder / "secret"
        if not secret.exists():
            secret.write_text(secrets.token_hex(16))
        self._secret = secret.read_text().encode()

    # -- who asks ---------------------------------------------------------------------------

    def user(self, token: str | None) -> dict[str, Any] | None:
        """Whom a token belongs to; None is an anonymous user."""
        if token is None:
            return None
        if token not in self.tokens:
            raise RefusedError(401, "Invalid credentials in Authorization header")
        return self.tokens[token]

    def is_owner(self, name: str) -> bool:
        """Whether there is a user or an organization of this name."""
        return any(_belongs(name, user) for user in self.tokens.values())

    def may_read(self, repo: str, user: dict[str, Any] | None) -> bool:
        return not self._settings(repo)["private"] or _belongs(repo.split("/")[0], user)

    def check_write(self, owner: str, user: dict[str, Any] | None, what: str) -> None:
        if user is None:
            raise RefusedError(401, "Invalid username or password.")
        if not _belongs(owner, user):
            raise RefusedError(
                403, f"You don't have the rights to {what} under the namespace {owner!r}"
            )
        if user["role"] != "write":
            raise RefusedError(403, "This token has no write access: use a token with role write")

    def signature(self, path: str) -> str:
        """What makes an address of the storage valid, for whoever has it."""
        return hmac.new(self._secret, path.encode(), hashlib.sha256).hexdigest()[:32]

    # -- repositories -----------------------------------------------------------------------

    def repos(self, user: dict[str, Any] | None) -> list[str]:
        found = (
            path.parent.relative_to(self.folder / "repos").as_posix()
            for path in (self.folder / "repos").glob("*/*/repo.json")
        )
        return sorted(repo for repo in found if self.may_read(repo, user))

    def create(self, repo: str, *, private: bool, author: str) -> None:
        owner, name = repo.split("/")
        if not (_SAFE_NAME.fullmatch(owner) and _SAFE_NAME.fullmatch(name)):
            raise RefusedError(400, f"Invalid repo name: {repo}")
        with self._lock:
            path = self._repo(repo)
            if (path / "repo.json").exists():
                raise RefusedError(409, "You already created this dataset repo")
            (path / "commits").mkdir(parents=True)
            attributes = self.add_blob(ATTRIBUTES.encode())
            first = self._add_commit(
                repo, None, "initial commit", author, {".gitattributes": attributes}
            )
            _write(path / "refs.json", {"main": first.sha})
            _write(path / "repo.json", {"private": private, "created": _now()})

    def delete(self, repo: str) -> None:
        with self._lock:
            shutil.rmtree(self._repo(repo))

    def check_exists(self, repo: str, user: dict[str, Any] | None) -> None:
        """Refuse as the Hub does: it does not tell a private repository from a missing one."""
        if (self._repo(repo) / "repo.json").exists() and self.may_read(repo, user):
            return
        if user is None:
            raise RefusedError(401, "Invalid username or password.", "RepoNotFound")
        raise RefusedError(404, "Repository not found", "RepoNotFound")

    def settings(self, repo: str) -> dict[str, Any]:
        return self._settings(repo)

    def create_branch(self, repo: str, branch: str, start: str) -> None:
        with self._lock:
            refs = self._refs(repo)
            if branch in refs:
                raise RefusedError(409, f"Reference already exists: {branch}")
            _write(self._repo(repo) / "refs.json", refs | {branch: self.commit(repo, start).sha})

    # -- commits ----------------------------------------------------------------------------

    def commit(self, repo: str, revision: str) -> Commit:
        """The commit of a branch, or of its own name."""
        sha = self._refs(repo).get(revision, revision)
        if re.fullmatch(r"[0-9a-f]{40}", sha):
            path = self._repo(repo) / "commits" / f"{sha}.json"
            if path.exists():
                return _read_commit(path)
        raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def history(self, repo: str, revision: str) -> Iterator[Commit]:
        commit: Commit | None = self.commit(repo, revision)
        while commit is not None:
            yield commit
            commit = self.commit(repo, commit.parent) if commit.parent else None

    def apply(self, repo: str, branch: str, author: str, lines: list[dict[str, Any]]) -> Commit:
        """Make a commit of the lines of a request, wholly or not at all."""
        header = lines[0]["value"]
        with self._lock:
            refs = self._refs(repo)
            if branch not in refs:
                raise RefusedError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            parent = self.commit(repo, refs[branch])
            if header.get("parentCommit") not in (None, parent.sha):
                raise RefusedError(
                    412, "A commit has happened since. Please refresh and try again."
                )
            files = dict(parent.files)
            for line in lines[1:]:
                self._apply_line(files, line["key"], line["value"])
            commit = self._add_commit(repo, parent.sha, header["summary"], author, files)
            _write(self._repo(repo) / "refs.json", refs | {branch: commit.sha})
            return commit

    def _apply_line(self, files: dict[str, Entry], key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if any(part in ("", ".", "..", ".git") for part in path.rstrip("/").split("/")):
            raise RefusedError(400, f"Invalid path: {path}")
        if key == "file":
            files[path] = value["entry"]
        elif key == "lfsFile":
            if not self.lfs_path(value["oid"]).exists():
                raise RefusedError(
                    400, f"LFS pointer pointed to a file that does not exist: {path}"
                )
            files[path] = self._large(value["oid"])
        elif key == "deletedFile":
            if path not in files:
                raise RefusedError(404, "A file with this name doesn't exist", "EntryNotFound")
            del files[path]
        elif key == "deletedFolder":
            below = [name for name in files if name.startswith(path.rstrip("/") + "/")]
            if not below:
                raise RefusedError(404, "A folder with this name doesn't exist", "EntryNotFound")
            for name in below:
                del files[name]
        else:
            raise RefusedError(400, f"Unknown operation: {key}")

    def _add_commit(
        self, repo: str, parent: str | None, title: str, author: str, files: dict[str, Entry]
    ) -> Commit:
        content = {
            "parent": parent,
            "title": title,
            "author": author,
            "date": _now(),
            "files": {name: asdict(files[name]) for name in sorted(files)},
        }
        sha = hashlib.sha1(json.dumps(content).encode()).hexdigest()
        path = self._repo(repo) / "commits" / f"{sha}.json"
        _write(path, content)
        return _read_commit(path)

    # -- content ----------------------------------------------------------------------------

    def add_blob(self, content: bytes) -> Entry:
        oid = git_oid(content)
        path = self.folder / "blobs" / oid
        if not path.exists():
            _replace(path, content)
        return Entry(oid, len(content))

    def path_of(self, entry: Entry) -> Path:
        return self.lfs_path(entry.sha256) if entry.sha256 else self.folder / "blobs" / entry.oid

    def lfs_path(self, sha256: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise RefusedError(400, f"Invalid oid: {sha256}")
        return self.folder / "lfs" / sha256

    def part_path(self, sha256: str, number: int) -> Path:
        return self.folder / "lfs" / "parts" / self.lfs_path(sha256).name / str(number)

    def uses_lfs(self, commit: Commit, path: str, size: int, threshold: int) -> bool:
        """Whether a file becomes a large one: by its size, or by its name."""
        attributes = commit.files.get(".gitattributes")
        if attributes is None:
            return size > threshold
        lines = self.path_of(attributes).read_text().splitlines()
        patterns = [line.split()[0] for line in lines if "filter=lfs" in line]
        name = path.rsplit("/", 1)[-1]
        return size > threshold or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    def _large(self, sha256: str) -> Entry:
        size = self.lfs_path(sha256).stat().st_size
        return Entry(git_oid(pointer(sha256, size)), size, sha256)

    def _repo(self, repo: str) -> Path:
        return self.folder / "repos" / repo

    def _settings(self, repo: str) -> dict[str, Any]:
        return json.loads((self._repo(repo) / "repo.json").read_text())

    def _refs(self, repo: str) -> dict[str, str]:
        return json.loads((self._repo(repo) / "refs.json").read_text())


def git_oid(content: bytes) -> str:
    """The name that git gives this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def pointer(sha256: str, size: int) -> bytes:
    """What git itself has in the place of a large file."""
    return (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    )


@lru_cache(maxsize=64)
def _read_commit(path: Path) -> Commit:
    content = json.loads(path.read_text())
    files = {name: Entry(**entry) for name, entry in content.pop("files").items()}
    return Commit(sha=path.stem, files=files, **content)


def _belongs(owner: str, user: dict[str, Any] | None) -> bool:
    names = () if user is None else (user["name"], *user["orgs"])
    return any(fnmatch.fnmatchcase(owner, name) for name in names)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _write(path: Path, content: dict[str, Any]) -> None:
    _replace(path, json.dumps(content).encode())


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    beside.write_bytes(content)
    os.replace(beside, path)
