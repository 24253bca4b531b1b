"""Past runs: their history, replayed and verified."""
