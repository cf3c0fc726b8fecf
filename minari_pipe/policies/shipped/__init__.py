"""Checkpoints that come with the package; the provenance beside each names its script.

Configs name them ``shipped:FILE``. They are loaded like a stranger's: their weights only.
"""
