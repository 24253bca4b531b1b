"""The category of objects by their type, and which modules, files and values need no attention."""

from __future__ import annotations

import argparse
import array
import asyncio
import collections
import contextvars
import ctypes
import functools
import io
import itertools
import logging
import mmap
import multiprocessing
import operator
import pathlib
import queue
import random
import re
import sqlite3
import sys
import threading
import types
import weakref
import zipfile
from pathlib import Path
from typing import Any

import msgpack
import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader, Trainer
from graphtrain.state.category import (
    _hides_state,
    category_of,
    is_reopened,
    is_users,
)


class Empty:
    __slots__ = ()


class OnlyReferred:
    __slots__ = ("__weakref__",)


class Slotted:
    __slots__ = "only"


class Handler(logging.Handler):
    pass


class Named:
    def __fspath__(self) -> str:
        return "a"


class Counting:
    count = 0

    def __next__(self) -> int:
        return self.count


class CountingDataLoaderIter(Counting):
    pass


class Bare:
    __slots__ = ()

    def __next__(self) -> int:
        return 0


class Structure(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int),)


def of_module(module: str, name: str = "Made", **attributes: Any) -> type:
    """A class that says that it is of a module, which need not exist."""
    return type(name, (), {"__module__": module, **attributes})


def generator() -> Any:
    yield


CATEGORIES: dict[str, list[type]] = {
    "value": [int, type(None), torch.Size, torch.dtype, numpy.float32, pathlib.PosixPath, range],
    "tensor": [torch.Tensor, torch.nn.Parameter],
    "array": [numpy.ndarray, numpy.memmap],
    "generator": [
        torch.Generator, numpy.random.Generator, numpy.random.RandomState, numpy.random.PCG64,
        numpy.random.SeedSequence, random.Random,
    ],
    "module": [torch.nn.Linear],
    "optimizer": [torch.optim.SGD],
    "object": [
        Slotted, Handler, Structure, Counting, Named, argparse.Namespace, queue.Queue,
        types.SimpleNamespace, DataLoader, Loader,
        of_module("datasets_of_mine"), of_module("pandas_of_mine", "DataFrame"), of_module("graphtrain.data.made"),
        of_module("mine", _held_and_position=None),
    ],
    "list": [list],
    "tuple": [tuple],
    "mapping": [dict, collections.OrderedDict, weakref.WeakKeyDictionary, weakref.WeakValueDictionary],
    "set": [set, frozenset, weakref.WeakSet],
    "deque": [collections.deque],
    "buffer": [bytearray],
    "function": [type(generator)],
    "method": [types.MethodType],
    "partial": [functools.partial],
    "cell": [types.CellType],
    "class": [type],
    "iterator": [type(iter([])), types.GeneratorType, itertools.count, Bare, CountingDataLoaderIter],
    "file": [io.TextIOWrapper, io.StringIO],
    "watched": [
        contextvars.ContextVar, threading.local, array.array, mmap.mmap, sqlite3.Connection, ctypes.c_int,
        ctypes.c_int * 3, of_module("pandas.core", "DataFrame"), of_module("pandas", "Series"),
    ],
    "run": [Trainer],
    "opaque": [
        Graph, object, Empty, OnlyReferred, ctypes.c_void_p, msgpack.Packer, zipfile.ZipFile, asyncio.Queue,
        type(functools.lru_cache(len)), memoryview, torch.fx.Graph, of_module("datasets.arrow"),
        of_module("pandas.core", "Index"), of_module("graphtrain.made"),
    ],
    "skipped": [
        random.SystemRandom, types.ModuleType, logging.Logger, logging.StreamHandler, threading.Thread, type(len),
        threading.Event, weakref.ReferenceType, types.FrameType, of_module("made", __fspath__=len),
    ],
}  # fmt: skip


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_category_of_a_type(category: str) -> None:
    assert {kind: category_of(kind) for kind in CATEGORIES[category]} == dict.fromkeys(CATEGORIES[category], category)


def test_a_folder_of_the_user_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("datasets.mine")
    module.__file__ = "/home/datasets/mine.py"
    monkeypatch.setitem(sys.modules, "datasets.mine", module)
    assert category_of(of_module("datasets.mine")) == "object"
    assert category_of(of_module("datasets.mine", __fspath__=len)) == "object"


@pytest.mark.parametrize(
    ("kind", "package", "expected"),
    [
        (msgpack.Packer, "made", True),
        (msgpack.Packer, "msgpack", False),
        (memoryview, "made", True),
        (memoryview, "builtins", False),
        (re.Match, "re", True),  # made when its module was imported, as any module of C makes its classes
        (object, "made", False),
        (Empty, "made", False),
        (OnlyReferred, "made", False),
    ],
)
def test_a_class_of_c_may_hide_state(kind: type, package: str, expected: bool) -> None:
    assert _hides_state(kind, package) is expected


def test_what_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    user_site = "/root/.local/lib/python3.11/site-packages/of_user.py"
    files = {"mine": "/home/mine.py", "of_c": None, "installed": torch.__file__, "of_user": user_site}
    for name, file in files.items():
        module = types.ModuleType(name)
        if file is not None:
            module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
    names = [
        "mine",
        "__main__",
        __name__,
        "of_c",
        "installed",
        "of_user",
        "json",
        "graphtrain.state",
        "not_imported",
        "",
        None,
    ]
    assert [is_users(name) for name in names] == [True] * 3 + [False] * 8
    module = types.ModuleType("graphtrain")
    module.__file__ = "/home/graphtrain/__init__.py"
    monkeypatch.setitem(sys.modules, "graphtrain.made", module)
    assert not is_users("graphtrain.made")


def test_files_and_archives_that_are_only_read_are_reopened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8))
    with path.open("rb") as read, path.open("r+b") as both, zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        closed = path.open("rb")
        closed.close()
        maps = [numpy.memmap(path, mode=mode) for mode in ("r", "r+")]
        table: list[tuple[Any, bool, bool]] = [
            (read, False, True), (both, False, False), (closed, True, True), (archive, True, True),
            (maps[0], True, True), (maps[1], False, False), (numpy.ones(2), False, False), (None, False, False),
            (multiprocessing.get_context(), False, False), (operator.itemgetter(1), False, False),
        ]  # fmt: skip
        for value, without_seeking, with_seeking in table:
            assert (is_reopened(value, seeks=False), is_reopened(value, seeks=True)) == (without_seeking, with_seeking)
