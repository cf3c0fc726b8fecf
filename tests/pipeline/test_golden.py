"""A stage that writes other bytes has another ``OUTPUT_VERSION``.

An installed package's stages lie outside DVC's sight, and that number stands for their code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minari_pipe.pipeline.config.dvc_yaml import OUTPUT_VERSION, read_params, stage_code
from minari_pipe.pipeline.config.schema import params_of
from tests.conftest import CHECKOUT
from tests.golden import write_stage_outputs as golden

RECORD = json.loads(golden.GOLDEN.read_text())
REGENERATE = "run python tests/golden/write_stage_outputs.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("golden") / "work"


@pytest.fixture(scope="module")
def run(root) -> dict[str, Any]:
    """What stages write and the code that they run; no stage that other versions make."""
    stages = [stage for stage in RECORD if golden.made_with(stage) == RECORD[stage]["made_with"]]
    if not stages:
        return {"sha256": {}, "code": {}}
    command = [sys.executable, golden.__file__, "--print", str(root), *stages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found(run) -> dict[str, str]:
    return run["sha256"]


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


def test_stages_of_a_checkout_depend_on_all_code_that_they_run(root, run):
    package, engines = CHECKOUT / "minari_pipe", "engines"  # which change no byte
    for key, files in run["code"].items():
        stage, _, name = key.partition(" of ")
        known = stage_code(params_of(read_params(name, root)), stage, CHECKOUT)
        used = [file for file in map(Path, files) if file.is_relative_to(package)]
        assert [f for f in used if f not in known and f.parent.name != engines] == [], key


def test_only_a_stage_that_differs_by_itself_is_named():
    record = {stage: {"sha256": "old"} for stage in golden.STAGES}
    same = dict.fromkeys(golden.STAGES, "old")
    assert golden.changed_by_itself(same, record) == []
    after_collect = {"collect", "create", "validate", "card", "publish"}
    found = same | dict.fromkeys(after_collect, "new")
    assert golden.changed_by_itself(found, record) == ["collect"]
    assert golden.changed_by_itself(same | {"publish": "new"}, record) == ["publish"]
