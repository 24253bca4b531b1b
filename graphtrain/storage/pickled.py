"""Pickled values, read as data: nothing in them is called or imported, which is what makes unpickling unsafe.

What `pickle` would make an object of becomes a record of what would be called with what. The metadata of
`torch.distributed.checkpoint`, and tensors in files of `torch.save`, are read in this way.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

_MARK = object()
_NO_EFFECT = frozenset({"PROTO", "FRAME"})
_VALUES = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Global(NamedTuple):
    """The name of a class, a function or another value of a module, which is not imported."""

    name: str


@final
@dataclass(eq=False)
class PickledObject:
    """An object that `pickle` would make.

    Attributes:
        name: of what would be called; empty for a reference to a value that is stored elsewhere.
        arguments: of that call, or the reference.
        state: the attributes that would be set.
    """

    name: str
    arguments: Any = ()
    state: Any = None


def read_pickled(data: bytes) -> Any:
    """The value that was pickled, of plain values, `Global`, and `PickledObject` for everything else.

    Raises:
        ValueError: it is not what `pickle` writes, or has an operation that plain classes do not need.

    >>> import pickle
    >>> read_pickled(pickle.dumps({"rows": slice(2, 3)}))
    {'rows': PickledObject(name='builtins slice', arguments=(2, 3, None), state=None)}
    """
    machine = _Machine()
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name == "STOP":
                (value,) = machine.stack
                return value
            machine.step(operation.name, argument)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is not a pickled value that can be read as data ({error})") from error
    raise ValueError("it is not a pickled value: it has no end")


@final
class _Machine:
    """The operations of `pickle`, on values that do nothing."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._noted: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            self._replace(_TUPLES[name], lambda *parts: parts)
        elif name == "MEMOIZE":
            self._noted[len(self._noted)] = stack[-1]
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._noted[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._noted[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "GLOBAL":
            stack.append(Global(argument))
        elif name not in _NO_EFFECT:
            self._compose(name)

    def _compose(self, name: str) -> None:
        """An operation on values that are on the stack."""
        if name == "TUPLE":
            self.stack.append(tuple(self._marked()))
        elif name in ("SETITEMS", "SETITEM"):
            pairs = self._marked() if name == "SETITEMS" else self._popped(2)
            _of_type(self.stack[-1], dict).update(zip(pairs[::2], pairs[1::2], strict=True))
        elif name in ("APPENDS", "APPEND"):
            parts = self._marked() if name == "APPENDS" else self._popped(1)
            _of_type(self.stack[-1], list).extend(parts)
        elif name == "STACK_GLOBAL":
            self._replace(2, lambda module, what: Global(f"{_of_type(module, str)} {_of_type(what, str)}"))
        elif name in ("REDUCE", "NEWOBJ"):
            self._replace(2, lambda called, arguments: PickledObject(_of_type(called, Global).name, arguments))
        elif name == "BINPERSID":
            self._replace(1, lambda reference: PickledObject("", reference))
        elif name == "BUILD":
            (state,) = self._popped(1)
            _of_type(self.stack[-1], PickledObject).state = state
        else:
            raise ValueError(f"the operation {name}")

    def _popped(self, count: int) -> list[Any]:
        parts = self.stack[-count:]
        if len(parts) != count or any(part is _MARK for part in parts):
            raise ValueError("values are missing")
        del self.stack[-count:]
        return parts

    def _replace(self, count: int, make: Callable[..., Any]) -> None:
        self.stack.append(make(*self._popped(count)))

    def _marked(self) -> list[Any]:
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:  # an IndexError, if there is none
            start -= 1
        parts = self.stack[start + 1 :]
        del self.stack[start:]
        return parts


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
