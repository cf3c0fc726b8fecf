"""Records, bumps, compares and reproduces released versions."""
