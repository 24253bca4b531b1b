"""The category of an object in the search for the state of a run, by its type alone, once for every type."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import enum
import functools
import io
import logging
import mmap
import os
import pathlib
import random
import sqlite3
import sys
import sysconfig
import threading
import types
import weakref
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any, Literal

import numpy
import torch

from graphtrain.storage.value_types import STANDARD

Category = Literal[
    "value", "tensor", "array", "generator", "module", "optimizer", "object",
    "list", "tuple", "mapping", "set", "deque", "buffer",
    "function", "method", "partial", "cell", "class", "iterator", "file", "run",
    "watched", "hidden", "opaque", "skipped",
]  # fmt: skip

_VALUES = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum, numpy.generic, torch.dtype, torch.device, torch.Size,
    pathlib.PurePath, *STANDARD,
)  # fmt: skip

_WEAK_MAPPINGS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)

# Not state of the training: code that makes one when needed makes it again after a resume.
_LEFT_ALONE = (
    types.ModuleType, logging.Logger, logging.Handler, threading.Thread, threading.local, threading.Event,
    threading.Condition, threading.Semaphore, threading.Barrier, type(threading.Lock()), type(threading.RLock()),
    torch.utils.hooks.RemovableHandle,
)  # fmt: skip
# Not entered: their contents belong to Python, the system, or another thread.
_SKIPPED = (
    *(kind for kind in _LEFT_ALONE if kind is not threading.local), types.BuiltinFunctionType, types.CodeType,
    types.MethodWrapperType, types.MethodDescriptorType, types.FrameType, types.TracebackType, weakref.ReferenceType,
)  # fmt: skip
# What stands for another object, and the attribute that has it: methods of objects in C, and functions with a cache.
STANDS_FOR: dict[type, str] = {
    types.BuiltinFunctionType: "__self__",
    types.MethodWrapperType: "__self__",
    type(functools.cache(len)): "__wrapped__",
    staticmethod: "__wrapped__",
    classmethod: "__wrapped__",
    memoryview: "obj",
}

_BY_BASE: tuple[tuple[Any, Category], ...] = (
    (torch.Tensor, "tensor"),
    (torch.nn.Module, "module"),
    (torch.optim.Optimizer, "optimizer"),
    (numpy.ndarray, "array"),
    ((torch.Generator, numpy.random.Generator, numpy.random.RandomState), "generator"),
    ((numpy.random.BitGenerator, numpy.random.SeedSequence), "generator"),
    (random.SystemRandom, "skipped"),
    (random.Random, "generator"),
    (list, "list"),
    ((dict, *_WEAK_MAPPINGS), "mapping"),
    (collections.deque, "deque"),
    ((set, frozenset, weakref.WeakSet), "set"),
    (tuple, "tuple"),
    (types.FunctionType, "function"),
    (types.MethodType, "method"),
    (functools.partial, "partial"),
    (types.CellType, "cell"),
    (bytearray, "buffer"),
    # Compared as a whole, and reported if they have changed.
    ((contextvars.ContextVar, threading.local, SynchronizedBase), "watched"),
    ((array.array, mmap.mmap, sqlite3.Connection), "watched"),
    (type, "class"),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), "iterator"),
    (io.IOBase, "file"),
)

# Libraries whose objects wrap memory, files or connections, which their attributes do not show.
_OPAQUE_PACKAGES = frozenset(
    {"PIL", "asyncio", "concurrent", "datasets", "h5py", "lmdb", "multiprocessing", "pandas", "pyarrow", "sqlite3"}
    | {"tensorboard", "tqdm", "wandb", "zarr"}
)
_OF_PANDAS = frozenset({"DataFrame", "Series"})
# Of these, classes written in C hold nothing that training changes: compiled code, or settings.
_HARMLESS = frozenset({
    "_cffi_backend", "cv2", "cython", "google", "jiter", "lxml", "matplotlib", "msgpack", "numpy", "onnxruntime",
    "orjson", "pybind11_builtins", "pydantic_core", "regex", "_regex", "rpds", "safetensors", "scipy", "sentencepiece",
    "sklearn", "tiktoken", "_tiktoken", "tokenizers", "torch", "torchaudio", "torchvision", "triton", "xxhash",
})  # fmt: skip
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that a `class` statement made, or a module of C when it was imported
# The codes of numbers and characters, not of addresses, which differ between processes.
_CODES_OF_C = frozenset("cbBhHiIlLqQfdg?u")
# A trainer saves itself; of graphtrain's classes only data, and what adapters give to models, is examined.
_EXAMINED = ("graphtrain.data.", "graphtrain.adapters.")
_OPAQUE_MODULES = (
    "graphtrain.", "torch._", "torch.autograd", "torch.cuda", "torch.distributed", "torch.fx", "torch.jit",
    "torch.profiler", "torch.utils.hooks", "torch.utils.tensorboard",
)  # fmt: skip
# Of the standard library these are data; others are files, processes and connections.
_DATA_OF_PYTHON = frozenset(
    {"argparse", "builtins", "collections", "configparser", "contextlib", "queue", "string", "types"}
    | {"_hashlib", "_queue"}
)

# Called for every object at every save.
_KNOWN: dict[type, Category] = {}
_SLOTS: dict[type, tuple[str, ...]] = {}

# The attributes that a class lists here are not state of the run: they are made again when needed.
NOT_STATE = "_graphtrain_not_state"
# The method of an object that runs another training: returns its contents, by name, and a text that changes once it has
# trained.
OF_A_RUN = "_held_and_position"

_INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
# The user's modules, and those of the Python below a virtual environment, are elsewhere.
_INSTALLS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def category_of(kind: type) -> Category:
    """The category of objects of a type.

    >>> category_of(int), category_of(torch.nn.Parameter), category_of(type(iter([])))
    ('value', 'tensor', 'iterator')
    """
    category = _KNOWN.get(kind)
    if category is None:
        category = _KNOWN[kind] = _category_of(kind)
    return category


def _category_of(kind: type) -> Category:
    if issubclass(kind, _VALUES):
        return "value"
    if issubclass(kind, logging.Handler) and is_users(kind.__module__):
        return "object"
    if issubclass(kind, _SKIPPED) or (issubclass(kind, os.PathLike) and not is_users(kind.__module__)):
        return "skipped"
    for base, category in _BY_BASE:
        if issubclass(kind, base):
            return category
    package = kind.__module__.partition(".")[0]
    if _is_number_of_c(kind) or (package == "pandas" and kind.__name__ in _OF_PANDAS):
        return "watched"
    has_attributes = bool(kind.__dictoffset__) or bool(slots_of(kind))
    if (step := getattr(kind, "__next__", None)) is not None:
        is_in_c = not isinstance(step, types.FunctionType)
        if is_in_c or not has_attributes or kind.__name__.endswith("DataLoaderIter"):
            return "iterator"
    if kind.__module__.startswith("graphtrain.") and hasattr(kind, OF_A_RUN):
        return "run"
    if kind.__module__.startswith(_OPAQUE_MODULES) and not kind.__module__.startswith(_EXAMINED):
        return "opaque"
    is_of_files = package in sys.stdlib_module_names and package not in _DATA_OF_PYTHON
    # A folder `datasets` of the user is not a library.
    if (package in _OPAQUE_PACKAGES or is_of_files) and not is_users(kind.__module__):
        return "opaque"
    if has_attributes:
        return "object"
    return "hidden" if _hides_state(kind, package) else "opaque"


def _hides_state(kind: type, package: str) -> bool:
    """True for a class written in C whose objects have contents that no attribute shows."""
    is_of_python = package in sys.stdlib_module_names and not kind.__flags__ & HEAP_TYPE
    size_of_nothing = object.__basicsize__ + bool(kind.__weakrefoffset__) * tuple.__itemsize__
    return kind.__basicsize__ > size_of_nothing and not is_of_python and package not in _HARMLESS


def _is_number_of_c(kind: type) -> bool:
    """True for numbers of ctypes, and arrays of them; not for pointers, nor structures that may hold some.

    >>> _is_number_of_c(ctypes.c_int * 3), _is_number_of_c(ctypes.c_void_p), _is_number_of_c(bytes)
    (True, False, False)
    """
    element: Any = kind
    while issubclass(element, ctypes.Array):
        element = element._type_
    simple = ctypes.c_int.__mro__[1]
    return issubclass(element, simple) and element is not simple and element._type_ in _CODES_OF_C


def slots_of(kind: type) -> tuple[str, ...]:
    """The names in `__slots__` of a class and its bases."""
    slots = _SLOTS.get(kind)
    if slots is None:
        slots = _SLOTS[kind] = _slots_of(kind)
    return slots


def _slots_of(kind: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in kind.__mro__:
        declared = vars(base).get("__slots__", ())
        for name in [declared] if isinstance(declared, str) else declared:
            is_private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def is_left_alone(value: Any) -> bool:
    """True for locks, threads, loggers and modules."""
    return isinstance(value, _LEFT_ALONE)


def is_users(module_name: str | None) -> bool:
    """True for a module of the user, such as a script or a notebook; not of an installed package, nor Python's.

    >>> is_users("__main__"), is_users("torch"), is_users("graphtrain.graph")
    (True, False, False)
    """
    module = sys.modules.get(module_name or "")
    if module is None or module_name is None or module_name.partition(".")[0] == "graphtrain":
        return False
    if module_name == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return file is not None and not (file.startswith(_INSTALLED) or any(folder in file for folder in _INSTALLS))


def is_reopened(value: Any, *, seeks: bool) -> bool:
    """True for what data reopens when needed: a file, an archive or a memory map that is only read.

    Arguments:
        seeks: False for data that may continue to read a file at its position.
    """
    if isinstance(value, io.IOBase):
        return value.closed or (seeks and not value.writable())
    if isinstance(value, numpy.memmap):
        return not value.flags.writeable
    return type(value).__module__.partition(".")[0] in ("h5py", "lmdb", "tarfile", "zipfile")


def is_value(value: Any) -> bool:
    """True for an immutable value without parts that could change."""
    return category_of(type(value)) == "value"


def is_constant(value: Any) -> bool:
    """True for a value, and for tuples and frozen sets of constants; also for classes and unentered objects."""
    category = category_of(type(value))
    if category == "tuple" or isinstance(value, frozenset):
        return all(map(is_constant, value))
    return category in ("value", "class", "skipped")
