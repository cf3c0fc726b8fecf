"""Keep episodes on disk from the moment they end until a dataset holds them."""
