"""The memory of tensors and arrays: where it lies, what shares it, and views of it that are made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from graphtrain.state import memory
from graphtrain.state.memory import Lie, Spans, lie_of, memory_of, overlapping, view_beside, view_within


@pytest.mark.parametrize(
    ("other", "overlaps", "is_within"),
    [
        (Lie(10, 20, "cpu"), True, True),
        (Lie(9, 21, "cpu"), True, True),
        (Lie(10, 19, "cpu"), True, False),
        (Lie(11, 20, "cpu"), True, False),
        (Lie(19, 30, "cpu"), True, False),
        (Lie(20, 30, "cpu"), False, False),
        (Lie(5, 11, "cpu"), True, False),
        (Lie(5, 10, "cpu"), False, False),
        (Lie(5, 30, "cuda:0"), False, False),
    ],
    ids=str,
)
def test_spans_of_one_device_may_overlap(other: Lie, overlaps: bool, is_within: bool) -> None:
    lie = Lie(10, 20, "cpu")
    assert (lie.overlaps(other), other.overlaps(lie), lie.is_within(other)) == (overlaps, overlaps, is_within)


def test_what_overlaps_is_grouped_by_address_and_device() -> None:
    spans = {"c": (8, 12), "a": (0, 10), "b": (2, 4), "d": (12, 14), "e": (20, 30), "f": (29, 31), "g": (30, 32)}
    lies = {key: Lie(*span, "cpu") for key, span in spans.items()}
    others = {f"{key} on a device": Lie(*span, "cuda:0") for key, span in spans.items() if key in "ae"}
    assert overlapping(lies | others) == [["a", "b", "c"], ["e", "f", "g"]]


# Memory of no allocation of torch's or NumPy's, from whose begin nothing is counted.
MEMORY = numpy.frombuffer(bytearray(4 * 400), dtype=numpy.float32)
TENSOR = torch.from_numpy(MEMORY)
SQUARE = TENSOR.reshape(20, 20)


@pytest.mark.parametrize(
    ("values", "met"),
    [
        ([TENSOR[100:110], TENSOR[90:101], TENSOR[90:100], TENSOR[110:120], TENSOR[109:120]], [0, 1, 4]),
        ([TENSOR[120:200], TENSOR[199:201], TENSOR[210:220]], [1]),  # between the two
        ([SQUARE[:, 0], SQUARE[:6, 1], SQUARE[:3, 1], SQUARE[:, 0][12:]], [0, 1]),  # with gaps
        ([MEMORY[100:110], MEMORY[90:100], MEMORY[:101:20][::-1], MEMORY[:0], MEMORY[300:]], [0, 2]),
        ([MEMORY[100:110], TENSOR[:5], TENSOR[204:206]], [0, 2]),
        ([torch.ones(2).to_sparse(), TENSOR[105:106], torch.empty(0)], [1]),
        ([torch.empty(0), torch.ones(3), TENSOR[105:106]], [2]),
        ([], []),
    ],
    ids=range(8),
)
def test_what_has_a_byte_in_spans_is_met(values: list[Any], met: list[int]) -> None:
    spans = [MEMORY[205:210], MEMORY[100:110], MEMORY[200:206]]
    assert Spans([*spans, MEMORY[:0]]).met_by(values) == met
    assert Spans(torch.from_numpy(part) for part in spans).met_by(values) == met
    assert Spans([torch.empty(0), *map(torch.from_numpy, spans)]).met_by(values) == met


def test_what_shares_an_allocation_is_met_wherever_it_lies_in_it() -> None:
    tensor, array = torch.ones(100), numpy.ones(100)
    values = [tensor[:10], tensor[90:], torch.ones(100), torch.from_numpy(array)[:5], array[:5], numpy.ones(100)]
    assert Spans([tensor[50:60], array[50:60]]).met_by(values) == [0, 1, 3, 4]
    assert Spans([tensor[50:60], array[50:60]]).met_by(values[:3]) == [0, 1]
    assert Spans([]).met_by(values) == []


def test_of_whole_allocations_no_size_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as slow to read as an address."""
    tensor, array = torch.ones(100), numpy.ones(100)
    spans = Spans([tensor[50:60], array[50:60], torch.ones(0), torch.ones(1, device="meta")])
    monkeypatch.setattr(memory, "_nbytes", lambda tensor: pytest.fail("read"))
    assert spans.met_by([tensor[:10], torch.ones(3)]) == [0]


