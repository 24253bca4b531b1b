"""The batches of data that is open: those to come, those fetched ahead, and those of a resume."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, final

import torch

from graphtrain.data import NOTHING
from graphtrain.data.batch import batch_mover, tensors_held, trace
from graphtrain.data.samplers import generators_of, samples_per_batch
from graphtrain.data.source import keeps_position
from graphtrain.errors import DataError, UsageError
from graphtrain.nodes._supply import Supply
from graphtrain.state.random import RandomAside, global_generators
from graphtrain.storage.encoding import Tensors, UnsaveableError, pack
from graphtrain.storage.state_files import state_digest

if TYPE_CHECKING:
    from graphtrain.nodes.next_batch import NextBatch


@final
class OpenBatches:
    """The batches of what a node has opened.

    Arguments:
        node: its progress says where it is; what is fetched ahead and the last batch are part of that.
        supply: what is open.

    Attributes:
        iterator: what the source has opened.
        ahead: the batches that are fetched and not given.
        move: brings a batch to the device; None where it is there.
        held: of the last batch that was fetched here, what tells its tensors later; `NOTHING` before the first.
        held_number: which of the batches that it was which several ranks have drawn.
        most: the batches of what is open, of all ranks, that the limit allows; None for all.
    """

    def __init__(
        self, node: NextBatch, supply: Supply, device: torch.device, transfer: Callable[[Any, Any], Any] | None
    ) -> None:
        self._node, self._supply = node, supply
        self._ranks, self._state = supply.run.ranks, supply.run.state
        self.iterator: Any = iter(())
        self.ahead: list[Any] = []
        self.most: int | None = None
        self.held: Any = NOTHING
        self.held_number: int | None = None
        self.move: Callable[[Any], Any] | None = batch_mover(device)
        if transfer is not None:
            self.move = functools.partial(_transferred, transfer, device)

    # ---- where it is

    def consumed(self) -> int:
        """The batches that were given of what is open; of data alone, those of the epoch."""
        return self._node.epoch_batches - self._node.pass_first

    def length(self) -> int | None:
        """How many there are, as far as that is known."""
        length = self._node.length
        return length if self.most is None or length is None else min(self.most, length)

    def first_uncertain(self) -> int:
        """From this batch of an epoch on, every visit looks whether there is another: the first, or the last."""
        if not (length := self.length()):
            return 0
        return self._node.pass_first + length

    def _drawn(self) -> int:
        """How many batches the data has given, those ahead included."""
        return self.consumed() // (self._node.rank_local or 1) + len(self.ahead)

    # ---- opening and closing

    def open(self, selected: torch.Tensor | None) -> None:
        """Open what the supply has taken, from its beginning.

        Arguments:
            selected: the numbers of what it has.
        """
        node, supply = self._node, self._supply
        self._state.left.discard(supply.name)
        held = self._state.capture(supply.data)  # before the data is told the epoch: a resume draws it from here
        self.iterator, node.length, node.source_state = supply.source.open(node.passes - 1)
        self.most = supply.limit.of(node.length)
        if held:
            node.source_state["data"] = held
        if selected is not None:
            node.source_state["indices"] = selected
        if self._ranks is not None:
            self.held, node.last_batch = NOTHING, {}

    def end(self) -> None:
        """Let there be no further batch, and release the workers of a loader now, not when the next epoch begins."""
        self.ahead.clear()
        self._node.fetched_ahead = 0
        self.iterator = iter(())

    def release(self) -> None:
        """End the worker processes of the data; if another batch is fetched, it is reopened where it was."""
        if self._supply.source.release(self.iterator) and not self._node.pass_over:
            self.iterator = self._reopened(self._drawn())

    def _reopened(self, drawn: int) -> Iterator[Any]:
        with self._opened_again():
            self.iterator = self._supply.source.reopen(self._node.passes - 1, drawn, self._node.source_state)
        yield from itertools.islice(self.iterator, 1)  # what follows is asked of the iterator itself

    # ---- the next batch

    def next(self) -> Any:
        """The next batch; `NOTHING` at the end."""
        if not self.ahead:
            return next(self.iterator, NOTHING)
        batch = self.ahead.pop(0)
        self._node.fetched_ahead = len(self.ahead)
        return batch

    def has_another(self) -> bool:
        """True if there is a batch after those that were given; one that had to be fetched for that is ahead."""
        node = self._node
        if self.consumed() == self.most:
            return False
        if self.ahead or not (node.length is None or self.consumed() >= node.length):
            return True
        following = next(self.iterator, NOTHING)
        if following is NOTHING:
            return False
        self.ahead.append(following)
        node.fetched_ahead = 1
        return True

    # ---- saving and resuming

    def position(self) -> dict[str, Any]:
        """The batches ahead, if a resume cannot draw them again or need not; the last batch is noted.

        Raises:
            UnsaveableError: they can neither be saved nor drawn again.
        """
        node, supply = self._node, self._supply
        if self.held is not NOTHING:
            node.last_batch = {"batch_size": samples_per_batch(supply.data), "trace": trace(self.held)}
            node.last_batch["sample"] = supply.source.sample()
            if self._ranks is not None:
                node.last_batch["number"] = self.held_number
        # A batch of a class of one's own cannot be encoded; where it can be, it is drawn again with those before it.
        if self.ahead and _has_plain_form(self.ahead):
            return {"ahead": self.ahead}
        if self.ahead and not supply.source.redraws:
            raise UnsaveableError(
                "the batch fetched ahead",
                f"it is, or holds, something other than plain data ({type(self.ahead[0]).__name__}); and a DataLoader "
                "without workers cannot draw it again",
                "return plain dicts, tuples, lists and tensors, or use graphtrain.Loader",
            )
        return {}

    def resume(self, position: Mapping[str, Any]) -> None:
        """Open what was open when the run was saved, behind the batches that it had given."""
        node, supply = self._node, self._supply
        self.most = supply.limit.of(node.length)
        self.ahead = position.get("ahead", [])  # into which a resume puts what the batch shares
        if self._ranks is not None and not supply.division.keeps_ahead:
            self.ahead, node.fetched_ahead = [], 0  # each rank fetches its own again
        supply.source.select(node.source_state.get("indices"))
        self.iterator = self._resumed()

    def _resumed(self) -> Iterator[Any]:
        """The rest of the epoch in which the run was saved; the last batch is compared where it is drawn again."""
        node, supply, drawn, last = self._node, self._supply, self._drawn(), self._node.last_batch
        size, now = last.get("batch_size"), samples_per_batch(supply.data)
        if size and now and size != now:
            raise DataError(
                f"{supply.name} has a batch size of {now}, and the run is inside an epoch that was begun with {size}",
                f"end this epoch with batches of {size}; or resume from a checkpoint between two epochs",
            )
        source, again = supply.source, 0
        is_known = all(self._state.is_known(part) or keeps_position(part) for part in supply.parts)
        if "trace" in last and is_known and (source.redraws or source.replays) and self.consumed() > 0:
            again = 1 + len(self.ahead)
            if "number" in last:  # of the batches of several ranks, that of this one
                again = drawn - last["number"]
        with self._opened_again():
            is_at_end = 0 < drawn == (node.length or node.pass_before)
            known = f"{'its length is' if node.length else 'the epoch before had'} {drawn}"
            end = f"has a batch {drawn + 1} in this epoch now, and {known}" if is_at_end else ""
            for doubt in source.doubts(node.passes - 1, end, last.get("sample", {})):
                self._state.comparisons.append(functools.partial(str, f"{supply.name} {doubt}"))
            iterator = source.reopen(node.passes - 1, drawn, node.source_state, again)
            if again:
                self._compare(last["trace"], again, drawn - again)
            # Those that were not saved, from where those before them were drawn again.
            self.ahead += itertools.islice(iterator, node.fetched_ahead - len(self.ahead))
        return iterator

    def _compare(self, saved: Mapping[str, Any], again: int, number: int) -> None:
        """Compare what was drawn again with what the run was saved with, unless training has changed that since."""
        redrawn = self._supply.source.redrawn
        if len(redrawn) < again or redrawn[0] is NOTHING:  # of several loaders; or random numbers were drawn for it
            return
        now = trace(tensors_held(redrawn[0]))
        if now["versions"] == saved["versions"] and now["hash"] != saved["hash"]:
            line = f"{self._supply.name} differs: batch {number + 1} of epoch {self._node.epoch + 1} is not what it was"
            drawn_again = _digest(self._state.capture(self._supply.data))
            self._state.comparisons.append(functools.partial(self._unless_changed, drawn_again, line))

    def _unless_changed(self, drawn_again: str, line: str) -> str:
        """The line; of data that changes while it is trained on, a batch cannot be drawn again, and need not be."""
        return line if _digest(self._state.capture(self._supply.data)) == drawn_again else ""

    @contextmanager
    def _opened_again(self) -> Iterator[None]:
        """A span in which data holds what it held when the epoch was opened; nothing of it is left afterwards."""
        supply = self._supply
        with ExitStack() as kept:
            kept.enter_context(RandomAside([*global_generators(), *generators_of(supply.data)]))
            for data in supply.parts:
                kept.enter_context(self._state.kept(data))
            self._state.restore(supply.data, self._node.source_state.get("data", {}))
            yield


def _transferred(transfer: Callable[[Any, Any], Any], device: Any, batch: Any) -> Any:
    moved = transfer(batch, device)
    if moved is None:
        raise UsageError(
            "`transfer` returned nothing", "it returns the batch on the device, as in return batch.to(device)"
        )
    return moved


def _digest(section: Mapping[str, Any]) -> str:
    return state_digest({"data": section})


def _has_plain_form(value: Any) -> bool:
    try:
        pack(value, "ahead", Tensors("ahead"))
    except UnsaveableError:
        return False
    return True
