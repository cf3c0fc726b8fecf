"""What the tests of the remotes share: the servers."""

from tests.support.remote_places import servers

__all__ = ["servers"]