def test_the_span_of_a_value() -> None:
    begin = int(TENSOR.data_ptr())
    table: list[tuple[Any, tuple[int, int] | None]] = [
        (TENSOR[3:7], (12, 28)),
        (SQUARE[1:3, 2:5], (88, 180)),
        (SQUARE[1:3, 2:5].T, (88, 180)),
        (TENSOR[:0], None),
        (TENSOR[:4].to_sparse(), None),
        (torch.ones(3, device="meta"), None),
        (torch.nn.UninitializedParameter(), None),
        (MEMORY[3:7], (12, 28)),
        (MEMORY[3:7][::-1], (12, 28)),
        (MEMORY.reshape(20, 20)[1:3, 4:1:-1], (88, 180)),
        (MEMORY.reshape(20, 20)[1:2, 2:5], (88, 100)),
        (MEMORY.reshape(20, 20)[1:2, 4:1:-1][::-1], (88, 100)),
        (MEMORY[:0], None),
        (numpy.array([None]), None),
    ]
    for value, span in table:
        assert lie_of(value) == (span and Lie(begin + span[0], begin + span[1], "cpu")), value


def test_the_span_of_all_the_memory_around_a_value() -> None:
    tensor, array = torch.ones(10), numpy.ones((4, 3))
    whole = Lie(int(tensor.data_ptr()), int(tensor.data_ptr()) + 40, "cpu")
    assert memory_of(tensor[3:5]) == whole == lie_of(tensor)
    assert memory_of(array[1:, ::2]) == lie_of(array)
    read_only = numpy.ones(3)
    read_only.flags.writeable = False
    assert memory_of(numpy.ones((4, 3), order="F")[1:]) is not None
    for value in (tensor[:0], tensor.to_sparse(), read_only[1:]):
        assert memory_of(value) is None


# ---- views


@pytest.mark.parametrize("kept", [torch.arange(60.0), numpy.arange(60.0, dtype="float32")], ids=["tensor", "array"])
@pytest.mark.parametrize(
    ("cut", "described"),
    [
        (lambda value: value[20:23], [[3], [4], 0, 16]),
        (lambda value: value[20:40].reshape(4, 5)[1:3, ::2], [[2, 3], [20, 8], 20, 36]),
    ],
    ids=["part", "steps"],
)
def test_a_view_is_described_in_bytes_and_made_again(kept: Any, cut: Callable[[Any], Any], described: Any) -> None:
    owner, value = kept[20:50], cut(kept)
    if isinstance(kept, numpy.ndarray):
        described = [*described[:3], 0]
    view = view_within(value, owner, beyond=False)
    assert view == described
    again = view_beside(owner, view, value)
    assert type(again) is type(value) and again.tolist() == value.tolist() and lie_of(again) == lie_of(value)
    other = torch.from_numpy(kept)[20:50] if isinstance(kept, numpy.ndarray) else kept.numpy()[20:50]
    assert lie_of(view_beside(other, view, value)) == lie_of(value)
    if isinstance(kept, torch.Tensor):
        assert again.untyped_storage().data_ptr() == kept.untyped_storage().data_ptr()
        assert again.storage_offset() == value.storage_offset()


def test_a_tensor_over_a_part_of_an_array_is_as_far_from_a_cache_line_as_it_was() -> None:
    array = numpy.arange(60.0, dtype="float32")
    for value in (torch.from_numpy(array[25:])[3:7], torch.from_numpy(array[25:]), torch.from_numpy(array)[28:32]):
        view = view_within(value, array[20:], beyond=False)
        assert view is not None
        again = view_beside(array[20:], view, value)
        assert again.storage_offset() % 16 == value.storage_offset() % 16
        assert lie_of(again) == lie_of(value) and again.tolist() == value.tolist()


