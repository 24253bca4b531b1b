"""Procedures for which other trainers are subclassed: a folder has the graph or overlay, its kinds and an example."""
