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
        separated: called when the run, not a replay, gives the data its own stream. Default: nothing is.

    Attributes:
        iterator: that of the data.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        generators: Mapping[str, AnyGenerator],
        separations: dict[str, dict[str, Any]],
        separated: Callable[[], None] = lambda: None,
    ) -> None:
        self.iterator = iterator
        self._watched = [_Watched(generator, name, separations, separated) for name, generator in generators.items()]
        self._number = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._number += 1
        for watched in self._watched:
            watched.before(self._number)
        try:
            return next(self.iterator)
        finally:
            for watched in self._watched:
                watched.after(self._number)


@final
class _Watched:
    """One generator that data may draw from."""

    def __init__(
        self,
        generator: AnyGenerator,
        name: str,
        separations: dict[str, dict[str, Any]],
        separated: Callable[[], None],
    ) -> None:
        self._generator, self._name, self._separations, self._separated = generator, name, separations, separated
        self._after_data = generator.get_state()  # as the data left it, which is where a replay is
        self._after_training: Any = None  # as training left it
        self._separate: Any = None  # the state of the data's own stream, once it has one

    def before(self, number: int) -> None:
        if self._separates_at(number):
            self._generator.set_state(self._separations[self._name]["state"])
        self._after_training = self._generator.get_state()
        if self._separate is not None:
            self._generator.set_state(self._separate)

    def after(self, number: int) -> None:
        state = self._generator.get_state()
        if self._separate is not None:
            self._separate = state
            self._generator.set_state(self._after_training)
        elif same_state(state, self._after_training):
            return  # nothing was drawn
        elif self._separates_at(number) or not same_state(self._after_training, self._after_data):
            if not self._separates_at(number):
                self._separated()
            self._separations[self._name] = {"number": number, "state": self._after_training}
            self._generator.seed(self._generator.draw())
            self._separate = self._generator.get_state()
            self._generator.set_state(state)
        else:
            self._after_data = state

    def _separates_at(self, number: int) -> bool:
        return self._name in self._separations and self._separations[self._name]["number"] == number
