"""What values in transit share with what is reachable, with what is new, and with each other."""

from __future__ import annotations

import collections
import types
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy
import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.aliases import Aliases, aliases_of, share
from graphtrain.state.codec import StateReader, StateWriter
from graphtrain.state.contents import at
from graphtrain.state.reachable import Reachable
from graphtrain.storage.decoding import unpack
from graphtrain.storage.encoding import Tensors, pack
from graphtrain.storage.state_files import state_digest


def noted(data: Any, values: dict[str, Any], new: Sequence[Any] = ()) -> tuple[dict[str, Any], StateReader]:
    """What a manifest has of values beside data, and of other objects that are new."""
    reachable = Reachable({"train_data": data}, ["train_data"])
    writer = StateWriter(reachable, {})
    section = {f"{number}": writer.pack(value, f"new {number}") for number, value in enumerate(new)}
    aliases = msgpack.unpackb(msgpack.packb(aliases_of(values, writer).places))
    return aliases, StateReader(reachable, {}, section)


def loaded(value: Any) -> Any:
    """A value as a checkpoint has it, which shares nothing with what is elsewhere."""
    packed = pack(value, "values", tensors := Tensors("values"))
    return unpack(packed, {"values": {name: tensor.clone() for name, tensor in tensors.named.items()}})


def test_parts_are_the_very_objects_again() -> None:
    data = [{"inputs": torch.ones(2)}, torch.zeros(3), torch.ones(4)]
    aliases, reader = noted(data, {"batch": ([data[1], 5], {"first": data[0], "last": data[2]})})
    assert aliases == {
        "batch": [
            [[0, 0], ["at", "train_data[1]"]],
            [[1, "first"], ["at", "train_data[0]"]],
            [[1, "last"], ["at", "train_data[2]"]],
        ]
    }
    saved = ([torch.zeros(3), 5], {"first": {"inputs": torch.ones(2)}, "last": torch.ones(4)})
    share(values := {"batch": saved}, aliases, reader)
    batch = values["batch"]
    assert batch[0][0] is data[1] and batch[0][1] == 5
    assert batch[1]["first"] is data[0] and batch[1]["last"] is data[2]


def test_new_objects_are_shared() -> None:
    kept = torch.ones(2)
    aliases, reader = noted([], {"batch": {"x": kept}}, [kept])
    assert aliases == {"batch": [[["x"], ["new", "new 0", 0]]]}
    share(values := {"batch": {"x": torch.ones(2)}}, aliases, reader)
    assert values["batch"]["x"] is reader.met("new 0", 0)


def test_values_in_transit_share_with_each_other() -> None:
    part = torch.ones(4)
    before: dict[str, Any] = {"batch": [part, part], "hidden": {"h": part}}
    aliases, reader = noted([], before)
    share(values := loaded(before), aliases, reader)
    values["batch"][1].mul_(3)
    assert [*map(float, values["batch"][0])] == [*map(float, values["hidden"]["h"])] == [3.0] * 4


@pytest.mark.parametrize("kind", ["tensor", "tensor over an array", "tensor over a view", "array"])
def test_views_are_views_again(kind: str) -> None:
    array = numpy.arange(12.0).reshape(4, 3)
    kept: Any = torch.arange(12.0).reshape(4, 3) if kind == "tensor" else array
    views = {
        "tensor over an array": torch.from_numpy(array)[1:3, ::2],
        "tensor over a view": torch.from_numpy(array[1:3]),
    }
    view = views[kind][:, ::2] if kind == "tensor over a view" else views.get(kind, kept[1:3, ::2])
    aliases, reader = noted([kept], {"batch": view})
    digest = state_digest({"slots": {"batch": view}})
    share(values := {"batch": loaded(view)}, aliases, reader)
    assert state_digest({"slots": values}) == digest, "it is what was saved"
    values["batch"] += 100
    assert kept.tolist() == [[0, 1, 2], [103, 4, 105], [106, 7, 108], [9, 10, 11]]


def test_a_part_that_differs_stays() -> None:
    """Then what was loaded is not what was saved, which is reported, not hidden."""
    data = [torch.ones(3)]
    aliases, reader = noted(data, {"batch": data[0]})
    lost = share(values := {"batch": torch.zeros(3)}, aliases, reader)
    assert values["batch"] is not data[0]
    assert lost == ["slot batch no longer shares what it shared when it was saved"]


