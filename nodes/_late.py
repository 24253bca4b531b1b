"""What a kind works with, imported at the first use of any of it.

To read, check and draw a graph takes the declarations of its kinds, which are their signatures. Their work takes torch
and most of the engine, whose import is ten times as long as all else that such a command does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

_WORK = "graphtrain.nodes._work"
# By the source, for to import it is what takes so long.
_NAMES = frozenset(re.findall(r" as (\w+)$", Path(__file__).with_name("_work.py").read_text("utf-8"), re.MULTILINE))

if TYPE_CHECKING:
    from graphtrain.nodes._work import *  # noqa: F403 - it is a list of names
else:

    def __getattr__(name: str) -> Any:
        if name not in _NAMES:
            raise AttributeError(f"`{name}` is not in {_WORK}")
        return getattr(sys.modules.get(_WORK), name, None) or Late(name)  # it may be about to be imported


@final
class Late:
    """Stands for a name in `_work` until one of them is called, looked into, or compared with the class of an object.

    Then all of them are bound in the modules of the kinds, and no use costs more than that of any other name. What is
    compared by identity, or caught, is no use that can be seen: such a name is used after another one.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def _bound(self) -> Any:
        bind()
        return getattr(sys.modules[_WORK], self._name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._bound()(*arguments, **options)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # asked of every name in a module, to see which one is a kind
            raise AttributeError(attribute)
        return getattr(self._bound(), attribute)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._bound())


def bind() -> None:
    """Import what the kinds work with, and put it in place."""
    from graphtrain.nodes import _work

    for name, module in [*sys.modules.items()]:
        if name.startswith("graphtrain.nodes."):
            late = {key: value for key, value in vars(module).items() if type(value) is Late}
            vars(module).update({key: getattr(_work, value._name) for key, value in late.items()})
