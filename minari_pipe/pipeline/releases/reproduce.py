"""Implements ``minari-pipe reproduce ID``: remakes a released version and checks the result."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.core.files.manifest import identity_of, readable_manifest
from minari_pipe.errors import ConfigError, DatasetNotFoundError, MinariPipeError
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.execution.versions import installed, processor_kind
from minari_pipe.pipeline.generated_yaml import load_yaml
from minari_pipe.pipeline.published import differing, flat
from minari_pipe.pipeline.releases.comparison import Compared, compare
from minari_pipe.pipeline.releases.diff import Pair
from minari_pipe.pipeline.releases.published_trainings import give_trainings
from minari_pipe.pipeline.releases.record import TOOLS, find_record, stage_outputs
from minari_pipe.pipeline.releases.reproduction import Reproduction, reproduction
from minari_pipe.pipeline.releases.version import parsed_params, published_data, tagged
from minari_pipe.pipeline.repository import commit_of, is_repository, text_at
from minari_pipe.pipeline.stages.assemble import NOT_CONTENT
from minari_pipe.pipeline.workspace import check_pipeline_name
from minari_pipe.pipeline.workspace_links import open_root
from minari_pipe.storage.base import MinariStorage

#: Largest difference of values on another platform, where low bits differ and errors accumulate.
TOLERANCE = 1e-3

#: Number of changed keys that a message names; it counts the others.
_MOST = 3


def reproduce(
    dataset_id: str,
    *,
    revision: str | None = None,
    from_scratch: bool = False,
    tolerance: float = TOLERANCE,
    say: Callable[[str], None],
) -> str:
    """Make a released version again in a separate workspace, and compare it with its record.

    With the recorded kind of processor and package versions, all bytes must match. Otherwise,
    unless the bytes match anyway, counts must match exactly and values within ``tolerance``.

    Args:
        dataset_id: an id with a version.
        revision: the git revision of config and code; default: the tag of the version, else the
            commit in the record.
        from_scratch: repeat trainings instead of using the published checkpoints.
        tolerance: see :func:`.comparison.compare`.
        say: prints one line.

    Returns:
        One line that says what was compared.

    Raises:
        DatasetNotFoundError: the version is not released.
        ConfigError: there is no such revision, or it does not make this version.
        MinariPipeError: the result differs; names the first stage and field that do.
    """
    parse_dataset_id(dataset_id)
    root = open_root()
    commit, record = _found(root, dataset_id, revision)
    name = check_pipeline_name(str(record["pipeline"]))
    _check_makes(root, commit, name, dataset_id)
    others = _other_versions(record)
    if others:
        say(f"package versions differ from the recorded ones: {', '.join(others.values())}")
    with reproduction(root, name, commit) as found:
        data_of = _data_of(root, record)
        given = set() if from_scratch else give_trainings(found, data_of, say)
        if changed := _of_all(_changed_keys(record, found), name):
            at = revision or commit[:12]
            say(f"the config at {at} differs from the released one: {_named(changed)}")
        published, elsewhere = data_of(dataset_id), _elsewhere(record, others)
        if elsewhere and published is None:
            say(
                f"bytes may differ here ({'; '.join(elsewhere)}), and the published dataset is not "
                f"here to compare values with; if that matters, stop and run dvc pull "
                f"datasets/{dataset_id} first"
            )
        say(f"reproducing {dataset_id} at {commit[:12]} in {found.root}")
        found.run(root)
        return _compared(found, record, given, published, tolerance, elsewhere)


def _found(root: Path, dataset_id: str, revision: str | None) -> tuple[str, dict[str, Any]]:
    """Return the commit to make a version from, and the record to compare it with."""
    if not is_repository(root):
        raise ConfigError(f"{root} is not a git repository, so no version can be reproduced")
    commit = commit_of(root, revision) if revision else tagged(root, dataset_id)
    if revision and commit is None:
        raise ConfigError(f"no revision {revision!r} in {root}; try git fetch --tags")
    record = find_record(root, dataset_id, commit)
    if record is None:
        released = sorted((root / "releases").rglob("*.json"))
        ids = [p.relative_to(root / "releases").as_posix()[: -len(".json")] for p in released]
        raise DatasetNotFoundError(
            f"{dataset_id!r} is not released in {root}: it has no release record. Released: "
            f"{', '.join(ids) or 'none'}; use --rev TAG for a tag that has the record"
        )
    if commit is None:
        commit = commit_of(root, str(record["git_commit"]))
        if commit is None:
            raise ConfigError(
                f"the commit {record['git_commit']!r} that {dataset_id} was made from is not in "
                f"{root}; try git fetch (in a shallow clone, git fetch --unshallow)"
            )
    return commit, record


def _check_makes(root: Path, commit: str, name: str, dataset_id: str) -> None:
    text = text_at(root, commit, f"pipelines/{name}/params.yaml")
    params = parsed_params(text) if text else None
    if params is None:
        raise ConfigError(
            f"at {commit[:12]} pipelines/{name}/params.yaml is missing or damaged; give the tag of "
            f"the version with --rev"
        )
    makes = (params.get("dataset") or {}).get("id")
    if makes != dataset_id:
        raise ConfigError(
            f"at {commit[:12]} pipeline {name!r} makes {makes!r}, not {dataset_id!r}; give the tag "
            f"of the version with --rev"
        )


def _other_versions(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the packages, and Python, whose versions differ from the record, and how."""
    recorded = dict(record.get("packages") or {})
    here = {name: installed(name) for name in recorded}
    if "python" in record:
        recorded["python"], here["python"] = record["python"], platform.python_version()
    return {
        name: f"{name} {version} -> {here[name]}"
        for name, version in sorted(recorded.items())
        if here[name] != version
    }


