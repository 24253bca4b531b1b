"""Why a run took the edge that it took."""
