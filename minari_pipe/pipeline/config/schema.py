"""The schema of a pipeline's configuration: every key, its type and its default.

Hydra merges ``conf/dataset/NAME.yaml`` over this, so a wrong key or type is refused before
anything runs. Keys without a default (``MISSING``) must be given. What it composes becomes a
:class:`Config` once, and so does what ``params.yaml`` holds (:func:`params_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional  # OmegaConf reads the annotations and wants Optional

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.typed import MISSING, OpenSettings, hydra_node, read, values_of
from minari_pipe.pipeline.workspace import check_pipeline_name

MIXTURE = "minari_pipe.pipeline.Mixture"
"""The ``_target_`` of a dataset that is mixed from others; it is no policy, and runs nothing."""

SOURCE_KEYS = ("checkpoint", "normalize", "source")
"""Where a policy's config names a file; a checkpoint and its statistics may be absent."""

TRAINING_KEYS = ("algorithm", "policy_class", "policy_kwargs", "train")
"""What of a policy's config decides the checkpoint that its training gives."""

_OMITTED = {"omitted": True}
"""Of a key that ``params.yaml`` leaves out where it has its default, so that datasets which were
made before this key keep the hash of their config."""


def _of(kind: Any) -> dict[str, Any]:
    """Mark a key of which Hydra is told another type: its value is checked elsewhere."""
    return {"hydra": kind}


@dataclass(frozen=True)
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
    data_format: str = field(default="hdf5", metadata=_OMITTED)
    """``hdf5``, or, with ``pip install 'minari_pipe[arrow]'``, ``arrow`` or ``parquet``."""
    jpeg_encoding: bool = field(default=False, metadata=_OMITTED)
    """Store images as JPEG, which loses detail; needs ``pip install 'minari_pipe[jpeg]'``."""
    compression: Optional[int] = field(default=None, metadata=_OMITTED)
    """``hdf5``: gzip level of the numbers, 1 to 9; parquet is always compressed."""

    @property
    def is_stored_as_usual(self) -> bool:
        """Whether the keys that decide how it is stored have their defaults."""
        usual = (Dataset.data_format, Dataset.jpeg_encoding, Dataset.compression)
        return (self.data_format, self.jpeg_encoding, self.compression) == usual


@dataclass(frozen=True)
class Author:
    name: str = MISSING
    email: Optional[str] = None


@dataclass(frozen=True)
class Environment:
    id: str = MISSING
    """A registered id, or ``module:Env-v0`` of a trusted module."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``gymnasium.make``, ``max_episode_steps`` among them."""
    wrappers: list[dict[str, Any]] = field(default_factory=list, metadata=_of(list[Any]))
    """From the innermost to the outermost, each ``{_target_: gymnasium.wrappers.X, ...}``."""


@dataclass(frozen=True)
class EvaluationEnvironment:
    """Without an id it is the environment of the collection, with these arguments added."""

    id: Optional[str] = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[dict[str, Any]] = field(default_factory=list, metadata=_of(list[Any]))

    def completed(self, env: Environment) -> EvaluationEnvironment:
        """The same with what it has from the environment of the collection."""
        if self.id is not None:
            return self
        kwargs = {**env.kwargs, **self.kwargs}
        return EvaluationEnvironment(env.id, kwargs, self.wrappers or env.wrappers)


@dataclass(frozen=True)
class Until:
    """Which episodes match, all that is given being so, and how many of them are wanted."""

    n_episodes: Optional[int] = None
    """Collect until so many episodes match."""
    success: Optional[bool] = None
    """The environment told of a success (``success`` or ``is_success`` in its info)."""
    min_return: Optional[float] = None
    max_return: Optional[float] = None

    def __bool__(self) -> bool:
        return any(v is not None for v in (self.success, self.min_return, self.max_return))

    def matches(self, episode_return: float, success: bool | None) -> bool:
        """Whether an episode matches.

        Raises:
            ConfigError: it would have to tell of a success, and the environment never does.
        """
        if self.success is not None:
            if success is None:
                raise ConfigError(
                    "collect.until.success needs an environment whose info has 'success' or "
                    "'is_success'; this one's has neither. Use collect.until.min_return"
                )
            if success != self.success:
                return False
        low, high = self.min_return, self.max_return
        return (low is None or episode_return >= low) and (high is None or episode_return <= high)


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Source:
    """A file: a path, or an address together with the sha256 of what lies there."""

    path: Optional[str] = None
    address: Optional[str] = None
    sha256: Optional[str] = None

    def __bool__(self) -> bool:
        return any((self.path, self.address, self.sha256))


@dataclass(frozen=True)
class Training:
    total_timesteps: int = MISSING
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """Arguments of the SB3 algorithm."""
    seed: int = 0
    n_envs: int = 1
    normalize_observations: bool = False


@dataclass(frozen=True)
class MixtureParent:
    """A dataset that another one is mixed from."""

    dataset: str
    """Name of its pipeline."""
    id: str
    share: float


