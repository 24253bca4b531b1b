"""A graph with its kinds, flat, with every name resolved."""
