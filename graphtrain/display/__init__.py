"""A run while it goes on, as people look at it: one description, a renderer for each place it is looked at from."""
