"""A loader whose position is one number.

The order of an epoch follows from (seed, epoch), and the random numbers of every batch from (seed, epoch, batch). So
every batch can be reproduced, a resume costs the same at batch ten million as at batch ten, and the number of workers
may change.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from graphtrain.data.batch import NOTHING
from graphtrain.data.samplers import announce_epoch, generators_of, length_of, parts_of
from graphtrain.data.workers import iterate
from graphtrain.errors import DataError
from graphtrain.state.classes import category_of
from graphtrain.state.generators import HOST, AnyGenerator, PreservedRandom, generator_of, seed_all
from graphtrain.state.reachable import Reachable

_MOST_WATCHED = 16  # objects in which a generator may appear while data is fetched: those nearest to the data set

Job = tuple[int, int, int, Any]  # what to load: the seed, epoch and number of a batch, and the indices of its samples


class Loader:
    """Batches of a map-style dataset, each reproducible from its number.

    Takes `DataLoader`'s keywords. Differs from it in where randomness comes from: order, augmentation and collation of
    batch `b` of epoch `e` are the same however the run got there, and the global generators are not changed by them.
    Generators held by the dataset, its transforms, the samplers or `collate_fn` are seeded with the global ones; where
    one is made only when it is first needed, that batch is fetched again.

    Arguments:
        dataset: anything with ``__getitem__`` and ``__len__``.
        batch_size: samples in a batch; None yields single samples. Default: 1.
        shuffle: True draws a new order every epoch. Default: False.
        sampler: an iterable of indices, iterated over once per epoch, to its end, under the epoch's seed. Default: by
            `shuffle`.
        batch_sampler: the same for lists of indices; excludes batch_size, shuffle, sampler, drop_last.
        num_workers: processes that load batches ahead. Default: 0, load in this process.
        collate_fn: makes a batch of a list of samples. Default: torch's `default_collate`.
        drop_last: True drops the last batch if it is incomplete. Default: False.
        seed: determines the order and the random numbers of batches. Default: the seed of the run.
        options: further keywords of `DataLoader`, such as pin_memory, persistent_workers and prefetch_factor.

    >>> loader = Loader(range(10), batch_size=4, shuffle=True, seed=1)
    >>> all_batches = list(loader.batches(epoch=2)); rest = list(loader.batches(epoch=2, start=1))
    >>> len(loader), all(bool((a == b).all()) for a, b in zip(all_batches[1:], rest, strict=True))
    (3, True)
    """

    # Created when batches are drawn, whose order follows from the epoch alone; and settings that change no batch.
    _graphtrain_not_state = ("_inner", "_numbered", "_options", "num_workers")

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and isinstance(dataset, Sized)):
            raise DataError(
                f"Loader takes a dataset with __getitem__ and __len__; got {type(dataset).__name__}",
                "pass the iterable itself, or a DataLoader over it, as train_data",
            )
        is_listed, excluded = batch_sampler is not None, batch_size != 1 or shuffle or sampler is not None or drop_last
        in_order = options.pop("in_order", True)
        unknown = options.keys() - (inspect.signature(DataLoader).parameters.keys() - {"generator"})
        is_size = batch_size is None or (isinstance(batch_size, int) and batch_size > 0)
        refusals = {
            f"it has no argument {', '.join(sorted(unknown))}": unknown,
            "`sampler` and `shuffle` are mutually exclusive": sampler is not None and shuffle,
            "`batch_sampler` excludes batch_size, shuffle, sampler and drop_last": is_listed and excluded,
            f"batch_size must be a whole number > 0, or None; got {batch_size!r}": not is_size,
            "in_order=False yields batches in the order workers finish, which is not reproducible": not in_order,
        }
        for refusal in [text for text, applies in refusals.items() if applies]:
            raise DataError(f"Loader: {refusal}")
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.sampler, self.batch_sampler, self.num_workers, self.seed = sampler, batch_sampler, num_workers, seed
        self._collate = collate_fn or (default_collate if batch_size is not None or batch_sampler is not None else None)
        self._numbered = _NumberedBatches()
        self._inner: DataLoader[Any] | None = None
        self._options = {**options, "num_workers": num_workers}
        self._epochs = 0  # begun by `iter`

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        samples, size = len(self.dataset if self.sampler is None else self.sampler), self.batch_size or 1  # type: ignore[arg-type]
        return samples // size if self.drop_last else -(-samples // size)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch: epoch 0 on the first call, epoch 1 on the second, and so on."""
        self._epochs += 1
        return self.batches(self._epochs - 1)

    def batches(
        self, epoch: int, start: int = 0, seed: int = 0, *, indices: torch.Tensor | None = None
    ) -> Iterator[Any]:
        """The batches of an epoch, from the one with the number `start`.

        Arguments:
            seed: the seed of the run, for a loader without one. Default: 0.
            indices: the samples of the epoch, which are shuffled if the loader shuffles. Default: the whole dataset.
        """
        return self.load(self.epoch(epoch, seed, indices=indices), itertools.count(start))

    def epoch(self, epoch: int, seed: int = 0, *, indices: torch.Tensor | None = None) -> NumberedEpoch:
        """An epoch whose batches can be loaded in any order, by their numbers; for the arguments, see `batches`.

        >>> loader = Loader(range(10), batch_size=4); epoch = loader.epoch(0)
        >>> len(epoch), epoch.samples(2), list(loader.load(epoch, iter([2])))
        (3, 2, [tensor([8, 9])])
        """
        seed = seed if self.seed is None else self.seed
        generators = generators_of(self)
        with PreservedRandom([*HOST.values(), *generators]):
            seed_all(derived_seed(seed, epoch), generators)
            announce_epoch(self, epoch)
            order, is_in_batches = self._order(indices)
        return NumberedEpoch(order, None if is_in_batches else self.batch_size, self.drop_last, seed, epoch)

    def load(self, epoch: NumberedEpoch, numbers: Iterator[int]) -> Iterator[Any]:
        """The batches of an epoch with these numbers; `numbers` is read whenever a worker is free."""
        self._numbered.jobs = map(epoch.job, numbers)  # not a generator, which would end with the first StopIteration
        if self._inner is None:
            # A separate generator: the inner loader's base seed must not be drawn from the global one.
            self._inner = DataLoader(
                _SeededFetch(self.dataset, self._collate, in_workers=self.num_workers > 0),
                batch_size=None,
                sampler=self._numbered,
                collate_fn=_unchanged,
                generator=torch.Generator(),
                **self._options,
            )
        iterator = iterate(self._inner)
        self._numbered.jobs = iter(())  # a loader that holds a generator could be neither copied nor pickled
        return iterator

    def _order(self, indices: torch.Tensor | None) -> tuple[Any, bool]:
        """The indices of an epoch, in order, and whether each is a batch; a sampler is read to its end here."""
        for sampler, is_in_batches in ((self.batch_sampler, True), (self.sampler, False)):
            if sampler is not None:
                if length_of(sampler) is None:  # it may have no end
                    raise DataError(
                        f"Loader: the {type(sampler).__name__} has no length, but an epoch is drawn when it begins",
                        "add a `__len__`; or pass a DataLoader, which draws batch by batch",
                    )
                return list(sampler), is_in_batches
        if self.shuffle:
            order = torch.randperm(len(self.dataset if indices is None else indices))
            return order if indices is None else indices[order], False
        return range(len(self.dataset)) if indices is None else indices, False


