"""The schema of a pipeline's configuration: every key, its type and its default.

Hydra merges ``conf/dataset/NAME.yaml`` over this, so a wrong key or type is refused before
anything runs. Keys without a default (``MISSING``) must be given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional  # OmegaConf reads the annotations and wants Optional

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from minari_pipe.pipeline.config.policy_refs import MIXTURE, STORED_AS


@dataclass
class Dataset:
    """What the dataset says of itself in ``metadata.json``."""

    id: str = MISSING
    description: Optional[str] = None
    license: Optional[str] = None
    citation: Optional[str] = None
    algorithm_name: Optional[str] = None
    code_permalink: Optional[str] = None
    requirements: Optional[list[str]] = None
    """pip requirements; default: the installed versions of what makes the data."""
    data_format: str = STORED_AS["data_format"]
    """``hdf5``, or, with ``pip install 'minari_pipe[arrow]'``, ``arrow`` or ``parquet``."""
    jpeg_encoding: bool = STORED_AS["jpeg_encoding"]
    """Store images as JPEG, which loses detail; needs ``pip install 'minari_pipe[jpeg]'``."""
    compression: Optional[int] = STORED_AS["compression"]
    """``hdf5``: gzip level of the numbers, 1 to 9; parquet is always compressed."""


@dataclass
class Author:
    name: str = MISSING
    email: Optional[str] = None


@dataclass
class Environment:
    id: str = MISSING
    """A registered id, or ``module:Env-v0`` of a trusted module."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``gymnasium.make``, ``max_episode_steps`` among them."""
    wrappers: list[Any] = field(default_factory=list)
    """From the innermost to the outermost, each ``{_target_: gymnasium.wrappers.X, ...}``."""


@dataclass
class EvaluationEnvironment:
    """Without an id it is the environment of the collection, with these arguments added."""

    id: Optional[str] = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[Any] = field(default_factory=list)


@dataclass
class Until:
    """Which episodes match, all that is given being so, and how many of them are wanted."""

    n_episodes: Optional[int] = None
    """Collect until so many episodes match."""
    success: Optional[bool] = None
    """The environment told of a success (``success`` or ``is_success`` in its info)."""
    min_return: Optional[float] = None
    max_return: Optional[float] = None


@dataclass
class Collect:
    n_episodes: Optional[int] = None
    """So many episodes; beside ``until``, the most that are tried."""
    n_steps: Optional[int] = None
    """Whole episodes until those that are kept have at least that many steps."""
    exact: bool = False
    """With ``n_steps``: cut the last episode, so that there are exactly that many."""
    until: Until = field(default_factory=Until)
    keep: str = "all"
    """``matching``: only the episodes that match ``until`` become the dataset."""
    on_error: str = "fail"
    """``skip``: go on without a block that failed for good, and say so in the metadata."""
    seed: int = 0
    block_episodes: int = 100
    """Episodes in a block, the unit that workers share out and a killed run does not do again."""
    n_envs: int = 8
    """Environments that step in lockstep; decides the batch of a policy's network."""
    record_infos: bool = False
    record_state: bool = False
    """Record the full simulator state as ``infos/state``, as well as the infos."""


@dataclass
class ReferenceScores:
    n_episodes: Optional[int] = None
    """100 if not given; with ``max_stderr``, the most that are measured."""
    max_stderr: Optional[float] = None
    """Episodes are added until the standard error of each mean is below."""
    seed: int = 1000
    """Another default than the collection's: the scores are measured on unseen episodes."""
    n_envs: int = 8
    eval_env: EvaluationEnvironment = field(default_factory=EvaluationEnvironment)
    expert: Any = None
    """A policy, as under ``policy``."""
    deterministic: bool = True
    """Whether the expert takes its most likely action."""
    ref_min_score: Optional[float] = None
    """Declared by hand; measured with the random policy if not given."""
    ref_max_score: Optional[float] = None
    """Declared by hand; measured with the expert if not given."""


@dataclass
class Validate:
    replay_steps: Optional[int] = 50_000
    """Episodes are simulated again up to this many steps; null for all."""
    replay_tolerance: float = 0.0
    """Largest difference a replay may show on the recorded versions and platform."""
    acknowledge: list[str] = field(default_factory=list)
    """Names of warnings that are known, such as advisories that the description speaks of."""


@dataclass
class Publish:
    targets: list[str] = field(default_factory=list)
    """Where a run uploads the dataset to: hf://ORG, s3://BUCKET/FOLDER, gs://BUCKET, file://FOLDER
    or a path, relative ones from the workspace; a released version, or with ``--draft`` any. Heeded
    where the command line names them or the user trusts them; no stage depends on them."""
    replace: bool = False
    """Install over a dataset in the Minari root that is not a draft of this pipeline; heeded only
    on the command line, since a config may come from a stranger."""


@dataclass
class Engine:
    """What runs the blocks; decides how long that takes, and no byte of the result."""

    name: str = "local"
    """``local``, ``processes`` or ``ray``: choose one with ``engine=NAME``."""
    n_workers: Optional[int] = None
    """``processes`` and ``ray``: blocks that run at a time; as many as there are processors if not
    given."""
    max_retries: int = 2
    """Further attempts at a block that failed."""
    max_failures: int = 100
    """Failed attempts at all blocks together, after which the run fails."""
    block_timeout_s: Optional[float] = None
    """Seconds that an attempt at a block may take; with ``storage``, from when the cluster has it,
    which may let it wait."""
    address: Optional[str] = None
    """``ray``: the cluster, HOST:PORT or ray://HOST:PORT; one of this machine alone if not given.
    Heeded only on the command line, since a config may come from a stranger."""
    storage: Optional[str] = None
    """``ray``: where nodes without a common disk put their blocks, such as s3://BUCKET/FOLDER.
    Heeded only on the command line."""


