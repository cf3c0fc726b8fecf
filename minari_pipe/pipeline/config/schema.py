"""Defines the schema of a pipeline's configuration: every key, its type and its default.

Hydra merges ``conf/dataset/NAME.yaml`` over this schema, so a wrong key or type fails before
anything runs. Keys whose default is ``MISSING`` are required. The composed config, like the
content of ``params.yaml`` (:func:`params_of`), becomes a :class:`Config`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional  # OmegaConf reads the annotations and wants Optional

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.typed import MISSING, OpenSettings, hydra_node, read, values_of
from minari_pipe.pipeline.config.until import Until
from minari_pipe.pipeline.workspace import check_pipeline_name
from minari_pipe.policies.noise import Noise

#: The ``_target_`` of a dataset that is mixed from others; it is not a policy and runs nothing.
MIXTURE = "minari_pipe.pipeline.Mixture"

#: Keys under which a policy's config names a file; a checkpoint and its statistics may be absent.
SOURCE_KEYS = ("checkpoint", "normalize", "source")

#: Keys of a policy's config that determine the checkpoint of its training.
TRAINING_KEYS = ("algorithm", "policy_class", "policy_kwargs", "train")

#: Keys of a policy's config that are left out while they have these values, so that datasets made
#: before the key existed keep the hash of their config.
_UNSET = {"noise": None, "repeat": False}

#: The same for keys of one policy; another may have a key of that name with another default.
_UNSET_OF = {
    "minari_pipe.policies.DemonstrationPolicy": {"files": None, "frame_skip": 1, "tracking": None}
}

#: Keys of a policy's config that ``noise`` has replaced. They stay in ``params.yaml`` as null, so
#: that no dataset made before is made again.
_REPLACED = {"minari_pipe.policies.SB3Policy": ("action_noise", "exploration")}

#: Marks a key that ``params.yaml`` omits while it has its default, so that datasets made before
#: the key existed keep the hash of their config.
_OMITTED = {"omitted": True}


def _of(kind: Any) -> dict[str, Any]:
    """Return the metadata of a key that has another type for Hydra and is checked elsewhere."""
    return {"hydra": kind}


@dataclass(frozen=True)
class Recipe:
    """What a reader of the recipe or of its dataset may ask, beside the settings."""

    replaces: Optional[str] = field(default=None, metadata=_OMITTED)
    """Id of the hosted dataset that this one stands beside."""
    hosted_size: Optional[str] = field(default=None, metadata=_OMITTED)
    """Its size, such as ``13,210 episodes, 1,000,000 steps``."""
    differs: Optional[str] = field(default=None, metadata=_OMITTED)
    """How this one differs from it."""
    cpu_hours: Optional[float] = field(default=None, metadata=_OMITTED)
    """What all stages take together, on one core."""
    megabytes: Optional[float] = field(default=None, metadata=_OMITTED)
    """Disk space of the dataset."""
    environment_license: Optional[str] = field(default=None, metadata=_OMITTED)
    unverified: Optional[str] = field(default=None, metadata=_OMITTED)
    """What nobody has tried yet, if so."""


@dataclass(frozen=True)
class Dataset:
    """The descriptive metadata of the dataset in ``metadata.json``, and how its data are stored."""

    id: str = MISSING
    description: Optional[str] = None
    license: Optional[str] = None
    citation: Optional[str] = None
    algorithm_name: Optional[str] = None
    code_permalink: Optional[str] = None
    requirements: Optional[list[str]] = None
    """pip requirements; default: the installed versions of the packages that make the data."""
    data_format: str = field(default="hdf5", metadata=_OMITTED)
    """``hdf5``, or, with ``pip install 'minari_pipe[arrow]'``, ``arrow`` or ``parquet``."""
    jpeg_encoding: bool = field(default=False, metadata=_OMITTED)
    """Store images as JPEG, which loses detail; needs ``pip install 'minari_pipe[jpeg]'``."""
    compression: Optional[int] = field(default=None, metadata=_OMITTED)
    """For ``hdf5``: gzip level of numeric arrays, 1 to 9; parquet is always compressed."""
    recipe: Recipe = field(default_factory=Recipe, metadata=_OMITTED)

    @property
    def is_stored_as_usual(self) -> bool:
        """Whether all keys that decide how the data are stored have their defaults."""
        usual = (Dataset.data_format, Dataset.jpeg_encoding, Dataset.compression)
        return (self.data_format, self.jpeg_encoding, self.compression) == usual


@dataclass(frozen=True)
class Author:
    """The author of the dataset."""

    name: str = MISSING
    email: Optional[str] = None


@dataclass(frozen=True)
class Environment:
    """The environment in which episodes are collected."""

    id: str = MISSING
    """A registered id, or ``module:Env-v0`` of a trusted module."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``gymnasium.make``, including ``max_episode_steps``."""
    wrappers: list[dict[str, Any]] = field(default_factory=list, metadata=_of(list[Any]))
    """From innermost to outermost, each ``{_target_: gymnasium.wrappers.X, ...}``."""
    policy_wrappers: list[dict[str, Any]] = field(
        default_factory=list, metadata=_of(list[Any]) | _OMITTED
    )
    """Wrappers around these through which only the policy sees and acts, as for frames of Atari;
    the dataset holds what the environment below them receives and returns."""
    success_key: Optional[str] = field(default=None, metadata=_OMITTED)
    """Key of the infos that says whether the goal is reached, if not success or is_success."""
    reset_options: dict[str, Any] = field(default_factory=dict, metadata=_OMITTED)
    """Options of ``reset``, the same in every episode; those of a controller come on top. A
    training resets without."""

    @property
    def all_wrappers(self) -> list[dict[str, Any]]:
        """All wrappers, from innermost to outermost."""
        return [*self.wrappers, *self.policy_wrappers]


