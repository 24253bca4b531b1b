"""Models of other libraries, unchanged: an adapter is a function that returns a graph and resources."""
