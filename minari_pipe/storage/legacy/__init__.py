"""Layouts that came before the standard's present one: read in place, never written.

A layout is a module here and one entry of the registry in :mod:`minari_pipe.storage.formats`.
It recognises its data by the content, since none of them has a ``metadata.json``.
:func:`minari_pipe.datasets.migrate.migrate_dataset` writes what they hold in today's layout.
"""
