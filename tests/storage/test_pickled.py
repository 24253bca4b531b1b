"""Pickled values are read as data: nothing in them is called, whatever they ask for."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain.storage.pickled import Global, PickledObject, read_pickled


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (subprocess.check_call, (["touch", str(self.path)],))


class Plain:
    def __init__(self) -> None:
        self.sizes = torch.Size([2, 3])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_and_records(protocol: int) -> None:
    value = {
        "a": [1, -2, 300, 70_000, 1 << 40, 2.5, None, True],
        ("b", 1): {"c": ("d", 1, 2, 3, 4), "one": [7]},
        "type": torch.float32,
    }
    plain = Plain()
    read = read_pickled(pickle.dumps([value, plain, plain], protocol))
    assert read[0] == value | {"type": Global("torch float32")}
    assert read[1] is read[2]
    assert read[1].name.endswith("test_pickled Plain") or read[1].name == "copyreg _reconstructor"
    sizes = read[1].state["sizes"]
    assert (sizes.name, sizes.arguments) == ("torch Size", ((2, 3),))


def test_a_reference_is_to_a_value_that_is_stored_elsewhere() -> None:
    (reference,) = read_pickled(b"\x80\x02]K\x05Qa.")
    assert (reference.name, reference.arguments) == ("", 5)


def test_nothing_is_called(tmp_path: Path) -> None:
    path = tmp_path / "made"
    data = pickle.dumps({"x": Harmful(path)})
    record = read_pickled(data)["x"]
    assert isinstance(record, PickledObject)
    assert record.name == "subprocess check_call"
    assert not path.exists()
    pickle.loads(data)  # noqa: S301 - which does
    assert path.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nothing of the kind",
        pickle.dumps({"a": 1})[:-3],
        b"\x80\x04.",
        b"\x80\x04K\x01K\x02.",
        b"\x80\x04K\x01s.",
        b"\x80\x04}K\x01K\x02e.",
        b"\x80\x04K\x01K\x02R.",
        b"\x80\x04K\x01)b.",
        b"\x80\x04h\x07.",
        b"\x80\x04(K\x01a.",
        b"\x80\x04](a.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04}(]K\x02u.",
        b"cos\nsystem\nI1\n.",
        pickle.dumps({1, 2}),
    ],
)
def test_what_is_not_such_a_value_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="pickled value"):
        read_pickled(data)
