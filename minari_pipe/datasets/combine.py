"""Split datasets into views, and combine datasets and views into new datasets."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from copy import deepcopy
from fractions import Fraction
from itertools import chain
from numbers import Integral, Real
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from minari_pipe.core.env_specs import spec_json
from minari_pipe.core.json_object import json_object
from minari_pipe.core.metadata import metadata_faults
from minari_pipe.core.requirements import exclusions
from minari_pipe.core.spaces import serialize_space
from minari_pipe.datasets.copying import STORAGE_KEYS, all_jpeg, new_copy, writable_format
from minari_pipe.datasets.dataset import MinariDataset
from minari_pipe.datasets.sampling import generator
from minari_pipe.errors import ConfigError, CorruptDatasetError, InvalidMetadataError

#: keys that matter for an evaluation: kept if all sources agree, else left out with a warning
_EVALUATION_KEYS = (
    "ref_min_score",
    "ref_max_score",
    "num_episodes_average_score",
    "eval_env_spec",
)
#: keys that are joined or determined anew
_JOINED_KEYS = frozenset(
    {"author", "author_email", "algorithm_name", "requirements", "env_spec", "combined_datasets"}
)


def split_dataset(
    dataset: MinariDataset, sizes: Sequence[float], seed: int | None = None
) -> list[MinariDataset]:
    """Return disjoint views of random episodes.

    Args:
        dataset: the dataset to split.
        sizes: the number of episodes of each view, or fractions of all episodes as floats, whose
            sum is at most 1. Fractions are rounded by largest remainder, so that the views come
            as close to them as possible; those that sum to 1 leave no episode out.
        seed: seed of the random choice.

    Raises:
        ConfigError: there are not enough episodes, a size is neither a number nor a fraction, or
            the seed is invalid.

    Example:
        >>> from minari_pipe import split_dataset
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> dataset = step_index_dataset(lengths=(1, 2, 3, 4, 5))
        >>> [len(view) for view in split_dataset(dataset, [3, 1], seed=0)]
        [3, 1]
        >>> [len(view) for view in split_dataset(dataset, [0.75, 0.25], seed=0)]
        [4, 1]
    """
    if not isinstance(dataset, MinariDataset):
        raise ConfigError(f"split_dataset takes a MinariDataset, got {dataset!r:.80}")
    if not isinstance(sizes, Iterable):
        raise ConfigError(f"sizes must be a list with one size for each view; got {sizes!r}")
    counts = _counts(list(sizes), dataset.total_episodes)
    order = generator(seed).permutation(dataset.episode_indices)
    return [
        dataset.view(order[end - count : end])
        for count, end in zip(counts, np.cumsum(counts, dtype=int), strict=True)
    ]


def _counts(sizes: list[Any], total: int) -> list[int]:
    whole = [isinstance(size, Integral) for size in sizes]
    if all(whole) and not any(isinstance(size, bool) for size in sizes):
        counts = [int(size) for size in sizes]
        if any(count < 0 for count in counts):
            raise ConfigError(f"sizes must not be negative, got {sizes}")
        if sum(counts) > total:
            raise ConfigError(
                f"Incompatible arguments: the sum of sizes exceeds the number of episodes in the "
                f"dataset ({total})"
            )
        return counts
    if any(whole) or not all(isinstance(size, Real) and 0 <= float(size) <= 1 for size in sizes):
        raise ConfigError(
            f"sizes must be all episode counts, or all fractions from 0.0 to 1.0; got {sizes}"
        )
    # the decimal as written: 0.1 means exactly a tenth
    fractions = [Fraction(repr(float(size))) for size in sizes]
    # tolerance for three times a third, each rounded up
    if sum(fractions) > 1 + Fraction(1, 10**9):
        raise ConfigError(
            f"Incompatible arguments: the sum of sizes exceeds 1: the fractions {sizes} add up to "
            f"{float(sum(fractions)):.10g}, where 1 means all {total} episodes of the dataset"
        )
    parts = [*fractions, max(1 - sum(fractions), Fraction(0))]
    counts = [int(part * total) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda k: (counts[k] - parts[k] * total, k))
    for k in by_remainder[: total - sum(counts)]:
        counts[k] += 1
    return counts[:-1]


def combine_datasets(
    datasets_to_combine: list[MinariDataset],
    new_dataset_id: str,
    copy: bool | None = None,
    *,
    data_format: str | None = None,
) -> MinariDataset:
    """Create a dataset from the episodes of datasets and views.

    Seeds, options, infos, extra groups and attributes of the episodes are kept. Images are JPEG
    only if they are in all sources. Authors, email addresses and requirements are merged, names of
    algorithms joined with ``"; "``. Reference scores and the evaluation environment are kept if
    all sources have the same, and left out with a warning otherwise; other metadata is kept if
    all sources have the same.

    Args:
        datasets_to_combine: datasets or views of datasets, of any formats.
        new_dataset_id: id of the new dataset.
        copy: argument of Minari 0.4 without effect; the episodes are always copied.
        data_format: format of the new dataset; None means the format of the first source.

    Raises:
        InvalidMetadataError: the list is empty, or the spaces or environments differ.
        DatasetExistsError: the id is taken.
        InvalidDatasetIdError: the id is malformed.

    Example:
        >>> from minari_pipe import combine_datasets
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> first = step_index_dataset("example/first-v0", lengths=(4, 2))
        >>> second = step_index_dataset("example/second-v0", lengths=(1, 4))
        >>> combined = combine_datasets([first[:1], second], "example/both-v0")
        >>> combined.episodes["total_steps"]
        array([4, 1, 4])
        >>> combined.combined_datasets
        ['example/first-v0', 'example/second-v0']
    """
    if copy is not None:
        warnings.warn(
            "combine_datasets always copies the episodes. The argument `copy` has no effect; "
            "remove it",
            DeprecationWarning,
            stacklevel=2,
        )
    if not isinstance(datasets_to_combine, Iterable):
        raise InvalidMetadataError(
            f"combine_datasets takes a list of MinariDataset, got {datasets_to_combine!r:.80}"
        )
    datasets = list(datasets_to_combine)
    env_spec = validate_datasets_to_combine(datasets)
    sources = [dataset.storage.metadata for dataset in datasets]
    metadata = _joined(sources)
    lost = [key for key in _EVALUATION_KEYS if key not in metadata and _any_has(sources, key)]
    if lost:
        warnings.warn(
            f"The datasets to be combined have different values for {', '.join(lost)}; "
            f"{new_dataset_id} has none. Set them with dataset.storage.update_metadata",
            stacklevel=2,
        )
    for clash in exclusions(metadata.get("requirements", [])):
        warnings.warn(
            f"The requirements of the datasets to be combined conflict: {clash}",
            stacklevel=2,
        )
    metadata["combined_datasets"] = [dataset.id for dataset in datasets]
    if env_spec is not None:
        metadata["env_spec"] = spec_json(env_spec)
    first = datasets[0]
    data = new_copy(
        new_dataset_id,
        chain.from_iterable(
            dataset.storage.get_segments(dataset.episode_indices) for dataset in datasets
        ),
        observation_space=first.observation_space,
        action_space=first.action_space,
        metadata=metadata,
        data_format=data_format or writable_format(first.storage),
        jpeg_encoding=all_jpeg(
            [(dataset.storage, dataset.episode_indices) for dataset in datasets]
        ),
    )
    return MinariDataset(data)


def _joined(sources: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the metadata of the sources."""
    joined: dict[str, Any] = {}
    for source in sources:
        texts = {key: source[key] for key in ("algorithm_name", "requirements") if source.get(key)}
        for key, what in metadata_faults(texts):
            raise CorruptDatasetError(f"{source.get('dataset_id')}: metadata {key!r} {what}")
    for key in ("author", "author_email"):
        names = set().union(*(source.get(key) or () for source in sources))
        if names:
            joined[key] = names
    algorithms = _distinct(
        name for source in sources for name in (source.get("algorithm_name") or "").split("; ")
    )
    if algorithms:
        joined["algorithm_name"] = "; ".join(algorithms)
    requirements = _distinct(
        text for source in sources for text in source.get("requirements") or ()
    )
    if requirements:
        joined["requirements"] = requirements
    for key, value in sources[0].items():
        if key not in STORAGE_KEYS | _JOINED_KEYS and all(
            key in source and _same(key, source[key], value) for source in sources
        ):
            joined[key] = value
    return joined


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))


