"""Check DVC's settings in a workspace, which may come from a stranger, before DVC starts.

DVC merges the settings of the system, of the user, of ``.dvc/config`` and of
``.dvc/config.local``. The last two lie in the workspace, so they must not make DVC write outside
of it, or link published files to its cache. Settings of the user may do both.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from minari_pipe.core.files.changes import own_folder
from minari_pipe.core.files.fetch import DEFAULT_MACHINE, netrc_entries
from minari_pipe.core.files.links import entries_below, refuse_link
from minari_pipe.core.files.names import is_file_name
from minari_pipe.core.git import (
    may_have_come_with_git,
    refuse_tracked_links_once,
)
from minari_pipe.core.trust import how_to_trust_address, is_trusted_address
from minari_pipe.errors import ConfigError, MinariPipeError, TrustError
from minari_pipe.pipeline.generated_yaml import check_generated
from minari_pipe.pipeline.repository import is_tracked
from minari_pipe.pipeline.run import dvc_run_cache
from minari_pipe.pipeline.run.dvc_ignore import check_ignore_files
from minari_pipe.pipeline.workspace_links import (
    cache_types,
    check_folder,
    check_links,
    clone_of,
    follow_own_cache,
    part_hard_links,
    refuse_links_of_clone,
)

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo

_LINKS = {"hardlink", "symlink"}
#: Other keys make DVC use a remote as its cache, or open a cache of the user's to a group.
_CACHE_KEYS = {"dir", "type", "protected", "slow_link_warning", "verify"}
#: Other keys name hosts that get the user's credentials or files that name commands, set who may
#: read, or cause files to be overwritten.
_REMOTE_KEYS = {
    "connect_timeout",
    "jobs",
    "no_traverse",
    "read_timeout",
    "region",
    "timeout",
    "url",
    "verify",
}
#: Other keys make DVC write elsewhere: to a folder, another repository, or what a lock names.
_CORE_KEYS = {
    "analytics",
    "check_update",
    "checksum_jobs",
    "experiments",
    "interactive",
    "no_scm",
    "remote",
}

#: Entries of DVC's file system registry that are no protocols of remotes.
_NO_ADDRESSES = {"dvc", "git", "local", "memory"}


def quiet_dvc() -> None:
    """Turn off DVC's analytics and logging: its exceptions carry the messages.

    Without a terminal, DVC also puts colorama around stdout, which fails at a sequence that sets a
    title before it can be escaped.
    """
    import dvc.logger  # noqa: F401 - which does so, once
    from colorama import initialise

    if sys.stdout is initialise.wrapped_stdout:
        sys.stdout = initialise.orig_stdout
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    for name in ("dvc", "dvc_data", "dvc_objects"):
        log = logging.getLogger(name)
        log.propagate = False
        log.setLevel(logging.CRITICAL)  # DVC logs an error and also raises it


def repository(
    root: Path, declarations: Iterable[Path | str] = (), config: dict[str, Any] | None = None
) -> Repo:
    """Open DVC's repository of a workspace, but let DVC read only the given declarations.

    For most operations DVC reads every ``dvc.yaml`` and ``*.dvc`` below the root. These may name
    variables in files elsewhere, and hosts and commands that get the user's credentials.

    Args:
        root: the workspace.
        declarations: paths of the ``dvc.yaml`` and ``*.dvc`` files to read.
        config: settings that take precedence over those of DVC's files.

    Raises:
        ConfigError: by ``index``, if DVC's parser would hang or crash on a declaration.
    """
    from dvc.repo import Repo
    from dvc.repo.index import Index

    class Narrow(Repo):
        @functools.cached_property
        def index(self) -> Index:
            for path in declarations:
                check_generated(root / path)
                if Path(path).name == "dvc.yaml":
                    check_generated((root / path).with_name("dvc.lock"))
            found = [Index.from_file(self, str(path)) for path in declarations]
            return Index.from_indexes(self, found)

    return Narrow(str(root), _wait_for_lock=True, config=config)


def check_dvc(root: Path) -> None:
    """Raise if the workspace's own settings make DVC write or link elsewhere.

    Raises:
        LinkError: DVC would write through a link, or read through one that it did not make.
        TrustError: a setting of the workspace makes DVC write outside of it.
        ConfigError: a setting makes DVC link files of the workspace to its cache.
        MinariPipeError: DVC cannot read its settings.
    """
    from dvc.config import Config
    from dvc.exceptions import DvcException

    keep_site_cache()
    check_links(root)
    try:
        (root / ".dvcignore").read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise ConfigError(f"{root / '.dvcignore'} is no UTF-8 text: {error}") from error
    _see_every_edit()
    _refuse_paths_out()
    dvc_run_cache.guard()
    check_ignore_files()
    try:
        config = Config(str(root / ".dvc"))
        for level in Config.REPO_LEVELS:
            theirs = config.load_one(level)
            _check_type(theirs["cache"], config.files[level])
            remotes = theirs["remote"]
            # Skip the calls to git unless their answer matters.
            if remotes and (level == "repo" or not _is_own(root)):
                users = {
                    config.files[user]: config.load_one(user)["remote"]
                    for user in ("system", "global")
                }
                _check_remotes(remotes, users, config.files[level], root)
                _check_accounts(remotes, users, config.files[level])
            for key, value in _leads_out(theirs, root):
                if level == "repo" or not _is_own(root):
                    raise TrustError(
                        f"{config.files[level]}: {key} = {value} lets a file of the workspace make "
                        f"DVC write outside it; if you want that, run: "
                        f"dvc config --unset {key} && dvc config --global {key} {quote(value)}"
                    )
        if any(remote.get("auth") for remote in config["remote"].values()):
            _keep_credentials()
    except DvcException as exc:
        raise MinariPipeError(f"DVC: {exc}") from exc
    part_hard_links(root)
    follow_own_cache(root)  # before DVC makes the first link


def keep_site_cache() -> None:
    """Let DVC keep its databases in a folder of the user, unless the user's settings name another.

    DVC's default is a folder in which every user may write, and it unpickles what is there.

    Raises:
        TrustError: another user owns the folder.
    """
    from dvc.config import Config

    key, variable = "site_cache_dir", "DVC_SITE_CACHE_DIR"
    is_set = variable in os.environ or key in Config(validate=False)["core"]
    if not is_set and hasattr(os, "getuid"):
        # Not in the home: SQLite fails on some network file systems.
        place = own_folder(Path("/var/tmp") / f"minari_pipe-dvc-{os.getuid()}")
        os.environ[variable] = str(place)


@functools.cache
def _see_every_edit() -> None:
    """Patch DVC so that it sees edits that kept inode, size and modification time (``cp -p``).

    DVC takes such a file for unchanged. The time of its last status change gives it away, which is
    recorded here beside the hash; without a record, it must be that of the last modification.
    """
    from dvc_data.hashfile import state
    from dvc_objects.fs import LocalFileSystem

    unchecked = state.State._get

    def save(self: Any, path: str, fs: Any, hash_info: Any, info: Any = None) -> None:
        self.save_many([(path, hash_info, info)], fs)

    def save_many(self: Any, items: Iterable[tuple[str, Any, Any]], fs: Any) -> None:
        entries = []
        for path, hash_info, known in items if isinstance(fs, LocalFileSystem) else ():
            with suppress(FileNotFoundError):
                info = known or fs.info(path)
                entry = {
                    "version": self.HASH_VERSION,
                    "checksum": state._checksum(info),
                    "size": info["size"],
                    "hash_info": hash_info.to_dict(),
                    "ctime": info["created"],
                }
                entries.append((path, json.dumps(entry)))
        self.hashes.set_many(entries)

    def get(self: Any, path: str, raw: str, info: dict[str, Any]) -> Any:
        found = unchecked(self, path, raw, info)
        if found is None:
            return None
        known, now = json.loads(raw).get("ctime"), info["created"]
        is_same = abs(now - info["mtime"]) < 1 if known is None else now == known
        return found if is_same else None

    state.State.save = save  # type: ignore[method-assign]
    state.State.save_many = save_many  # type: ignore[method-assign]
    state.State._get = get  # type: ignore[method-assign]


@functools.cache
def _refuse_paths_out() -> None:
    """Patch DVC so that no name leads it out of the folder that the name belongs to.

    DVC joins names to paths unchecked, even ``..``: the names of a folder's files, the names that
    a remote lists, and hashes, as they stand in its cache, in a remote or in ``dvc.lock``. In the
    place of an object, a clone may hold a link. An output or dependency with settings of its own
    would be looked up wherever those lead.
    """
    from dvc.output import Output
    from dvc_data.hashfile.db.local import LocalHashFileDB
    from dvc_data.hashfile.tree import Tree
    from dvc_objects.db import ObjectDB
    from dvc_objects.fs import LocalFileSystem
    from dvc_objects.fs.base import FileSystem, ObjectFileSystem

    unchecked = Tree.add

    def add(self: Tree, key: tuple[str, ...], meta: Any, oid: Any) -> None:
        if not all(map(_are_file_names, key)):
            raise _refusal("a folder's file list", "/".join(key))
        unchecked(self, key, meta, oid)

    def checked_hash(path_of: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
        def oid_to_path(self: Any, oid: str) -> str:
            if _HASH.fullmatch(oid) is None:
                raise _refusal("a hash", oid)
            path = path_of(self, oid)
            if isinstance(self.fs, LocalFileSystem):
                refuse_tracked_links_once(self.path)
            if isinstance(self, LocalHashFileDB):
                # DVC writes through a link, and changes the mode of what it leads to. The folder
                # itself may be a link of the user's; in the layout before DVC 3, it is `self.path`.
                places = [path, os.path.dirname(path)]
                if self.path.endswith(f"files{os.sep}md5"):
                    places += [self.path, os.path.dirname(self.path)]
                for place in filter(os.path.islink, places):
                    refuse_link(place)
            return path

        return oid_to_path

    def checked_list(find: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
        def checked(self: Any, *args: Any, **kwargs: Any) -> Iterator[str]:
            for name in find(self, *args, **kwargs):
                if "/../" in f"{name}/":
                    raise _refusal("a remote's file list", name)
                yield name

        return checked

    unchecked_output = Output.__init__

    def output(self: Output, *args: Any, fs_config: Any = None, **kwargs: Any) -> None:
        if fs_config is not None:
            raise TrustError(
                f"a dvc.yaml or .dvc file sets fs_config ({', '.join(map(str, fs_config))}), which "
                f"could send your credentials elsewhere or run a command; remove it, and use dvc "
                f"remote modify --local instead"
            )
        unchecked_output(self, *args, **kwargs)

    Output.__init__ = output
    Tree.add = add  # type: ignore[method-assign]
    for database in (ObjectDB, LocalHashFileDB):
        database.oid_to_path = checked_hash(database.oid_to_path)  # type: ignore[method-assign]
    for system in (FileSystem, ObjectFileSystem):
        system.find = checked_list(system.find)  # type: ignore[method-assign]


#: A hash, or the prefix of one, which DVC uses to list objects.
_HASH = re.compile(r"[0-9a-f]+(\.dir)?")


def _are_file_names(path: str) -> bool:
    return all(map(is_file_name, path.replace("\\", "/").split("/")))


def _refusal(what: str, name: str) -> TrustError:
    return TrustError(
        f"{what}, in DVC's cache or remote or in dvc.lock, names {name!r}, which may lie outside "
        f"its folder or hold settings of git or DVC; it is neither read nor written. Remove the "
        f"stage's entry from dvc.lock, and any cache or remote that is not yours"
    )


@functools.cache
def _keep_credentials() -> None:
    """Patch DVC so that a redirect does not send an HTTP remote's credentials to another host."""
    from aiohttp import TraceConfig
    from dvc_http import HTTPFileSystem
    from yarl import URL

    unchecked = HTTPFileSystem._prepare_credentials

    async def check(session: Any, context: Any, redirect: Any) -> None:
        headers = redirect.response.headers
        target = redirect.url.join(URL(headers.get("Location") or headers.get("URI") or ""))
        if target.origin() != redirect.url.origin():
            raise TrustError(
                f"the DVC remote at {redirect.url.origin()} redirects to {target.origin()}, which "
                f"would receive the remote's password; set the remote's url to where its files are"
            )

    def prepared(self: HTTPFileSystem, **config: Any) -> dict[str, Any]:
        found = unchecked(self, **config)
        if found:
            trace = TraceConfig()
            trace.on_request_redirect.append(check)
            found["client_kwargs"]["trace_configs"] = [trace]
        return found

    HTTPFileSystem._prepare_credentials = prepared


