"""One hash of values: what counts in it and what does not, its bounds, and equality by it."""

from __future__ import annotations

import collections
import enum
import os
import sqlite3
import types
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain.state.content import ContentHash, are_equal, content_hash, hold_the_same, is_equal


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Sample:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def function() -> None:
    """Something with a name."""


def shared(first: Any, other: Any) -> Any:
    return [first, [1, 2], other]


def database(rows: int) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table numbers (number)")
    for number in range(rows):
        connection.execute("insert into numbers values (?)", (number,))
    return connection


def jagged(*parts: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([*parts], layout=torch.jagged)


MATRIX = torch.arange(12.0).reshape(3, 4)
LEAF = torch.ones(2)
# Of each row every value has another hash, and the same one when it is made again.
DIFFERENT: dict[str, Any] = {
    "containers": lambda: (
        [
            [],
            {},
            set(),
            frozenset(),
            [1, 2],
            [2, 1],
            [12],
            [[1], 2],
            (1, 2),
            collections.deque([1, 2]),
            {1: 2},
            {2: 1},
            {1: [2]},
            {1: (2,)},
            {1, 2},
            {1},
            frozenset({1, 2}),
            collections.OrderedDict({1: 2}),
            [None],
            {(1, 2)},
            {((1,), 2)},
            {"a": 1, "b": 2},
            {"a": 2, "b": 1},
            [[], []],
            [[[]]],
        ]
    ),
    "tensors": lambda: (
        [MATRIX, MATRIX + 1, MATRIX.T, MATRIX.reshape(4, 3), MATRIX.double(), MATRIX.int(), MATRIX[:2]]
        + [torch.nn.Parameter(MATRIX), torch.zeros(0), torch.zeros(0, 2), torch.ones(1), torch.ones(2).bfloat16()]
        + [torch.zeros(2).bfloat16(), torch.ones(2, dtype=torch.cfloat), torch.tensor([1 + 1j, 1]).conj()]
        + [MATRIX.to_sparse(), (MATRIX + MATRIX.eq(3)).to_sparse(), MATRIX.to_sparse_csr(), MATRIX.to_sparse_csc()]
        + [(MATRIX * 2).to_sparse_csr(), (MATRIX * 2).to_sparse_csc(), MATRIX.flip(0).to_sparse_csr()]
        + [torch.quantize_per_tensor(MATRIX, 1, zero, torch.qint8) for zero in (0, 1)]
        + [jagged(torch.ones(2), torch.ones(3)), jagged(torch.ones(2), torch.zeros(3)), jagged(torch.ones(2))]
        + [torch.ones(3, device="meta"), torch.nn.UninitializedParameter()]
    ),
    "arrays": lambda: (
        [
            MATRIX.numpy(),
            MATRIX.numpy() + 1,
            MATRIX.numpy().T,
            MATRIX.numpy().astype("f8"),
            numpy.zeros(0),
            numpy.zeros((0, 2)),
            numpy.array(1.0),
            numpy.array([None]),
            numpy.array([[1]], dtype=object),
            numpy.array([(1, "a")], dtype=[("x", int), ("y", object)]),
            numpy.array([(2, "a")], dtype=[("x", int), ("y", object)]),
        ]
    ),
    "sharing": lambda: [shared(LEAF, LEAF), shared(LEAF, LEAF.clone()), shared(LEAF.clone() + 1, LEAF)],
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:.*quantized tensor")
@pytest.mark.parametrize("name", DIFFERENT)
def test_every_difference_counts(name: str) -> None:
    hashes = [content_hash(value) for value in DIFFERENT[name]()]
    assert [content_hash(value) for value in DIFFERENT[name]()] == hashes
    assert len(hashes) == len(set(hashes))


def test_an_object_that_is_met_again_at_once_is_the_same() -> None:
    one, two = torch.zeros(1), torch.zeros(1)
    assert content_hash([one, one]) == content_hash([two, two]) != content_hash([one, two])
    inside: list[Any] = []
    inside.append(inside)
    assert content_hash(inside) != content_hash([[]])


@pytest.mark.parametrize(
    "values",
    [
        [Sample(a=1, b=2), Sample(b=2, a=1)],
        [{1, 2, 3}, {3, 2, 1}],
        [MATRIX.T, MATRIX.T.contiguous(), MATRIX.T.clone().requires_grad_(False)],
        [torch.ones(3, requires_grad=True), torch.ones(3), torch.ones(6)[::2], torch.ones(1).expand(3)],
        [torch.ones(1), torch.ones(5)[::5], torch.ones(2)[1:]],
        [torch.ones(2, dtype=torch.cfloat).conj(), torch.ones(2, dtype=torch.cfloat).conj().resolve_conj()],
        [torch.ones(2).bfloat16(), torch.ones(2, 2).bfloat16()[0]],
        [numpy.ones(3), numpy.ones(6)[::2]],
        [torch.ones(3, device="meta"), torch.ones(4, device="meta")],
        [database(3)],
    ],
    ids=range(10),
)
def test_order_of_names_layout_and_gradients_do_not_count(values: list[Any]) -> None:
    assert len({content_hash(value) for value in values}) == 1


def test_a_frame_of_pandas_counts_by_names_index_and_columns() -> None:
    pandas = pytest.importorskip("pandas")
    made = [
        pandas.DataFrame({"a": [1, 2], "b": [3, 4]}), pandas.DataFrame({"a": [1, 2], "c": [3, 4]}),
        pandas.DataFrame({"a": [1, 2], "b": [3, 5]}), pandas.DataFrame({"a": [1, 2], "b": [3, 4]}, index=[0, 2]),
        pandas.Series([1, 2]), pandas.Series([1, 3]), pandas.DataFrame({"a": [1, 2]}),
    ]  # fmt: skip
    hashes = [content_hash(each) for each in made]
    assert len(set(hashes)) == len(made)
    assert [content_hash(each.copy()) for each in made] == hashes


# ---- bounds


@pytest.mark.parametrize("make", [list, tuple, lambda numbers: {number: number for number in numbers}, set])
def test_containers_beyond_the_bound_count_by_a_sample(make: Any) -> None:
    def hashed(numbers: list[Any], most_items: int) -> tuple[str, bool]:
        whole = ContentHash(most_items=most_items)
        whole.add(make(numbers))
        return whole.hexdigest(), whole.is_whole

    numbers = [*range(3_000)]
    assert hashed(numbers, 100_000)[1] and not hashed(numbers, 2_000)[1]
    assert hashed(numbers[:1_024], 10)[1] and not hashed(numbers[:1_025], 10)[1]
    others = [*numbers[:1], 10**6, *numbers[2:]]  # the second, of which every other is looked at
    assert (hashed(others, 2_000) == hashed(numbers, 2_000)) is (make is not set)
    assert hashed(others, 100_000) != hashed(numbers, 100_000)
    others[2] = -5
    assert hashed(others, 2_000) != hashed(numbers, 2_000)


# ---- files


def test_a_file_in_memory_counts_by_name_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "numbers", tmp_path / "others"
    for path in (file, other):
        numpy.zeros(2**18, dtype="f4").tofile(path)
        os.utime(path, ns=(5, 5))

    def hashes() -> list[str]:
        tensor = torch.from_file(str(file), size=2**18, shared=True)
        return [content_hash(numpy.memmap(file)), content_hash(numpy.memmap(file)[4:]), content_hash(tensor)]

    inside = hashes()  # of the folder for temporary files, whose names are drawn
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nowhere")
    before = hashes()
    assert len({*inside, *before}) == 6
    assert content_hash(numpy.memmap(other)) != before[0]
    assert content_hash(numpy.memmap(file, shape=8)[::2]) != content_hash(numpy.memmap(file, shape=4))
    with file.open("r+b") as opened:
        opened.write(b"abcd")
    os.utime(file, ns=(5, 5))
    assert hashes() == before
    os.utime(file, ns=(5, 6))
    assert not {*hashes()} & {*before}
    content_of = ContentHash()
    content_of.add(numpy.memmap(file))
    assert content_of.bytes == 0
    gone = numpy.memmap(file)
    file.unlink()
    assert content_hash(gone) not in before, "its values count"


# ---- equality


NAN = float("nan")
EQUAL: list[tuple[Any, Any, bool, bool]] = [  # equal, and whether they hold the same
    (LEAF, LEAF, True, True),
    (LEAF, LEAF.clone(), False, False),
    (0.0, -0.0, False, False),
    (NAN, float("nan"), True, True),
    (1, 1.0, False, False),
    (1, True, False, False),
    ("a" * 3, "".join("aaa"), True, True),
    (Colour.RED, Colour.BLUE, False, False),
    ((1, ("a",)), (1, ("a",)), True, True),
    ((1, 2), (1, 2, 3), False, False),
    ((1, 2), (1, 3), False, False),
    ((1, [2]), (1, [2]), False, True),
    ([1], [1], False, True),
    ([1], [2], False, False),
    ([1], [1, 2], False, False),
    ([1], (1,), False, False),
    ({"a": [1]}, {"a": [1]}, False, True),
    ({"a": [1]}, {"b": [1]}, False, False),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False, False),
    ({0, 8}, {8, 0}, False, True),  # in another order
    ({1, 2}, {1}, False, False),
    ({1, 2}, {1, 3}, False, False),
    (frozenset({1}), frozenset({1}), True, True),
    (frozenset({1}), frozenset({2}), False, False),
    (frozenset({1}), frozenset({1, 2}), False, False),
    (collections.deque([1]), collections.deque([1]), False, True),
    (bytearray(b"a"), bytearray(b"a"), False, False),
    (Sample(a=1), Sample(a=1), False, False),
    (first := Sample(a=1).__init__, types.MethodType(first.__func__, first.__self__), True, True),
    (first, Sample(a=1).__init__, False, False),
    (first, types.MethodType(function, first.__self__), False, False),
]


@pytest.mark.parametrize("row", EQUAL)
def test_equality(row: tuple[Any, Any, bool, bool]) -> None:
    before, now, equal, same = row
    assert (is_equal(before, now), hold_the_same(before, now)) == (equal, same)
    assert (is_equal(now, before), hold_the_same(now, before)) == (equal, same)
    assert are_equal([1, before], iter([1, now])) is equal
    assert not are_equal([before], [before, now]) and not are_equal([before, now], [before])
