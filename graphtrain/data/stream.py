"""Random numbers for data that draws them incrementally, interleaved with those that training draws.

A shuffle buffer, or a sampler that draws from a global generator while it is iterated over, depends on every number
that dropout consumes in between. A replay draws the batches again without training, and would get different ones. So
such data is given a separate random stream, but only once that makes a difference:

* While only the data draws from a generator during an epoch, its draws are consecutive, in the run as in a replay: the
  generator is shared. Data that draws its whole order when an epoch begins behaves as in a loop written by hand.
* The first `next` that draws after something else has drawn is the last to use the shared generator. The generator's
  state before that draw is recorded with the number of the item. From then on the data has its own stream, seeded from
  that generator, and training finds the shared generator as training left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from graphtrain.state.generators import AnyGenerator, same_state


@final
class Stream:
    """An iterator over an epoch whose random numbers do not depend on draws between its items.

    That costs 25 us an item, most of it for reading Python's state twice; 130 us once NumPy's numbers are separate.

    Arguments:
        iterator: of an epoch from which nothing was drawn yet.
        generators: those it may draw from, by name.
        separations: name of a generator -> the number of the item at which the data got its own stream, and the shared
            state before it. Filled in the run, and followed in a replay from the beginning of the epoch.
        separated: called when the run, not a replay, gives the data its own stream.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        generators: Mapping[str, AnyGenerator],
        separations: dict[str, dict[str, Any]],
        separated: Callable[[], None],
    ) -> None:
        self._iterator, self._generators = iterator, generators
        self._separations, self._separated, self._number = separations, separated, 0
        # As the data left it, which is where a replay is; and the state of the data's own stream, once it has one.
        self._after_data = {name: generator.get_state() for name, generator in generators.items()}
        self._own: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._number += 1
        shared = {}
        for name, generator in self._generators.items():
            if self._separates(name):
                generator.set_state(self._separations[name]["state"])
            shared[name] = generator.get_state()
            if name in self._own:
                generator.set_state(self._own[name])
        try:
            return next(self._iterator)
        finally:
            for name, generator in self._generators.items():
                self._note(name, generator, shared[name])

    def _note(self, name: str, generator: AnyGenerator, shared: Any) -> None:
        """Note what was drawn for an item, before which the shared state was this one."""
        after = generator.get_state()
        if name in self._own:
            self._own[name] = after
            generator.set_state(shared)
        elif same_state(after, shared):
            return  # nothing was drawn
        elif self._separates(name) or not same_state(shared, self._after_data[name]):
            if not self._separates(name):
                self._separated()
                self._separations[name] = {"number": self._number, "state": shared}
            generator.seed(generator.draw())
            self._own[name] = generator.get_state()
            generator.set_state(after)
        else:
            self._after_data[name] = after

    def _separates(self, name: str) -> bool:
        return name in self._separations and self._separations[name]["number"] == self._number
