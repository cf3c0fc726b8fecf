"""Run ``python -m minari_pipe +dataset=NAME [key=value ...]`` or a command of ``minari-pipe``."""

from __future__ import annotations

import gc
import os
import sys

if __name__ == "__main__":
    from minari_pipe.pipeline import leave_folder

    leave_folder()  # before anything else is imported

from minari_pipe.core.messages import escaped_stdout
from minari_pipe.errors import did_you_mean

#: First words of a command line that is not a pipeline's run.
COMMANDS = (
    "list",
    "show",
    "download",
    "upload",
    "validate",
    "card",
    "report",
    "site",
    "delete",
    "combine",
    "split",
    "compact",
    "migrate",
    "recover",
    "init",
    "recipes",
    "release",
    "bump",
    "diff",
    "reproduce",
    "--install-completion",
    "--show-completion",
)

#: Set by the shell when it asks for completions of a command line.
COMPLETION = "_MINARI_PIPE_COMPLETE"


def main() -> None:
    """Run the command line; a user's mistake prints one line and exits with code 1."""
    with escaped_stdout():
        _main()


def _main() -> None:
    words = [word for word in sys.argv[1:] if word != "--debug"]
    if COMPLETION in os.environ or (words and words[0] in COMMANDS):
        try:
            from minari_pipe.cli import app

            app(prog_name="minari-pipe")  # the name that shells complete, also for python -m
        except KeyboardInterrupt:  # before typer starts, which prints the same
            sys.exit("Aborted!")
    elif words and words[0].replace("-", "").isalpha() and not words[0].startswith("-"):
        near = did_you_mean(words[0], COMMANDS)
        sys.exit(
            f"error: no command {words[0]!r}.{near} To run a pipeline: +dataset=NAME; see --help"
        )
    else:
        from minari_pipe.pipeline.signals import stoppable

        sys.exit(stoppable(_run))


def _run() -> int:
    from minari_pipe.pipeline.run.command import run

    # Imports and Hydra create many objects and free few: garbage collection takes a tenth of the
    # time of a run without work.
    gc.set_threshold(100_000)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # show lines of the stages as they are written
    return run(sys.argv[1:])


if __name__ == "__main__":
    main()
