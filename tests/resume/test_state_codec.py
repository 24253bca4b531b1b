"""Promise 10: a value with references comes back as it was, shared with what it was shared with, or is named (11)."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import pathlib
import random
import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from graphtrain.state.codec import StateReader, StateWriter
from graphtrain.state.content import content_hash
from graphtrain.state.snapshot import StateSnapshot
from graphtrain.storage.encoding import UnsaveableError


class Plain:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    class Inner:
        pass


class Flags(enum.Flag):
    ONE = 1
    TWO = 2


class Point(NamedTuple):
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int = 1


class OwnTensor(torch.Tensor):
    pass


def again(value: Any, **roots: Any) -> Any:
    """A value, described and made in terms of the same objects."""
    snapshot = StateSnapshot(roots)
    packed = StateWriter(snapshot).pack(value, "value")
    return StateReader(snapshot, {"value": packed}).unpack(packed)


MADE: dict[str, Callable[[], Any]] = {
    "tuples": lambda: [Point([1], 2), torch.Size([1, 2]), (3,)],
    "members and namespaces": lambda: [Flags.TWO, types.SimpleNamespace(a=[1])],
    "objects": lambda: Plain(a=Plain.Inner(), b=Frozen(3)),
    "classes and functions": lambda: [Plain, Plain.Inner, again, int, list, dict],
    "containers": lambda: [
        {1, 2}, frozenset({1}), collections.deque([1], 2), bytearray(b"a"), collections.OrderedDict(a=1),
        collections.Counter("a"), collections.defaultdict(list, {"a": [1]}), {(1, 2): 3},
    ],
    "values": lambda: [
        decimal.Decimal("0.1"), datetime.date(2020, 1, 1), datetime.timedelta(1),
        pathlib.PurePath("a"), slice(1, 2), range(3), numpy.dtype("int16"), torch.float16,
    ],
    "arrays": lambda: [numpy.arange(3.0), numpy.zeros((2, 0)), numpy.float32(3)],
    "tensors": lambda: [torch.ones(2), torch.nn.Parameter(torch.ones(1)), torch.eye(2).to_sparse()],
    "generators": lambda: [random.Random(1), torch.Generator().manual_seed(3), numpy.random.default_rng(4)],
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_a_value_is_made_again(name: str) -> None:
    value = MADE[name]()
    made = again(value)
    assert type(made) is type(value) and content_hash(made) == content_hash(value)


def test_objects_are_shared_again_with_what_is_there() -> None:
    kept = Plain(x=[1])
    new, model = [2], torch.nn.Linear(1, 1)
    model.weight.grad = torch.ones(1, 1)
    values = [new, new, kept, kept.x, {id(kept.x): 1, 2**40: 2}, model.weight, model.weight.grad]
    made = again(values, task=kept, model=model)
    assert made[0] == [2] and made[0] is made[1] is not new
    assert made[2] is kept and made[3] is kept.x and made[4] == {id(kept.x): 1, 2**40: 2}
    assert made[5] is model.weight and made[6] is model.weight.grad


ARRAY = numpy.arange(12.0).reshape(3, 4)
VIEWS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "of a tensor": (torch.arange(12.0).reshape(4, 3), lambda kept: kept[1:3, ::2]),
    "as another type": (torch.arange(12.0), lambda kept: kept.view(torch.int32)[3:]),
    "of an array": (ARRAY, lambda kept: kept[1:3, ::-1]),
    "of an array in the order of Fortran": (numpy.asfortranarray(ARRAY), lambda kept: kept[1:3]),
    "of an array as a tensor": (ARRAY, lambda kept: torch.from_numpy(kept)[1:, ::2]),
    "of a tensor as an array": (torch.arange(12.0), lambda kept: kept.numpy()[3:5]),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("is_in_transit", [False, True])
def test_views_are_views_again(name: str, is_in_transit: bool) -> None:
    kept, view_of = VIEWS[name]
    kept = copy.deepcopy(kept)
    view = view_of(kept)
    snapshot = StateSnapshot({"task": [kept]})
    writer = StateWriter(snapshot)
    if is_in_transit:
        writer.begin_transit({})
    packed = writer.pack(view, "view")
    assert packed.data[""][0] == "view" and not writer.lost
    made = StateReader(snapshot, {"view": packed}).unpack(packed)
    view += 100
    assert type(made) is type(view) and made.dtype == view.dtype and made.tolist() == view.tolist()


def test_memory_that_new_values_share_is_named() -> None:
    kept, windows, model = torch.zeros(8, dtype=torch.cfloat), numpy.zeros(9), torch.nn.Linear(4, 1)
    writer = StateWriter(StateSnapshot({"task": [kept], "model": model}))
    writer.pack([kept.conj()[1:], torch.ones(2), windows[:4]], "first")
    weight = torch.nn.Parameter(model.weight.detach()[0, 1:])
    writer.pack([windows[3:6], windows[6:], weight, "a"], "second")
    pairs = ["first[0] shares memory with task[0]", "second[0] shares memory with first[2]"]
    pairs.append("second[2] shares memory with model.weight")
    assert writer.lost == [f"{pair}, which a resume cannot restore: clone it" for pair in pairs]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (iter([1]), "it is a new list_iterator"),
        (torch.ones(1, requires_grad=True) * 2, "it is a tensor that is part of an autograd graph"),
        ({Plain()}, "it is a set of objects, in the order of their addresses"),
        (torch.ones(1).as_subclass(OwnTensor), "it is a new OwnTensor (torch.strided)"),
    ],
    ids=range(4),
)
def test_a_value_in_transit_that_cannot_be_saved_is_named(value: Any, reason: str) -> None:
    writer = StateWriter(StateSnapshot({}))
    writer.begin_transit({})
    with pytest.raises(UnsaveableError, match=rf"slot batch\[0\] cannot be saved: .*{re.escape(reason)}"):
        writer.pack([value], "slot batch")
