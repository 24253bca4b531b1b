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


def noted(data: Any, values: dict[str, Any], new: Sequence[Any] = ()) -> tuple[dict[str, Any], Rebuilder]:
    """What a manifest has of values beside data, and of other objects that are new."""
    reachable = Reachable({"train_data": data}, ["train_data"])
    describer = Describer(reachable, {})
    for value in new:
        describer.describe(value, "new")
    aliases = msgpack.unpackb(msgpack.packb(aliases_of(values, describer)))
    return aliases, Rebuilder(reachable, {}, describer.new)


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
    loaded = values["batch"]
    assert loaded[0][0] is data[1] and loaded[0][1] == 5
    assert loaded[1]["first"] is data[0] and loaded[1]["last"] is data[2]


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
    aliases, rebuilder = noted([], {"batch": [part, part], "hidden": {"h": part, "view": part[1:3]}})
    values: dict[str, Any] = {
        "batch": [torch.ones(4), torch.ones(4)],
        "hidden": {"h": torch.ones(4), "view": torch.ones(2)},
    }
    share(values, aliases, rebuilder)
    values["batch"][1].mul_(3)
    assert [*map(float, values["batch"][0])] == [*map(float, values["hidden"]["h"])] == [3.0] * 4
    assert [*map(float, values["hidden"]["view"])] == [3.0] * 2


@pytest.mark.parametrize("kind", ["tensor", "tensor over an array", "array"])
def test_views_are_views_again(kind: str) -> None:
    array = numpy.arange(12.0).reshape(4, 3)
    kept: Any = torch.arange(12.0).reshape(4, 3) if kind == "tensor" else array
    view = torch.from_numpy(array)[1:3, ::2] if kind == "tensor over an array" else kept[1:3, ::2]
    aliases, rebuilder = noted([kept], {"batch": view})
    share(values := {"batch": torch.clone(view) if isinstance(view, torch.Tensor) else view.copy()}, aliases, rebuilder)
    values["batch"] += 100
    assert kept.tolist() == [[0, 1, 2], [103, 4, 105], [106, 7, 108], [9, 10, 11]]


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
