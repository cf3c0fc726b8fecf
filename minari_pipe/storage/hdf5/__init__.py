"""The HDF5 format: the storage, the file it reads and writes, and the values in it."""