def _data_of(root: Path, record: Mapping[str, Any]) -> Callable[[str], Path | None]:
    """Return a function that finds the data of the version or of a parent, if they match."""
    own = published_data(record["id"], root, dict(record))
    recorded = MinariStorage.read_raw_metadata(own).get("minari_pipe", {}) if own else {}
    hashes = {parent["id"]: parent["content_sha256"] for parent in recorded.get("parents", [])}

    def find(dataset_id: str) -> Path | None:
        if dataset_id == record["id"]:
            return own
        data = published_data(dataset_id, root, None)
        content = readable_manifest(data.parent) if data else None
        same = content and hashes.get(dataset_id) in (None, content.get("content_sha256"))
        return data if same else None

    return find


def _changed_keys(record: Mapping[str, Any], found: Reproduction) -> dict[str, dict[str, Any]]:
    """Return the changed config keys that affect content, by pipeline of a dataset."""
    recorded = {str(record["pipeline"]): record.get("params"), **(record.get("parents") or {})}
    changed = {}
    for name in found.pipelines:
        if then := recorded.get(name):
            now = dvc_yaml.read_params(name, found.root) or {}
            changed[name] = differing(*map(flat, map(_content, (then, now))))
    return {name: keys for name, keys in changed.items() if keys}


def _content(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that affect content, without installed package versions."""
    kept = {k: v for k, v in params.items() if k not in (*NOT_CONTENT, "packages")}
    dataset = {k: v for k, v in (kept.get("dataset") or {}).items() if k != "requirements"}
    return {**kept, "dataset": dataset}


def _named(keys: Mapping[str, Pair]) -> str:
    """Format keys with their new and old values, at most ``_MOST`` of them."""
    listed = [f"{key}: {new}, not {old}" for key, (old, new) in list(keys.items())[:_MOST]]
    more = f" and {len(keys) - _MOST} more" if len(keys) > _MOST else ""
    return "; ".join(listed) + more


def _of_all(changed: Mapping[str, Mapping[str, Pair]], own: str) -> dict[str, Pair]:
    """Merge the changed keys of all pipelines; keys of other pipelines get the pipeline's name."""
    return {
        key if name == own else f"{key} of {name}": pair
        for name, keys in changed.items()
        for key, pair in keys.items()
    }


def _elsewhere(record: Mapping[str, Any], others: Mapping[str, str]) -> list[str]:
    """Return the differences from where the version was made that can change low bits."""
    here, then = processor_kind(), record.get("cpu", "not recorded")
    deciding = [change for name, change in others.items() if name not in TOOLS]
    return [
        *([f"the processor is {here}, was {then}"] if here != then else []),
        *([f"versions differ: {', '.join(deciding)}"] if deciding else []),
    ]


def _compared(
    found: Reproduction,
    record: Mapping[str, Any],
    given: set[tuple[str, str]],
    published: Path | None,
    tolerance: float,
    elsewhere: Sequence[str],
) -> str:
    """Compare the new version with the record; return a summary, or raise if they differ."""
    dataset_id, content = record["id"], record["manifest"]
    folder = found.root / "datasets" / dataset_id
    how = " from its published checkpoint" if given else ""
    made = readable_manifest(folder)
    if made is not None and identity_of(made) == content:
        return (
            f"{dataset_id} is reproduced{how}: content_sha256 {content['content_sha256'][:12]} and "
            f"the bytes of all {len(content['files'])} files match the release"
        )
    if published is None and elsewhere:
        raise ConfigError(
            f"the bytes of {dataset_id} differ from the release, which can happen here "
            f"({'; '.join(elsewhere)}), and the published dataset is not here to compare values "
            f"with; run dvc pull datasets/{dataset_id}"
        )
    data = Compared()
    if published is not None:
        data = compare(published, folder / "data", tolerance if elsewhere else 0.0)
    changed = _changed_keys(record, found)
    if elsewhere and data.first is None and not changed:
        return (
            f"{dataset_id} is reproduced{how} within {tolerance:g}: {content['total_episodes']} "
            f"episodes and {content['total_steps']} steps as in the release, {data.n_values:,} "
            f"values, largest difference {data.largest:.3g}; bytes were not compared because "
            f"{'; '.join(elsewhere)}"
        )
    first = _first_stage(found, record, given, changed)
    value = data.first
    if value is None and published is not None and not changed:
        value = _other_metadata(published, folder)
    parts = [
        f"the first stage that differs is {first}" if first else "",
        _named(_of_all(changed, found.name)),
        value,
        *elsewhere,
    ]
    compared = f"counts, and values within {tolerance:g}" if elsewhere else "bytes"
    raise MinariPipeError(
        f"{dataset_id} is not reproduced{how} (compared: {compared}): "
        f"{'; '.join(filter(None, parts))}"
    )


def _first_stage(
    found: Reproduction,
    record: Mapping[str, Any],
    given: set[tuple[str, str]],
    changed: Mapping[str, Mapping[str, Pair]],
) -> str | None:
    """Return the first stage whose parameters or outputs differ from the release."""
    recorded = {(s["pipeline"], s["stage"]): s["outs"] for s in record.get("stages") or []}
    made = {name: dvc_yaml.parameters(name, found.root) for name in changed}
    families = {name: params.family_name if params else None for name, params in made.items()}
    replaced = given | {(name, "checkpoint_scores") for name, _ in given}
    for entry in stage_outputs(found.pipelines, found.root):
        stage = entry["pipeline"], entry["stage"]
        reads = _keys_of(*stage, found.root)
        # Changes in a family's shared keys appear under its datasets.
        makers = (name for name in changed if stage[0] in (name, families[name]))
        if any(_is_below(key, reads) for name in makers for key in changed[name]):
            return _called(stage, found)
        if stage not in replaced and recorded.get(stage, entry["outs"]) != entry["outs"]:
            return _called(stage, found)
    return None


def _called(stage: tuple[str, str], found: Reproduction) -> str:
    pipeline, name = stage
    return name if pipeline == found.name else f"{name} of {pipeline}"


def _keys_of(pipeline: str, stage: str, root: Path) -> list[str]:
    """Return the parameter keys that a stage depends on."""
    path = root / "pipelines" / pipeline / "dvc.yaml"
    entry = load_yaml(path.read_text(encoding="utf-8"))["stages"][stage]
    return [key for keys in entry["params"] for names in keys.values() for key in names]


def _is_below(key: str, sections: list[str]) -> bool:
    return any(key == s or key.startswith(f"{s}.") for s in sections)


def _other_metadata(published: Path, folder: Path) -> str:
    """Describe the differences in the metadata of the two versions."""
    old, new = (flat(MinariStorage.read_raw_metadata(p)) for p in (published, folder / "data"))
    keys = differing(old, new)
    return f"metadata: {_named(keys)}" if keys else ""