@dataclass(frozen=True)
class PolicySettings(OpenSettings):
    """A policy: what ``_target_`` names, and its arguments, which are as open as policies are."""

    target: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, values: Any, where: str) -> PolicySettings:
        """Return the policy that a config describes."""
        choice = "- /policy: NAME" if where == "policy" else f"- /policy@{where}: NAME"
        if not isinstance(values, Mapping):
            other = (
                ", or policy=NAME: random, sb3, demonstrations, scripted or mixture"
                if where == "policy"
                else f", or use the policy itself with {where}='${{policy}}'"
            )
            raise ConfigError(
                f"{where} is {values!r}; choose one with `{choice}` in the defaults list of the "
                f"config{other}"
            )
        if values.get("_target_") is None:
            raise ConfigError(
                f"{where} has no _target_; choose one with `{choice}` in the defaults list"
            )
        arguments = {str(key): value for key, value in values.items() if key != "_target_"}
        return cls(str(values["_target_"]), arguments)

    @property
    def values(self) -> dict[str, Any]:
        """The policy as the config has it."""
        return {"_target_": self.target, **self.arguments}

    @property
    def train(self) -> Training | None:
        """The training by the pipeline, where there is one."""
        train = self.arguments.get("train")
        return read(Training, train) if train else None

    @property
    def training_keys(self) -> list[Any]:
        """What decides the checkpoint that its training gives."""
        return [self.arguments.get(key) for key in TRAINING_KEYS]

    @property
    def algorithm(self) -> str | None:
        """Of Stable-Baselines3."""
        return self.arguments.get("algorithm")

    @property
    def network(self) -> dict[str, Any]:
        """The arguments of a training that describe the network."""
        return {k: v for k, v in self.arguments.items() if k in TRAINING_KEYS and k != "train"}

    @property
    def sources(self) -> dict[str, Source]:
        """The files that it names, by the key; a checkpoint and its statistics may be absent."""
        found = {k: v for k in SOURCE_KEYS if isinstance(v := self.arguments.get(k), dict)}
        given = {key: read(Source, value) for key, value in found.items()}
        return {key: value for key, value in given.items() if key == "source" or value}

    @property
    def controller(self) -> Any:
        """``{_target_: module.Callable, ...arguments}`` of a scripted policy."""
        return self.arguments.get("controller")

    @property
    def targets(self) -> list[str]:
        """Every dotted name that it gives."""
        controller = self.controller or {}
        return [self.target, *([str(controller["_target_"])] if "_target_" in controller else [])]

    @property
    def is_mixture(self) -> bool:
        """Whether it stands for a dataset that is mixed from others."""
        return self.target == MIXTURE

    @property
    def parents(self) -> list[MixtureParent]:
        """Of a mixture whose config is completed."""
        return [read(MixtureParent, parent) for parent in self.arguments["parents"]]

    def with_arguments(self, **arguments: Any) -> PolicySettings:
        """The same with other arguments."""
        return replace(self, arguments={**self.arguments, **arguments})

    def as_measured(self, scores: ReferenceScores) -> PolicySettings:
        """The same as ``ref_scores.deterministic`` lets it act."""
        if "deterministic" not in self.arguments:
            return self
        noise = {"exploration", "action_noise"} & self.arguments.keys()
        return self.with_arguments(
            deterministic=scores.deterministic,
            **(dict.fromkeys(noise) if scores.deterministic else {}),
        )


RANDOM = PolicySettings("minari_pipe.policies.RandomPolicy", {})


@dataclass(frozen=True)
class ReferenceScores:
    n_episodes: Optional[int] = None
    """100 if not given; with ``max_stderr``, the most that are measured."""
    max_stderr: Optional[float] = None
    """Episodes are added until the standard error of each mean is below."""
    seed: int = 1000
    """Another default than the collection's: the scores are measured on unseen episodes."""
    n_envs: int = 8
    eval_env: EvaluationEnvironment = field(default_factory=EvaluationEnvironment)
    expert: Optional[PolicySettings] = field(default=None, metadata=_of(Any))
    """A policy, as under ``policy``."""
    deterministic: bool = True
    """Whether the expert takes its most likely action."""
    ref_min_score: Optional[float] = None
    """Declared by hand; measured with the random policy if not given."""
    ref_max_score: Optional[float] = None
    """Declared by hand; measured with the expert if not given."""

    @property
    def environment(self) -> Environment:
        """Where they are measured, once :meth:`EvaluationEnvironment.completed` has named it."""
        return Environment(str(self.eval_env.id), self.eval_env.kwargs, self.eval_env.wrappers)

    @property
    def measures_expert(self) -> bool:
        """Whether ``ref_max_score`` is measured, not declared."""
        return self.ref_max_score is None


