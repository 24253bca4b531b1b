"""What shows that a tensor or an array has changed, where not all of them are saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from graphtrain.state.content import content_hash
from graphtrain.state.reachable import Reached
from graphtrain.state.references import is_saveable

# Of larger ones a sample is compared before a save, so that training does not wait; all of data is, after the copy.
_MOST_BYTES = {"tensor": 64 * 2**10, "array": 2 * 2**20, "buffer": 2 * 2**20}


def is_plain_array(array: Any) -> bool:
    """True for an array whose values a checkpoint can hold."""
    return type(array) in (numpy.ndarray, numpy.memmap) and not array.dtype.hasobject


def is_marked(reached: Reached) -> bool:
    """True for what is saved only if it has changed: of data, or of a class that cannot be saved."""
    if reached.is_covered or reached.category not in _MOST_BYTES:
        return False
    if reached.category == "tensor":
        return reached.is_data or not is_saveable(reached.value)
    return reached.is_data or (reached.category == "array" and not is_plain_array(reached.value))


def mark_of(reached: Reached) -> tuple[Any, ...]:
    """What changes when it does: a hash, and of a tensor the number of writes too, which tells of those beyond it."""
    value = reached.value
    if reached.category != "tensor":
        return (content_hash(value, most_bytes=_MOST_BYTES[reached.category]),)
    try:
        content = content_hash(value, most_bytes=_MOST_BYTES["tensor"])
    except (RuntimeError, NotImplementedError):  # of a class with other memory than torch's
        content = str(value.shape)
    return 0 if value.is_inference() else value._version, content


def is_as_marked(reached: Reached, marks: Mapping[int, tuple[Any, ...]]) -> bool:
    """True if it looks as it did when it was marked; False for what has no mark."""
    before = marks.get(id(reached.value))
    return before is not None and before == mark_of(reached)
