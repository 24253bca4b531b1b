"""Attributes of a user's kind that are not progress: a resume does not restore them, so their changes are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from graphtrain.program.bind import ProgramNode
from graphtrain.state.classes import is_users
from graphtrain.state.content import ContentHash


@final
class OwnAttributes:
    """The attributes of one node, as they were when it was set up.

    Arguments:
        place_of: the path of an object that is saved with the resources; None for others.
    """

    def __init__(self, node: ProgramNode, place_of: Callable[[Any], str | None]) -> None:
        self._node, self._before = node, dict[str, str]()
        self._place_of = lambda part: node.path if part is node.instance else place_of(part)
        kind, shipped = node.kind, [base for base in type(node.instance).__mro__ if not is_users(base.__module__)]
        codes = [getattr(value, "__code__", None) for base in shipped for value in vars(base).values()]
        self._others = kind.fields.keys() | kind.parameters.keys()
        self._others |= {name for code in codes if code is not None for name in code.co_names}

    def note(self) -> None:
        """Note the attributes now, after `setup`."""
        self._before = self._hashes()

    def changed(self) -> Iterator[str]:
        """A notice for each attribute that has changed since.

        A body sets its nodes up again at each visit, so an attribute that `setup` names does not outlive the visit.
        """
        node, now = self._node, self._hashes()
        setup = getattr(node.kind.implementation, "setup", None) if node.scope.path else None
        renewed = setup.__code__.co_names if setup is not None else ()
        for name in sorted(now.keys() | self._before.keys()):
            if now.get(name) != self._before.get(name) and name not in renewed:
                yield f"`{node.path}` has changed its `{name}`, which is not saved: make it progress"

    def _hashes(self) -> dict[str, str]:
        hashes = {}
        for name, value in vars(self._node.instance).items():
            if name not in self._others:
                content = ContentHash(self._place_of)
                content.add(value)
                hashes[name] = content.hexdigest()
        return hashes


def own_attributes(node: ProgramNode, place_of: Callable[[Any], str | None]) -> OwnAttributes | None:
    """Those of a node whose kind is a class of the user without a `state_dict`; None for any other."""
    implementation = node.kind.implementation
    is_own = isinstance(implementation, type) and is_users(implementation.__module__)
    return OwnAttributes(node, place_of) if is_own and not node.kind.keeps_state and not node.bypassed else None
