"""Gradients summed over ranks in buckets that depend on nothing but the parameters, and buffers given to all ranks.

The last bits of a sum over more than two ranks depend on the position of a number in the buffer. So buckets follow the
order of the parameters, not that in which gradients arrive. A large gradient is a buffer of its own: its sum has the
same bits whenever it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch

from graphtrain.errors import UsageError
from graphtrain.ranks.ranks import LostRankError, Ranks

# As in DistributedDataParallel: large enough that a call costs little, small enough that copying and sending overlap.
BUCKET_BYTES = 25 * 2**20
# Larger tensors are summed in place: 0.8 ms of 4.5 for four megabytes were spent on copying.
LARGE_BYTES = 2**20
# No more than this is carried by records, each of which is then as long: a call costs more than to copy so much.
CARRIED_BYTES = 2**16


@final
class EarlySums:
    """The sums of gradients that begin before ranks know of each other which gradients there are.

    Those of large gradients begin within the last backward pass of a window, on all ranks from the last parameter to
    the first. Once the pass has ended, and this rank has all that are expected and no other, the rest begins: small
    gradients as copies, so that nothing is lost if another rank has more. How many it has begun, a rank reports
    afterwards; those that have begun fewer follow in `complete`.

    Arguments:
        parameters: those that may have a gradient, the same on all ranks in one order.
        expected: those of them that had one on any rank in the window before.
        room: the bytes of small gradients that the next records of two ranks carry. Default: they carry none.

    Attributes:
        carried: those of this rank, which are not begun then; empty if it has others than expected, or more.
        room: afterwards: for the exchange after this one, the same on all ranks.
    """

    def __init__(
        self,
        ranks: Ranks,
        parameters: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        room: int = 0,
    ) -> None:
        self._ranks, self._parameters = ranks, parameters
        are_expected = set(map(id, expected)).__contains__
        self._expected = [parameter for parameter in parameters if are_expected(id(parameter))]
        self._order = [parameter for parameter in reversed(self._expected) if _is_large(parameter)]
        self._complete: set[int] = set()
        self._begun: list[tuple[torch.Tensor, torch.Tensor, Callable[[], None]]] = []
        self._small: Joined | None = None
        self._wait_small: Callable[[], None] | None = None
        self.room, self.carried, self._lost = room, b"", ""

    @property
    def count(self) -> int:
        """How many this rank has begun: of large ones, and one for all small ones, which come last."""
        return len(self._begun) + (self._wait_small is not None)

    def within(self, backward: Callable[[], None]) -> None:
        """Run a backward pass, and begin the sums in it and behind it."""
        # Only for this pass, so that hooks of users come first: 2 us for each.
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
            if parameter.requires_grad and _is_large(parameter)
        ]
        try:
            backward()
        finally:
            for hook in hooks:
                hook.remove()
        # While ranks gather their records: 0.63 of the time of an exchange of 5,000 parameters, beside other load.
        present = [id(parameter) for parameter in self._parameters if parameter.grad is not None]
        if present and present == [*map(id, self._expected)]:
            if self.room:
                self.carried = self._join().packed(self.room)
            self._begin(len(self._order) + (not self.carried))

    def _note(self, parameter: torch.Tensor) -> None:
        """Note a gradient that was added to, and begin the sums that are next."""
        if id(parameter) in self._complete and any(parameter is begun for begun in self._order[: len(self._begun)]):
            raise UsageError(
                f"one backward pass adds twice to the gradient of a parameter of shape {list(parameter.shape)}",
                "checkpoint layers with use_reentrant=False, or set exchange.overlap = false",
            )
        self._complete.add(id(parameter))
        count = len(self._begun)
        while count < len(self._order) and self._is_complete(self._order[count]):
            count += 1
        self._begin(count)

    def _is_complete(self, parameter: torch.Tensor) -> bool:
        gradient = parameter.grad if id(parameter) in self._complete else None
        return gradient is not None and gradient.layout is torch.strided

    @torch.no_grad()
    def _begin(self, count: int) -> None:
        """Begin sums until there are so many. A rank that is lost is missed where ranks wait for each other."""
        try:
            while not self._lost and self.count < count:
                if len(self._begun) < len(self._order):
                    gradient = _dense_gradient(self._order[len(self._begun)])
                    whole = gradient.contiguous()  # mostly the gradient itself
                    self._begun.append((gradient, whole, self._ranks.begin_exchange([whole])))
                else:
                    self._wait_small = self._ranks.begin_exchange(self._join().values)
        except LostRankError as error:
            self._lost = str(error)

    @torch.no_grad()
    def _join(self) -> Joined:
        self._small = Joined([_dense_gradient(each) for each in self._expected if not _is_large(each)])
        return self._small

    def complete(self, count: int, summed: Sequence[torch.Tensor], carried: Sequence[bytes] = ()) -> set[int]:
        """Begin the others that some rank has begun; returns the parameters whose gradients are summed, by their `id`.

        Arguments:
            count: the largest number that a rank has begun.
            summed: those that have a gradient on any rank.
            carried: by the record of each rank. Default: what this one has carried is to be summed again.

        Raises:
            LostRankError: a rank does not take part.
        """
        if self._small is not None and self.carried:
            self._small = self._small.take(carried) if carried else None
        self._begin(count)
        if self._lost:
            raise LostRankError(self._lost)
        if self._small is not None and [*map(id, summed)] != [*map(id, self._expected)]:
            self._small = None  # there are others: the buckets are those of an exchange that nothing has preceded
        if self._small is not None and self._ranks.world_size == 2:  # the sum of two has the same bits in either order
            self.room = self._small.size
        done = {id(parameter) for parameter in self._order[:count]}
        return done if self._small is None else done | set(map(id, self._expected))

    def wait(self) -> None:
        """Wait for the sums."""
        for gradient, whole, wait in self._begun:
            wait()
            if whole is not gradient:
                gradient.copy_(whole)
        if self._wait_small is not None:
            self._wait_small()
        if self._small is not None:
            self._small.put()


@final
class Joined:
    """Tensors, joined in buckets.

    Attributes:
        values: those of each bucket, one after the other: copies.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._buckets = list(buckets_of(tensors))
        self.values = [torch.cat([tensor.reshape(-1) for tensor in bucket]) for bucket in self._buckets]

    @property
    def size(self) -> int:
        """The bytes of all values; 0 if records do not carry them, as they are too many, or not on the CPU."""
        size = sum(values.nbytes for values in self.values)
        return size if size <= CARRIED_BYTES and all(each.device.type == "cpu" for each in self.values) else 0

    def packed(self, most: int) -> bytes:
        """The values of all buckets; empty if they are more bytes than that, or records do not carry them."""
        values = self.values if 0 < self.size <= most else ()
        return b"".join(each.view(torch.uint8).numpy().tobytes() for each in values)

    def take(self, of_ranks: Sequence[bytes]) -> Joined:
        """Replace the values by the sum of those that ranks have packed, or by those of one rank."""
        start = 0
        for values in self.values:
            end = start + values.nbytes
            parts = [torch.frombuffer(bytearray(each[start:end]), dtype=values.dtype) for each in of_ranks]
            values.copy_(sum(parts[1:], start=parts[0]))
            start = end
        return self

    def put(self) -> None:
        """Replace the tensors by these values."""
        for bucket, values in zip(self._buckets, self.values, strict=True):
            parts = torch.split(values, [tensor.numel() for tensor in bucket])
            torch._foreach_copy_(bucket, [part.view(tensor.shape) for part, tensor in zip(parts, bucket, strict=True)])


