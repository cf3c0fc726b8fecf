"""The commands of a workspace: ``init``, ``release`` and ``bump``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from minari_pipe.pipeline.releases.bump import bump as raise_version
from minari_pipe.pipeline.releases.release import release as freeze
from minari_pipe.pipeline.run.init import init as make_workspace


def init() -> None:
    """Make this folder a workspace: set up DVC, its settings, and folders for configs."""
    for line in make_workspace():
        print(line)


def release(
    dataset_id: str,
    no_push: Annotated[
        bool, typer.Option("--no-push", help="Do not push the outputs to the DVC remote.")
    ] = False,
) -> None:
    """Freeze a published version: record it in releases/; it is immutable from then on.

    Its outputs are pushed to the DVC remote first.
    """
    record = freeze(dataset_id, pushes=not no_push)
    found = json.loads(record.read_text(encoding="utf-8"))
    if remote := found["dvc_remote"]:
        print(f"{dataset_id}: its outputs are on the DVC remote {remote['name']} ({remote['url']})")
    print(f"{dataset_id} is released: {record}")
    print("To tag it:")
    print(f"  git add {record.relative_to(record.parents[len(dataset_id.split('/'))])}")
    print(f"  git commit -m 'Release {dataset_id}' && git tag {dataset_id}")


def bump(
    name: Annotated[str, typer.Argument(help="NAME in conf/dataset/NAME.yaml.")],
) -> None:
    """Raise the version in a dataset's config to the next free one."""
    done = raise_version(name)
    others = f", and of {done.n - 1} more tasks alike" if done.n > 1 else ""
    print(f"{done.path}: dataset.id is {done.after}, was {done.before}{others}")
    words = f"-m +dataset={name}" if done.n > 1 else f"+dataset={name}"
    print(
        f"next: run python -m minari_pipe {words}, commit, then run minari-pipe release "
        f"{done.after}"
    )
