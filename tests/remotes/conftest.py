"""What the tests of the remotes share: the servers, processes that use them, a root."""

from tests.support.remote_places import killable, made, root, servers

__all__ = ["killable", "made", "root", "servers"]
