"""Runs the blocks of a stage on an engine, and keeps what they made."""
