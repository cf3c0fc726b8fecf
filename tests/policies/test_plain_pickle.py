"""A pickle is read without executing it, and whatever is wrong with it is one clear line."""

from __future__ import annotations

import base64
import os
import pickle
import pickletools
import random
import struct
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from minari_pipe.errors import InvalidEpisodeError
from minari_pipe.policies.demonstration_formats import plain_pickle, read_demonstrations
from tests.conftest import FULL, SHARED
from tests.support.demonstration_files import (
    FLOAT64,
    PICKLERS,
    array_code,
    buffer_code,
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
    assert "refers to the global" in message
    assert name in message
    assert not Path(target).exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"(S'x'\nios\nsystem\n.", "refers to the global 'os.system'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "refers to the global 'os.system'"),
        (
            b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.dot\x93.",
            "refers to the global 'numpy.ndarray.dot'",
        ),
        (b"\x80\x04\x8c\x0dnumpy ndarray\x94.", "the pickle holds a str"),
        (b"\x80\x02cnumpy\nndarray\nK\x05\x85R.", "calls ndarray with unexpected arguments"),
        (b"\x80\x02cnumpy.core.numeric\n_frombuffer\n)R.", "calls _frombuffer with unexpected arg"),
        (
            b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00ah\x00\x86R.",
            "damaged or not a pickle file",
        ),
        (
            b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00a\x85R.",
            "calls encode with unexpected arguments",
        ),
        (b"c_codecs\nencode\n(Va\nVzip\ntR.", "calls encode with unexpected arguments"),
        (b"c_codecs\nencode\n(I5\nVlatin1\ntR.", "calls encode with unexpected arguments"),
        (b"c_codecs\nencode\n(Va\nVlatin1\ntR.", "the pickle holds a bytes"),
        (b"c_codecs\ndecode\n(Va\nVlatin1\ntR.", "refers to the global '_codecs.decode'"),
        (b"(dc_codecs\nencode\n(Va\nVlatin1\ntRI1\ns.", "a dict with a key of type bytes"),
        (b"c__builtin__\nbytes\n(I9\ntR.", "calls bytes with unexpected arguments"),
        (b"c__builtin__\nbytearray\n(tR.", "refers to the global '__builtin__.bytearray'"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "the pickle operation NEWOBJ"),
        (b"\x80\x02\x82\x01.", "the pickle operation EXT1"),
        (b"\x80\x02Pid\n.", "the pickle operation PERSID"),
        (b"\x80\x02K\x05Q.", "the pickle operation BINPERSID"),
        (b"\x80\x05\x97.", "keeps values outside the file (pickle operation NEXT_BUFFER)"),
        (b"\x80\x05C\x00\x98.", "(pickle operation READONLY_BUFFER)"),
        (b"\x80\x02]}b.", "sets the state of an object of type list"),
        (b"\x80\x02cnumpy\ndtype\n}b.", "sets the state of an object of type StandIn"),
        (b"\x80\x02]K\x01R.", "calls an object of type list"),
        (b"\x80\x02}K\x01K\x02s.", "a dict with a key of type int"),
        (
            b"\x80\x02(ccollections\nOrderedDict\n.",
            "refers to the global 'collections.OrderedDict'",
        ),
        (b"\x80\x02c" + b"x" * 9999 + b"\ny\n.", "xxx…', which is not executed"),
        (b"\x80\x02cos\x0b\x1b[2J\nsystem\n.", r"'os\x0b\x1b[2J.system'"),
        (b"\x80\x02].more", "has 4 bytes after the end of the pickle"),
        (b"\x80\x02]]." + b"", "values are left over"),
        (b"\x80\x02.", "values are left over"),
        (b"\x80\x02(]((.", "values are left over"),
        (b"\x80\x02]", "exhausted before seeing STOP"),
        (b"\x80\x02h\x05.", "is damaged or not a pickle file"),
        (b"\x80\x02(t0.", "is damaged or not a pickle file"),
        (b"\x80\x02\x8e" + struct.pack("<Q", 2**62) + b"x.", "expected 4611686018427387904 bytes"),
        (b"\x80\x02\x8e" + struct.pack("<Q", 2**64 - 1) + b"x.", "is damaged or not a pickle file"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.", "is damaged or not a pickle file"),
        (b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"].", "holds no demonstrations"),
        (b"\x80\x02L" + b"9" * 5000 + b"L\n.", "is damaged or not a pickle file"),
        (b"\x80\x02S'\\q'\n.", "the pickle holds a str"),
        (b"S'\\xf.", "no newline found"),
        (b"S'\\xf'\n.", "is damaged or not a pickle file"),
        (b"Sa\n.", "no string quotes around"),
        (b"T\xff\xff\xff\x7fa.", "is damaged or not a pickle file"),
        (b"T\xff\xff\xff\xffa.", "is damaged or not a pickle file"),
        (b"\xff", r"unknown pickle operation b'\xff'"),
        (b"(" * 1000, "is damaged or not a pickle file"),
    ],
    ids=lambda value: "" if isinstance(value, str) else repr(value[:24]),
)
def test_pickles_written_by_hand_are_refused(tmp_path: Path, code: bytes, message: str) -> None:
    (tmp_path / "d.pickle").write_bytes(code)
    assert message in refused(tmp_path / "d.pickle", format="dapg")


