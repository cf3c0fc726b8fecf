"""Whatever happens to a dataset's files, reading it gives the truth or an error of our own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from minari_pipe.testing import FULL
from tests.conftest import CHECKOUT
from tests.resilience.fuzz import FORMATS, THEIRS, compare

NAMES = [*FORMATS, *THEIRS]
N_CASES = 1_120 if FULL else 8
"""Of each dataset: 72 in all, 10,080 for a release."""


@pytest.fixture(scope="module")
def fuzzed() -> subprocess.CompletedProcess[str]:
    """One process that damages copies of all datasets."""
    steps = "300" if FULL else "6"  # the longer ones have pages to exchange
    options = ["--count", str(N_CASES * len(NAMES)), "--steps", steps]
    command = [sys.executable, "-m", "tests.resilience.fuzz", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_dataset_gives_the_truth_or_an_error_of_our_own(name, fuzzed) -> None:
    rows = [line.split() for line in fuzzed.stdout.splitlines() if line.startswith(f"{name} ")]
    assert rows, fuzzed.stderr[-3000:]
    same, refused, values, *bad = (
        sum(map(int, column)) for column in zip(*(row[-6:] for row in rows), strict=True)
    )
    assert same + refused + values == N_CASES and not any(bad), fuzzed.stdout[-3000:]
    assert refused > N_CASES / 4, rows  # the damage is real


COMPARED = {
    "as they were": (np.int64, np.arange(3, dtype=np.int64), "same"),
    "another sign": (np.int64, np.arange(3, dtype=np.uint64), "values"),
    "the other byte order": (np.int64, np.arange(3, dtype=">i8"), "values"),
    "another size": (np.int64, np.arange(3, dtype=np.int32), "wrong"),
    "another number of rows": (np.int64, np.arange(4, dtype=np.uint64), "wrong"),
    "numbers of another kind": (np.float64, np.arange(3, dtype=np.int64), "wrong"),
}


@pytest.mark.parametrize(("dtype", "found", "expected"), COMPARED.values(), ids=COMPARED)
def test_of_integers_no_file_says_sign_or_byte_order_but_size_and_kind(dtype, found, expected):
    truth = {"actions": np.arange(3, dtype=dtype)}
    assert compare(truth, {"actions": found}) == expected
    is_free = expected != "wrong" or len(found) == 3
    assert is_free == (compare(truth, {"actions": found}, free="infos") != "wrong")
