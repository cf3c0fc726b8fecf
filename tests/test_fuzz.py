"""Whatever happens to a dataset's files, reading it gives the truth or an error of our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import minari_pipe
from minari_pipe.testing import FULL, episode
from tests.conftest import CHECKOUT

SPACE = spaces.Dict(a=spaces.Box(-1, 1, (2,)), t=spaces.Tuple([spaces.Text(8), spaces.Discrete(3)]))
FORMATS = ("hdf5", "arrow", "parquet")
LEGACY = CHECKOUT / "tests" / "legacy"
OLDER = {
    "cartpole-random-v0": LEGACY / "0.4.0",
    "nest-random-v0": LEGACY / "0.4.3",
}
N_CASES = 420 if FULL else 60
"""Of each dataset: 500 in all, 2,100 for a release."""


def make(dataset_id: str, data_format: str) -> None:
    rng = np.random.default_rng(0)
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    with warnings.catch_warnings(action="ignore"):
        minari_pipe.create_dataset_from_buffers(
            dataset_id,
            [episode(SPACE, action_space, rng) for _ in range(4)],
            observation_space=SPACE,
            action_space=action_space,
            data_format=data_format,
        )


@pytest.mark.parametrize("name", [*FORMATS, *OLDER])
def test_a_damaged_dataset_gives_the_truth_or_an_error_of_our_own(name: str) -> None:
    root = Path(os.environ["MINARI_DATASETS_PATH"])
    dataset_id = name
    if name in FORMATS:
        dataset_id = f"fuzz/{name}-v0"
        make(dataset_id, name)
    else:
        shutil.copytree(OLDER[name] / name, root / name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", dataset_id, "0", str(N_CASES)],
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    counts = Counter(result["result"] for result in results)
    bad = [r for r in results if r["result"] not in ("same", "refused", "values")]
    assert not bad, bad[:5]
    assert len(results) == N_CASES
    assert counts["refused"] > N_CASES / 4, counts  # the damage is real
