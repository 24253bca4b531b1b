"""Binding a graph to resources, compiling it to plain calls, and running it."""