def test_a_view_of_memory_beyond_its_owner_is_described_only_where_that_is_set_up() -> None:
    kept = torch.arange(60.0)
    for value, is_inside in ((kept[19:23], False), (kept[40:51], False), (kept[20:50], True)):
        assert (view_within(value, kept[20:50], beyond=False) is not None) is is_inside
        view = view_within(value, kept[20:50], beyond=True)
        assert view is not None and lie_of(view_beside(kept[20:50], view, value)) == lie_of(value)
    assert view_within(torch.ones(2), kept, beyond=True) is None


def test_what_no_view_describes() -> None:
    class OwnTensor(torch.Tensor):
        pass

    class OwnArray(numpy.ndarray):  # type: ignore[type-arg]
        pass

    tensor, array = torch.ones(4), numpy.ones(4)
    for value, owner in (
        (tensor.as_subclass(OwnTensor), tensor),
        (array.view(OwnArray), array),
        (tensor[:0], tensor),
        (tensor, tensor[:0]),
        (tensor, tensor.to_sparse()),
    ):
        assert view_within(value, owner, beyond=True) is None


def test_views_are_lazily_conjugated_and_negated_again() -> None:
    kept = torch.arange(4.0).to(torch.complex64) * (1 + 2j)
    for value in (kept, kept.conj(), kept.conj().imag, torch.view_as_real(kept)):
        view = view_within(value, kept, beyond=False)
        assert view is not None and view[4:] == ["conj"] * value.is_conj() + ["neg"] * value.is_neg()
        again = view_beside(kept, view, value)
        assert (again.is_conj(), again.is_neg()) == (value.is_conj(), value.is_neg())
        assert again.tolist() == value.tolist()


def test_a_view_needs_gradients_as_what_it_replaces_does() -> None:
    kept = torch.ones(4)
    for needs in (True, False):
        assert view_beside(kept, [[2], [4], 0, 0], torch.ones(2).requires_grad_(needs)).requires_grad is needs


READ_ONLY = numpy.ones(4)
READ_ONLY.flags.writeable = False
OWNER = torch.zeros(34)[2:32]  # eight bytes after the begin of a cache line
NOT_WITHIN, NOT_ALIGNED = "a view does not fit into the memory of its base", "a view is not aligned with the elements"


@pytest.mark.parametrize(
    ("owner", "view", "message"),
    [
        (OWNER, [[32], [4], 0, 8], None),  # to the last byte
        (OWNER, [[2], [4], -8, 0], None),  # from the first one
        (OWNER, [[33], [4], 0, 8], NOT_WITHIN),
        (OWNER, [[2, 32], [4, 4], 0, 8], NOT_WITHIN),
        (OWNER, [[2], [4], -12, 0], NOT_WITHIN),
        (OWNER, [[2], [4], 0, 12], NOT_WITHIN),
        (OWNER, [[2], [4], 0, -4], NOT_WITHIN),
        (OWNER, [[-1], [4], 0, 8], NOT_WITHIN),
        (OWNER, [[2], [-4], 8, 16], NOT_WITHIN),
        (OWNER, [[2], [6], 0, 8], NOT_ALIGNED),
        (OWNER, [[2], [4], 2, 10], NOT_ALIGNED),
        (torch.ones(4).to_sparse(), [[2], [4], 0, 0], "the base of a view has no memory now"),
        (torch.ones(0), [[2], [4], 0, 0], "the base of a view has no memory now"),
        (MEMORY[:0], [[2], [4], 0, 0], "the base of a view has no memory now"),
        (READ_ONLY, [[2], [4], 0, 0], "the base of a view has no memory now"),
    ],
    ids=str,
)
def test_a_view_that_is_not_within_is_refused(owner: Any, view: Any, message: str | None) -> None:
    if message is None:
        assert view_beside(owner, view, torch.ones(1)).shape == tuple(view[0])
        return
    with pytest.raises(ValueError, match=message):
        view_beside(owner, view, torch.ones(1))
