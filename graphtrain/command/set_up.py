"""A script set up: its `setup` called with the seed and the arguments of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from graphtrain.command.settings import RUN_ARGUMENT, arguments_in_force
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.program.whole_run import PlannedRun
from graphtrain.state.random import seed_everything


@dataclass
class SetUp:
    """What a setup has returned.

    Attributes:
        arguments: those of the call, defaults included, as text.
        resources: without the two that follow.
        loggers: as they were returned.
        not_state: the paths of what is no state of the training.
    """

    arguments: dict[str, str]
    resources: dict[str, Any]
    loggers: Any
    not_state: list[str]


def set_up(setup: Callable[..., Any], arguments: Mapping[str, Any], name: str, graph: Graph, seed: int) -> SetUp:
    """Seed Python, NumPy and torch, call a setup, with the run where it asks for it, and check what it returns.

    Arguments:
        arguments: as `setup_arguments` returns them.
        name: of the setup, in messages.
        graph: the one that is run.

    Raises:
        UsageError: it does not return a mapping from names to resources, or `not_state` is no list of texts.
    """
    in_force = arguments_in_force(setup, arguments)  # before a default that is mutable is changed
    seed_everything(seed)
    asks_for_run = RUN_ARGUMENT in inspect.signature(setup).parameters
    resources = setup(**arguments, **({RUN_ARGUMENT: PlannedRun(graph)} if asks_for_run else {}))
    example = 'as in `return {"model": model, "optimizer": optimizer, "train_data": train_data}`'
    if not isinstance(resources, Mapping):
        returned = "nothing" if resources is None else f"a value of type {type(resources).__name__}"
        raise UsageError(f"{name} must return a mapping of resources, it returned {returned}", example)
    for key in resources:
        if not isinstance(key, str):
            raise UsageError(
                f"{name} must return a mapping from names to resources, it returned the key {key!r}", example
            )
    resources = dict(resources)
    loggers, not_state = resources.pop("loggers", ()), resources.pop("not_state", ())
    if not isinstance(not_state, list | tuple) or not all(isinstance(path, str) for path in not_state):
        raise UsageError(
            f"{name} returns `not_state` with {not_state!r}",
            'return a list of paths, as in `"not_state": ["task.started_at"]`',
        )
    return SetUp(in_force, resources, loggers, [*not_state])
