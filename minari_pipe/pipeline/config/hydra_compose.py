"""From the command line to a composed configuration, with Hydra; every mistake is one line."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, Node, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from minari_pipe.errors import ConfigError, MinariPipeError, TrustError, did_you_mean
from minari_pipe.pipeline.config import oc_env, schema
from minari_pipe.pipeline.config.policy_refs import MIXTURE
from minari_pipe.pipeline.workspace import PACKAGE, STATE, find_root
from minari_pipe.pipeline.workspace_links import check_folder, check_links


def packaged_conf() -> Path:
    """The configs that come with the package: inside it in a wheel, beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def conf_dir() -> Path:
    """``conf/`` of the workspace, or the packaged one where the workspace has none."""
    try:
        own = find_root() / "conf"
    except ConfigError:  # --help works anywhere
        return packaged_conf()
    check_folder(own, own.parent)
    return own if own.is_dir() else packaged_conf()


GROUPS = ("dataset", "engine", "family", "policy")
"""Folders of ``conf/`` from which a file is chosen."""

_HYDRA = re.compile(r"[+~]*hydra\b")

_OTHER_CONFIGS = ("config_dir", "config_path", "config_name", "experimental_rerun")
"""Flags of Hydra's that would read other files than the workspace's; the last one a pickle."""

_STATE_DIR = "${minari_pipe.state:hydra}"
_HYDRA_OVERRIDES = (
    "hydra/job_logging=none",  # the stages speak for themselves
    "hydra/hydra_logging=none",
    "hydra.job.chdir=false",
    "hydra.output_subdir=null",  # the composed config is kept as pipelines/NAME/params.yaml
    f"hydra.run.dir={_STATE_DIR}",
    f"hydra.sweep.dir={_STATE_DIR}",
    "hydra.sweep.subdir=.",
)
"""How the program wants Hydra; a user's own override of the same key wins."""

_PLUGINS = "hydra._internal.core_plugins."
_NO_LOGGING = {"version": 1, "root": None, "disable_existing_loggers": False}
_HYDRA_SETTINGS: dict[str, Any] = {
    "callbacks": {},
    "hydra_logging": _NO_LOGGING,
    "job.chdir": False,
    "job.env_copy": [],
    "job.env_set": {},
    "job_logging": _NO_LOGGING,
    "launcher": {"_target_": f"{_PLUGINS}basic_launcher.BasicLauncher"},
    "output_subdir": None,
    "run": {"dir": _STATE_DIR},
    "searchpath": [],
    "sweep": {"dir": _STATE_DIR, "subdir": "."},
    "sweeper": {
        "_target_": f"{_PLUGINS}basic_sweeper.BasicSweeper",
        "max_batch_size": None,
        "params": None,
    },
}
"""What of Hydra's own config is executed, imported, exported or written, and what it must be where
the command line says nothing of it."""


_MOST_VALUES = 100_000
"""Of one file, aliases replaced: a few lines can stand for more than memory holds."""

_FILE_SCHEME = f"{FileConfigSource.scheme()}://"


class _FilesBelow(FileConfigSource):
    """Finds configs in its own folder only, and none of Hydra's own groups.

    A defaults list may say ``/../../home/secret``.
    """

    def is_config(self, config_path: str) -> bool:
        return _lies_below(config_path) and super().is_config(config_path)

    def is_group(self, config_path: str) -> bool:
        return _lies_below(config_path) and super().is_group(config_path)


def _lies_below(config_path: str) -> bool:
    parts = config_path.split("/")
    return not os.path.isabs(config_path) and os.pardir not in parts and parts[0] != "hydra"


