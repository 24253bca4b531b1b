"""Plain forms: what is met in real state dicts comes back equal, and everything else is refused by its path."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import multiprocessing
import os
import random
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import numpy
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from graphtrain import Graph, Trainer
from graphtrain.errors import CheckpointError
from graphtrain.state.modules import capture_module, restore_module
from graphtrain.storage.decoding import unpack
from graphtrain.storage.encoding import Code, Found, Tensors, UnsaveableError, pack
from graphtrain.storage.state_files import joined, split, state_digest


def there_and_back(value: Any) -> Any:
    tensors = Tensors("file")
    data = pack(value, "value", tensors)
    stored = {name: one.contiguous().clone() for name, one in tensors.named.items()}
    back = unpack(data, {"file": safetensors.torch.load(safetensors.torch.save(stored)) if stored else {}})
    again = Tensors("file")
    assert pack(back, "value", again) == data, "a value that came back has the same form"
    return back


def bits(tensor: torch.Tensor) -> bytes:
    fresh = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return fresh.view(torch.uint8).numpy().tobytes()


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, the payload of a NaN and the order of a dict included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.layout is torch.sparse_coo:
            parts = ((one._indices(), other._indices()), (one._values(), other._values()))
            return one.shape == other.shape and all(same(first, second) for first, second in parts)
        facts = [(tensor.dtype, tensor.shape, tensor.requires_grad) for tensor in (one, other)]
        return facts[0] == facts[1] and (not one.numel() or bits(one) == bits(other))
    if isinstance(one, numpy.ndarray | numpy.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        if getattr(one, "default_factory", None) is not getattr(other, "default_factory", None):
            return False
        return len(one) == len(other) and all(
            same(pair, its) for pair, its in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, collections.deque):
        return one.maxlen == other.maxlen and same(list(one), list(other))
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same((one.real, one.imag), (other.real, other.imag))
    return bool(one == other)


def test_the_comparison_sees_a_single_bit() -> None:
    """What all tests here rest on."""
    different: list[tuple[Any, Any]] = [
        (0.0, -0.0), (float("nan"), -float("nan")), (1, True), (1, 1.0), ({"a": 1}, {"a": 1.0}), ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (complex(0.0, -0.0), 0j),
        (collections.deque([1], 2), collections.deque([1], 3)),
        (collections.defaultdict(int), collections.defaultdict(list)),
        (torch.tensor(0.0), torch.tensor(-0.0)), (torch.zeros(2), torch.zeros(2).half()),
        (torch.zeros(2), torch.zeros(2, requires_grad=True)), (numpy.float32(1), numpy.float64(1)),
    ]  # fmt: skip
    for one, other in different:
        assert same(one, one) and same(other, other) and not same(one, other)


def float_of(pattern: int) -> float:
    """Any of the 2**64 floats, each NaN among them."""
    value: float = struct.unpack("<d", pattern.to_bytes(8, "little"))[0]
    return value


floats = st.floats() | st.integers(0, 2**64 - 1).map(float_of)
texts = st.text(st.characters(exclude_categories=())) | st.text()  # half characters too
numbers = st.booleans() | st.integers() | st.integers(-(2**200), 2**200) | floats | st.builds(complex, floats, floats)
leaves = (
    st.none()
    | numbers
    | texts
    | st.binary()
    | st.binary().map(bytearray)
    | st.sampled_from([torch.bfloat16, torch.device("cpu"), torch.Size([2, 3])])
)
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | texts | st.binary() | floats,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
factories = st.sampled_from([None, int, float, list, dict, set])
nests = st.recursive(
    leaves | keys,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(texts, inner)
        | st.dictionaries(keys, inner)
        | st.builds(collections.deque, st.lists(inner), st.none() | st.integers(0, 5))
        | st.dictionaries(texts, inner).map(collections.OrderedDict)
        | st.dictionaries(keys, st.integers()).map(collections.Counter)
        | st.builds(collections.defaultdict, factories, st.dictionaries(keys, inner))
    ),
    max_leaves=12,
)


@pytest.mark.full
@given(nests)
def test_nests_of_plain_values_come_back_equal_to_the_last_bit(value: Any) -> None:
    assert same(there_and_back(value), value)


members = st.none() | st.integers() | texts | st.frozensets(st.text()) | st.tuples(st.integers(), st.text())


@pytest.mark.full
@given(st.sets(members))
def test_sets_come_back(value: set[Any]) -> None:
    assert same(there_and_back(value), value)
    assert same(there_and_back(frozenset(value)), frozenset(value))


BYTES_OF_A_SET = """
from graphtrain.storage.encoding import Tensors, pack
sets = {frozenset({"a", "b", "c"}), frozenset({"d", "e"}), ("x", frozenset({"u", "v", "w"})), "a", 1}
print(pack(sets, "x", Tensors("x")).hex())
"""


@pytest.mark.sweep
def test_equal_sets_have_one_form_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", BYTES_OF_A_SET],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.full
@given(numpy_strategies.arrays(numpy_strategies.scalar_dtypes(), numpy_strategies.array_shapes(min_dims=0, min_side=0)))
def test_arrays_of_every_scalar_type_come_back(value: Any) -> None:
    assert same(there_and_back({"n": value})["n"], value)
    for scalar in numpy.asarray(value).reshape(-1)[:2]:
        assert same(there_and_back([scalar])[0], scalar)


WIDE = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
}  # fmt: skip


@pytest.mark.full
@given(st.data(), st.sampled_from(sorted(WIDE, key=str)), st.lists(st.integers(0, 4), max_size=4), st.booleans())
def test_tensors_of_every_type_come_back_with_every_bit_pattern(
    data: st.DataObject, dtype: torch.dtype, shape: list[int], leaf: bool
) -> None:
    elements = 1
    for size in shape:
        elements *= size
    width = torch.empty(0, dtype=dtype).element_size()
    raw = data.draw(st.binary(min_size=elements * width, max_size=elements * width))
    value = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
    value = value.permute(data.draw(st.permutations(range(len(shape)))))
    if leaf and dtype in (torch.float32, torch.complex64):
        value.requires_grad_()
    back = there_and_back(value)
    assert same(back, value)
    assert back.stride() == value.stride() or not value.numel()


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) / 7).reshape(shape).to(dtype)


rows = torch.arange(60.0).reshape(3, 4, 5)
TENSORS = {
    "0-d": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "bool": torch.tensor([True, False]),
    "complex128, 0-d": torch.tensor(1 + 2j, dtype=torch.complex128),
    "transposed": numbered(3, 4).t(),
    "complex128, transposed": numbered(3, 4, dtype=torch.complex128).t(),
    "channels last": numbered(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last with one channel": numbered(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "all but the last of each row": rows[:, :, :-1],
    "all but the first of each row": rows[:, :, 1:],
    "every second": torch.arange(10)[::2],
    "every second of a transposed one": rows.transpose(0, 2)[::2],
    "expanded": torch.arange(3).expand(4, 3),
    "expanded in the middle": torch.arange(6.0).reshape(2, 1, 3).expand(2, 5, 3),
    "expanded from one number": torch.tensor(2.5).expand(3, 2),
    "transposed, of a row with a small stride": numbered(6).as_strided((1, 3, 2), (2, 1, 3)),
    "transposed, of a row without a stride": numbered(6).as_strided((1, 3, 2), (0, 1, 3)),
    "one of each five": torch.arange(5)[::5],
    "as far apart as is kept": torch.arange(16.0)[::15],
    "later in its storage": torch.arange(9.0)[3:],
    "some cache lines later in its storage": torch.arange(9.0, dtype=torch.float64).repeat(30)[100:],
    "a leaf": torch.ones(2, requires_grad=True),
    "a leaf with gaps": torch.arange(10.0)[::2].requires_grad_(),
    "sparse": torch.eye(3).to_sparse(),
    "sparse, not coalesced": torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,), check_invariants=True),
    "sparse leaf": torch.eye(3).to_sparse().requires_grad_(),
    "nan and infinities": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_with_dtype_and_strides(name: str) -> None:
    tensor = TENSORS[name]
    back = there_and_back({"deep": [tensor]})["deep"][0]
    assert same(back, tensor)
    if tensor.layout is torch.strided:
        assert (back.stride(), back.requires_grad) == (tensor.stride(), tensor.requires_grad)
        offset, memory = back.storage_offset(), back.untyped_storage().nbytes() // back.element_size()
        assert offset == tensor.storage_offset() % (64 // tensor.element_size())
        if tensor.numel():
            assert memory == offset + 1 + sum(
                (size - 1) * step for size, step in zip(back.shape, back.stride(), strict=True)
            )


def test_a_sum_over_what_came_back_is_the_same_to_the_last_bit() -> None:
    """What strides are kept for."""
    torch.manual_seed(0)
    sliced = [torch.randn(40, 37)[:, :step] for step in range(6, 37)] + [torch.randn(50, 40).t()[:, ::3]]
    assert all(torch.equal(there_and_back(one).sum(0), one.sum(0)) for one in sliced)


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.arange(4).unfold(0, 2, 1),
        torch.arange(10_000).reshape(100, 100)[:, 3],
        torch.arange(17.0)[::16],
    ],
    ids=["conjugated", "overlapping windows", "a column of a wide matrix", "too far apart"],
)
def test_what_lies_otherwise_in_memory_keeps_its_values(value: torch.Tensor) -> None:
    assert same(there_and_back(value), value)
    assert there_and_back(value).is_contiguous()


def test_a_column_does_not_bring_its_matrix_along() -> None:
    tensors = Tensors("file")
    pack([torch.zeros(1000, 1000)[:, 1], torch.zeros(1).expand(10**9)], "value", tensors)
    assert [one.numel() for one in tensors.named.values()] == [1000, 1]


OTHER_SHAPE, TOO_MUCH = "a tensor of another shape than its values", "a tensor with more memory than it can have had"


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ([[3], [2], 0], OTHER_SHAPE),
        ([[2, 0], [1, 0], 0], OTHER_SHAPE),
        ([[2], [1], -1], OTHER_SHAPE),
        ([[2], [10**12], 0], TOO_MUCH),
        ([[2], [16], 0], TOO_MUCH),
        ([[2], [1], 10**12], TOO_MUCH),
        ([[2], [1], 64], TOO_MUCH),
    ],
)
def test_a_placement_that_cannot_be_is_refused(where: list[Any], reason: str) -> None:
    shape, values = ([2], bytes(8)) if len(where[0]) == 1 else ([2, 0], b"")
    tensor = msgpack.ExtType(Code.RAW, msgpack.packb(["float32", shape, values, "cpu"]))
    forged = msgpack.packb(msgpack.ExtType(Code.PLACED, msgpack.packb([tensor, where, False])))
    with pytest.raises(ValueError, match=f"^not a valid encoding: {reason}$"):
        unpack(forged, {})


FIELDS = numpy.dtype([("step", "<i4"), ("loss", ">f8", (2,)), ("name", "U3")])


@pytest.mark.parametrize(
    "value",
    [
        numpy.float32(1.5),
        numpy.arange(6).reshape(2, 3),
        numpy.arange(6, dtype=">i4"),
        numpy.arange(10)[::-3],
        numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
        numpy.array(3.5),
        numpy.array("x"),
        numpy.array(""),
        numpy.zeros(2, "V0"),
        numpy.zeros((0, 2)),
        numpy.datetime64("2020-01-01"),
        numpy.array(["2020-01-01", "NaT"], "M8[ns]"),
        numpy.timedelta64(3, "h"),
        numpy.array([(1, [0.5, -0.0], "abc")] * 2, FIELDS),
        numpy.array([(1, [0.5, -0.0], "abc")] * 2, FIELDS)[0],
        numpy.zeros(2, numpy.dtype([("small", "i1"), ("wide", "f8")], align=True)),
        numpy.bool_(True),
        numpy.array([1 + 2j]),
        numpy.array([b"a", b"bc"]),
    ],
    ids=lambda value: f"{type(value).__name__} {value.dtype} {value.shape}",
)
def test_numpy_values_come_back(value: Any) -> None:
    back = there_and_back({"n": value})["n"]
    assert same(back, value)
    if value.size and (value.flags.f_contiguous or value.flags.c_contiguous):
        assert back.strides == value.strides
    assert back.flags.writeable == isinstance(value, numpy.ndarray) or isinstance(value, numpy.void)


def test_a_memory_mapped_array_comes_back_as_an_array(tmp_path: Any) -> None:
    mapped = numpy.memmap(tmp_path / "tokens", "uint16", "w+", shape=(4,))
    mapped[:] = [1, 2, 3, 65535]
    assert same(there_and_back(mapped), numpy.array([1, 2, 3, 65535], "uint16"))


def test_torch_sizes_dtypes_and_devices_come_back() -> None:
    value = [torch.Size([2, 3]), torch.float16, torch.float8_e5m2, torch.device("cuda", 1)]
    assert same(there_and_back(value), value)


def test_the_versions_in_a_state_dict_come_back() -> None:
    """By `_metadata`, modules that have changed their state know the form in which it was saved."""
    state = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).state_dict()
    assert there_and_back(state)._metadata == state._metadata == {"": {"version": 1}, "0": {"version": 2}}  # type: ignore[attr-defined]


def test_a_parameter_comes_back_as_a_leaf() -> None:
    back = there_and_back(torch.nn.Parameter(torch.ones(2)))
    assert type(back) is torch.Tensor
    assert back.requires_grad and back.is_leaf


@pytest.mark.parametrize(
    "state",
    [
        random.Random(3).getstate(),
        numpy.random.default_rng(3).bit_generator.state,
        numpy.random.RandomState(3).get_state(),
        torch.Generator().manual_seed(3).get_state(),
    ],
    ids=["random", "numpy", "numpy, legacy", "torch"],
)
def test_the_states_of_generators_come_back(state: Any) -> None:
    assert same(there_and_back(state), state)


class Mine:
    pass


class Keeping(Mine):
    def state_dict(self) -> dict[str, int]:
        return {}


@dataclasses.dataclass
class Settings:
    rate: float = 0.1


class Phase(enum.Enum):
    WARM = 1


class Image(torch.Tensor):
    pass


class Table(dict[str, int]):
    pass


RECREATED = "save numbers, text, lists, dicts, tensors or arrays from which it can be recreated"
BY_IDENTITY = "is looked up by its identity, which a resume cannot keep"
HERE = __name__
UNSAVEABLE: dict[str, tuple[Any, str, str]] = {
    "object": (Mine(), f"a {HERE}.Mine cannot be encoded", RECREATED),
    "object with state": (Keeping(), f"a {HERE}.Keeping cannot be encoded", "save `value.state_dict()`"),
    "function": (len, "a builtins.builtin_function_or_method cannot be encoded", RECREATED),
    "class": (Settings, "a builtins.type cannot be encoded", RECREATED),
    "object array": (numpy.array([Mine()]), "a NumPy array of objects cannot be encoded", ""),
    "masked array": (numpy.ma.masked_array([1], [True]), "a MaskedArray would come back as a plain array", ""),
    "graph": (
        torch.ones(2, requires_grad=True) * 2, "it is a tensor that is part of an autograd graph",
        "save `tensor.detach()`",
    ),
    "tensor subclass": (
        torch.ones(2).as_subclass(Image), f"a {HERE}.Image would come back as a plain tensor",
        "save `tensor.as_subclass(torch.Tensor)`",
    ),
    "lazy": (
        torch.nn.parameter.UninitializedParameter(), "it is a lazy parameter, which has no values yet",
        "pass a batch through the model first",
    ),
    "meta": (torch.ones(2, device="meta"), "a tensor on the device `meta` has no values", ""),
    "iterator": (iter([1]), "a builtins.list_iterator cannot be encoded", RECREATED),
    "defaultdict": (
        collections.defaultdict(print),
        "the default of a defaultdict must be one of bool, int, float, complex, str, bytes, list, tuple, dict, set; "
        "<built-in function print> cannot be encoded",
        "save `dict(value)`, and fill a new defaultdict with it",
    ),
    "dict of a class": (Table(a=1), f"a {HERE}.Table cannot be encoded", RECREATED),
    "tensor in a set": ({torch.ones(1)}, f"a tensor in a set {BY_IDENTITY}", "save a list"),
    "tensor as a key": ({torch.ones(1): 1}, f"a tensor as a key {BY_IDENTITY}", "use its name as the key"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "reason", "hint"), UNSAVEABLE.values(), ids=UNSAVEABLE)
def test_everything_else_is_an_error_with_its_path_and_what_to_do(value: Any, reason: str, hint: str) -> None:
    with pytest.raises(UnsaveableError) as caught:
        pack({"a": [0, {"b": value}]}, "slots", Tensors("x"))
    assert caught.value.path == "slots['a'][1]['b']"
    assert caught.value.message == f"slots['a'][1]['b'] cannot be saved: {reason}"
    assert caught.value.hint == hint


def test_a_key_that_cannot_be_saved_is_named() -> None:
    with pytest.raises(UnsaveableError) as caught:
        pack({"a": {Phase.WARM: 1}}, "slots", Tensors("x"))
    assert caught.value.path == "slots['a'].keys()[<Phase.WARM: 1>]"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (lambda: torch.eye(2).to_sparse_csr(), "a tensor of layout torch.sparse_csr cannot be encoded"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            "a quantised tensor cannot be encoded",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
            "a torch.nested._internal.nested_tensor.NestedTensor would come back as a plain tensor",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
            "a tensor of layout torch.strided cannot be encoded",
        ),
    ],
    ids=["compressed rows", "quantised", "jagged", "nested"],
)
@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore::DeprecationWarning", "ignore:.*quanti.*"
)
def test_tensors_of_other_layouts_are_refused(tensor: Any, reason: str) -> None:
    with pytest.raises(UnsaveableError) as caught:
        pack(tensor(), "value", Tensors("x"))
    assert caught.value.message == f"value cannot be saved: {reason}"


def test_a_nest_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UnsaveableError, match=r"^value\[0\] cannot be saved: it contains itself$"):
        pack(value, "value", Tensors("x"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(msgpack.ExtType(99, b"")),
        msgpack.packb(msgpack.ExtType(11, msgpack.packb(["f", "k", "cpu"]))),
    ],
    ids=["nothing", "no msgpack", "unknown form", "missing tensor"],
)
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="encoding"):
        unpack(data, {})


def test_a_tree_is_split_over_files_by_resource_and_joined_again() -> None:
    tree = {
        "resources": {
            "model": {"layer.weight": torch.ones(2)},
            "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}},
        },
        "gradients": {"model": {"layer.weight": torch.zeros(2)}},
        "slots": {"batch": (torch.ones(1), "x")},
    }
    parts = split(tree)
    assert {one.file: sorted(one.named) for one in parts.files} == {
        "model": ["layer.weight"],
        "optimizer": ["state/0/step"],
        "gradients": ["model/layer.weight"],
        "slots": ["batch/0"],
    }
    again = joined(parts.sections, copy.deepcopy({one.file: one.named for one in parts.files}))
    assert same(again["slots"], tree["slots"])
    assert same(again["resources"], tree["resources"])
    assert state_digest(again) == state_digest(tree)
    tree["gradients"]["model"]["layer.weight"][0] = 1e-30
    assert state_digest(again) != state_digest(tree)


@pytest.mark.parametrize(
    "slots",
    [{"v": {"x": torch.ones(2)}, "v/x": torch.zeros(2)}, {"__metadata__": torch.ones(2)}, {"caf\udce9": torch.ones(1)}],
    ids=["names that would meet", "a reserved name", "half a character"],
)
def test_any_names_are_kept_apart_in_a_file(slots: dict[str, Any]) -> None:
    assert same(there_and_back(slots), slots)


# What a module has beyond its state_dict


class Stateful(torch.nn.Module):
    """Buffers that are no part of `state_dict`, some of which come, go, and grow; a parameter it leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.other = torch.nn.Linear(2, 2)
        self.other.weight = self.inner.weight
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_buffer("cache", None, persistent=False)
        self.register_buffer("grows", torch.zeros(1), persistent=False)
        self.register_buffer("goes", torch.zeros(1), persistent=False)
        self.register_buffer("wide", torch.zeros(1, dtype=torch.float32), persistent=False)
        self.register_buffer("same", torch.zeros(1).expand(3), persistent=False)

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        state = super().state_dict(*arguments, **keywords)
        return {name: one for name, one in state.items() if name != "other.bias"}

    def load_state_dict(self, state: Any, *arguments: Any, **keywords: Any) -> Any:
        return super().load_state_dict(state, strict=False)

    def train_for_a_while(self) -> None:
        self.count += 3
        self.cache, self.grows, self.goes = torch.ones(2), torch.ones(4), None
        self.wide = torch.ones(1, dtype=torch.float64) / 3
        self.same = torch.full((1,), 5.0).expand(3)
        self.inner.eval()
        self.inner.bias.requires_grad_(False)
        with torch.no_grad():
            self.other.bias += 1


