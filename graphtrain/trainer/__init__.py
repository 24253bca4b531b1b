"""The trainer: how a run starts, stops, is saved and resumed."""
