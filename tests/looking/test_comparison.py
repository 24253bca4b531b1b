"""Promise 16: two states compared: every difference of a bit is found, and nothing else."""

from __future__ import annotations

import collections
import copy
import math
import struct
from typing import Any

import numpy
import pytest
import torch

from graphtrain.proof.comparison import compare
from graphtrain.storage.encoding import Encoded, SavedTensor
from graphtrain.storage.state_files import state_digest

SECTIONS = ["resources", "modules", "gradients", "optimizers", "progress", "slots", "metrics", "random"]
NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
CHANNELS_LAST = torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last)

# Two values that are not one state, and what is reported.
PAIRS: list[tuple[Any, Any, str]] = [
    (torch.zeros(2, 3), torch.tensor([[0.0, 0, 0], [0, 0.25, 0]]), "1 of 6 elements, by at most 0.25, first at [1, 1]"),
    (torch.zeros(()), torch.tensor(-0.0), "1 of 1 element, by at most 0, first at []: 0.0 -> -0.0"),
    (torch.zeros(1), torch.tensor([math.nan]), "1 of 1 element, by at most nan, first at [0]: 0.0 -> nan"),
    (torch.zeros(2), torch.zeros(3), "float32 (2,) on cpu -> float32 (3,) on cpu"),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "float32 (2,) on cpu -> float64 (2,) on cpu"),
    (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), "2 of 2 elements, by at most 1"),
    (torch.tensor([True, False]), torch.tensor([True, True]), "1 of 2 elements, first at [1]: False -> True"),
    (torch.tensor([1 + 2j]), torch.tensor([1 - 2j]), "1 of 1 element, by at most 4, first at [0]"),
    (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]).conj(), "1 of 1 element, by at most 4"),
    (torch.arange(4, dtype=torch.uint8), torch.tensor([0, 1, 2, 255], dtype=torch.uint8), "by at most 252"),
    (CHANNELS_LAST, CHANNELS_LAST.contiguous(), "strides (12, 1, 6, 3) -> float32 (2, 3, 2, 2)"),
    (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse(), "2 of 2 elements, by at most 1"),
    (torch.eye(2).to_sparse(), torch.eye(2).flip(0).to_sparse(), "2 of 4 elements"),
    (numpy.zeros(3), numpy.array([0, 0, 1.0]), "different bytes"),
    (numpy.zeros(3), numpy.zeros(3, dtype="float32"), "float64 (3,) -> float32 (3,)"),
    (numpy.array(["a"]), numpy.array(["b"]), "different bytes"),
    (numpy.float64(1), numpy.float64(2), "1.0"),
    (1, 2, "1 -> 2"),
    (1, True, "1 -> True"),
    (1, 1.0, "1 -> 1.0"),
    (0.0, -0.0, "0.0 -> -0.0"),
    (math.nan, NAN, "nan -> nan"),
    (1 + 0j, complex(1, -0.0), "-> (1-0j)"),
    (None, 0, "None -> 0"),
    ("a", "b", "'a' -> 'b'"),
    ([1, 2], (1, 2), "[1, 2] -> (1, 2)"),
    ([1, 2], [1, 2, 3], "[1, 2] -> [1, 2, 3]"),
    ([1, 2, 3], [1, 5, 6], "2 of 3 elements, first at [1]: 2 -> 5"),
    ([0.0], [-0.0], "1 of 1 element, first at [0]: 0.0 -> -0.0"),
    ([torch.zeros(1)], [torch.zeros(1), torch.zeros(1)], " -> "),
    ([torch.zeros(1), 1], [torch.zeros(1), 2], "1 -> 2"),
    ([torch.zeros(1)], [1], "a tensor, float32 (1,) on cpu -> 1"),
    ({1, 2}, {1, 3}, "{1, 2} -> {1, 3}"),
    ({"a": 1}, {}, "is missing"),
    ({}, {"a": 1}, "is new"),
    ({3: 1}, {3: 2}, "1 -> 2"),
    (collections.Counter("a"), collections.Counter("aa"), "1 -> 2"),
    (collections.deque([1], 3), collections.deque([1], 4), "maxlen=3) -> deque([1], maxlen=4)"),
    (collections.deque([1, 2]), collections.deque([1, 3]), "1 of 2 elements, first at [1]: 2 -> 3"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "how"), PAIRS, ids=range(len(PAIRS)))
def test_what_differs_is_found_and_what_is_the_same_is_not(one: Any, other: Any, how: str) -> None:
    trees = [{"slots": {"of": {"a": 1, "it": value}}} for value in (one, other)]
    (found,) = compare(*trees)
    assert found.path.startswith("slots/of/it") and how in found.how
    assert len(compare(*reversed(trees))) == 1
    assert not any(compare(tree, copy.deepcopy(tree)) for tree in trees)
    if how != "nan -> nan":  # which payload a NaN of Python keeps is not for the digest to say
        resolved = [
            {"slots": {"it": value.resolve_conj() if isinstance(value, torch.Tensor) and value.is_complex() else value}}
            for value in (one, other)
        ]
        assert state_digest(resolved[0]) != state_digest(resolved[1])


def test_causes_come_before_what_follows_from_them() -> None:
    one: dict[str, Any] = {section: {"it": 1} for section in SECTIONS}
    other = {section: {"it": 2} for section in reversed(SECTIONS)}
    sections = [difference.path.partition("/")[0] for difference in compare(one, other)]
    assert sections[:2] == ["progress", "random"] and sections[-1] == "metrics"
    assert sorted(sections) == sorted(SECTIONS)


def test_values_that_were_encoded_are_compared_with_their_tensors() -> None:
    """What a resource has been given since it was set up, such as the batch that a module keeps."""
    encoded = Encoded("model.batch", [SavedTensor(torch.zeros(2), "0"), 1])
    assert compare({"reachable": {"batch": encoded}}, {"reachable": {"batch": copy.deepcopy(encoded)}}) == []
    other = {"batch": Encoded("model.batch", [SavedTensor(torch.ones(2), "0"), 1])}
    assert [one.path for one in compare({"reachable": {"batch": encoded}}, {"reachable": other})] == [
        "reachable/batch/0"
    ]
