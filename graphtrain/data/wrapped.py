"""A source around another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from graphtrain.data.source import Recut, Source

if TYPE_CHECKING:
    import torch


class Wrapped(Source):
    """A source around another one, which answers what is not asked of this one.

    Arguments:
        source: the other.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.replays, self.redraws = source.replays, source.redraws

    def select(self, indices: Any) -> torch.Tensor | None:
        self.selected = self._source.select(indices)
        return self.selected

    def has_length(self) -> bool:
        return self._source.has_length()

    def release(self, batches: Iterator[Any]) -> bool:
        return self._source.release(batches)

    def recut(self, drawn: int, state: dict[str, Any], size: int | None) -> Recut | None:
        return self._source.recut(drawn, state, size)

    def unsaved(self) -> list[str]:
        return self._source.unsaved()

    def position(self) -> dict[str, Any]:
        return self._source.position()

    def load_position(self, position: dict[str, Any], *, inside: bool) -> None:
        self._source.load_position(position, inside=inside)
