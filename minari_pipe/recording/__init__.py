"""Record ``env.step`` into episodes that survive a crash: collectors, recorders, the journal."""
