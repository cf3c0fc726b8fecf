"""Write HDF5 files of episodes without libhdf5."""
