"""Stops a process of a pipeline at a chosen moment; on PYTHONPATH in tests only.

``MINARI_PIPE_TEST_BARRIER`` holds JSON: ``role`` (``driver``, a stage or ``worker``), ``folder``
(where the test and the process talk), and the moment: ``target`` (``module:function``) with
``call`` (which call, from 1), ``target`` (``module``) for its import, or ``event`` (which change of
a file under ``within``, from 1; 0 only counts them). ``do`` says what happens there: ``pause``
(until the test makes ``folder/go``; the other workers wait with it), ``block`` (for ever, where
Python cannot interrupt the
thread), ``freeze`` (no thread runs for three seconds) or ``full`` (the call fails as on a full
disk).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time
from pathlib import Path

_PID = os.getpid()
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}


def _role() -> str | None:
    words = sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if module == "minari_pipe":
        return "driver"
    if any("multiprocessing.forkserver" in w or w.endswith("default_worker.py") for w in words):
        return "worker"  # of an engine; forked ones inherit what is done here
    return module.rpartition(".")[2] if ".stages." in module else None


def _stop(spec: dict) -> None:
    folder = Path(spec["folder"])
    if spec.get("do") == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    own = folder / f"reached.{os.getpid()}"
    own.write_text(str(os.getpid()))
    # the first of several workers, and whole as soon as it is there
    with contextlib.suppress(FileExistsError):
        os.link(own, folder / "reached")
    if spec.get("do") == "freeze":
        ctypes.PyDLL(None).sleep(3)
    if spec.get("do") == "block":
        threading.Event().wait()
    deadline = time.monotonic() + 120
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _another_waits(spec: dict) -> bool:
    """Whether another worker is at the barrier, and would be alone there while this one works."""
    folder = Path(spec["folder"])
    return (
        spec["role"] == "worker" and (folder / "reached").exists() and not (folder / "go").exists()
    )


def _here(spec: dict) -> bool:
    """Whether this is the process of the role, not a fork of it; engines fork their workers."""
    return spec["role"] == "worker" or os.getpid() == _PID


def _at_call(spec: dict) -> None:
    module_name, _, path = spec["target"].partition(":")
    *owners, name = path.split(".")
    calls = 0

    def wrap(module) -> None:
        owner = module
        for part in owners:
            owner = getattr(owner, part)
        function = getattr(owner, name)

        def stopping(*args, **kwargs):
            nonlocal calls
            if _here(spec):
                calls += 1
                if calls == spec.get("call", 1) or _another_waits(spec):
                    _stop(spec)
            return function(*args, **kwargs)

        setattr(owner, name, stopping)
        for other in list(sys.modules.values()):  # which imported it from there
            for key, value in list(getattr(other, "__dict__", {}).items()):
                if value is function:
                    setattr(other, key, stopping)

    if module_name in sys.modules:
        wrap(sys.modules[module_name])
        return

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname, path=None, target=None):
            if fullname != module_name:
                return None
            sys.meta_path.remove(self)
            found = importlib.util.find_spec(fullname)
            execute = found.loader.exec_module

            def exec_module(module):
                if not name:
                    _stop(spec)
                execute(module)
                if name:
                    wrap(module)

            found.loader.exec_module = exec_module
            return found

    sys.meta_path.insert(0, Finder())


def _at_event(spec: dict) -> None:
    within = tuple(spec["within"])
    seen = 0
    busy = False
    # Workers start one only while they import, when they do not look after their driver yet.
    ignored = "subprocess.Popen" if spec["role"] == "worker" else None

    def hook(event: str, args: tuple) -> None:
        nonlocal seen, busy
        if busy or event == ignored or not _here(spec) or not _changes_a_file(event, args, within):
            return
        seen += 1
        if seen == spec["event"] or _another_waits(spec):
            busy = True
            _stop(spec)
            busy = False

    def tell() -> None:
        nonlocal busy
        busy = True
        if _here(spec):
            (Path(spec["folder"]) / f"events.{_role()}").write_text(str(seen))

    sys.addaudithook(hook)
    if spec["event"] == 0:
        atexit.register(tell)


def _changes_a_file(event: str, args: tuple, within: tuple[str, ...]) -> bool:
    if event == "subprocess.Popen":
        return True
    if event == "open":
        flags = args[2]
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return False
    elif event not in _CHANGES:
        return False
    paths = [os.fsdecode(a) for a in args[:2] if isinstance(a, str | bytes)]
    return any(os.path.abspath(p).startswith(within) for p in paths)


_text = os.environ.get("MINARI_PIPE_TEST_BARRIER")
if _text:
    _spec = json.loads(_text)
    if _role() is not None and _spec["role"] in (_role(), "any"):
        _at_event(_spec) if "event" in _spec else _at_call(_spec)
