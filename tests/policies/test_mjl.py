"""MuJoCo logs, alone or in a zip, are read exactly, and refused with a reason."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minari_pipe.errors import ConfigError, InvalidEpisodeError, UnknownFormatError
from minari_pipe.policies.demonstration_formats import FORMATS, mjl, read_demonstrations
from tests.conftest import FULL
from tests.support.demonstration_files import (
    counting_episodes,
    refused,
    small_log,
    survive_mutants,
    write_d4rl,
    write_dapg,
    write_zip,
)
from tests.support.demonstration_files import mjl as log_of

SIZES = st.integers(0, 3)


@settings(max_examples=200 if FULL else 25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(1, 90), SIZES, st.integers(1, 4)),
    others=st.tuples(SIZES, SIZES, SIZES),
    n_frames=st.integers(2, 6),
    name=st.binary(max_size=9),
)
def test_a_log_reads_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    sizes: tuple[int, int, int],
    others: tuple[int, int, int],
    n_frames: int,
    name: bytes,
) -> None:
    rng = np.random.default_rng(seed)
    qpos, qvel, ctrl = (rng.normal(size=(n_frames, n)).astype(np.float32) for n in sizes)
    path = tmp_path_factory.getbasetemp() / "d.mjl"
    path.write_bytes(log_of(qpos, qvel, ctrl, name=name, others=others))
    (found,) = read_demonstrations(path)
    np.testing.assert_array_equal(found.observations, qpos[:-1], strict=True)
    np.testing.assert_array_equal(found.actions, ctrl[:-1], strict=True)
    assert np.isnan(found.rewards).all() and found.rewards.shape == (n_frames - 1,)
    assert found.terminal is False
    assert set(found.initial_state) == {"qpos", "qvel"}
    np.testing.assert_array_equal(found.initial_state["qpos"], qpos[0].astype(np.float64))
    np.testing.assert_array_equal(found.initial_state["qvel"], qvel[0].astype(np.float64))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_holds_a_demonstration_per_log_in_the_order_of_names(
    tmp_path: Path, method: int
) -> None:
    lengths = {"demos/b_kettle/2.mjl": 3, "demos/b_kettle/1.mjl": 4, "demos/a_slide/9.mjl": 5}
    files = {name: small_log(length) for name, length in lengths.items()}
    rubbish = {"demos/": b"", "__MACOSX/demos/._1.mjl": b"", "demos/._1.mjl": b"", "README": b"?"}
    path = write_zip(tmp_path / "d.zip", {**files, **rubbish}, method)
    found = read_demonstrations(path)
    assert [len(demonstration) for demonstration in found] == [4, 3, 2]
    assert [len(demonstration) for demonstration in found[1:]] == [3, 2]
    assert len(found[-1]) == 2
    for files, expected in (("*_kettle/*", [3, 2]), ("demos/a*", [4]), ("*", [4, 3, 2])):
        chosen = read_demonstrations(path, files=files)
        assert [len(demonstration) for demonstration in chosen] == expected


def test_a_log_is_told_from_other_formats_even_if_its_first_byte_is_that_of_a_pickle(
    tmp_path: Path,
) -> None:
    for nq in (ord("("), ord("]"), 0x80):
        path = tmp_path / "d"
        path.write_bytes(log_of(np.ones((3, nq)), np.ones((3, 1)), np.ones((3, 2))))
        assert read_demonstrations(path)[0].observations.shape == (2, nq)
    for write in (write_dapg, write_d4rl):
        path = write(tmp_path / write.__name__, counting_episodes())
        assert not FORMATS["mjl"].matches(path)
        with pytest.raises(ConfigError, match=r"policy\.files is 'x', which chooses files of an"):
            read_demonstrations(path, files="x")
    path.write_bytes(small_log()[:-1])  # damaged: it is not recognized, but named with its format
    with pytest.raises(UnknownFormatError, match="not in a known demonstration format"):
        read_demonstrations(path)


def test_state_keys_choose_the_state_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "d.mjl"
    path.write_bytes(small_log())
    assert set(read_demonstrations(path, state_keys=["qvel"])[0].initial_state) == {"qvel"}
    assert "has no 'wings'; the state in a MuJoCo log is: 'qpos', 'qvel'" in refused(
        path, state_keys=["wings"]
    )


def _header(position: int, value: int) -> Any:
    def change(content: bytes) -> bytes:
        return content[: 4 * position] + struct.pack("<i", value) + content[4 * position + 4 :]

    return change


def _number(row: int, column: int, value: float) -> Any:
    start = 28 + len(b"kitchen") + 4 * (8 * row + column)
    return lambda content: content[:start] + struct.pack("<f", value) + content[start + 4 :]


FAULTS = {
    "nothing": (lambda content: b"", "has 0 bytes, too few for a MuJoCo log"),
    "half a header": (lambda content: content[:20], "has 20 bytes, too few"),
    "no frames": (lambda content: content[:35], "has 0 bytes of records, expected two or more"),
    "one frame": (lambda content: content[: 35 + 32], "has 32 bytes of records, expected two"),
    "truncated": (lambda content: content[:-5], "has 155 bytes of records, expected two or more "),
    "a negative size": (_header(1, -2), "nv is -2, expected 0 to 100000; it is damaged"),
    "no control": (_header(2, 0), "nu is 0, expected 1 to 100000"),
    "a huge size": (_header(3, 2**31 - 1), "nmocap is 2147483647, expected 0 to 100000"),
    "a negative name": (_header(6, -28), "the length of the name is -28, expected 0"),
    "a name beyond the end": (_header(6, 99_999), "has -99832 bytes of records, expected"),
    "sizes beyond the end": (_header(5, 9_999), "has 160 bytes of records, expected two or more"),
    "a NaN control": (_number(1, 7, np.nan), "demonstration 0: actions is nan at (1, 1)"),
    "an infinite state": (_number(0, 4, np.inf), "initial state 'qvel' is inf at (0,)"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_a_log_are_named_alone_and_in_a_zip(tmp_path: Path, name: str) -> None:
    change, message = FAULTS[name]
    path = tmp_path / "d.mjl"
    path.write_bytes(change(small_log()))
    assert message in refused(path, format="mjl")
    path = write_zip(tmp_path / "d.zip", {"a/d.mjl": path.read_bytes()})
    assert message in (found := refused(path))
    assert "'a/d.mjl'" in found or "demonstration 0" in found


def test_logs_of_different_robots_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "d.zip", {"a.mjl": small_log(), "b.mjl": small_log(nu=3)})
    assert "demonstration 1: an action and an observation have shapes (3,) and (3,)" in refused(
        path
    )


def test_a_choice_that_a_source_cannot_meet_names_what_is_there(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "d.zip", {"demos/sunday_kettle\n/1.mjl": small_log()})
    assert (
        "holds no .mjl file that matches policy.files, '*slide/*'; it has demonstrations of other "
        "tasks, in the folders 'demos/sunday_kettle\\n'"
    ) in refused(path, files="*slide/*")
    alone = tmp_path / "d.mjl"
    alone.write_bytes(small_log())
    assert "is one log, but policy.files chooses '*'" in refused(alone, files="*")
    path = write_zip(tmp_path / "d.zip", {"page.html": b""})
    assert "holds no .mjl file; it has: 'page.html'" in refused(path)


def test_hostile_zips_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zip(tmp_path / "d.zip", {"a.mjl": small_log()}, zipfile.ZIP_LZMA)
    assert "has compression method 14, expected none or deflate" in refused(path)
    content = write_zip(path, {"a.mjl": small_log(), "b.mjl": small_log()}).read_bytes()
    path.write_bytes(content.replace(b"b.mjl", b"a.mjl"))
    assert "holds several files of one name" in refused(path)
    content = bytearray(write_zip(path, {"a.mjl": small_log()}).read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] |= 1  # says that it is encrypted
    path.write_bytes(content)
    assert "is encrypted, password required" in refused(path)
    monkeypatch.setattr(mjl, "FREE_BYTES", 1000)
    path = write_zip(path, {"a.mjl": small_log() + bytes(10**6)})
    assert "would unpack from " in refused(path)
    monkeypatch.setattr(mjl, "MAX_BYTES", 100)
    assert "and 100 for one file" in refused(write_zip(path, {"a.mjl": small_log()}))
    path.write_bytes(small_log())
    assert "has more than 100 bytes; refused" in refused(path)


def test_damaged_logs_and_zips_are_read_or_refused(tmp_path: Path) -> None:
    count = 3000 if FULL else 300
    path = tmp_path / "d.mjl"
    path.write_bytes(small_log())
    assert survive_mutants(path, count, "mjl") > count / 4
    path = write_zip(tmp_path / "d.zip", {"a/1.mjl": small_log(), "a/2.mjl": small_log(3)})
    assert survive_mutants(path, count, "mjl") > count / 4


def test_a_zip_that_changes_while_it_is_used_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "d.zip", {"a/1.mjl": small_log(), "a/2.mjl": small_log()})
    found = read_demonstrations(path)
    write_zip(path, {"a/1.mjl": small_log()})
    with pytest.raises(InvalidEpisodeError, match="is a damaged zip"):
        found[1]
