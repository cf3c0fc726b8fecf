"""Reading HDF5 files without libhdf5, which damaged files crash or hang.

::

    checked   any file: what only libhdf5 understands is read by it, once another process has
    ├─ probe  that process
    └─ reader files as Minari and this package write them
       ├─ headers, messages, trees, source    the structures of the format
       └─ nodes                               the interface of groups and datasets
"""