def exchange_tensors(
    ranks: Ranks,
    parameters: Sequence[torch.Tensor],
    shared: Joined | None = None,
    *,
    early: EarlySums | None = None,
) -> None:
    """Replace the gradient of every parameter by its sum over ranks, and every buffer by that of rank 0.

    Arguments:
        parameters: the same on all ranks, in one order: those that have a gradient on any of them. A gradient
            that this rank lacks counts as zeros.
        shared: the buffers, of the same shapes and types on all ranks, in one order. Default: none.
        early: sums of other parameters that have begun, on all ranks, and are waited for. Default: none have.

    Raises:
        UsageError: a gradient is sparse.
        LostRankError: a rank does not take part.
    """
    shared = shared or Joined(())
    if early is not None and not parameters and not shared.values:  # nothing is left to begin
        early.wait()
        return
    large = [_dense_gradient(parameter) for parameter in parameters if _is_large(parameter)]
    whole = [gradient.contiguous() for gradient in large]  # mostly the gradients themselves
    small = Joined([_dense_gradient(parameter) for parameter in parameters if not _is_large(parameter)])
    # The summands by which values become those of rank 0: bytes, which keep all bits.
    of_rank_0 = [(values.zero_() if ranks.rank else values).view(torch.uint8) for values in shared.values]
    wait = ranks.begin_exchange([*whole, *small.values, *of_rank_0])
    if early is not None:
        early.wait()
    wait()
    for gradient, summed in zip(large, whole, strict=True):
        if summed is not gradient:
            gradient.copy_(summed)
    small.put()
    shared.put()


def _is_large(parameter: torch.Tensor) -> bool:
    """True for a parameter whose gradient is summed alone: by the parameter, which is the same on all ranks."""
    return parameter.numel() * parameter.element_size() >= LARGE_BYTES and parameter.is_contiguous()


def _dense_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter; zeros, which it has from then on, if it has none.

    Raises:
        UsageError: it is sparse.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.layout is not torch.strided:
        raise UsageError(
            f"a parameter of shape {list(parameter.shape)} has a sparse gradient; ranks sum only dense ones",
            "make it dense, as with Embedding(..., sparse=False)",
        )
    return parameter.grad


def buckets_of(tensors: Sequence[torch.Tensor], bucket_bytes: int = BUCKET_BYTES) -> Iterator[list[torch.Tensor]]:
    """The tensors in their order, cut into buckets of one device and type; those without a number are left out.

    >>> [len(bucket) for bucket in buckets_of([torch.zeros(3), torch.zeros(2), torch.zeros(4)], bucket_bytes=20)]
    [2, 1]
    """
    buckets: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    sizes: dict[tuple[torch.device, torch.dtype], int] = {}
    for tensor in filter(torch.Tensor.numel, tensors):
        kind, size = (tensor.device, tensor.dtype), tensor.nbytes
        if kind in buckets and sizes[kind] + size > bucket_bytes:
            yield buckets.pop(kind)
        sizes[kind] = size + (sizes[kind] if kind in buckets else 0)
        buckets.setdefault(kind, []).append(tensor)
    yield from buckets.values()
