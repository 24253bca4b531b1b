"""Metrics: a named store of running means, and the rows that are written of it."""
