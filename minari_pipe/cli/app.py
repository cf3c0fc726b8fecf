"""Define the command line ``minari-pipe``: its commands, and their errors in one line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Annotated, Any

import typer

from minari_pipe._version import __version__
from minari_pipe.cli.cards import card, report
from minari_pipe.cli.datasets import delete, list_datasets, show
from minari_pipe.cli.edits import combine, compact, migrate, recover, split
from minari_pipe.cli.lineage import diff, reproduce
from minari_pipe.cli.recipes import recipes
from minari_pipe.cli.site import site
from minari_pipe.cli.transfers import download, upload
from minari_pipe.cli.validation import validate
from minari_pipe.cli.workspace import bump, init, release
from minari_pipe.core.messages import each_warning_once, message_of, print_line
from minari_pipe.core.metadata import MINARI_VERSION
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.import_graph import make_importable
from minari_pipe.pipeline.workspace import find_root

#: Environment variable that enables tracebacks, in pipeline runs as well.
_DEBUG = "HYDRA_FULL_ERROR"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"minari_pipe {__version__}, Minari standard {MINARI_VERSION}")
        raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-v", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Make, check, version and publish offline RL datasets in the Minari standard.

    To run a pipeline: minari-pipe +dataset=NAME
    """
    if debug:
        os.environ[_DEBUG] = "1"


def _in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that an exception is printed in one line and exits with code 1."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            with each_warning_once(partial(print_line, "warning")):
                warnings.simplefilter("always")
                with suppress(ConfigError):  # not in a workspace
                    make_importable(find_root())
                command(*args, **kwargs)
                if sys.stdout is not None:
                    sys.stdout.flush()  # raise write errors here
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:  # e.g. `| head` has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except Exception as exc:
            if os.environ.get(_DEBUG) == "1":
                raise
            print_line("error", message_of(exc, "--debug before the command"))
            raise typer.Exit(1) from exc

    return wrapped


_COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_datasets,
    "show": show,
    "download": download,
    "upload": upload,
    "validate": validate,
    "card": card,
    "report": report,
    "site": site,
    "delete": delete,
    "combine": combine,
    "split": split,
    "compact": compact,
    "migrate": migrate,
    "recover": recover,
    "init": init,
    "recipes": recipes,
    "release": release,
    "bump": bump,
    "diff": diff,
    "reproduce": reproduce,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_in_one_line(_command))
