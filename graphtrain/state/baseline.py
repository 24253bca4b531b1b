"""The state beside the resources: what was reachable when a run began, what has changed since, and putting it back.

A baseline lists what is reachable when a run begins (`InitialState`). At a save it is compared with what is there then
(`DriftFinder`); a resume puts the drift over what another process set up (`Restorer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from graphtrain.state.codec import StateReader
from graphtrain.state.drift import NO_DRIFT, Drift, DriftFinder
from graphtrain.state.initial import InitialState, States
from graphtrain.state.restorer import Restorer


@final
class Baseline(InitialState):
    """The state that is reachable when a run begins, compared and put back.

    Arguments: those of `InitialState`.

    Attributes:
        not_restored: a line for everything that was saved and has no place now.
    """

    not_restored: tuple[str, ...] = ()
    # What was put there last, until it was looked at once: objects that `setup` makes in this process as they were then
    # have drifted nevertheless, by the account of the process that saved them.
    _restored: Mapping[str, Mapping[str, Any]] = NO_DRIFT
    _redrawn: frozenset[int] = frozenset()

    def is_redrawn(self, data: str) -> None:
        """Note that a resume draws all batches of an epoch again: what data has bound since is bound again by that.

        Arguments:
            data: the name of a root.
        """
        self._redrawn |= {id(reached.value) for reached in self._of_data[data]}

    def drift(self, data: str | None = None, states: Mapping[str, Any] | None = None) -> Drift:
        """What has changed until now.

        Arguments:
            data: the name of a root; only what is reachable from it. Default: everything.
            states: path -> the `state_dict` that an object has now. Default: they are asked for where they are needed.
        """
        restored = NO_DRIFT
        if data is None:
            restored, self._restored = self._restored, NO_DRIFT
        known = {path: state for path, state in (states or {}).items() if isinstance(state, Mapping)}
        return DriftFinder(self, known, restored, self._redrawn).drift(data)

    def restore(self, section: Mapping[str, Any], data: str | None = None) -> StateReader:
        """Put what is not covered back to the baseline, and a drift over it.

        Arguments:
            section: of a `Drift`.
            data: the name that the drift was restricted to.

        Returns:
            What has found or made the objects that the drift refers to.

        Raises:
            CheckpointError: something that had changed does not exist now, or cannot be made.
        """
        restorer = Restorer(self, {})
        reader = restorer.restore(section, data)
        self.not_restored += (*restorer.not_restored,)
        if data is None:
            self._restored = dict(section)
        return reader

    @contextmanager
    def kept(self, data: str) -> Iterator[None]:
        """A span after which data holds the same objects, with the same values, as before it.

        Arguments:
            data: the name of a root.
        """
        states: States = {}
        changed = DriftFinder(self, states, {}, self._redrawn).drift(data).section
        with Restorer(self, states).kept(data, changed):
            yield