@dataclass(frozen=True)
class EvaluationEnvironment:
    """The evaluation's environment; without an id, the collection's with these arguments added."""

    id: Optional[str] = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[dict[str, Any]] = field(default_factory=list, metadata=_of(list[Any]))
    policy_wrappers: list[dict[str, Any]] = field(
        default_factory=list, metadata=_of(list[Any]) | _OMITTED
    )
    success_key: Optional[str] = field(default=None, metadata=_OMITTED)
    reset_options: dict[str, Any] = field(default_factory=dict, metadata=_OMITTED)

    def completed(self, env: Environment) -> EvaluationEnvironment:
        """Return a copy completed with the settings of the collection's environment."""
        found = replace(
            self,
            policy_wrappers=self.policy_wrappers or env.policy_wrappers,
            success_key=self.success_key or env.success_key,
        )
        if self.id is not None:
            return found
        kwargs = {**env.kwargs, **self.kwargs}
        options = {**env.reset_options, **self.reset_options}
        wrappers = self.wrappers or env.wrappers
        return replace(found, id=env.id, kwargs=kwargs, wrappers=wrappers, reset_options=options)


@dataclass(frozen=True)
class Collect:
    """How much ``collect`` collects, and how."""

    n_episodes: Optional[int] = None
    """Number of episodes; with ``until``, the maximum number to try."""
    n_steps: Optional[int] = None
    """Collect whole episodes until the kept ones have at least this many steps."""
    exact: bool = False
    """With ``n_steps``: cut the last episode, so that there are exactly that many steps."""
    until: Until = field(default_factory=Until)
    keep: str = "all"
    """``matching``: only episodes that match ``until`` become part of the dataset."""
    on_error: str = "fail"
    """``skip``: leave out a block whose retries all failed, and list it in the metadata.
    ``skip_episode``: also leave out episodes for which the controller fails."""
    seed: int = 0
    block_episodes: int = 100
    """Episodes in a block, the unit of work of a worker; a rerun reuses finished blocks."""
    n_envs: int = 8
    """Environments that step in lockstep; the batch size of a policy's network."""
    record_infos: bool | list[str] = field(default=False, metadata=_of(Any))
    """Whether to record the infos; or a list with the names of those to record."""
    record_observation: Any = field(default=None, metadata=_of(Any) | _OMITTED)
    """For Dict observations, the keys to record, each with ``{}`` or ``{from: KEY, text: LENGTH}``:
    ``{image: {}, mission: {text: 200}}`` leaves out others, and stores a mission as Text."""
    record_state: bool = False
    """Record the full simulator state as ``infos/state``, in addition to the infos."""


