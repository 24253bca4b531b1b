"""The best checkpoints of a run by a metric, in a file for people and other programs: `best.json`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphtrain.storage.regular import NotAsAgreedError, read_regular
from graphtrain.storage.run_directory import readable_failure

BEST_FILE = "best.json"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Ranking:
    """The best checkpoints by a metric.

    Attributes:
        metric: its name; empty where nothing is ranked.
        mode: "min" or "max".
        values: name of a checkpoint -> its value, the best first.
    """

    metric: str = ""
    mode: str = "min"
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> dict[str, Any] | None:
        """The best one: its name, the metric and the value; None if there is none."""
        for name, value in self.values.items():
            return {"checkpoint": name, "metric": self.metric, "value": value}
        return None

    @classmethod
    def read(cls, path: Path) -> Ranking:
        """The ranking in a file; what is not a name with a finite number is left out, and no file is an error."""
        try:
            table = json.loads(read_regular(path, _MOST_BYTES))
            entries = table["checkpoints"]
            metric, mode = str(table["metric"]), str(table["mode"])
            pairs = [(entry["checkpoint"], entry["value"]) for entry in entries if isinstance(entry, dict)]
        except (OSError, NotAsAgreedError, ValueError, RecursionError, KeyError, TypeError):
            return cls()
        values = {name: float(value) for name, value in pairs if isinstance(name, str) and _is_finite(value)}
        return cls(metric, mode, values)

    def write(self, path: Path) -> None:
        """Replace a file in one step, or remove it where nothing is ranked.

        Raises:
            CheckpointError: the disk refuses.
        """
        with readable_failure(path):
            if not self.values:
                path.unlink(missing_ok=True)
                return
            entries = [{"checkpoint": name, "value": value} for name, value in self.values.items()]
            table = {"metric": self.metric, "mode": self.mode, "checkpoints": entries}
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                with temporary.open("wb", buffering=0) as file:
                    file.write((json.dumps(table, indent=2) + "\n").encode())
                    os.fsync(file.fileno())
                temporary.replace(path)
            except OSError:
                with suppress(OSError):
                    temporary.unlink()
                raise


def _is_finite(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False
