"""Implements ``minari-pipe bump NAME``: sets the next free version in a dataset's config."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import yaml

from minari_pipe.core.dataset_id import parse_dataset_id
from minari_pipe.errors import ConfigError, MinariPipeError, did_you_mean
from minari_pipe.pipeline.config import conf_files, hydra_compose
from minari_pipe.pipeline.published import next_version
from minari_pipe.pipeline.workspace import PIPELINE_NAME, write_atomic
from minari_pipe.pipeline.workspace_links import open_root


class Bumped(NamedTuple):
    """The edited file, with the old and the new id."""

    path: Path
    """The edited file."""
    before: str
    """The id of the dataset, or of the first."""
    after: str
    n: int
    """How many datasets the file makes."""


def bump(name: str) -> Bumped:
    """Raise the version of ``dataset.id`` in ``conf/dataset/NAME.yaml``, and change nothing else.

    The datasets of a file with tasks share one version: the next that is free for all of them.

    Raises:
        ConfigError: the workspace has no such file, the file does not contain the full id, or it
            does not compose.
    """
    root = open_root()
    path = root / "conf" / "dataset" / f"{name}.yaml"
    if not PIPELINE_NAME.fullmatch(name) or not path.is_file():
        raise ConfigError(_no_file(name, root))
    file = path.relative_to(root)
    ids = _ids(name)
    text = path.read_bytes().decode()  # keeps line endings
    start, end = _place_of_id(text, str(file), ids[0])
    version = parse_dataset_id(ids[0])[2]
    if version is None:
        raise ConfigError(f"{file}: dataset.id {ids[0]!r} has no version; add one, such as -v0")
    new = f"-v{parse_dataset_id(next_version(root, *ids))[2]}"
    written, wanted = text[start:end], [_with(one, version, new) for one in ids]
    if not _with(written, version, new):
        raise ConfigError(
            f"{file}: dataset.id {ids[0]!r} is built from other values; raise the version where it "
            "is set"
        )
    write_atomic(path, text[:start] + _with(written, version, new) + text[end:])
    try:
        if (found := _ids(name)) != wanted:
            raise ConfigError(
                f"{file}: after setting {wanted[0]!r}, dataset.id is {found[0]!r}; edit the file"
            )
    except MinariPipeError:
        write_atomic(path, text)
        raise
    return Bumped(file, ids[0], wanted[0], len(ids))


def _ids(name: str) -> list[str]:
    """Return the ids of the datasets that a file makes: one, or one for each task."""
    return [one.config.dataset.id for one in hydra_compose.every_task(name)]


def _with(text: str, version: int, new: str) -> str:
    """Return a text with another version; empty if the version does not stand in it."""
    before, found, after = text.rpartition(f"-v{version}")
    return before + new + after if found else ""


def _no_file(name: str, root: Path) -> str:
    known = sorted(p.stem for p in (root / "conf" / "dataset").glob("*.yaml"))
    if name in conf_files.datasets():
        return (
            f"{name} comes with the package; to change it, copy its file into {root}/conf/dataset/"
        )
    return (
        f"no file conf/dataset/{name}.yaml in {root}.{did_you_mean(name, known)} Known: "
        f"{', '.join(known) or 'none'}"
    )


def _place_of_id(text: str, file: str, composed: str) -> tuple[int, int]:
    """Return start and end of the value of ``dataset.id`` in the text of a config."""
    document = yaml.compose(text, Loader=yaml.SafeLoader)
    section = _value(document, "dataset")
    found = _value(section[1], "id") if section else None
    if found is None:
        raise ConfigError(
            f"{file} does not set dataset.id itself: {composed!r} comes from a file in its "
            f"defaults list; raise the version there"
        )
    key, value = found
    start, end = value.start_mark.index, value.end_mark.index
    return (start, end) if start >= key.end_mark.index else (end, end)  # an alias


def _value(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the nodes of a key and its value in a mapping, the last if there are several."""
    if not isinstance(node, yaml.MappingNode):
        return None
    found = [(k, v) for k, v in node.value if k.value == key]
    return found[-1] if found else None
