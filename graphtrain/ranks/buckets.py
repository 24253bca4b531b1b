"""Sum gradients over ranks in buckets that depend only on the parameters, and broadcast buffers.

The last bits of a sum over more than two ranks depend on the position of a number in the bucket. So buckets follow the
order of the parameters, not the order in which gradients arrive. A large gradient is a bucket by itself: its sum has
the same bits whenever it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch

from graphtrain.errors import UsageError
from graphtrain.ranks.ranks import Ranks

# As in DistributedDataParallel: large enough that a call costs little, small enough that copying and sending overlap.
BUCKET_BYTES = 25 * 2**20
# Larger tensors are summed in place: copying took 0.8 of the 4.5 ms for four megabytes.
LARGE_BYTES = 2**20
# At most this is sent with the records by which ranks synchronise: a separate call takes 0.6 ms.
RECORD_BYTES = 2**16


@final
class Bucket:
    """Tensors of one device and dtype whose values are summed in one call.

    Arguments:
        in_place: True to sum in the memory of a single tensor. Default: in a copy, which `put` copies back.

    Attributes:
        values: the values of the tensors, one after the other.
    """

    def __init__(self, tensors: list[torch.Tensor], *, in_place: bool = False) -> None:
        self._tensors = tensors
        self.values = tensors[0].contiguous() if in_place else torch.cat([tensor.reshape(-1) for tensor in tensors])

    def put(self) -> None:
        """Copy the values back to the tensors."""
        if self.values is not self._tensors[0]:
            parts = torch.split(self.values.view(-1), [tensor.numel() for tensor in self._tensors])
            shaped = [part.view(tensor.shape) for part, tensor in zip(parts, self._tensors, strict=True)]
            torch._foreach_copy_(self._tensors, shaped)

    def data(self) -> bytes:
        """The bytes of the values, for a record."""
        return self.values.view(torch.uint8).numpy().tobytes()

    def put_sum(self, summands: Iterable[bytes]) -> None:
        """Replace the tensors by the sum of values, each as `data` returns it."""
        first, *rest = (torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in summands)
        self.values = sum((each.view(self.values.dtype) for each in rest), start=first.view(self.values.dtype))
        self.put()


@final
class GradientSums:
    """The sums of the gradients of a window. Some may begin before ranks know which gradients the others have.

    Those of large gradients begin during the last backward pass of a window, from the last parameter to the first. If
    this rank then has exactly the expected gradients, the small ones follow, as copies, so that nothing is lost if
    another rank has more. Ranks then tell each other in `exchange` how many sums they have begun, and begin the same.

    Arguments:
        parameters: those that may have a gradient, in the same order on all ranks.
        expected: those that had one on any rank in the previous window. Default: no sum begins early.
    """

    def __init__(self, ranks: Ranks, parameters: Sequence[torch.Tensor], expected: Sequence[torch.Tensor] = ()) -> None:
        self._ranks, self._parameters = ranks, parameters
        are_expected = set(map(id, expected)).__contains__
        self._expected = [parameter for parameter in parameters if are_expected(id(parameter))]
        self._groups = [[parameter] for parameter in reversed(self._expected) if is_large(parameter)]
        self._large_count = len(self._groups)
        small = [parameter for parameter in parameters if not is_large(parameter)]
        # With two ranks, few bytes are sent with the records: the sum of two numbers has the same bits in either order.
        self._in_record = small if ranks.world_size == 2 and _fit_into_record(small) else []
        if not self._in_record and (last := [each for each in self._expected if not is_large(each)]):
            self._groups.append(last)
        self._complete: set[int] = set()
        self._begun: list[tuple[list[Bucket], Callable[[], None]]] = []

    @property
    def count(self) -> int:
        """The number of groups of gradients that this rank has begun to sum."""
        return len(self._begun)

    def within(self, backward: Callable[[], None]) -> None:
        """Run a backward pass, and begin sums during and after it."""
        # Only for this pass, so that hooks of users come first: 2 us for each.
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
            if parameter.requires_grad and is_large(parameter)
        ]
        try:
            backward()
        finally:
            for hook in hooks:
                hook.remove()
        # Overlaps with gathering the records: 0.63 of the time of an exchange of 5,000 parameters.
        present = [id(parameter) for parameter in self._parameters if parameter.grad is not None]
        if present == [*map(id, self._expected)]:
            self._begin(len(self._groups))

    def _note(self, parameter: torch.Tensor) -> None:
        """Record that a gradient is complete, and begin the sums that are next."""
        if id(parameter) in self._complete and any(parameter is group[0] for group in self._groups[: self.count]):
            raise UsageError(
                f"a backward pass adds twice to the gradient of a parameter of shape {list(parameter.shape)}",
                "checkpoint layers with use_reentrant=False, or set exchange.overlap = false",
            )
        self._complete.add(id(parameter))
        count = self.count
        while count < len(self._groups) and id(self._groups[count][0]) in self._complete:
            count += 1
        self._begin(count)

    @torch.no_grad()
    def _begin(self, count: int) -> None:
        """Begin sums, until `count` have begun."""
        for group in self._groups[self.count : count]:
            buckets = buckets_of(group)
            self._begun.append((buckets, self._ranks.begin_exchange([bucket.values for bucket in buckets])))

    def exchange(
        self, buffers: Mapping[str, torch.Tensor], gather: Callable[..., Sequence[Mapping[str, Any]]]
    ) -> list[torch.Tensor]:
        """Replace every gradient by its sum over ranks, and every buffer by that of rank 0.

        A gradient that only some ranks have counts as zeros on the others. A buffer whose shape or dtype differs
        between ranks stays as it is.

        Arguments:
            buffers: path -> buffer.
            gather: gathers the records of all ranks, which are passed to it as keyword arguments.

        Returns:
            The parameters that have a gradient on any rank.

        Raises:
            UsageError: a gradient is sparse.
            LostRankError: a rank does not take part.
        """
        described = {f"{path} {each.dtype} {tuple(each.shape)}": each for path, each in buffers.items()}
        small = buckets_of([parameter for parameter in self._in_record if parameter.grad is not None])
        buffer_buckets = [*joined(described.values())]
        has_buffers = not self._ranks.rank and _fit_into_record(described.values())
        records = gather(
            begun=self.count,
            present=bytes(parameter.grad is not None for parameter in self._parameters),
            buffers=[*described],
            gradient_values=[bucket.data() for bucket in small],
            buffer_values=[bucket.data() for bucket in buffer_buckets if has_buffers],
        )
        present = map(max, *(record["present"] for record in records))
        summed = [parameter for parameter, is_present in zip(self._parameters, present, strict=True) if is_present]
        done = self._sum_begun(max(record["begun"] for record in records), summed)
        if all(record[name] == records[0][name] for record in records for name in ("present", "buffers")):
            done.update(map(id, self._in_record))
            for bucket, *summands in zip(small, *(record["gradient_values"] for record in records), strict=True):
                bucket.put_sum(summands)
            if of_rank_0 := records[0]["buffer_values"]:
                for bucket, values in zip(buffer_buckets, of_rank_0, strict=True):
                    bucket.put_sum([values])
                buffer_buckets = []
        else:
            common = set(records[0]["buffers"]).intersection(*(record["buffers"] for record in records))
            buffer_buckets = [*joined(buffer for description, buffer in described.items() if description in common)]
        self._sum([parameter for parameter in summed if id(parameter) not in done], buffer_buckets)
        return summed

    def _sum_begun(self, count: int, summed: Sequence[torch.Tensor]) -> set[int]:
        """Begin all sums that any rank has begun; returns the identities of their parameters."""
        self._begin(count)
        groups = self._groups[:count]
        if count > self._large_count and [*map(id, summed)] != [*map(id, self._expected)]:
            # Other parameters than expected have gradients: small ones get other buckets, and the begun sum is dropped.
            groups.pop()
            self._begun[-1][0].clear()
        return {id(parameter) for group in groups for parameter in group}

    def _sum(self, parameters: Sequence[torch.Tensor], buffer_buckets: Sequence[Bucket]) -> None:
        """Sum these gradients too, broadcast buffers from rank 0, and wait for everything that was begun."""
        buckets = buckets_of(parameters)
        # A broadcast as a sum with zeros: of bytes, which keeps all bits.
        summands = [bucket.values.zero_() if self._ranks.rank else bucket.values for bucket in buffer_buckets]
        values = [*(bucket.values for bucket in buckets), *(each.view(torch.uint8) for each in summands)]
        self._begun.append(([*buckets, *buffer_buckets], self._ranks.begin_exchange(values)))
        for begun, wait in self._begun:
            wait()
            for bucket in begun:
                bucket.put()


def _fit_into_record(tensors: Iterable[torch.Tensor]) -> bool:
    """True for tensors on the CPU with few bytes."""
    return sum(tensor.nbytes if tensor.is_cpu else RECORD_BYTES + 1 for tensor in tensors) <= RECORD_BYTES


def is_large(parameter: torch.Tensor) -> bool:
    """True for a parameter whose gradient is summed alone; the parameter decides, because it is equal on all ranks."""
    return parameter.nbytes >= LARGE_BYTES


def _dense_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter, which is set to zeros if there is none; a UsageError if it is sparse."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.layout is not torch.strided:
        raise UsageError(
            f"a parameter of shape {list(parameter.shape)} has a sparse gradient; several ranks sum only dense ones",
            "make it dense, as with Embedding(..., sparse=False)",
        )
    return parameter.grad


def buckets_of(parameters: Sequence[torch.Tensor]) -> list[Bucket]:
    """The buckets of the gradients of parameters: first the large ones, then the joined small ones."""
    large = [Bucket([_dense_gradient(each)], in_place=True) for each in parameters if is_large(each)]
    return [*large, *joined(_dense_gradient(each) for each in parameters if not is_large(each))]


def joined(tensors: Iterable[torch.Tensor], bucket_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Join tensors, in their order, to buckets of one device and dtype; empty tensors are left out.

    >>> tensors = [torch.zeros(3), torch.zeros(2), torch.zeros(4)]
    >>> [len(bucket.values) for bucket in joined(tensors, bucket_bytes=20)]
    [5, 4]
    """
    buckets: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    sizes: dict[tuple[torch.device, torch.dtype], int] = {}
    for tensor in filter(torch.Tensor.numel, tensors):
        key, size = (tensor.device, tensor.dtype), tensor.nbytes
        if key in buckets and sizes[key] + size > bucket_bytes:
            yield Bucket(buckets.pop(key))
        sizes[key] = size + (sizes[key] if key in buckets else 0)
        buckets.setdefault(key, []).append(tensor)
    yield from map(Bucket, buckets.values())