def _deep_key() -> bytes:
    return b"\x80\x02})" + b"\x85" * 10_000 + b"K\x01s."


def _deep_list() -> bytes:
    return b"\x80\x02" + b"]" * 10_000 + b"a" * 9_999 + b"."


def _many_lists() -> bytes:
    return b"\x80\x02(" + b"]" * 60_000 + b"l."


def _memo_index() -> bytes:
    return b"\x80\x02]r\xff\xff\xff\xff."


def _repeated_episode() -> bytes:
    # One episode in the memo, which the list names twenty thousand times.
    episode = pickle.dumps(counting_episodes((150,))[0], protocol=3)[2:-1]
    return b"\x80\x03]" + episode + b"q\xff0(" + b"h\xff" * 20_000 + b"e."


def _text(size: int) -> bytes:
    return b"X" + struct.pack("<I", size) + bytes(size)


def _episode(state: bytes) -> bytes:
    """Code of a list with one episode, whose state has the items that ``state`` leaves."""
    columns = b"".join(
        b"X" + struct.pack("<I", len(key)) + key + array_code(shape, b"C\x08" + bytes(8))
        for key, shape in {
            b"observations": b"K\x01K\x01\x86",
            b"actions": b"K\x01K\x01\x86",
            b"rewards": b"K\x01\x85",
        }.items()
    )
    return b"](}(" + columns + b"X\x0f\x00\x00\x00init_state_dict}(" + state + b"uue."


def _keys(value: bytes) -> bytes:
    return b"".join(b"X\x04\x00\x00\x00%04x" % number + value for number in range(5_000))


def _repeated_state() -> bytes:
    array = array_code(b"M\x00\x40\x85", b"\x8e" + struct.pack("<Q", 2**17) + bytes(2**17))
    return b"\x80\x02" + array + b"q\xff0" + _episode(_keys(b"h\xff"))


def _repeated_text() -> bytes:
    # Python 2's bytes, which become bytes again for each array.
    array = array_code(b"M\x00\x40\x85", b"h\xff")
    array = array.replace(FLOAT64, b"h\xfe")
    memo = _text(2**17) + b"q\xff0" + FLOAT64 + b"q\xfe0"
    return b"\x80\x02" + memo + _episode(_keys(array)[: len(array + b"X....****") * 1000])


def _repeated_encoding() -> bytes:
    # The text and its encoding's name are one tuple in the memo: three operations encode again.
    memo = b"c_codecs\nencode\nq\xff0" + _text(2**17) + b"X\x06\x00\x00\x00latin1\x86q\xfe0"
    return b"\x80\x02" + memo + _episode(_keys(b"h\xffh\xfeR"))


