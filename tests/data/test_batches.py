"""Batches: how many samples they have, how they are cut and compared, and copied ahead of time."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch

from graphtrain.data.batch import (
    mapped,
    sample_counter,
    tensors_held,
    trace,
)
from graphtrain.errors import UsageError


@dataclasses.dataclass
class Pair:
    inputs: Any
    other: Any = dataclasses.field(init=False)


@dataclasses.dataclass
class Moving(Pair):
    def to(self, device: Any) -> Moving:
        return self


class Frozen(collections.UserDict[str, Any]):
    def __init__(self, *, inputs: Any) -> None:
        super().__init__(inputs=inputs)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(3, 2), 3),
        (torch.ones(()), 1),
        (torch.ones(0, 2), 0),
        ("a", 1),
        ([], 1),
        (None, 1),
        ([(torch.ones(4), torch.ones(3))], 4),
        (["a", torch.ones(5)], 5),
        ([(), torch.ones(5)], 5),
        ({"a": "text", "b": [torch.ones(6)]}, 6),
        (Pair(torch.ones(7)), 7),
        (Moving(torch.ones(7)), 1),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3), torch.ones(1)], layout=torch.jagged), 3),
    ],
    ids=range(13),
)
def test_samples_are_the_first_dimension_of_the_first_tensor(batch: Any, samples: int) -> None:
    assert sample_counter()(batch) == samples


def test_a_mapping_that_takes_no_dict_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        mapped(Frozen(inputs=1), lambda leaf: leaf)
    assert str(caught.value) == (
        "a batch of type Frozen cannot be made again: the type takes no dict\n  hint: return plain dicts, tuples, "
        "lists and tensors from the loader"
    )


def test_what_is_held_of_a_batch_does_not_change_with_it() -> None:
    first, second = torch.ones(1), torch.zeros(1)
    for batch in ({"a": first, "b": second}, [first, second]):
        held = tensors_held(batch)
        batch.clear()
        assert held == (first, second)
    pair = (first, second)
    assert tensors_held(pair) is pair and tensors_held(first) is first


@pytest.mark.filterwarnings("ignore:.*quantize", "ignore:.*nested tensor")
def test_a_trace_counts_changes_and_hashes_on_the_host() -> None:
    tensor = torch.zeros(3)
    before = trace(tensors_held([{"a": [tensor]}]))
    assert before["versions"] == 0 and before == trace((tensor, "a", object()))
    tensor[1] = 5
    tensor[1] = 6
    assert trace(tensor)["versions"] == 2 and trace(tensor)["hash"] != before["hash"]
    with torch.inference_mode():
        inference = torch.ones(2)
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    elsewhere = torch.ones(2, device="meta")
    assert trace((quantized, nested, torch.ones(2).to_sparse(), inference, elsewhere)) == trace(())
