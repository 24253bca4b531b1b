"""Proof by running again: past runs replayed and verified, transitions explained."""
