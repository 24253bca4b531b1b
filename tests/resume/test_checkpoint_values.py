"""Promise 12: plain values are written in one form and come back; bytes that are no form of anything are refused."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import numpy
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphtrain.storage import decoding
from graphtrain.storage.decoding import Decoder, unpack
from graphtrain.storage.encoding import Code, Found, Instance, Memo, Packed, Tensors, UnsaveableError, pack
from tests.resume.files import float_of, same


def there_and_back(value: Any) -> Any:
    tensors = Tensors("file")
    data = pack(value, "value", tensors)
    stored = {name: one.contiguous().clone() for name, one in tensors.named.items()}
    back = unpack(data, {"file": safetensors.torch.load(safetensors.torch.save(stored)) if stored else {}})
    again = Tensors("file")
    assert pack(back, "value", again) == data, "a value that came back has the same form"
    return back


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


members = st.none() | st.integers() | texts | st.frozensets(st.text()) | st.tuples(st.integers(), st.text())


@pytest.mark.full
@settings(max_examples=20, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(nests | st.sets(members) | st.frozensets(members))
def test_nests_of_plain_values_come_back_equal_to_the_last_bit(value: Any) -> None:
    assert same(there_and_back(value), value)


# ---- the form on the disk


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
    "a tensor": ([LEAF.detach()], [float32("0")], {}),
    "a leaf": ([LEAF], [("PLACED", [float32("0"), None, True])], {}),
    "a leaf with gaps": (
        [torch.arange(3.0)[::2].requires_grad_()], [("PLACED", [float32("0"), GAPS, True])], {},
    ),
    "a sparse leaf": (
        torch.eye(2).to_sparse().requires_grad_(),
        ("PLACED", [("SPARSE", [float32("/indices"), float32("/values"), [2, 2], True]), None, True]),
        {},
    ),
    "a leaf without a gradient": (
        [LEAF], [("PLACED", [float32("0"), None, True, None, False])], {"with_gradients": True},
    ),
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


AROUND: dict[str, Callable[[Any], Any]] = {
    "list": lambda value: [value],
    "tuple": lambda value: (value,),
    "table": lambda value: {"a": value},
    "table by numbers": lambda value: {1: value},
    "frozen set": lambda value: frozenset([value]),
    "queue": lambda value: collections.deque([value]),
    "ordered": lambda value: collections.OrderedDict(a=value),
    "default": lambda value: collections.defaultdict(int, a=value),
    "versions": with_metadata,
    "slice": lambda value: slice(value),
    "thing": lambda value: Thing(a=value),
}


@pytest.mark.parametrize("name", AROUND)
def test_how_deep_it_may_be_nested(name: str) -> None:
    """A hundred deep is read again, one deeper is refused with where it is."""

    def packed(depth: int) -> bytes:
        describer = Describing() if name == "thing" else None
        return pack(nested(depth, AROUND[name]), "value", Tensors("file"), describer=describer)

    data = packed(100)
    if name != "thing":
        assert pack(unpack(data, {}), "value", Tensors("file")) == data
    with pytest.raises(UnsaveableError) as refused:
        packed(101)
    assert str(refused.value) == f"{refused.value.path} cannot be saved: it is nested more than 100 deep"


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


# ---- what is no form of anything

OTHER_SHAPE, TOO_MUCH = "a tensor of another shape than its values", "a tensor with more memory than it can have had"


def placed(where: list[Any]) -> msgpack.ExtType:
    """A tensor whose values are two numbers, or none where it has no elements, and which lies in memory like this."""
    shape, values = ([2], bytes(8)) if len(where[0]) == 1 else ([2, 0], b"")
    return tag(Code.PLACED, [tag(Code.RAW, ["float32", shape, values, "cpu"]), where, False])


REFUSED: dict[str, tuple[Any, str]] = {
    **{f"placed at {where}": (placed(where), reason) for reason, places in {
        OTHER_SHAPE: ([[3], [2], 0], [[2, 0], [1, 0], 0], [[2], [1], -1]),
        TOO_MUCH: ([[2], [10**12], 0], [[2], [16], 0], [[2], [1], 10**12], [[2], [1], 64]),
    }.items() for where in places},
    "an unknown code": (tag(99, []), "unknown code 99"),
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


@pytest.mark.parametrize("data", [b"", b"\xc1"], ids=["nothing", "no msgpack"])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="encoding"):
        unpack(data, {})


def test_no_code_makes_an_object_of_any_other_class() -> None:
    """What comes of all codes is of the types that `pack` takes, whatever is named."""
    types_made: set[type] = set()
    names = ["os.system", "builtins.eval", f"{__name__}.Thing", "float32", "cpu"]
    simple: list[Any] = [None, 1, b"\0" * 8, [], *names, *([name, []] for name in names), ["float32", [2], b"\0" * 8]]
    for code in range(64):
        for value in simple:
            with contextlib.suppress(ValueError):
                types_made.add(type(unpack(msgpack.packb(tag(code, value)), {})))
    assert {kind.__module__.partition(".")[0] for kind in types_made} <= {"builtins", "collections", "torch", "numpy"}
    assert len(types_made) > 3 and not any(issubclass(kind, type | BaseException) for kind in types_made)


@pytest.mark.parametrize(
    ("device", "count", "moves"),
    [("cpu", 2, False), ("cuda:1", 2, True), ("cuda", 2, True), ("cuda:2", 2, False), ("cuda:0", 0, False),
     ("meta", 2, False), ("xpu:1", 2, True), ("mps:0", 2, False)],
)  # fmt: skip
def test_a_tensor_goes_to_its_device_where_that_is(
    device: str, count: int, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for backend in (torch.cuda, torch.xpu):
        monkeypatch.setattr(backend, "device_count", lambda: count)
    stored: Any = types.SimpleNamespace(to=lambda given: f"to {given}")
    assert decoding._on_device(stored, device) == (f"to {device}" if moves else stored)