@dataclass(frozen=True)
class Validate:
    replay_steps: Optional[int] = 50_000
    """Episodes are simulated again up to this many steps; null for all."""
    replay_tolerance: float = 0.0
    """Largest difference a replay may show on the recorded versions and platform."""
    acknowledge: list[str] = field(default_factory=list)
    """Names of warnings that are known, such as advisories that the description speaks of."""


@dataclass(frozen=True)
class Publish:
    targets: list[str] = field(default_factory=list)
    """Where a run uploads the dataset to: hf://ORG, s3://BUCKET/FOLDER, gs://BUCKET, file://FOLDER
    or a path, relative ones from the workspace; a released version, or with ``--draft`` any. Heeded
    where the command line names them or the user trusts them; no stage depends on them."""
    replace: bool = False
    """Install over a dataset in the Minari root that is not a draft of this pipeline; heeded only
    on the command line, since a config may come from a stranger."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class CheckpointScores:
    """How the mean return of each saved checkpoint is measured."""

    n_episodes: int = 20
    seed: int = 2000
    """Another default than those of the reference scores and of the collection."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class RandomPolicy:
    _target_: str = "minari_pipe.policies.RandomPolicy"


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class ScriptedPolicy:
    _target_: str = "minari_pipe.policies.ScriptedPolicy"
    controller: Any = MISSING
    """``{_target_: module.Callable, ...arguments}``."""


@dataclass(frozen=True)
class Mixture:
    _target_: str = MIXTURE
    parents: dict[str, float] = MISSING
    """Datasets of ``conf/dataset/``, each with its share of the steps."""


@dataclass(frozen=True)
class Config:
    pipeline: str = "${hydra:runtime.choices.dataset}"
    """Name of the folder under ``pipelines/``."""
    dataset: Dataset = field(default_factory=Dataset)
    author: Author = field(default_factory=Author)
    env: Environment = field(default_factory=Environment)
    family: Optional[Family] = field(default=None, metadata=_OMITTED)
    policy: PolicySettings = field(default=MISSING, metadata=_of(Any))
    collect: Collect = field(default_factory=Collect)
    engine: Engine = field(default_factory=Engine)
    ref_scores: ReferenceScores = field(default_factory=ReferenceScores)
    validate: Validate = field(default_factory=Validate)
    publish: Publish = field(default_factory=Publish)
    packages: dict[str, dict[str, str]] = field(default_factory=dict, metadata=_of(None))
    """Versions of the packages that decide what each stage writes; no key of a config."""

    @property
    def family_name(self) -> str | None:
        """The family that the dataset belongs to.

        Raises:
            ConfigError: its name cannot be that of a pipeline.
        """
        if self.family is None:
            return None
        how = "a family is chosen with `- /family: NAME`, for conf/family/NAME.yaml"
        return check_pipeline_name(str(self.family.name), how)

    @property
    def kind(self) -> str | None:
        """What a dataset of a family holds; None outside of families."""
        return str(self.family.kind) if self.family else None

    @property
    def is_mixture(self) -> bool:
        """Whether the dataset is mixed from others."""
        return self.policy.is_mixture

    @property
    def collected(self) -> PolicySettings | None:
        """The policy that ``collect`` runs; None where episodes are taken over."""
        if self.is_mixture or self.kind == "medium_replay":
            return None
        return RANDOM if self.kind == "random" else self.policy

    def scores_pipeline(self, name: str) -> str:
        """The pipeline that has the reference scores of pipeline ``name``."""
        if self.is_mixture:
            return str(self.policy.arguments["scores"])
        return self.family_name or name


@dataclass(frozen=True)
class Shared:
    """What the datasets of a family share, which is a pipeline of its own."""

    env: Environment
    family: Family
    policy: PolicySettings
    ref_scores: ReferenceScores
    engine: Engine = field(default_factory=Engine)
    packages: dict[str, dict[str, str]] = field(default_factory=dict)

    family_name = None
    kind = None
    is_mixture = False
    collected = None


Params = Config | Shared
"""What the stages of a pipeline take: of a dataset, or of what those of a family share."""

_OF_A_DATASET = ("kind", "fraction")
"""Keys of ``family`` that each dataset of it has of its own."""


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


def params_of(values: Mapping[str, Any]) -> Params:
    """Return what ``params.yaml`` of a pipeline holds.

    Raises:
        ConfigError: a value is of another type than its key has, or a key is missing.
    """
    return read(Config, values) if "dataset" in values else read(Shared, values)


def params_values(params: Params) -> dict[str, Any]:
    """Return the plain values that ``params.yaml`` holds of parameters."""
    found = values_of(params)
    found.pop("pipeline", None)
    if isinstance(params, Shared):
        found["family"] = {k: v for k, v in found["family"].items() if k not in _OF_A_DATASET}
    return found


def register() -> None:
    """Hand the schemas to Hydra."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=hydra_node(Config))
    for name, policy in POLICY_SCHEMAS.items():
        store.store(group="policy", name=name, node=hydra_node(policy))
