"""Promise 12: plain values are written in one form and come back; bytes that are no form of anything are refused."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable
from typing import Any

import msgpack
import numpy
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphtrain.storage import state_files
from graphtrain.storage.encoding import Tensors, UnsaveableError, pack, unpack
from graphtrain.storage.value_types import BY_NAME
from tests.resume.files import float_of, same


def there_and_back(value: Any) -> Any:
    tensors = Tensors("file")
    data = pack(value, "value", tensors)
    stored = {name: one.contiguous().clone() for name, one in tensors.named.items()}
    back = unpack(data, safetensors.torch.load(safetensors.torch.save(stored)) if stored else {})
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


def with_metadata(value: Any) -> Any:
    state = collections.OrderedDict[str, Any]()
    state._metadata = value  # type: ignore[attr-defined]
    return state


def form(data: bytes) -> Any:
    """What `pack` wrote: names of tensors as text, large numbers as bytes."""
    return msgpack.unpackb(data, ext_hook=lambda code, inner: inner.decode() if code == 1 else inner)


def tag(*form: Any) -> dict[str, Any]:
    return {"": [*form]}


def nested(depth: int, around: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = around(value)
    return value


def with_gradient() -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.zeros(2)
    return parameter


LEAF = torch.ones(2, requires_grad=True)
FORMS: dict[str, tuple[Any, Any]] = {
    "the largest number": (2**64 - 1, 2**64 - 1),
    "the lowest number": (-(2**63), -(2**63)),
    "a larger number": (2**64, tag("int", hex(2**64))),
    "a lower number": (-(2**63) - 1, tag("int", hex(-(2**63) - 1))),
    "bytes": ([b"\xff", "é"], [b"\xff", "é"]),
    "a set, sorted": ({8, 1}, tag("set", [1, 8])),
    "a set of bytes and text": ({b"a", "a"}, tag("set", ["a", b"a"])),
    "a frozen set": (frozenset({"b", "a"}), tag("frozenset", "a", "b")),
    "a default": (collections.defaultdict(int, {1: 2}), tag("defaultdict", [1, 2], tag("type", "int"))),
    "a tensor": ([LEAF.detach()], ["value/0"]),
    "a leaf": ([LEAF], [tag("tensor", "value/0", None, None, True, False, None)]),
    "a leaf with gaps": (
        [torch.arange(3.0)[::2].requires_grad_()], [tag("tensor", "value/0", None, [[2], [2], 0], True, False, None)],
    ),
    "a parameter with a gradient": (
        [with_gradient()], [tag("tensor", "value/0", None, None, True, True, "value/0.grad")],
    ),
    "a type that safetensors lacks": (
        [torch.ones(2, dtype=torch.complex128)],
        [tag("tensor", "value/0", ["complex128", [2]], None, False, False, None)],
    ),
    "an array": (numpy.ones((2, 2), "<f4"), tag("array", "<f4", [2, 2], numpy.ones(4, "<f4").tobytes(), "C")),
    "an array of either order": (numpy.array([7], "i1"), tag("array", "|i1", [1], b"\x07", "C")),
    "names of tensors": (
        {"a": {"b": torch.ones(1)}, "a/b": torch.ones(1), 2**32: torch.ones(1), 9: torch.ones(1)},
        tag("dict", ["a", {"b": "value/a/b"}, "a/b", "value/a/b#2", 2**32, "value/#2", 9, "value/9"]),
    ),
    "a table with the key of a form": ({"": 1}, tag("dict", ["", 1])),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_a_value(name: str) -> None:
    value, expected = FORMS[name]
    tensors = Tensors("file")
    packed = pack(value, "value", tensors)
    assert form(packed) == expected
    back = unpack(packed, tensors.named)
    if name.startswith("a parameter"):
        assert type(back[0]) is torch.nn.Parameter and back[0].grad is not None


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
}


@pytest.mark.parametrize("name", AROUND)
def test_how_deep_it_may_be_nested(name: str) -> None:
    """A hundred deep is read again, one deeper is refused with where it is."""
    data = pack(nested(100, AROUND[name]), "value", Tensors("file"))
    assert pack(unpack(data), "value", Tensors("file")) == data
    with pytest.raises(UnsaveableError) as refused:
        pack(nested(101, AROUND[name]), "value", Tensors("file"))
    assert str(refused.value).endswith(" cannot be saved: it is nested more than 100 deep")


# ---- what is no form of anything

REFUSED: dict[str, tuple[Any, str]] = {
    "an unknown type": (tag("system", "ls"), "unknown type system"),
    "an unknown code": (msgpack.ExtType(99, b""), "unknown code 99"),
    "no name": (tag(), "ValueError: not enough values"),
    "no list of parts": ({"": 1}, "TypeError: "),
    "an array of too few bytes": (tag("array", "<f4", [2], bytes(7), "C"), "TypeError: buffer is too small"),
    "a type of objects": (tag("numpy.dtype", "|O"), "a type of objects"),
    "an array of objects": (tag("array", "|O", [1], bytes(8), "C"), "a type of objects"),
    "a tensor of no file": (msgpack.ExtType(1, b"k"), "KeyError: 'k'"),
    "what has no values": (tag("tensor", 1, None, None, False, False, None), "AttributeError: "),
    "placed over other numbers": (
        tag("tensor", msgpack.ExtType(1, b"w"), None, [[3], [2], 0], False, False, None), "RuntimeError: ",
    ),
    "what is described, to nobody": (tag("at", "model"), "unknown type at"),
    "an object, for nobody": (tag("object", {}, __name__, "Thing"), "unknown type object"),
    "a default of any type": (tag("type", "open"), "KeyError: 'open'"),
    "a reference to nothing": (tag("same", "", 0), "IndexError: list index out of range"),
    "a message of many characters": (msgpack.ExtType(1, b"f" * 400), f"KeyError: '{'f' * 176}"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_of_nothing_is_refused_with_why(name: str) -> None:
    value, reason = REFUSED[name]
    with pytest.raises(ValueError) as refused:
        unpack(msgpack.packb(value), {"w": torch.ones(2)})
    message = str(refused.value).replace("ValueError: ", "")
    assert message.startswith(f"not a valid encoding: {reason.removeprefix('ValueError: ')}") and len(message) < 250


@pytest.mark.parametrize("data", [b"", b"\xc1"], ids=["nothing", "no msgpack"])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="encoding"):
        unpack(data)


def test_no_type_makes_an_object_of_any_other_class() -> None:
    """What comes of all types is of those that `pack` takes, whatever is named."""
    types_made: set[type] = set()
    names = ["os.system", "builtins.eval", f"{__name__}.Thing", "float32", "cpu", "int", "same", "part", "object"]
    simple: list[Any] = [None, 1, b"\0" * 8, [], *names, *([name, []] for name in names), ["float32", [2], b"\0" * 8]]
    for name in [*BY_NAME, *names]:
        for value in simple:
            for form in (tag(name, value), tag(name, *value) if isinstance(value, list) else tag(name)):
                with contextlib.suppress(ValueError):
                    types_made.add(type(unpack(msgpack.packb(form))))
    modules = {kind.__module__.partition(".")[0] for kind in types_made}
    of_values = {"collections", "datetime", "decimal", "fractions", "uuid", "pathlib"}
    assert modules <= {"builtins", "torch", "numpy", "graphtrain", *of_values}
    assert len(types_made) > 3 and not any(issubclass(kind, BaseException) for kind in types_made)


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
    assert state_files._on_device(stored, device) == (f"to {device}" if moves else stored)
