"""Data: where a run stands in it, whatever it is."""
