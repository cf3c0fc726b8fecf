"""Read layouts that predate the standard's current one, in place and without writing them.

Each layout is a module here and an entry of the registry in :mod:`minari_pipe.storage.formats`.
It recognizes its data by the content, since none of them has a ``metadata.json``.
:func:`minari_pipe.datasets.migrate.migrate_dataset` converts such data to today's layout.
"""
