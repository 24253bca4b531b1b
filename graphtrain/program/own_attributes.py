"""Attributes of kinds that are not progress: a resume does not restore them, so their changes are reported."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from graphtrain.plan.scope import Scope
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.stateful_objects import StatefulObjects
from graphtrain.state.classes import RULES
from graphtrain.state.content import ContentHash
from graphtrain.state.reachable import names_in


def own_attributes(run: StatefulObjects) -> dict[str, dict[str, str]]:
    """Path of a node whose kind is not ours, without a `state_dict` -> attribute -> its hash; "" for an iterator."""
    hashes, paths = dict[str, dict[str, str]](), {id(node.instance): node.path for node in run.program.nodes}
    listed = run.snapshot.reachable.path_of if run.snapshot is not None else paths.get
    for node in run.program.nodes:
        kind, bases = node.kind, type(node.instance).__mro__
        shipped = [base for base in bases if base.__module__.partition(".")[0] in ("graphtrain", "builtins")]
        if kind.keeps_state or node.bypassed or type(node.instance) in shipped:
            continue
        codes = [getattr(value, "__code__", None) for base in shipped for value in vars(base).values()]
        others = {name for code in codes if code is not None for name in code.co_names}
        hashes[node.path] = {}
        for name, value in zip(*RULES["object"].contents(node.instance), strict=True):
            if name not in others | kind.fields.keys() | node.plan_node.expressions.keys():
                content = ContentHash(lambda part: paths.get(id(part)) or listed(part))
                content.add(value)
                hashes[node.path][name] = content.hexdigest() if content.is_whole else ""
    return hashes


def changed_attributes(
    program: Program, before: Mapping[str, Any], now: Mapping[str, Any], visited: Collection[Scope] | None = None
) -> Iterator[str]:
    """A notice for each attribute that has changed, given two results of `own_attributes`.

    At a resume, `visited` are the graphs around the position, `before` is what was saved, and `now` is after `setup`.
    """
    for path, attributes in now.items():
        node, saved = program.by_path[path], before.get(path, attributes)
        names = saved.keys() | (attributes.keys() if visited is None else ())
        for name in sorted(names - (set() if node.scope in (visited or ()) else _renewed(node))):
            if not attributes.get(name) or attributes[name] != saved.get(name):
                yield f"`{path}` has changed its `{name}`, which is not saved: make it progress"


def _renewed(node: ProgramNode) -> set[str]:
    """The attributes that `setup`, or a method that it names, assigns: they do not outlive the visit of a body."""
    kind = node.kind.implementation
    setup = getattr(kind, "setup", None) if node.scope.path else None
    methods = [setup, *[getattr(kind, name, None) for name in names_in(setup.__code__)[1]]] if setup else []
    return {name for each in methods if hasattr(each, "__code__") for name in names_in(each.__code__)[3]}
