"""Run the blocks of a stage on an engine and keep their results."""
