"""What values in transit share with what is reachable, with what is new, and with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy
import pytest
import torch

from graphtrain.state.aliases import aliases_of, share
from graphtrain.state.describer import Describer
from graphtrain.state.reachable import Reachable
from graphtrain.state.rebuilder import Rebuilder
from graphtrain.storage.encoding import Tensors, pack, unpack
from graphtrain.storage.state_files import state_digest


def noted(data: Any, values: dict[str, Any], new: Sequence[Any] = ()) -> tuple[dict[str, Any], Rebuilder]:
    """What a manifest has of values beside data, and of other objects that are new."""
    reachable = Reachable({"train_data": data}, ["train_data"])
    describer = Describer(reachable, {})
    for value in new:
        describer.describe(value, "new")
    aliases = msgpack.unpackb(msgpack.packb(aliases_of(values, describer)))
    return aliases, Rebuilder(reachable, {}, describer.new)


def loaded(value: Any) -> Any:
    """A value as a checkpoint has it, which shares nothing."""
    packed = pack(value, "values", tensors := Tensors("values"))
    return unpack(packed, {"values": {name: tensor.clone() for name, tensor in tensors.named.items()}})


def test_parts_are_the_very_objects_again() -> None:
    data = [{"inputs": torch.ones(2)}, torch.zeros(3), torch.ones(4)]
    aliases, rebuilder = noted(data, {"batch": ([data[1], 5], {"first": data[0], "last": data[2]})})
    assert aliases == {
        "batch": [
            [[0, 0], ["at", "train_data[1]"]],
            [[1, "first"], ["at", "train_data[0]"]],
            [[1, "last"], ["at", "train_data[2]"]],
        ]
    }
    saved = ([torch.zeros(3), 5], {"first": {"inputs": torch.ones(2)}, "last": torch.ones(4)})
    share(values := {"batch": saved}, aliases, rebuilder)
    batch = values["batch"]
    assert batch[0][0] is data[1] and batch[0][1] == 5
    assert batch[1]["first"] is data[0] and batch[1]["last"] is data[2]


def test_an_earlier_version_has_paths() -> None:
    data = [torch.zeros(3)]
    _, rebuilder = noted(data, {})
    share(values := {"batch": (torch.zeros(3),)}, {"batch": [[[0], "train_data[0]"]]}, rebuilder)
    assert values["batch"][0] is data[0]


def test_new_objects_are_shared() -> None:
    kept = torch.ones(2)
    aliases, rebuilder = noted([], {"batch": {"x": kept}}, [kept])
    assert aliases == {"batch": [[["x"], ["new", 0]]]}
    share(values := {"batch": {"x": torch.ones(2)}}, aliases, rebuilder)
    assert values["batch"]["x"] is rebuilder.rebuild(("new", 0))


def test_values_in_transit_share_with_each_other() -> None:
    part = torch.ones(4)
    before: dict[str, Any] = {"batch": [part, part], "hidden": {"h": part, "view": part[1:3]}}
    aliases, rebuilder = noted([], before)
    share(values := loaded(before), aliases, rebuilder)
    values["batch"][1].mul_(3)
    assert [*map(float, values["batch"][0])] == [*map(float, values["hidden"]["h"])] == [3.0] * 4
    assert [*map(float, values["hidden"]["view"])] == [3.0] * 2


@pytest.mark.parametrize("kind", ["tensor", "tensor over an array", "tensor over a view", "array"])
def test_views_are_views_again(kind: str) -> None:
    array = numpy.arange(12.0).reshape(4, 3)
    kept: Any = torch.arange(12.0).reshape(4, 3) if kind == "tensor" else array
    views = {
        "tensor over an array": torch.from_numpy(array)[1:3, ::2],
        "tensor over a view": torch.from_numpy(array[1:3]),
    }
    view = views[kind][:, ::2] if kind == "tensor over a view" else views.get(kind, kept[1:3, ::2])
    aliases, rebuilder = noted([kept], {"batch": view})
    digest = state_digest({"slots": {"batch": view}})
    share(values := {"batch": loaded(view)}, aliases, rebuilder)
    assert state_digest({"slots": values}) == digest, "it is what was saved"
    values["batch"] += 100
    assert kept.tolist() == [[0, 1, 2], [103, 4, 105], [106, 7, 108], [9, 10, 11]]


def test_a_part_that_differs_stays() -> None:
    """Then what was loaded is not what was saved, which is reported, not hidden."""
    data = [torch.ones(3)]
    aliases, rebuilder = noted(data, {"batch": data[0]})
    share(values := {"batch": torch.zeros(3)}, aliases, rebuilder)
    assert values["batch"] is not data[0]


@pytest.mark.parametrize(
    "part", [torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.cfloat).conj().imag]
)
def test_what_is_conjugated_when_it_is_read_stays_as_it_was_saved(part: torch.Tensor) -> None:
    aliases, _ = noted([part], {"batch": part * 1, "hidden": part[:1]})
    assert aliases == {}


def test_keys_that_a_manifest_cannot_have_are_no_place() -> None:
    kept = torch.ones(2)
    values = {"a": {2**70: kept}, "b": {torch.float32: kept}, "c": {(1, 2): kept}, "d": {"a\udc80": kept}}
    assert noted([kept], values)[0] == {}


def test_a_place_inside_of_another_leads_nowhere() -> None:
    inner = torch.ones(2)
    data = [[inner, inner]]
    _, rebuilder = noted(data, {})
    aliases = {"batch": [[["l"], ["at", "train_data[0]"]], [["l", 0], ["at", "train_data"]]]}
    share(values := {"batch": {"l": [torch.ones(2), torch.ones(2)]}}, aliases, rebuilder)
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
        [[[0], ["in", "other", [1]]]],
        [[[0], ["view", ["at", "train_data[1]"], [[2], [1], 2]]]],  # beyond its end
        [[[0], ["view", ["at", "train_data[1]"], [[2], [1], -1]]]],
        [[[0], ["view", ["at", "train_data[1]"], [[2], [-1], 2]]]],
        [[[0], ["view", ["at", "train_data[2]"], [[2], [1], 2]]]],
        [[[0], ["view", ["at", "train_data[2]"], [["2"], [1], 0]]]],
        [[[0], ["view", "train_data[1]", 5]]],
        [[[0], {"at": 5}]],
    ],
)
def test_what_does_not_fit_stays(aliases: Any) -> None:
    _, rebuilder = noted([torch.ones(2), torch.ones(3), numpy.ones(3, dtype=numpy.float32)], {})
    part = torch.zeros(2)
    share(values := {"batch": (part,)}, {"batch": aliases}, rebuilder)
    assert values["batch"][0] is part and part.tolist() == [0, 0]
