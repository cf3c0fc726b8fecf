"""Lets one file in ``conf/dataset/`` make a dataset for each of its tasks.

The file lists them under ``tasks`` and uses the chosen one as ``${task}``, and values that are
given with its name as ``${tasks[${task}].KEY}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.pipeline.config.conf_files import dataset_file, datasets
from minari_pipe.pipeline.config.schema import Config
from minari_pipe.pipeline.workspace import check_pipeline_name

#: names that an error lists
_LISTED = 20


def choose(body: DictConfig, dataset: str) -> None:
    """Check the task of a composed config, and name its pipeline after it, unless it has a name.

    Args:
        body: the config; of its tasks, only the chosen one stays.
        dataset: the name of its file.

    Raises:
        ConfigError: there is no such task, or the list is not valid.
    """
    file = f"conf/dataset/{dataset}.yaml"
    known = _names(body._get_node("tasks"), file)
    task = body.task
    if task is None and not known:
        with open_dict(body):
            del body["task"], body["tasks"]
        return
    if task not in known:
        raise ConfigError(_no_task(task, known, dataset))
    _check_ids(body, known, file)
    pipeline: Any = body._get_node("pipeline")
    if pipeline._value() == Config.pipeline:
        body.pipeline = f"{dataset}_{task}"
    tasks = body.tasks
    body.tasks = {task: tasks[task]} if isinstance(tasks, DictConfig) else [task]


def each(body: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Yield each task of a config that is not resolved yet, with the config of that task."""
    for task in _names(body._get_node("tasks"), "the config"):
        body.task = task
        yield task, body


def names_in(dataset: str) -> list[str]:
    """Return the tasks that ``conf/dataset/NAME.yaml`` lists itself; none if it cannot be read."""
    file = dataset_file(dataset)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) if file else None
        tasks = content.get("tasks") if isinstance(content, dict) else None
        return _names(OmegaConf.create({"tasks": tasks})._get_node("tasks"), str(file))
    except (OSError, ValueError, yaml.YAMLError, ConfigError):
        return []


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


def _names(tasks: Any, file: str) -> list[str]:
    """Return the names in a node of tasks."""
    value = OmegaConf.to_container(tasks, resolve=False) if OmegaConf.is_config(tasks) else None
    if value is None and (tasks is None or tasks._is_none()):
        return []
    names = list(value) if isinstance(value, Mapping | Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{file}: tasks is {value!r:.80}; expected a list of names, or keys and values by name "
            "(quote names such as 'on' or '7')"
        )
    for name in names:
        check_pipeline_name(name, f"rename the task in {file}")
        if names.count(name) > 1:
            raise ConfigError(f"{file}: tasks names {name!r} twice")
    return names


def _no_task(task: str | None, known: list[str], dataset: str) -> str:
    if not known:
        return (
            f"task={task} is given, but the dataset {dataset!r} has no tasks; see minari-pipe "
            "recipes"
        )
    rest = len(known) - _LISTED
    more = f" and {rest} more; see minari-pipe recipes {dataset}" if rest > 0 else ""
    listed = f"{', '.join(known[:_LISTED])}{more}"
    if task is None:
        return (
            f"the dataset {dataset!r} needs a task; add task=NAME, where NAME is one of: {listed}"
        )
    return (
        f"no task {task!r} of {dataset!r}.{did_you_mean(task, known, cutoff=0.4)} Known: {listed}"
    )


def _check_ids(body: DictConfig, known: list[str], file: str) -> None:
    """Raise if the file gives two tasks one id, which the second would take from the first."""
    chosen = body.task
    seen: dict[str, str] = {}
    dataset_id = OmegaConf.to_container(body, resolve=False)["dataset"]["id"]  # type: ignore[call-overload,index]
    if "${" not in str(dataset_id):  # set for this run; else another task's run refuses it
        return
    for task, one in each(body):
        first = seen.setdefault(str(OmegaConf.select(one, "dataset.id")), task)
        if first != task:
            raise ConfigError(
                f"{file}: the tasks {first!r} and {task!r} have the same dataset.id "
                f"{one.dataset.id!r}; use ${{task}} in it"
            )
    body.task = chosen
