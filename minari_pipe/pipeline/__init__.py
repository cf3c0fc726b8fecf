"""The declarative pipeline: Hydra is the only author of configuration, DVC the only executor.

    conf/  --compose-->  pipelines/NAME/{params,dvc}.yaml  --dvc repro-->  pipelines/NAME/dvc.lock

Only this folder imports hydra, omegaconf or dvc. Each folder imports those before it:

``config``     the command line to checked parameters, and these to ``dvc.yaml``
``execution``  the blocks of a stage, on an engine
``stages``     what DVC runs, one command each
``run``        one run: parameters into files, DVC over them, the result into the Minari root
``releases``   released versions: their record, the next one, and how one is made again
"""

import os
import sys


def leave_folder() -> None:
    """Take the current folder off the import path, where ``python -m`` puts it first.

    A workspace may come from a stranger. A checkout's folder stays: the package comes from there.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != home:
        del sys.path[0]


def _record_imports() -> None:
    # Not before the folder is left: it may have a json.py.
    from minari_pipe.pipeline.source_imports import ROOT_VARIABLE, record_imports

    record_imports(os.environ.get(ROOT_VARIABLE) or os.getcwd())


if sys.argv[:1] == ["-m"]:  # `python -m minari_pipe.pipeline...` imports this before its module
    leave_folder()
    _record_imports()
elif "MINARI_PIPE_STAGE_ROOT" in os.environ:  # a worker of a stage
    _record_imports()
