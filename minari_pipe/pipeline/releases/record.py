"""Builds and reads the record of a release: the origin of a version, kept outside the dataset.

``releases/<id>.json`` holds what would change the dataset's bytes with every commit and machine,
and what is needed to check whether a reproduction matches::

    content_sha256, manifest     hash of the content, and the sha256 of each file
    git_commit, pipeline         the origin
    params, parents, stages      all parameters, and the hash of each stage's outputs
    time, platform, machine, processor, cpu, python, packages
    dvc_remote, targets          where it was pushed and uploaded
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from minari_pipe._version import __version__
from minari_pipe.core.files.atomic import sha256_file
from minari_pipe.core.files.manifest import identity_of
from minari_pipe.core.json_object import json_object
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config import dvc_yaml
from minari_pipe.pipeline.execution.versions import processor, processor_kind
from minari_pipe.pipeline.generated_yaml import load_yaml
from minari_pipe.pipeline.releases.dvc_remote import Pushed, without_credentials
from minari_pipe.pipeline.releases.releasable import pipelines_of
from minari_pipe.pipeline.repository import text_at

#: Packages that took part in making the version, but affect no byte of it.
TOOLS = ("dvc", "fsspec", "hydra-core", "omegaconf")


def record(
    root: Path,
    dataset_id: str,
    name: str,
    content: Mapping[str, Any],
    commit: str,
    pushed: Pushed | None,
) -> dict[str, Any]:
    """Return the record of a version at its release.

    Args:
        root: the workspace.
        dataset_id: the id of the version.
        name: its pipeline.
        content: its manifest.
        commit: the git commit that it was made from.
        pushed: the remote that holds its outputs, if they were pushed.
    """
    params = dvc_yaml.read_params(name, root) or {}
    pipelines = pipelines_of(name, root)
    others = {
        other: dvc_yaml.read_params(other, root) or {} for other in pipelines if other != name
    }
    return {
        "id": dataset_id,
        "pipeline": name,
        "content_sha256": content["content_sha256"],
        "manifest": identity_of(content),
        "params_sha256": sha256_file(root / "pipelines" / name / "params.yaml"),
        "params": params,
        # For a mixture; the shared parameters of a family are in the params of its datasets.
        "parents": {other: found for other, found in others.items() if "dataset" in found},
        "stages": stage_outputs(pipelines, root),
        "git_commit": commit,
        "minari_pipe": __version__,
        "packages": packages_of(params) | _tools(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": processor(),
        "cpu": processor_kind(),
        "python": platform.python_version(),
        "targets": [without_credentials(str(t)) for t in params["publish"].get("targets") or []],
        **where(pushed),
    }


def where(pushed: Pushed | None) -> dict[str, Any]:
    """Return the entry of a record about the DVC remote."""
    return {"dvc_remote": {"name": pushed.name, "url": pushed.url} if pushed else None}


def packages_of(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the package versions that the stages of a pipeline used, merged over stages."""
    stages = params.get("packages", {}).values()
    return {name: version for stage in stages for name, version in sorted(stage.items())}


def _tools() -> dict[str, str]:
    return {
        "minari_pipe": __version__,
        **{name: importlib.metadata.version(name) for name in TOOLS},
    }


def stage_outputs(pipelines: list[str], root: Path) -> list[dict[str, Any]]:
    """Return ``pipeline``, ``stage`` and ``outs`` of each stage, in execution order.

    ``outs`` maps the paths of its outputs to the hashes in ``dvc.lock``.
    """
    found = []
    for name in pipelines:
        path = root / "pipelines" / name / "dvc.lock"
        try:
            locked = load_yaml(path.read_text(encoding="utf-8"))["stages"]
            ordered = load_yaml(path.with_name("dvc.yaml").read_text(encoding="utf-8"))
            for stage in ordered["stages"]:
                outs = {out["path"]: out.get("md5") for out in locked[stage].get("outs", [])}
                found.append({"pipeline": name, "stage": stage, "outs": outs})
        except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as exc:
            raise ConfigError(
                f"{path} is missing, damaged or incomplete; run the pipeline again"
            ) from exc
    return found


def find_record(root: Path, dataset_id: str, revision: str | None = None) -> dict[str, Any] | None:
    """Return a version's record from the workspace, else from a revision, ``None`` if neither.

    Raises:
        ConfigError: the record is damaged.
    """
    path = f"releases/{dataset_id}.json"
    text = None
    if (root / path).is_file():
        text = (root / path).read_text(encoding="utf-8", errors="replace")
    elif revision is not None:
        text = text_at(root, revision, path)
    return None if text is None else _parsed(text, path, dataset_id)


def _parsed(text: str, path: str, dataset_id: str) -> dict[str, Any]:
    try:
        found = json_object(text)
        needed = found["pipeline"], found["git_commit"], found["manifest"]["content_sha256"]
        parts = [*found.get("parents", {}).values(), *found.get("stages", [])]
        if (
            found["id"] == dataset_id
            and all(isinstance(value, str) for value in needed)
            and all(isinstance(found.get(key, {}), dict) for key in ("params", "packages"))
            and all(isinstance(part, dict) for part in parts)
            and all({"pipeline", "stage", "outs"} <= s.keys() for s in found.get("stages", []))
        ):
            return found
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ConfigError(f"{path} is damaged; restore it from git")
