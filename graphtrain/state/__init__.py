"""Everything a continuation depends on: captured, compared, put back."""
