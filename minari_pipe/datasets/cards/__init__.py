"""Describe a dataset to people: the files in ``card/``, made from its data and metadata alone."""
