"""Where a run can go back to: the last checkpoint that each node has asked for, and how often the run went back so far.

It is in the manifest of every checkpoint, so that a run that is cut knows what one that is not cut knows.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.manifest import Manifest

OWN = ""
"""The name of a checkpoint in its own manifest, which is written before it has one."""


@dataclass(frozen=True)
class Lineage:
    """Where a run can go back to.

    Attributes:
        saved: path of a node -> name of the last checkpoint that it has asked for, in the run directory.
        returns: how often the run went back.
    """

    saved: Mapping[str, str] = field(default_factory=dict)
    returns: int = 0

    @classmethod
    def of(cls, manifest: Manifest, name: str) -> Lineage:
        """That of a run which is where a checkpoint of this name was made."""
        return cls({path: other or name for path, other in manifest.saved_by.items()}, manifest.returns)

    def with_saved(self, name: str, askers: Collection[str]) -> Lineage:
        """The same after a checkpoint of this name, for which these nodes have asked."""
        return replace(self, saved={**self.saved, **dict.fromkeys(sorted(askers), name)}) if askers else self

    def savers_of(self, name: str) -> list[str]:
        """The nodes whose last checkpoint has this name."""
        return [path for path, other in self.saved.items() if other == name]

    def forgotten(self) -> Lineage:
        """The same where the run is changed: it does not go back to what was saved before."""
        return replace(self, saved={})


def names_kept(manifest: Manifest) -> list[str]:
    """The names of the checkpoints to which a run can go back that is where a checkpoint was made, without that one."""
    return [name for name in Lineage.of(manifest, OWN).saved.values() if name != OWN]


@dataclass(frozen=True)
class SavedCheckpoint:
    """A sound checkpoint of a past run, without its tensors: they are read again when they are needed.

    Attributes:
        counts: node path -> field -> value, of the fields of progress that are numbers.
        device: where the models were.
    """

    path: Path
    manifest: Manifest
    counts: Mapping[str, Mapping[str, int | float]]
    device: str

    @staticmethod
    def read(path: Path) -> SavedCheckpoint:
        """The checkpoint at a path.

        Raises:
            CheckpointError: it is damaged.
        """
        checkpoint = read_checkpoint(path)
        counts = {
            node: {name: value for name, value in fields.items() if isinstance(value, int | float)}
            for node, fields in checkpoint.sections["progress"].items()
        }
        return SavedCheckpoint(path, checkpoint.manifest, counts, _device(checkpoint.sections["resources"]) or "cpu")

    @property
    def ranks(self) -> int:
        """How many processes have written it."""
        return self.manifest.ranks

    @property
    def returns(self) -> int:
        """How often the run had gone back to an earlier checkpoint."""
        return Lineage.of(self.manifest, self.path.name).returns

    @property
    def trained(self) -> tuple[int, float]:
        """Steps and epochs, those as a fraction."""
        return self.manifest.step, float(self.manifest.epoch)

    def leads_to(self, newer: SavedCheckpoint) -> bool:
        """True unless the run was resumed from a checkpoint before this one, and so never came from here to `newer`."""
        if self.manifest.metrics_bytes > newer.manifest.metrics_bytes:
            return False
        if self._training != newer._training or None in (self._training, newer._training):
            return self._outer_counts <= newer._outer_counts  # steps and epochs begin again with a body
        return all(map(operator.le, self.trained, newer.trained))

    @property
    def _outer_counts(self) -> list[float]:
        return [*self.manifest.clocks.values()]

    @property
    def _training(self) -> tuple[str, list[float]] | None:
        """Which training its steps and epochs are of, by the clocks around; None where that is not known."""
        path = self.manifest.clock_of
        is_inside = self.manifest.position.startswith(f"{path}/") and self._outer_counts
        return (path, self._outer_counts) if is_inside or not path else None


def _device(value: Any) -> str:
    """The first device met that is not the CPU, where optimizers keep their counters in any case."""
    if isinstance(value, torch.Tensor):
        return "" if value.device.type == "cpu" else str(value.device)
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((device for part in inner if (device := _device(part))), "")
