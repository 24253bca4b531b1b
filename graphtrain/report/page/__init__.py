"""A run, or a graph, as a page for a browser: one file that makes no request, or served live."""
