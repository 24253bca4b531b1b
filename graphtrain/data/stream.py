"""Random numbers that data draws bit by bit, between those that training draws.

A shuffle buffer, or a sampler that draws from a global generator while it is iterated over, sees every number that
dropout takes in between. A replay draws the batches again without training, and would come to other batches. So such
data gets random numbers of its own, as soon as that matters, and not before:

* As long as nobody else draws from a generator between two draws of the data, the draws of an epoch follow one another,
  in the run as in a replay. Data that draws all of its order when an epoch begins is as in a loop by hand.
* The first `next` that draws where somebody else has drawn in between is the last to draw from the shared generator.
  The state before it is kept, with its number. From there on the data has numbers of its own, seeded from that
  generator, and whoever trains finds the generator as he left it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

from graphtrain.state.generators import AnyGenerator, same_state


@final
class Stream:
    """An iterator over an epoch whose random numbers do not depend on who draws between its items.

    That costs 25 us an item, most of it for reading Python's state twice; 130 us with numbers of its own from NumPy.

    Arguments:
        iterator: the epoch, just begun.
        generators: whatever it may draw from, by name.
        kept: by the names of generators, from which number on the data has numbers of its own, and the state before
            that; filled here, and read where it is filled already, in a replay from the beginning of the epoch.
    """

    def __init__(
        self, iterator: Iterator[Any], generators: Mapping[str, AnyGenerator], kept: dict[str, dict[str, Any]]
    ) -> None:
        self._iterator = iterator
        self._watched = [_Watched(generator, name, kept) for name, generator in generators.items()]
        self._number = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._number += 1
        for one in self._watched:
            one.before(self._number)
        try:
            return next(self._iterator)
        finally:
            for one in self._watched:
                one.after(self._number)


@final
class _Watched:
    """One generator that data may draw from."""

    def __init__(self, generator: AnyGenerator, name: str, kept: dict[str, dict[str, Any]]) -> None:
        self._generator, self._name, self._kept = generator, name, kept
        self._left = generator.get_state()  # as the data left it: where a replay stands
        self._own: Any = None  # the state of the data's own numbers, once it has them
        self._found: Any = None  # as the training left it

    def before(self, number: int) -> None:
        if self._begins_at(number):
            self._generator.set_state(self._kept[self._name]["state"])
        self._found = self._generator.get_state()
        if self._own is not None:
            self._generator.set_state(self._own)

    def after(self, number: int) -> None:
        now = self._generator.get_state()
        if self._own is not None:
            self._own = now
            self._generator.set_state(self._found)
        elif same_state(now, self._found):
            return
        elif self._begins_at(number) or not same_state(self._found, self._left):
            self._kept[self._name] = {"number": number, "state": self._found}
            self._generator.seed(self._generator.draw())
            self._own = self._generator.get_state()
            self._generator.set_state(now)
        else:
            self._left = now

    def _begins_at(self, number: int) -> bool:
        return self._name in self._kept and self._kept[self._name]["number"] == number
