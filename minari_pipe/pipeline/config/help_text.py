"""Builds the text of ``--help``: the command line, and the keys of a config with comments."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, is_dataclass
from typing import Any

import yaml
from omegaconf import OmegaConf

from minari_pipe.errors import ConfigError, did_you_mean
from minari_pipe.pipeline.config import schema
from minari_pipe.pipeline.config.conf_files import conf_dir, datasets, families, packaged_conf
from minari_pipe.pipeline.config.typed import hydra_node

HELP = """\
minari_pipe makes, checks, versions and publishes offline RL datasets.

  python -m minari_pipe +dataset=NAME [task=TASK] [key=value ...]

Composes conf/dataset/NAME.yaml, writes pipelines/NAME/{{params,dvc}}.yaml, lets DVC run the stages
that changed, publishes into datasets/, installs into the Minari root and uploads a released
version to publish.targets.

datasets: {datasets}

  key=value            set a key for this run, e.g. collect.n_episodes=10 author.name=Ada
  engine=processes     run blocks in several processes (engine.n_workers=N); engine=ray: on Ray
  -m +dataset=a,b      several datasets, or all tasks of one, in turn; '+dataset=glob(*)' for all
  --cfg job            print the composed config; run nothing
  --dry-run            show which stages would run and why; run and write nothing
  --draft              upload to publish.targets even if the version is not released
  --pull               first pull what others have pushed to the DVC remote
  --trust-module NAME  trust a policy or environment module of your own
  --trust SHA256       allow a checkpoint to be unpickled in full
  --debug              show tracebacks
  --help policy=NAME   show the keys of a policy; --help ref_scores, ...: of a section
  --hydra-help         show Hydra's own flags

other commands, each with --help
  minari-pipe init                   make this folder a workspace
  minari-pipe recipes                list what +dataset can choose, with tasks and needs
  minari-pipe release ID             freeze a published version
  minari-pipe bump NAME              raise the version in conf/dataset/NAME.yaml
  minari-pipe reproduce ID           remake a released version and compare it
  minari-pipe diff ID ID             show what changed between two versions
  minari-pipe list                   list the installed datasets
  minari-pipe show ID                describe a dataset
  minari-pipe download ID            fetch a dataset from a remote
  minari-pipe upload ID              upload a dataset to a remote
  minari-pipe validate ID            check a dataset
  minari-pipe delete ID              remove a dataset
  minari-pipe combine ID ID          combine datasets into one
  minari-pipe split ID               split a dataset into several
  minari-pipe migrate SOURCE ID      convert a dataset of an older format, or a D4RL file
  minari-pipe recover                recover the episodes of an interrupted collection

keys and defaults (??? is required; family: only with a family, {families} or one of
your own; policy: {policies})

{keys}"""

_WIDTH = 96


def help_text(words: list[str]) -> str:
    """Return the text of ``--help``.

    Args:
        words: the topics, ``policy=NAME`` or sections of the config; everything if empty.

    Raises:
        ConfigError: there is no such policy or section.
    """
    if words:
        return "\n\n".join(_about(word) for word in words)
    # Hydra's own help takes twice as long to list its groups.
    keys = OmegaConf.to_yaml(
        OmegaConf.structured(
            hydra_node(schema.Composition)(family=hydra_node(schema.ComposedFamily)())
        )
    )
    indented = "".join(f"  {line}\n" for line in keys.splitlines())
    return HELP.format(
        datasets=", ".join(datasets()),
        families=", ".join(families()),
        policies=", ".join(schema.POLICY_SCHEMAS),
        keys=indented,
    )


def _about(word: str) -> str:
    section, _, name = word.lstrip("+").partition("=")
    if section == "policy" and name:
        return _policy(name)
    sections = {**schema.SECTIONS, "family": schema.ComposedFamily}
    if section not in sections:
        known = ["policy=NAME", *sections]
        raise ConfigError(
            f"no help on {word!r}.{did_you_mean(word, known)} Known: {', '.join(known)}"
        )
    return "\n".join([f"{section}:", *_keys(sections[section], "  ")])


def _policy(name: str) -> str:
    schemas = schema.POLICY_SCHEMAS
    files = [folder / "policy" / f"{name}.yaml" for folder in (conf_dir(), packaged_conf())]
    file = next((file for file in files if name.isidentifier() and file.is_file()), None)
    if name not in schemas:
        if file is not None:  # the user's own
            return file.read_text(encoding="utf-8").rstrip()
        raise ConfigError(
            f"no policy {name!r}.{did_you_mean(name, schemas)} Known: {', '.join(schemas)}"
        )
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None else []
    comments = [line for line in lines if line.startswith("#")]
    head = [*comments, f"# In the defaults list: - /policy: {name}", "policy:"]
    return "\n".join([*head, *_keys(schemas[name], "  ")])


def _keys(node: type, indent: str) -> list[str]:
    """Return the keys of a section as lines of YAML, each below its comment."""
    lines: list[str] = []
    comments = _comments(node)
    for field in fields(node):
        if field.name == "_target_":
            continue
        default = field.default if field.default_factory is NO_DEFAULT else field.default_factory()
        if comment := comments.get(field.name):
            width = _WIDTH - len(indent)
            lines += [f"{indent}# {line}" for line in textwrap.wrap(comment, width)]
        if is_dataclass(default):
            lines += [f"{indent}{field.name}:", *_keys(type(default), indent + "  ")]
        else:
            lines.append(f"{indent}{field.name}: {_shown(default)}")
        if field.name == "train":
            lines += [f"{indent}# train:", *_keys(schema.Training, f"{indent}#   ")]
    return lines


def _shown(default: Any) -> str:
    return yaml.safe_dump(default, default_flow_style=True).removesuffix("...\n").strip()


def _comments(node: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, by field."""
    (tree,) = ast.parse(inspect.getsource(node)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name)
            text = ast.literal_eval(below.value)
            found[field.target.id] = " ".join(text.replace("``", "").split())
    return found
