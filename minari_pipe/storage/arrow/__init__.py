"""Implement the formats arrow and parquet."""
