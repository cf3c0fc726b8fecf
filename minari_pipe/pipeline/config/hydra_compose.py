"""Composes the command line into a configuration with Hydra; every error is one line."""

from __future__ import annotations

import argparse
import io
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import hydra
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, Node, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from minari_pipe.core.messages import printable
from minari_pipe.errors import ConfigError, MinariPipeError, TrustError, did_you_mean
from minari_pipe.pipeline.config import oc_env, schema, tasks
from minari_pipe.pipeline.config.conf_files import conf_dir, dataset_file, datasets, packaged_conf
from minari_pipe.pipeline.config.hydra_errors import hydra_message, translated
from minari_pipe.pipeline.config.hydra_guard import (
    HYDRA_OVERRIDES,
    OF_HYDRA,
    FilesBelow,
    check_aliases,
    checked_file,
    checked_load,
    checked_source,
    refuse_hydra,
)
from minari_pipe.pipeline.config.interpolations import limit_interpolations, start_counting
from minari_pipe.pipeline.config.schema import MIXTURE, Config, Shared
from minari_pipe.pipeline.config.typed import hydra_node, read
from minari_pipe.pipeline.workspace import STATE, check_pipeline_name, find_root
from minari_pipe.pipeline.workspace_links import check_links

#: Hydra's flags that would read files outside the workspace's configs; the last reads a pickle.
_OTHER_CONFIGS = ("config_dir", "config_path", "config_name", "experimental_rerun")


