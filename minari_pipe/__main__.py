"""``python -m minari_pipe +dataset=NAME [key=value ...]``, and the commands of ``minari-pipe``."""

from __future__ import annotations

import gc
import os
import sys

if __name__ == "__main__":
    from minari_pipe.pipeline import leave_folder

    leave_folder()  # before anything else is imported

from minari_pipe.errors import did_you_mean

COMMANDS = (
    "list",
    "show",
    "download",
    "upload",
    "validate",
    "delete",
    "combine",
    "split",
    "migrate",
    "recover",
    "init",
    "release",
    "bump",
    "diff",
    "reproduce",
    "--install-completion",
    "--show-completion",
)
"""Words that start another command than a pipeline's run."""

COMPLETION = "_MINARI_PIPE_COMPLETE"
"""Set by the shell that asks how a command line could go on."""


def main() -> None:
    """Run the command line; a mistake of the user's is one line and exit code 1."""
    words = [word for word in sys.argv[1:] if word != "--debug"]
    if COMPLETION in os.environ or (words and words[0] in COMMANDS):
        try:
            from minari_pipe.cli import app

            app(prog_name="minari-pipe")  # also under python -m, whose name no shell completes
        except KeyboardInterrupt:  # before typer, which says the same, has begun
            sys.exit("Aborted!")
    elif words and words[0].replace("-", "").isalpha() and not words[0].startswith("-"):
        near = did_you_mean(words[0], COMMANDS)
        sys.exit(f"error: no command {words[0]!r}.{near} A run takes +dataset=NAME; see --help")
    else:
        from minari_pipe.pipeline.signals import stoppable

        sys.exit(stoppable(_run))


def _run() -> int:
    from minari_pipe.pipeline.run.command import run

    # Imports and Hydra make many objects and drop few: collecting them is a tenth of the time of
    # a run on which nothing happens.
    gc.set_threshold(100_000)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # lines of the stages arrive when written
    return run(sys.argv[1:])


if __name__ == "__main__":
    main()