@final
@dataclass(frozen=True)
class NumberedEpoch:
    """The samples of an epoch of a `Loader`, in order, cut into batches that can be loaded by their numbers.

    Persistent workers keep it alive, so it must not refer to their loader: a cycle is left to the garbage collector,
    which destroys the queues that tell workers to end first, and then waits ten seconds for each worker.
    """

    order: Any  # the indices of samples, or of all batches
    size: int | None  # how many of them are a batch; None for one
    drop_last: bool
    seed: int
    epoch: int

    def job(self, number: int) -> Job:
        """The arguments with which a worker loads the batch of this number."""
        return self.seed, self.epoch, number, self.indices(number)

    def indices(self, number: int) -> Any:
        """The indices of the samples of a batch; raises `StopIteration` if there is no such batch."""
        if number >= len(self):
            raise StopIteration
        first, size = number * (self.size or 1), self.size or 1
        part = self.order[first : first + size]
        listed = part.tolist() if isinstance(part, torch.Tensor) else list(part)
        return listed[0] if self.size is None else listed

    def __len__(self) -> int:
        """The number of batches, from the indices that were drawn, whatever the `len()` of a sampler is."""
        samples, size = len(self.order), self.size or 1
        return samples // size if self.drop_last else -(-samples // size)

    def samples(self, number: int) -> int:
        """How many samples a batch has."""
        indices = self.indices(number)
        return len(indices) if isinstance(indices, list | tuple) else 1


