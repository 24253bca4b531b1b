"""Where a run can go back to: the last checkpoint that each node has asked for, and how often the run went back so far.

It is in the manifest of every checkpoint, so that a run that is cut knows what one that is not cut knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

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
