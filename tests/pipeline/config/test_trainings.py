"""One file describes several trainings, and each is a family of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import hydra_compose
from minari_pipe.pipeline.config.dvc_yaml import removed, stages
from minari_pipe.pipeline.config.families import (
    check_family,
    family_files,
    family_params,
    sync_family,
)
from minari_pipe.pipeline.config.hydra_compose import every_task
from minari_pipe.pipeline.config.policy_refs import divided
from minari_pipe.pipeline.config.schema import Shared, params_values
from minari_pipe.pipeline.config.validate_config import filled
from minari_pipe.pipeline.releases.bump import bump
from tests.support.configs import composed
from tests.support.workspaces import make_workspace, write_config

FAMILY = """\
# @package _global_
defaults: [{/policy: sb3}, _self_]
family:
  training: ???
  at: {simple: 0.25}
  trainings:
    cart: {env: CartPole-v1, steps: 64}
    swing: {env: Acrobot-v1, steps: 128}
env: {id: "${family.trainings[${family.training}].env}"}
policy:
  algorithm: ppo
  train: {total_timesteps: "${family.trainings[${family.training}].steps}"}
ref_scores: {expert: "${policy}"}
"""

DATASET = """\
# @package _global_
defaults: [{/family: two}, _self_]
task: ???
tasks:
  cart-simple: {of: cart, kind: simple}
  cart-medium: {of: cart, kind: medium}
  swing-medium: {of: swing, kind: medium}
family: {training: "${tasks[${task}].of}", kind: "${tasks[${task}].kind}"}
dataset: {id: "control/${task}-v0"}
author: {name: Ada}
collect: {n_episodes: 2}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_workspace(tmp_path, control=DATASET)
    (tmp_path / "conf" / "family").mkdir()
    (tmp_path / "conf" / "family" / "two.yaml").write_text(FAMILY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MINARI_PIPE_CONF", raising=False)
    return tmp_path


def shared(name: str, *words: str) -> Shared:
    return family_params(filled(composed(f"+dataset={name}", *words).config))


def test_the_kinds_of_one_training_share_a_folder_and_two_trainings_do_not(root: Path) -> None:
    simple, medium, other = (one.config for one in every_task("control"))
    assert [one.family_name for one in (simple, medium, other)] == [
        "two_cart",
        "two_cart",
        "two_swing",
    ]
    assert family_params(filled(simple)) == family_params(filled(medium))
    assert (other.env.id, other.policy.train.total_timesteps) == ("Acrobot-v1", 128)
    assert "trainings" not in params_values(medium)["family"]


def test_a_family_is_composed_again_from_what_its_folder_records(root: Path) -> None:
    words = ["+dataset=control_cart-medium", "policy.train.total_timesteps=32"]
    params = filled(composed(*words).config)
    own, common = divided(words)
    assert (own, common) == (words[:1], words[1:])
    check_family("control_cart-medium", params, common, root)
    written = yaml.safe_load(family_files(params, common, root)["params.yaml"])
    assert written["overrides"] == ["+family=two", "family.training=cart", words[1]]
    assert written["family"]["training"] == "cart"
    choice, *rest = written["overrides"]
    alone = family_params(filled(hydra_compose.family(choice.partition("=")[2], rest)))
    assert {key: written[key] for key in ("env", "family", "policy", "ref_scores")} == {
        key: params_values(alone)[key] for key in ("env", "family", "policy", "ref_scores")
    }


def test_a_dataset_that_is_not_like_its_training_is_named_with_both_values(root: Path) -> None:
    write_config(root, "control", DATASET + "env: {id: MountainCar-v0}\n")
    params = filled(composed("+dataset=control_cart-medium").config)
    message = "env.id is 'MountainCar-v0', but conf/family/two.yaml sets 'CartPole-v1'"
    with pytest.raises(ConfigError, match=message):
        check_family("control_cart-medium", params, [], root)


def test_two_families_do_not_take_turns_in_one_folder(root: Path) -> None:
    params = filled(composed("+dataset=control_cart-medium").config)
    sync_family(params, [], root)
    (root / "conf" / "family" / "two_cart.yaml").write_text(
        "# @package _global_\ndefaults: [{/policy: sb3}, _self_]\nenv: {id: CartPole-v1}\n"
        "policy: {algorithm: ppo, train: {total_timesteps: 64}}\n"
        'ref_scores: {expert: "${policy}"}\n'
    )
    write_config(
        root,
        "other",
        "# @package _global_\ndefaults: [{/family: two_cart}, _self_]\n"
        "dataset: {id: control/other-v0}\nauthor: {name: Ada}\ncollect: {n_episodes: 2}\n",
    )
    other = filled(composed("+dataset=other").config)
    with pytest.raises(ConfigError, match="two_cart is the folder of conf/family/two.yaml, too"):
        check_family("other", other, [], root)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("of: cart, kind: medium", "of: card, kind: medium", "describes cart, swing.* Did you me"),
        ('training: "${tasks[${task}].of}", ', "", "family.training is None, but conf/family/two"),
    ],
    ids=["unknown", "none"],
)
def test_a_wrong_training_is_answered_with_those_that_are_there(
    old: str, new: str, message: str, root: Path
) -> None:
    write_config(root, "control", DATASET.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        composed("+dataset=control_cart-medium")


def test_the_name_of_a_training_is_not_a_path(root: Path) -> None:
    path = root / "conf" / "family" / "two.yaml"
    path.write_text(FAMILY.replace("swing:", "../swing:"))
    with pytest.raises(ConfigError, match="rename it in family.trainings of conf/family/two.yaml"):
        composed("+dataset=control_cart-medium")


def test_the_version_of_datasets_of_several_trainings_is_raised_at_once(root: Path) -> None:
    (root / "releases" / "control").mkdir(parents=True)
    (root / "releases" / "control" / "cart-simple-v0.json").touch()
    assert bump("control")[1:] == ("control/cart-simple-v0", "control/cart-simple-v1", 3)


def keys(params: Any, name: str, stage: str) -> list[str]:
    (found,) = (one.params for one in stages(name, params) if one.name == stage)
    return found


def test_a_share_that_is_taken_away_trains_and_chooses_again(root: Path) -> None:
    """DVC does not miss a key that a stage no longer lists."""
    (with_share, by_score) = (
        filled(composed("+dataset=control_cart-medium", *words).config)
        for words in (["family.at.medium=0.5"], [])
    )
    assert keys(with_share, "x", "choose") == ["family.at", "family.kind"]
    assert keys(by_score, "x", "choose") == ["family.fraction"]
    words = ("family.at.simple=null", "family.record_episodes=true")
    before, after = (
        keys(shared("control_cart-medium", *chosen), "two_cart", "train")
        for chosen in (["family.record_episodes=false"], words)
    )
    lock = {"params": {"params.yaml": dict.fromkeys(before)}, "deps": [{"path": "a"}]}
    assert removed(lock, {"params": [{"params.yaml": after}], "deps": ["a"]}) == [
        "family.at",
        "family.record_episodes",
    ]
    assert removed(lock, {"params": [{"params.yaml": before}], "deps": ["a"]}) == []
