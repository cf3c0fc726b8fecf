"""What is wrong with a family or a mixture is told in one line, before anything is made."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.policy_refs import divided
from minari_pipe.pipeline.config.shares import exact_shares
from minari_pipe.pipeline.run.command import run
from minari_pipe.pipeline.stages.sources import check_alike, whole_episodes
from tests.resilience.test_bad_input import files
from tests.support.workspaces import make_workspace, tiny, write_config

FAMILY = """\
# @package _global_
defaults: [{/policy: sb3}, _self_]
env: {id: CartPole-v1}
policy: {algorithm: ppo, train: {total_timesteps: 64}}
ref_scores: {expert: "${policy}"}
"""

MEDIUM = """\
# @package _global_
defaults: [{/family: pole}, _self_]
family: {kind: medium}
dataset: {id: pole/medium-v0}
author: {name: Ada}
collect: {n_episodes: 2}
"""

MIXED = """\
# @package _global_
defaults: [{/policy: mixture}, _self_]
policy: {parents: {tiny: 0.5, other: 0.5}}
dataset: {id: pole/mixed-v0}
author: {name: Ada}
"""


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    other = tiny("tests/other-v0")
    folder = make_workspace(
        tmp_path / "work", tiny=tiny("tests/tiny-v0"), other=other, medium=MEDIUM, mixed=MIXED
    )
    (folder / "conf" / "family").mkdir()
    (folder / "conf" / "family" / "pole.yaml").write_text(FAMILY)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["minari_pipe"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return folder


def refused(capfd, *argv: str) -> str:
    """What a command says that must not make anything."""
    assert run(list(argv)) == 1
    told = capfd.readouterr().err
    assert told.startswith("error: ")
    assert len(told.splitlines()) == 1
    return told


ROWS = {
    "kind": (["family.kind=mediun"], "family.kind is 'mediun'. Did you mean 'medium'"),
    "fraction": (["family.fraction=1.5"], "family.fraction is 1.5; expected a normalized score"),
    "negative fraction": (["family.fraction=-0.1"], "family.fraction is -0.1; expected"),
    "no checkpoints": (
        ["family.n_checkpoints=0"],
        "family.n_checkpoints is 0; expected 1 or more, since medium uses one",
    ),
    "simple without a share": (
        ["family.kind=simple"],
        "family.kind is simple, but family.at.simple is not given; set it to the share of the",
    ),
    "a share that is none": (
        ["family.at.medium=5000"],
        "family.at.medium is 5000.0; expected a share of the training steps, above 0 and at most 1",
    ),
    "no share": (["family.at.simple=0"], "family.at.simple is 0.0; expected a share of the"),
    "a replay of what is not recorded": (
        ["family.kind=medium_replay", "family.record_episodes=false"],
        "needs the episodes of the training, but family.record_episodes is false",
    ),
    "a training of a family that has one": (
        ["family.training=hopper"],
        "family.training is 'hopper', but conf/family/pole.yaml describes no trainings",
    ),
    "no episodes to score with": (
        ["family.checkpoint_scores.n_episodes=0"],
        "family.checkpoint_scores.n_episodes is 0; expected 1 or more",
    ),
    "no training": (
        ["policy.train=null", "policy.checkpoint.path=x.zip"],
        "family 'pole' trains nothing: policy.train is not given; set it in conf/family/pole.yaml",
    ),
    "unknown key": (["+family.fractoin=0.2"], "unknown key 'family.fractoin'. Did you mean"),
    "unknown family": (["family=pool"], "no family 'pool'. Did you mean 'pole'"),
    "infos of a replay": (
        ["family.kind=medium_replay", "collect.record_infos=true"],
        "but this dataset reuses existing ones; family.record_infos=true records the infos of",
    ),
    "a file that the family makes": (
        ["+ref_scores.eval_env.kwargs={xml_file: ./pipelines/pole/train/arm.xml}"],
        "pipelines/pole, which this pipeline overwrites; keep what it reads elsewhere",
    ),
    "the name of the family": (
        ["pipeline=pole"],
        "the family 'pole' has the same name as a dataset's pipeline, and both would write "
        "pipelines/pole",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), ROWS.values(), ids=ROWS)
def test_a_wrong_family_is_refused_before_anything_is_written(workspace, capfd, overrides, message):
    before = files(workspace)
    if overrides[0].startswith("policy.checkpoint") or "x.zip" in str(overrides):
        (workspace / "x.zip").write_bytes(b"")
        before = files(workspace)
    assert message in refused(capfd, "+dataset=medium", *overrides)
    assert files(workspace) == before


def test_a_dataset_that_is_not_like_its_family_is_named_with_both_values(workspace, capfd):
    write_config(workspace, "medium", MEDIUM + "env: {kwargs: {max_episode_steps: 50}}\n")
    told = refused(capfd, "+dataset=medium")
    assert "env.kwargs.max_episode_steps is 50, but conf/family/pole.yaml sets None" in told
    assert not (workspace / "pipelines").exists()


def test_a_family_without_a_file_is_told_where_to_write_one(workspace, capfd):
    text = tiny("tests/tiny-v0") + "family: {kind: medium}\n"
    write_config(workspace, "tiny", text)
    assert "put the keys that its datasets share into conf/family/NAME.yaml" in refused(
        capfd, "+dataset=tiny"
    )


def test_a_dataset_may_not_have_the_name_of_a_family(workspace, capfd):
    write_config(workspace, "pole", tiny("tests/pole-v0"))
    told = refused(capfd, "+dataset=pole")
    assert "pipeline 'pole' has the same name as the family 'pole'" in told
    told = refused(capfd, "+dataset=medium")
    assert "the family 'pole' has the same name as a dataset's pipeline" in told


MIXTURES = {
    "an unknown parent": ("{tny: 0.5, other: 0.5}", "no dataset 'tny'. Did you mean 'tiny'"),
    "no parents": ("{}", "policy.parents is {}; expected datasets with their shares"),
    "shares that are too small": (
        "{tiny: 0.5, other: 0.4}",
        "the shares of policy.parents sum to 0.9, not 1: tiny 0.5 + other 0.4",
    ),
    "a share of nothing": ("{tiny: 0.0, other: 1.0}", "policy.parents.tiny is 0.0; expected"),
    "a share that is no number": ("{tiny: .nan, other: 1.0}", "policy.parents.tiny is nan"),
    "a share that is a text": ("{tiny: 0.5, other: x}", "'x' of type 'str' could not be"),
    "itself": ("{mixed: 1.0}", "mixed is made from itself"),
}


@pytest.mark.parametrize(("parents", "message"), MIXTURES.values(), ids=MIXTURES)
def test_a_wrong_mixture_is_refused_before_its_parents_are_made(workspace, capfd, parents, message):
    write_config(workspace, "mixed", MIXED.replace("{tiny: 0.5, other: 0.5}", parents))
    assert message in refused(capfd, "+dataset=mixed")
    assert not (workspace / "pipelines").exists()


def test_a_mixture_without_the_schema_is_told_how_parents_are_given(workspace, capfd):
    target = "policy: {_target_: minari_pipe.pipeline.Mixture, parents: [{dataset: tiny}]}"
    text = MIXED.replace("policy: {parents: {tiny: 0.5, other: 0.5}}", target)
    write_config(workspace, "mixed", text.replace("{/policy: mixture}, ", ""))
    told = refused(capfd, "+dataset=mixed")
    assert "policy.parents is [{'dataset': 'tiny'}]; expected datasets with their shares" in told


def test_parents_of_other_environments_are_named_with_both(workspace, capfd):
    write_config(workspace, "other", tiny("tests/other-v0").replace("CartPole-v1", "Pendulum-v1"))
    told = refused(capfd, "+dataset=mixed")
    assert "env.id is 'CartPole-v1' for tiny, but 'Pendulum-v1' for other" in told
    write_config(workspace, "other", tiny("tests/other-v0"))
    told = refused(capfd, "+dataset=mixed", "env.id=Acrobot-v1")
    assert "env.id is 'Acrobot-v1', but the environment of tiny is 'CartPole-v1'" in told


def test_a_mixture_records_nothing_of_its_own(workspace, capfd):
    told = refused(capfd, "+dataset=mixed", "collect.record_infos=true")
    assert "collect.record_infos applies only to episodes that a policy collects" in told
    assert told.endswith("; leave it out\n")


def test_parents_that_declare_other_reference_scores_are_not_made(workspace, capfd):
    declared = "ref_scores: {ref_min_score: 10.0, ref_max_score: 500.0}\n"
    text = tiny("tests/other-v0")
    (line,) = [ln for ln in text.splitlines(keepends=True) if ln.startswith("ref_scores:")]
    write_config(workspace, "tiny", tiny("tests/tiny-v0").replace(line, declared))
    write_config(workspace, "other", text.replace(line, declared.replace("500.0", "200.0")))
    told = refused(capfd, "+dataset=mixed")
    assert "ref_scores.ref_max_score is 500.0 for tiny, but 200.0 for other" in told
    assert not (workspace / "pipelines").exists()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["policy.algorithm=maskable_ppo"], "'CartPole-v1' has no method action_masks()"),
        (
            ["policy.algorithm=maskable_ppo", "env.id=Pendulum-v1"],
            "actions of Box(-2.0, 2.0, (1,)",
        ),
        (["collect.record_state=true"], "has neither get_env_state() nor MuJoCo data"),
    ],
)
def test_what_the_environment_lacks_is_told_before_the_training(workspace, capfd, asked, message):
    assert message in refused(capfd, "+dataset=medium", *asked)
    assert not (workspace / "pipelines").exists()


@pytest.mark.parametrize(
    ("key", "given"),
    [("n_episodes", ["collect.n_episodes=1"]), ("exact", ["collect.exact=true"])],
)
def test_a_mixture_takes_its_amount_in_whole_episodes_by_steps(workspace, capfd, key, given):
    told = refused(capfd, "+dataset=mixed", *given)
    assert f"collect.{key} is" in told
    assert "set collect.n_steps" in told


def test_a_mixture_repeats_its_parents_only_up_to_a_number_of_steps(workspace, capfd):
    told = refused(capfd, "+dataset=mixed", "policy.repeat=true")
    assert "policy.repeat takes episodes again until there are enough; set collect.n_steps" in told


def test_a_parent_without_steps_is_not_repeated_for_ever():
    with pytest.raises(ConfigError, match="policy.parents.a has 0 steps"):
        whole_episodes({"a": []}, {"a": Fraction(1)}, 5, repeat=True)


def test_parents_with_other_reference_scores_are_named_with_both():
    same = {"env_spec": "{}", "observation_space": "{}", "action_space": "{}", "ref_min_score": 1.0}
    a, b = {**same, "ref_max_score": 10.0}, {**same, "ref_max_score": 11.0}
    check_alike({"a": a, "b": a})
    with pytest.raises(ConfigError, match=r"the same ref_max_score: a has 10\.0, but b has 11\.0"):
        check_alike({"a": a, "b": b})


def test_shares_are_the_decimals_that_were_written():
    assert exact_shares({"a": 0.9, "b": 0.1}) == {"a": Fraction(9, 10), "b": Fraction(1, 10)}
    assert sum(exact_shares(dict.fromkeys("abc", 0.333333)).values()) == 1


def test_a_parent_with_too_few_steps_is_named():
    half = {"few": Fraction(1, 2), "many": Fraction(1, 2)}
    message = r"policy\.parents\.few has 6 steps, but its share 0\.5 of .*n_steps=14 is 7; .* 12"
    with pytest.raises(ConfigError, match=message):
        whole_episodes({"few": [3, 3], "many": [40]}, half, 14)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 500))
def test_a_parent_that_is_repeated_gives_the_fewest_episodes_that_are_enough(lengths, n_steps):
    taken = whole_episodes({"a": lengths}, {"a": Fraction(1)}, n_steps, repeat=True)
    (n_episodes, steps) = taken["a"]
    every = [lengths[i % len(lengths)] for i in range(n_episodes)]
    assert steps == sum(every)
    assert steps - every[-1] < n_steps <= steps


@given(
    st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=20), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_each_parent_gives_the_fewest_episodes_that_have_its_share(lengths, weights, n_steps):
    weights = weights[: len(lengths)]
    shares = {str(i): Fraction(w, sum(weights)) for i, w in enumerate(weights)}
    by_name = {str(i): found for i, found in enumerate(lengths)}
    most = min(sum(by_name[name]) / share for name, share in shares.items())
    if n_steps is not None and n_steps > most:
        with pytest.raises(ConfigError, match="collect.n_steps can be at most"):
            whole_episodes(by_name, shares, n_steps)
        return
    taken = whole_episodes(by_name, shares, n_steps)
    total = most if n_steps is None else n_steps
    for name, (n_episodes, steps) in taken.items():
        assert steps == sum(by_name[name][:n_episodes])
        assert steps - by_name[name][n_episodes - 1] < shares[name] * total <= steps
    assert sum(steps for _, steps in taken.values()) >= total
    if n_steps is None:  # nothing more can be given: a parent has no more
        assert any(steps == sum(by_name[name]) for name, (_, steps) in taken.items())


def test_overrides_go_to_whom_they_concern():
    own = ["+dataset=a", "family=pole", "family.kind=random", "policy.deterministic=false", "++x=1"]
    own += ["family.training=hopper"]
    shared = ["env.id=A-v0", "+env.kwargs.k=1", "policy.train.seed=1", "~ref_scores.expert"]
    assert divided([*own, *shared]) == (own, shared)


def test_what_a_parents_file_says_to_be_asked_for_is_not(workspace, capfd):
    """Recorded overrides come with the workspace, perhaps from a stranger."""
    tampered = "engine=ray", "engine.address=10.0.0.1:6379", "publish.replace=true"
    params = workspace / "pipelines" / "tiny" / "params.yaml"
    params.parent.mkdir(parents=True)
    written = {"dataset": {}, "overrides": ["+dataset=tiny", *tampered], "packages": {}}
    params.write_text(yaml.safe_dump(written))
    assert run(["+dataset=mixed"]) == 1
    told = capfd.readouterr().err
    assert "engine.address is '10.0.0.1:6379', which comes from a file" in told
