"""Models of other libraries, unchanged: an adapter is a function that returns a graph and resources.

It takes what the library trains, data of the library or None, and the library's own settings by name. Another package
adds one by an entry point::

    [project.entry-points."graphtrain.adapters"]
    mine = "my_package.adapter:setup"
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.names import suggestion

Adapter = Callable[..., tuple[Graph, dict[str, Any]]]

# The library and the extra that each shipped one needs have its name, and so has its module here.
SHIPPED = ("lightning",)


def adapter(name: str) -> Adapter:
    """The adapter of a name: a shipped one, or one of an installed package.

    Raises:
        UsageError: there is none, or its library is not installed.

    >>> try:
    ...     adapter("lightening")
    ... except UsageError as error:
    ...     print(error.hint)
    did you mean `lightning`?
    """
    added = {entry.name: entry for entry in entry_points(group="graphtrain.adapters") if entry.name not in SHIPPED}
    if name in added:
        loaded: Adapter = added[name].load()
        return loaded
    if name not in SHIPPED:
        raise UsageError(f"there is no adapter `{name}`", suggestion(name, [*SHIPPED, *added]))
    try:
        module = importlib.import_module(f"graphtrain.adapters.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in (name, "torchmetrics"):
            raise
        raise UsageError(
            f"the adapter `{name}` needs {error.name}", f"install it, or the extra `{name}` of graphtrain"
        ) from None
    setup: Adapter = module.setup
    return setup
