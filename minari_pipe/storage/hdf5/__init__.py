"""Implement the HDF5 format: the storage, the file that it reads and writes, and its values."""
