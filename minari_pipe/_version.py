"""Define the version of this package; import nothing."""

#: Version of this package, not of the standard that it writes.
__version__ = "0.1.0"
