"""Open files: how far they have been read."""

from __future__ import annotations

import types
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from graphtrain.state.category import is_users
from graphtrain.state.reachable import Reached, names_in
from graphtrain.state.references import UnknownStateError


def position_of_file(reached: Reached) -> dict[str, Any] | None:
    """How far a file has been read, which matters where it is read on."""
    file = reached.value
    if file.closed or not file.readable():
        return None
    if not file.writable() and file.seekable():
        with suppress(OSError):  # within a loop over the lines of a text
            return {"position": file.tell()}
    raise UnknownStateError(reached.path, "is an open file, whose position is not saved: open it when it is read")


def seeks(classes: Iterable[type]) -> bool:
    """True if one of these classes is the user's own and calls `seek`: it reads files by position."""
    return any(_calls_seek(kind) for kind in classes if is_users(kind.__module__))


def _calls_seek(kind: type) -> bool:
    for name in dir(kind):
        for base in kind.__mro__:
            if isinstance(function := vars(base).get(name), types.FunctionType):
                names = names_in(function.__code__)
                if "seek" in names.attributes:
                    return True
                if "super" not in names.variables:  # nor does it call what it overrides
                    break
    return False
