"""The stages, one module each: a plain typed function, and the few lines that make it a command."""

import os
import signal
import sys

# `python -m` imports this before the stage, which then imports for a second. Until the stage has
# handlers of its own (`run_stage`), a signal must end it without a traceback of Python's and, as
# it would by the signal itself, without a "Terminated" of the shell's.
if sys.argv[:1] == ["-m"]:
    for _signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(_signum) is not signal.SIG_IGN:
            signal.signal(_signum, lambda signum, _frame: os._exit(128 + signum))