def _repeated_buffer() -> bytes:
    memo = FLOAT64 + b"q\xfe0\x96" + struct.pack("<Q", 2**17) + bytes(2**17) + b"q\xff0"
    code = buffer_code(b"h\xff", b"M\x00\x40\x85", b"X\x01\x00\x00\x00C")
    code = code.replace(FLOAT64, b"h\xfe")
    return b"\x80\x05" + memo + _episode(_keys(code)[: len(code + b"X....****") * 1000])


def _repeated_empty() -> bytes:
    # Two thousand episodes of nothing, which are one, with a thousand arrays of nothing.
    empty = array_code(b"K\x00\x85", b"C\x00") + b"q\xff0"
    state = _keys(b"h\xff")[: len(b"X....****h.") * 1000]
    episode = _episode(state)[2:-2]
    for values in (b"K\x01K\x01\x86", b"K\x01\x85"):
        episode = episode.replace(array_code(values, b"C\x08" + bytes(8)), b"h\xff")
    return b"\x80\x02" + empty + episode + b"q\xfe0](" + b"h\xfe" * 2_000 + b"e."


def _laughs() -> bytes:
    # Each list holds the one before ten times.
    return (
        b"\x80\x02]q\x00" + b"".join(b"0](" + b"h\x00" * 10 + b"eq\x00" for _ in range(50)) + b"."
    )


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        (_deep_key, "a dict with a key of type tuple"),
        (_deep_list, "demonstration 0 is a list, expected a dict"),
        (_many_lists, "more than 50000 operations"),
        (_memo_index, "holds no demonstrations"),
        (_repeated_episode, "reuses the data of another array"),
        (_repeated_state, "reuses the data of another array"),
        (_repeated_text, "reuses the data of another array"),
        (_repeated_encoding, "'0000' is a bytes, expected a NumPy array"),
        (_repeated_buffer, "reuses the data of another array"),
        (_repeated_empty, "reuses the data of another array"),
        (_laughs, "demonstration 0 is a list, expected a dict"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bombs_take_neither_time_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: Any, message: str
) -> None:
    monkeypatch.setattr(plain_pickle, "_MOST_OPERATIONS", 50_000)  # a full count takes a minute
    monkeypatch.setattr(plain_pickle, "_SHARED", 2**20)
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
        (b"K\x05\x85", b"C\x08" + bytes(8), "has 8 bytes, but shape (5,) of float64 needs 40"),
        (b"K\x01\x85", b"C\x00", "has 0 bytes, but shape (1,) of float64 needs 8"),
        (b"J\xff\xff\xff\xff\x85", b"C\x00", "an array with an impossible shape"),
        (b"\x8a\x09" + b"\xff" * 8 + b"\x00\x85", b"C\x00", "an array with an impossible shape"),
        (b"\x8a\x08" + bytes(7) + b"\x20K\x00\x86", b"C\x00", "has the impossible shape"),
        (b"\x88\x85", b"C\x08" + bytes(8), "an array with an impossible shape"),
        (b"X\x01\x00\x00\x00a\x85", b"C\x00", "an array with an impossible shape"),
        (b"K\x01", b"C\x08" + bytes(8), "an array without a usable shape"),
        (b"(" + b"K\x01" * 33 + b"t", b"C\x08" + bytes(8), "an array without a usable shape"),
        (b"K\x01\x85", b"]", "stores its values as a list, not as bytes"),
        (
            b"K\x01\x85",
            b"X\x03\x00\x00\x00\xe2\x82\xac",
            "stores its values as a str, not as bytes",
        ),
    ],
)
def test_arrays_that_contradict_themselves(
    tmp_path: Path, shape: bytes, data: bytes, message: str
) -> None:
    code = b"\x80\x03](}(X\x0f\x00\x00\x00init_state_dict}X\x0c\x00\x00\x00observations"
    for array in (array_code(shape, data), buffer_code(data, shape, b"X\x01\x00\x00\x00C")):
        (tmp_path / "d.pickle").write_bytes(code + array + b"ue.")
        assert message in refused(tmp_path / "d.pickle")


