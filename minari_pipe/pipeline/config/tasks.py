"""Lets one file in ``conf/dataset/`` make a dataset for each of its tasks.

The file lists them under ``tasks`` and uses the chosen one as ``${task}``, and values that are
given with its name as ``${tasks[${task}].KEY}``. In the same way, one file in ``conf/family/``
describes several trainings, and each dataset chooses one with ``family.training``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.pipeline.config.conf_files import dataset_file, datasets
from minari_pipe.pipeline.config.hydra_guard import check_aliases
from minari_pipe.pipeline.config.schema import Config
from minari_pipe.pipeline.workspace import check_pipeline_name

#: names that an error lists
_LISTED = 20


def choose(body: DictConfig, dataset: str, *, checks_ids: bool = True) -> None:
    """Check the task of a composed config, and name its pipeline after it, unless it has a name.

    Args:
        body: the config; of its tasks, only the chosen one stays.
        dataset: the name of its file.
        checks_ids: refuse a list with two tasks of one id.

    Raises:
        ConfigError: there is no such task, or the list is not valid.
    """
    file = f"conf/dataset/{dataset}.yaml"
    known = _names(_plain(body, "tasks"), file, "tasks")
    task = body.task
    if task is None and not known:
        with open_dict(body):
            del body["task"], body["tasks"]
        return
    if known and not names_in(dataset):
        raise ConfigError(
            f"{file}: its tasks come from elsewhere; write the list into the file itself, where "
            "sweeps and minari-pipe recipes look for it"
        )
    if task not in known:
        raise ConfigError(_no_task(task, known, dataset))
    if checks_ids:
        _check_ids(body, known, file)
    pipeline: Any = body._get_node("pipeline")
    if pipeline._value() == Config.pipeline:
        body.pipeline = f"{dataset}_{task}"
    tasks = body.tasks
    body.tasks = {task: tasks[task]} if isinstance(tasks, DictConfig) else [task]


def choose_training(body: DictConfig, family: str) -> None:
    """Check the training that a dataset chooses of its family; of all, only this one stays.

    Args:
        body: the config of the dataset, or of the family alone.
        family: the name of the family's file.

    Raises:
        ConfigError: there is no such training, or the list is not valid.
    """
    file = f"conf/family/{family}.yaml"
    known = _names(_plain(body.family, "trainings"), file, "family.trainings")
    name = None if OmegaConf.is_missing(body.family, "training") else body.family.training
    if name is None and not known:
        return
    if name not in known:
        raise ConfigError(
            f"family.training is {name!r}, but {file} describes "
            f"{', '.join(known) or 'no trainings'}.{did_you_mean(str(name), known)}"
        )
    trainings = body.family.trainings
    body.family.trainings = {name: trainings[name]}


def _plain(body: DictConfig, key: str) -> Any:
    """Return a value of a composed config as it is written."""
    node: Any = body._get_node(key)
    return (
        OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node._value()
    )


def names_in(dataset: str) -> list[str]:
    """Return the tasks that ``conf/dataset/NAME.yaml`` lists itself; none if it cannot be read."""
    try:
        return _names(_content(dataset).get("tasks"), str(dataset_file(dataset)), "tasks")
    except ConfigError:
        return []


def start_of_id(dataset: str) -> str:
    """Return what the id of a file's datasets begins with, as far as the file itself says so."""
    about = _content(dataset).get("dataset")
    written = about.get("id") if isinstance(about, dict) else None
    return str(written or "").partition("${")[0]


def _content(dataset: str) -> dict[Any, Any]:
    """Return the content of ``conf/dataset/NAME.yaml``; none if it cannot be read."""
    file = dataset_file(dataset)
    try:
        return {} if file is None else _parsed(file, file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError, ConfigError):
        return {}


@functools.lru_cache(maxsize=128)  # for each of a hundred tasks, their file is asked again
def _parsed(file: Path, text: str) -> dict[Any, Any]:
    check_aliases(file)
    content = yaml.safe_load(text)
    return content if isinstance(content, dict) else {}


def choices() -> dict[str, list[str]]:
    """Return the words that choose each dataset, by the name that its pipeline has by default."""
    found: dict[str, list[str]] = {}
    for dataset in datasets():
        chosen = f"+dataset={dataset}"
        tasks = names_in(dataset)
        found |= {f"{dataset}_{task}": [chosen, f"task={task}"] for task in tasks}
        if not tasks:
            found[dataset] = [chosen]
    return found


def _names(tasks: Any, file: str, key: str) -> list[str]:
    """Return the names in a list of tasks, or in values by name, that a file has under ``key``."""
    if tasks is None:
        return []
    names = list(tasks) if isinstance(tasks, list | dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{file}: {key} is {tasks!r:.80}; expected a list of names, or keys and values by name "
            "(quote names such as 'on' or '7')"
        )
    for name in names:
        check_pipeline_name(name, f"rename it in {key} of {file}")
        if not _is_text(name):
            raise ConfigError(
                f"{file}: {key} has the name {name!r}, which would be read as another value on the "
                "command line; rename it"
            )
        if names.count(name) > 1:
            raise ConfigError(f"{file}: {key} names {name!r} twice")
    return names


def _is_text(name: str) -> bool:
    """Return whether a word of a command line is read as this text: no 'true', no '1e3'."""
    try:
        return name == str(int(name))
    except ValueError:
        pass
    try:
        float(name)
    except ValueError:
        return name.lower() not in ("true", "false", "null")
    return False


def _no_task(task: str | None, known: list[str], dataset: str) -> str:
    if not known:
        return (
            f"task={task} is given, but the dataset {dataset!r} has no tasks; see minari-pipe "
            "recipes"
        )
    listed = some_of(known, f"minari-pipe recipes {dataset}")
    if task is None:
        return (
            f"the dataset {dataset!r} needs a task; add task=NAME, where NAME is one of: {listed}"
        )
    return (
        f"no task {task!r} of {dataset!r}.{did_you_mean(task, known, cutoff=0.4)} Known: {listed}"
    )


def some_of(names: list[str], all_by: str) -> str:
    """Return names for a message: the first ones, and the command that lists all."""
    rest = len(names) - _LISTED
    more = f" and {rest} more; see {all_by}" if rest > 0 else ""
    return f"{', '.join(names[:_LISTED])}{more}"


def _check_ids(body: DictConfig, known: list[str], file: str) -> None:
    """Raise if the file gives two tasks one id, which the second would take from the first."""
    dataset_id: Any = body.dataset._get_node("id")
    if "${" not in str(dataset_id._value()):  # set for this run; else another task's run refuses it
        return
    chosen = body.task
    found = []
    for task in known:
        body.task = task
        found.append(str(OmegaConf.select(body, "dataset.id")))
    body.task = chosen
    refuse_equal("dataset.id", found, known, file)


def refuse_equal(key: str, found: list[str], known: list[str], file: str) -> None:
    """Raise if two tasks have the same value of a key.

    Args:
        key: the key.
        found: its value for each task.
        known: the tasks.
        file: their file.

    Raises:
        ConfigError: names the tasks and the value.
    """
    first = dict(zip(reversed(found), reversed(known), strict=True))
    for task, value in zip(known, found, strict=True):
        if first[value] != task:
            raise ConfigError(
                f"{file}: the tasks {first[value]!r} and {task!r} have the same {key} {value!r}; "
                "use ${task} in it"
            )
