"""Environments in place of those of a package that cannot be seeded or stored."""

#: the module that registers them, by the beginning of their ids
ADAPTERS = {"MetaWorld/": "minari_pipe.environments.metaworld"}
