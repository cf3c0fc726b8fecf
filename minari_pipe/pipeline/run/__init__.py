"""Run a pipeline: write its files, reproduce it with DVC, install and upload the result."""
