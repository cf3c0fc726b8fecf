"""The declarative pipeline: Hydra composes all configuration, DVC executes all stages.

    conf/  --compose-->  pipelines/NAME/{params,dvc}.yaml  --dvc repro-->  pipelines/NAME/dvc.lock

Only this folder imports hydra, omegaconf or dvc. A subpackage imports only those above it:

``config``     turns the command line into checked parameters, and those into ``dvc.yaml``
``execution``  runs the blocks of a stage on an engine
``stages``     holds the commands that DVC runs, one module per stage
``run``        performs one run: writes the parameters, runs DVC, installs the result
``releases``   records, bumps, compares and reproduces released versions
"""

import os
import sys


def leave_folder() -> None:
    """Remove the current folder from the import path, where ``python -m`` puts it first.

    The workspace may be untrusted. The folder of a checkout stays, as it holds the package.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != home:
        del sys.path[0]


def _record_imports() -> None:
    # Import only after `leave_folder`: the current folder may hold a json.py.
    from minari_pipe.pipeline.source_imports import ROOT_VARIABLE, record_imports

    record_imports(os.environ.get(ROOT_VARIABLE) or os.getcwd())


if sys.argv[:1] == ["-m"]:  # `python -m minari_pipe.pipeline...` imports this before its module
    leave_folder()
    _record_imports()
elif "MINARI_PIPE_STAGE_ROOT" in os.environ:  # a worker process of a stage
    _record_imports()