def _prepare() -> Path:
    """Register schema and search path; the workspace's configs win over the packaged ones."""
    schema.register()
    # Hydra makes its folder wherever it is told to, below the current one if the path is relative.
    OmegaConf.register_new_resolver("minari_pipe.state", _state, replace=True)
    OmegaConf.register_new_resolver("oc.env", oc_env.as_written, replace=True)
    primary, packaged = conf_dir(), packaged_conf()
    try:
        root = find_root()
    except ConfigError:
        pass  # --help works anywhere
    else:
        check_links(root)

    class PackagedConfigs(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            if primary != packaged:
                search_path.append("minari_pipe", packaged.as_uri())

    Plugins.instance().register(PackagedConfigs)
    SourcesRegistry.instance().types["file"] = _FilesBelow
    ConfigLoaderImpl.load_configuration = _checked_load  # type: ignore[method-assign]
    ConfigLoaderImpl._load_single_config = _checked_file  # type: ignore[method-assign]
    FileConfigSource.load_config = _checked_source  # type: ignore[method-assign]
    _check_primary(primary)
    return primary


def _state(name: str, *, _node_: Node) -> str:
    if not str(_node_._get_full_key(None)).startswith("hydra."):
        raise ConfigError("minari_pipe.state is for Hydra's own folders alone")
    return str(find_root() / STATE / name)


def normalize_argv(argv: list[str]) -> list[str]:
    """``dataset=x`` means ``+dataset=x``: the group is not in the defaults list."""
    return [re.sub(r"^dataset=", "+dataset=", argument) for argument in argv]


def run(
    argv: list[str],
    job: Callable[[str, dict[str, Any], list[str]], None],
    *,
    launches: bool = True,
) -> None:
    """Hand the command line to Hydra and call ``job`` for each composed configuration.

    Args:
        argv: the command line without the program's name and our own flags.
        job: called with the pipeline's name, its configuration as plain values, and the
            overrides that made it, the choice of the dataset first. What it raises ends a sweep.
        launches: let Hydra launch the jobs of a sweep, for which it makes a folder.

    Raises:
        ConfigError: whatever is wrong with the command line or a config file.
    """
    primary = _prepare()
    flags = _parse(normalize_argv(argv))
    if flags.hydra_help:
        # It needs no dataset, and Hydra sets up the logging that the files of one ask for.
        flags.overrides, flags.others = [], ["--hydra-help"]
        with _translated():
            _hydras([], primary)
    elif not flags.shell_completion:
        if not flags.cfg:
            find_root()  # there must be one before Hydra makes a folder
        with _translated():
            jobs = _jobs(flags.overrides, primary, sweeps=flags.multirun)
            if flags.cfg == "job" and not (flags.package or flags.multirun):
                # As Hydra would, which would compose again: 0.1 s.
                print(OmegaConf.to_yaml(jobs[0].body, resolve=flags.resolve), end="")
                return
        if not flags.others and not any(_HYDRA.match(word) for word in flags.overrides):
            # Nothing is said to Hydra's own runner, which would compose twice more: 0.2 s.
            launches = False
        if not (launches or flags.cfg):
            for composed in jobs:
                job(composed.name, composed.config, composed.overrides)
            return

    def hydra_job(cfg: DictConfig) -> None:
        with _translated():
            composed = plain(cfg, HydraConfig.get())
        job(composed.name, composed.config, composed.overrides)

    ours = [] if flags.shell_completion else _ours(flags.overrides)
    # Hydra's parser takes overrides in one piece only: not before and after a flag.
    sys.argv[1:] = [*ours, *flags.overrides, *flags.others]
    with _translated():
        hydra.main(version_base="1.3", config_path=str(primary), config_name="config")(hydra_job)()


def _parse(argv: list[str]) -> argparse.Namespace:
    """Hydra's flags, with ``overrides``, and in ``others`` all words that are none."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help and --hydra-help show what can be given")

    # Hydra makes this parser, so a subclass cannot say it.
    parser.error = refuse  # type: ignore[method-assign]
    flags = parser.parse_intermixed_args(argv)
    for name in _OTHER_CONFIGS:
        if getattr(flags, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} cannot be used here: configs are read from conf/ of "
                f"the workspace and from the package"
            )
    flags.others = list(argv)
    for word in flags.overrides:
        flags.others.remove(word)
    return flags


def recompose(overrides: list[str]) -> Composed:
    """Compose as the command line ``+dataset=NAME *overrides`` would."""
    primary = _prepare()
    settings = [o for o in overrides if _HYDRA.match(o)]
    if settings:
        raise TrustError(f"recorded overrides set Hydra itself, which no file may: {settings[0]}")
    with _translated():
        return _composed(overrides, primary)


def _composed(overrides: list[str], primary: Path) -> Composed:
    cfg = _hydras(overrides, primary)
    return plain(cfg, cfg.hydra)


def _hydras(overrides: list[str], primary: Path) -> DictConfig:
    """Compose without running anything."""
    for word in overrides:
        key = word.removeprefix("~").partition("=")[0]
        if word.startswith("~") and key in {field.name for field in fields(schema.Config)}:
            raise ConfigError(
                f"~{key} removes a key that every config has; leave it out, or set what is below"
            )
    with initialize_config_dir(str(primary), version_base="1.3", job_name="minari_pipe"):
        words = [*_ours(overrides), *overrides]
        try:
            cfg = compose("config", overrides=words, return_hydra_config=True)
        except (MinariPipeError, OmegaConfBaseException):
            raise
        except (
            TypeError,
            ValueError,
            RecursionError,
        ) as exc:  # Hydra's own
            raise ConfigError(
                f"{' '.join(overrides)} cannot be composed: {exc}; a choice of conf/ takes a name, "
                f"such as policy=random, and `defaults` of a file a list of such choices"
            ) from exc
    HydraConfig.instance().set_config(cfg)  # ${hydra:...} resolves against it
    return cfg


_load = ConfigLoaderImpl.load_configuration


def _checked_load(
    self: ConfigLoaderImpl, config_name: str | None, overrides: list[str], *how: Any, **more: Any
) -> DictConfig:
    """Compose, for whomever in Hydra asks, and refuse what a file says to Hydra itself.

    Hydra composes once for a sweep and once for each of its jobs, each time with other choices.
    """
    cfg = _load(self, config_name, overrides, *how, **more)
    if config_name is None:
        return cfg
    own = [word for word in overrides if _HYDRA.match(word)]
    if own == list(_HYDRA_OVERRIDES):
        allowed = _HYDRA_SETTINGS  # known, which saves a composition: 0.1 s
    else:
        allowed = _settings_of(_load(self, None, own, *how, **more))
    for key, found in _settings_of(cfg).items():
        if found != allowed[key]:
            raise TrustError(
                f"conf/ sets hydra.{key} to {found!r}, and Hydra runs, imports or writes what "
                f"that says; only the command line may set it"
            )
    return cfg


_load_file = ConfigLoaderImpl._load_single_config


def _checked_file(self: ConfigLoaderImpl, default: Any, repo: Any) -> Any:
    """Load a file, and refuse one that says anything to Hydra.

    Also what Hydra itself keeps there, such as the words of the command line, which are trusted.
    """
    found: Any = _load_file(self, default, repo)
    if found.path.startswith(_FILE_SCHEME) and "hydra" in found.config:
        folder = found.path.removeprefix(_FILE_SCHEME)
        _refuse_hydra(Path(folder, f"{default.config_path}.yaml"), list(found.config.hydra))
    return found


_load_source = FileConfigSource.load_config


def _checked_source(self: FileConfigSource, config_path: str) -> Any:
    """Load a file, and refuse one that is far larger than it looks."""
    file = Path(self.path, self._normalize_file_name(config_path))
    with suppress(OSError, UnicodeError, yaml.YAMLError):  # which Hydra says, too
        text = file.read_text(encoding="utf-8")
        if "*" in text and _n_values(yaml.compose(text, yaml.SafeLoader), {}) > _MOST_VALUES:
            raise ConfigError(
                f"{file} has aliases (*name) that stand for more than {_MOST_VALUES} values, or "
                f"for what they are in; write the values out"
            )
    return _load_source(self, config_path)


def _n_values(node: yaml.Node | None, known: dict[int, float]) -> float:
    """How many values a part of a file stands for once its aliases are replaced."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf  # of one that is in itself
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_n_values(part, known) for part in parts)
    return known[id(node)]


