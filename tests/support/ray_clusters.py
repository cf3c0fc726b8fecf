"""Ray clusters of this machine, whose nodes listen on the loopback interface only."""

from __future__ import annotations

import functools
import os
import secrets
from typing import Any

# One for this process, whichever home a test has: Ray reads it once.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@functools.cache
def loopback_cluster() -> Any:
    """The class of Ray's own test clusters."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    ray_constants.ENABLE_RAY_CLUSTER = False
    return Cluster


class two_nodes:  # noqa: N801 - reads as a function
    """A Ray cluster of two nodes with one processor each, or where only the second works."""

    def __init__(self, *, head_works: bool = True) -> None:
        self._head_cpus = int(head_works)

    def __enter__(self) -> Any:
        node = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
        head = {**node, "num_cpus": self._head_cpus, "include_dashboard": False}
        self.cluster = loopback_cluster()(initialize_head=True, head_node_args=head)
        self.cluster.add_node(**node)
        return self.cluster

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()
