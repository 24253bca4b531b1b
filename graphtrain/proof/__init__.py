"""Proof by running again: `graphtrain verify` and `graphtrain replay`."""