def _any_has(sources: list[dict[str, Any]], key: str) -> bool:
    return any(source.get(key) is not None for source in sources)


def _same(key: str, left: Any, right: Any) -> bool:
    if left == right or key != "eval_env_spec":
        return left == right
    try:  # whitespace and the order of keys do not count
        return json_object(left) == json_object(right)
    except ValueError:
        return False


def validate_datasets_to_combine(datasets_to_combine: list[MinariDataset]) -> EnvSpec | None:
    """Check that datasets can be combined, and return the environment of the combination.

    Their environments may differ only in ``max_episode_steps``; the combination has the largest.

    Args:
        datasets_to_combine: datasets or views of datasets.

    Returns:
        The spec of the environment, or None if no dataset has one.

    Raises:
        InvalidMetadataError: the list is empty, or the spaces or environments differ.

    Example:
        >>> from minari_pipe import validate_datasets_to_combine
        >>> from minari_pipe.datasets.examples import step_index_dataset
        >>> validate_datasets_to_combine([step_index_dataset()]) is None
        True
    """
    if not datasets_to_combine:
        raise InvalidMetadataError("combine_datasets needs at least one dataset")
    for dataset in datasets_to_combine:
        if not isinstance(dataset, MinariDataset):
            raise InvalidMetadataError(
                "combine_datasets takes a list of MinariDataset, such as load_dataset returns; "
                f"got {type(dataset).__name__}"
            )
    first = datasets_to_combine[0]
    for dataset in datasets_to_combine[1:]:
        for key in ("observation_space", "action_space"):
            if not _equal_spaces(getattr(dataset, key), getattr(first, key)):
                raise InvalidMetadataError(
                    f"The datasets to be combined have different values for `{key}`: "
                    f"{first.id} has {getattr(first, key)}, {dataset.id} has "
                    f"{getattr(dataset, key)}"
                )
    specs = [deepcopy(dataset.env_spec) for dataset in datasets_to_combine]
    known = [spec for spec in specs if spec is not None]
    if not known:
        return None
    if len(known) < len(specs):
        raise InvalidMetadataError(
            "Cannot combine datasets having env_spec with those having no env_spec."
        )
    horizons = [spec.max_episode_steps for spec in known]
    limited = [horizon for horizon in horizons if horizon is not None]
    horizon = max(limited) if len(limited) == len(horizons) else None
    for spec in known:
        spec.max_episode_steps = horizon
        if spec != known[0]:
            raise InvalidMetadataError(
                "The datasets to be combined have different values for `env_spec` attribute: "
                f"{known[0]} and {spec}"
            )
    return known[0]


def _equal_spaces(left: gym.Space[Any], right: gym.Space[Any]) -> bool:
    # spaces of other packages may not define equality
    return bool(left == right) or serialize_space(left) == serialize_space(right)