def test_what_a_module_has_beyond_its_state_dict_comes_back() -> None:
    trained, fresh = Stateful(), Stateful()
    count = fresh.count
    trained.train_for_a_while()
    restore_module(fresh, there_and_back(capture_module(trained)))
    assert same(capture_module(fresh), capture_module(trained))
    assert fresh.count is count, "the same tensor, which others may refer to"
    assert fresh.goes is None
    assert fresh.other.bias.tolist() == trained.other.bias.tolist()
    restore_module(trained, there_and_back(capture_module(Stateful())))
    assert trained.cache is None


def test_a_buffer_or_parameter_that_is_gone_is_an_error() -> None:
    state = capture_module(Stateful())
    with pytest.raises(CheckpointError, match="no longer has a buffer `count`"):
        restore_module(torch.nn.Linear(2, 2), state)
    with pytest.raises(CheckpointError, match=r"no longer has a parameter `other\.bias` of shape \(2,\)"):
        restore_module(torch.nn.Linear(2, 2), {**state, "buffers": {}})


# All of it in a run, saved, and resumed in another process


class Everything:
    """An object of a user's own, with a bit of everything in its state."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def fill(self) -> None:
        nan = float_of(0xFFF8_0000_0000_1234)
        self.state = {
            "nests": [(1, {2: {"a": [None]}}), {("x", 1): True}],
            "sets": [{3, "b"}, frozenset({None})],
            "counts": collections.Counter("abca"),
            "recent": collections.deque([1.5, nan], maxlen=3),
            "by default": collections.defaultdict(list, {1: [2]}),
            "numbers": [2**200, -(2**63) - 1, nan, -0.0, float("-inf"), complex(nan, -0.0)],
            "text": ["caf\udce9", b"\0", bytearray(b"x")],
            "arrays": [FIELDS_OF_TWO.copy(), numpy.array(2.5), numpy.float16(nan)],
            "types": [torch.bfloat16, torch.Size([1]), torch.device("cpu")],
            "tensors": {name: copy.deepcopy(one.detach()) for name, one in TENSORS.items()},
            "names": {
                "__metadata__": torch.ones(2),
                "caf\udce9": torch.zeros(1),
                "a": {"b": torch.ones(1)},
                "a/b": torch.ones(2),
            },
            "narrow": [torch.ones(3).to(dtype) for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.complex128)],
        }

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


FIELDS_OF_TWO = numpy.array([(1, [0.5, -0.0], "abc")] * 2, FIELDS)


def trainer_with_everything(run_dir: Path) -> tuple[Trainer, Everything, Stateful]:
    torch.manual_seed(0)
    thing, model = Everything(), Stateful()
    frozen = torch.nn.Linear(2, 2).eval().requires_grad_(False)
    graph = Graph.load("fit").set("finish", after="3 epochs").set("checkpoint", every="1 epochs")
    trainer = Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        device="cpu",
        notify=lambda line: None,
        model=model,
        teacher=frozen,
        optimizer=torch.optim.AdamW([*model.parameters(), torch.nn.Parameter(torch.ones(2))], lr=0.1),
        thing=thing,
        train_data=[torch.arange(6.0).reshape(2, 3)[:, :2], torch.ones(2, 2)],
        training_step=lambda model, batch: model.other(model.inner(batch)).square().mean(),
    )
    return trainer, thing, model


def resumed(run_dir: str) -> tuple[str, list[str], str]:
    """In a process of its own: the digest after loading, what differs from the state saved, and the last digest."""
    expected, trained = Everything(), Stateful()  # first: they draw random numbers
    expected.fill()
    trained.train_for_a_while()
    trainer, thing, model = trainer_with_everything(Path(run_dir))
    trainer.run(until="1 epochs")
    loaded = trainer.digest()
    differing = [name for name in expected.state if not same(thing.state[name], expected.state[name])]
    buffers = [name for name, one in trained.named_buffers() if not same(model.get_buffer(name), one)]
    trainer.run()
    return loaded, differing + buffers, trainer.digest()


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_with_all_of_it_resumes_in_another_process(tmp_path: Path) -> None:
    trainer, thing, model = trainer_with_everything(tmp_path / "run")
    thing.fill()
    model.train_for_a_while()
    trainer.run(until="1 epochs")
    saved = trainer.digest()
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    trainer.run()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        loaded, differing, ended = pool.submit(resumed, str(tmp_path / "other")).result(timeout=300)
    assert differing == []
    assert (loaded, ended) == (saved, trainer.digest())


class Plain:
    """Its `repr` shows its address."""


@pytest.mark.parametrize("key", [id(Plain), (1, id(Plain)), Plain], ids=["an address", "a tuple with one", "a class"])
def test_the_name_of_a_tensor_is_the_same_in_every_process(key: Any) -> None:
    class Describer:
        def describe(self, value: Any, path: str) -> Found | None:
            is_this = value is Plain or (type(value) is int and value == id(Plain))
            return Found(["this"]) if is_this else None

    tensors = Tensors("x")
    pack({key: {"moment": torch.ones(2)}}, "value", tensors, describer=Describer())  # type: ignore[arg-type]
    assert [*tensors.named] == ["value/moment"]
