"""Run the command line of a pipeline: own flags, Hydra overrides, one-line errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, NoReturn

from minari_pipe._version import __version__
from minari_pipe.core.messages import message_of, print_line
from minari_pipe.core.trust import add_trust
from minari_pipe.errors import ConfigError, ReportedError

if TYPE_CHECKING:
    from minari_pipe.pipeline.config.schema import Config


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def run(argv: list[str]) -> int:
    """Run ``argv`` and return the exit code.

    Raises:
        Stopped: a signal asked this process to stop.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--trust-module", action="append", default=[])
    parser.add_argument("--trust", action="append", default=[])
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--pull", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    debug = "--debug" in argv or os.environ.get("HYDRA_FULL_ERROR") == "1"
    return _in_one_line(lambda: _run(*parser.parse_known_args(argv), debug=debug), debug=debug)


def _run(flags: argparse.Namespace, rest: list[str], *, debug: bool) -> int:
    # The stages are separate processes, which get the user's trust through the environment.
    add_trust(flags.trust_module, flags.trust)
    if flags.version:
        print(f"minari_pipe {__version__}")
        return 0
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting
    from minari_pipe.pipeline.config import hydra_compose

    if flags.help:
        from minari_pipe.pipeline.config.help_text import help_text

        print(help_text(rest))
        return 0
    if flags.dry_run and flags.pull:
        raise ConfigError("--dry-run fetches nothing, so --pull has no effect; leave out --pull")
    codes: list[tuple[int, str]] = []

    def job(name: str, config: Config, overrides: list[str]) -> None:
        code = _in_one_line(lambda: _job(name, config, overrides, flags, debug), debug=debug)
        codes.append((code, name))

    hydra_compose.run(rest, job, launches=not flags.dry_run)
    failed = [name for code, name in codes if code]
    if failed and len(codes) > 1:
        print_line("error", f"{len(failed)} of {len(codes)} failed: {', '.join(failed)}")
    return max([0, *(code for code, _ in codes)])


def _in_one_line(work: Callable[[], int], *, debug: bool) -> int:
    """Return the exit code of ``work``; print an exception in one line and return 1."""
    try:
        return work()
    except BrokenPipeError:  # e.g. `| head` has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as exc:  # Hydra exits after e.g. --cfg
        return exc.code if isinstance(exc.code, int) else 1
    except Exception as exc:
        if debug:
            raise
        if not isinstance(exc, ReportedError):
            from minari_pipe.pipeline.config.oc_env import without_values

            text = message_of(exc)
            if isinstance(exc, RecursionError):
                text = "the config is nested too deeply, or refers to itself; --debug shows where"
            print_line("error", without_values(text))
        return 1


def _job(
    name: str,
    config: Config,
    overrides: list[str],
    flags: argparse.Namespace,
    debug: bool,
) -> int:
    # Import modules that need DVC only if there is something to run: --help and --cfg stay fast.
    from minari_pipe.pipeline.run.driver import run_pipeline
    from minari_pipe.pipeline.run.dry_run import DryRun
    from minari_pipe.pipeline.run.pull import Pull

    os.environ["HYDRA_FULL_ERROR"] = "1" if debug else "0"
    pull = Pull() if flags.pull else None
    with DryRun() if flags.dry_run else nullcontext() as dry_run:
        run_pipeline(name, config, overrides, draft=flags.draft, pull=pull, dry_run=dry_run)
    return 0
