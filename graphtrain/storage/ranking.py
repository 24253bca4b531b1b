"""The checkpoints of a run ranked by a metric, in a file for people and other programs: `best.json`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphtrain.errors import CheckpointError
from graphtrain.storage.own_files import replace_file
from graphtrain.storage.regular import parsed_json, read_regular
from graphtrain.storage.run_directory import readable_failure

BEST_FILE = "best.json"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Ranking:
    """Checkpoints ranked by a metric.

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
        return cls.parsed(path) or cls()

    @classmethod
    def parsed(cls, path: Path) -> Ranking | None:
        """The ranking in a file; None where there is none, or something that somebody else put there."""
        try:
            table = parsed_json(read_regular(path, _MOST_BYTES))
            metric, mode, entries = table["metric"], table["mode"], table["checkpoints"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(metric, str) or mode not in ("min", "max") or not isinstance(entries, list):
            return None
        pairs: list[tuple[Any, Any]] = [
            (entry.get("checkpoint"), entry.get("value")) for entry in entries if isinstance(entry, dict)
        ]
        values = {name: float(value) for name, value in pairs if isinstance(name, str) and _is_finite(value)}
        return cls(metric, mode, values)

    def write(self, path: Path) -> None:
        """Replace a file in one step, or remove it where nothing is ranked.

        Raises:
            CheckpointError: the disk refuses, or the file holds something that is no ranking.
        """
        if not is_ranking(path):
            raise CheckpointError(f"{path} was not written by a run")
        with readable_failure(path):
            if not self.values:
                path.unlink(missing_ok=True)
                return
            entries = [{"checkpoint": name, "value": value} for name, value in self.values.items()]
            table = {"metric": self.metric, "mode": self.mode, "checkpoints": entries}
            replace_file(path, (json.dumps(table, indent=2) + "\n").encode(), flush=True)


def is_ranking(path: Path) -> bool:
    """True unless there is something under this path that holds no ranking."""
    return not os.path.lexists(path) or Ranking.parsed(path) is not None


def _is_finite(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False
