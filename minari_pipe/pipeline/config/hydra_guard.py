"""Keeps workspace files from setting anything that Hydra would run, import, read or write."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minari_pipe.errors import ConfigError, TrustError
from minari_pipe.pipeline.config.hydra_errors import hydra_message
from minari_pipe.pipeline.config.interpolations import start_counting
from minari_pipe.pipeline.workspace import find_root
from minari_pipe.pipeline.workspace_links import (
    check_named_folder,
    clone_of,
    refuse_links_of_clone,
)

OF_HYDRA = re.compile(r"[+~]*hydra\b")

STATE_DIR = "${minari_pipe.state:hydra}"
#: The program's own settings of Hydra; a user's override of the same key wins.
HYDRA_OVERRIDES = (
    "hydra/job_logging=none",  # the stages print their own messages
    "hydra/hydra_logging=none",
    "hydra.job.chdir=false",
    "hydra.output_subdir=null",  # the composed config is kept as pipelines/NAME/params.yaml
    f"hydra.run.dir={STATE_DIR}",
    f"hydra.sweep.dir={STATE_DIR}",
    "hydra.sweep.subdir=.",
)

#: The begin of an interpolation that takes nothing from a config. Overrides may hold others.
_OF_HYDRA_ALONE = re.compile(
    r"\$\{(?=\s*(now:|oc\.env:|minari_pipe\.state:|hydra[.:](?!\s*overrides)))"
)
_PLUGINS = "hydra._internal.core_plugins."
_NO_LOGGING = {"version": 1, "root": None, "disable_existing_loggers": False}
#: The settings of Hydra that make it run, import, export or write something, with the value that
#: each must have unless the command line sets it.
_HYDRA_SETTINGS: dict[str, Any] = {
    "callbacks": {},
    "hydra_logging": _NO_LOGGING,
    "job.chdir": False,
    "job.env_copy": [],
    "job.env_set": {},
    "job_logging": _NO_LOGGING,
    "launcher": {"_target_": f"{_PLUGINS}basic_launcher.BasicLauncher"},
    "output_subdir": None,
    "run": {"dir": STATE_DIR},
    "searchpath": [],
    "sweep": {"dir": STATE_DIR, "subdir": "."},
    "sweeper": {
        "_target_": f"{_PLUGINS}basic_sweeper.BasicSweeper",
        "max_batch_size": None,
        "params": None,
    },
}

#: Limit per file with YAML aliases expanded: a few lines can expand to more than memory holds. A
#: text counts as one more value per 100 characters.
_MOST_VALUES = 100_000

_FILE_SCHEME = f"{FileConfigSource.scheme()}://"


class FilesBelow(FileConfigSource):
    """Finds configs only in its own folder, over no link, and none in Hydra's own groups.

    A defaults list may contain ``/../../home/secret``.
    """

    def __init__(self, provider: str, path: str) -> None:
        """Check the folder, which the user may have named by ``hydra.searchpath``."""
        super().__init__(provider, path)
        if root := _workspace():
            check_named_folder(self.path, root)

    def is_config(self, config_path: str) -> bool:
        return _lies_below(config_path) and super().is_config(config_path)

    def is_group(self, config_path: str) -> bool:
        return _lies_below(config_path) and super().is_group(config_path)


def _lies_below(config_path: str) -> bool:
    parts = config_path.split("/")
    return not os.path.isabs(config_path) and os.pardir not in parts and parts[0] != "hydra"


_load = ConfigLoaderImpl.load_configuration


def checked_load(
    self: ConfigLoaderImpl, config_name: str | None, overrides: list[str], *how: Any, **more: Any
) -> DictConfig:
    """Compose for every caller in Hydra, and refuse settings of Hydra that come from a file.

    Hydra composes once for a sweep and once for each of its jobs, each time with other choices.
    """
    start_counting()
    cfg = _load(self, config_name, overrides, *how, **more)
    if config_name is None:
        return cfg
    own = [word for word in overrides if OF_HYDRA.match(word)]
    if own == list(HYDRA_OVERRIDES):
        allowed = _HYDRA_SETTINGS  # already known: saves a composition, 0.1 s
    else:
        allowed = _settings_of(_load(self, None, own, *how, **more))
        if allowed["launcher"] != _HYDRA_SETTINGS["launcher"]:
            # Its processes would import modules of this folder, and compose without these checks.
            raise ConfigError(
                "hydra/launcher cannot be chosen: the jobs of a sweep run one after the other. "
                "To spread the work of each, use engine=processes or engine=ray"
            )
        _check_places(cfg)
    for key, found in _settings_of(cfg).items():
        if found != allowed[key]:
            raise TrustError(
                f"conf/ sets hydra.{key} to {found!r}, which could make Hydra run, import or write "
                f"something; only the command line may set it"
            )
    return cfg


_load_file = ConfigLoaderImpl._load_single_config


def checked_file(self: ConfigLoaderImpl, default: Any, repo: Any) -> Any:
    """Load a config file, and refuse one with a ``hydra`` key.

    That key also holds Hydra's own state, such as the command line's overrides, which are trusted.
    """
    found: Any = _load_file(self, default, repo)
    if found.path.startswith(_FILE_SCHEME) and "hydra" in found.config:
        folder = found.path.removeprefix(_FILE_SCHEME)
        refuse_hydra(Path(folder, f"{default.config_path}.yaml"), list(found.config.hydra))
    return found


_load_source = FileConfigSource.load_config


def checked_source(self: FileConfigSource, config_path: str) -> Any:
    """Load a config file after :func:`check_aliases`."""
    check_aliases(Path(self.path, self._normalize_file_name(config_path)))
    return _load_source(self, config_path)


def check_aliases(file: Path) -> None:
    """Refuse a config file whose YAML aliases, merged or not, expand to too many values."""
    with suppress(OSError, UnicodeError, yaml.YAMLError):  # Hydra reports these itself
        text = file.read_text(encoding="utf-8")
        if "*" in text and _n_values(yaml.compose(text, yaml.SafeLoader), {}) > _MOST_VALUES:
            raise ConfigError(
                f"{file} has aliases (*name) that expand to more than {_MOST_VALUES} values, or "
                f"that contain themselves; write the values out"
            )


def _n_values(node: yaml.Node | None, known: dict[int, float]) -> float:
    """Return the number of values in a YAML node with its aliases expanded."""
    if not isinstance(node, yaml.CollectionNode):
        return 1 if node is None else 1 + len(node.value) // 100
    if id(node) not in known:
        known[id(node)] = math.inf  # for a node that contains itself
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_n_values(part, known) for part in parts)
    return known[id(node)]


def refuse_hydra(file: Path, keys: list[Any]) -> NoReturn:
    """Raise the error for a file that sets ``hydra`` or a key below it."""
    below = f".{keys[0]}" if keys else ""
    raise TrustError(
        f"{file} sets hydra{below}, which could make Hydra run, import or write something; only "
        f"the command line may set it"
    )


def _workspace() -> Path | None:
    """Return the workspace; outside of one, a command line only shows a config or help."""
    try:
        return find_root()
    except ConfigError:
        return None


def _check_places(cfg: DictConfig) -> None:
    """Refuse places to which the user lets Hydra write, if a file of the workspace directs them.

    Raises:
        TrustError: a place takes a value from the config.
        LinkError: a link of the workspace leads from a place to another.
    """
    if (root := _workspace()) is None:
        return
    alone = _hydra_alone(cfg)
    inner = str(_resolved(alone, "output_subdir") or "")
    run, sweep = str(_resolved(alone, "run.dir")), str(_resolved(alone, "sweep.dir"))
    for folder in (run, sweep, os.path.join(sweep, str(_resolved(alone, "sweep.subdir")))):
        alone.hydra.runtime.output_dir = os.path.abspath(folder)
        check_named_folder(folder, root)
        check_named_folder(os.path.join(folder, inner), root)
        for file in _logs(alone):
            refuse_links_of_clone(os.path.abspath(file), clone_of(root, root))
    for folder in _folders_of_other_jobs(alone):
        check_named_folder(folder, root)


def _hydra_alone(cfg: DictConfig) -> DictConfig:
    """Return Hydra's settings without the rest of the config, for which a place may not ask.

    Raises:
        TrustError: one takes a value from elsewhere.
    """
    raw: Any = OmegaConf.to_container(cfg.hydra, resolve=False)
    # What the user typed may contain anything, unless a place uses it. `config` has settings of
    # override_dirname.
    typed = (raw.pop("overrides"), raw["job"].pop("override_dirname"), raw["job"].pop("config"))
    settings = str(raw)
    if "override_dirname" in settings:
        settings += str(typed)
    if other := re.search(r"\$\{[^}]*\}?", _OF_HYDRA_ALONE.sub("", settings)):
        raise TrustError(
            f"a setting of Hydra contains {other[0]}, by which a value of the config could make "
            f"Hydra write anywhere; use only ${{now:...}}, ${{oc.env:...}} and ${{hydra....}} in it"
        )
    text = OmegaConf.to_yaml(OmegaConf.create({"hydra": cfg.hydra}))
    alone = OmegaConf.create(text.replace("${hydra:", "${hydra."))
    assert isinstance(alone, DictConfig)
    alone.hydra.job.num = alone.hydra.job.id = 0  # Hydra sets them later
    # A file's defaults list chooses them; one that is optional need not exist.
    choices = alone.hydra.runtime.choices.items()
    alone.hydra.runtime.choices = {k: v for k, v in choices if v is None or _lies_below(str(v))}
    return alone


def _resolved(alone: DictConfig, key: str) -> Any:
    try:
        return OmegaConf.select(alone, f"hydra.{key}")
    except OmegaConfBaseException as exc:
        raise ConfigError(f"hydra.{key} cannot be resolved: {hydra_message(exc)}") from None


def _logs(alone: DictConfig) -> Iterator[str]:
    """Yield the files of the logs of a job."""
    for log in ("job_logging", "hydra_logging"):
        for name in _resolved(alone, f"{log}.handlers") or ():
            if file := _resolved(alone, f"{log}.handlers.{name}.filename"):
                yield str(file)


def _folders_of_other_jobs(alone: DictConfig) -> Iterator[str]:
    """Yield the folders of jobs with other numbers, or of another time, that exist already."""
    raw: Any = OmegaConf.to_container(alone.hydra, resolve=False)
    sweep = os.path.join(str(raw["sweep"]["dir"]), str(raw["sweep"]["subdir"]))
    for written in (str(raw["run"]["dir"]), sweep):
        start, varies, _ = written.partition("${")
        folder, name = os.path.split(start)
        if varies and os.path.isdir(folder or "."):
            others = (other for other in os.listdir(folder or ".") if other.startswith(name))
            yield from (os.path.join(folder, other) for other in others)


def _settings_of(cfg: DictConfig) -> dict[str, Any]:
    """Return Hydra's settings unresolved: an interpolation may resolve differently later."""
    written = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(written, dict)
    found = {}
    for key in _HYDRA_SETTINGS:
        value = written["hydra"]
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else value
        found[key] = value
    return found
