from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from minari_pipe.core.files.fetch import SHIPPED, FileSource
from minari_pipe.policies.checkpoint import load_weights
from minari_pipe.policies.sb3 import SB3Policy
from scripts import distill_door_expert as script
from tests.conftest import CHECKOUT, SHARED

pytest.importorskip("gymnasium_robotics")

CHECKPOINT = SHIPPED / "door_expert.zip"
RECORD = json.loads((SHIPPED / "door_expert.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def teacher() -> Path:
    path = SHARED / "policies" / "door-v0.npz"
    if not path.is_file():
        pytest.skip(f"the teacher's arrays are not at {path}")
    return path


def expert(**kwargs) -> SB3Policy:
    return SB3Policy(
        algorithm=RECORD["algorithm"],
        policy_class=RECORD["policy_class"],
        policy_kwargs=RECORD["policy_kwargs"],
        checkpoint=FileSource(address="shipped:door_expert.zip", sha256=RECORD["sha256"]),
        **kwargs,
    )


def test_the_checkpoint_is_the_one_of_the_provenance_and_small():
    content = CHECKPOINT.read_bytes()
    assert hashlib.sha256(content).hexdigest() == RECORD["sha256"]
    assert len(content) < 40_000


def test_the_provenance_says_where_it_comes_from_and_what_it_is_worth():
    assert RECORD["teacher"]["license"] == "Apache-2.0"
    assert RECORD["teacher"]["repository"].endswith("aravindr93/hand_dapg")
    assert len(RECORD["teacher"]["commit"]) == 40
    assert (CHECKOUT / "scripts" / RECORD["script"]).is_file()
    first, last = RECORD["training_reset_seeds"]
    assert len(RECORD["scores_by_reset_seeds"]) == 3
    for seeds, scores in RECORD["scores_by_reset_seeds"].items():
        low, high = map(int, seeds.split(".."))
        assert high - low == 99
        assert not set(range(low, high + 1)) & set(range(first, last + 1))
        assert 3000 <= scores["return_mean"] <= 3030
        assert scores["success"] >= 0.99


def test_only_the_checkpoint_and_its_provenance_are_there():
    found = {p.name for p in SHIPPED.iterdir() if p.is_file()}
    assert found == {
        "__init__.py",
        "door_expert.json",
        "door_expert.zip",
    }


def test_the_expert_opens_the_door_in_unseen_episodes():
    scores = script.evaluate(expert(), 70_000, 8, n_envs=8)
    assert scores["return_mean"] >= 2900
    assert scores["success"] == 1.0


def test_the_provenances_scores_are_measured_again():
    """The first episodes of the first set; the whole set is measured when the script runs."""
    recorded = RECORD["scores_by_reset_seeds"]["0..99"]
    scores = script.evaluate(expert(), 0, 4, n_envs=4)
    assert scores["return_min"] >= recorded["return_min"] - 1
    assert abs(scores["return_mean"] - recorded["return_mean"]) < 3 * recorded["return_std"]


def test_its_weights_are_not_the_teachers(teacher):
    weights = load_weights(CHECKPOINT)
    arrays = script.Teacher.load(teacher).arrays
    middle = weights["mlp_extractor.policy_net.2.weight"].numpy()
    assert middle.shape == arrays["weight_1"].shape
    assert not np.isclose(np.sort(middle.ravel()), np.sort(arrays["weight_1"].ravel())).all()


def test_it_does_what_the_teacher_does_in_the_states_it_comes_to(teacher):
    from tqdm import tqdm

    policy = expert()
    learned = script.Teacher.load(teacher)
    with script.environments(2) as envs:
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
        script.main([str(teacher), "--out", str(out), "--seed", "4"])
        records.append((out.read_bytes(), out.with_suffix(".json").read_bytes()))
    assert records[0] == records[1]
    record = json.loads(records[0][1])
    assert record["sha256"] == hashlib.sha256(records[0][0]).hexdigest()
    assert record["teacher"]["sha256"] == RECORD["teacher"]["sha256"]
    assert record.keys() == RECORD.keys()


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
