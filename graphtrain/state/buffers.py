"""Memory that is neither a tensor's nor NumPy's: of a `bytearray`, an `array.array`, and numbers of C."""

from __future__ import annotations

import array
import ctypes
from typing import Any

# The codes of numbers and characters: no addresses, which are others in another process.
_CODES_OF_C = frozenset("cbBhHiIlLqQfdg?u")


def is_buffer(kind: type) -> bool:
    """True for a type whose objects are numbers in memory; not for pointers, nor structures that may hold some.

    >>> is_buffer(bytearray), is_buffer(ctypes.c_int * 3), is_buffer(ctypes.c_void_p), is_buffer(bytes)
    (True, True, False, False)
    """
    if issubclass(kind, bytearray | array.array):
        return True
    element: Any = kind
    while issubclass(element, ctypes.Array):
        element = element._type_
    simple = ctypes.c_int.__mro__[1]
    return issubclass(element, simple) and element is not simple and element._type_ in _CODES_OF_C


def read_buffer(value: Any) -> bytes:
    """The bytes of a buffer.

    >>> read_buffer(ctypes.c_uint8(7))
    b'\\x07'
    """
    return bytes(memoryview(value).cast("B") if memoryview(value).ndim else memoryview(value))


def write_buffer(value: Any, content: bytes) -> None:
    """Let a buffer have other bytes; one of C has always the same number of them.

    Raises:
        ValueError: it cannot hold so many.

    >>> numbers = array.array("h", [1, 2])
    >>> write_buffer(numbers, b"\\x07\\x00")
    >>> numbers
    array('h', [7])
    """
    if isinstance(value, bytearray):
        value[:] = content
    elif isinstance(value, array.array):
        if len(content) % value.itemsize:
            raise ValueError(f"{len(content)} bytes are no numbers of {value.itemsize} bytes")
        del value[:]
        value.frombytes(content)
    elif len(content) != ctypes.sizeof(value):
        raise ValueError(f"{len(content)} bytes were saved of what has {ctypes.sizeof(value)}")
    else:
        ctypes.memmove(ctypes.addressof(value), content, len(content))
