"""Released versions: their record, the next version, and how one is made again."""