#: The settings of each DVC remote in one settings file.
_Remotes = dict[str, dict[str, Any]]


def _check_remotes(remotes: _Remotes, users: dict[str, _Remotes], file: str, root: Path) -> None:
    """Raise if a file of the workspace sets more about a DVC remote than where it is.

    Args:
        remotes: the remotes that the file sets.
        users: the remotes that each of the user's own settings files sets.
        file: the file's name, for the message.
        root: the workspace.
    """
    for name, settings in remotes.items():
        for key in sorted(settings.keys() - _REMOTE_KEYS):
            value = str(settings[key])
            if key == "endpointurl" and is_trusted_address(value):
                continue
            raise TrustError(
                f"{file}: the remote {name!r} sets {key}, which could send your credentials "
                f"elsewhere or run a command; if you want that, run: "
                f"dvc remote modify --unset {quote(name)} {quote(key)} && "
                f"dvc remote modify --local {quote(name)} {quote(key)} {quote(value)}"
            )
        url = settings.get("url", "")
        if url.lower().startswith("remote:"):
            other = urlsplit(url).netloc.lower()
            is_users = any(other in known for known in users.values())
            if is_users or "url" not in remotes.get(other, {}):
                raise TrustError(
                    f"{file}: the url of the remote {name!r} is {url}, so DVC would use your own "
                    f"settings of {other!r} for it; if you want that, run: "
                    f"dvc remote modify --local {quote(name)} url {quote(url)}"
                )
        is_web = url.lower().startswith(("http:", "https:"))
        if is_web and DEFAULT_MACHINE in netrc_entries() and not is_trusted_address(url):
            raise TrustError(
                f"{file}: the remote {name!r} is at {url}, and DVC would send it the password of "
                f"the entry 'default' in your ~/.netrc; replace that entry with one per machine; "
                f"or {how_to_trust_address(url)}"
            )
    for name, settings in remotes.items():  # now every remote that another one lies in has a url
        if settings.get("url"):
            _check_place_of_remote(name, remotes, file, root)


