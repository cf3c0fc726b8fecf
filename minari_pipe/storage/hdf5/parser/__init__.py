"""Read HDF5 files without libhdf5, which crashes or hangs on damaged files.

::

    checked   opens any file; libhdf5 reads what the reader does not support, after the probe
    ├─ probe  the process that tests libhdf5 on the file
    └─ reader supports files as Minari and this package write them
       ├─ headers, messages, trees, source    the structures of the format
       └─ nodes                               the interface of groups and datasets
"""
