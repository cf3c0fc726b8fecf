from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minari_pipe.core.files.fetch import SHIPPED, FileSource
from minari_pipe.policies.checkpoint import load_weights
from minari_pipe.policies.sb3 import SB3Policy
from scripts import distill_adroit_expert as script
from tests.conftest import CHECKOUT, SHARED

pytest.importorskip("gymnasium_robotics")

#: Per task: least and largest mean return of the student, and least success.
WORTH = {
    "door": (3000, 3030, 0.99),
    "hammer": (14_600, 17_900, 0.99),
    "pen": (7_000, 9_300, 0.75),
    "relocate": (3_800, 4_800, 0.99),
}


@pytest.fixture(scope="module", params=script.TASKS.values(), ids=script.TASKS)
def task(request) -> script.Task:
    return request.param


def checkpoint(task: script.Task) -> Path:
    return SHIPPED / f"{task.name}_expert.zip"


def record_of(task: script.Task) -> dict[str, Any]:
    return json.loads(checkpoint(task).with_suffix(".json").read_text(encoding="utf-8"))


def teacher_of(task: script.Task) -> Path:
    path = SHARED / "policies" / f"{task.name}-v0.npz"
    if not path.is_file():
        pytest.skip(f"the teacher's arrays are not at {path}")
    return path


@pytest.fixture(scope="module")
def teacher() -> Path:
    return teacher_of(script.TASKS["door"])


def expert(task: script.Task) -> SB3Policy:
    record = record_of(task)
    return SB3Policy(
        algorithm=record["algorithm"],
        policy_class=record["policy_class"],
        policy_kwargs=record["policy_kwargs"],
        checkpoint=FileSource(address=f"shipped:{task.name}_expert.zip", sha256=record["sha256"]),
        deterministic=task.deterministic,
    )


def test_the_checkpoint_is_the_one_of_the_provenance_and_small(task):
    content = checkpoint(task).read_bytes()
    assert hashlib.sha256(content).hexdigest() == record_of(task)["sha256"]
    assert len(content) < 60_000


def test_the_provenance_says_where_it_comes_from_and_what_it_is_worth(task):
    record = record_of(task)
    assert record["teacher"]["license"] == "Apache-2.0"
    assert record["teacher"]["repository"].endswith("aravindr93/hand_dapg")
    assert len(record["teacher"]["commit"]) == 40
    assert (CHECKOUT / "scripts" / record["script"]).is_file()
    first, last = record["training_reset_seeds"]
    assert len(record["scores_by_reset_seeds"]) == 3
    low_return, high_return, success = WORTH[task.name]
    for seeds, scores in record["scores_by_reset_seeds"].items():
        low, high = map(int, seeds.split(".."))
        assert high - low == 99
        assert not set(range(low, high + 1)) & set(range(first, last + 1))
        assert low_return <= scores["return_mean"] <= high_return
        assert scores["success"] >= success


def test_only_the_checkpoints_and_their_provenances_are_there():
    found = {p.name for p in SHIPPED.iterdir() if p.is_file()}
    files = {f"{name}_expert.{kind}" for name in script.TASKS for kind in ("json", "zip")}
    assert found == {"__init__.py", *files}


def test_the_provenances_scores_are_measured_again(task):
    """The first episodes of the first set; the whole set is measured when the script runs."""
    recorded = record_of(task)["scores_by_reset_seeds"]["0..99"]
    scores = script.evaluate(task, expert(task), 0, 4, n_envs=4)
    assert scores["return_min"] >= recorded["return_min"] - 1
    assert abs(scores["return_mean"] - recorded["return_mean"]) < 3 * recorded["return_std"]


def test_its_weights_are_not_the_teachers(task):
    weights = load_weights(checkpoint(task))
    arrays = script.Teacher.load(teacher_of(task)).arrays
    middle = weights["mlp_extractor.policy_net.2.weight"].numpy()
    assert middle.shape == arrays["weight_1"].shape
    assert not np.isclose(np.sort(middle.ravel()), np.sort(arrays["weight_1"].ravel())).all()


def test_it_does_what_the_teacher_does_in_the_states_it_comes_to(teacher):
    from tqdm import tqdm

    door = script.TASKS["door"]
    policy = expert(door)
    learned = script.Teacher.load(teacher)
    with script.environments(door, 2) as envs:
        policy.bind(envs)

        def act(observations):
            return np.stack(policy.act(list(observations), [0, 1]))

        x, labels = script.visit(envs, 80_000, act, learned, tqdm(disable=True))
    assert x.shape == (400, 39)
    actions = np.concatenate([act(pair) for pair in x.reshape(200, 2, 39)])
    error = np.abs(actions - np.clip(labels, -1, 1))
    assert np.sqrt(np.mean(error**2)) < 0.03


def test_the_teacher_is_the_mlp_its_arrays_describe(teacher):
    """Against the same network built of PyTorch layers, on random observations."""
    torch = pytest.importorskip("torch")
    arrays = {name: torch.tensor(a) for name, a in script.Teacher.load(teacher).arrays.items()}
    observations = np.random.default_rng(0).normal(size=(50, 39))
    x = (torch.tensor(observations) - arrays["in_shift"]) / (arrays["in_scale"] + 1e-8)
    for i in range(2):
        x = torch.tanh(torch.nn.functional.linear(x, arrays[f"weight_{i}"], arrays[f"bias_{i}"]))
    x = torch.nn.functional.linear(x, arrays["weight_2"], arrays["bias_2"])
    expected = x * arrays["out_scale"] + arrays["out_shift"]
    found = script.Teacher.load(teacher).mean_action(observations)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-10, atol=1e-12)


def test_the_script_makes_the_same_bytes_twice(teacher, tmp_path, monkeypatch):
    """With fewer episodes and epochs than the real run, which took 80 s."""
    small = {"EPISODES": 2, "ROUNDS": 1, "EPOCHS": 1, "LAST_EPOCHS": 2, "N_UNSEEN": 1}
    for name, value in small.items():
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(script, "UNSEEN_SEEDS", (0,))
    records = []
    for name in ("a", "b"):
        out = tmp_path / name / "x.zip"
        script.main(["door", str(teacher), "--out", str(out), "--seed", "4"])
        records.append((out.read_bytes(), out.with_suffix(".json").read_bytes()))
    assert records[0] == records[1]
    record = json.loads(records[0][1])
    assert record["sha256"] == hashlib.sha256(records[0][0]).hexdigest()
    shipped = record_of(script.TASKS["door"])
    assert record["teacher"]["sha256"] == shipped["teacher"]["sha256"]
    assert record.keys() == shipped.keys()


def test_the_scales_are_folded_into_the_weights_exactly():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 2, (600, 39)), rng.normal(-1, 0.3, (600, 28))
    scales = script.Scale.of(x), script.Scale.of(y)
    network = script.fit(x, y, scales, 1, 0).double()
    with torch.no_grad():
        scaled = network(torch.tensor((x - scales[0].mean) / scales[0].std)).numpy()
    expected = scaled * scales[1].std + scales[1].mean
    np.testing.assert_allclose(
        script.forward(script.unscaled(network, scales), x), expected, rtol=1e-9, atol=1e-9
    )
