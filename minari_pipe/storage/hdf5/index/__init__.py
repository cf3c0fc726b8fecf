"""Index where the values of each episode lie in an HDF5 file, and read them from there."""