def _refuse_hydra(file: Path, keys: list[Any]) -> NoReturn:
    below = f".{keys[0]}" if keys else ""
    raise TrustError(
        f"{file} sets hydra{below}, and Hydra runs, imports or writes what that says; only the "
        f"command line may set it"
    )


def _settings_of(cfg: DictConfig) -> dict[str, Any]:
    """Hydra's settings as they are written: what is interpolated may change until it is used."""
    written = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(written, dict)
    found = {}
    for key in _HYDRA_SETTINGS:
        value = written["hydra"]
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else value
        found[key] = value
    return found


def _key(override: str) -> str:
    """``job.chdir`` of ``hydra.job.chdir=true``."""
    return re.sub(r"^[+~]*hydra[./]", "", override).partition("=")[0]


def _ours(overrides: list[str]) -> list[str]:
    """The program's own settings of Hydra that ``overrides`` leave alone."""
    given = {_key(word) for word in overrides if _HYDRA.match(word)}
    return [o for o in _HYDRA_OVERRIDES if _key(o) not in given]


def datasets() -> list[str]:
    """Names of the datasets that can be chosen."""
    found = {p.stem for d in {conf_dir(), packaged_conf()} for p in (d / "dataset").glob("*.yaml")}
    return sorted(found)


def families() -> list[str]:
    """Names of the families that a dataset can belong to."""
    found = {p.stem for d in {conf_dir(), packaged_conf()} for p in (d / "family").glob("*.yaml")}
    return sorted(found)