@dataclass(frozen=True)
class Source:
    """A file: a path, or an address with the sha256 of its content."""

    path: Optional[str] = None
    address: Optional[str] = None
    sha256: Optional[str] = None

    def __bool__(self) -> bool:
        return any((self.path, self.address, self.sha256))


@dataclass(frozen=True)
class Training:
    """A training run with Stable-Baselines3."""

    total_timesteps: int = MISSING
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """Arguments of the SB3 algorithm."""
    seed: int = 0
    n_envs: int = 1
    normalize_observations: bool = False


@dataclass(frozen=True)
class Cloning:
    """A training that learns the actions of a dataset: behaviour cloning."""

    dataset: Any = field(default=MISSING, metadata=_of(str))
    """Name of a dataset in ``conf/dataset/``; in a completed config a :class:`ParentDataset`."""
    gradient_steps: int = MISSING
    """Number of batches of actions to learn from."""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """``learning_rate``, ``batch_size`` and ``ent_coef``."""
    seed: int = 0
    normalize_observations: bool = False


#: The schema of ``train`` for algorithms that do not learn in the environment.
TRAININGS: dict[str, type[Cloning]] = {"bc": Cloning}


@dataclass(frozen=True)
class ParentDataset:
    """A dataset that another one is made from."""

    dataset: str
    """Name of the parent's pipeline."""
    id: str


@dataclass(frozen=True)
class MixtureParent(ParentDataset):
    """A dataset that another one is mixed from."""

    share: float


