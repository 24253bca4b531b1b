"""Loggers for programs that show runs; each needs a package of its own, so none is imported before it is asked for."""
