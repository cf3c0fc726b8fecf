"""The version of this package, which imports nothing."""

__version__ = "0.1.0"
"""Version of this package; the version of the standard that it writes is another one."""