class Composed(NamedTuple):
    """What one job's command line comes to."""

    name: str
    """Of the pipeline."""
    config: dict[str, Any]
    """Plain values by key of the schema."""
    overrides: list[str]
    body: DictConfig
    """The config as OmegaConf has it, without Hydra's own."""


def plain(cfg: DictConfig, hydra_cfg: Any) -> Composed:
    """Check a composed config and resolve it to plain values.

    Raises:
        ConfigError: a key that the schema has not, or a value that is missing.
    """
    if "dataset" not in hydra_cfg.runtime.choices:
        raise ConfigError(
            f"no dataset is chosen; add +dataset=NAME, NAME one of: {', '.join(datasets())}"
        )
    known = [f.name for f in fields(schema.Config)]
    given = [str(key) for key in cfg if key != "hydra"]
    _refuse_unknown(given, known, "")
    body = _body(_without_places(cfg, hydra_cfg), known, hydra_cfg)
    values = _values(body, f"conf/dataset/{hydra_cfg.runtime.choices['dataset']}.yaml")
    _check_keys(values)
    name = str(values.pop("pipeline"))
    # As they were typed: resolved, they would hold values of the environment, and of files.
    words = OmegaConf.to_container(hydra_cfg.overrides.task, resolve=False)
    assert isinstance(words, list)
    return Composed(name, values, [str(word) for word in words], body)


def family(name: str, overrides: list[str]) -> dict[str, Any]:
    """What ``conf/family/NAME.yaml`` says by itself: the parts that all its datasets share.

    Raises:
        ConfigError: as :func:`run`.
    """
    primary = _prepare()
    with _translated():
        cfg = _hydras([f"+family={name}", *overrides], primary)
        body = _body(
            _without_places(cfg, cfg.hydra), ["env", "family", "policy", "ref_scores"], cfg.hydra
        )
        return _values(body, f"conf/family/{name}.yaml")


_SHOWN = ("job.id", "job.name", "job.num", "runtime.choices")
"""What of Hydra's config may stand in a dataset's: the rest has paths of this machine."""


def _without_places(cfg: DictConfig, hydra_cfg: DictConfig) -> DictConfig:
    """A copy of a config, in which ``${hydra:...}`` and ``${hydra....}`` name no folder."""
    shown = OmegaConf.create()
    for key in _SHOWN:
        found = OmegaConf.select(hydra_cfg, key, throw_on_missing=False)
        OmegaConf.update(shown, key, found, force_add=True)

    def select(key: str) -> Any:
        found = OmegaConf.select(shown, key)
        if found is None:
            raise ConfigError(
                f"the config holds ${{hydra:{key}}}, which may be a path of this machine, and it "
                f"would be recorded and published; known are {', '.join(_SHOWN)}"
            )
        return found

    OmegaConf.register_new_resolver("hydra", select, replace=True)
    if "hydra" not in cfg:  # Hydra itself has taken it out
        return cfg
    own = cfg.copy()
    with open_dict(own):
        del own["hydra"]
        own.hydra = shown
    return own


def _body(cfg: DictConfig, keys: list[str], hydra_cfg: Any) -> DictConfig:
    """The parts ``keys`` of a composed config, completed."""
    chosen = hydra_cfg.runtime.choices.get("family")
    if chosen is None:
        if cfg.family is not None:
            raise ConfigError(
                "the key family is given, and no family is chosen; add `- /family: NAME` to the "
                "defaults list, and write what its datasets share into conf/family/NAME.yaml"
            )
        keys = [key for key in keys if key != "family"]
    body = OmegaConf.masked_copy(cfg, keys)
    body._set_parent(cfg._get_parent())
    if chosen is not None and body.family is None:  # its file has no such section
        body.family = schema.Family()
    _complete_training(body)
    return body


