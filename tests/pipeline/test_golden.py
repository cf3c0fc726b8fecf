"""A stage that writes other bytes has another ``OUTPUT_VERSION``.

An installed package's stages lie outside DVC's sight, and that number stands for their code.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from minari_pipe.pipeline.config.dvc_yaml import OUTPUT_VERSION
from tests.golden import write_stage_outputs as golden

RECORD = json.loads(golden.GOLDEN.read_text())
REGENERATE = "run python tests/golden/write_stage_outputs.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str]:
    """What the stages write now; those that other versions make are left out."""
    stages = [stage for stage in RECORD if golden.made_with(stage) == RECORD[stage]["made_with"]]
    if not stages:
        return {}
    root = tmp_path_factory.mktemp("golden") / "work"
    command = [sys.executable, golden.__file__, "--print", str(root), *stages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_stage_has_a_number_and_golden_bytes():
    assert set(OUTPUT_VERSION) == {*RECORD, "train_expert"}
    assert OUTPUT_VERSION["train_expert"] == OUTPUT_VERSION["train"]  # one module makes both
    for stage, entry in RECORD.items():
        assert OUTPUT_VERSION[stage] == entry["output_version"], (
            f"OUTPUT_VERSION[{stage!r}] was raised: {REGENERATE}"
        )


@pytest.mark.parametrize("stage", RECORD)
def test_a_stage_writes_the_bytes_that_its_number_stands_for(stage, found):
    if stage not in found:
        made, now = RECORD[stage]["made_with"], golden.made_with(stage)
        other = [f"{k} {v}, here {now.get(k)}" for k, v in made.items() if now.get(k) != v]
        pytest.skip(f"the golden bytes were made with {'; '.join(other)}")
    if stage not in golden.changed_by_itself(found, RECORD):
        return  # equal, or other only because a stage before it writes other bytes
    number = OUTPUT_VERSION[stage]
    pytest.fail(
        f"stage {stage} writes other bytes than OUTPUT_VERSION[{stage!r}] = {number} stands for. "
        f"If that is meant, raise it to {number + 1} in {golden.VERSIONS}, else "
        f"installed packages keep what the old code made; then {REGENERATE}",
        pytrace=False,
    )


def test_only_a_stage_that_differs_by_itself_is_named():
    record = {stage: {"sha256": "old"} for stage in golden.STAGES}
    same = dict.fromkeys(golden.STAGES, "old")
    assert golden.changed_by_itself(same, record) == []
    after_collect = {"collect", "create", "validate", "publish"}
    found = same | dict.fromkeys(after_collect, "new")
    assert golden.changed_by_itself(found, record) == ["collect"]
    assert golden.changed_by_itself(same | {"publish": "new"}, record) == ["publish"]
