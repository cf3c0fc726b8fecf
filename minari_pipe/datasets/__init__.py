"""Datasets as their users see them, and the local root that holds them."""
