"""Everything a continuation depends on: captured, compared, restored."""
