"""The classes of objects: the category of each, and how contents are read and restored."""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import ctypes
import enum
import functools
import inspect
import io
import logging
import mmap
import operator
import pathlib
import random
import re
import sqlite3
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any, NamedTuple, TypeVar

import numpy
import torch

from graphtrain.storage.value_types import STANDARD

F = TypeVar("F", bound=Callable[..., Any])

Contents = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Keys and parts; a sequence has no keys."""

MOST_COMPARED = 100_000
CONTAINERS = (collections.OrderedDict, collections.deque, dict, list, tuple, set, frozenset)
CONSTANTS = frozenset({type(None), bool, int, float, str, bytes})
_VALUES = (*CONSTANTS, *STANDARD, enum.Enum, numpy.generic, torch.Size, pathlib.PurePath)

# Not state of the training: code that creates one when needed does so after a resume too.
LEFT_ALONE = (
    types.ModuleType, logging.Logger, threading.Thread, threading.Event, threading.Condition,
    threading.Semaphore, threading.Barrier, type(threading.Lock()), type(threading.RLock()),
    torch.utils.hooks.RemovableHandle,
)  # fmt: skip
_OF_PYTHON = (
    types.BuiltinFunctionType, types.CodeType, types.MethodWrapperType, types.MethodDescriptorType, types.FrameType,
    types.TracebackType, weakref.ReferenceType,
)  # fmt: skip
# Reported if what these return has changed.
WATCHED: Mapping[Any, Callable[[Any], Any]] = {
    contextvars.ContextVar: lambda variable: variable.get(None),
    threading.local: vars,
    SynchronizedBase: lambda shared: shared.get_obj(),
    numpy.random.SeedSequence: repr,  # with the number of its children
    sqlite3.Connection: lambda connection: connection.total_changes,
    **dict.fromkeys(
        (array.array, bytearray, mmap.mmap, ctypes.c_int.__mro__[1], ctypes.Array),
        lambda memory: numpy.frombuffer(memory, "u1"),
    ),
}
# Wrappers, which are followed to the object that they wrap: type -> attribute.
WRAPPERS: dict[type, str] = {
    types.BuiltinFunctionType: "__self__",
    type(functools.cache(len)): "__wrapped__",
    staticmethod: "__wrapped__",
    classmethod: "__wrapped__",
    memoryview: "obj",
}

# Libraries whose objects wrap memory, files or connections, which their attributes do not show.
_OPAQUE_PACKAGES = frozenset({
    "PIL", "datasets", "h5py", "lmdb", "pandas", "pyarrow", "tensorboard", "tqdm", "wandb", "zarr",
})  # fmt: skip
# Classes of these packages that are written in C hold nothing that training changes: compiled code, or settings.
_HARMLESS = frozenset({
    "_cffi_backend", "builtins", "collections", "cv2", "cython", "google", "jiter", "lxml", "matplotlib", "msgpack",
    "numpy", "onnxruntime", "orjson", "pybind11_builtins", "pydantic_core", "regex", "_regex", "rpds", "safetensors",
    "scipy", "sentencepiece", "sklearn", "tiktoken", "_tiktoken", "tokenizers", "torch", "torchaudio", "torchvision",
    "triton", "types", "weakref", "xxhash",
})  # fmt: skip
# A trainer saves itself; of graphtrain's classes only data, and what adapters give to models, is examined.
_EXAMINED = ("graphtrain.data.", "graphtrain.adapters.")
_OPAQUE_MODULES = (
    "graphtrain.", "torch._", "torch.autograd", "torch.cuda", "torch.distributed", "torch.fx", "torch.jit",
    "torch.profiler", "torch.utils.hooks", "torch.utils.tensorboard",
)  # fmt: skip
# Modules of the standard library whose objects are data; others are files, processes and connections.
_DATA_OF_PYTHON = frozenset({
    "argparse", "builtins", "collections", "configparser", "contextlib", "queue", "string", "types", "weakref",
    "_hashlib", "_queue", "_weakrefset",
})  # fmt: skip

# A class lists here the attributes that are not state of the run: they are recreated when needed.
NOT_STATE = "_graphtrain_not_state"

_INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
# The user's modules, and those of the Python below a virtual environment, are elsewhere.
_INSTALLS = re.compile(r"[/\\](site|dist)-packages[/\\]")


def _cached(function: F) -> F:
    """`functools.cache`; the type checker does not know that types are hashable."""
    return functools.cache(function)  # type: ignore[return-value]


# ---- contents of objects, and how they are restored


@dataclass(eq=False)
class Namespace:
    """The globals of a module that functions of the user use."""

    values: dict[str, Any]
    names: set[str]


@_cached
def slots_of(cls: type) -> tuple[str, ...]:
    """The attributes that the `__slots__` of a class and its bases make, by the names under which they are found."""
    declaring = [vars(base) for base in cls.__mro__ if "__slots__" in vars(base)]
    return tuple([name for names in declaring for name in names if inspect.ismemberdescriptor(names[name])])


def _attributes(value: Any) -> Contents:
    attributes = {**(getattr(value, "__dict__", None) or {})}
    for name in slots_of(type(value)):
        with contextlib.suppress(AttributeError):  # not set
            attributes[name] = object.__getattribute__(value, name)
    return tuple(attributes), tuple(attributes.values())


def _put_named(value: Any, parts: Mapping[str, Any], removed: Sequence[str]) -> None:
    """Set and remove attributes, without `__setattr__` of the class; of functions and classes only what is state."""
    is_code = isinstance(value, type | types.FunctionType | types.CellType)
    base: Any = type if isinstance(value, type) else object
    attributes = value.values if isinstance(value, Namespace) else getattr(value, "__dict__", {})
    for name in (*parts, *removed):
        is_known = not (is_code and name.startswith("__")) or name in ("__defaults__", "__kwdefaults__")
        if not (name in value.names if isinstance(value, Namespace) else is_known):
            raise AttributeError(f"`{name}` of a function, a class or a module is not state")
        if is_code or name in slots_of(type(value)):
            change, arguments = (base.__setattr__, [parts[name]]) if name in parts else (base.__delattr__, [])
            change(value, name, *arguments)
        elif name in parts:
            attributes[name] = parts[name]
        else:
            attributes.pop(name, None)


@_cached
def _base_of(cls: type) -> Any:
    """The container that a class derives from: its methods are called, not overriding ones."""
    return next(base for base in cls.__mro__ if base in CONTAINERS)


def _items(value: Any) -> Contents:
    return (), tuple(_base_of(type(value)).__iter__(value))


def _pairs(value: Any) -> Contents:
    base = _base_of(type(value))
    return tuple(base.__iter__(value)), tuple(base.values(value))


def _put_all(value: Any, parts: Any, removed: Any) -> None:
    base = _base_of(type(value))
    base.clear(value)
    (base.extend if hasattr(base, "extend") else base.update)(value, parts)


def _settings_of(*names: str) -> Callable[[Any], Contents]:
    """A function that returns these attributes of an object, two at least, as its contents."""
    values_of = operator.attrgetter(*names)
    return lambda value: (names, values_of(value))


def _of_cell(value: types.CellType) -> Contents:
    try:
        return ("cell_contents",), (value.cell_contents,)
    except ValueError:  # empty
        return (), ()


def _of_class(value: type) -> Contents:
    is_enum = isinstance(value, enum.EnumMeta)  # its bookkeeping, such as `_value2member_map_`, belongs to Python
    names = [name for name in vars(value) if not (name[:2] == "__" or (is_enum and name[0] == name[-1] == "_"))]
    return tuple(names), tuple(vars(value)[name] for name in names)


def _of_namespace(value: Namespace) -> Contents:
    names = tuple(sorted(value.names & value.values.keys()))
    return names, tuple(map(value.values.__getitem__, names))


# ---- the table


class CategoryRule(NamedTuple):
    """How objects of a category are read and restored.

    Attributes:
        types: their classes, with subclasses. Empty: `category_of` has a rule for the category.
        contents: returns the present contents of an object. None: they are not examined.
        put: sets some parts by key, and removes other keys; of a container, replaces everything. None: tensors, arrays
            and generators are saved by value, and a change of anything else is reported.
    """

    types: Any = ()
    contents: Any = None
    put: Any = None

    @property
    def is_named(self) -> bool:
        """True if keys are names that are set one by one."""
        return self.put is _put_named


_GENERATORS = (torch.Generator, numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)

# The first row that has a type decides.
TABLE: Mapping[str, CategoryRule] = {
    "value": CategoryRule(_VALUES),
    "skipped": CategoryRule((*LEFT_ALONE, *_OF_PYTHON, random.SystemRandom)),
    "tensor": CategoryRule(torch.Tensor),
    "module": CategoryRule(torch.nn.Module, _attributes, _put_named),
    "optimizer": CategoryRule(torch.optim.Optimizer, _attributes, _put_named),
    "array": CategoryRule(numpy.ndarray),
    "generator": CategoryRule((*_GENERATORS, random.Random)),
    "list": CategoryRule((list, collections.deque), _items, _put_all),
    "mapping": CategoryRule(dict, _pairs, _put_all),
    "set": CategoryRule((set, frozenset), _items, _put_all),
    "tuple": CategoryRule(tuple, _items, _put_all),
    "function": CategoryRule(types.FunctionType, _settings_of("__defaults__", "__kwdefaults__"), _put_named),
    "method": CategoryRule(types.MethodType, _settings_of("__self__", "__func__"), _put_named),
    "partial": CategoryRule(functools.partial, _settings_of("func", "args", "keywords", "__dict__"), _put_named),
    "cell": CategoryRule(types.CellType, _of_cell, _put_named),
    "watched": CategoryRule(tuple(WATCHED)),
    "class": CategoryRule(type, _of_class, _put_named),
    "iterator": CategoryRule((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)),
    "file": CategoryRule(io.IOBase),
    "object": CategoryRule((), _attributes, _put_named),
    "globals": CategoryRule((), _of_namespace, _put_named),
    "run": CategoryRule(),  # a trainer other than that of the run, as a step function may hold
    "hidden": CategoryRule(),  # written in C, with contents that nothing shows
    "opaque": CategoryRule(),  # without contents that training changes, or of a library that is not examined
}
RULES = {category: rule for category, rule in TABLE.items() if rule.contents is not None}
"""The rules of the categories whose objects have contents."""
IN_CONTAINERS = frozenset({category for category, rule in RULES.items() if not rule.is_named})
"""The categories of containers: sequences, mappings and sets."""


@_cached
def category_of(cls: type) -> str:
    """The category of objects of a type.

    >>> category_of(int), category_of(torch.nn.Parameter), category_of(type(iter([])))
    ('value', 'tensor', 'iterator')
    """
    for category, row in TABLE.items():
        if issubclass(cls, row.types):
            return category
    package = cls.__module__.partition(".")[0]
    if package == "pandas" and cls.__name__ in ("DataFrame", "Series"):
        return "watched"
    step = getattr(cls, "__next__", None)
    if step is not None and (not isinstance(step, types.FunctionType) or cls.__name__.endswith("DataLoaderIter")):
        return "iterator"
    if cls.__module__ == "graphtrain.trainer.trainer":
        return "run"
    if cls.__module__.startswith(_OPAQUE_MODULES) and not cls.__module__.startswith(_EXAMINED):
        return "opaque"
    is_of_files = package in sys.stdlib_module_names and package not in _DATA_OF_PYTHON
    # A folder `datasets` of the user is not a library.
    if (package in _OPAQUE_PACKAGES or is_of_files) and not is_users(cls.__module__):
        return "opaque"
    if cls.__dictoffset__ or slots_of(cls):
        return "object"
    # Written in C, with contents that no attribute shows.
    size_of_nothing = object.__basicsize__ + bool(cls.__weakrefoffset__) * tuple.__itemsize__
    return "hidden" if cls.__basicsize__ > size_of_nothing and package not in _HARMLESS else "opaque"


def is_users(module_name: str | None) -> bool:
    """True for a module of the user, such as a script or a notebook; not of an installed package, nor Python's.

    >>> is_users("__main__"), is_users("torch"), is_users("graphtrain.graph")
    (True, False, False)
    """
    if module_name == "__main__":
        return True
    file = getattr(sys.modules.get(module_name or ""), "__file__", None)
    is_own = str(module_name).partition(".")[0] == "graphtrain"
    return not (file is None or is_own or file.startswith(_INSTALLED) or _INSTALLS.search(file))


def is_reopened(value: Any) -> bool:
    """True for what data reopens when needed: a closed file, an archive, a read-only memory map."""
    if isinstance(value, io.IOBase | numpy.memmap):
        return value.closed if isinstance(value, io.IOBase) else not value.flags.writeable
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
