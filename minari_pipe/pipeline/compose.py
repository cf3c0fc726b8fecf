"""From the command line to a composed configuration, with Hydra; every mistake is one line."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline import config
from minari_pipe.pipeline.workspace import PACKAGE, find_root


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
    return own if own.is_dir() else packaged_conf()


HELP = """\
minari_pipe makes, checks, versions and publishes offline RL datasets.

  python -m minari_pipe +dataset=NAME [key=value ...]

Composes conf/dataset/NAME.yaml, writes pipelines/NAME/{{params,dvc}}.yaml, lets DVC run what
changed, publishes into datasets/ and installs into the Minari root.

datasets: {datasets}

  key=value            set a key for this run, e.g. collect.n_episodes=10 author.name=Ada
  -m +dataset=a,b      several datasets, one after another; '+dataset=glob(*)' for all
  --cfg job            print what this command line composes, run nothing
  --trust-module NAME  trust a policy or environment module of your own
  --trust SHA256       trust a checkpoint to be unpickled in full
  --debug              show tracebacks
  --hydra-help         Hydra's own flags

other commands
  minari-pipe init          make this folder a workspace
  minari-pipe release ID    freeze a published version

keys and defaults (??? must be given; policy: random, sb3, demonstrations or scripted)

{keys}"""


def help_text() -> str:
    """What ``--help`` prints; Hydra's own takes twice as long to list its groups."""
    keys = OmegaConf.to_yaml(OmegaConf.structured(config.Config))
    indented = "".join(f"  {line}\n" for line in keys.splitlines())
    return HELP.format(datasets=", ".join(datasets()), keys=indented)


