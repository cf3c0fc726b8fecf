"""A training that is not done: a published checkpoint stands for it, where a version is made again.

The variable is set for one run in a workspace of its own, by ``minari-pipe reproduce`` alone: what
a workspace holds cannot set it.
"""

from __future__ import annotations

import os
from pathlib import Path

from minari_pipe.core.files.swap import copy_tree
from minari_pipe.pipeline.execution.stage import StageRun

GIVEN_VARIABLE = "MINARI_PIPE_GIVEN_TRAININGS"
"""Names a folder with what training stages would write, below ``PIPELINE/STAGE``."""


def take_given(run: StageRun) -> bool:
    """Take over what a training stage would write, if it is given; whether it was."""
    folder = os.environ.get(GIVEN_VARIABLE)
    given = Path(folder, run.name, run.stage) if folder else None
    if given is None or not given.is_dir():
        return False
    with run.output(run.stage) as out:
        copy_tree(given, out)
    run.say("the published checkpoint stands for the training")
    return True
