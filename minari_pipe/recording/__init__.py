"""From ``env.step`` to episodes that survive a crash: collectors, recorders and the journal."""
