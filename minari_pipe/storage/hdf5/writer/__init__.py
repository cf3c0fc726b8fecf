"""Writes HDF5 files of episodes without libhdf5."""
