"""Safe files: written atomically, never reached by a symlink, locked, checksummed, fetched."""
