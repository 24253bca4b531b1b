"""Promise 11: one hash of values: what counts in it and what does not, its bounds, and equality by it."""

from __future__ import annotations

import collections
from typing import Any

import numpy
import pytest
import torch

from graphtrain.state import content
from graphtrain.state.content import ContentHash, content_hash, have_equal_contents, is_equal


class Sample:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def jagged(*parts: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([*parts], layout=torch.jagged)


M = torch.arange(12.0).reshape(3, 4)
LEAF = torch.ones(2)
# Of each row every value has another hash, and the same one when it is made again.
DIFFERENT: dict[str, Any] = {
    "containers": lambda: [
        10**5000, [10**5000 + 1], (10**5000, 1),
        [], {}, set(), frozenset(), [1, 2], [2, 1], [12], [[1], 2], (1, 2), collections.deque([1, 2]), {1: 2}, {2: 1},
        {1: [2]}, {1: (2,)}, {1, 2}, {1}, frozenset({1, 2}), collections.OrderedDict({1: 2}), [None], {(1, 2)},
        {((1,), 2)}, {"a": 1, "b": 2}, {"a": 2, "b": 1}, [[], []], [[[]]], Sample(a=1), Sample(a=2), Sample(b=1),
    ],
    "tensors": lambda: [
        M, M + 1, M.T, M.reshape(4, 3), M.double(), M.int(), M[:2], torch.nn.Parameter(M), torch.zeros(0),
        torch.zeros(0, 2), torch.ones(1), torch.ones(2).bfloat16(), torch.zeros(2).bfloat16(),
        torch.ones(2, dtype=torch.cfloat), torch.tensor([1 + 1j, 1]).conj(), M.to_sparse(), (M + M.eq(3)).to_sparse(),
        M.to_sparse_csr(), M.to_sparse_csc(), (M * 2).to_sparse_csr(), (M * 2).to_sparse_csc(),
        M.flip(0).to_sparse_csr(), torch.quantize_per_tensor(M, 1, 0, torch.qint8),
        torch.quantize_per_tensor(M, 1, 1, torch.qint8), jagged(torch.ones(2), torch.ones(3)), jagged(torch.ones(2)),
        jagged(torch.ones(2), torch.zeros(3)), torch.ones(3, device="meta"), torch.nn.UninitializedParameter(),
    ],
    "arrays": lambda: [
        M.numpy(), M.numpy() + 1, M.numpy().T, M.numpy().astype("f8"), numpy.zeros(0), numpy.zeros((0, 2)),
        numpy.array(1.0), numpy.array([None]), numpy.array([[1]], dtype=object),
        numpy.array([(1, "a")], dtype=[("x", int), ("y", object)]),
        numpy.array([(2, "a")], dtype=[("x", int), ("y", object)]),
    ],
    "sharing": lambda: [[LEAF, [1], LEAF], [LEAF, [1], LEAF.clone()], [LEAF.clone() + 1, [1], LEAF]],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:.*quantized tensor")
@pytest.mark.parametrize("name", DIFFERENT)
def test_every_difference_counts(name: str) -> None:
    hashes = [content_hash(value) for value in DIFFERENT[name]()]
    assert [content_hash(value) for value in DIFFERENT[name]()] == hashes
    assert len(hashes) == len(set(hashes))


@pytest.mark.parametrize(
    "values",
    [
        [Sample(a=1, b=2), Sample(b=2, a=1)],
        [{1, 2, 3}, {3, 2, 1}],
        [M.T, M.T.contiguous(), M.T.clone().requires_grad_(False)],
        [torch.ones(3, requires_grad=True), torch.ones(3), torch.ones(6)[::2], torch.ones(1).expand(3)],
        [torch.ones(2, dtype=torch.cfloat).conj(), torch.ones(2, dtype=torch.cfloat).conj().resolve_conj()],
        [torch.ones(2).bfloat16(), torch.ones(2, 2).bfloat16()[0]],
        [numpy.ones(3), numpy.ones(6)[::2]],
        [torch.ones(3, device="meta"), torch.ones(4, device="meta")],
    ],
    ids=range(8),
)
def test_order_of_names_layout_and_gradients_do_not_count(values: list[Any]) -> None:
    assert len({content_hash(value) for value in values}) == 1


@pytest.mark.parametrize("make", [list, lambda numbers: {number: number for number in numbers}, set])
def test_containers_beyond_the_bound_count_by_their_lengths(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(numbers: list[Any], most_items: int) -> tuple[str, bool]:
        monkeypatch.setattr(content, "MOST_ITEMS", most_items)
        whole = ContentHash()
        whole.add(make(numbers))
        return whole.hexdigest(), whole.is_whole

    numbers = [*range(3_000)]
    others = [*numbers[:1], 10**6, *numbers[2:]]
    assert hashed(numbers, 100_000)[1] and hashed(others, 100_000) != hashed(numbers, 100_000)
    if make is not set:
        assert not hashed(numbers, 2_000)[1] and hashed(others, 2_000) == hashed(numbers, 2_000)
        assert hashed(others[1:], 2_000) != hashed(numbers, 2_000)


EQUAL: list[tuple[Any, Any, bool, bool]] = [  # equal, and whether they hold the same
    (LEAF, LEAF, True, True), (LEAF, LEAF.clone(), False, False), (0.0, -0.0, False, False),
    (float("nan"), float("nan"), True, True), (1, 1.0, False, False), (1, True, False, False),
    ((1, ("a",)), (1, ("a",)), True, True), ((1, 2), (1, 3), False, False), ((1, [2]), (1, [2]), False, True),
    ([1], [1], False, True), ([1], [2], False, False), ([1], [1, 2], False, False), ([1], (1,), False, False),
    ({"a": [1]}, {"a": [1]}, False, True), ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False, False),
    ({0, 8}, {8, 0}, False, True), ({1, 2}, {1}, False, False), (frozenset({1}), frozenset({1}), True, True),
    (frozenset({1}), frozenset({1, 2}), False, False), (bytearray(b"a"), bytearray(b"a"), False, False),
    (Sample(a=1), Sample(a=1), False, False),
]  # fmt: skip


@pytest.mark.parametrize("row", EQUAL)
def test_equality(row: tuple[Any, Any, bool, bool]) -> None:
    before, now, equal, same = row
    assert (is_equal(before, now), have_equal_contents(before, now)) == (equal, same)
    assert (is_equal(now, before), have_equal_contents(now, before)) == (equal, same)
