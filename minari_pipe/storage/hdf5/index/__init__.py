"""Where the values of each episode lie in an HDF5 file, and reading them from there."""
