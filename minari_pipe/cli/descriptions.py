"""Format what ``minari-pipe show`` prints about a local or remote dataset."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from minari_pipe.cli.release_state import release_state
from minari_pipe.cli.sparklines import BINS, sparkline
from minari_pipe.cli.tables import VALUE_WIDTH, count, counted, megabytes, names, print_fields
from minari_pipe.core.messages import one_line
from minari_pipe.core.metadata import is_finite_number, metadata_faults, supported_dataset_versions
from minari_pipe.core.spaces import deserialize_space, space_leaves
from minari_pipe.datasets.cards.facts import stored_successes
from minari_pipe.datasets.cards.folder import file_of_card
from minari_pipe.datasets.cards.summary import outcomes_in
from minari_pipe.datasets.cards.words import percent
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.spec import parse_spec
from minari_pipe.errors import CorruptDatasetError, MinariPipeError

#: values that users copy, so that a line break would spoil them
COPIED = ("Code", "entry_point")
#: most lines of a nested space
_MOST_LEAVES = 16
#: characters of a value; --json has all of it
_LONGEST = 1000
#: digits of a hash that tell checkpoints apart
_HASH = 12
#: from here on, numbers are written with an exponent
_GREATEST = 1e9


def dataset_fields(dataset: MinariDataset, metadata: dict[str, Any]) -> dict[str, str]:
    """Return the fields of a dataset whose data are local, by name.

    Args:
        dataset: the dataset.
        metadata: its metadata as stored.
    """
    table = dataset.episodes
    return _fields(
        metadata,
        {
            "State": release_state(dataset.id, dataset.storage.data_path),
            "Episodes": count(dataset.total_episodes),
            "Steps": count(dataset.total_steps),
            "Return": _distribution(table["return"].astype(np.float64), ".2f"),
            "Length": _distribution(table["total_steps"].astype(np.float64), ",.0f"),
            "Success": _success(dataset),
            "Observation space": _space_text(dataset.observation_space),
            "Action space": _space_text(dataset.action_space),
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
        return _space_text(deserialize_space(text))
    except MinariPipeError as error:
        return one_line(error)


def _space_text(space: gym.Space[Any]) -> str:
    """Return a space as text, one line for each leaf."""
    found = list(space_leaves(space))
    if len(found) == 1 and not found[0][0]:
        return _leaf_text(space)
    lines = [
        f"{one_line('/'.join(map(str, path)))}: {_leaf_text(leaf)}"
        for path, leaf in found[:_MOST_LEAVES]
    ]
    more = len(found) - len(lines)
    return "\n".join([*lines, f"and {more:,} more"] if more else lines)


def _leaf_text(space: gym.Space[Any]) -> str:
    text = one_line(space)
    if len(text) > 2 * VALUE_WIDTH and isinstance(space, gym.spaces.Box):
        ends = f"{space.low.min():.6g} to {space.high.max():.6g}"
        return f"Box({ends}, not the same for all elements, {space.shape}, {space.dtype})"
    return text


def _fields(metadata: dict[str, Any], known: dict[str, str], version: str) -> dict[str, str]:
    faults = dict(metadata_faults(metadata))
    metadata = {key: value for key, value in metadata.items() if key not in faults}
    fields = {
        "Description": metadata.get("description"),
        **known,
        "Reference scores": _scores(metadata),
        "Algorithm": metadata.get("algorithm_name"),
        "Policy": _policy(metadata),
        "Collection seed": _seed(metadata),
        "Author": names(metadata.get("author")),
        "Email": names(metadata.get("author_email")),
        "Code": metadata.get("code_permalink"),
        "Requirements": names(metadata.get("requirements")),
        "Combined from": names(metadata.get("combined_datasets")),
        "Mixed from": _parents(metadata),
        "Policy cloned from": _cloned(metadata),
        "Migrated from": _migrated(metadata),
        "License": metadata.get("license"),
        "Citation": metadata.get("citation"),
        "Format": f"{metadata.get('data_format')}, {megabytes(metadata.get('dataset_size'))}",
        "Standard": version
        + ("" if version in supported_dataset_versions else " (older or unknown)"),
        "Not valid": "; ".join(f"{key} {what}" for key, what in faults.items()),
    }
    return {name: _short(str(value)) for name, value in fields.items() if value}


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST].rstrip()} ... ({len(text):,} characters; all of them: --json)"


def _made(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return what a pipeline says of how it made a dataset."""
    made = metadata.get("minari_pipe")
    return made if isinstance(made, dict) else {}


