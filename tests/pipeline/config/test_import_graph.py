"""The declared code of a stage is what it imports, and reading it executes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from minari_pipe.errors import ConfigError, LinkError
from minari_pipe.pipeline.config.import_graph import (
    WorkspaceFinder,
    import_closure,
    module_closure,
    module_files,
    source_folder,
)


def write(root: Path, **files: str) -> Path:
    """Files by dotted name, such as ``a.b`` for ``a/b.py``."""
    for name, text in files.items():
        path = root / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def closure(root: Path, *names: str) -> list[str]:
    """Dotted names of the files that ``names`` consist of."""
    files = [file for name in names for file in module_files(name, root)]
    assert len(files) == len(names)
    found = import_closure(files, root)
    return [".".join(f.relative_to(root).with_suffix("").parts) for f in found]


ROWS = {
    "a plain import": ("import b", ["a", "b"]),
    "a name from a module": ("from b import anything", ["a", "b"]),
    "several at once": ("import b, c.d as e", ["a", "b", "c.__init__", "c.d"]),
    "a module from a package": ("from c import d", ["a", "c.__init__", "c.d"]),
    "a name from a package": ("from c import nothing", ["a", "c.__init__"]),
    "a module deep in a package": ("import c.d", ["a", "c.__init__", "c.d"]),
    "what an imported module imports": ("import e", ["a", "b", "e"]),
    "an import inside a function": ("def f():\n    import b", ["a", "b"]),
    "an import inside a try": ("try:\n    import b\nexcept ImportError:\n    import f", ["a", "b"]),
    "not what is for type checkers": ("if TYPE_CHECKING:\n    import b", ["a"]),
    "nor with its module": ("import typing\nif typing.TYPE_CHECKING:\n    import b", ["a"]),
    "but what is not for them": ("if not TYPE_CHECKING:\n    import b", ["a", "b"]),
    "nor the other branch": (
        "if TYPE_CHECKING:\n    import b\nelse:\n    import e",
        ["a", "b", "e"],
    ),
    "not what is installed": ("import numpy.linalg, os", ["a"]),
    "a circle": ("import g", ["a", "g"]),
    "an entry point": ("register('X-v0', entry_point='c.d:Class')", ["a", "c.__init__", "c.d"]),
    "a module by its name": ("import_module('b')", ["a", "b"]),
    "no other text": ("'b is good'; b'b'; 'x.b'", ["a"]),
    "a star": ("from b import *", ["a", "b"]),
    "the top from the top": ("from . import b", ["a", "b"]),
}


@pytest.mark.parametrize(("source", "expected"), ROWS.values(), ids=ROWS)
def test_the_closure_of_a_module_holds(source, expected, tmp_path):
    files = {"a": source, "b": "", "c.__init__": "", "c.d": "", "e": "import b", "g": "import a"}
    assert closure(write(tmp_path, **files), "a") == expected


def test_relative_imports_are_resolved_in_their_package(tmp_path):
    root = write(
        tmp_path,
        **{
            "p.__init__": "from .q import r",
            "p.q.__init__": "from . import r",
            "p.q.r": "from ..s import thing\nfrom .t import other",
            "p.q.t": "from ... import beyond",
            "p.s": "",
            "p.unused": "",
        },
    )
    assert closure(root, "p.q.t") == ["p.__init__", "p.q.__init__", "p.q.r", "p.q.t", "p.s"]


@pytest.mark.parametrize("text", ["f'{__name__}.q:Class'", "__name__ + '.q'", "'p.q:Class'"])
def test_a_text_may_name_a_module_of_the_own_package(text, tmp_path):
    root = write(tmp_path, **{"p.__init__": f"register(entry_point={text})", "p.q": ""})
    assert closure(root, "p.__init__".removesuffix(".__init__")) == ["p.__init__", "p.q"]


def test_nothing_is_executed(tmp_path):
    root = write(tmp_path, a="import b\nopen('ran', 'w')", b="raise SystemExit")
    assert closure(root, "a") == ["a", "b"]
    assert not (root / "ran").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [("def f(:\n", r"b.py:1 is not valid Python"), ("\0", "b.py.* is not valid Python")],
    ids=["syntax", "null byte"],
)
def test_what_is_not_python_is_named(source, message, tmp_path):
    root = write(tmp_path, a="import b", b=source)
    with pytest.raises(ConfigError, match=message):
        closure(root, "a")


def test_an_edited_file_is_read_again_and_a_damaged_memory_ignored(tmp_path):
    root = write(tmp_path, a="import b", b="", c="")
    assert closure(root, "a") == ["a", "b"]
    old = (root / "a.py").stat()
    write(root, a="import c")  # the same size
    os.utime(root / "a.py", ns=(old.st_atime_ns, old.st_mtime_ns))  # and the same time
    assert closure(root, "a") == ["a", "c"]
    memory = root / ".minari_pipe" / "imports.json"
    assert json.loads(memory.read_text())["files"]
    whole = json.loads(memory.read_text())
    odd = json.dumps({**whole, "files": dict.fromkeys(whole["files"], 3)})
    reader = whole["reader"]
    for damaged in (
        *("", "[]", "[" * 100_000, '{"reader": 1, "files": {}}', odd),
        f'{{"reader": {reader}, "files": 3}}',
    ):
        from minari_pipe.pipeline.config import import_graph as module

        memory.write_text(damaged)
        module._remembered.cache_clear()
        assert closure(root, "a") == ["a", "c"]


@pytest.mark.parametrize("link", ["b.py", "pack"])
def test_a_module_of_the_workspace_that_is_a_link_is_refused(link, tmp_path, monkeypatch):
    root = write(tmp_path / "work", a="import b, pack.inner")
    # not even read: an error would show a line of it
    secret = "-- the user's key --"
    write(tmp_path / "elsewhere", b=secret, **{"pack.__init__": secret, "pack.inner": ""})
    (root / link).symlink_to(tmp_path / "elsewhere" / link)
    with pytest.raises(LinkError, match=f"{link} is a symlink"):
        closure(root, "a")
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "a")
    with pytest.raises(LinkError, match=f"{link} is a symlink"):
        WorkspaceFinder(root).find_spec(link.removesuffix(".py"))


def test_a_link_to_a_folder_beside_a_trusted_module_is_not_listed(tmp_path, monkeypatch):
    root = write(tmp_path / "work", a="", b="")
    (root / "a").symlink_to(tmp_path)
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "a")
    with pytest.raises(LinkError, match="a is a symlink"):
        WorkspaceFinder(root).find_spec("b")


def test_imports_are_followed_from_the_workspace_to_other_folders_of_the_users(
    tmp_path, monkeypatch
):
    root = write(tmp_path / "work", mine="import helper, bought, json", inner="")
    other = write(
        tmp_path / "other", helper="from lib import part\nimport inner", **{"lib.__init__": ""}
    )
    write(tmp_path / "other", **{"lib.part": "import minari_pipe.errors", "lib.unused": ""})
    installed = write(tmp_path / "lib" / "site-packages", bought="import helper")
    monkeypatch.syspath_prepend(str(other))
    monkeypatch.syspath_prepend(str(installed))
    assert module_closure(["mine", "no_such_module"], root) == {
        *(root / "mine.py", root / "inner.py"),
        *(other / "helper.py", other / "lib" / "__init__.py", other / "lib" / "part.py"),
    }
    # A clone that tracks its state would publish what the user's other sources name.
    memory = json.loads((root / ".minari_pipe" / "imports.json").read_text())
    assert memory["files"].keys() == {str(root / "mine.py"), str(root / "inner.py")}


def test_the_users_source_is_found_and_installed_packages_are_left_out(tmp_path, monkeypatch):
    root = write(tmp_path / "work", own="")
    editable = write(tmp_path / "editable", **{"theirs.__init__": "", "theirs.policy": ""})
    installed = write(tmp_path / "lib" / "site-packages", bought="")
    monkeypatch.syspath_prepend(str(editable))
    monkeypatch.syspath_prepend(str(installed))
    assert source_folder("own", root) == root
    assert source_folder("theirs.policy", root) == editable
    assert source_folder("theirs.missing", root) is None
    assert source_folder("bought", root) is None
    assert source_folder("json", root) is None
    assert source_folder("gymnasium.wrappers", root) is None
    assert source_folder("no_such_module", root) is None


def test_the_finder_serves_trusted_modules_and_what_they_import(tmp_path, monkeypatch):
    root = write(
        tmp_path,
        mine="import msvcrt, tools\ndef go():\n    import late",
        tools="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import unused\nX='word'",
        word="",
        late="",
        unused="",
        shimmy="",
        msvcrt="",
        **{"pack.__init__": "", "pack.envs": "from . import base", "pack.base": "import deep"},
        **{"pack.broken": "print 2", "deep": "", "other.__init__": "", "other.x": "import shimmy"},
    )
    names = ("mine", "tools", "late", "unused", "shimmy", "msvcrt", "pack", "deep", "other", "word")

    def served(trusted: str) -> set[str]:
        monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", trusted)
        return {name for name in names if WorkspaceFinder(root).find_spec(name)}

    assert served("") == served("numpy") == served("no_such_module") == set()
    assert served("mine") == {"mine", "tools", "late"}
    assert served("pack") == served("pack.envs,pack") == {"pack", "deep"}
    assert served("other.x") == {"other", "shimmy"}
    assert WorkspaceFinder(root).find_spec("pack.envs", [str(root / "pack")]) is None


@pytest.mark.parametrize(
    "source", ["import_module('named')", "X = 'named:Class'", "__import__('named')"]
)
def test_a_text_that_can_only_be_a_module_is_one_that_code_imports(source, tmp_path, monkeypatch):
    root = write(tmp_path, mine=f"from importlib import import_module\n{source}", named="")
    monkeypatch.setenv("MINARI_PIPE_TRUSTED_MODULES", "mine")
    assert WorkspaceFinder(root).find_spec("named")