def _values(body: DictConfig, file: str) -> dict[str, Any]:
    """The plain values of a config that ``file`` gave."""
    missing = set(_missing(OmegaConf.to_container(body, resolve=False)))
    if OmegaConf.select(body, "policy._target_", throw_on_missing=False) == MIXTURE:
        missing.discard("env.id")  # the parents have one
    if missing:
        names = ", ".join(sorted(missing))
        raise ConfigError(f"no value for {names}; set it in {file} or on the command line")
    values = OmegaConf.to_container(body, resolve=True)
    assert isinstance(values, dict)
    _check_text(values, "")
    return {str(k): v for k, v in values.items()}


def _complete_training(body: DictConfig) -> None:
    """Hold ``train`` blocks to their schema, which also gives their defaults."""
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
            try:
                policy.train = OmegaConf.merge(OmegaConf.structured(schema.Training), train)
            except OmegaConfBaseException as exc:
                raise ConfigError(f"{where}.train: {_one_line(exc)}") from exc


def _check_keys(values: dict[Any, Any]) -> None:
    """Refuse keys that ``+key=value`` added: Hydra lets them past the schema."""
    schemas = {vars(node)["_target_"]: node for node in schema.POLICY_SCHEMAS.values()}
    sections: dict[str, Any] = dict(schema.SECTIONS)
    if "family" in values:
        sections |= {"family": schema.Family, "family.checkpoint_scores": schema.CheckpointScores}
    for where in ("policy", "ref_scores.expert"):
        found = OmegaConf.select(OmegaConf.create(values), where)
        target = found.get("_target_") if isinstance(found, DictConfig) else None
        if target in schemas:
            sections |= {where: schemas[target]}
            for key in ("checkpoint", "normalize", "source"):
                sections |= {f"{where}.{key}": schema.Source} if key in found else {}
            sections |= {f"{where}.train": schema.Training} if found.get("train") else {}
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
    """Refuse characters that no file of a dataset should show: they move a terminal's cursor."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            _check_text(str(key), path)
            _check_text(value, f"{path}{key}.")
    elif isinstance(node, str):
        odd = {c for c in node if unicodedata.category(c) in ("Cc", "Cs")} - {"\n", "\r", "\t"}
        if odd:
            raise ConfigError(
                f"{path.rstrip('.') or 'a key'} holds the character {min(odd)!r}; expected text "
                f"without control characters"
            )
    elif not isinstance(node, bool | int | float | None):
        raise ConfigError(
            f"{path.rstrip('.')} is a {type(node).__name__}, {node!r}; expected a number, a text, "
            f"true, false or null"
        )


def _missing(node: Any, path: str = "") -> Iterator[str]:
    # OmegaConf.missing_keys raises where an interpolation points at a missing value.
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if value == "???":
            yield f"{path}{key}"
        elif isinstance(value, dict | list):
            yield from _missing(value, f"{path}{key}.")


def _jobs(overrides: list[str], primary: Path, *, sweeps: bool) -> list[Composed]:
    """Compose every job before the first runs.

    Refuses configs that set Hydra itself, and a sweep whose jobs would write to the same pipeline
    or publish the same id.
    """
    seen: dict[tuple[str, str], list[str]] = {}
    composed = []
    for job in _sweep(overrides, primary) if sweeps else [overrides]:
        composed.append(_composed(job, primary))
        name, values = composed[-1].name, composed[-1].config
        for kind, value in (("pipeline", name), ("dataset.id", values["dataset"]["id"])):
            first = seen.setdefault((kind, value), job)
            if first is not job:
                swept = sorted(set(job) ^ set(first))
                keys = sorted({w.lstrip("+").split("=")[0] for w in swept})
                raise ConfigError(
                    f"the sweep over {', '.join(keys)} gives two jobs the same {kind} "
                    f"{value!r}; let the swept key enter both, e.g. "
                    f"pipeline='NAME_${{{keys[0]}}}' dataset.id='.../NAME-${{{keys[0]}}}-v0'"
                )
    return composed


def _sweep(overrides: list[str], primary: Path) -> list[list[str]]:
    """The overrides of each job of a sweep."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    parsed = OverridesParser.create().parse_overrides(overrides=overrides)
    with initialize_config_dir(str(primary), version_base="1.3", job_name="minari_pipe"):
        loader = GlobalHydra.instance().config_loader()
        for override in parsed:
            override.config_loader = loader
        batches = BasicSweeper.split_arguments(parsed, None)
    return [job for batch in batches for job in batch]


