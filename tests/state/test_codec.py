"""Values with references: which can be described and made again, under which names, and what is refused."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import random
import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from graphtrain.state import codec
from graphtrain.state.codec import (
    StateReader,
    StateWriter,
    UnknownStateError,
    places,
    shown_place,
)
from graphtrain.state.content import content_hash
from graphtrain.state.reachable import Reachable
from graphtrain.storage.encoding import UnsaveableError

HERE = __name__


class Plain:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    class Inner:
        pass


class Colour(enum.Enum):
    RED = 1


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


def function() -> None: ...


def writer_of(roots: Any, stateful: Any = None, is_left_out: Callable[[str], bool] | None = None) -> StateWriter:
    return StateWriter(Reachable({"task": roots}), stateful or {}, is_left_out)


def again(value: Any, roots: Any = (), stateful: Any = None) -> Any:
    """A value, described and made in terms of the same objects."""
    reachable = Reachable({"task": roots})
    packed = StateWriter(reachable, stateful or {}).pack(value, "value")
    return StateReader(reachable, stateful or {}, {"value": packed}).unpack(packed)


# ---- what can be made again


MADE: dict[str, Callable[[], Any]] = {
    "a named tuple": lambda: Point([1], 2),
    "a size": lambda: torch.Size([1, 2]),
    "a member": lambda: [Colour.RED, Flags.TWO],
    "a namespace": lambda: types.SimpleNamespace(a=[1]),
    "an object": lambda: Plain(a=Plain.Inner(), b=Frozen(3)),
    "a class and functions": lambda: [Plain, Plain.Inner, function, int, list, dict],
    "containers": lambda: [
        {1, 2}, frozenset({1}), collections.deque([1], 2), bytearray(b"a"), collections.OrderedDict(a=1),
        collections.Counter("a"), collections.defaultdict(list, {"a": [1]}), {(1, 2): 3},
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
    made = again(values, kept, {"model": model})
    assert made[0] == [2] and made[0] is made[1] is not new
    assert made[2] is kept and made[3] is kept.x and made[4] == {id(kept.x): 1, 2**40: 2}
    assert made[5] is model.weight and made[6] is model.weight.grad


def test_what_an_object_holds_under_its_state_dict_is_described_by_its_value() -> None:
    """It may be encoded at this moment."""
    held, model = Plain(total=torch.ones(2)), torch.nn.Linear(1, 1)
    writer = writer_of([], {"meter": held, "model": model})
    assert list(writer.pack([held.total, model.bias], "value").tensors.values()) == [held.total]


# ---- what cannot be described


def test_after_a_value_that_cannot_be_described_it_is_as_if_it_had_not_been_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "MOST_BYTES", 100)
    writer, tensor, shared = writer_of([]), torch.ones(4), [1]
    unknown: list[str] = []
    with writer.attempt(unknown):
        writer.pack([tensor, bytearray(60), shared, iter([1])], "first")
    assert unknown == [
        "first[3] is an iterator (list_iterator), whose position is not saved: give what holds it a `state_dict`"
    ]
    writer.pack([tensor[1:], bytearray(60), shared], "second")
    assert writer.lost_memory() == []
    with pytest.raises(UnknownStateError) as caught:
        writer.pack(bytearray(29), "third")
    assert str(caught.value) == "third is beyond the 0 MiB that are saved without a `state_dict`"
    writer.pack([bytearray(28), "a" * 500], "fourth", "another name")


# ---- memory


def test_the_memory_of_new_values_is_shared_with_nothing() -> None:
    read_only = numpy.zeros(4)
    read_only.flags.writeable = False
    kept, windows, model = torch.zeros(8, dtype=torch.cfloat), numpy.zeros(9), torch.nn.Linear(4, 1)
    writer = writer_of([kept, read_only], {"model": model})
    writer.pack([kept.conj()[1:], torch.ones(2), windows[:4]], "first")
    weight = torch.nn.Parameter(model.weight.detach()[0, 1:])
    writer.pack([windows[3:6], windows[6:], read_only[1:], weight, "a"], "second")
    end = "which a resume cannot restore: clone it"
    assert writer.lost_memory() == [
        f"first[0] shares memory with task[0], {end}",
        f"second[3] shares memory with model.weight, {end}",
        f"second[0] shares memory with first[2], {end}",
    ]


ARRAY = numpy.arange(12.0).reshape(3, 4)
VIEWS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "of a tensor": (torch.arange(12.0).reshape(4, 3), lambda kept: kept[1:3, ::2]),
    "of the memory before a tensor": (torch.arange(12.0)[4:], lambda kept: kept.as_strided((3,), (1,), 2)),
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
    reachable = Reachable({"task": [kept]})
    writer = StateWriter(reachable, {})
    packed = writer.pack_in_transit({"view": view}, {})["view"] if is_in_transit else writer.pack(view, "view")
    assert not packed.tensors and not writer.lost_memory()
    made = StateReader(reachable, {}, {"view": packed}).unpack(packed)
    view += 100
    assert type(made) is type(view) and made.dtype == view.dtype and made.tolist() == view.tolist()


def stateful(is_bound_again: bool = True) -> dict[str, Any]:
    model, meter = torch.nn.BatchNorm1d(3), Plain(total=[torch.ones(3)], state_dict=dict)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
    optimizer.step()
    if is_bound_again:
        model.running_mean = model.running_mean * 2
    return {"model": model, "optimizer": optimizer, "meter": meter}


def shared_by(held: dict[str, Any]) -> list[Any]:
    model, optimizer = held["model"], held["optimizer"]
    momentum = optimizer.state[model.bias]["momentum_buffer"]
    return [momentum, model.bias.grad, model.running_mean, held["meter"].total, held["meter"].total[0]]


def test_values_in_transit_share_with_what_state_dicts_have() -> None:
    held, task = stateful(), [1]
    writer, new = writer_of(task, held), [2]
    parts = {"changed": writer.pack(new, "changed")}
    values = [*shared_by(held), shared_by(held)[0][1:], shared_by(held)[1].detach().numpy(), task, new]
    parts |= writer.pack_in_transit({"slot": values, "other": values[:2]}, {})
    assert not parts["slot"].tensors and not writer.lost_memory()
    held, task = stateful(is_bound_again=False), [1]
    reader = StateReader(Reachable({"task": task}), held, parts)
    made, other = reader.unpack(parts["slot"]), reader.unpack(parts["other"])
    assert all(part is there for part, there in zip(made, shared_by(held), strict=False))
    made[0].add_(5), made[1].add_(6)
    assert made[5].tolist() == made[0][1:].tolist() and made[6].tolist() == made[1].tolist()
    assert made[7] is task and made[8] is reader.unpack(parts["changed"]) and other == made[:2]


def test_values_in_transit_are_of_any_size_and_share_memory_only_as_a_resume_can_restore_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "MOST_BYTES", 10)
    saved, left_out = torch.zeros(8), [torch.ones(1)]
    writer = writer_of([left_out], {}, lambda path: path.startswith("task[0]"))
    packed = writer.pack_in_transit({"slot batch": [saved[1:], bytearray(99), left_out]}, {"meter.state_dict()": saved})
    end = "which a resume cannot restore: clone it"
    assert writer.lost_memory() == [f"slot batch[0] shares memory with meter.state_dict(), {end}"]
    assert len(packed["slot batch"].tensors) == 2  # what is no state is not referred to


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (iter([1]), "it is an iterator (list_iterator), whose position is not saved"),
        (torch.ones(1, requires_grad=True) * 2, "it is a tensor that is part of an autograd graph"),
        ({Plain()}, "it is a set of objects, whose order is that of their addresses: use a list"),
        (torch.ones(1).as_subclass(OwnTensor), f"a {HERE}.OwnTensor would come back as a plain tensor"),
    ],
    ids=range(4),
)
def test_a_value_in_transit_that_cannot_be_saved_is_named(value: Any, reason: str) -> None:
    with pytest.raises(UnsaveableError, match=re.escape(f"slot batch[0] cannot be saved: {reason}")):
        writer_of([]).pack_in_transit({"slot batch": [value]}, {})


def lbfgs(model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([{"params": [*model.parameters()], "lr": torch.ones(1)}])
    state = optimizer.state[model.weight]
    state["average"], state["steps"], state["history"], state["none"] = torch.ones(1), 3, [torch.ones(1), [1]], None
    return optimizer


def test_the_places_of_what_state_dicts_save() -> None:
    model = torch.nn.BatchNorm1d(1)
    model.bias.grad = torch.ones(1)
    optimizer = lbfgs(model)
    held = Plain(total=[torch.ones(1), 1], name="a")
    found = dict(places({"model": model, "optimizer": optimizer, "meter": held, "other": 3}))
    assert list(found) == [
        ("model", "tensor", "weight"),
        ("model", "tensor", "bias"),
        ("model", "grad", "bias"),
        ("model", "tensor", "running_mean"),
        ("model", "tensor", "running_var"),
        ("model", "tensor", "num_batches_tracked"),
        ("optimizer", "state", 0, "average"),
        ("optimizer", "state", 0, "history"),
        ("optimizer", "state", 0, "history", 0),
        ("optimizer", "state", 0, "history", 1),
        ("optimizer", "group", 0, "lr"),
        ("meter", "attribute", "total"),
        ("meter", "attribute", "total", 0),
    ]
    assert (
        found["model", "grad", "bias"] is model.bias.grad and found["meter", "attribute", "total", 0] is held.total[0]
    )
    written = {
        ("model", "tensor", "0.weight"): "model.0.weight",
        ("model", "grad", "0.weight"): "model.0.weight.grad",
        ("optimizer", "state", 3, "history", 0): "optimizer.state[3].history[0]",
        ("optimizer", "group", 1, "lr"): "optimizer.param_groups[1].lr",
        ("meter", "attribute", "x", "k", 0): "meter.x['k'][0]",
    }
    assert {place: shown_place(place) for place in written} == written