@dataclass(frozen=True)
class PolicySettings(OpenSettings):
    """A policy: its ``_target_`` and its arguments, whose keys depend on the policy."""

    target: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, values: Any, where: str) -> PolicySettings:
        """Return the policy that the section ``where`` of a config describes."""
        choice = "- /policy: NAME" if where == "policy" else f"- /policy@{where}: NAME"
        if not isinstance(values, Mapping):
            other = (
                f", or policy=NAME: {', '.join(POLICY_SCHEMAS)}"
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
        target = str(values["_target_"])
        replaced = _REPLACED.get(target, ())
        for key in replaced:
            if values.get(key) is not None:
                raise ConfigError(
                    f"{where}.{key} is {values[key]!r:.80}; {where}.noise has replaced it, such as "
                    f"{where}.noise={{kind: gaussian, scale: 0.1}}"
                )
        unset = _UNSET | _UNSET_OF.get(target, {})
        arguments = {
            str(key): value
            for key, value in values.items()
            if key not in ("_target_", *replaced) and (key not in unset or value != unset[key])
        }
        return cls(target, arguments)

    @property
    def values(self) -> dict[str, Any]:
        """The policy as ``params.yaml`` holds it."""
        replaced = dict.fromkeys(_REPLACED.get(self.target, ()))
        return {"_target_": self.target, **self.arguments, **replaced}

    @property
    def train(self) -> Training | Cloning | None:
        """The training that the pipeline runs, if any."""
        train = self.arguments.get("train")
        kind: type[Training | Cloning] = TRAININGS.get(str(self.algorithm), Training)
        return read(kind, train) if train else None

    @property
    def cloned(self) -> ParentDataset | None:
        """The dataset whose actions it learns, if any, once its config is completed."""
        train = self.train
        return read(ParentDataset, train.dataset) if isinstance(train, Cloning) else None

    @property
    def training_keys(self) -> list[Any]:
        """The values that determine the checkpoint of its training."""
        return [self.arguments.get(key) for key in TRAINING_KEYS]

    @property
    def noise(self) -> Noise | None:
        """The noise on its actions, if any."""
        noise = self.arguments.get("noise")
        return None if noise is None else Noise.of(noise, "noise")

    @property
    def algorithm(self) -> str | None:
        """Name of the Stable-Baselines3 algorithm, if any."""
        return self.arguments.get("algorithm")

    @property
    def network(self) -> dict[str, Any]:
        """The training arguments that describe algorithm and network."""
        return {k: v for k, v in self.arguments.items() if k in TRAINING_KEYS and k != "train"}

    @property
    def sources(self) -> dict[str, Source]:
        """The files that it names, by key; a checkpoint and its statistics may be absent."""
        found = {k: v for k in SOURCE_KEYS if isinstance(v := self.arguments.get(k), dict)}
        given = {key: read(Source, value) for key, value in found.items()}
        return {key: value for key, value in given.items() if key == "source" or value}

    @property
    def controller(self) -> Any:
        """``{_target_: module.Callable, ...arguments}`` of a scripted policy."""
        return self.arguments.get("controller")

    @property
    def targets(self) -> list[str]:
        """The dotted names of the policy and of its controller, if any."""
        controller = self.controller or {}
        return [self.target, *([str(controller["_target_"])] if "_target_" in controller else [])]

    @property
    def is_mixture(self) -> bool:
        """Whether the dataset is mixed from others instead of collected."""
        return self.target == MIXTURE

    @property
    def parents(self) -> list[MixtureParent]:
        """The parents of a mixture, once its config is completed."""
        return [read(MixtureParent, parent) for parent in self.arguments["parents"]]

    def with_arguments(self, **arguments: Any) -> PolicySettings:
        """Return a copy with some arguments replaced."""
        return replace(self, arguments={**self.arguments, **arguments})

    def as_measured(self, scores: ReferenceScores) -> PolicySettings:
        """Return a copy that acts as ``ref_scores.deterministic`` says."""
        settings = self.without_noise() if scores.deterministic else self
        if "deterministic" not in self.arguments:
            return settings
        return settings.with_arguments(deterministic=scores.deterministic)

    def without_noise(self) -> PolicySettings:
        """Return a copy that adds no noise to its actions."""
        arguments = {key: value for key, value in self.arguments.items() if key != "noise"}
        return replace(self, arguments=arguments)


RANDOM = PolicySettings("minari_pipe.policies.RandomPolicy", {})


@dataclass(frozen=True)
class ReferenceScores:
    """How the reference scores are measured, or their declared values."""

    n_episodes: Optional[int] = None
    """Number of episodes, default 100; with ``max_stderr``, the maximum (default: none)."""
    max_stderr: Optional[float] = None
    """Measure more episodes until the standard error of each mean is below this."""
    seed: int = 1000
    """Differs from the collection's default, so that scores are measured on unseen episodes."""
    n_envs: int = 8
    eval_env: EvaluationEnvironment = field(default_factory=EvaluationEnvironment)
    expert: Optional[PolicySettings] = field(default=None, metadata=_of(Any))
    """A policy, as under ``policy``."""
    deterministic: bool = True
    """Whether the expert takes its most likely action, without noise."""
    ref_min_score: Optional[float] = None
    """A declared score; measured with the random policy if not given."""
    ref_max_score: Optional[float] = None
    """A declared score; measured with the expert if not given."""

    @property
    def environment(self) -> Environment:
        """The evaluation's environment, after :meth:`EvaluationEnvironment.completed`."""
        env = self.eval_env
        return Environment(**{**vars(env), "id": str(env.id)})

    @property
    def measures_expert(self) -> bool:
        """Whether ``ref_max_score`` is measured rather than declared."""
        return self.ref_max_score is None


@dataclass(frozen=True)
class Validate:
    """Options of the stage ``validate``."""

    replay_steps: Optional[int] = 50_000
    """Replay episodes up to this many steps in total; null for all."""
    replay_tolerance: float = 0.0
    """Largest difference that a replay may show under the recorded versions and platform."""
    acknowledge: list[str] = field(default_factory=list)
    """Names of known warnings, such as advisories that the description mentions."""


@dataclass(frozen=True)
class Card:
    """The card, which describes the dataset to people: its film, and what only the author knows.

    The texts are the fields that NeurIPS asks for; the card names those that are missing.
    """

    film: bool = True
    """Film the episode of median return, if its environment can be rendered here."""
    limitations: Optional[str] = None
    """What the data lack, and what they must not be used for."""
    biases: Optional[str] = None
    """What is over- or underrepresented, such as states, goals or outcomes."""
    personal_information: Optional[str] = None
    """Personal or sensitive information in the data, such as faces; or that there is none."""
    use_cases: Optional[str] = None
    """What the data are meant for."""
    social_impact: Optional[str] = None
    """Benefits and harms that their use may have."""


@dataclass(frozen=True)
class Publish:
    """Where a run uploads and installs the dataset."""

    targets: list[str] = field(default_factory=list)
    """Upload a released version (with ``--draft``, any) to: hf://ORG, s3://BUCKET/FOLDER,
    gs://BUCKET, file:///FOLDER or a path, relative to the workspace. Used only if the command line
    names them or the user trusts them; no stage depends on them."""
    replace: bool = False
    """Replace a dataset in the Minari root that is not a draft of this pipeline; accepted only on
    the command line, since a config may be untrusted."""


@dataclass(frozen=True)
class Engine:
    """The engine that runs the blocks; it affects the run time, but no byte of the result."""

    name: str = "local"
    """``local``, ``processes`` or ``ray``: choose one with ``engine=NAME``."""
    n_workers: Optional[int] = None
    """``processes`` and ``ray``: blocks that run in parallel; default: the number of processors."""
    max_retries: int = 2
    """Retries of a block that failed."""
    max_failures: int = 100
    """Failed attempts allowed over all blocks; after more, the run fails."""
    block_timeout_s: Optional[float] = None
    """Timeout of an attempt at a block, in seconds; with ``storage`` it starts at submission, so
    time in the cluster's queue counts."""
    address: Optional[str] = None
    """``ray``: the cluster, HOST:PORT or ray://HOST:PORT; default: a cluster on this machine only.
    Accepted only on the command line, since a config may be untrusted."""
    storage: Optional[str] = None
    """``ray``: where nodes without a shared disk store their blocks, such as s3://BUCKET/FOLDER.
    Accepted only on the command line."""


@dataclass(frozen=True)
class CheckpointScores:
    """How the mean return of each saved checkpoint is measured."""

    n_episodes: int = 20
    seed: int = 2000
    """Differs from the defaults of the reference scores and of the collection."""


@dataclass(frozen=True)
class CheckpointsAt:
    """When checkpoints are saved: shares of the training steps, above 0 and at most 1."""

    simple: Optional[float] = None
    medium: Optional[float] = None
    """For medium and medium_replay, instead of ``family.fraction``."""


@dataclass(frozen=True)
class Family:
    """One training run, that of ``policy.train``, from which several datasets are made."""

    name: str = "${hydra:runtime.choices.family}"
    """Name of the folder under ``pipelines/`` that all its datasets share."""
    training: Optional[str] = field(default=None, metadata=_OMITTED)
    """One of ``trainings``, if the family's file describes several; the folder is then named
    ``NAME_TRAINING``."""
    kind: str = "expert"
    """What the dataset holds: expert, medium, simple, random, medium_replay or full_replay."""
    fraction: float = 1 / 3
    """For medium and medium_replay: normalized score; the nearest checkpoint is used."""
    n_checkpoints: int = 10
    """Number of checkpoints, spread evenly over the training steps."""
    at: CheckpointsAt = field(default_factory=CheckpointsAt, metadata=_OMITTED)
    """More checkpoints, for the kinds that are chosen by the progress of the training."""
    record_infos: bool = False
    """Record the infos of the training episodes, for medium_replay and full_replay."""
    record_episodes: bool = field(default=True, metadata=_OMITTED)
    """Record the training episodes; false saves their disk space, and allows no replay."""
    checkpoint_scores: CheckpointScores = field(default_factory=CheckpointScores)

    @property
    def share(self) -> float | None:
        """The share of the training steps that decides which checkpoint the dataset uses.

        None if a score decides, or none is chosen.
        """
        found: float | None = vars(self.at).get(self.kind.removesuffix("_replay"))
        return found


@dataclass(frozen=True)
class ComposedFamily(Family):
    """What Hydra composes: a family, with the trainings that its file describes."""

    trainings: Any = None
    """Values by name, which the file uses as ``${family.trainings[${family.training}].KEY}``."""


@dataclass(frozen=True)
class RandomPolicy:
    """Arguments of the random policy: none."""

    _target_: str = "minari_pipe.policies.RandomPolicy"


@dataclass(frozen=True)
class SB3Policy:
    """Arguments of a Stable-Baselines3 policy, loaded or trained."""

    _target_: str = "minari_pipe.policies.SB3Policy"
    algorithm: str = MISSING
    policy_class: str = "MlpPolicy"
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    """For example ``{net_arch: [64, 64], activation_fn: tanh}``."""
    checkpoint: Source = field(default_factory=Source)
    normalize: Source = field(default_factory=Source)
    """Observation statistics, as written by ``write_normalization``."""
    # A Training, but declared as Any: OmegaConf cannot override a null of a dataclass type
    # (`policy.train={...}` on the command line).
    train: Any = None
    """Train the policy in the pipeline, instead of loading a checkpoint."""
    deterministic: bool = True
    """Take the most likely action; if false, sample from the policy's distribution."""
    noise: Any = None
    """Noise on the actions, such as ``{kind: gaussian, scale: 0.1}``; see docs/policies.md."""


@dataclass(frozen=True)
class DemonstrationPolicy:
    """Arguments of a policy that replays recorded demonstrations."""

    _target_: str = "minari_pipe.policies.DemonstrationPolicy"
    source: Source = field(default_factory=Source)
    format: Optional[str] = None
    """``dapg`` (a pickled list of episodes), ``d4rl`` (flat HDF5) or ``mjl`` (a MuJoCo log, or a
    zip of many); detected if not given."""
    files: Optional[str] = None
    """For a zip of logs: pattern of the names to replay, such as ``*_kettle_*/*``; default: all."""
    frame_skip: int = 1
    """Recorded steps, or frames of a log, for one step of the environment."""
    tracking: Any = None
    """The recorded actions are positions; the action is ``gain`` times the distance to the observed
    ones, such as ``{key: observation, gain: 6.25, limit: 0.999}``; see docs/policies.md."""
    reset_option: Optional[str] = "initial_state_dict"
    """Option of the environment's ``reset`` that takes the initial state, a dict of arrays; null if
    there is none: then an episode starts where its seed says."""
    state_keys: Optional[list[str]] = None
    """Arrays of that dict, such as ``[qpos, qvel]``; default: those that the environment declares
    (Adroit), else all arrays in the file."""
    noise: Any = None
    """Noise on the actions, such as ``{kind: gaussian, scale: 0.1}``; see docs/policies.md."""


@dataclass(frozen=True)
class ScriptedPolicy:
    """Arguments of a policy that calls a controller."""

    _target_: str = "minari_pipe.policies.ScriptedPolicy"
    controller: Any = MISSING
    """``{_target_: module.Callable, ...arguments}``."""
    noise: Any = None
    """Noise on the actions, such as ``{kind: gaussian, scale: 0.1}``; see docs/policies.md."""


@dataclass(frozen=True)
class Mixture:
    """Arguments of a dataset that is mixed from others."""

    _target_: str = MIXTURE
    parents: dict[str, float] = MISSING
    """Names of datasets in ``conf/dataset/``, each with its share of the steps."""
    repeat: bool = False
    """Take the episodes of a parent again, from its first, until they are its share of
    ``collect.n_steps``."""


@dataclass(frozen=True)
class Config:
    """The configuration of one dataset's pipeline."""

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
    card: Card = field(default_factory=Card)
    publish: Publish = field(default_factory=Publish)
    packages: dict[str, dict[str, str]] = field(default_factory=dict, metadata=_of(None))
    """Versions of the packages that determine what each stage writes; not a key of a config."""

    @property
    def family_name(self) -> str | None:
        """The family that the dataset belongs to, if any.

        Raises:
            ConfigError: its name is not valid as a pipeline name.
        """
        if self.family is None:
            return None
        how = "choose a family with `- /family: NAME`, for conf/family/NAME.yaml"
        name, training = str(self.family.name), self.family.training
        return check_pipeline_name(name if training is None else f"{name}_{training}", how)

    @property
    def kind(self) -> str | None:
        """What a dataset of a family holds; None outside families."""
        return str(self.family.kind) if self.family else None

    @property
    def is_mixture(self) -> bool:
        """Whether the dataset is mixed from others."""
        return self.policy.is_mixture

    @property
    def is_replay(self) -> bool:
        """Whether the dataset holds the episodes of a training."""
        return self.kind in ("medium_replay", "full_replay")

    @property
    def collected(self) -> PolicySettings | None:
        """The policy that ``collect`` runs; None if episodes are copied from elsewhere."""
        if self.is_mixture or self.is_replay:
            return None
        return RANDOM if self.kind == "random" else self.policy

    def scores_pipeline(self, name: str) -> str:
        """Return the pipeline that measures the reference scores of pipeline ``name``."""
        if self.is_mixture:
            return check_pipeline_name(str(self.policy.arguments["scores"]))
        return self.family_name or name


@dataclass(frozen=True)
class Composition(Config):
    """What Hydra composes: the configuration of a dataset, with the tasks that its file is for."""

    family: Optional[ComposedFamily] = None
    task: Optional[str] = None
    """One of ``tasks``, if the file makes several datasets."""
    tasks: Any = None
    """Their names, or values by name, which the file uses as ``${tasks[${task}].KEY}``."""


@dataclass(frozen=True)
class Shared:
    """The configuration that the datasets of a family share: a pipeline of its own."""

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


#: The parameters of a pipeline's stages: those of a dataset, or those that a family shares.
Params = Config | Shared

#: Keys of ``family`` that each dataset of the family sets for itself.
_OF_A_DATASET = ("kind", "fraction")

#: The sections of a config whose keys are fixed, except the policies.
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
    "card": Card,
    "publish": Publish,
}

#: The policies of this package, by their names in ``conf/policy``.
POLICY_SCHEMAS = {
    "random": RandomPolicy,
    "sb3": SB3Policy,
    "demonstrations": DemonstrationPolicy,
    "scripted": ScriptedPolicy,
    "mixture": Mixture,
}


def params_of(values: Mapping[str, Any]) -> Params:
    """Return the parameters for the content of a pipeline's ``params.yaml``.

    Raises:
        ConfigError: a value has the wrong type, or a required key is missing.
    """
    return read(Config, values) if "dataset" in values else read(Shared, values)


def params_values(params: Params) -> dict[str, Any]:
    """Return parameters as the plain values that ``params.yaml`` holds."""
    found = values_of(params)
    found.pop("pipeline", None)
    if isinstance(params, Shared):
        found["family"] = {k: v for k, v in found["family"].items() if k not in _OF_A_DATASET}
    return found


@functools.cache
def register() -> None:
    """Register the schemas with Hydra."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=hydra_node(Composition))
    for name, policy in POLICY_SCHEMAS.items():
        store.store(group="policy", name=f"{name}_schema", node=hydra_node(policy))
