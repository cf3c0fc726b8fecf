"""Turns the command line into checked parameters, and those into ``dvc.yaml``."""
