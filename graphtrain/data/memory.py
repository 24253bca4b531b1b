"""What a data set holds in the process that fetches from it: generators, and in a worker what nothing can save."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, final

import torch
from torch.utils.data import get_worker_info

from graphtrain.data.batch import same_bits
from graphtrain.state.baseline import Baseline
from graphtrain.state.category import category_of
from graphtrain.state.drift import NO_DRIFT
from graphtrain.state.generators import AnyGenerator, any_generator, generator_of
from graphtrain.state.reachable import Reachable
from graphtrain.storage.state_files import state_digest

# Objects in which a generator may appear while data is fetched: those nearest to the data set.
_MOST_WATCHED = 16

# The room for what a worker reports.
_MOST_BYTES = 512


@final
class Generators:
    """The generators that a data set and its parts hold, at any depth, and those that appear in them in a fetch.

    Arguments:
        parts: a data set, a function that collates, ...

    >>> holder = type("Holder", (), {})(); generators = Generators([holder]); generators.all()
    []
    >>> holder.generator = torch.Generator(); generators.has_more(), len(generators.all()), generators.has_more()
    (True, 1, False)
    """

    def __init__(self, parts: Iterable[Any]) -> None:
        roots = {f"{number}": part for number, part in enumerate(parts) if part is not None}
        reached = Reachable(roots, list(roots)).by_path.values()
        self._values = [each.value for each in reached if each.category == "generator"]
        holders = [each.value for each in reached if each.category in ("object", "module")]
        self._attributes = [vars(value) for value in holders if hasattr(value, "__dict__")][:_MOST_WATCHED]
        self._look()

    def _look(self) -> None:
        self._held = [tuple(attributes.values()) for attributes in self._attributes]
        held = [value for values in self._held for value in values if category_of(type(value)) == "generator"]
        self._identities = {id(value) for value in (*self._values, *held)}
        distinct = {id(value): value for value in (*self._values, *held) if generator_of(value) is not None}
        self._all = list(map(any_generator, distinct.values()))

    def all(self) -> list[AnyGenerator]:
        """Those there are now; 0.3 us for each object that may hold one, where none has changed."""
        for attributes, held in zip(self._attributes, self._held, strict=True):
            if len(attributes) != len(held) or not all(map(operator.is_, attributes.values(), held)):
                self._look()
                break
        return self._all

    def has_more(self) -> bool:
        """True if there are more of them than when `all` was called last."""
        return len(self._all) < len(self.all())

    def identities(self) -> set[int]:
        """The identity of each."""
        return self._identities


@final
class Reports:
    """Room for one text of each worker, in memory that the parent shares.

    Arguments:
        workers: how many there are.
    """

    def __init__(self, workers: int) -> None:
        self._rows = torch.zeros(workers, _MOST_BYTES, dtype=torch.uint8)
        self._rows.share_memory_()  # type: ignore[no-untyped-call]

    def write(self, worker: int, text: str) -> None:
        """Leave the text of a worker."""
        content = bytearray(text.encode("utf-8", "replace")[: _MOST_BYTES - 1])
        row = self._rows[worker]
        row[1 : 1 + len(content)] = torch.frombuffer(content, dtype=torch.uint8)
        row[0] = 1  # last: a text that is read is complete

    def read(self) -> list[str]:
        """The texts that there are, each once."""
        texts = [bytes(row[1:].tolist()).rstrip(b"\0").decode("utf-8", "ignore") for row in self._rows if row[0]]
        return list(dict.fromkeys(texts))


@final
class WorkerMemory:
    """Finds out whether batches depend on what a worker process has come to remember: a counter, a generator, ...

    A worker that is started again, as after a resume, remembers nothing. So now and then a batch is fetched a second
    time, by what the data set held when the worker was started, and compared. A cache that changes no batch passes.

    Arguments:
        parts: name -> a data set, a function that collates.
        reports: where it is reported, once.
    """

    def __init__(self, parts: Mapping[str, Any], reports: Reports) -> None:
        roots = {name: part for name, part in parts.items() if part is not None}
        self._baseline, self._roots = Baseline(roots, list(roots)), list(roots)
        self._reports = reports
        self._fetches = 0
        self._is_over = False

    def is_due(self) -> bool:
        """Count a batch; True for the second, the fourth, the eighth, and so on."""
        self._fetches += 1
        return self._fetches > 1 and not self._fetches & (self._fetches - 1) and not self._is_over

    def compare(self, batch: Any, fetch: Callable[[], Any], seeded: Collection[int]) -> None:
        """Report it if `fetch` gives another batch with what the data set held at first.

        Arguments:
            seeded: the identities of generators that are seeded for every batch.
        """
        changed = self._changed(seeded)
        if not changed:
            return
        with ExitStack() as stack:
            for name in self._roots:
                stack.enter_context(self._baseline.kept(name))
            for name in self._roots:
                self._baseline.restore(NO_DRIFT, name)
            again = fetch()
            changed_by_one = self._changed(seeded)
        info = get_worker_info()
        if info is not None and not same_bits(batch, again):
            self._is_over = True
            remembered = [path for path, change in changed.items() if changed_by_one.get(path) != change]
            self._reports.write(info.id, [*remembered, *changed][0])

    def _changed(self, seeded: Collection[int]) -> dict[str, str]:
        """The paths of what has changed, each with a hash of what it is now."""
        hashes = {}
        for name in self._roots:
            for path, change in self._baseline.drift(name).section.items():
                reached = self._baseline.reachable.by_path.get(path)
                if reached is not None and id(reached.value) in seeded:
                    continue
                dot = "." if reached is not None else ""  # "module:" has the globals of a module
                parts = {f"{path}{dot}{key}": part for key, part in change["set"].items()} if "set" in change else {}
                for place, part in (parts or {path: change}).items():
                    hashes[place] = state_digest({"reachable": {"part": part}})
        return hashes
