"""One run: parameters into files, DVC over them, the result into the Minari root."""