@pytest.mark.parametrize(
    "order",
    [
        b"X\x01\x00\x00\x00A",
        b"X\x01\x00\x00\x00K",
        b"]",
        b"X\x01\x00\x00\x00CK\x00K\x01\x86",
        b"X\x01\x00\x00\x00KN",
        b"X\x01\x00\x00\x00K]",
        b"X\x01\x00\x00\x00KK\x00\x85",
        b"X\x01\x00\x00\x00KK\x00K\x00\x86",
        b"X\x01\x00\x00\x00KK\x01K\x02\x86",
        b"X\x01\x00\x00\x00KI00\nI01\n\x86",
        b"X\x01\x00\x00\x00KNN\x86",
    ],
)
def test_arrays_in_an_unknown_order_are_refused(tmp_path: Path, order: bytes) -> None:
    code = buffer_code(b"C\x08" + bytes(8), b"K\x01K\x01\x86", order)
    (tmp_path / "d.pickle").write_bytes(b"\x80\x05" + code + b".")
    array = plain_pickle.load(tmp_path / "d.pickle", "d.pickle")
    with pytest.raises(InvalidEpisodeError, match="an array with an unknown memory order"):
        array.build("array")


def test_arrays_of_one_buffer_cannot_change_each_other(tmp_path: Path) -> None:
    (tmp_path / "d.pickle").write_bytes(pickle.dumps(np.zeros(3), 5))
    array = plain_pickle.load(tmp_path / "d.pickle", "d.pickle").build("array")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@settings(deadline=None, max_examples=1000 if FULL else 100)
@given(
    array=npst.arrays(
        st.one_of(
            npst.boolean_dtypes(),
            npst.integer_dtypes(endianness="?"),
            npst.unsigned_integer_dtypes(endianness="?"),
            npst.floating_dtypes(endianness="?"),
        ),
        npst.array_shapes(min_dims=0, min_side=0),
    ),
    order=st.randoms(use_true_random=False),
    scalar=st.booleans(),
    pickler=st.sampled_from(list(PICKLERS)),
)
def test_every_plain_array_survives(
    tmp_path_factory: pytest.TempPathFactory,
    array: np.ndarray,
    order: random.Random,
    scalar: bool,
    pickler: str,
) -> None:
    # In Fortran's order, in C's or in neither.
    axes = order.sample(range(array.ndim), array.ndim)
    array = np.array(array.transpose(axes), order="C").transpose(np.argsort(axes))
    value = array[()] if scalar and array.ndim == 0 else array
    path = tmp_path_factory.getbasetemp() / "array.pickle"
    path.write_bytes(PICKLERS[pickler](value))
    found = plain_pickle.load(path, "array").build("array")
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(found, value, strict=isinstance(value, np.ndarray))