@dataclass
class Source:
    """A file: a path, or an address together with the sha256 of what lies there."""

    path: Optional[str] = None
    address: Optional[str] = None
    sha256: Optional[str] = None


@dataclass
class Training:
    total_timesteps: int = MISSING
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """Arguments of the SB3 algorithm."""
    seed: int = 0
    n_envs: int = 1
    normalize_observations: bool = False


@dataclass
class CheckpointScores:
    """How the mean return of each saved checkpoint is measured."""

    n_episodes: int = 20
    seed: int = 2000
    """Another default than those of the reference scores and of the collection."""


@dataclass
class Family:
    """One training run, that of ``policy.train``, from which several datasets are made."""

    name: str = "${hydra:runtime.choices.family}"
    """Name of the folder under ``pipelines/`` for what all its datasets share."""
    kind: str = "expert"
    """What the dataset holds: expert, medium, random or medium_replay."""
    fraction: float = 1 / 3
    """Of medium and medium_replay: the checkpoint is taken whose normalized score is nearest."""
    n_checkpoints: int = 10
    """Saved evenly over the steps of the training."""
    record_infos: bool = False
    """Record the infos of the training's episodes, which medium_replay then has."""
    checkpoint_scores: CheckpointScores = field(default_factory=CheckpointScores)


@dataclass
class RandomPolicy:
    _target_: str = "minari_pipe.policies.RandomPolicy"


@dataclass
class SB3Policy:
    _target_: str = "minari_pipe.policies.SB3Policy"
    algorithm: str = MISSING
    policy_class: str = "MlpPolicy"
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    """Such as ``{net_arch: [64, 64], activation_fn: tanh}``."""
    checkpoint: Source = field(default_factory=Source)
    normalize: Source = field(default_factory=Source)
    """Statistics of observations, as ``write_normalization`` writes them."""
    # A Training; not declared as one, since OmegaConf cannot override a null of such a type
    # (`policy.train={...}` on the command line).
    train: Any = None
    """Instead of a checkpoint: a training by the pipeline."""
    deterministic: bool = True
    """Take the most likely action; false draws from the policy's distribution."""
    exploration: Optional[float] = None
    """DQN with ``deterministic: false``: the share of random actions, 0 to 1."""
    action_noise: Any = None
    """TD3 and DDPG with ``deterministic: false``: standard deviation of normal noise in units of
    actions scaled to [-1, 1]; a number, or a list of one for each dimension."""


@dataclass
class DemonstrationPolicy:
    _target_: str = "minari_pipe.policies.DemonstrationPolicy"
    source: Source = field(default_factory=Source)
    format: Optional[str] = None
    """``dapg`` (a pickled list of episodes) or ``d4rl`` (flat HDF5); found out if not given."""
    reset_option: str = "initial_state_dict"
    """Option of the environment's ``reset`` that takes the initial state, a dict of arrays."""
    state_keys: Optional[list[str]] = None
    """Arrays of that dict, such as ``[qpos, qvel]``; by default those that the environment says
    it takes (Adroit), else all that the file has."""


@dataclass
class ScriptedPolicy:
    _target_: str = "minari_pipe.policies.ScriptedPolicy"
    controller: Any = MISSING
    """``{_target_: module.Callable, ...arguments}``."""


@dataclass
class Mixture:
    _target_: str = MIXTURE
    parents: dict[str, float] = MISSING
    """Datasets of ``conf/dataset/``, each with its share of the steps."""


@dataclass
class Config:
    pipeline: str = "${hydra:runtime.choices.dataset}"
    """Name of the folder under ``pipelines/``."""
    dataset: Dataset = field(default_factory=Dataset)
    author: Author = field(default_factory=Author)
    env: Environment = field(default_factory=Environment)
    family: Optional[Family] = None
    policy: Any = MISSING
    collect: Collect = field(default_factory=Collect)
    engine: Engine = field(default_factory=Engine)
    ref_scores: ReferenceScores = field(default_factory=ReferenceScores)
    validate: Validate = field(default_factory=Validate)
    publish: Publish = field(default_factory=Publish)


SECTIONS = {
    "dataset": Dataset,
    "author": Author,
    "env": Environment,
    "collect": Collect,
    "collect.until": Until,
    "engine": Engine,
    "ref_scores": ReferenceScores,
    "ref_scores.eval_env": EvaluationEnvironment,
    "validate": Validate,
    "publish": Publish,
}
"""The parts of a config whose keys are fixed, besides the policies."""

POLICY_SCHEMAS = {
    "random_schema": RandomPolicy,
    "sb3_schema": SB3Policy,
    "demonstrations_schema": DemonstrationPolicy,
    "scripted_schema": ScriptedPolicy,
    "mixture_schema": Mixture,
}


def register() -> None:
    """Hand the schemas to Hydra."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for name, node in POLICY_SCHEMAS.items():
        store.store(group="policy", name=name, node=node)