class _NumberedBatches:
    """The sampler of the inner loader: the indices to load, with the numbers that seed the batch."""

    jobs: Iterator[Job]

    def __iter__(self) -> Iterator[Job]:
        return self.jobs


class _SeededFetch(Dataset[Any]):
    """Load and collate one batch under its own seed. In this process the generators are restored afterwards."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None, *, in_workers: bool) -> None:
        self._dataset, self._collate, self._in_workers = dataset, collate, in_workers
        self._epoch, self._generators = -1, _Generators()

    def __getitem__(self, job: Job) -> Any:
        seed, epoch, number, indices = job
        if epoch != self._epoch:  # the search for generators takes long
            self._epoch, self._generators = epoch, _Generators(self._dataset, self._collate)
            self._is_told = any(hasattr(part, "set_epoch") for part in parts_of(self._dataset))
        with PreservedRandom(() if self._in_workers else [*HOST.values(), *self._generators.all()]):
            batch, count = NOTHING, -1
            while count < len(generators := self._generators.all()):  # again, if one was made unseeded, and drawn from
                batch, count = self._fetch(derived_seed(seed, epoch, number), generators, indices), len(generators)
        return batch

    def _fetch(self, seed: int, generators: list[AnyGenerator], indices: Any) -> Any:
        if self._is_told:
            announce_epoch(self._dataset, self._epoch)  # a persistent worker has its own copy
        seed_all(seed, generators)
        if self._collate is None:
            return self._dataset[indices]
        return self._collate([self._dataset[index] for index in indices])


class _Generators:
    """The generators in these objects, at any depth, and those that appear later in the objects nearest to them."""

    def __init__(self, *parts: Any) -> None:
        roots = {f"{number}": part for number, part in enumerate(parts) if part is not None}
        reached = Reachable(roots, list(roots)).by_path.values()
        self._reached = [each.value for each in reached if each.category == "generator"]
        holders = (each.value for each in reached if each.category in ("object", "module"))
        self._attributes = [vars(value) for value in holders if hasattr(value, "__dict__")][:_MOST_WATCHED]
        self._values: list[Any] = [NOTHING]
        self._all: list[AnyGenerator] = []

    def all(self) -> list[AnyGenerator]:
        """The generators as of now; 0.3 us for each watched object if nothing has changed."""
        values = [value for attributes in self._attributes for value in attributes.values()]
        if len(values) != len(self._values) or not all(map(operator.is_, values, self._values)):
            self._values = values
            distinct = {id(value): value for value in (*self._reached, *values)}.values()
            self._all = [generator_of(value) for value in distinct if category_of(type(value)) == "generator"]
        return self._all


def _unchanged(batch: Any) -> Any:
    return batch


def derived_seed(*numbers: int) -> int:
    """A 63-bit seed that depends on all of the numbers.

    >>> derived_seed(0, 1) != derived_seed(1, 0)
    True
    """
    digest = hashlib.blake2b(",".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
