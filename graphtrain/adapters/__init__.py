"""Models, arguments and callbacks of other frameworks, as a graph and its resources."""
