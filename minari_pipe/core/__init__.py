"""The field's vocabulary: episodes, spaces, ids, metadata, environments, trust; and safe files."""
