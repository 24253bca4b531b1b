"""Snapshots of a run that was never made."""

from __future__ import annotations

from typing import Any

from graphtrain.report.snapshot import Snapshot


def snapshot(**changes: Any) -> Snapshot:
    """The third of ten epochs, everything known."""
    values: dict[str, Any] = {
        "state": "running",
        "graph": "fit",
        "position": "train_batch",
        "step": 4812,
        "epoch": 2 + 117 / 938,
        "end": ("10 epochs",),
        "done": 0.2125,
        "batch": 117,
        "epoch_batches": 938,
        "window": (2, 4),
        "metrics": {"val/loss": 0.051, "loss": 0.04231, "accuracy": 0.987, "lr": 0.001},
        "rates": {"batches": 812.4, "samples": 25_996.8},
        "elapsed_seconds": 41.2,
        "seconds_left": 133.0,
        "memory_bytes": int(1.2 * 2**30),
        "device": "cpu",
        "seconds": {"data": 8.0, "train": 84.0, "validate": 6.0, "save": 2.0},
    }
    return Snapshot(**{**values, **changes})
