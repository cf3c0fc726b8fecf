"""Implements the stages, one module each: a typed function and the command that calls it."""

import os
import signal
import sys

# `python -m` imports this before the stage module, whose imports take a second. Until the stage
# installs its own handlers (`run_stage`), a signal must end it without a traceback. The default
# action would make the shell print "Terminated".
if sys.argv[:1] == ["-m"]:
    for _signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(_signum) is not signal.SIG_IGN:
            signal.signal(_signum, lambda signum, _frame: os._exit(128 + signum))
