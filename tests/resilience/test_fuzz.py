"""Whatever happens to a dataset's files, reading it gives the truth or an error of our own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from minari_pipe.testing import FULL
from tests.conftest import CHECKOUT
from tests.resilience.fuzz import FORMATS, THEIRS, compare

N_CASES = 1_120 if FULL else 28
"""Of each dataset: 504 in all, 10,080 for a release."""


@pytest.mark.parametrize("name", [*FORMATS, *THEIRS])
def test_a_damaged_dataset_gives_the_truth_or_an_error_of_our_own(name: str) -> None:
    steps = "300" if FULL else "6"  # the longer ones have pages to exchange
    command = [
        sys.executable,
        "-m",
        "tests.resilience.fuzz",
        "--count",
        str(N_CASES),
        "--dataset",
        name,
    ]
    done = subprocess.run(
        [*command, "--steps", steps], capture_output=True, text=True, check=False, cwd=CHECKOUT
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    *_, total = done.stdout.splitlines()
    same, refused, values, *bad = map(int, total.split()[1:])
    assert same + refused + values == N_CASES and not any(bad)
    assert refused > N_CASES / 4, total  # the damage is real


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
