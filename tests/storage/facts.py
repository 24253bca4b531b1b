"""What a manifest needs to hold beside what the storage adds."""

from __future__ import annotations

from typing import Any

FACTS: dict[str, Any] = {
    "graph": "{}", "graph_hash": "", "position": "step", "ended": False, "step": 1, "metrics_bytes": 0, "metrics": {},
}  # fmt: skip
