"""Promise 11: what is looked at in an object, by its type; and which files need no attention."""

from __future__ import annotations

import collections
import ctypes
import functools
import io
import itertools
import logging
import pathlib
import random
import threading
import types
import zipfile
from pathlib import Path
from typing import Any

import msgpack
import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader, Trainer
from graphtrain.state.classes import category_of, is_reopened


class Empty:
    __slots__ = ()


class Slotted:
    __slots__ = "only"


class Counting:
    count = 0

    def __next__(self) -> int:
        return self.count


def of_module(module: str, name: str = "Made", **attributes: Any) -> type:
    """A class that says that it is of a module, which need not exist."""
    return type(name, (), {"__module__": module, **attributes})


CATEGORIES: dict[str, list[type]] = {
    "value": [int, type(None), torch.Size, torch.dtype, numpy.float32, pathlib.PosixPath, range],
    "tensor": [torch.Tensor, torch.nn.Parameter],
    "array": [numpy.ndarray, numpy.memmap],
    "generator": [torch.Generator, numpy.random.Generator, numpy.random.RandomState, numpy.random.PCG64, random.Random],
    "module": [torch.nn.Linear],
    "optimizer": [torch.optim.SGD],
    "object": [
        Slotted, Counting, types.SimpleNamespace, DataLoader, Loader,
        of_module("datasets_of_mine"), of_module("pandas_of_mine", "DataFrame"), of_module("graphtrain.data.made"),
    ],
    "list": [list, collections.deque],
    "tuple": [tuple],
    "mapping": [dict, collections.OrderedDict],
    "set": [set, frozenset],
    "function": [types.FunctionType],
    "method": [types.MethodType],
    "partial": [functools.partial],
    "cell": [types.CellType],
    "class": [type],
    "iterator": [type(iter([])), types.GeneratorType, itertools.count],
    "file": [io.TextIOWrapper, io.StringIO],
    "watched": [bytearray, threading.local, ctypes.c_int, ctypes.c_int * 3, of_module("pandas.core", "DataFrame")],
    "run": [Trainer],
    "opaque": [Graph, object, Empty, msgpack.Packer, zipfile.ZipFile, memoryview, torch.fx.Graph],
    "skipped": [random.SystemRandom, types.ModuleType, logging.Logger, threading.Thread, threading.Event, type(len)],
}  # fmt: skip


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_category_of_a_type(category: str) -> None:
    assert {kind: category_of(kind) for kind in CATEGORIES[category]} == dict.fromkeys(CATEGORIES[category], category)


def test_files_and_archives_that_are_only_read_are_reopened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8))
    with path.open("rb") as read, zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        maps = [numpy.memmap(path, mode=mode) for mode in ("r", "r+")]
        table = [(read, False), (archive, True), (maps[0], True), (maps[1], False), (numpy.ones(2), False)]
        assert [(value, is_reopened(value)) for value, _ in table] == table
    assert is_reopened(read)
