"""Where batches come from, and how their position is kept."""
