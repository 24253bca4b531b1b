"""What bitwise equality assumes: versions, threads, flags. SavedCheckpoint with every checkpoint; a change is said."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from graphtrain.version import __version__


def environment(deterministic: bool, seed: int | None = None) -> dict[str, Any]:
    """Library versions, machine, threads, numeric flags and the seed of this process."""
    return {
        "graphtrain": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "platform": sys.platform,
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda or "",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "deterministic": deterministic,
        "seed": seed,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def environment_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words.

    >>> environment_changes({"threads": 2}, {"threads": 1})
    ['threads 2 -> 1']
    """
    return [f"{name} {saved[name]} -> {now[name]}" for name in now if name in saved and saved[name] != now[name]]
