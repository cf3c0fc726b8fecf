"""Let a stage make the environments that the config names."""

from __future__ import annotations

from pathlib import Path

from minari_pipe.core.simulator_models import check_arguments
from minari_pipe.core.trust import name_places
from minari_pipe.pipeline.config.import_graph import make_importable
from minari_pipe.pipeline.config.policy_refs import made_environments, named_places, source_file
from minari_pipe.pipeline.execution.stage import StageRun


def allow_named(run: StageRun) -> list[Path]:
    """Allow the modules and files that the config names, for its environments; return the files.

    Raises:
        TrustError: a model that it names would read other files.
    """
    make_importable(run.root)
    # What the config names may be read, but no model that names other files.
    for env in made_environments(run.params, run.stage):
        check_arguments(str(env.id).rpartition(":")[0], [env.kwargs, env.all_wrappers])
    places = [source_file(path, run.root) for path in named_places(run.params, run.stage, run.root)]
    name_places(places)
    return places
