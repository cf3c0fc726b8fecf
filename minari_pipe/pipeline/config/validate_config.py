"""Checks a composed configuration, and completes it to the parameters of the stages."""

from __future__ import annotations

import errno
import glob
import importlib
import importlib.metadata
import math
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from minari_pipe.core import trust
from minari_pipe.core.dataset_id import check_new_dataset_id, parse_dataset_id
from minari_pipe.core.git import refuse_tracked_links
from minari_pipe.core.simulator_models import check_arguments
from minari_pipe.core.trust import check_target
from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.pipeline.config import import_graph
from minari_pipe.pipeline.config.engine_names import find_engine
from minari_pipe.pipeline.config.model_files import referenced_files
from minari_pipe.pipeline.config.oc_env import check_engine_address, check_targets, resolved
from minari_pipe.pipeline.config.packages import (
    editable_modules,
    has_imported,
    installed_packages,
    is_masked,
    named_modules,
)
from minari_pipe.pipeline.config.policy_refs import (
    CHOOSING,
    KINDS,
    PolicyRef,
    check_source,
    policies,
    source_file,
)
from minari_pipe.pipeline.config.schema import (
    Cloning,
    Collect,
    Config,
    Dataset,
    Engine,
    Environment,
    Params,
    Recipe,
    Shared,
    params_values,
)
from minari_pipe.pipeline.config.typed import values_of
from minari_pipe.pipeline.workspace import STATE
from minari_pipe.pipeline.workspace_links import inside
from minari_pipe.policies import CLONING, CONTROLLERS, NOISY, registered_policies
from minari_pipe.policies.noise import Noise
from minari_pipe.policies.tracking import Tracking

if TYPE_CHECKING:
    from minari_pipe.storage.base import MinariStorage

ParamsT = TypeVar("ParamsT", Config, Shared)

_LONGEST_NAME = 200
_SCORE_EPISODES = 100


def prepare(
    name: str,
    config: Config,
    previous: dict[str, Any] | None,
    root: Path,
    given: Collection[tuple[str, str]] = (),
) -> tuple[Config, list[str]]:
    """Check ``config`` and complete it to the content of ``params.yaml``.

    Args:
        name: the pipeline's name.
        config: as composed.
        previous: the content of a ``params.yaml`` that this workspace has checked. If the config
            and the installed versions still match it, no environment is imported.
        root: the workspace, in which paths and the user's modules are looked up.
        given: keys with the texts that the user typed for them, which may name files outside
            the workspace.

    Returns:
        The parameters, and the files that ``given`` allows to read, see :func:`check_files`.

    Raises:
        ConfigError: or another package error, for any user mistake, before anything is written.
    """
    with trust.naming(trust.NAMED_FILES_VARIABLE, []):  # not those of a mixture with this parent
        named = check_files(config, root, given)
    with trust.naming(trust.NAMED_FILES_VARIABLE, named):
        return _prepared(name, config, previous, root), named


def _prepared(name: str, config: Config, previous: dict[str, Any] | None, root: Path) -> Config:
    params = filled(config)
    _check_values(params)
    _check_targets(params)
    for use in _policies(params):
        for where, source in use.sources:
            check_source(where, source, root)
    _check_not_own(params, root, name)
    if previous:
        packages = previous["packages"]
        is_same = recorded(config, packages) == previous
        if is_same and _versions_hold(packages) and has_imported(params, packages, root):
            return _complete(params, packages)
    _check_recipe(params.dataset.recipe)
    import_graph.make_importable(root)
    if not params.dataset.is_stored_as_usual:
        _storage(params.dataset)
    _check_wrappers(params)
    packages = installed_packages(params, root)  # which reads the modules that the config names
    _check_environments(params)
    for use in _policies(params):
        _check_sb3(use)
        _check_noise(use, params)
        tracking = use.settings.arguments.get("tracking")
        if tracking is not None and use.settings.target.endswith(".DemonstrationPolicy"):
            Tracking.of(tracking, f"{use.where}.tracking")
    _check_offers(params)
    return _complete(params, packages)


