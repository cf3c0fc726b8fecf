"""The commands of a workspace: ``init`` and ``release``."""

from __future__ import annotations

from minari_pipe.pipeline.init import init as make_workspace
from minari_pipe.pipeline.release import release as freeze


def init() -> None:
    """Make this folder a workspace: DVC, its settings, and a place for configs."""
    for line in make_workspace():
        print(line)


def release(dataset_id: str) -> None:
    """Freeze a published version: it is recorded in releases/ and immutable from then on."""
    record = freeze(dataset_id)
    print(f"{dataset_id} is released: {record}")
    print("To tag it:")
    print(f"  git add {record.relative_to(record.parents[len(dataset_id.split('/'))])}")
    print(f"  git commit -m 'Release {dataset_id}' && git tag {dataset_id}")
