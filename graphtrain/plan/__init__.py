"""A graph with its kinds, flat, every name resolved."""