PYTHON_2 = [
    (
        "c-pm-L64g-5QXpaGkSr`M%acdk*em*C5J}s2`MsQETn{ZjkB9b{qY^JVQGRD?V*t-Cc*f9^X3sA6@jo)6!w7;`qZ"
        "@Ch$;ZZplmNEbz7BZEmo(?(KK9ZeuJ*$N3KD|5ZWD3nVS-z5(xJ}K?2Ak$OxF9Y7Jq=@ZdiI>~_2Cg}_h|m|`E~*"
        "C-15U9ZsX11&zdt~wM>eZmJV%5&QpeJKs7%_QGe_P!z!>fzx?F&s>=v#c))Mh<j!JfkDj;eCI^%c2M@qOBCGsOP`"
        "8C{ZAI(>CVN8FcMXHKoA@2<r_cF&^-y&V5TH0g1fw0dVaA(-H78w~xH~{d0hAuJhnqo?9xy^J`rXV87qq#SxWLkM"
        "hPTqZXUoNoV3TdgjicgASaFPUv@T8XOKbOUbe%rPDNqfuO*>%ggm^_~h3r*^ZYY+4`TTr`hmwf?^)1_!DaKp`mjh"
        "66eE@B_GJh-wxl}Q50?!ZY|wvXT$sVZ4DBcP+qR>8N>qN+aNtdqp5@KNin_8LV90gXr)ak-GKBZlSQ*+Vh*3hP5O"
        "ey$iG3Grf$<CeQ9BI>h-^;W!zWy`#8>y^T(>WGtU<##y*Lcqr~E`M~Otsks{<iTJC>pBewbrX-bk%"
    ),
    (
        "c-n=L%We}f6o$_vp-J6I(}Zv<mzHkuDoPOx7Kp52q%4puu>eJLG4e>sB*)_^ibN!y2Off_;1SrfVZ)~QGNH)Oa-<"
        "n+#`gdJ=R0pPpc`yZMiiHeyoeRgu$dOsVznNnOUXxzYOeBF%6Lu6G@i$jV2io~Bvb1ZCwPsrMsgZK6sT9YL!%}OK"
        "1`?6m*=|dD*~0U0Q7E~wIzQa%dEuCB`!0`(`8XAS*42L?$)cw+%^)b<yeqtwLKaIG-@be61;m-CkSnVXMZJlF&-1"
        "v0r>buKNFp(mlwI3l}a}~%korVcZ2(swQ#j8u_tz^_`~bKdUc#vwe7ZlNw?06bRV6(fx~l^ylw#ip7A*jJl*S77o"
        "uj}#nW1OcvTmAtys8BN-oc0m1|sh!_&R#*cduPd*>MHVz$0c-1=?e{(d(^+HvaCZh30AYqdIM{<uzg$EJM#kCdl`"
        "g+QPSd$127^mO749#YX1Eh=_cU~b<P9na^U_0cY&%^bREnKBa-dO-K7@JI7tJDR?aUHG(*E@%&blN3I?W0&HB-S~"
        "g(-1m>k=TD}7nyfy;hqb7W@Z>6l1B>v$LhKuiFwlYd=oc@}8fy"
    ),
    (
        "c-n=L%We}f6o${tgeG+-O%uYc+)6jhDk_Kt3q<x<%A%4b7NBS@Mjk1d#2!ykq(<r{fxHSl1W&;uuxG=DP4Q&_nJV"
        "H)_GoPR|Nrxy3;!+mq9ykuf+Q8wyoe>uc#sy=biNp*GeHN_Y9jMkh<Jg@G@ir)@rJ!enOw{%;@60uJi&my52t)5!"
        "U6HlN2AfJOI2pWAQR%j`jj_GQ_%OZ$V%SY;xQI9ofV}NRVoqRt(}U@-g1OtMZ82g?M2wb{)#F0ch73~(73<2;=Um"
        "*fQv6`4ONs*UgUCIO4aK)%TvkQOTHhG2A|JL-eJ4!ugQTnX&IC1cZ=OEEh-b#eti4}4liZ$x&Z+Ej81sZ5xlMi0S"
        "9Z7`*|(d-<n%(6$xiaNyS+#b47;Va0G7}4A@_@{)QYuUBuMaq5Xav+SBj4`(~V4om-C1ZL4F0<xlHicTBLCSAu;c"
        "As}eO9_&L19TjrP4<i<^2HPQ?r$&93wH*C>T0dB^aHF1@S?JR9U<&{Jh`Hb&)Zn`gRp!Ec_y=a+l435KBjZ`KIr$"
        "$O`~PG3`ID}nI+=^;k(K)g(eYM9J%i}LK<a8t&{G-d;1~PY76S"
    ),
]


