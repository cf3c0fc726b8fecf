"""The process that films an episode for stage ``card``: it can import the workspace's modules."""

import sys
from pathlib import Path

from minari_pipe.checks.film import main
from minari_pipe.pipeline.config.import_graph import make_importable

if __name__ == "__main__":
    make_importable(Path.cwd())
    sys.exit(main(*sys.argv[1:]))
