"""What the tests of the remotes share: the servers, and processes that use them."""

from tests.support.remote_places import killable, servers

__all__ = ["killable", "servers"]
