"""Every config that comes with the package composes, is complete, and keeps its promise."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import hydra_compose, schema
from minari_pipe.pipeline.config.dvc_yaml import dvc_yaml, stages
from minari_pipe.pipeline.config.families import family_params
from minari_pipe.pipeline.config.help_text import help_text
from minari_pipe.pipeline.config.hydra_compose import every_task
from minari_pipe.pipeline.config.mixtures import completed
from minari_pipe.pipeline.config.policy_refs import CHOOSING
from minari_pipe.pipeline.config.schema import Shared
from minari_pipe.pipeline.config.tasks import names_in
from minari_pipe.pipeline.config.validate_config import filled, prepare
from minari_pipe.pipeline.execution.build import environment_factory, make_policy
from minari_pipe.policies.base import Policy
from minari_pipe.policies.evaluation import evaluate
from tests.conftest import CHECKOUT, FULL
from tests.support.configs import composed
from tests.support.demonstration_files import (
    counting_episodes,
    small_log,
    write_dapg,
    write_zip,
)

NAMES = sorted(path.stem for path in (CHECKOUT / "conf" / "dataset").glob("*.yaml"))
FAMILIES = sorted(path.stem for path in (CHECKOUT / "conf" / "family").glob("*.yaml"))
OF_ONE_FILE = ("classic_control", "mujoco")
"""Files that describe several trainings each."""
OF_ONE_TRAINING = sorted({*FAMILIES} - {*OF_ONE_FILE})
KINDS = ("expert", "medium", "random", "medium_replay")
"""Kinds of datasets of which each family of one training has one."""
POLICIES = sorted(path.stem for path in (CHECKOUT / "conf" / "policy").glob("*.yaml"))
#: the first recipe of each file
FIRST = [f"{name}_{tasks[0]}" if (tasks := names_in(name)) else name for name in NAMES]


def params_of(name: str, root: Path) -> schema.Config:
    found = composed(f"+dataset={name}")
    assert found.name == name
    return prepare(name, given_files(completed(found.config, root), root), None, root)[0]


def given_files(config: schema.Config, folder: Path) -> schema.Config:
    """The config with another file for one that only the user can give: its hash is unknown."""
    source = config.policy.sources.get("source")
    if source is None or source.path or source.sha256:
        return config
    assert config.dataset.recipe.unverified
    if config.policy.arguments.get("format") == "mjl":
        path = write_zip(folder / "demos.zip", {"microwave_kettle_switch_slide/1.mjl": small_log()})
    else:
        path = write_dapg(folder / "demos.pickle", counting_episodes())
    policy = config.policy.with_arguments(source={"path": str(path)})
    return dataclasses.replace(config, policy=policy)


def test_the_recipes_and_the_families_are_there():
    kinds = (*KINDS, "medium_expert")
    of_families = [f"{family}_{kind}" for family in OF_ONE_TRAINING for kind in kinds]
    assert {"door_expert", "door_human", "pointmaze", *of_families, *OF_ONE_FILE} <= set(NAMES)
    assert {"cartpole", "inverted_pendulum", "pendulum"} <= set(OF_ONE_TRAINING)
    assert len(names_in("mujoco")) == 33
    assert sorted(schema.POLICY_SCHEMAS) == POLICIES


@pytest.mark.parametrize("family", OF_ONE_TRAINING)
def test_the_datasets_of_a_family_want_the_same_of_it_and_the_same_checkpoint(family, tmp_path):
    datasets = [params_of(f"{family}_{kind}", tmp_path) for kind in KINDS]
    assert [params.family.kind for params in datasets] == list(KINDS)
    shared = [family_params(params) for params in datasets]
    assert all(params == shared[0] for params in shared)
    chosen = [p.family.fraction for p in datasets if p.family.kind in CHOOSING]
    assert chosen == [0.3333, 0.3333]
    assert len({params.dataset.id for params in datasets}) == len(KINDS)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_opens_with_the_command_that_runs_it(name):
    text = (CHECKOUT / "conf" / "dataset" / f"{name}.yaml").read_text()
    command = f"# @package _global_\n# python -m minari_pipe +dataset={name}"
    found = [f"{command} task={task}\n" for task in names_in(name)] or [f"{command}\n"]
    assert text.startswith(tuple(found))


def test_every_recipe_composes_to_an_id_of_its_own_and_is_listed(tmp_path):
    found = [one for name in NAMES for one in every_task(name)]
    ids = [one.config.dataset.id for one in found]
    assert len(set(ids)) == len({one.name for one in found}) == len(found) >= len(NAMES)
    shared: dict[str | None, Shared] = {}
    for one in found:
        if family := one.config.family_name:  # which would else train again for the next dataset
            wanted = family_params(filled(one.config))
            assert shared.setdefault(family, wanted) == wanted
        if FULL or one.name in FIRST:
            prepared = given_files(completed(one.config, tmp_path), tmp_path)
            prepare(one.name, prepared, None, tmp_path)
        assert not one.config.dataset.id.startswith(("D4RL/", "mujoco/", "atari/", "minigrid/"))
        assert (one.config.dataset.recipe.replaces is None) == (
            one.config.dataset.recipe.differs is None
        )


@pytest.mark.parametrize("name", FIRST)
def test_a_recipe_is_complete_and_its_pieces_can_be_made(name, tmp_path, request):
    params = params_of(name, tmp_path)
    assert params.dataset.requirements
    assert not any("+" in requirement for requirement in params.dataset.requirements)
    assert "stages" in dvc_yaml(name, params, tmp_path)
    made = [stage.name for stage in stages(name, params) if stage.name != "ref_scores"]
    assert made[-5:] == ["collect", "create", "validate", "card", "publish"]
    environment_factory(params.env, tmp_path)().close()
    environment_factory(params.ref_scores.environment, tmp_path)().close()
    for where, settings in (("policy", params.policy), ("expert", params.ref_scores.expert)):
        if settings is None or settings.train or settings.is_mixture:
            continue
        if name == "door_human" and where == "policy":
            demonstrations = request.getfixturevalue("demonstrations_dir")
            source = {"path": str(demonstrations / "door-v0_demos.pickle")}
            settings = settings.with_arguments(source=source)
        assert isinstance(make_policy(settings, where=where, root=tmp_path), Policy)


def test_demonstrations_of_unknown_hash_are_not_fetched_but_the_way_to_them_is_named(tmp_path):
    config = hydra_compose.recompose(["+dataset=kitchen", "task=mixed"]).config
    with pytest.raises(ConfigError) as caught:
        prepare("kitchen_mixed", config, None, tmp_path)
    assert str(caught.value) == (
        "policy.source: the address 'https://github.com/google-research/relay-policy-learning/raw/"
        "master/kitchen_demos_multitask.zip' needs policy.source.sha256; or download the file, "
        "check that it is the one you want, and pass policy.source.path=FILE"
    )
    policy = config.policy.with_arguments(source={"path": "."})
    with pytest.raises(
        ConfigError, match=r"policy\.source\.path: '\.' is a folder, expected a file"
    ):
        prepare("kitchen_mixed", dataclasses.replace(config, policy=policy), None, tmp_path)


def test_demonstrations_that_use_no_later_key_have_the_values_that_they_had_before(tmp_path):
    values = params_of("door_human", tmp_path).policy.values
    assert set(values) == {"_target_", "source", "format", "reset_option", "state_keys"}
    # of a policy of the user's own, whose defaults may be others
    own = {"_target_": "my.Policy", "files": None, "frame_skip": 1, "tracking": None}
    assert schema.PolicySettings.of(own, "policy").values == own


def test_demonstrations_of_unknown_sha256_must_be_given_by_the_user(tmp_path):
    for name in ("hammer_human", "pen_human", "relocate_human"):
        config = hydra_compose.recompose([f"+dataset={name}"]).config
        with pytest.raises(ConfigError, match=r"needs policy\.source\.sha256; or download"):
            prepare(name, config, None, tmp_path)


def test_a_mistake_in_tracking_stops_before_anything_runs(tmp_path):
    config = given_files(hydra_compose.recompose(["+dataset=kitchen_mixed"]).config, tmp_path)
    policy = config.policy.with_arguments(tracking={"gain": 0})
    with pytest.raises(ConfigError, match=r"policy\.tracking\.gain is 0; expected a finite number"):
        prepare("kitchen_mixed", dataclasses.replace(config, policy=policy), None, tmp_path)


def test_the_kitchen_tracks_the_joints_that_the_hosted_data_tracks(tmp_path):
    params = params_of("kitchen_complete", tmp_path)
    arguments, env = params.policy.arguments, environment_factory(params.env, tmp_path)()
    robot = env.unwrapped.robot_env
    assert arguments["frame_skip"] == robot.frame_skip
    assert arguments["tracking"]["gain"] == pytest.approx(1 / (robot.dt * robot.act_rng[0]))
    assert (params.ref_scores.ref_min_score, params.ref_scores.ref_max_score) == (0, 4)
    env.close()


@pytest.mark.parametrize(
    ("name", "least_return", "least_success", "seeds"),
    [
        ("door_expert", 2950, 0.99, range(100) if FULL else range(16)),
        ("hammer_expert", 15_900, 0.99, range(100) if FULL else range(4)),
        ("relocate_expert", 4_000 if FULL else 3_000, 0.99, range(100) if FULL else range(4)),
        # whose returns are spread from -600 to 11,000
        *([("pen_expert", 7_000, 0.75, range(100))] if FULL else []),
        ("fetch_pick-and-place", -20, 1.0, range(100) if FULL else range(8)),
        ("fetch_push", -25, 0.9, range(100) if FULL else range(8)),
        ("fourrooms", 0.8, None, range(10)),
        ("metaworld_reach", 4_000, 1.0, range(2)),
        ("pointmaze_umaze", 3.5, 1.0, range(100) if FULL else range(20)),
        ("antmaze_medium-play", *([0.9] * 2 if FULL else [0.8] * 2), range(40 if FULL else 8)),
        *([("antmaze_umaze", 0.95, 0.95, range(40))] if FULL else []),
        *([("antmaze_large-diverse", 0.85, 0.85, range(40))] if FULL else []),
    ],
)
def test_the_experts_are_experts_on_unseen_seeds(
    name, least_return, least_success, seeds, tmp_path
):
    params = params_of(name, tmp_path)
    policy = make_policy(params.policy, where="policy", root=tmp_path)
    make_env = environment_factory(params.env, tmp_path)
    results = list(evaluate(make_env, policy, seeds, seed=20261120))
    assert np.mean([r.episode_return for r in results]) >= least_return
    if least_success is not None:
        assert np.mean([r.success for r in results]) >= least_success


@pytest.mark.parametrize("name", POLICIES)
def test_the_help_on_a_policy_lists_its_keys_with_defaults(name):
    found = yaml.safe_load(help_text([f"policy={name}"]))["policy"] or {}
    node = schema.POLICY_SCHEMAS[name]
    assert {"_target_", *found} == {field.name for field in dataclasses.fields(node)}
    if name == "sb3":
        assert found["policy_class"] == "MlpPolicy"
        assert found["algorithm"] == "???"


def test_the_help_on_a_section_has_comments_and_an_unknown_one_is_answered_with_the_nearest():
    assert "# Episodes in a block, the unit" in help_text(["collect"])
    with pytest.raises(ConfigError, match=r"no policy 'sb4'\. Did you mean 'sb3'"):
        help_text(["policy=sb4"])
    with pytest.raises(ConfigError, match=r"no help on 'colect'\. Did you mean 'collect'"):
        help_text(["colect"])


def test_the_help_names_every_key_and_dataset():
    text = help_text([])
    for word in [
        *NAMES,
        *FAMILIES,
        "fraction",
        "n_checkpoints",
        "block_episodes",
        "ref_max_score",
        "record_infos",
        "eval_env",
    ]:
        assert re.search(rf"\b{word}\b", text), word
