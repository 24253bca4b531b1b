"""A module of the user's own that is an item of a dictionary, and what a function returns."""

calls = 0
rate = 1.0