def _check_primary(primary: Path) -> None:
    """Refuse ``hydra:`` in the workspace's ``config.yaml``.

    Its ``searchpath`` is followed while composing, and may name packages to import.
    """
    path = primary / "config.yaml"
    if not path.is_file():
        return
    with _translated():
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if isinstance(content, dict) and any(str(key).split(".")[0] == "hydra" for key in content):
        below = content.get("hydra")
        _refuse_hydra(path, list(below) if isinstance(below, dict) else [])


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what Hydra, OmegaConf and the YAML parser raise into one line."""
    try:
        yield
    except MissingConfigException as exc:
        raise ConfigError(_missing_choice(exc)) from exc
    except OverrideParseException as exc:
        raise ConfigError(_unreadable(exc)) from exc
    except (HydraException, OmegaConfBaseException) as exc:
        cause: BaseException | None = exc
        while cause is not None:
            if isinstance(cause, ConfigError):  # of a resolver of ours
                raise ConfigError(str(cause)) from exc
            cause = cause.__cause__ or cause.__context__
        raise ConfigError(_one_line(exc)) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"a file below {conf_dir()} is not UTF-8 text: {exc}") from exc
    except AttributeError as exc:  # of OmegaConf's, where a section of null is given other keys
        if "full_key: " not in str(exc):
            raise
        key = str(exc).split("full_key: ")[1].split()[0]
        raise ConfigError(
            f"the keys given for {key} are not those that it has; see --help"
        ) from exc
    except ValueError as exc:
        if "Config group override" not in str(exc):
            raise
        raise ConfigError(f"{exc}; choose one by name, such as policy=random") from exc
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f"{mark.name}:{mark.line + 1}: " if mark else ""
        raise ConfigError(f"{where}{exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(" ".join(str(exc).split())) from exc


def _missing_choice(exc: MissingConfigException) -> str:
    group, _, name = (exc.missing_cfg_file or "").partition("/")
    options = [option for option in exc.options or [] if not option.endswith("_schema")]
    if not name:
        return _one_line(exc)
    if group not in GROUPS and not options:
        hint = did_you_mean(group, GROUPS)
        return f"no config group {group!r}.{hint} Known: {', '.join(GROUPS)}"
    hint = did_you_mean(name, options, cutoff=0.4)
    return f"no {group} {name!r}.{hint} Known: {', '.join(options)}"


def _unreadable(exc: OverrideParseException) -> str:
    """What to say of an override that is not of Hydra's grammar, such as ``author.name=Zoë``."""
    key, equals, value = exc.override.partition("=")
    lines = [line.strip() for line in str(exc).splitlines()]
    told = [ln for ln in lines if not ln.startswith(("^", "See https", "LexerNoViable"))]
    reason = f" ({' '.join(told)})" if told else ""
    if not equals:
        return f"{exc.override!r} cannot be read{reason}; expected KEY=VALUE"
    quoted = value.replace("'", "\\'")
    return (
        f"{exc.override!r} cannot be read{reason}; a value with other signs than plain letters and "
        f"digits is quoted twice: \"{key}='{quoted}'\""
    )


def _one_line(exc: Exception) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    key = next((ln.split(":", 1)[1].strip() for ln in lines if ln.startswith("full_key:")), "")
    cause = str(exc.__cause__ or "").strip().splitlines()[:1]
    noise = ["full_key", "object_type", "reference_type", "provider=", "Config search path"]
    if "not in struct" not in " ".join([*lines, *cause]):  # only free-form parts can be appended to
        noise.append("To append")
    kept = [ln for ln in lines + cause if not ln.startswith(tuple(noise))]
    text = " ".join(dict.fromkeys(kept))
    text = f"{key}: {text}" if key and key not in text else text
    text = re.sub(
        r" \S+ \(DictConfig\) does not support deletion", ": a key cannot be removed", text
    )
    return f"{text}{_known_keys(text)}"


def _known_keys(text: str) -> str:
    """What to add to OmegaConf's word of an unknown key."""
    found = re.search(r"Key '([^']*)' not in '(\w+)'", text)
    node = getattr(schema, found[2], None) if found else None
    if found is None or node is None:
        return ""
    if node is schema.Dataset and found[1] in [f.name for f in fields(schema.Config)]:
        return "; a file of conf/dataset/ begins with the line `# @package _global_`"
    known = [f.name for f in fields(node) if not f.name.startswith("_")]
    return f".{did_you_mean(found[1], known)} Known keys: {', '.join(known)}"
