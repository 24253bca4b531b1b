"""The displays of a run: one description of it, and a renderer each for a terminal, a notebook and a log."""
