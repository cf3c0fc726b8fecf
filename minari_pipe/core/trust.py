"""Decide what may be executed: trust comes from the person at the keyboard, never from a file.

Configs, metadata, checkpoints and demonstrations are shared between strangers, so the names and
hashes in them are compared with what the user trusts before anything is imported or unpickled. Only
the user can make a module or a checkpoint trusted, in one of three ways:

* a command-line flag (``--trust-module NAME``, ``--trust SHA256``), which sets
* an environment variable: ``MINARI_PIPE_TRUSTED_MODULES``, ``MINARI_PIPE_TRUSTED_SHA256``
  (values separated by commas), or
* a line in the user-level file ``~/.config/minari_pipe/trusted_modules`` or ``trusted_sha256``
  (``$XDG_CONFIG_HOME`` is honoured; a ``#`` at the start of a line or after a space starts a
  comment).
"""

from __future__ import annotations

import glob
import importlib
import json
import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from minari_pipe.errors import ConfigError, TrustError

MODULES_VARIABLE = "MINARI_PIPE_TRUSTED_MODULES"
SHA256_VARIABLE = "MINARI_PIPE_TRUSTED_SHA256"
#: places to which a run may send its results, and outside files that it may read
ADDRESSES_VARIABLE = "MINARI_PIPE_TRUSTED_ADDRESSES"
ADDRESSES_FILE = "trusted_addresses"
#: files that the command line of the current run names, which it may read, and addresses of the
#: engine, to which it may send its work; JSON lists
NAMED_FILES_VARIABLE = "MINARI_PIPE_NAMED_FILES"
NAMED_ADDRESSES_VARIABLE = "MINARI_PIPE_NAMED_ADDRESSES"

#: absolute paths that the config of this process names
_named: set[str] = set()


