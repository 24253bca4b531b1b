"""Procedures that usually need a trainer subclass; each folder has a graph or overlay, its kinds and an example."""
