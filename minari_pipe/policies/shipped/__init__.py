"""Checkpoints that come with the package, each beside its provenance and the script that made it.

Configs name them ``shipped:FILE``. They are loaded like a stranger's: their weights only.
"""