@pytest.mark.parametrize(
    "part", [torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.cfloat).conj().imag]
)
def test_what_is_conjugated_when_it_is_read_is_so_again(part: torch.Tensor) -> None:
    aliases, reader = noted([part], {"batch": part * 1, "hidden": part[:1]})
    assert list(aliases) == ["hidden"]
    share(values := {"hidden": loaded(part[:1])}, aliases, reader)
    part.mul_(3)
    assert values["hidden"].tolist() == part[:1].tolist()


def test_keys_that_a_manifest_cannot_have_have_a_number() -> None:
    kept = torch.ones(2)
    before = {"a": {1: 2, 2**70: kept}, "b": {torch.float32: kept}, "c": {(1, 2): [kept]}, "d": {"a\udc80": kept}}
    aliases, reader = noted([kept], before)
    share(values := {name: loaded(value) for name, value in before.items()}, aliases, reader)
    assert values["a"][2**70] is values["b"][torch.float32] is values["c"][1, 2][0] is values["d"]["a\udc80"] is kept


@pytest.mark.parametrize("kind", ["tensors", "arrays", "a tensor over an array"])
def test_parts_of_one_memory_that_nobody_else_has_are_reported(kind: str) -> None:
    memory: Any = torch.arange(40.0) if kind == "tensors" else numpy.arange(40.0)
    parts = [memory[17:30], memory[20:33]]
    if kind == "a tensor over an array":
        parts = [torch.from_numpy(memory[17:30]), memory[20:33][::-1]]
    values = {"batch": parts[:1], "hidden": {"a": parts[1:], "apart": memory[35:]}}
    aliases = aliases_of(values, StateWriter(Reachable({"train_data": []}), {}))
    assert aliases == Aliases(
        {}, ["slot hidden['a'][0] shares memory with slot batch[0], which a resume cannot restore: clone it"]
    )


def test_disjoint_parts_of_one_memory_are_no_alias() -> None:
    memory, array = torch.arange(40.0), numpy.arange(40.0)
    kept = [memory[:10], array[:10]]
    values = {"batch": [memory[10:20], array[10:20]], "hidden": [memory[20:30], array[20:30]]}
    reachable = Reachable({"task": kept})
    assert aliases_of(values, StateWriter(reachable, {})) == Aliases()


