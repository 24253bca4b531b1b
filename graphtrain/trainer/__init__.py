"""The trainer and the life of a run."""
