"""Hold the checkpoints of the package; the provenance beside each names the script that made it.

Configs name them ``shipped:FILE``. As with untrusted files, only their weights are loaded.
"""