def _policy(metadata: dict[str, Any]) -> str:
    """Return the checkpoint of the episodes, and its policy where that measured the expert too."""
    made = _made(metadata)
    files, family = made.get("files"), made.get("family")
    if not isinstance(files, dict) or not files or "source" in files:  # demonstrations
        return ""
    parts = [f"{name} {str(digest)[:_HASH]}" for name, digest in sorted(files.items())]
    scores = made.get("ref_scores")
    expert = scores.get("ref_max") if isinstance(scores, dict) else None
    if isinstance(expert, dict) and expert.get("files") == [files]:
        parts = [names(expert.get("policy")), *parts, "also the expert of the scores"]
    if isinstance(family, dict):
        parts = [f"{family.get('kind')} of the family {family.get('name')}", *parts]
    return one_line(", ".join(filter(None, parts)))


def _seed(metadata: dict[str, Any]) -> str:
    seed = _made(metadata).get("collect_seed")
    return str(seed) if isinstance(seed, int) and not isinstance(seed, bool) else ""


def _parents(metadata: dict[str, Any]) -> str:
    """Return the parents of a pipeline's mixture; empty if the metadata name none."""
    parents = _made(metadata).get("parents")
    if not isinstance(parents, list):
        return ""
    known = [parent for parent in parents if isinstance(parent, dict)]
    return ", ".join(f"{p.get('id')} ({count(p.get('episodes'))} episodes)" for p in known)


def _cloned(metadata: dict[str, Any]) -> str:
    """Return the dataset that the collecting policy learned; empty if the metadata name none."""
    cloned = _made(metadata).get("cloned")
    return one_line(str(cloned.get("id") or "")) if isinstance(cloned, dict) else ""


def _migrated(metadata: dict[str, Any]) -> str:
    migration = metadata.get("migration")
    return str(migration.get("source_dataset_id") or "") if isinstance(migration, dict) else ""


def _distribution(values: npt.NDArray[np.float64], form: str) -> str:
    """Return a sparkline, the mean and the ends."""
    n = len(values)
    values = values[np.isfinite(values)]
    odd = f", {n - len(values):,} not finite" if len(values) < n else ""
    if not len(values):
        return odd.removeprefix(", ")
    low, high = (_number(float(end), form) for end in (values.min(), values.max()))
    if values.min() == values.max():
        return f"all {low}{odd}"
    with np.errstate(over="ignore", invalid="ignore"):
        text = f"mean {_number(float(values.mean()), '.2f')}, from {low} to {high}{odd}"
    line = f"{sparkline(values):<{BINS}}"
    return f"{line}{'  ' if len(line) + 2 + len(text) <= VALUE_WIDTH else chr(10)}{text}"


def _number(value: float, form: str) -> str:
    return f"{value:{form if abs(value) < _GREATEST else '.4g'}}"


def _success(dataset: MinariDataset) -> str:
    """Return the share of successful episodes, from the infos or, if those are slow, the card."""
    found: npt.NDArray[np.bool_] | None = None
    with suppress(MinariPipeError):
        found = stored_successes(dataset.storage)
    if found is None:
        table = file_of_card(dataset.storage.data_path, "episodes.csv")
        outcomes = None if table is None else outcomes_in(table)
        found = None if outcomes is None else outcomes.succeeded
    n = dataset.total_episodes
    if found is None or not n or len(found) != n:
        return ""
    won = int(found.sum())
    return f"{percent(won / n)} ({won:,} of {counted(n, 'episode')})"


def _scores(metadata: dict[str, Any]) -> str:
    """Return the reference scores; a declared score was not measured over episodes."""
    measured = _made(metadata).get("ref_scores")
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
            print_fields(title, _environment(spec, dataset_id), whole=COPIED)


def _environment(text: Any, dataset_id: str) -> dict[str, str]:
    try:
        spec = parse_spec(text, dataset_id)
    except CorruptDatasetError as error:
        return {"not valid": str(error)}
    keys = ("id", "entry_point", "max_episode_steps", "reward_threshold", "kwargs")
    fields = {key: _short(str(getattr(spec, key))) for key in keys if getattr(spec, key)}
    wrappers = [str(wrapper.name) for wrapper in getattr(spec, "additional_wrappers", ())]
    return {**fields, "wrappers": ", ".join(wrappers)} if wrappers else fields
