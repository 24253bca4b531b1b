"""Where batches come from, and how their position is kept."""

NOTHING = object()
"""Stands for a batch where there is none."""
