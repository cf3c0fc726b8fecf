"""A pickle is read without executing it, and whatever is wrong with it is one clear line."""

from __future__ import annotations

import os
import pickle
import pickletools
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from minari_pipe.policies.demonstration_formats import plain_pickle
from tests.conftest import FULL, SHARED
from tests.demonstration_files import (
    PickleWriter,
    counting_episodes,
    refused,
    survive_mutants,
    write_dapg,
)

DOOR = SHARED / "demonstrations" / "door-v0_demos.pickle"
needs_door = pytest.mark.skipif(not DOOR.is_file(), reason=f"{DOOR} is not on this machine")


# --- hostile pickles ----------------------------------------------------------------------------


class _Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> Any:
        return self._reduced


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.mkdir, "posix.mkdir"),
        (eval, "eval"),
        (getattr, "getattr"),
        (np.frombuffer, "frombuffer"),
    ],
)
def test_a_pickle_that_calls_something_is_refused_by_name(
    tmp_path: Path, protocol: int, function: Any, name: str
) -> None:
    target = str(tmp_path / "made")
    path = write_dapg(tmp_path / "d.pickle", [_Call(function, target)], protocol)
    message = refused(path, format="dapg")
    assert "names the global" in message
    assert name in message
    assert not Path(target).exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"(S'x'\nios\nsystem\n.", "names the global 'os.system'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "names the global 'os.system'"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.dot\x93.", "names the global 'numpy.ndarray.dot'"),
        (b"\x80\x04\x8c\x0dnumpy ndarray\x94.", "the pickle holds a str"),
        (b"\x80\x02cnumpy\nndarray\nK\x05\x85R.", "makes a numpy ndarray in an unknown way"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "the pickle operation NEWOBJ"),
        (b"\x80\x02\x82\x01.", "the pickle operation EXT1"),
        (b"\x80\x02Pid\n.", "the pickle operation PERSID"),
        (b"\x80\x02K\x05Q.", "the pickle operation BINPERSID"),
        (b"\x80\x05\x97.", "the pickle operation NEXT_BUFFER"),
        (b"\x80\x02]}b.", "gives a state to a list"),
        (b"\x80\x02cnumpy\ndtype\n}b.", "gives a state to a StandIn"),
        (b"\x80\x02]K\x01R.", "calls a list"),
        (b"\x80\x02}K\x01K\x02s.", "a dict with a int as a key"),
        (b"\x80\x02(ccollections\nOrderedDict\n.", "names the global 'collections.OrderedDict'"),
        (b"\x80\x02c" + b"x" * 9999 + b"\ny\n.", "xxx…', which is not executed"),
        (b"\x80\x02cos\x0b\x1b[2J\nsystem\n.", r"'os\x0b\x1b[2J.system'"),
        (b"\x80\x02].more", "goes on for 4 bytes after the pickle's end"),
        (b"\x80\x02]]." + b"", "values are left over"),
        (b"\x80\x02.", "values are left over"),
        (b"\x80\x02(]((.", "values are left over"),
        (b"\x80\x02]", "exhausted before seeing STOP"),
        (b"\x80\x02h\x05.", "is damaged or no pickle"),
        (b"\x80\x02(t0.", "is damaged or no pickle"),
        (b"\x80\x02\x8e" + struct.pack("<Q", 2**62) + b"x.", "expected 4611686018427387904 bytes"),
        (b"\x80\x02\x8e" + struct.pack("<Q", 2**64 - 1) + b"x.", "is damaged or no pickle"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.", "is damaged or no pickle"),
        (b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"].", "holds no demonstrations"),
        (b"\x80\x02L" + b"9" * 5000 + b"L\n.", "is damaged or no pickle"),
        (b"\x80\x02S'\\q'\n.", "the pickle holds a str"),
        (b"(" * 1000, "is damaged or no pickle"),
    ],
    ids=lambda value: "" if isinstance(value, str) else repr(value[:24]),
)
def test_pickles_written_by_hand_are_refused(tmp_path: Path, code: bytes, message: str) -> None:
    (tmp_path / "d.pickle").write_bytes(code)
    assert message in refused(tmp_path / "d.pickle", format="dapg")


def _deep_key() -> bytes:
    return b"\x80\x02})" + b"\x85" * 50_000 + b"K\x01s."


def _deep_list() -> bytes:
    return b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."


def _many_lists() -> bytes:
    return b"\x80\x02(" + b"]" * 200_000 + b"l."


def _memo_index() -> bytes:
    return b"\x80\x02]r\xff\xff\xff\xff."


def _repeated_episode() -> bytes:
    # One episode in the memo, which the list names fifty thousand times.
    episode = pickle.dumps(counting_episodes((50,))[0], protocol=3)[2:-1]
    return b"\x80\x03]" + episode + b"q\xff0(" + b"h\xff" * 50_000 + b"e."


