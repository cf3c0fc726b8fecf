"""Stage ``catalog`` of the root ``dvc.yaml``: list the published datasets of the workspace.

It depends on the folder ``catalog/``, into which every ``publish`` stage writes, so that a plain
``dvc repro`` reaches all pipelines without listing them.
"""

from __future__ import annotations

from pathlib import Path

from minari_pipe.core.messages import escaped_stdout
from minari_pipe.pipeline.workspace import read_json


def main() -> None:
    """Print one line per published dataset."""
    entries = [read_json(path) for path in sorted(Path("catalog").rglob("*.json"))]
    width = max((len(e["id"]) for e in entries), default=0)
    for entry in entries:
        print(
            f"{entry['id']:<{width}}  {entry['total_episodes']:>7} episodes  "
            f"{entry['total_steps']:>10} steps  {entry['content_sha256'][:12]}"
        )


if __name__ == "__main__":
    with escaped_stdout():
        main()
