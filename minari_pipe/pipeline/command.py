"""The command line of a pipeline's run: our own flags, Hydra for the rest, one line per mistake."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from minari_pipe.errors import MinariPipeError
from minari_pipe.trust import MODULES_VARIABLE, SHA256_VARIABLE


def run(argv: list[str]) -> int:
    """Run ``argv`` and return the exit code.

    Raises:
        Stopped: a signal told this process to stop.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--trust-module", action="append", default=[])
    parser.add_argument("--trust", action="append", default=[])
    parser.add_argument("--debug", action="store_true")
    flags, rest = parser.parse_known_args(argv)
    # The stages are processes of their own; the environment carries the user's word to them.
    _extend(MODULES_VARIABLE, flags.trust_module)
    _extend(SHA256_VARIABLE, flags.trust)
    debug = flags.debug or os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting
    from minari_pipe.pipeline import compose

    if {"-h", "--help"} & set(rest):
        print(compose.help_text())
        return 0
    try:
        compose.run(rest, lambda *job: _job(*job, debug=debug))
    except MinariPipeError as exc:
        if debug:
            raise
        if not getattr(exc, "is_told", False):
            print(f"error: {exc}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as exc:
        if debug:
            raise
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except Exception as exc:
        if debug:
            raise
        text = " ".join(f"{type(exc).__name__}: {exc}".split())
        print(f"error: {text}; --debug shows where", file=sys.stderr)
        return 1
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 1
    return 0


def _job(name: str, config: dict[str, Any], overrides: list[str], *, debug: bool) -> None:
    # Imports DVC's neighbours only once there is something to run: --help and --cfg stay fast.
    from minari_pipe.pipeline.driver import run_pipeline

    os.environ["HYDRA_FULL_ERROR"] = "1" if debug else "0"
    run_pipeline(name, config, overrides)


def _extend(variable: str, values: list[str]) -> None:
    if values:
        os.environ[variable] = ",".join([*filter(None, [os.environ.get(variable)]), *values])
