"""``minari-pipe``: the commands beside a run. Only this and the pipeline print anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from minari_pipe.errors import MinariPipeError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)


@app.callback()
def _group() -> None:
    """Makes, checks, versions and publishes offline RL datasets.

    A pipeline runs with: minari-pipe +dataset=NAME
    """


@app.command()
def init() -> None:
    """Make this folder a workspace: DVC, its settings, and a place for configs."""
    from minari_pipe.pipeline.init import init as make

    with _one_line():
        for line in make():
            print(line)


@app.command()
def release(dataset_id: str) -> None:
    """Freeze a published version: it is recorded in releases/ and immutable from then on."""
    from minari_pipe.pipeline.release import release as freeze

    with _one_line():
        record = freeze(dataset_id)
        print(f"{dataset_id} is released: {record}")
        print("To tag it:")
        print(f"  git add {record.relative_to(record.parents[len(dataset_id.split('/'))])}")
        print(f"  git commit -m 'Release {dataset_id}' && git tag {dataset_id}")


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except (MinariPipeError, OSError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        raise typer.Exit(1) from exc
