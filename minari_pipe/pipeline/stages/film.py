"""The process that films an episode: it can import the modules of the workspace around it."""

import sys
from contextlib import suppress

from minari_pipe.checks.film import main
from minari_pipe.errors import ConfigError
from minari_pipe.pipeline.config.import_graph import make_importable
from minari_pipe.pipeline.workspace import find_root

if __name__ == "__main__":
    with suppress(ConfigError):  # not in a workspace
        make_importable(find_root())
    sys.exit(main(*sys.argv[1:]))