@pytest.mark.parametrize("code", PYTHON_2, ids=lambda code: f"protocol {PYTHON_2.index(code)}")
def test_pickles_that_python_2_wrote(tmp_path: Path, code: str) -> None:
    # Written by cPickle of Python 2.7.18 with NumPy 1.16.6.
    (tmp_path / "d.pickle").write_bytes(zlib.decompress(base64.b85decode(code)))
    for length, found in enumerate(read_demonstrations(tmp_path / "d.pickle"), 2):
        truth = {
            "observations": np.arange(2.0 * length).reshape(length, 2) / 3,
            "actions": np.arange(10, 10 + 3 * length, dtype=">i2").reshape(length, 3),
            "rewards": np.linspace(-1, 1, length).astype("f4"),
        }
        for name, column in truth.items():
            np.testing.assert_array_equal(getattr(found, name), column, strict=True)
        state = {"qpos": np.frombuffer(b"\n\r'\"\\\0\x1a\xff", "u1"), "qvel": np.zeros((0, 3))}
        assert list(found.initial_state) == list(state)
        for name, value in state.items():
            np.testing.assert_array_equal(found.initial_state[name], value, strict=True)
        assert found.terminal == (length == 3)


# --- damaged pickles ----------------------------------------------------------------------------


@pytest.mark.parametrize("pickler", PICKLERS)
def test_damaged_pickles_are_one_clear_line(tmp_path: Path, pickler: str) -> None:
    path = tmp_path / "d.pickle"
    path.write_bytes(PICKLERS[pickler](counting_episodes()))
    count = 2000 if FULL else 100
    assert survive_mutants(path, count, "dapg") > count / 2


def _global(name: str) -> bytes:
    return f"c{name.replace(' ', chr(10))}\n".encode()


# Pickle code that leaves one value each.
VALUES = [
    *(_global(name) for name in plain_pickle._GLOBALS),
    *(pickle.dumps(text, 3)[2:-1] for text in ("C", "F", "K", "latin1", "f8", "u1", "O", "<")),
    *(pickle.dumps(value, 3)[2:-1] for value in (None, True, 0, 1, -1, 0.0, [], {}, ())),
    *(pickle.dumps(shape, 3)[2:-1] for shape in ((0,), (1,), (1, 0), (0, 1), (2**62, 0))),
    *(pickle.dumps(data, 5)[11:-1] for data in (bytes(8), bytearray(8))),
    *(b"U\x08" + bytes(8), b"S'\\xff'\n", b"V\\u1234\n", b"h\x00", FLOAT64),
    array_code(b"K\x01\x85", b"C\x08" + bytes(8)),
]


@settings(deadline=None, max_examples=5000 if FULL else 300)
@given(
    name=st.sampled_from(list(plain_pickle._GLOBALS)),
    arguments=st.lists(st.sampled_from(VALUES), max_size=6),
    state=st.none() | st.lists(st.sampled_from(VALUES), max_size=8),
)
def test_calls_of_anything_with_anything_are_one_clear_line(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    arguments: list[bytes],
    state: list[bytes] | None,
) -> None:
    path = tmp_path_factory.getbasetemp() / "call.pickle"
    code = _global(name) + b"(" + b"".join(arguments) + b"tRq\x00"
    path.write_bytes(code + (b"" if state is None else b"(" + b"".join(state) + b"tb") + b".")
    message = ""
    try:
        found = plain_pickle.load(path, "call")
        if isinstance(found, plain_pickle.PickledArray | plain_pickle.PickledScalar):
            assert found.build("array").nbytes <= 8
    except InvalidEpisodeError as error:
        message = str(error)
    assert len(message) < 1000
    assert "\n" not in message


@needs_door
@pytest.mark.parametrize("protocol", [3, pickle.HIGHEST_PROTOCOL])
def test_the_real_demonstrations_damaged(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "door.pickle"
    path.write_bytes(pickle.dumps(pickle.loads(DOOR.read_bytes()), protocol))
    # Only 0.3 % of the file is not numbers: aim at the operations and what follows them.
    starts = np.array([place for _, _, place in pickletools.genops(path.read_bytes())])
    positions = np.unique(np.concatenate([starts, starts + 1]))[:-1]
    assert survive_mutants(path, 500 if FULL else 60, "dapg", positions) > 30
