"""The stages, one module each: a plain typed function, and the few lines that make it a command."""
