"""Format what ``minari-pipe show`` prints about a local or remote dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from minari_pipe.cli.tables import count, megabytes, names, print_fields
from minari_pipe.core.messages import one_line
from minari_pipe.core.metadata import is_finite_number, metadata_faults, supported_dataset_versions
from minari_pipe.core.spaces import deserialize_space
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.spec import parse_spec
from minari_pipe.errors import CorruptDatasetError, MinariPipeError


def dataset_fields(dataset: MinariDataset, metadata: dict[str, Any]) -> dict[str, str]:
    """Return the fields of a dataset whose data are local, by name.

    Args:
        dataset: the dataset.
        metadata: its metadata as stored.
    """
    return _fields(
        metadata,
        {
            "Episodes": count(dataset.total_episodes),
            "Steps": count(dataset.total_steps),
            "Return": _spread(np.asarray(dataset.episodes["return"], dtype=np.float64)),
            "Observation space": one_line(dataset.observation_space),
            "Action space": one_line(dataset.action_space),
        },
        dataset.minari_version or "not given",
    )


def metadata_fields(metadata: dict[str, Any]) -> dict[str, str]:
    """Return the fields that the metadata alone provide, by name.

    Args:
        metadata: metadata as published.
    """
    return _fields(
        metadata,
        {
            "Episodes": count(metadata.get("total_episodes")),
            "Steps": count(metadata.get("total_steps")),
            "Observation space": _space(metadata.get("observation_space")),
            "Action space": _space(metadata.get("action_space")),
        },
        str(metadata.get("minari_version") or "not given"),
    )


def _space(text: Any) -> str:
    if text is None:
        return ""
    try:
        return one_line(deserialize_space(text))
    except MinariPipeError as error:
        return one_line(error)


def _fields(metadata: dict[str, Any], known: dict[str, str], version: str) -> dict[str, str]:
    faults = dict(metadata_faults(metadata))
    metadata = {key: value for key, value in metadata.items() if key not in faults}
    fields = {
        "Description": metadata.get("description"),
        **known,
        "Reference scores": _scores(metadata),
        "Algorithm": metadata.get("algorithm_name"),
        "Author": names(metadata.get("author")),
        "Email": names(metadata.get("author_email")),
        "Code": metadata.get("code_permalink"),
        "Requirements": names(metadata.get("requirements")),
        "Combined from": names(metadata.get("combined_datasets")),
        "Mixed from": _parents(metadata),
        "Migrated from": _migrated(metadata),
        "License": metadata.get("license"),
        "Citation": metadata.get("citation"),
        "Format": f"{metadata.get('data_format')}, {megabytes(metadata.get('dataset_size'))}",
        "Standard": version
        + ("" if version in supported_dataset_versions else " (older or unknown)"),
        "Not valid": "; ".join(f"{key} {what}" for key, what in faults.items()),
    }
    return {name: str(value) for name, value in fields.items() if value}


def _parents(metadata: dict[str, Any]) -> str:
    """Return the parents of a pipeline's mixture; empty if the metadata name none."""
    made = metadata.get("minari_pipe")
    parents = made.get("parents") if isinstance(made, dict) else None
    if not isinstance(parents, list):
        return ""
    known = [parent for parent in parents if isinstance(parent, dict)]
    return ", ".join(f"{p.get('id')} ({count(p.get('episodes'))} episodes)" for p in known)


def _migrated(metadata: dict[str, Any]) -> str:
    migration = metadata.get("migration")
    return str(migration.get("source_dataset_id") or "") if isinstance(migration, dict) else ""


def _spread(returns: np.ndarray) -> str:
    if not len(returns):
        return ""
    low, high = returns.min(), returns.max()
    return f"mean {returns.mean():.2f}, from {low:.2f} to {high:.2f}"


def _scores(metadata: dict[str, Any]) -> str:
    """Return the reference scores; a declared score was not measured over episodes."""
    made = metadata.get("minari_pipe")
    measured = made.get("ref_scores") if isinstance(made, dict) else None
    n = metadata.get("num_episodes_average_score")
    over = f" (over {n} episodes)" if n else ""
    texts, declares = [], False
    for who, key in (("random", "ref_min"), ("expert", "ref_max")):
        if is_finite_number(value := metadata.get(f"{key}_score")):
            how = measured.get(key) if isinstance(measured, dict) else None
            declared = isinstance(how, dict) and bool(how.get("declared"))
            declares |= declared
            texts.append((f"{who} {value:.2f}", " (declared)" if declared else over))
    if declares:
        return ", ".join(text + how for text, how in texts)
    return ", ".join(text for text, _ in texts) + (over if texts else "")


def print_environments(metadata: dict[str, Any], dataset_id: str) -> None:
    """Print the environments of collection and evaluation from the metadata."""
    collection, evaluation = metadata.get("env_spec"), metadata.get("eval_env_spec")
    same = evaluation == collection
    for title, spec in (
        ("Environment, also for evaluation" if same else "Environment", collection),
        ("Evaluation environment", None if same else evaluation),
    ):
        if spec:
            print()
            print_fields(title, _environment(spec, dataset_id))


def _environment(text: Any, dataset_id: str) -> dict[str, str]:
    try:
        spec = parse_spec(text, dataset_id)
    except CorruptDatasetError as error:
        return {"not valid": str(error)}
    keys = ("id", "entry_point", "max_episode_steps", "reward_threshold", "kwargs")
    fields = {key: str(getattr(spec, key)) for key in keys if getattr(spec, key)}
    wrappers = [str(wrapper.name) for wrapper in getattr(spec, "additional_wrappers", ())]
    return {**fields, "wrappers": ", ".join(wrappers)} if wrappers else fields
