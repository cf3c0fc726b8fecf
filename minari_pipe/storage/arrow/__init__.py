"""The formats arrow and parquet."""
