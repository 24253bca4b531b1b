"""What data holds beside its position, such as a cache or a counter: captured when an epoch begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class DataState(NamedTuple):
    """Two calls that know what data held when the run was set up.

    Attributes:
        capture: what has changed of data since; empty for nothing.
        restore: puts data in a state that was captured.
    """

    capture: Callable[[Any], Mapping[str, Any]]
    restore: Callable[[Any, Mapping[str, Any]], None]
