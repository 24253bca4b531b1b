"""Reports of a run: rows of metrics, loggers, and the snapshots that `display/` shows."""