def _check_place_of_remote(name: str, remotes: _Remotes, file: str, root: Path) -> None:
    """Raise if a remote is a folder in which a stranger's links may lead elsewhere."""
    from dvc.fs import get_fs_config, registry

    try:
        url = get_fs_config({"remote": remotes}, name=name)["url"]  # resolves `remote://` urls
    except RecursionError:
        raise ConfigError(f"{file}: the url of the remote {name!r} refers to itself") from None
    if re.match(r"\w+://", url) is None:
        _check_folder_remote(url, root)
    elif urlsplit(url).scheme not in (known := sorted(registry.keys() - _NO_ADDRESSES)):
        raise TrustError(
            f"{file}: the remote {name!r} is at {url}, which DVC treats as a folder of that name; "
            f"expected a folder's path, or an address that begins with one of "
            f"{', '.join(f'{scheme}://' for scheme in known)}"
        )


def _check_folder_remote(url: str, root: Path) -> None:
    """Raise if the folder that a file of the workspace names as its remote holds links.

    The folder may lie beside the workspace in the same clone, under any name. There may be a
    million objects, so each is checked where DVC uses it, see :func:`_refuse_paths_out`.

    Args:
        url: the url of the remote, as DVC resolves it.
        root: the workspace.

    Raises:
        LinkError: names the link.
    """
    from dvc.config_schema import RelPath

    if (place := _below(Path(url), root)) is not None:
        check_folder(place, root)
        return
    if isinstance(url, RelPath):
        clone = os.path.commonpath([url, root])
    else:
        clone = clone_of(root, root.parent)  # an archive may have brought both
    refuse_links_of_clone(url, clone)
    for folder in (url, f"{url}/files", f"{url}/files/md5"):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    refuse_link(entry.path)
    for _ in entries_below(f"{url}/runs"):
        pass  # entries_below checks each entry


