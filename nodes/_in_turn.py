"""Several loaders, of which each epoch has the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from graphtrain.data.length import length_of
from graphtrain.data.rank_local import RankLocal
from graphtrain.data.source import Source
from graphtrain.errors import DataError
from graphtrain.kind.batch_limit import BatchLimit


@final
class InTurn:
    """The loaders of a mapping, in its order.

    Arguments:
        loaders: by name.

    Attributes:
        sources: of those read so far: one may keep its own position.
        positions: of those that keep their own, loaded from a checkpoint and not taken so far.
    """

    def __init__(self, loaders: Mapping[str, Any]) -> None:
        self.loaders = loaders
        self.sources: dict[str, Source] = {}
        self.positions: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> Any:
        """A loader.

        Raises:
            DataError: there is none of that name, as where the run was saved with others.
        """
        if name not in self.loaders:
            raise DataError(
                f"the run was saved in the loader `{name}`, and now there are {', '.join(self.loaders)}",
                f"supply the loader `{name}` too, or resume from a checkpoint that was made elsewhere",
            )
        return self.loaders[name]

    def after(self, name: str) -> str:
        """The name of the loader that follows one; of the first after the last, and after none."""
        names = [*self.loaders]
        return names[(names.index(name) + 1) % len(names)] if name in names else names[0]

    def is_last(self, name: str) -> bool:
        """True if no other follows this one."""
        return [*self.loaders][-1] == name

    def length(self, limit: BatchLimit) -> int:
        """The batches of all of them; 0 where that is not known."""
        total = 0
        for loader in self.loaders.values():
            length = None if isinstance(loader, RankLocal) else length_of(loader)
            if length is None:
                return 0
            most = limit.of(length)
            total += length if most is None else min(most, length)
        return total

    def position(self, current: str) -> dict[str, Any]:
        """What those report that keep their own position, all but the one that is read."""
        reported = {name: source.position() for name, source in self.sources.items() if name != current}
        known = self.positions | {name: position for name, position in reported.items() if position}
        return {name: known[name] for name in (*self.loaders, *known) if name in known}  # in one order, for the digest