@pytest.mark.parametrize("kind", ["momentum", "gradient", "buffer bound again", "attribute"])
def test_what_a_state_dict_has_is_shared_again(kind: str) -> None:
    def stateful() -> tuple[dict[str, Any], Any]:
        model, meter = torch.nn.BatchNorm1d(3), types.SimpleNamespace(total=torch.ones(3), state_dict=dict)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        model(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
        optimizer.step()
        model.running_mean = model.running_mean * 2
        held = {"model": model, "optimizer": optimizer, "meter": meter}
        shared = {
            "momentum": optimizer.state[model.bias]["momentum_buffer"],
            "gradient": model.bias.grad,
            "buffer bound again": model.running_mean,
            "attribute": meter.total,
        }
        return held, shared[kind]

    held, shared = stateful()
    reachable = Reachable({"task": []})
    before = {"whole": shared, "hidden": shared.detach()[1:], "array": shared.detach().numpy()[:2]}
    aliases = aliases_of(before, StateWriter(reachable, held))
    assert not aliases.unknown and len(aliases.places) == 3
    held, shared = stateful()
    share(values := loaded(before), aliases.places, StateReader(reachable, held, {}))
    shared.add_(5)
    after = shared.tolist()
    assert [values["whole"].tolist(), values["hidden"].tolist(), values["array"].tolist()] == [
        after,
        after[1:],
        after[:2],
    ]


def test_items_of_data_too_large_to_be_looked_into_are_found() -> None:
    data = [(torch.full((2,), float(number)), {"y": [numpy.ones(1)]}) for number in range(70)]
    before = {"batch": data[66], "hidden": data[3][1]["y"]}
    aliases, reader = noted(data, before)
    assert aliases["batch"] == [[[0], ["item", "train_data", [66, 0]]], [[1], ["item", "train_data", [66, 1]]]]
    share(values := {name: loaded(value) for name, value in before.items()}, aliases, reader)
    assert values["batch"][0] is data[66][0] and values["hidden"] is data[3][1]["y"]


@pytest.mark.parametrize(
    ("kept", "view"),
    [
        (numpy.arange(12.0).reshape(3, 4).T, lambda kept: kept[1:3]),  # in the order of Fortran
        (torch.arange(12.0), lambda kept: kept.numpy()[3:5]),
        (numpy.zeros(3, dtype=[("a", "f4"), ("b", "f4")]), lambda kept: kept["b"][1:]),
    ],
)
def test_views_of_any_form_are_views_again(kept: Any, view: Any) -> None:
    aliases, reader = noted([kept], {"batch": view(kept)})
    share(values := {"batch": loaded(view(kept))}, aliases, reader)
    values["batch"] += 100
    assert view(kept).tolist() == values["batch"].tolist()


def test_what_cannot_be_shared_again_is_reported() -> None:
    class Own(torch.Tensor):
        pass

    data, memory = [torch.ones(4)], torch.ones(4)
    values = {"batch": [data[0][1:].as_subclass(Own)], "hidden": {"a": memory[1:], "b": memory[:2].as_subclass(Own)}}
    values["state"] = {"copy": (further := torch.zeros(3))[1:]}
    writer = StateWriter(Reachable({"train_data": data}, ["train_data"]), {})
    aliases = aliases_of(values, writer, [("meter.state_dict()['sum']", further)])
    assert aliases.unknown == [
        "slot batch[0] shares memory with train_data[0], which a resume cannot restore: clone it",
        "slot state['copy'] shares memory with meter.state_dict()['sum'], which a resume cannot restore: clone it",
        "slot hidden['a'] shares memory with slot hidden['b'], which a resume cannot restore: clone it",
    ]
    assert aliases_of(values, writer, quiet=values).unknown == []


def test_a_place_inside_of_another_leads_nowhere() -> None:
    inner = torch.ones(2)
    data = [[inner, inner]]
    _, reader = noted(data, {})
    aliases = {"batch": [[["l"], ["at", "train_data[0]"]], [["l", 0], ["at", "train_data"]]]}
    loaded = torch.ones(2)
    share(values := {"batch": {"l": [loaded, loaded]}}, aliases, reader)
    assert data[0][0] is inner and values["batch"]["l"] is data[0]


def test_what_nobody_else_holds_is_no_alias() -> None:
    data = [torch.ones(3), numpy.ones(3)]
    values = {"batch": [data[0].clone(), data[1].copy(), torch.from_numpy(data[1].copy()), 5, "text"]}
    assert noted(data, values)[0] == {}


@pytest.mark.parametrize(
    "aliases",
    [
        [[[0], ["at", "train_data[7]"]]],  # there is no such object
        [[[3], ["at", "train_data[0]"]]],  # nor such a place
        [[["a", "b"], ["at", "train_data[0]"]]],
        [[[0], ["at", "train_data[1]"]]],  # of another shape
        [[[], ["at", "train_data[0]"]]],  # of another type
        [[[0], ["new", 3]]],
        [[[0], ["new", "part", 0]]],
        [[[0], ["in", "batch", [1]]]],
        [[[0], ["view", ["at", "train_data[1]"], [[2], [1], 2]]]],  # beyond its end
        [[[0], ["view", ["at", "train_data[1]"], [[2], [1], -1]]]],
        [[[0], ["view", ["at", "train_data[1]"], [[2], [-1], 2]]]],
        [[[0], ["view", ["at", "train_data[2]"], [[2], [1], 2]]]],
        [[[0], ["view", ["at", "train_data[2]"], [["2"], [1], 0]]]],
        [[[0], ["view", "train_data[1]", 5]]],
        [[[0], ["memory", ["at", "train_data[1]"], [[2], [4], 8, 8]]]],  # beyond its end
        [[[0], ["memory", ["at", "train_data[1]"], [[2], [2**62], 0, 0]]]],
        [[[0], ["memory", ["at", "train_data[1]"], [[2], [4], -4, 0]]]],
        [[[0], ["memory", ["at", "train_data[1]"], [[2], [4], 2, 2]]]],  # across its elements
        [[[0], ["memory", ["at", "train_data[1]"], 5]]],
        [[[0], ["memory", ["span", 0], [[2], [4], 0, 0]]]],
        [[[0], ["item", "train_data", [7]]]],
        [[[0], ["place", ["model", "tensor", "weight"]]]],
        [[[["nth", 7]], ["at", "train_data[0]"]]],
        [[[0], ["at", {"at": 5}]]],
    ],
)
def test_what_does_not_fit_stays(aliases: Any) -> None:
    _, reader = noted([torch.ones(2), torch.ones(3), numpy.ones(3, dtype=numpy.float32)], {})
    part = torch.zeros(2)
    lost = share(values := {"batch": (part,)}, {"batch": aliases}, reader)
    assert values["batch"][0] is part and part.tolist() == [0, 0] and len(lost) == 1


@pytest.mark.parametrize(
    "aliases",
    [5, None, [1], "x", {"batch": 5}, {"batch": {"a": 1}}, {"batch": [[[0], {"at": 5}]]}, {"batch": [[5, 5]]}],
)
def test_what_no_checkpoint_has_is_an_error(aliases: Any) -> None:
    _, reader = noted([], {})
    with pytest.raises(CheckpointError, match=r"share is described as .*, which no checkpoint has"):
        share({"batch": (torch.zeros(2),)}, aliases, reader)


def test_a_mapping_with_a_default_does_not_grow() -> None:
    _, reader = noted([torch.ones(2)], {})
    values = {"hidden": collections.defaultdict(list)}
    share(values, {"hidden": [[["a"], ["in", "hidden", ["b"]]]]}, reader)
    assert values == {"hidden": {}}


def test_containers_of_what_is_shared_again_stay_the_same_objects() -> None:
    data = [torch.ones(2), torch.zeros(2)]
    kept, cleared = {"l": [data[0]], "d": collections.deque([data[1]])}, {"t": (data[0],), "l": [data[1]]}
    before = {"kept": kept, "tuple": cleared, "gone": [data[0]]}
    aliases, reader = noted(data, before)
    values = {
        "new name": (first := {"l": [torch.ones(2)], "d": collections.deque([torch.zeros(2)])}),
        "tuple": (second := {"t": (torch.ones(2),), "l": [torch.zeros(2)]}),
    }
    lists = first["l"], first["d"], second["l"]
    assert share(values, aliases, reader, lambda name: "new name" if name == "kept" else name) == []
    assert values["new name"] is first and values["tuple"] is not second
    assert (first["l"], first["d"], values["tuple"]["l"]) == lists and values["tuple"]["l"] is lists[2]
    assert first["l"][0] is values["tuple"]["t"][0] is data[0] and first["d"][0] is lists[2][0] is data[1]


def test_items_of_large_containers_are_found_to_some_depth() -> None:
    deep: list[Any] = [[[[[numpy.ones(1)]]]], {"x": {"y": [numpy.ones(1)]}}, (numpy.ones(1), {1.5: numpy.ones(1)})]
    data = [*deep, *range(70)]
    for keys in ((0, 0), (0, 0, 0), (0, 0, 0, 0), (1, "x"), (1, "x", "y"), (1, "x", "y", 0), (2, 0)):
        assert noted(data, {"a": at(data, keys)})[0] == {"a": [[[], ["item", "train_data", [*keys]]]]}
    for keys in ((0, 0, 0, 0, 0), (2, 1, 1.5)):
        assert noted(data, {"a": at(data, keys)})[0] == {}
    assert noted([deep[2], *range(100_000)], {"d": deep[2][0]})[0] == {}


@pytest.mark.parametrize(
    ("aliases", "shown"),
    [
        ("x" * 200, "'" + "x" * 96 + "..."),
        ({"batch": [["x" * 200]]}, "['" + "x" * 95 + "..."),
        ({"batch": 5}, "5"),
    ],
)
def test_a_long_description_is_shortened(aliases: Any, shown: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        share({}, aliases, noted([], {})[1])
    assert str(caught.value) == f"what values in transit share is described as {shown}, which no checkpoint has"


def test_what_is_not_shared_again_is_named_by_slot_or_field() -> None:
    place = [["k", 0], ["at", "train_data[7]"]]
    lost = share(
        {"batch": {"k": [1]}, "node.field": {"k": [1]}}, {"batch": [place], "node.field": [place]}, noted([], {})[1]
    )
    assert lost == [
        f"{what}['k'][0] no longer shares what it shared when it was saved" for what in ("slot batch", "node.field")
    ]
