"""A folder is put in the place of another at once; a kill in between loses neither for good."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minari_pipe.core.files import swap
from minari_pipe.core.files.links import OpenedFolder
from minari_pipe.core.files.swap import copy_file, copy_tree, recover, swap_in
from minari_pipe.errors import DatasetNotFoundError


@pytest.fixture(params=["exchange", "two renames"])
def way(request, monkeypatch) -> str:
    """Both ways: in one step where the system can, in two elsewhere."""
    if request.param == "exchange":
        if not _exchanges():
            pytest.skip("this file system cannot exchange two folders")
    else:
        monkeypatch.setattr(swap, "_exchange", lambda a, b: False)
    return request.param


def _exchanges() -> bool:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in "ab":
            (folder / part).mkdir()
        return swap._exchange(folder / "a", folder / "b")


def make(folder: Path, text: str) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "x").write_text(text)
    return folder


def text(folder: Path) -> str:
    return (folder / "data" / "x").read_text()


def test_the_first_folder_needs_no_swap(tmp_path, way):
    new, target = make(tmp_path / "new", "1"), tmp_path / "a" / "b" / "target"
    swap_in(new, target)
    assert text(target) == "1"
    assert not new.exists()


def test_the_old_folder_is_replaced_whole_and_goes(tmp_path, way):
    target = make(tmp_path / "target", "old")
    (target / "only in the old one").touch()
    swap_in(make(tmp_path / "new", "new"), target)
    assert text(target) == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["target"]
    assert [p.name for p in target.iterdir()] == ["data"]


def test_a_reader_sees_the_old_or_the_new_folder_and_never_none(tmp_path):
    if not _exchanges():
        pytest.skip("this file system cannot exchange two folders")
    target = make(tmp_path / "target", "0")
    seen, over = [], threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.append(target.is_dir())

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(100):
        swap_in(make(tmp_path / f"new{i}", str(i)), target)
    over.set()
    reader.join()
    assert all(seen)
    assert text(target) == "99"


KILLED = """
import os, sys
from pathlib import Path
from minari_pipe.core.files import swap
n, real = int(sys.argv[1]), os.replace
def replace(a, b):
    global n
    if n == 0:
        os.kill(os.getpid(), 9)
    n -= 1
    real(a, b)
swap.os.replace = replace
swap._exchange = lambda a, b: False
swap.shutil.rmtree = lambda *a, **k: os.kill(os.getpid(), 9)
swap.swap_in(Path("new"), Path("target"))
"""


@pytest.mark.parametrize(
    ("renames", "visible"), [(0, "old"), (1, None), (2, "new")], ids=["before", "between", "after"]
)
def test_a_kill_between_the_two_renames_is_mended_by_the_next_writer(renames, visible, tmp_path):
    target = make(tmp_path / "target", "old")
    make(tmp_path / "new", "new")
    argv = [sys.executable, "-c", KILLED, str(renames)]
    assert subprocess.run(argv, cwd=tmp_path, check=False).returncode == -9
    assert target.exists() == (visible is not None)
    recover(target)
    assert text(target) == (visible or "old")
    assert not (tmp_path / ".target.old").exists()
    swap_in(make(tmp_path / "newer", "newer"), target)
    assert text(target) == "newer"


def test_a_second_rename_that_fails_brings_the_old_folder_back(tmp_path, monkeypatch):
    target = make(tmp_path / "target", "old")
    new = make(tmp_path / "new", "new")
    monkeypatch.setattr(swap, "_exchange", lambda a, b: False)
    real = os.replace

    def replace(source, place):
        if Path(source) == new:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, place)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="cross-device"):
        swap_in(new, target)
    assert text(target) == "old"
    assert text(new) == "new"


def test_recovery_has_nothing_to_do_where_nothing_happened(tmp_path):
    recover(tmp_path / "target")
    target = make(tmp_path / "target", "1")
    recover(target)
    assert text(target) == "1"


def test_a_copy_is_a_file_of_its_own(tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(os.urandom(100_000))
    source.chmod(0o444)
    copy_file(source, copy, below=tmp_path)
    assert copy.read_bytes() == source.read_bytes()
    assert copy.stat().st_ino != source.stat().st_ino
    assert copy.stat().st_nlink == 1
    with copy.open("ab") as file:
        file.write(b"more")
    assert source.stat().st_size == 100_000


def test_a_tree_is_copied_with_its_empty_folders(tmp_path):
    source = make(tmp_path / "source", "1")
    (source / "empty").mkdir()
    copy_tree(source, tmp_path / "copy")
    found = sorted(str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*"))
    assert found == ["data", "data/x", "empty"]


def test_a_folder_in_the_place_of_an_opened_one_is_told_from_it(tmp_path: Path) -> None:
    """File systems give the number of a folder that was removed to the next one."""
    place = tmp_path / "data"
    place.mkdir()
    opened = OpenedFolder(place)
    (place / "file").write_text("changed in place")
    opened.check()
    again = pickle.loads(pickle.dumps(opened))
    again.check()
    for _ in range(3):
        shutil.rmtree(place)
        opened.check()  # reading says that it is gone
        place.mkdir()
        for one in (opened, again):
            with pytest.raises(DatasetNotFoundError, match="replaced since"):
                one.check()