def _prepare() -> Path:
    """Register schema and search path; the workspace's configs win over the packaged ones."""
    schema.register()
    # A relative output folder of Hydra would lie below the current one: give it an absolute path.
    OmegaConf.register_new_resolver("minari_pipe.state", _state, replace=True)
    OmegaConf.register_new_resolver("oc.env", oc_env.as_written, replace=True)
    primary, packaged = conf_dir(), packaged_conf()
    try:
        root = find_root()
    except ConfigError:
        pass  # --help works outside a workspace
    else:
        check_links(root)

    class PackagedConfigs(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            if primary != packaged:
                search_path.append("minari_pipe", packaged.as_uri())

    Plugins.instance().register(PackagedConfigs)
    SourcesRegistry.instance().types["file"] = FilesBelow
    ConfigLoaderImpl.load_configuration = checked_load  # type: ignore[method-assign]
    ConfigLoaderImpl._load_single_config = checked_file  # type: ignore[method-assign]
    FileConfigSource.load_config = checked_source  # type: ignore[method-assign]
    limit_interpolations()
    _check_primary(primary)
    return primary


def _state(name: str, *, _node_: Node) -> str:
    if not str(_node_._get_full_key(None)).startswith("hydra."):
        raise ConfigError("minari_pipe.state is only for Hydra's own folders")
    return str(find_root() / STATE / name)


def normalize_argv(argv: list[str]) -> list[str]:
    """Write the choice of a dataset as Hydra needs it.

    ``dataset=x`` becomes ``+dataset=x``, since the group is not in the defaults list, and the name
    of a pipeline, ``+dataset=x_task``, becomes ``+dataset=x task=task``.
    """
    argv = [re.sub(r"^dataset=", "+dataset=", argument) for argument in argv]
    given = [word for word in argv if _TASK.match(word)]
    found = []
    for argument in argv:
        words = _with_task(argument)
        if len(words) > 1 and given and given != words[1:]:
            raise ConfigError(
                f"{argument} is short for {' '.join(words)}, but {given[0]} is given, too; leave "
                "one of them out"
            )
        found += words[:1] if given else words
    return found


#: a choice of a task
_TASK = re.compile(r"\+{0,2}task=")


def _with_task(argument: str) -> list[str]:
    name = argument.removeprefix("+dataset=")
    if name == argument or dataset_file(name) is not None:
        return [argument]
    return tasks.choices().get(name, [argument])


def run(
    argv: list[str],
    job: Callable[[str, Config, list[str]], None],
    *,
    launches: bool = True,
) -> None:
    """Pass the command line to Hydra and call ``job`` for each composed configuration.

    Args:
        argv: the command line without the program's name and our own flags.
        job: called with the pipeline's name, its configuration, and the overrides that made it,
            with the choice of the dataset first. An exception that it raises ends a sweep.
        launches: let Hydra launch the jobs of a sweep, for which it creates a folder.

    Raises:
        ConfigError: the command line or a config file is invalid.
    """
    primary = _prepare()
    flags = _parse(normalize_argv(argv))
    if flags.multirun:
        flags.overrides = _with_all_tasks(flags.overrides)
    if flags.hydra_help:
        # This needs no dataset, whose files could ask Hydra to set up logging.
        flags.overrides, flags.others = [], ["--hydra-help"]
        with translated():
            _hydras([], primary)
    elif not flags.shell_completion:
        if not flags.cfg:
            find_root()  # raises before Hydra creates a folder outside a workspace
        with translated():
            jobs = _jobs(flags.overrides, primary, sweeps=flags.multirun)
            if flags.cfg == "job" and not (flags.package or flags.multirun):
                # Print what Hydra would, without its second composition: 0.1 s.
                text = OmegaConf.to_yaml(jobs[0].body, resolve=flags.resolve)
                if text != printable(text):  # which YAML escapes without changing a value
                    text = yaml.safe_dump(yaml.safe_load(text), sort_keys=False)
                print(text, end="")
                return
        plain_sweep = set(flags.others) <= {"-m", "--multirun"}
        if plain_sweep and not any(OF_HYDRA.match(word) for word in flags.overrides):
            # No setting is for Hydra's own runner, which would compose twice more: 0.2 s.
            launches = False
        if not (launches or flags.cfg):
            for composed in jobs:
                job(composed.name, composed.config, composed.overrides)
            return

    def hydra_job(cfg: DictConfig) -> None:
        with translated():
            composed = plain(cfg, HydraConfig.get())
        job(composed.name, composed.config, composed.overrides)

    ours = [] if flags.shell_completion else _ours(flags.overrides)
    # Hydra's parser accepts overrides only in one group, not before and after a flag.
    sys.argv[1:] = [*ours, *flags.overrides, *flags.others]
    is_query = flags.shell_completion and "query=" in " ".join(argv)
    with translated(), _for_shells() if is_query else nullcontext():
        hydra.main(version_base="1.3", config_path=str(primary), config_name="config")(hydra_job)()


@contextmanager
def _for_shells() -> Iterator[None]:
    """Drop suggestions that bash would expand: whoever names a file could have a command run."""
    with redirect_stdout(io.StringIO()) as suggestions:
        yield
    words = suggestions.getvalue().split()
    print("\n".join(word for word in words if re.fullmatch(r"[\w./=+:,@-]+", word)))


def _with_all_tasks(overrides: list[str]) -> list[str]:
    """Return the overrides of a sweep, over all tasks of a file whose task they do not give."""
    known = _tasks_left(overrides)
    return [*overrides, f"task={','.join(known)}"] if known else overrides


def _tasks_left(overrides: list[str]) -> list[str]:
    """Return the tasks of the chosen file, if the overrides choose none of them."""
    chosen = [word.partition("=")[2] for word in overrides if word.startswith("+dataset=")]
    if len(chosen) != 1 or any(_TASK.match(word) for word in overrides):
        return []
    return tasks.names_in(chosen[0])


def _parse(argv: list[str]) -> argparse.Namespace:
    """Parse Hydra's flags; ``overrides`` holds the overrides, ``others`` all other words."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help and --hydra-help")

    # Hydra creates the parser, so a subclass cannot override this.
    parser.error = refuse  # type: ignore[method-assign]
    flags = parser.parse_intermixed_args(argv)
    for name in _OTHER_CONFIGS:
        if getattr(flags, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} cannot be used here: configs are read only from the "
                f"workspace's conf/ and the package"
            )
    if flags.shell_completion and not re.search(r"\b(un)?install=|\bquery=", " ".join(argv)):
        raise ConfigError(
            "--shell-completion takes install=SHELL, uninstall=SHELL or query=SHELL; for the "
            "minari-pipe commands, run minari-pipe --install-completion"
        )
    flags.others = list(argv)
    for word in flags.overrides:
        flags.others.remove(word)
    return flags


def recompose(overrides: list[str]) -> Composed:
    """Compose recorded overrides as a command line would, refusing settings of Hydra."""
    primary = _prepare()
    overrides = normalize_argv(overrides)
    settings = [o for o in overrides if OF_HYDRA.match(o)]
    if settings:
        raise TrustError(f"recorded overrides must not configure Hydra itself: {settings[0]}")
    with translated():
        return _composed(overrides, primary)


def _composed(overrides: list[str], primary: Path) -> Composed:
    cfg = _hydras(overrides, primary)
    return plain(cfg, cfg.hydra)


def _hydras(overrides: list[str], primary: Path) -> DictConfig:
    """Compose with Hydra, without running anything."""
    for word in overrides:
        key = word.removeprefix("~").partition("=")[0]
        if word.startswith("~") and key in {field.name for field in fields(schema.Config)}:
            raise ConfigError(
                f"~{key} removes a required key; leave it out, or set the keys below it"
            )
    with (
        _no_job(),
        initialize_config_dir(str(primary), version_base="1.3", job_name="minari_pipe"),
    ):
        words = [*_ours(overrides), *overrides]
        try:
            cfg = compose("config", overrides=words, return_hydra_config=True)
        except (MinariPipeError, OmegaConfBaseException):
            raise
        except (TypeError, ValueError, RecursionError) as exc:  # raised by Hydra itself
            raise ConfigError(
                f"cannot compose {' '.join(overrides)}: {exc}; a config group takes a name, such "
                f"as policy=random, and `defaults` in a file takes a list of such choices"
            ) from exc
    HydraConfig.instance().set_config(cfg)  # ${hydra:...} resolves against it
    return cfg


@contextmanager
def _no_job() -> Iterator[None]:
    """Let Hydra compose another config while it runs a job."""
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = running


def _key(override: str) -> str:
    """Return the key below ``hydra``: ``job.chdir`` for ``hydra.job.chdir=true``."""
    return re.sub(r"^[+~]*hydra[./]", "", override).partition("=")[0]


def _ours(overrides: list[str]) -> list[str]:
    """Return the program's own settings of Hydra that ``overrides`` do not set."""
    given = {_key(word) for word in overrides if OF_HYDRA.match(word)}
    return [o for o in HYDRA_OVERRIDES if _key(o) not in given]


class Composed(NamedTuple):
    """The composed command line of one job."""

    name: str
    """Name of the pipeline."""
    config: Config
    overrides: list[str]
    body: DictConfig
    """The config in OmegaConf's form, without Hydra's own section."""


def plain(cfg: DictConfig, hydra_cfg: Any) -> Composed:
    """Check a composed config and resolve it to plain values.

    Raises:
        ConfigError: a key is not in the schema, or a required value is missing.
    """
    if "dataset" not in hydra_cfg.runtime.choices:
        raise ConfigError(
            f"no dataset chosen; add +dataset=NAME, where NAME is one of: {', '.join(datasets())}"
        )
    known = [f.name for f in fields(schema.Composition)]
    given = [str(key) for key in cfg if key != "hydra"]
    _refuse_unknown(given, known, "")
    body = _body(_without_places(cfg, hydra_cfg), known, hydra_cfg)
    chosen = hydra_cfg.runtime.choices["dataset"]
    tasks.choose(body, chosen)
    config = _config(body, chosen)
    # Unresolved, as typed: resolved overrides would hold values of the environment and of files.
    words = OmegaConf.to_container(hydra_cfg.overrides.task, resolve=False)
    assert isinstance(words, list)
    name = check_pipeline_name(config.pipeline)  # before it is a part of any path
    return Composed(name, config, [str(word) for word in words], body)


def _config(body: DictConfig, dataset: str) -> Config:
    values = _values(body, f"conf/dataset/{dataset}.yaml")
    _check_keys(values)
    return read(Config, values)


def every_task(dataset: str) -> list[Composed]:
    """Compose ``conf/dataset/NAME.yaml`` for each of its tasks, or as it is if it has none.

    Raises:
        ConfigError: as in :func:`run`.
    """
    choice = f"+dataset={dataset}"
    known = tasks.names_in(dataset)
    if not known:
        return [recompose([choice])]
    primary = _prepare()
    with translated():
        cfg = _hydras([choice, f"task={known[0]}"], primary)  # the others only resolve it again
        hydra_cfg = cfg.hydra
        shown = _without_places(cfg, hydra_cfg)
        keys = [f.name for f in fields(schema.Composition)]
        found = []
        for task in known:
            start_counting()
            shown.task = task
            body = _body(shown, keys, hydra_cfg)
            tasks.choose(body, dataset, checks_ids=False)
            config = _config(body, dataset)
            name = check_pipeline_name(config.pipeline)
            found.append(Composed(name, config, [choice, f"task={task}"], body))
    file = f"conf/dataset/{dataset}.yaml"
    tasks.refuse_equal("pipeline", [one.name for one in found], known, file)
    tasks.refuse_equal("dataset.id", [one.config.dataset.id for one in found], known, file)
    return found


def family(name: str, overrides: list[str]) -> Shared:
    """Compose ``conf/family/NAME.yaml`` alone: the sections that all its datasets share.

    Raises:
        ConfigError: as in :func:`run`.
    """
    primary = _prepare()
    with translated():
        cfg = _hydras([f"+family={name}", *overrides], primary)
        body = _body(
            _without_places(cfg, cfg.hydra), ["env", "family", "policy", "ref_scores"], cfg.hydra
        )
        return read(Shared, _values(body, f"conf/family/{name}.yaml"))


#: Keys of Hydra's config that a dataset's config may use; others hold paths of this machine.
_SHOWN = ("job.id", "job.name", "job.num", "runtime.choices")


def _without_places(cfg: DictConfig, hydra_cfg: DictConfig) -> DictConfig:
    """Return a copy of a config in which ``${hydra:...}`` and ``${hydra....}`` hold no paths."""
    shown = OmegaConf.create()
    for key in _SHOWN:
        found = OmegaConf.select(hydra_cfg, key, throw_on_missing=False)
        OmegaConf.update(shown, key, found, force_add=True)

    def select(key: str) -> Any:
        found = OmegaConf.select(shown, key)
        if found is None:
            raise ConfigError(
                f"the config uses ${{hydra:{key}}}, which may be a path on this machine and would "
                f"be recorded and published; allowed: {', '.join(_SHOWN)}"
            )
        return found

    OmegaConf.register_new_resolver("hydra", select, replace=True)
    if "hydra" not in cfg:  # already removed by Hydra
        return cfg
    own = cfg.copy()
    with open_dict(own):
        del own["hydra"]
        own.hydra = shown
    return own


def _body(cfg: DictConfig, keys: list[str], hydra_cfg: Any) -> DictConfig:
    """Return the sections ``keys`` of a composed config, with defaults filled in."""
    chosen = hydra_cfg.runtime.choices.get("family")
    if chosen is None:
        if cfg.family is not None:
            raise ConfigError(
                "the key family is set, but no family is chosen; add `- /family: NAME` to the "
                "defaults list, and put the keys that its datasets share into conf/family/NAME.yaml"
            )
        keys = [key for key in keys if key != "family"]
    body = OmegaConf.masked_copy(cfg, keys)
    body._set_parent(cfg._get_parent())
    if chosen is not None and body.family is None:  # its file has no family section
        body.family = hydra_node(schema.ComposedFamily)()
    if chosen is not None:
        tasks.choose_training(body, chosen)
    _complete_training(body)
    return body


def _values(body: DictConfig, file: str) -> dict[str, Any]:
    """Return the plain values of a config that was composed from ``file``."""
    missing = set(_missing(OmegaConf.to_container(body, resolve=False)))
    if OmegaConf.select(body, "policy._target_", throw_on_missing=False) == MIXTURE:
        missing.discard("env.id")  # taken from the parents
    if missing:
        names = ", ".join(sorted(missing))
        raise ConfigError(f"no value for {names}; set it in {file} or on the command line")
    values = OmegaConf.to_container(body, resolve=True)
    assert isinstance(values, dict)
    _check_text(values, "")
    return {str(k): v for k, v in values.items()}


def _complete_training(body: DictConfig) -> None:
    """Check ``train`` blocks against their schema, and fill in its defaults."""
    expert = body.ref_scores._get_node("expert")
    for where, policy in (("policy", body._get_node("policy")), ("ref_scores.expert", expert)):
        if not isinstance(policy, DictConfig) or policy._is_interpolation() or policy._is_missing():
            continue
        train = policy.get("train")
        if not isinstance(train, DictConfig | None):
            raise ConfigError(
                f"{where}.train is {train!r}; expected null or {{total_timesteps: N, ...}}"
            )
        if isinstance(train, DictConfig):
            _check_kind(f"{where}.train", train, _algorithm(policy))
            try:
                policy.train = OmegaConf.merge(
                    OmegaConf.structured(hydra_node(_training(_algorithm(policy)))), train
                )
            except OmegaConfBaseException as exc:
                raise ConfigError(f"{where}.train: {hydra_message(exc)}") from exc


def _training(algorithm: object) -> type:
    """Return the schema of the ``train`` block of a policy with this algorithm."""
    return schema.TRAININGS.get(str(algorithm), schema.Training)


def _algorithm(policy: DictConfig) -> str:
    return str(OmegaConf.select(policy, "algorithm", throw_on_missing=False))


def _check_kind(where: str, train: DictConfig, algorithm: str) -> None:
    """Refuse keys of a training of another kind, in the environment or from a dataset."""
    clones = algorithm == "bc"
    for key, instead in (("total_timesteps", "gradient_steps"), ("dataset", "total_timesteps")):
        if key in train and clones == (key == "total_timesteps"):
            how = "learns from a dataset" if clones else "learns in the environment"
            raise ConfigError(
                f"{where}.{key} is given, but {algorithm} {how}: give {where}.{instead}"
                f"{'' if clones else ', or set algorithm: bc to learn the actions of a dataset'}"
            )
    if clones and OmegaConf.select(train, "dataset", throw_on_missing=False) is None:
        raise ConfigError(
            f"no value for {where}.dataset; name the dataset in conf/dataset/ whose actions bc "
            f"learns, such as {where}.dataset=door_human"
        )


def _check_keys(values: dict[Any, Any]) -> None:
    """Refuse unknown keys added by ``+key=value``, which Hydra allows despite the schema."""
    schemas = {vars(node)["_target_"]: node for node in schema.POLICY_SCHEMAS.values()}
    sections: dict[str, Any] = dict(schema.SECTIONS)
    if "family" in values:
        sections |= {
            "family": schema.ComposedFamily,
            "family.at": schema.CheckpointsAt,
            "family.checkpoint_scores": schema.CheckpointScores,
        }
    scores = values.get("ref_scores")
    expert = scores.get("expert") if isinstance(scores, dict) else None
    for where, found in (("policy", values.get("policy")), ("ref_scores.expert", expert)):
        if isinstance(found, dict) and (target := found.get("_target_")) in schemas:
            sections |= {where: schemas[target]}
            for key in ("checkpoint", "normalize", "source"):
                sections |= {f"{where}.{key}": schema.Source} if key in found else {}
            if found.get("train"):
                sections |= {f"{where}.train": _training(found.get("algorithm"))}
    for where, node in sections.items():
        part: Any = values
        for key in where.split("."):
            part = part[key]
        _refuse_unknown([str(k) for k in part], [f.name for f in fields(node)], f"{where}.")


def _refuse_unknown(keys: list[str], known: list[str], where: str) -> None:
    for key in keys:
        if key not in known:
            hint = did_you_mean(key, known, prefix=where)
            place = f"keys of {where.rstrip('.')}" if where else "top-level keys"
            raise ConfigError(
                f"unknown key {where + key!r}.{hint} Known {place}: {', '.join(known)}"
            )


def _check_text(node: Any, path: str) -> None:
    """Refuse control characters, which can move a terminal's cursor, and non-plain values."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            _check_text(str(key), path)
            _check_text(value, f"{path}{key}.")
    elif isinstance(node, str):
        odd = {c for c in node if unicodedata.category(c) in ("Cc", "Cs")} - {"\n", "\r", "\t"}
        if odd:
            raise ConfigError(
                f"{path.rstrip('.') or 'a key'} contains the character {min(odd)!r}; expected text "
                f"without control characters"
            )
    elif not isinstance(node, bool | int | float | None):
        raise ConfigError(
            f"{path.rstrip('.')} is a {type(node).__name__}, {node!r}; expected a number, a "
            f"string, true, false or null"
        )


def _missing(node: Any, path: str = "") -> Iterator[str]:
    # Not OmegaConf.missing_keys: it raises if an interpolation points to a missing value.
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if value == "???":
            yield f"{path}{key}"
        elif isinstance(value, dict | list):
            yield from _missing(value, f"{path}{key}.")


def _jobs(overrides: list[str], primary: Path, *, sweeps: bool) -> list[Composed]:
    """Compose every job before the first one runs.

    Configs that set Hydra itself are refused, and so is a sweep with two jobs that would write to
    the same pipeline or publish the same id.
    """
    seen: dict[tuple[str, str], list[str]] = {}
    composed = []
    jobs = _sweep(overrides, primary) if sweeps else [overrides]
    for job in (each for words in jobs for each in (_each_task(words) if sweeps else [words])):
        composed.append(_composed(job, primary))
        name, config = composed[-1].name, composed[-1].config
        for kind, value in (("pipeline", name), ("dataset.id", config.dataset.id)):
            first = seen.setdefault((kind, value), job)
            if first is not job:
                swept = sorted(set(job) ^ set(first))
                keys = sorted({w.lstrip("+").split("=")[0] for w in swept}) or ["task"]
                raise ConfigError(
                    f"the sweep over {', '.join(keys)} gives two jobs the same {kind} {value!r}; "
                    f"use the swept key in both, e.g. pipeline='NAME_${{{keys[0]}}}' "
                    f"dataset.id='.../NAME-${{{keys[0]}}}-v0'"
                )
    return composed


def _sweep(overrides: list[str], primary: Path) -> list[list[str]]:
    """Return the overrides of each job of a sweep."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    parsed = OverridesParser.create().parse_overrides(overrides=overrides)
    with initialize_config_dir(str(primary), version_base="1.3", job_name="minari_pipe"):
        loader = GlobalHydra.instance().config_loader()
        for override in parsed:
            override.config_loader = loader
        batches = BasicSweeper.split_arguments(parsed, None)
    jobs = [job for batch in batches for job in batch]
    if not jobs:
        raise ConfigError(
            f"the sweep {' '.join(overrides)} has no jobs: glob() matches only config files in "
            f"conf/; write values as KEY=1,2,3 or KEY='range(1,4)'"
        )
    return jobs


def _each_task(overrides: list[str]) -> list[list[str]]:
    """Return a job of a sweep for each task of its dataset, if it chooses none."""
    words = normalize_argv(overrides)
    return [[*words, f"task={task}"] for task in _tasks_left(words)] or [words]


def _check_primary(primary: Path) -> None:
    """Refuse ``hydra:`` in the workspace's ``config.yaml``.

    Hydra follows its ``searchpath`` while composing, which may name packages to import.
    """
    path = primary / "config.yaml"
    if not path.is_file():
        return
    check_aliases(path)
    with translated():
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if isinstance(content, dict) and any(str(key).split(".")[0] == "hydra" for key in content):
        below = content.get("hydra")
        refuse_hydra(path, list(below) if isinstance(below, dict) else [])