def recorded(config: Config, packages: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return the content of ``params.yaml`` for ``config`` and package versions, unchecked."""
    return params_values(_complete(filled(config), packages))


def filled(config: ParamsT) -> ParamsT:
    """Return ``config`` with the evaluation's environment and number of episodes filled in."""
    scores = config.ref_scores
    n_episodes = scores.n_episodes
    if n_episodes is None and scores.max_stderr is None:
        n_episodes = _SCORE_EPISODES
    eval_env = scores.eval_env.completed(config.env)
    expert = scores.expert
    if expert and scores.deterministic:  # it is often ${policy}: its noise would change nothing
        expert = expert.without_noise()
    scores = replace(scores, eval_env=eval_env, n_episodes=n_episodes, expert=expert)
    return replace(config, ref_scores=scores)


def _complete(config: Config, packages: dict[str, dict[str, str]]) -> Config:
    """Return ``config`` with package versions and the requirements that follow from them."""
    dataset = config.dataset
    if dataset.requirements is None:
        # Local version suffixes (torch 2.13.0+cpu) name builds that package indexes do not have.
        versions = packages.get("collect", {}).items()
        pinned = [f"{name}=={version.partition('+')[0]}" for name, version in versions]
        dataset = replace(dataset, requirements=pinned)
    return replace(config, dataset=dataset, packages=packages)


def _versions_hold(packages: dict[str, dict[str, str]]) -> bool:
    pairs = {item for versions in packages.values() for item in versions.items()}
    try:
        return all(importlib.metadata.version(name) == version for name, version in pairs)
    except importlib.metadata.PackageNotFoundError:
        return False


def _check_wrappers(params: Config) -> None:
    from minari_pipe.core.environments import wrapper_class

    for _, env in _environments(params):
        for wrapper in env.all_wrappers:
            wrapper_class(str(wrapper["_target_"]))


def _check_environments(params: Config) -> None:
    from minari_pipe.core.environments import creator, time_limit
    from minari_pipe.policies.rollout import without_time_limit

    for where, env in _environments(params):
        # A wrapper or an entry-point function may set a limit, so the stage checks the environment
        # that it makes.
        made = isinstance(creator(env.id), type) and not env.wrappers
        if made and time_limit(env.id, env.kwargs) is None:
            raise ConfigError(without_time_limit(env.id, where))


def _check_offers(params: Config) -> None:
    """Refuse an environment without what is needed, before training: masks, state, spaces."""
    from minari_pipe.core.environments import make_environment, wrapped
    from minari_pipe.policies.action_masks import ActionMasks
    from minari_pipe.policies.rollout import simulator_state
    from minari_pipe.recording.recorded_view import recorded_space

    needs_state = params.collect.record_state and params.collected is not None
    stores = not params.dataset.is_stored_as_usual
    stages = {"env": ["train", "train_expert", "collect"], "ref_scores.eval_env": ["ref_scores"]}
    if params.family_name:
        stages["ref_scores.eval_env"].append("checkpoint_scores")
    for where, env in _environments(params):
        uses = [use for stage in stages[where] for use in policies(params, stage)]
        needs_masks = any(map(is_masked, uses))
        added = [
            (noise, f"{use.where}.noise")
            for stage in stages[where]
            for use in (policies(params, stage) if stage in ("collect", "ref_scores") else ())
            if (noise := use.settings.noise) is not None and noise.is_added
        ]
        recorded = params.collect.record_observation
        stores_env = needs_state or stores or recorded is not None or env.policy_wrappers
        if not (needs_masks or added or (where == "env" and stores_env)):
            continue
        made = make_environment(env.id, env.kwargs, env.wrappers)
        try:
            spaces = made.observation_space, made.action_space
            if where == "env":
                spaces = recorded_space(made, recorded), made.action_space
            made = wrapped(made, env.policy_wrappers, f"{where}.policy_wrappers")
            if needs_masks:
                ActionMasks([made], 1)
            for noise, key in added:
                importlib.import_module(NOISY).scaled_space(noise, made.action_space, key)
            if where == "env" and stores:
                _storage(params.dataset).check_spaces(
                    *spaces, jpeg_encoding=params.dataset.jpeg_encoding
                )
            if where == "env" and needs_state:
                made.reset(seed=0)
                simulator_state(made)
        finally:
            made.close()


def _storage(dataset: Dataset) -> type[MinariStorage]:
    """Return the storage class for ``dataset.data_format``, after checking the compression."""
    from minari_pipe.storage.base import get_minari_storage, get_storage_keys

    if dataset.data_format not in (known := get_storage_keys()):
        raise ConfigError(
            f"dataset.data_format is {dataset.data_format!r}; expected {' or '.join(known)}"
            f".{did_you_mean(dataset.data_format, known)}"
        )
    storage = get_minari_storage(dataset.data_format)
    if dataset.compression is not None:
        try:
            storage.check_compression(dataset.compression)
        except ConfigError as exc:
            raise ConfigError(f"dataset.compression: {exc}") from exc
    return storage


def _check_recipe(recipe: Recipe) -> None:
    for key in ("cpu_hours", "megabytes"):
        value = vars(recipe)[key]
        if value is not None and not 0 <= value < math.inf:
            raise ConfigError(f"dataset.recipe.{key} is {value}; expected a number, 0 or more")


def check_files(config: Config, root: Path, given: Collection[tuple[str, str]]) -> list[str]:
    """Refuse files outside the workspace, unless the user names them or trusts them.

    Args:
        config: as composed; its policies and environments may name files.
        root: the workspace.
        given: keys with the texts that the command line itself gives for them.

    Returns:
        Files outside the workspace, and models that name other files, which the command line
        names.

    Raises:
        TrustError: only a config file names a file outside the workspace, or a model that names
            others.
        LinkError: a link in the workspace leads outside.
    """
    found = []
    # A policy is often the expert, too, and by default its environment is that of the scores.
    for start, also in (("env.", "ref_scores.eval_env."), ("policy.", "ref_scores.expert.")):
        own = [(key.removeprefix(start), text) for key, text in given if key.startswith(start)]
        given = [*given, *((also + key, text) for key, text in own)]
    for section in ("env", "policy", "ref_scores"):
        values = values_of(vars(config)[section])
        found += trust.check_files(section, values, below=root, given=given)
        for key, text in trust.texts(section, values):
            for part in trust.parts(text):
                if (place := Path(os.path.normpath(root / part))).is_relative_to(root):
                    _check_links(place, root)
            place = Path(os.path.normpath(text))
            if section == "env" and place.is_relative_to(root) and os.path.lexists(place):
                raise ConfigError(
                    f"{key} is {text!r}, an absolute path, which would be published; write it "
                    f"relative to the workspace: ./{place.relative_to(root)}"
                )
    for where, env in _environments(filled(config)):
        arguments = {"kwargs": env.kwargs, "wrappers": env.all_wrappers}
        module = str(env.id).rpartition(":")[0]
        found += check_arguments(module, arguments, where=where, below=root, given=given)
    found = [*dict.fromkeys(found)]
    for file in found:
        refuse_tracked_links(file)
    return found


def _check_links(place: Path, root: Path) -> None:
    """Refuse links on the way to a place, and files there whose name an ending would complete.

    An environment may make the place, or add an ending such as ``.txt``.
    """
    try:
        inside(root, place)
        for file in place.parent.glob(f"{glob.escape(place.name)}*") if place != root else ():
            inside(root, file)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # a text that no path can be
            raise


def _check_not_own(params: Config, root: Path, name: str) -> None:
    """Refuse to read the pipeline's own outputs, which its stages remove."""
    dataset_id = params.dataset.id
    written = [root / "pipelines" / name, root / "datasets" / dataset_id, root / STATE]
    written.append(root / "catalog" / f"{dataset_id}.json")
    if params.family_name:
        written.append(root / "pipelines" / params.family_name)
    for section in ("env", "policy", "ref_scores"):
        for key, text in trust.texts(section, values_of(vars(params)[section])):
            named = source_file(text, root)
            # A run may restore outputs that are not there yet.
            if not os.path.lexists(named) and not any(map(named.is_relative_to, written)):
                continue
            for place in [named, *referenced_files(named, root, written)]:
                real, is_data = Path(os.path.realpath(place)), root in place.parents
                for folder in map(Path, map(os.path.realpath, written)):
                    is_in = real.is_relative_to(folder)
                    if is_in or (is_data and folder.is_relative_to(real)):
                        shown = text if place == named else str(place)
                        raise ConfigError(
                            f"{key}: {shown!r} {'is in' if is_in else 'holds'} {folder}, which "
                            f"this pipeline overwrites; keep what it reads elsewhere"
                        )


def _check_sb3(use: PolicyRef) -> None:
    if use.settings.target != "minari_pipe.policies.SB3Policy":
        return
    checkpoint = "checkpoint" in use.settings.sources
    if checkpoint == bool(use.settings.train):
        raise ConfigError(
            f"{use.where}: give {'either a' if checkpoint else 'a'} checkpoint or a train "
            f"block{', not both' if checkpoint else ''}: {use.where}.checkpoint.path=FILE or "
            f"{use.where}.train={{total_timesteps: N}}"
        )
    train = use.settings.train
    if isinstance(train, Cloning):
        # By its name: else every stage would depend on its code.
        check = importlib.import_module(CLONING).check_settings
        check("bc", train.gradient_steps, train.hyperparameters, train.seed)


def _check_noise(use: PolicyRef, params: Config) -> None:
    """Refuse wrong noise, and a policy to sample that has neither a distribution nor noise."""
    from minari_pipe.policies.algorithms import find_algorithm

    values, is_own = use.settings.arguments.get("noise"), use.where == "policy"
    noise = None if values is None else Noise.of(values, f"{use.where}.noise")
    keeps = is_own and params.collected == params.policy and noise and noise.keep_clean_action
    if keeps and not (params.collect.record_infos or params.collect.record_state):
        raise ConfigError(
            f"{use.where}.noise.keep_clean_action is recorded with the infos; set "
            "collect.record_infos: true"
        )
    infos = params.collect.record_infos
    if keeps and isinstance(infos, list) and "clean_action" not in infos:
        raise ConfigError(
            f"{use.where}.noise.keep_clean_action is recorded with the infos; add clean_action to "
            "the list collect.record_infos"
        )
    settings = use.settings if is_own else use.settings.as_measured(params.ref_scores)
    if settings.target != "minari_pipe.policies.SB3Policy":
        return
    algorithm = find_algorithm(str(settings.algorithm))
    sampled = settings.arguments.get("deterministic") is False
    if sampled and noise is None and not algorithm.samples:
        example = "epsilon, scale: 0.05" if algorithm.head == "values" else "gaussian, scale: 0.1"
        raise ConfigError(
            f"{use.where}: deterministic=false: {settings.algorithm} has no distribution to sample "
            f"from; set {use.where}.noise: {{kind: {example}}}"
        )


def code_files(params: Params, stage: str, root: Path) -> list[Path]:
    """Return the files of the user's modules that ``stage`` runs, with all that they import."""
    modules = [*named_modules(params, stage), *editable_modules(params, stage)]
    found = import_graph.module_closure(modules, root)
    for file in sorted(f for f in found if f.is_relative_to(root)):
        top = file.relative_to(root).parts[0].removesuffix(".py")
        if hidden := import_graph.hidden_by(top, root):
            raise ConfigError(
                f"{file} is hidden by {hidden}, which Python imports as {top!r}; rename the file, "
                f"or uninstall the other module"
            )
    return sorted(found)


def _check_targets(params: Config) -> None:
    for use in _policies(params):
        check_target(use.settings.target, registered_policies(), what=f"{use.where}._target_")
        controller = use.settings.controller
        if controller is not None:
            if not isinstance(controller, dict) or "_target_" not in controller:
                raise ConfigError(f"{use.where}.controller has no _target_")
            what = f"{use.where}.controller._target_"
            check_target(str(controller["_target_"]), CONTROLLERS, what=what)
    for where, env in _environments(params):
        for name in ("wrappers", "policy_wrappers"):
            for i, wrapper in enumerate(vars(env)[name]):
                is_named = isinstance(wrapper, dict) and "_target_" in wrapper
                if not is_named or not all(isinstance(key, str) for key in wrapper):
                    raise ConfigError(
                        f"{where}.{name}[{i}] is {wrapper!r}; expected {{_target_: "
                        f"gymnasium.wrappers.NAME, ...}} with argument names as keys"
                    )


def _environments(params: Config) -> list[tuple[str, Environment]]:
    """Return the environments that the config describes, each with its key."""
    return [("env", params.env), ("ref_scores.eval_env", params.ref_scores.environment)]


def _policies(params: Config) -> list[PolicyRef]:
    if params.is_mixture:  # a mixture runs no policy
        return []
    own = PolicyRef("policy", params.policy)  # the family trains it for every kind of dataset
    return [own, *policies(params, "ref_scores")]


def _check_family(params: Config) -> None:
    """Refuse invalid settings of the dataset's family."""
    name, kind = params.family_name, params.kind
    family = params.family
    if family is None:
        return
    if kind not in KINDS:
        raise ConfigError(
            f"family.kind is {kind!r}.{did_you_mean(str(kind), KINDS)} Known: {', '.join(KINDS)}"
        )
    if not params.policy.train:
        raise ConfigError(
            f"family {name!r} trains nothing: policy.train is not given; set it in "
            f"conf/family/{name}.yaml, e.g. policy.train={{total_timesteps: 50_000}}"
        )
    if isinstance(params.policy.train, Cloning):
        raise ConfigError(
            f"family {name!r} trains by behaviour cloning, which has no checkpoints to choose and "
            f"no episodes; use algorithm: bc in conf/dataset/NAME.yaml, without a family"
        )
    if not 0 <= family.fraction <= 1:
        raise ConfigError(
            f"family.fraction is {family.fraction}; expected a normalized score from 0 (the "
            f"random policy) to 1 (the expert)"
        )
    for key, share in vars(family.at).items():
        if share is not None and not 0 < share <= 1:
            raise ConfigError(
                f"family.at.{key} is {share}; expected a share of the training steps, above 0 and "
                "at most 1"
            )
    if kind == "simple" and family.share is None:
        raise ConfigError(
            "family.kind is simple, but family.at.simple is not given; set it to the share of the "
            "training steps after which the checkpoint is saved, such as 0.05"
        )
    if params.is_replay and not family.record_episodes:
        raise ConfigError(
            f"family.kind is {kind}, which needs the episodes of the training, but "
            "family.record_episodes is false"
        )
    scores, by_score = family.checkpoint_scores, kind in CHOOSING and family.share is None
    for key, value, least in (
        ("n_checkpoints", family.n_checkpoints, 1 if by_score else 0),
        ("checkpoint_scores.n_episodes", scores.n_episodes, 1),
        ("checkpoint_scores.seed", scores.seed, 0),
    ):
        if value < least:
            why = f", since {kind} uses one" if key == "n_checkpoints" and least else ""
            raise ConfigError(f"family.{key} is {value}; expected {least} or more{why}")


def _check_values(params: Config) -> None:
    _, _, version = parse_dataset_id(params.dataset.id)
    if version is None:
        raise ConfigError(
            f"dataset.id {params.dataset.id!r} has no version; expected one at its end, such "
            f"as 'door/human-v0'"
        )
    if any(len(part) > _LONGEST_NAME for part in params.dataset.id.split("/")):
        raise ConfigError(
            f"dataset.id {params.dataset.id[:60] + '...'!r} has a part of more than "
            f"{_LONGEST_NAME} characters, too long for a folder name on some systems"
        )
    check_new_dataset_id(params.dataset.id)
    if not params.author.name.strip():
        raise ConfigError("author.name is empty; name who made the dataset: author.name='Ada'")
    for where, env in _environments(params):
        if env.kwargs.get("render_mode") == "human":
            raise ConfigError(f"{where}.kwargs.render_mode is 'human', which opens a window")
    collect, scores = params.collect, params.ref_scores
    for where, value in (
        ("collect.n_episodes", collect.n_episodes),
        ("collect.n_steps", collect.n_steps),
        ("collect.block_episodes", collect.block_episodes),
        ("collect.n_envs", collect.n_envs),
        ("collect.until.n_episodes", collect.until.n_episodes),
        ("engine.n_workers", params.engine.n_workers),
        ("ref_scores.n_episodes", scores.n_episodes),
        ("ref_scores.n_envs", scores.n_envs),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{where} is {value}; expected at least 1")
    for where, value in (("collect.seed", collect.seed), ("ref_scores.seed", scores.seed)):
        if value < 0:
            raise ConfigError(f"{where} is {value}; expected 0 or more")
    steps, tolerance = params.validate.replay_steps, params.validate.replay_tolerance
    for key, number in (("replay_steps", steps), ("replay_tolerance", tolerance)):
        if number is not None and not 0 <= number < float("inf"):
            raise ConfigError(f"validate.{key} is {number}; expected 0 or more")
    _check_family(params)
    for key in ("n_episodes", "exact"):
        if params.is_mixture and (value := vars(collect)[key]):
            raise ConfigError(
                f"collect.{key} is {value}; a mixture takes whole episodes by share of the steps: "
                f"set collect.n_steps, or leave both out to take as many as possible"
            )
    if params.is_mixture and params.policy.arguments.get("repeat") and collect.n_steps is None:
        raise ConfigError(
            "policy.repeat takes episodes again until there are enough; set collect.n_steps"
        )
    _check_collect(collect)
    limited = params.policy.target.endswith(".DemonstrationPolicy")
    if params.is_mixture or params.is_replay:
        limited = True
        chosen = [("until.n_episodes", collect.until.n_episodes)]
        chosen += [("keep", collect.keep != "all"), ("on_error", collect.on_error != "fail")]
        chosen += [
            (key, vars(collect)[key])
            for key in ("record_infos", "record_observation", "record_state")
        ]
        if given := [key for key, value in chosen if value]:
            instead = "leave it out"
            if given[0] == "record_infos" and params.is_replay:
                instead = "family.record_infos=true records the infos of the training"
            raise ConfigError(
                f"collect.{given[0]} applies only to episodes that a policy collects, but this "
                f"dataset reuses existing ones; {instead}"
            )
    rules = (collect.n_episodes, collect.n_steps, collect.until.n_episodes)
    if rules == (None, None, None) and not limited:
        raise ConfigError(
            "no number of episodes or steps to collect is given; set collect.n_episodes or .n_steps"
        )
    _check_engine(params.engine)
    check_targets(params.publish.targets)
    if scores.max_stderr is not None and not scores.max_stderr > 0:
        raise ConfigError(f"ref_scores.max_stderr is {scores.max_stderr}; expected above 0")
    low, high = scores.ref_min_score, scores.ref_max_score
    for key, score in (("ref_min_score", low), ("ref_max_score", high)):
        if score is not None and not math.isfinite(score):
            raise ConfigError(f"ref_scores.{key} is {score}; expected a finite number")
    if low is not None and high is not None and low >= high:
        raise ConfigError(
            f"ref_scores.ref_max_score is {high} and ref_min_score is {low}; the expert's score "
            f"must be above the random policy's"
        )
    if scores.expert is None and scores.ref_max_score is None:
        raise ConfigError(
            "no ref_scores.expert and no ref_scores.ref_max_score; choose an expert with "
            "`- /policy@ref_scores.expert: NAME`, use the policy itself with "
            "ref_scores.expert='${policy}', or declare the score"
        )


def _check_collect(collect: Collect) -> None:
    if collect.n_episodes is not None and collect.n_steps is not None:
        raise ConfigError(
            "collect.n_episodes and collect.n_steps are both given; keep one, e.g. "
            "collect.n_episodes=null"
        )
    if collect.exact and collect.n_steps is None:
        raise ConfigError("collect.exact=true needs collect.n_steps")
    if collect.exact and collect.keep == "matching":
        raise ConfigError(
            "collect.exact=true cuts the last episode, which may then no longer match; do not "
            "combine it with collect.keep=matching"
        )
    for key, value, choices in (
        ("keep", collect.keep, ("all", "matching")),
        ("on_error", collect.on_error, ("fail", "skip", "skip_episode")),
    ):
        if value not in choices:
            raise ConfigError(
                f"collect.{key} is {value!r}; expected {' or '.join(choices)}"
                f".{did_you_mean(value, choices)}"
            )
    infos = collect.record_infos
    is_list = isinstance(infos, list) and all(isinstance(name, str) for name in infos)
    if not (isinstance(infos, bool) or is_list):
        raise ConfigError(
            f"collect.record_infos is {infos!r:.80}; expected true, false or a list of names"
        )
    until = collect.until
    conditions = [
        key for key in ("success", "min_return", "max_return") if vars(until)[key] is not None
    ]
    needs = [
        *(["collect.until.n_episodes"] if until.n_episodes is not None else []),
        *(["collect.keep=matching"] if collect.keep == "matching" else []),
    ]
    if needs and not conditions:
        raise ConfigError(
            f"{needs[0]} needs a condition that episodes match; set collect.until.success, "
            f".min_return or .max_return"
        )
    if conditions and not needs:
        raise ConfigError(
            f"collect.until.{conditions[0]} has no effect alone; set collect.until.n_episodes, to "
            f"collect until that many episodes match, or collect.keep=matching"
        )
    low, high = until.min_return, until.max_return
    for key, bound in (("min_return", low), ("max_return", high)):
        if bound is not None and math.isnan(bound):
            raise ConfigError(f"collect.until.{key} is nan; expected a number")
    if low is not None and high is not None and low > high:
        raise ConfigError(
            f"collect.until.min_return={low} is above collect.until.max_return={high}; swap them"
        )
    if until.n_episodes is not None and collect.n_steps is not None:
        raise ConfigError(
            "collect.n_steps and collect.until.n_episodes are both given; keep one, e.g. "
            "collect.n_steps=null"
        )


def _check_engine(engine: Engine) -> None:
    find_engine(engine.name)
    for key, value in (("max_retries", engine.max_retries), ("max_failures", engine.max_failures)):
        if value < 0:
            raise ConfigError(f"engine.{key} is {value}; expected 0 or more")
    if engine.block_timeout_s is not None and not engine.block_timeout_s > 0:
        raise ConfigError(
            f"engine.block_timeout_s is {engine.block_timeout_s}; expected above 0, or null"
        )
    if engine.name == "local" and (engine.n_workers or 1) > 1:
        raise ConfigError(
            f"engine.n_workers is {engine.n_workers}, but engine=local runs one block at a time; "
            f"add engine=processes"
        )
    for key, place in (("address", engine.address), ("storage", engine.storage)):
        if place is not None and engine.name != "ray":
            raise ConfigError(
                f"engine.{key} is only for engine=ray, but engine.name is {engine.name}"
            )
        if place is not None:
            check_engine_address(f"engine.{key}", place)
    # With these, Ray would start a cluster on this machine, listening on every interface.
    if engine.address is not None and resolved(engine.address).strip() in ("", "local"):
        raise ConfigError(
            f"engine.address is {engine.address!r}; expected auto, HOST:PORT or ray://HOST:PORT; "
            f"leave it out to use only this machine"
        )