def user_config_dir() -> Path:
    """Return the user's own configuration directory of this package."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification says to ignore relative values.
    return Path(base if os.path.isabs(base) else "~/.config").expanduser() / "minari_pipe"


def _names(variable: str, file_name: str) -> frozenset[str]:
    names = _in_variable(os.environ.get(variable, ""))
    path = user_config_dir() / file_name
    if path.is_file():
        try:
            names |= _in_file(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise TrustError(f"{path} is not UTF-8 text; expected one name per line") from error
    return names


def _in_variable(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",")) - {""}


def _in_file(text: str) -> frozenset[str]:
    lines = text.splitlines()
    return frozenset(re.split(r"(?:^|\s)#", line)[0].strip() for line in lines) - {""}


def add_trust(modules: Collection[str], sha256s: Collection[str]) -> None:
    """Trust what command-line flags name, in this process and its child processes."""
    for variable, values in ((MODULES_VARIABLE, modules), (SHA256_VARIABLE, sha256s)):
        if values:
            known = filter(None, [os.environ.get(variable)])
            os.environ[variable] = ",".join([*known, *values])


def trusted_modules() -> frozenset[str]:
    """Return the names of trusted modules; a name covers the module and everything below it."""
    return _names(MODULES_VARIABLE, "trusted_modules")


def is_trusted_module(name: str, *, trusted: Collection[str] = ()) -> bool:
    """Return whether ``name`` is a module that the user trusts, or lies below one."""
    parts = name.split(".")
    known = trusted_modules() | frozenset(trusted)
    return any(".".join(parts[: i + 1]) in known for i in range(len(parts)))


def is_trusted_sha256(sha256: str) -> bool:
    """Return whether the user trusts the file with this sha256 to be unpickled in full."""
    return sha256.lower() in {s.lower() for s in _names(SHA256_VARIABLE, "trusted_sha256")}


def is_trusted_address(address: str, *, exactly: bool = False) -> bool:
    """Return whether the user trusts an address, or a parent of it.

    Of a file, only the path to which links lead counts. A link in the trusted path itself is not
    followed: a stranger's clone may hold one, and the user would trust all that it leads to.

    Args:
        address: as the user would write it; file paths are absolute.
        exactly: ignore trust in a parent.

    Example:
        >>> os.environ["MINARI_PIPE_TRUSTED_ADDRESSES"] = "s3://bucket"
        >>> [is_trusted_address(f"s3://{place}") for place in ("bucket/folder", "buckets")]
        [True, False]
        >>> del os.environ["MINARI_PIPE_TRUSTED_ADDRESSES"]
    """
    known = _names(ADDRESSES_VARIABLE, ADDRESSES_FILE)
    path = _path(address)
    if path is None:
        return address in known or (
            not exactly and any(_lies_below(address, place) for place in known)
        )
    real = Path(os.path.realpath(path))
    places = [place for place in map(_path, known) if place is not None]
    return any(str(real) == place if exactly else real.is_relative_to(place) for place in places)


def how_to_trust_address(address: str, *, word: str = "") -> str:
    """Return the sentence that explains how to trust an address or a file that a file names.

    A stranger chose the name, so a way is offered only if it trusts nothing else, and runs nothing
    in a shell.

    Args:
        address: the address, or the absolute path of the file.
        word: the override by which the command line can name it.
    """
    path = _path(address)
    name = address if path is None else os.path.realpath(path)
    ways = []
    if re.fullmatch(r"(?:[\w.:/@%+=\[\]-]|\$\{oc\.env:\w+\})+", word):
        ways.append(f"pass {quote(word)} on the command line")
    if _in_variable(name) == {name}:
        ways.append(f"set {ADDRESSES_VARIABLE}={quote(name)}")
    if _in_file(name) == {name}:
        ways.append(f"add the line {name} to {user_config_dir() / ADDRESSES_FILE}")
    if not ways:
        return "no setting can hold its name; rename it first if you trust it"
    return f"if you trust it, {', or '.join(ways)}"


def _path(address: str) -> str | None:
    """Return the path of a file as it is written, or None for another address."""
    scheme, path = _divided(address)
    path = os.path.expanduser(path)
    # A relative path depends on the current folder; HOST:PORT looks like one, too.
    return os.path.normpath(path) if scheme == "file" and os.path.isabs(path) else None


def _lies_below(address: str, place: str) -> bool:
    """Return whether an address is ``place`` or lies below it, at a boundary of the path."""
    (scheme, path), (place_scheme, place_path) = _divided(address), _divided(place)
    if scheme != place_scheme or scheme == "file":
        return False
    parts, outer_parts = path.rstrip("/").split("/"), place_path.rstrip("/").split("/")
    if any(part in ("", ".", "..") for part in (*parts, *outer_parts)):
        return False
    return parts[: len(outer_parts)] == outer_parts


def _divided(address: str) -> tuple[str, str]:
    scheme, separator, rest = address.partition("://")
    return (scheme.lower(), rest) if separator else ("file", address)


def check_address(where: str, address: str, *, exactly: bool = False) -> None:
    """Refuse to send anything to a place that only a file names.

    Args:
        where: the config key that names it.
        address: the place.
        exactly: see :func:`is_trusted_address`.

    Raises:
        TrustError: the user does not trust the place.
    """
    is_named = f"{where}={address}" in _named_by(NAMED_ADDRESSES_VARIABLE)
    if not (is_named or is_trusted_address(address, exactly=exactly)):
        raise TrustError(
            f"{where} is {address!r}, which comes from a file, and the stage would send its work "
            f"there; {how_to_trust_address(address, word=f'{where}={address}')}"
        )


@contextmanager
def naming(variable: str, places: Iterable[str]) -> Iterator[None]:
    """Allow this run and its stages exactly the places that its command line names.

    Nothing below them is allowed, nor any other use of them.

    Args:
        variable: ``NAMED_FILES_VARIABLE`` or ``NAMED_ADDRESSES_VARIABLE``.
        places: absolute paths, or ``KEY=ADDRESS``.
    """
    before = os.environ.get(variable)
    os.environ[variable] = json.dumps(list(places))
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before


def _named_by(variable: str) -> list[str]:
    places: list[str] = json.loads(os.environ.get(variable) or "[]")
    return places


def name_places(places: Iterable[Path]) -> None:
    """Let this process read files and folders that its config names, but nothing below a folder."""
    _named.update(os.path.abspath(place) for place in places)


def check_files(
    where: str,
    values: Any,
    *,
    below: Path | None,
    given: Collection[tuple[str, str]] = (),
) -> list[str]:
    """Refuse arguments with an outside file, which a config must not get read or published.

    A text counts as the path of an outside file if it contains ``..``, or if it starts at the file
    system's root or at a home and exists or lies in a folder that does: an environment may write
    the file, or add an ending to its name. So it does if a part of it is such a path, as in
    ``a.xml,/x``, and without ``below`` if it begins the name of a symlink in the current folder.

    Args:
        where: the key that holds the values, for the message.
        values: arguments as JSON and YAML hold them, nested or not.
        below: a folder that the user named, whose files may be read; relative paths start there.
        given: keys with the texts that the user gave for them.

    Returns:
        Outside files that may be read because the user named them.

    Raises:
        TrustError: an outside file is not trusted; the message says how to trust it.

    Example:
        >>> check_files("kwargs", {"render_mode": "human", "topic": "/top"}, below=None)
        []
        >>> check_files("kwargs", {"xml_file": "/../ant.xml"}, below=None,
        ...             given=[("kwargs.xml_file", "/../ant.xml")])
        ['/ant.xml']
    """
    found = []
    for key, text in texts(where, values):
        for part in parts(text):
            place = _elsewhere(part, below)
            if place is None or (place in _named and place == real_place(part, below)):
                continue
            if (key, text) in given:
                found.append(place)
            else:
                fault = f"{key} is {text!r}, which is a file elsewhere that you did not name"
                check_path(fault, place, real_place(part, below), inside=below)
    return found


def check_file(fault: str, place: str) -> None:
    """Refuse to read a file, unless the user trusts it.

    Args:
        fault: why it is read only with the user's trust, for the message.
        place: its absolute path.

    Raises:
        TrustError: the user does not trust the file.
    """
    named = map(os.path.realpath, _named_by(NAMED_FILES_VARIABLE))
    if os.path.realpath(place) not in named and not is_trusted_address(place):
        raise TrustError(f"{fault}; {how_to_trust_address(place)}")


def check_path(fault: str, place: str, followed: str, *, inside: Path | None) -> None:
    """Refuse to read a file, unless the user trusts both its place and where it really is.

    Args:
        fault: see :func:`check_file`.
        place: where the path leads as text.
        followed: where the system follows it, see :func:`real_place`.
        inside: a folder in which the latter needs no trust.

    Raises:
        TrustError: the user does not trust one of them.
    """
    check_file(fault, place)
    if inside is None or not Path(followed).is_relative_to(inside):
        check_file(fault, followed)


def texts(where: str, values: Any) -> Iterator[tuple[str, str]]:
    """Yield every text among nested values, each with the key that holds it, and every key.

    Raises:
        TrustError: a text that no path can be. Programs may take what comes before a NUL for one.

    Example:
        >>> list(texts("env", {"id": "A-v0", "wrappers": ["B"]}))
        [('env', 'id'), ('env.id', 'A-v0'), ('env', 'wrappers'), ('env.wrappers[0]', 'B')]
    """
    if isinstance(values, str):
        if not _may_be_path(values):
            raise TrustError(f"{where} holds a character that no path can hold: {values[:80]!r}")
        yield where, values
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from texts(where, key)
            yield from texts(f"{where}.{key}", value)
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from texts(f"{where}[{number}]", value)


def _may_be_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def real_place(text: str, below: Path | None) -> str:
    """Return the path to which the system follows a text; ``..`` behind a symlink leads elsewhere.

    Without ``..`` it is the path as written.
    """
    place = os.path.join(below or os.getcwd(), os.path.expanduser(text))
    return os.path.realpath(place) if os.pardir in text.split("/") else os.path.abspath(place)


#: what may stand before a path in a text
_BOUNDARY = re.compile(r"(?<!\S)-\w(?=[/~$])|-(?=[/~$])|[\s,;:=|@\"'()\[\]{}<>+?&#]+")


def parts(text: str) -> Iterator[str]:
    """Yield a text and what in it a program may take for a path.

    Such as in ``file:/x``, ``$HOME/x``, ``--log=/x`` or ``a.xml,/x``.
    """
    yield text
    found = {*_BOUNDARY.split(text), *_BOUNDARY.split(os.path.expandvars(text))}  # each once
    yield from sorted(found - {"", text})


def _elsewhere(text: str, below: Path | None) -> str | None:
    """Return the path that a text leads to if it is outside a folder, else None."""
    path = os.path.expanduser(text)
    leads_up = os.pardir in Path(path).parts
    # An environment may treat any text as a file of the current folder, and Gymnasium treats a text
    # that begins with a dot as one.
    # A reader that reduces `FILE/` or a long path finds what the system does not.
    reduced = os.path.normpath(path)
    begins = _starts_in_a_folder(reduced) or (below is None and _begins_a_link(reduced))
    is_here = below is None and (path.startswith(os.curdir) or os.path.isfile(reduced) or begins)
    is_place = os.path.isabs(path) or is_here
    is_there = os.path.lexists(path) or os.path.lexists(reduced) or begins
    if not (leads_up or (is_place and is_there)):
        return None
    if below is None:
        return os.path.abspath(path)
    place = os.path.join(below, path)
    # After `..` the system goes on from a symlink's target, others from the path as written. A path
    # that only leads back into the folder, such as /proc/self/cwd, is none of its own.
    ways = (os.path.normpath(place), os.path.realpath(place))
    is_below, leads_below = (Path(way).is_relative_to(below) for way in ways)
    if is_below and (leads_below or not leads_up):
        return None
    return os.path.normpath(place)


def _starts_in_a_folder(path: str) -> bool:
    """Return whether the first part of a path is a folder that exists, and not all of it.

    In ``/`` itself only what is there counts: a text such as ``/top`` may be anything.
    """
    parts = Path(path).parts
    first = parts[: 2 if os.path.isabs(path) else 1]
    if len(parts) == len(first):
        return os.path.isabs(path) and bool(glob.glob(f"{glob.escape(path)}?*"))
    return os.path.isdir(os.path.join(*first))


def _begins_a_link(path: str) -> bool:
    """Return whether a symlink of the current folder has a name that begins so."""
    first, *_ = Path(path).parts or ("/",)
    return first != "/" and any(map(os.path.islink, glob.glob(f"{glob.escape(first)}*")))


def how_to_trust(module: str) -> str:
    """Return the sentence that explains to a user how to trust ``module``, a name from a file."""
    if not all(part.isidentifier() for part in module.split(".")):
        return f"{module!r} is not the name of a module"
    return (
        f"if you trust it, pass --trust-module {module} to minari-pipe, set "
        f"{MODULES_VARIABLE}={module} for other commands such as dvc repro, or add the line "
        f"{module} to {user_config_dir() / 'trusted_modules'}"
    )


def split_target(target: str) -> tuple[str, str]:
    """Split ``package.module.Name`` into module and name; raise for anything else."""
    parts = str(target).split(".")
    if len(parts) < 2 or not all(p.isidentifier() for p in parts):
        raise ConfigError(f"{target!r} is not a dotted name; expected package.module.Name")
    return ".".join(parts[:-1]), parts[-1]


def check_target(target: str, allowed: Mapping[str, str], *, what: str) -> None:
    """Raise unless ``target`` is registered or its module is trusted; import nothing.

    Args:
        target: the dotted name in a config.
        allowed: registered names, each with the ``module:qualified.name`` it must resolve to.
        what: where the name is in the config, for the message, such as ``policy._target_``.

    Raises:
        TrustError: the name is neither registered nor in a trusted module.
    """
    module, _ = split_target(target)
    if target not in allowed and not is_trusted_module(module):
        top = module.split(".")[0]
        raise TrustError(
            f"{what}: {target!r} is not trusted. Known names: {', '.join(sorted(allowed))}. "
            f"A config may come from a stranger; {how_to_trust(top)}"
        )


_lock = threading.Lock()
#: What the variable was when each of the imports began that go on now.
_before: list[str | None] = []


@contextmanager
def importing() -> Iterator[None]:
    """Keep Python processes that an imported package starts from importing local modules.

    Some packages test in another process whether they work: glfw, which MuJoCo imports, does.
    Processes that environments start later are not affected: they may need modules beside them.
    """
    with _lock:
        _before.append(os.environ.get("PYTHONSAFEPATH"))
        os.environ["PYTHONSAFEPATH"] = _before[0] or "1"
    try:
        yield
    finally:
        with _lock:  # the last import that ends takes the first value
            before = _before.pop()
            if not _before:
                if before is None:
                    del os.environ["PYTHONSAFEPATH"]
                else:
                    os.environ["PYTHONSAFEPATH"] = before


def resolve(target: str, allowed: Mapping[str, str], *, what: str) -> Any:
    """Return the object named by ``target``, once it is proven to be what the name says.

    The object's own module and qualified name are compared as well. A list of prefixes was bypassed
    by ``stable_baselines3.common.....pathlib.Path.unlink``: an attribute of a trusted module that
    does not belong to it.

    Raises:
        TrustError: the name, or the object behind it, is not trusted.
        ConfigError: the module or the name in it does not exist.
    """
    check_target(target, allowed, what=what)
    module, name = split_target(target)
    try:
        with importing():
            found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"{what}: no module {exc.name!r} for {target!r}; only the workspace folder and the "
            f"installed packages are searched"
        ) from exc
    except AttributeError as exc:
        raise ConfigError(f"{what}: module {module!r} has no {name!r}") from exc
    origin = f"{getattr(found, '__module__', None)}:{getattr(found, '__qualname__', None)}"
    if target in allowed:
        trusted = origin == allowed[target]
    else:
        home, _, qualified = origin.partition(":")
        trusted = is_trusted_module(home) and qualified == name
    if not trusted:
        raise TrustError(
            f"{what}: {target!r} is really {origin.replace(':', '.')!r}, which is not trusted; "
            f"use the name of the module that defines it"
        )
    return found
