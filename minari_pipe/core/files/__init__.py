"""Safe files: written whole or not at all, reached by no link, locked, checksummed, fetched."""
