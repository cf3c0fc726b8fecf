"""From the command line to checked parameters and ``dvc.yaml``."""
