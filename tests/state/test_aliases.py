"""What a value in transit shares with what is reachable."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain.state.aliases import aliases_of, with_aliases
from graphtrain.state.reachable import Reachable


def test_parts_are_the_very_objects_again() -> None:
    data = [{"inputs": torch.ones(2)}, torch.zeros(3), torch.ones(4)]
    reachable = Reachable({"train_data": data}, ["train_data"])
    value = ([data[1], 5], {"first": data[0], "last": data[2]})
    aliases = aliases_of(value, reachable)
    assert aliases == [[[0, 0], "train_data[1]"], [[1, "first"], "train_data[0]"], [[1, "last"], "train_data[2]"]]
    saved = ([torch.zeros(3), 5], {"first": {"inputs": torch.ones(2)}, "last": torch.ones(4)})
    loaded = with_aliases(saved, aliases, reachable)
    assert loaded[0][0] is data[1] and loaded[0][1] == 5
    assert loaded[1]["first"] is data[0] and loaded[1]["last"] is data[2]


@pytest.mark.parametrize(
    "aliases",
    [
        [[[0], "train_data[7]"]],  # there is no such object
        [[[3], "train_data[0]"]],  # nor such a place
        [[["a", "b"], "train_data[0]"]],
        [[[0], "train_data[1]"]],  # of another shape
        [[[], "train_data[0]"]],  # of another type
    ],
)
def test_what_does_not_fit_stays(aliases: Any) -> None:
    reachable = Reachable({"train_data": [torch.ones(2), torch.ones(3)]}, ["train_data"])
    value = (torch.zeros(2),)
    assert with_aliases(value, aliases, reachable) is value
