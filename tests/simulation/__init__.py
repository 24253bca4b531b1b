"""Whole lives of runs, each drawn from one seed: `make simulate` and the oracle that judges them."""
