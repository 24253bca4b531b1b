"""The form of every type to the last byte, how deep it may be nested, and what is no form of anything."""

from __future__ import annotations

import collections
import datetime
import pathlib
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgpack
import numpy
import pytest
import torch

from graphtrain.storage import decoding
from graphtrain.storage.decoding import Decoder, unpack
from graphtrain.storage.encoding import Code, Found, Instance, Memo, Packed, Tensors, UnsaveableError, pack
from tests.storage.test_encoding import there_and_back


def tag(code: int, value: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(value))


def nested(depth: int, around: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = around(value)
    return value


def form(data: bytes) -> Any:
    """What `pack` wrote: tags as tuples of the name of the code and what is inside."""

    def shown(value: Any) -> Any:
        if isinstance(value, msgpack.ExtType):
            return Code(value.code).name, form(value.data)
        if isinstance(value, dict):
            return {key: shown(part) for key, part in value.items()}
        return [shown(part) for part in value] if isinstance(value, list) else value

    return shown(msgpack.unpackb(data))


class Thing:
    """What is more than plain data."""

    def __init__(self, **holds: Any) -> None:
        self.__dict__.update(holds)


class Describing:
    """Describes things by what they hold, and looks up classes and large numbers."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def describe(self, value: Any, path: str) -> Found | Instance | None:
        self.asked.append(value)
        if isinstance(value, Thing):
            return Instance(["thing"], vars(value))
        return Found([path, "class"]) if isinstance(value, type) else None


class Making:
    """Makes them again, and knows the parts that were decoded before."""

    def __init__(self) -> None:
        self.needed: list[str] = []

    def need(self, part: str) -> None:
        self.needed.append(part)
        raise ValueError(f"there is no part {part}")

    def find(self, by: Sequence[Any]) -> Any:
        return {"class": list}[by[1]]

    def make(self, by: Sequence[Any]) -> Any:
        return {"thing": Thing}[by[0]]()

    def fill(self, made: Any, holds: Mapping[str, Any]) -> None:
        made.__dict__.update(holds)


def float32(name: str) -> tuple[str, list[str]]:
    return "TENSOR", ["file", name, "cpu"]


def with_metadata(value: Any) -> Any:
    state = collections.OrderedDict[str, Any]()
    state._metadata = value  # type: ignore[attr-defined]
    return state


def with_gradient() -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.zeros(2)
    return parameter


LEAF = torch.ones(2, requires_grad=True)
GAPS: Any = [[2], [2], 0]
FORMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "the largest number": (2**64 - 1, 2**64 - 1, {}),
    "a larger one": (2**64, ("BIG", None), {}),
    "the lowest number": (-(2**63), -(2**63), {}),
    "a lower one": (-(2**63) - 1, ("BIG", None), {}),
    "bytes": ([b"\xff", "é"], [b"\xff", "é"], {}),
    "half a character": ("\udce9", ("TEXT", b"\xed\xb3\xa9"), {}),
    "a set, sorted": ({8, 1}, ("SET", [1, 8]), {}),
    "a set of bytes and text": ({b"a", "a"}, ("SET", ["a", b"a"]), {}),
    "a set of numbers, in its order": ({8, 1}, ("SET", [8, 1]), {"describer": Describing()}),
    "a frozen set": (frozenset({"b", "a"}), ("FROZENSET", ["a", "b"]), {"describer": Describing()}),
    "a default": (collections.defaultdict(int, {1: 2}), ("DEFAULT", ["int", [[1, 2]]]), {}),
    "no default": (collections.defaultdict(None, {1: 2}), ("DEFAULT", [None, [[1, 2]]]), {}),
    "a tensor": ([LEAF.detach()], [float32("0")], {}),
    "a leaf": ([LEAF], [("PLACED", [float32("0"), None, True])], {}),
    "a leaf with gaps": (
        [torch.arange(3.0)[::2].requires_grad_()], [("PLACED", [float32("0"), GAPS, True])], {},
    ),
    "a parameter": ([torch.nn.Parameter(torch.ones(2), False)], [float32("0")], {}),
    "a sparse leaf": (
        torch.eye(2).to_sparse().requires_grad_(),
        ("PLACED", [("SPARSE", [float32("/indices"), float32("/values"), [2, 2], True]), None, True]),
        {},
    ),
    "a leaf without a gradient": (
        [LEAF], [("PLACED", [float32("0"), None, True, None, False])], {"with_gradients": True},
    ),
    "a tensor, where gradients are kept": ([torch.ones(2)], [float32("0")], {"with_gradients": True}),
    "a parameter with a gradient": (
        [with_gradient()], [("PLACED", [float32("0"), None, True, float32("0/grad"), True])], {"with_gradients": True},
    ),
    "a parameter that is not trained": (
        [torch.nn.Parameter(torch.ones(2), False)],
        [("PLACED", [float32("0"), None, False, None, True])],
        {"with_gradients": True},
    ),
    "an array": (numpy.ones((2, 2), "<f4"), ("ARRAY", ["<f4", [2, 2], numpy.ones(4, "<f4").tobytes(), "C"]), {}),
    "columns of an array": (numpy.asfortranarray([[1, 2]] * 2), ("ARRAY", ["<i8", [2, 2], None, "F"]), {}),
    "an array of either order": (numpy.array([7], "i1"), ("ARRAY", ["|i1", [1], b"\x07", "C"]), {}),
    "a class": (list, ("FOUND", ["value", "class"]), {"describer": Describing()}),
    "a thing in a list in itself": (None, ("INSTANCE", [["thing"], {"all": [("SAME", [0])]}]), {}),
    "names of tensors": (
        {"a": {"b": torch.ones(1)}, "a/b": torch.ones(1), 2**32: torch.ones(1), 2**32 - 1: torch.ones(1)},
        ("PAIRS", [["a", {"b": float32("a/b")}], ["a/b", float32("a/b#2")], [2**32, float32("value")],
                   [2**32 - 1, float32(f"{2**32 - 1}")]]),
        {},
    ),
    "three of one name": (
        {"a": {"b": {"c": torch.ones(1)}}, "a/b": {"c": torch.ones(1)}, "a/b/c": torch.ones(1)},
        {"a": {"b": {"c": float32("a/b/c")}}, "a/b": {"c": float32("a/b/c#2")}, "a/b/c": float32("a/b/c#3")}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_a_value(name: str) -> None:
    """Bytes that are left out here (None) are those that come back."""
    value, expected, options = FORMS[name]
    if value is None:
        value, options = Thing(), {"describer": Describing()}
        value.all = [value]
    tensors = Tensors("file")
    packed = pack(value, "value", tensors, **options)

    def left_out(found: Any, wanted: Any) -> Any:
        if wanted is None and isinstance(found, bytes):
            return None
        if isinstance(found, list | tuple) and isinstance(wanted, list | tuple) and len(found) == len(wanted):
            return type(found)(map(left_out, found, wanted))
        return found

    assert left_out(form(packed), expected) == expected
    back = Decoder({"file": tensors.named}, Making() if "describer" in options else None).unpack(packed)
    if isinstance(value, Thing):
        assert isinstance(back, Thing) and back.all[0] is back
    elif isinstance(value, int | set | dict | list) and not tensors.named:
        assert back == value
    elif name.startswith("a parameter") and "with_gradients" in options:
        assert type(back[0]) is torch.nn.Parameter and (back[0].grad is None) is (value[0].grad is None)


@pytest.mark.parametrize("number", [2**64, 2**71 - 1, 2**71, -(2**63) - 1, -(2**71), -(2**71) - 1, 2**200])
def test_a_number_of_any_size_takes_as_few_bytes_as_it_needs(number: int) -> None:
    packed = pack(number, "value", Tensors("file"))
    assert unpack(packed, {}) == number
    (_, digits) = form(packed)
    assert digits == number.to_bytes(len(digits), "big", signed=True)
    assert len(digits) == number.bit_length() // 8 + 1


def test_only_what_may_be_an_address_is_looked_up_besides_objects() -> None:
    describing = Describing()
    numbers = [5, 2**32 - 1, 2**32, 2**70]
    pack([*numbers, "text", None, (kept := torch.ones(1))], "value", Tensors("file"), describer=describing)
    assert [value for value in describing.asked if not isinstance(value, list)] == [2**32, 2**70, kept]


AROUND: dict[str, Callable[[Any], Any]] = {
    "list": lambda value: [value],
    "tuple": lambda value: (value,),
    "table": lambda value: {"a": value},
    "table by numbers": lambda value: {1: value},
    "key": lambda value: {(value,): 1} if not isinstance(value, dict) else {tuple(value.items()): 1},
    "frozen set": lambda value: frozenset([value]),
    "queue": lambda value: collections.deque([value]),
    "ordered": lambda value: collections.OrderedDict(a=value),
    "default": lambda value: collections.defaultdict(int, a=value),
    "versions": with_metadata,
    "slice": lambda value: slice(value),
}
DESCRIBED: dict[str, Callable[[Any], Any]] = {"thing": lambda value: Thing(a=value)}


@pytest.mark.parametrize("name", [*AROUND, *DESCRIBED, "found", "default by a class"])
def test_how_deep_it_may_be_nested(name: str) -> None:
    """A hundred deep is read again, one deeper is refused with where it is."""

    class Nests(Describing):
        def describe(self, value: Any, path: str) -> Found | Instance | None:
            return Found([value[0]]) if isinstance(value, tuple) else super().describe(value, path)

    def around(value: Any) -> Any:
        if name == "found":
            return (value,)
        if name == "default by a class":
            made = collections.defaultdict[Any, Any]()
            made.default_factory = value if value != 1 else None
            return made
        return {**AROUND, **DESCRIBED}[name](value)

    def packed(depth: int) -> bytes:
        describer = Nests() if name in ("found", "default by a class", *DESCRIBED) else None
        return pack(nested(depth, around), "value", Tensors("file"), describer=describer)

    most = {"key": 50}.get(name, 100)
    data = packed(most)
    if name in AROUND:
        assert pack(unpack(data, {}), "value", Tensors("file")) == data
    with pytest.raises(UnsaveableError) as refused:
        packed(most + 1)
    assert str(refused.value) == f"{refused.value.path} cannot be saved: it is nested more than 100 deep"


def test_a_sparse_leaf_may_be_a_hundred_deep() -> None:
    leaf = torch.eye(2).to_sparse().requires_grad_()
    back: Any = there_and_back(nested(99, lambda value: [leaf if value == 1 else value]))
    for _ in range(99):
        (back,) = back
    assert back.requires_grad and torch.equal(back.to_dense(), torch.eye(2))


FIRST: dict[str, Any] = {
    "list": [1], "tuple": (1,), "set": {1}, "frozen set": frozenset({1}), "bytearray": bytearray(b"x"),
    "array": numpy.ones(2), "scalar": numpy.float32(1), "number": 2**70, "text": "\udce9", "queue": collections.deque(),
    "ordered": collections.OrderedDict(a=1), "counter": collections.Counter("a"), "pairs": {1: [2]},
    "default": collections.defaultdict(list, {1: [2]}), "tensor": torch.ones(1), "type": torch.float32,
    "leaf": torch.ones(2, requires_grad=True), "gaps": torch.arange(5)[::2], "sparse": torch.eye(2).to_sparse(),
    "raw": torch.ones(2, dtype=torch.complex128), "slice": slice(1, 2), "fields": numpy.zeros(1, [("a", "i4")]),
    "versions": torch.nn.BatchNorm1d(1).state_dict(),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_what_is_referred_to_twice_is_one_object_whatever_came_before(name: str) -> None:
    shared = [7]
    back = there_and_back([FIRST[name], shared, shared, {"a": FIRST[name]}])
    assert back[1] is back[2] and back[1] == [7]
    may_be_shared = not isinstance(FIRST[name], tuple | frozenset | numpy.generic | int | str | torch.dtype | slice)
    assert (back[0] is back[3]["a"]) or not may_be_shared


def test_a_memo_numbers_what_it_met_by_parts() -> None:
    memo, first, second, third = Memo(), [1], [2], [3]
    memo.begin("a")
    memo.add(first)
    assert memo.is_new(second) and not memo.is_new(second)
    assert [memo.place(value) for value in (first, second, third)] == [("a", 0), ("a", 1), None]
    assert (memo.met(first), memo.met(second), memo.met(third)) == ([0], [1], None)
    memo.begin("b")
    memo.add(third)
    assert memo.place(third) == ("b", 0) and memo.met(third) == [0]
    assert memo.met(second) == ["a", 1]
    memo.forget()
    assert memo.place(third) is None and memo.met(second) == [1]
    memo.begin("c")
    memo.add(third)
    assert memo.place(third) == ("c", 0)


def test_what_a_memo_met_is_kept_as_long_as_it() -> None:
    """Else another object might have its identity."""
    memo, things = Memo(), [Thing(), Thing()]
    memo.add(things[0])
    memo.is_new(things[1])
    held = [weakref.ref(thing) for thing in things]
    things.clear()
    assert all(reference() is not None for reference in held)


def test_a_part_that_was_encoded_for_itself_is_decoded_by_its_own_names() -> None:
    tensors, outer, values = Tensors("inner"), Tensors("file"), torch.ones(2)
    inner = pack([values, shared := [1], shared], "value", tensors)
    packed = pack([Packed("inner", inner, tensors.named), shared, shared], "value", outer)
    decoder = Decoder({"file": outer.named})
    first, second, third = decoder.unpack(packed, "outer")
    assert second is third
    back, *lists = decoder.unpack_part(first)
    assert torch.equal(back, values) and lists[0] is lists[1] is not second
    assert decoder.met("outer", 1) is second and decoder.met("inner", 2) is lists[0]
    with pytest.raises(KeyError):
        decoder.met("nowhere", 0)
    making = Making()
    with pytest.raises(ValueError, match="there is no part nowhere"):
        Decoder({}, making).met("nowhere", 0)
    assert making.needed == ["nowhere"]


# ---- immutable types

ZONE = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
STANDARD: list[Any] = [
    range(1, 9, 2), slice(1, None, -1), ..., complex(1, -2), Fraction(-3, 7), datetime.date(2026, 2, 28),
    datetime.timedelta(-1, 2, 3), datetime.UTC, ZONE, datetime.timezone(datetime.timedelta(0), "Zulu"),
    datetime.datetime(2026, 10, 25, 2, 30, 1, 7, fold=1), datetime.time(23, 59, 59, 1),
    datetime.datetime(2026, 1, 2, 3, tzinfo=ZONE), datetime.time(1, fold=1, tzinfo=datetime.UTC),
    Decimal("1.10"), uuid.UUID(int=7), torch.device("cuda", 1), pathlib.Path("a/b"), pathlib.PureWindowsPath("a\\b"),
    numpy.dtype("<f4"), numpy.dtype("M8[ns]"),
    torch.int8, torch.strided, torch.channels_last,
]  # fmt: skip


@pytest.mark.parametrize("value", STANDARD, ids=lambda value: f"{type(value).__name__} {value}")
def test_immutable_values_come_back(value: Any) -> None:
    back = there_and_back([value])[0]
    assert type(back) is type(value) and back == value and repr(back) == repr(value)
    assert getattr(back, "fold", 0) == getattr(value, "fold", 0)
    zones = [each for each in (back, value) if isinstance(each, datetime.timezone)]
    assert len({zone.tzname(None) for zone in zones}) <= 1


@pytest.mark.parametrize("dtype", ["i4,f4", "O", "(2,)i4"])
def test_a_type_of_numpy_without_a_name_is_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match=r"^the NumPy type .* has no plain name$"):
        pack(numpy.dtype(dtype), "value", Tensors("file"))


# ---- what is no form of anything

REFUSED: dict[str, tuple[Any, str]] = {
    "too few bytes": (tag(Code.RAW, ["float32", [2], bytes(7), "cpu"]), "RuntimeError: "),
    "an array of too few bytes": (tag(Code.ARRAY, ["<f4", [2], bytes(7), "C"]), "TypeError: buffer is too small"),
    "a type of objects": (tag(Code.STANDARD, ["numpy.dtype", ["|O"]]), "a type of objects"),
    "an array of objects": (tag(Code.ARRAY, ["|O", [1], bytes(8), "C"]), "an array of objects"),
    "a tensor of no file": (tag(Code.TENSOR, ["f", "k", "cpu"]), "KeyError: 'f'"),
    "what is described, to nobody": (tag(Code.FOUND, ["a"]), "unknown code 22"),
    "an instance, for nobody": (tag(Code.INSTANCE, [["a"], {}]), "unknown code 23"),
    "a default of any type": (tag(Code.DEFAULT, ["open", []]), "KeyError: 'open'"),
    "a reference to nothing": (tag(Code.SAME, [0]), "IndexError: list index out of range"),
    "a message of many characters": (tag(Code.TENSOR, ["f" * 400, "k", "cpu"]), f"KeyError: '{'f' * 176}"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_of_nothing_is_refused_with_why(name: str) -> None:
    value, reason = REFUSED[name]
    with pytest.raises(ValueError) as refused:
        unpack(msgpack.packb(value), {"file": {"w": torch.ones(1)}})
    assert str(refused.value).startswith(f"not a valid encoding: {reason}") and len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("device", "is_there", "moved"),
    [
        ("cpu", True, None), ("cuda:1", True, "cuda:1"), ("cuda", True, "cuda"), ("cuda:2", True, None),
        ("cuda:0", False, None), ("meta", True, None), ("xpu:1", True, "xpu:1"), ("mps:0", True, None),
    ],
)  # fmt: skip
def test_a_tensor_goes_to_its_device_where_that_is(
    device: str, is_there: bool, moved: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2 * is_there)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2 * is_there)
    went: list[str] = []

    class Stored:
        def to(self, device: torch.device) -> Any:
            went.append(str(device))
            return "there"

    stored: Any = Stored()
    assert decoding._on_device(stored, device) == ("there" if moved else stored)
    assert went == ([moved] if moved else [])