def _laughs() -> bytes:
    # Each list holds the one before ten times.
    return (
        b"\x80\x02]q\x00" + b"".join(b"0](" + b"h\x00" * 10 + b"eq\x00" for _ in range(50)) + b"."
    )


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        (_deep_key, "a dict with a tuple as a key"),
        (_deep_list, "demonstration 0 is a list, expected a dict"),
        (_many_lists, "more than 150000 operations"),
        (_memo_index, "holds no demonstrations"),
        (_repeated_episode, "repeats data of another"),
        (_laughs, "demonstration 0 is a list, expected a dict"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bombs_take_neither_time_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: Any, message: str
) -> None:
    monkeypatch.setattr(plain_pickle, "_MOST_OPERATIONS", 150_000)  # a full count takes a minute
    path = tmp_path / "d.pickle"
    path.write_bytes(bomb())
    tracemalloc.start()
    started = time.process_time()
    try:
        assert message in refused(path)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        (b"K\x05\x85", b"C\x08" + bytes(8), "has 8 bytes, but the shape (5,) of float64 takes 40"),
        (b"K\x01\x85", b"C\x00", "has 0 bytes, but the shape (1,) of float64 takes 8"),
        (b"J\xff\xff\xff\xff\x85", b"C\x00", "an array with an impossible shape"),
        (b"\x8a\x09" + b"\xff" * 8 + b"\x00\x85", b"C\x00", "an array with an impossible shape"),
        (b"\x8a\x08" + bytes(7) + b"\x20K\x00\x86", b"C\x00", "has the impossible shape"),
        (b"\x88\x85", b"C\x08" + bytes(8), "an array with an impossible shape"),
        (b"X\x01\x00\x00\x00a\x85", b"C\x00", "an array with an impossible shape"),
        (b"K\x01", b"C\x08" + bytes(8), "an array without a usable shape"),
        (b"(" + b"K\x01" * 33 + b"t", b"C\x08" + bytes(8), "an array without a usable shape"),
        (b"K\x01\x85", b"]", "keeps its values as a list, not as bytes"),
        (b"K\x01\x85", b"X\x03\x00\x00\x00\xe2\x82\xac", "keeps its values as a str, not as bytes"),
    ],
)
def test_arrays_that_contradict_themselves(
    tmp_path: Path, shape: bytes, data: bytes, message: str
) -> None:
    writer = PickleWriter()
    writer.write(b"\x80\x03](}(X\x0f\x00\x00\x00init_state_dict}X\x0c\x00\x00\x00observations")
    writer.array(shape, b"f8", data).write(b"ue.")
    (tmp_path / "d.pickle").write_bytes(writer.getvalue())
    assert message in refused(tmp_path / "d.pickle")


def test_python_2_wrote_bytes_as_text(tmp_path: Path) -> None:
    truth = np.array([1.5, -2.25])
    writer = PickleWriter()
    writer.write(b"\x80\x02")
    writer.array(b"K\x02\x85", b"f8", b"U\x10" + truth.tobytes()).write(b".")
    (tmp_path / "d.pickle").write_bytes(writer.getvalue())
    array = plain_pickle.load(tmp_path / "d.pickle", "d.pickle").build("array")
    np.testing.assert_array_equal(array, truth, strict=True)


@settings(deadline=None, max_examples=1000 if FULL else 100)
@given(
    array=npst.arrays(
        st.one_of(
            npst.boolean_dtypes(),
            npst.integer_dtypes(endianness="?"),
            npst.unsigned_integer_dtypes(endianness="?"),
            npst.floating_dtypes(endianness="?"),
        ),
        npst.array_shapes(min_dims=0),
    ),
    fortran=st.booleans(),
    protocol=st.sampled_from([3, 4]),
)
def test_every_plain_array_survives(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, fortran: bool, protocol: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "array.pickle"
    path.write_bytes(pickle.dumps(np.array(array, order="F" if fortran else "C"), protocol))
    found = plain_pickle.load(path, "array").build("array")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array, strict=True)


@pytest.mark.parametrize("protocol", [3, 4])
def test_damaged_pickles_are_one_clear_line(tmp_path: Path, protocol: int) -> None:
    path = write_dapg(tmp_path / "d.pickle", counting_episodes(), protocol)
    count = 5000 if FULL else 300
    assert survive_mutants(path, count, "dapg") > count / 2


@needs_door
def test_the_real_demonstrations_damaged(tmp_path: Path) -> None:
    path = tmp_path / "door.pickle"
    path.write_bytes(DOOR.read_bytes())
    # Only 0.3 % of the file is not numbers: aim at the operations and what follows them.
    starts = np.array([place for _, _, place in pickletools.genops(path.read_bytes())])
    positions = np.unique(np.concatenate([starts, starts + 1]))[:-1]
    assert survive_mutants(path, 500 if FULL else 60, "dapg", positions) > 30