def _check_accounts(remotes: _Remotes, users: dict[str, _Remotes], file: str) -> None:
    """Raise if the workspace sets a url for a remote of the user's: DVC would merge the two."""
    for own, known in users.items():
        for name, settings in known.items():
            url = remotes.get(name, {}).get("url")
            if url is not None and url != settings.get("url"):
                raise TrustError(
                    f"{file} gives the remote {name!r} the url {url}, which would "
                    f"receive the settings of a remote of that name in {own} "
                    f"({', '.join(sorted(settings))}); rename one of the two"
                )


def _check_type(cache: dict[str, Any], file: str) -> None:
    if links := [kind for kind in cache_types(cache) if kind in _LINKS]:
        raise ConfigError(
            f"{file}: cache type {', '.join(links)} lets a write to a published file change "
            f"DVC's cache; run: dvc config cache.type reflink,copy"
        )


def _leads_out(settings: dict[str, Any], root: Path) -> Iterator[tuple[str, str]]:
    """Yield the keys, with their values, that make DVC write outside of the workspace."""
    core, cache = settings["core"], settings["cache"]
    for key in sorted(core.keys() - _CORE_KEYS):
        yield f"core.{key}", str(core[key])
    for key in sorted(cache.keys() - _CACHE_KEYS):
        yield f"cache.{key}", str(cache[key])
    place = cache.get("dir")
    if place is None or is_trusted_address(str(place)):
        return
    below = None if "://" in place else _below(Path(place), root)
    if below is None:
        yield "cache.dir", str(place)
    else:
        check_folder(below, root)


