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
    after: str


def bump(name: str) -> Bumped:
    """Raise the version of ``dataset.id`` in ``conf/dataset/NAME.yaml``, and change nothing else.

    Raises:
        ConfigError: the workspace has no such file, the file does not contain the full id, or it
            does not compose.
    """
    root = open_root()
    path = root / "conf" / "dataset" / f"{name}.yaml"
    if not PIPELINE_NAME.fullmatch(name) or not path.is_file():
        raise ConfigError(_no_file(name, root))
    file = path.relative_to(root)
    composed = str(hydra_compose.recompose([f"+dataset={name}"]).config.dataset.id)
    text = path.read_bytes().decode()  # keeps line endings
    start, end = _place_of_id(text, str(file), composed)
    if parse_dataset_id(composed)[2] is None:
        raise ConfigError(f"{file}: dataset.id {composed!r} has no version; add one, such as -v0")
    new_id = next_version(root, composed)
    edited = text[:start] + text[start:end].replace(composed, new_id, 1) + text[end:]
    write_atomic(path, edited)
    try:
        found = hydra_compose.recompose([f"+dataset={name}"]).config.dataset.id
        if found != new_id:
            raise ConfigError(
                f"{file}: after setting {new_id!r}, dataset.id is {found!r}; edit the file"
            )
    except MinariPipeError:
        write_atomic(path, text)
        raise
    return Bumped(file, composed, new_id)


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
    if start < key.end_mark.index or composed not in text[start:end]:
        raise ConfigError(
            f"{file}: dataset.id {composed!r} is built from other values; raise the version where "
            f"it is set"
        )
    return start, end


def _value(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the nodes of a key and its value in a mapping, the last if there are several."""
    if not isinstance(node, yaml.MappingNode):
        return None
    found = [(k, v) for k, v in node.value if k.value == key]
    return found[-1] if found else None