def _prepare() -> Path:
    """Register schema and search path; the workspace's configs win over the packaged ones."""
    config.register()
    primary, packaged = conf_dir(), packaged_conf()

    class PackagedConfigs(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            if primary != packaged:
                search_path.append("minari_pipe", packaged.as_uri())

    Plugins.instance().register(PackagedConfigs)
    return primary


def normalize_argv(argv: list[str]) -> list[str]:
    """``dataset=x`` means ``+dataset=x``: the group is not in the defaults list."""
    return [re.sub(r"^dataset=", "+dataset=", argument) for argument in argv]


def run(argv: list[str], job: Callable[[str, dict[str, Any], list[str]], None]) -> None:
    """Hand the command line to Hydra and call ``job`` for each composed configuration.

    Args:
        argv: the command line without the program's name and our own flags.
        job: called with the pipeline's name, its configuration as plain values, and the
            overrides (without the choice of dataset) that made it.

    Raises:
        ConfigError: whatever is wrong with the command line or a config file.
    """
    primary = _prepare()
    argv = normalize_argv(argv)
    with _translated():
        if {"-m", "--multirun"} & set(argv):
            _check_sweep(argv, primary)

        # Hydra prints a line of its own about a job that raises, and ends a sweep there.
        failures: list[Exception] = []

        def hydra_job(cfg: DictConfig) -> None:
            try:
                with _translated():
                    job(*plain(cfg, HydraConfig.get()))
            except Exception as exc:
                failures.append(exc)

        sys.argv[1:] = argv
        hydra.main(version_base="1.3", config_path=str(primary), config_name="config")(hydra_job)()
    for failure in failures[:-1]:
        print(f"error: {failure}", file=sys.stderr)
    if failures:
        raise failures[-1]


def recompose(overrides: list[str]) -> tuple[str, dict[str, Any], list[str]]:
    """Compose as the command line ``+dataset=NAME *overrides`` would."""
    primary = _prepare()
    with _translated(), initialize_config_dir(str(primary), version_base="1.3", job_name="sync"):
        return _composed(overrides)


def _composed(overrides: list[str]) -> tuple[str, dict[str, Any], list[str]]:
    cfg = compose("config", overrides=overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)  # ${hydra:...} resolves against it
    return plain(cfg, cfg.hydra)


def datasets() -> list[str]:
    """Names of the datasets that can be chosen."""
    found = {p.stem for d in {conf_dir(), packaged_conf()} for p in (d / "dataset").glob("*.yaml")}
    return sorted(found)


def plain(cfg: DictConfig, hydra_cfg: Any) -> tuple[str, dict[str, Any], list[str]]:
    """Pipeline name, configuration as plain values, and overrides of a composed config."""
    if "dataset" not in hydra_cfg.runtime.choices:
        raise ConfigError(
            f"no dataset is chosen; add +dataset=NAME, NAME one of: {', '.join(datasets())}"
        )
    known = [f.name for f in fields(config.Config)]
    _refuse_unknown([str(key) for key in cfg if key != "hydra"], known, "")
    body = OmegaConf.masked_copy(cfg, known)
    body._set_parent(cfg._get_parent())
    missing = sorted(_missing(OmegaConf.to_container(body, resolve=False)))
    if missing:
        where = hydra_cfg.runtime.choices["dataset"]
        raise ConfigError(
            f"no value for {', '.join(missing)}; set it in conf/dataset/{where}.yaml "
            f"or on the command line"
        )
    values = OmegaConf.to_container(body, resolve=True)
    assert isinstance(values, dict)
    _check_keys(values)
    name = str(values.pop("pipeline"))
    return name, {str(k): v for k, v in values.items()}, list(hydra_cfg.overrides.task)


def _check_keys(values: dict[Any, Any]) -> None:
    """Refuse keys that ``+key=value`` added: Hydra lets them past the schema."""
    schemas = {vars(schema)["_target_"]: schema for schema in config.POLICY_SCHEMAS.values()}
    sections: dict[str, Any] = dict(config.SECTIONS)
    for where in ("policy", "ref_scores.expert"):
        found = OmegaConf.select(OmegaConf.create(values), where)
        target = found.get("_target_") if isinstance(found, DictConfig) else None
        if target in schemas:
            sections |= {where: schemas[target]}
            for key in ("checkpoint", "normalize", "source"):
                sections |= {f"{where}.{key}": config.Source} if key in found else {}
            sections |= {f"{where}.train": config.Training} if found.get("train") else {}
    for where, schema in sections.items():
        part: Any = values
        for key in where.split("."):
            part = part[key]
        _refuse_unknown([str(k) for k in part], [f.name for f in fields(schema)], f"{where}.")


def _refuse_unknown(keys: list[str], known: list[str], where: str) -> None:
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {where + near[0]!r}?" if near else ""
            place = f"keys of {where.rstrip('.')}" if where else "top-level keys"
            raise ConfigError(
                f"unknown key {where + key!r}.{hint} Known {place}: {', '.join(known)}"
            )


def _missing(node: Any, path: str = "") -> Iterator[str]:
    # OmegaConf.missing_keys raises where an interpolation points at a missing value.
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if value == "???":
            yield f"{path}{key}"
        elif isinstance(value, dict | list):
            yield from _missing(value, f"{path}{key}.")


def _check_sweep(argv: list[str], primary: Path) -> None:
    """Refuse a sweep whose jobs would write to the same pipeline or publish the same id."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    words = [a for a in argv if not a.startswith("-")]
    parsed = OverridesParser.create().parse_overrides(overrides=words)
    with initialize_config_dir(str(primary), version_base="1.3", job_name="sweep"):
        loader = GlobalHydra.instance().config_loader()
        for override in parsed:
            override.config_loader = loader
        jobs = [job for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
        seen: dict[tuple[str, str], list[str]] = {}
        for job in jobs:
            name, values, _ = _composed(job)
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


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what Hydra, OmegaConf and the YAML parser raise into one line."""
    try:
        yield
    except MissingConfigException as exc:
        raise ConfigError(_missing_choice(exc)) from exc
    except (HydraException, OmegaConfBaseException) as exc:
        raise ConfigError(_one_line(exc)) from exc
    except AssertionError as exc:
        if "Unexpected type for root" not in str(exc):  # what OmegaConf.update says of a null
            raise
        raise ConfigError(
            "an override sets a key below a value that is null; give the whole value, such as "
            "policy.train={total_timesteps: 1000}"
        ) from exc
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f"{mark.name}:{mark.line + 1}: " if mark else ""
        raise ConfigError(f"{where}{exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(" ".join(str(exc).split())) from exc


def _missing_choice(exc: MissingConfigException) -> str:
    group, _, name = (exc.missing_cfg_file or "").partition("/")
    options = list(exc.options or [])
    if not name:
        return _one_line(exc)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"no {group} {name!r}.{hint} Known: {', '.join(options)}"


def _one_line(exc: Exception) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    key = next((ln.split(":", 1)[1].strip() for ln in lines if ln.startswith("full_key:")), "")
    cause = str(exc.__cause__ or "").strip().splitlines()[:1]
    noise = ["full_key", "object_type", "reference_type", "provider=", "Config search path"]
    if "not in struct" not in " ".join([*lines, *cause]):  # only free-form parts can be appended to
        noise.append("To append")
    kept = [
        ln for ln in lines + cause if not ln.startswith(tuple(noise)) and "LexerNoViable" not in ln
    ]
    text = " ".join(dict.fromkeys(kept))
    return f"{key}: {text}" if key and key not in text else text
