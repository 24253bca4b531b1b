"""Plain forms: what is met in real state dicts comes back equal, and everything else is refused by its path."""

from __future__ import annotations

import collections
from typing import Any

import msgpack
import numpy
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphtrain.storage.plain import Tensors, UnsaveableError, pack, unpack
from graphtrain.storage.tree import join, split, tree_digest


def there_and_back(value: Any) -> Any:
    tensors = Tensors("file")
    data = pack(value, "value", tensors)
    stored = {name: one.contiguous().clone() for name, one in tensors.named.items()}
    return unpack(data, {"file": safetensors.torch.load(safetensors.torch.save(stored)) if stored else {}})


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.layout is torch.sparse_coo:
            return same(one.to_dense(), other.to_dense())
        equal = torch.equal(
            one.nan_to_num() if one.is_floating_point() else one,
            other.nan_to_num() if other.is_floating_point() else other,
        )
        return one.dtype == other.dtype and one.stride() == other.stride() and equal
    if isinstance(one, numpy.ndarray | numpy.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | collections.deque):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other) or (one != one and other != other)


numbers = st.booleans() | st.integers() | st.floats() | st.complex_numbers(allow_nan=False)
leaves = st.none() | numbers | st.text() | st.binary()
nests = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers() | st.tuples(st.integers(), st.text()), inner)
        | st.lists(inner).map(collections.deque)
        | st.sets(st.integers() | st.text())
        | st.frozensets(st.integers())
        | st.dictionaries(st.text(), inner).map(collections.OrderedDict)
        | st.dictionaries(st.text(), st.integers()).map(collections.Counter)
    ),
    max_leaves=12,
)


@given(nests)
def test_nests_of_plain_values_come_back_equal(value: Any) -> None:
    assert same(there_and_back(value), value)


TENSORS = {
    "0-d": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "bfloat16": torch.randn(3).bfloat16(),
    "bool": torch.tensor([True, False]),
    "complex64": torch.randn(3, dtype=torch.complex64),
    "complex128": torch.randn(3, dtype=torch.complex128),
    "complex128, 0-d": torch.tensor(1 + 2j, dtype=torch.complex128),
    "transposed": torch.randn(3, 4).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "sparse": torch.eye(3).to_sparse(),
    "integers": torch.arange(5),
    "nan and infinities": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_with_dtype_and_strides(name: str) -> None:
    back = there_and_back({"deep": [TENSORS[name]]})["deep"][0]
    assert same(back, TENSORS[name])


def test_a_gap_between_elements_is_closed() -> None:
    gapped = torch.arange(10)[::2]
    assert torch.equal(there_and_back(gapped), gapped)


@pytest.mark.parametrize(
    "value",
    [
        numpy.float32(1.5),
        numpy.arange(6).reshape(2, 3),
        numpy.array("x"),
        numpy.zeros((0, 2)),
        numpy.datetime64("2020-01-01"),
    ],
    ids=str,
)
def test_numpy_values_come_back(value: Any) -> None:
    assert same(there_and_back({"n": value})["n"], value)


def test_torch_sizes_and_dtypes_come_back() -> None:
    assert there_and_back([torch.Size([2, 3]), torch.float16]) == [torch.Size([2, 3]), torch.float16]


class Mine:
    pass


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Mine(), "Mine has no plain form"),
        (lambda: None, "function has no plain form"),
        (numpy.array([Mine()]), "array of objects"),
        (torch.ones(2, requires_grad=True) * 2, "autograd graph"),
        (collections.defaultdict(list), "defaultdict"),
        (iter([1]), "list_iterator"),
    ],
    ids=["object", "function", "object array", "graph", "defaultdict", "iterator"],
)
def test_everything_else_is_an_error_with_its_path(value: Any, reason: str) -> None:
    with pytest.raises(UnsaveableError, match=reason) as caught:
        pack({"a": [0, {"b": value}]}, "slots", Tensors("x"))
    assert caught.value.path == "slots['a'][1]['b']"


def test_a_nest_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UnsaveableError, match="nested more than"):
        pack(value, "value", Tensors("x"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(msgpack.ExtType(99, b"")),
        msgpack.packb(msgpack.ExtType(12, msgpack.packb(["f", "k", None, "cpu"]))),
    ],
    ids=["nothing", "no msgpack", "unknown form", "missing tensor"],
)
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="plain form"):
        unpack(data, {})


def test_equal_sets_have_one_form() -> None:
    one, other = {"a", "b", "c", 1, 2}, {2, 1, "c", "b", "a"}
    assert pack(one, "x", Tensors("x")) == pack(other, "x", Tensors("x"))


def test_a_tree_is_split_over_files_by_resource_and_joined_again() -> None:
    tree = {
        "resources": {
            "model": {"layer.weight": torch.ones(2)},
            "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}},
        },
        "gradients": {"model": {"layer.weight": torch.zeros(2)}},
        "slots": {"batch": (torch.ones(1), "x")},
    }
    data, files = split(tree)
    assert {one.file: sorted(one.named) for one in files} == {
        "model": ["layer.weight"],
        "optimizer": ["state/0/step"],
        "gradients": ["model/layer.weight"],
        "slots": ["batch/0"],
    }
    joined = join(data, {one.file: one.named for one in files})
    assert same(joined["slots"], tree["slots"])
    assert same(joined["resources"], tree["resources"])
    assert tree_digest(joined) == tree_digest(tree)
    tree["gradients"]["model"]["layer.weight"][0] = 1e-30
    assert tree_digest(joined) != tree_digest(tree)


def test_names_that_would_meet_in_a_file_are_kept_apart() -> None:
    tree = {"slots": {"v": {"x": torch.ones(2)}, "v/x": torch.zeros(2)}}
    data, files = split(tree)
    assert same(join(data, {one.file: one.named for one in files})["slots"], tree["slots"])
