"""The lookahead optimizer for graphtrain."""
