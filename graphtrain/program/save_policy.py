"""How checkpoints are saved, as the kind `checkpoint` says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from graphtrain.storage.retention import Retention


@dataclass(frozen=True)
class SavePolicy:
    """What holds for a save.

    Arguments:
        retention: which checkpoints stay. Default: the newest two.
        mode: "async" copies the state and writes it while the run goes on; "sync" writes before it goes on.
        if_failed: "stop" stops the run when a checkpoint cannot be written; "continue" says so and goes on.
    """

    retention: Retention = field(default_factory=Retention)
    mode: Literal["async", "sync"] = "async"
    if_failed: Literal["stop", "continue"] = "stop"