def _below(path: Path, root: Path) -> Path | None:
    """Return ``path`` as a path below ``root``, even if it leads there by a link, or ``None``."""
    real = os.path.realpath(root)
    for folder in [*reversed(path.parents), path]:
        if os.path.realpath(folder) == real:
            rest = path.relative_to(folder)
            return None if os.pardir in rest.parts else root / rest
    return None


def check_receiver(repo: Repo, remote: str) -> None:
    """Raise if a push could send other workspaces' data to a remote that only a file names.

    A stranger's lock file may name any hash, and DVC pushes whatever its cache has of it.

    Args:
        repo: the repository that owns the cache.
        remote: the name of the remote.

    Raises:
        TrustError: the cache lies outside of the workspace, and the remote is not the user's.
    """
    root, cache = Path(repo.root_dir), Path(repo.cache.local.path)
    url = str(repo.config["remote"][remote]["url"])
    levels = ["system", "global", *(["local"] if _is_own(root) else [])]
    settings = [repo.config.load_one(level)["remote"].get(remote, {}) for level in levels]
    is_users = any("url" in own for own in settings)  # not just credentials
    if _below(cache, root) is None and not is_users and not is_trusted_address(url):
        raise TrustError(
            f"other workspaces may share DVC's cache {cache}, and a file of this workspace sets "
            f"{url} as the remote to push to: its lock file could push their files there; "
            f"{how_to_trust_address(url)}"
        )


def _is_own(root: Path) -> bool:
    """Return whether ``.dvc/config.local`` is the user's own: no clone has brought it.

    If git does not track ``.dvc/config``, an archive may have brought both.
    """
    local = root / ".dvc" / "config.local"
    return is_tracked(root, ".dvc/config") and not may_have_come_with_git(local)
