"""Promise 12: what objects of a user hold comes back equal to the last bit from a run, or is refused by its path."""

from __future__ import annotations

import collections
import datetime
import enum
import pathlib
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain import CheckpointError, Trainer
from tests.resume.files import float_of, same, saving


class Holding:
    """An object of a user's own, with something in its state."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"a": [0, {"b": self.value}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["a"][1]["b"]


def there_and_back(value: Any, folder: Path) -> Any:
    """What a resumed run has of it."""
    before = saving().trainer(folder, thing=(held := Holding()))
    before.advance(0)
    held.value = value
    before.run(until="1 batches")
    after = saving().trainer(folder, thing=(holding := Holding()))
    after.advance(0)
    return holding.value


def test_the_comparison_sees_a_single_bit() -> None:
    """What all tests here rest on."""
    different: list[tuple[Any, Any]] = [
        (0.0, -0.0), (float("nan"), -float("nan")), (1, True), ({"a": 1}, {"a": 1.0}), ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (collections.deque([1], 2), collections.deque([1], 3)),
        (torch.tensor(0.0), torch.tensor(-0.0)), (torch.zeros(2), torch.zeros(2, requires_grad=True)),
    ]  # fmt: skip
    for one, other in different:
        assert same(one, one) and same(other, other) and not same(one, other)


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
    "overlapping windows": torch.arange(4).unfold(0, 2, 1),
    "later in its storage": torch.arange(9.0)[3:],
    "some cache lines later in its storage": torch.arange(9.0, dtype=torch.float64).repeat(30)[100:],
    "a leaf": torch.ones(2, requires_grad=True),
    "a leaf with gaps": torch.arange(10.0)[::2].requires_grad_(),
    "sparse": torch.eye(3).to_sparse(),
    "sparse, not coalesced": torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,), check_invariants=True),
    "sparse leaf": torch.eye(3).to_sparse().requires_grad_(),
    "nan and infinities": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
}


LIKE_STRIDES = [*TENSORS]
TENSORS |= {
    "conjugated": torch.randn(2, dtype=torch.complex64).conj(),
    "a column of a wide matrix": torch.arange(10_000).reshape(100, 100)[:, 3],
    "too far apart": torch.arange(17.0)[::16],
    **{str(dtype): torch.ones(3).to(dtype) for dtype in (
        torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.int8,
        torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex64,
    )},
}  # fmt: skip


def test_tensors_come_back_with_dtype_and_strides(tmp_path: Path) -> None:
    """A view whose strides no new tensor of a run would have comes back contiguous, with its values."""
    for name, back in there_and_back(TENSORS, tmp_path).items():
        tensor = TENSORS[name]
        assert same(back, tensor), name
        if name not in LIKE_STRIDES:
            assert back.is_contiguous(), name
        elif tensor.layout is torch.strided:
            assert (back.stride(), back.requires_grad) == (tensor.stride(), tensor.requires_grad), name
            assert back.storage_offset() == tensor.storage_offset() % (64 // tensor.element_size()), name


def test_a_sum_over_what_came_back_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    """What strides are kept for."""
    torch.manual_seed(0)
    sliced = [torch.randn(40, 37)[:, :step] for step in range(6, 37)] + [torch.randn(50, 40).t()[:, ::3]]
    back = there_and_back(sliced, tmp_path)
    assert all(torch.equal(one.sum(0), other.sum(0)) for one, other in zip(sliced, back, strict=True))


FIELDS = numpy.dtype([("step", "<i4"), ("loss", ">f8", (2,)), ("name", "U3")])


ARRAYS: list[Any] = [
    numpy.float32(1.5), numpy.arange(6).reshape(2, 3), numpy.arange(6, dtype=">i4"), numpy.arange(10)[::-3],
    numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)), numpy.array(3.5), numpy.array("x"), numpy.array(""),
    numpy.zeros(2, "V0"), numpy.zeros((0, 2)), numpy.datetime64("2020-01-01"),
    numpy.array(["2020-01-01", "NaT"], "M8[ns]"), numpy.timedelta64(3, "h"), numpy.bool_(True), numpy.array([1 + 2j]),
    numpy.array([(1, [0.5, -0.0], "abc")] * 2, FIELDS), numpy.array([(1, [0.5, -0.0], "abc")] * 2, FIELDS)[0],
    numpy.zeros(2, numpy.dtype([("small", "i1"), ("wide", "f8")], align=True)), numpy.array([b"a", b"bc"]),
]  # fmt: skip


def test_numpy_values_come_back(tmp_path: Path) -> None:
    for back, value in zip(there_and_back(ARRAYS, tmp_path), ARRAYS, strict=True):
        assert same(back, value), value
        if value.size and (value.flags.f_contiguous or value.flags.c_contiguous):
            assert back.strides == value.strides, value
        assert back.flags.writeable == isinstance(value, numpy.ndarray) or isinstance(value, numpy.void), value


ZONE = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
STANDARD: list[Any] = [
    range(1, 9, 2), slice(1, None, -1), complex(1, -2), Fraction(-3, 7), datetime.date(2026, 2, 28),
    datetime.timedelta(-1, 2, 3), datetime.UTC, ZONE, datetime.timezone(datetime.timedelta(0), "Zulu"),
    datetime.datetime(2026, 10, 25, 2, 30, 1, 7, fold=1), datetime.time(23, 59, 59, 1),
    datetime.datetime(2026, 1, 2, 3, tzinfo=ZONE), datetime.time(1, fold=1, tzinfo=datetime.UTC),
    Decimal("1.10"), torch.device("cuda", 1), pathlib.Path("a/b"), pathlib.PureWindowsPath("a\\b"),
    numpy.dtype("<f4"), numpy.dtype("M8[ns]"),
    torch.int8,
]  # fmt: skip


def test_immutable_values_come_back(tmp_path: Path) -> None:
    for back, value in zip(there_and_back(STANDARD, tmp_path), STANDARD, strict=True):
        assert type(back) is type(value) and back == value and repr(back) == repr(value), value
        assert getattr(back, "fold", 0) == getattr(value, "fold", 0), value
        zones = [each for each in (back, value) if isinstance(each, datetime.timezone)]
        assert len({zone.tzname(None) for zone in zones}) <= 1, value


NAN = float_of(0xFFF8_0000_0000_1234)
HELD: list[Any] = [
    random.Random(3).getstate(), numpy.random.default_rng(3).bit_generator.state,
    numpy.random.RandomState(3).get_state(), torch.Generator().manual_seed(3).get_state(),
    [torch.Size([2, 3]), torch.float8_e5m2, torch.device("cuda", 1)],
    {"v": {"x": torch.ones(2)}, "v/x": torch.zeros(2)}, {"__metadata__": torch.ones(2), "caf\udce9": torch.ones(1)},
    [(1, {2: {"a": [None]}}), {("x", 1): True}], [{3, "b"}, frozenset({None})], collections.Counter("abca"),
    collections.deque([1.5, NAN], maxlen=3), collections.defaultdict(list, {1: [2]}),
    [2**200, -(2**63) - 1, NAN, -0.0, float("-inf"), complex(NAN, -0.0)], ["caf\udce9", b"\0", bytearray(b"x")],
    collections.OrderedDict(b=1, a=2),
]  # fmt: skip


def test_what_training_holds_comes_back(tmp_path: Path) -> None:
    back = there_and_back(HELD, tmp_path)
    for one, other in zip(back, HELD, strict=True):
        assert same(one, other), other


def test_what_is_referred_to_twice_is_one_object(tmp_path: Path) -> None:
    shared, tensor, array = [7], torch.ones(2), numpy.ones(2)
    shared.append(shared)  # type: ignore[arg-type]
    back = there_and_back([shared, {"again": shared}, tensor, (tensor,), array, array], tmp_path)
    assert back[0] is back[0][1] is back[1]["again"] and back[2] is back[3][0] and back[4] is back[5]


def test_the_versions_in_a_state_dict_come_back(tmp_path: Path) -> None:
    """By `_metadata`, modules that have changed their state know the form in which it was saved."""
    state = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).state_dict()
    assert there_and_back(state, tmp_path)._metadata == {"": {"version": 1}, "0": {"version": 2}}


def test_a_column_does_not_bring_its_matrix_along(tmp_path: Path) -> None:
    there_and_back([torch.zeros(1000, 1000)[:, 1], torch.zeros(1).expand(10**9)], tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors")) < 50_000


# ---- what cannot be saved


class Mine:
    pass


class Keeping(Mine):
    def state_dict(self) -> dict[str, int]:
        return {}


class Phase(enum.Enum):
    WARM = 1


class Image(torch.Tensor):
    pass


class Table(dict[str, int]):
    pass


NESTED = [torch.ones(1), torch.ones(2)]
UNSAVEABLE: dict[str, tuple[Callable[[], Any], str, str]] = {
    "object": (Mine, "Mine", "save numbers, text, lists, dicts, tensors or arrays"),
    "object with state": (Keeping, "Keeping", "save `value.state_dict()`"),
    "function": (lambda: len, "a builtins.builtin_function_or_method", "save numbers"),
    "class": (lambda: Mine, "a builtins.type", "save numbers"),
    "array of objects": (lambda: numpy.array([Mine()]), "NumPy values of the type object cannot be encoded", ""),
    "masked array": (lambda: numpy.ma.masked_array([1], [True]), "MaskedArray", "save numbers"),
    "part of a graph": (lambda: torch.ones(2, requires_grad=True) * 2, "part of an autograd graph", "tensor.detach()"),
    "a tensor of a class": (
        lambda: torch.ones(2).as_subclass(Image), "Image (cpu, torch.float32, torch.strided)", "save a plain tensor",
    ),
    "lazy": (torch.nn.parameter.UninitializedParameter, "UninitializedParameter (cpu, torch.float32", "pass a batch"),
    "meta": (lambda: torch.ones(2, device="meta"), "Tensor (meta, torch.float32", "save a plain tensor"),
    "iterator": (lambda: iter([1]), "a builtins.list_iterator", "save numbers"),
    "a default of the user's": (
        lambda: collections.defaultdict(print), "a builtins.builtin_function_or_method", "save",
    ),
    "dict of a class": (lambda: Table(a=1), "Table", "save numbers"),
    "tensor in a set": (lambda: {torch.ones(1)}, "is found by its identity", "save a list"),
    "tensor as a key": (lambda: {torch.ones(1): 1}, "is found by its identity", "use its name as the key"),
    "compressed rows": (lambda: torch.eye(2).to_sparse_csr(), "torch.sparse_csr)", "dense"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "(cpu, torch.qint8", "dense"),
    "jagged": (
        lambda: torch.nested.nested_tensor(NESTED, layout=torch.jagged), "torch.jagged)", "dense",
    ),
    "nested": (lambda: torch.nested.nested_tensor(NESTED), "torch.strided)", "plain tensor"),
}  # fmt: skip


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = saving().trainer(tmp_path_factory.mktemp("run"), thing=Holding())
    trainer.advance(0)
    return trainer


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", UNSAVEABLE)
def test_everything_else_is_an_error_with_its_path_and_what_to_do(name: str, trainer: Trainer) -> None:
    make, reason, hint = UNSAVEABLE[name]
    trainer.resources["thing"].value = make()
    with pytest.raises(CheckpointError) as caught:
        trainer.save()
    assert "['a'][1]['b']" in caught.value.message and " cannot be saved: " in caught.value.message
    assert reason in caught.value.message
    assert hint in caught.value.hint and bool(hint) == bool(caught.value.hint)
