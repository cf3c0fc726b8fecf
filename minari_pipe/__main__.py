"""``python -m minari_pipe +dataset=NAME [key=value ...]``, and the commands of ``minari-pipe``."""

from __future__ import annotations

import gc
import os
import sys

if __name__ == "__main__":
    from minari_pipe.pipeline import leave_folder

    leave_folder()  # before anything else is imported

COMMANDS = ("init", "release")
"""Words that start another command than a pipeline's run."""


def main() -> None:
    """Run the command line; a mistake of the user's is one line and exit code 1."""
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        from minari_pipe.cli import app

        app()
    else:
        from minari_pipe.pipeline.stopping import stoppable

        sys.exit(stoppable(_run))


def _run() -> int:
    from minari_pipe.pipeline.command import run

    # Imports and Hydra make many objects and drop few: collecting them is a tenth of the time of
    # a run on which nothing happens.
    gc.set_threshold(100_000)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # lines of the stages arrive when written
    return run(sys.argv[1:])


if __name__ == "__main__":
    main()
