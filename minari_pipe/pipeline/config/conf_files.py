"""Finds the config files in ``conf/`` and lists the choices."""

from __future__ import annotations

from pathlib import Path

from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.workspace import PACKAGE, find_root
from minari_pipe.pipeline.workspace_links import check_folder


def packaged_conf() -> Path:
    """Return the packaged configs: inside the package in a wheel, beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def conf_dir() -> Path:
    """Return ``conf/`` of the workspace, or the packaged one if the workspace has none."""
    try:
        own = find_root() / "conf"
    except ConfigError:  # --help works outside a workspace
        return packaged_conf()
    check_folder(own, own.parent)
    return own if own.is_dir() else packaged_conf()


#: Folders of ``conf/`` from which a file is chosen.
GROUPS = ("dataset", "engine", "family", "policy")


def datasets() -> list[str]:
    """Return the names of the datasets that can be chosen."""
    found = {p.stem for d in {conf_dir(), packaged_conf()} for p in (d / "dataset").glob("*.yaml")}
    return sorted(found)


def dataset_file(name: str) -> Path | None:
    """Return ``conf/dataset/NAME.yaml`` of the workspace, or the packaged one, if there is one."""
    files = (folder / "dataset" / f"{name}.yaml" for folder in (conf_dir(), packaged_conf()))
    return next((file for file in files if file.is_file()), None)


def families() -> list[str]:
    """Return the names of the families that a dataset can belong to."""
    found = {p.stem for d in {conf_dir(), packaged_conf()} for p in (d / "family").glob("*.yaml")}
    return sorted(found)
