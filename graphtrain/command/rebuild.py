"""A script set up again as a past run had it: seed, flags, arguments and graph as a checkpoint tells them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from typing import Any, final

from graphtrain.checks import checked_graph
from graphtrain.command.printable import say_nothing
from graphtrain.command.script import resources_of, setup_function
from graphtrain.command.settings import setup_arguments, split_settings, toml_value
from graphtrain.command.warm_start import warm_start
from graphtrain.errors import CheckpointError, UsageError
from graphtrain.replay.history import SavedCheckpoint
from graphtrain.resume.environment import run_environment
from graphtrain.run.trainer import Trainer
from graphtrain.state.random import seed_everything
from graphtrain.storage.saved_graph import graph_of


@final
class TrainerFactory:
    """Makes trainers that write nothing, each with everything anew: the script, its setup, the graph.

    Arguments:
        script: ``SCRIPT[:FUNCTION]``.
        settings: ``NAME=VALUE``, in the place of the arguments that the run had.
        notify: told, once, what has changed since.

    Attributes:
        changes: that, in words; empty for nothing, None before the first trainer.

    Raises:
        UsageError: there is no such script or function, or a setting is none of its arguments.
    """

    def __init__(self, script: str, settings: list[str], notify: Callable[[str], None]) -> None:
        self._script, self._notify = script, notify
        self._given, parameters = split_settings(settings)
        if parameters:
            raise UsageError(
                f"`{next(iter(parameters))}=`: the graph is that of the run, with its parameters",
                "NAME=VALUE sets an argument of setup",
            )
        self._path, self._name, self._setup = setup_function(script)
        self._fresh = True
        self.changes: str | None = None

    def trainer(self, kept: SavedCheckpoint, *, from_the_beginning: bool) -> Trainer:
        """A trainer as the run had it when it made a checkpoint.

        Raises:
            UsageError: an argument of then is no plain value, or setup does not take it any more.
            GraphError: the graph needs a kind or a resource that the script does not have any more.
        """
        manifest = kept.manifest
        self._load()
        environment, about = manifest["environment"], manifest["about"]
        name = f"{self._path.name}:{self._name}"
        arguments = setup_arguments(self._setup, {**self._saved(about.get("arguments", {})), **self._given}, name)
        graph = checked_graph(graph_of(kept.path, kept.manifest))
        seed, deterministic = environment.get("seed", 0), bool(environment.get("deterministic", False))
        if seed is not None:
            if not isinstance(seed, int) or not 0 <= seed < 2**63:
                raise CheckpointError(f"{kept.path}: its seed cannot be read")
            seed_everything(seed)
        resources = resources_of(self._setup, arguments, name)
        resources.pop("loggers", None)
        if from_the_beginning:
            warm_start(resources, [str(one) for one in about.get("init") or ()])
        about = {**about, "arguments": {key: repr(value) for key, value in arguments.items()}}
        about["script"] = str(self._path)
        if self.changes is None:
            now = run_environment(resources, about, deterministic=deterministic, seed=seed).compared(manifest)
            self.changes = now if now.startswith("changed") else ""
            self._notify(now or "what has changed since is not known")
        return Trainer(
            graph,
            seed=seed,
            device=kept.device,
            deterministic=deterministic,
            display=None,
            notify=say_nothing,
            about=about,
            **resources,
        )

    def _load(self) -> None:
        """Import the script anew: what it keeps in global variables must not come from the going before."""
        if not self._fresh:
            sys.modules.pop(self._path.stem, None)
            self._path, self._name, self._setup = setup_function(self._script)
        self._fresh = False

    def _saved(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._given[name] if name in self._given else _value(name, text) for name, text in arguments.items()
        }


def _value(name: str, text: Any) -> Any:
    """The value that a `repr` stands for: a plain one, a path, or a number that only TOML can write.

    >>> _value("lr", "0.1"), _value("sizes", "[1, 2]"), _value("path", "PosixPath('data/x')"), _value("most", "inf")
    (0.1, [1, 2], 'data/x', inf)
    """
    try:
        parsed = ast.parse(text, mode="eval").body
        if isinstance(parsed, ast.Call) and ast.unparse(parsed.func) in ("Path", "PosixPath", "WindowsPath"):
            parsed = parsed.args[0]
        return ast.literal_eval(parsed)
    except (SyntaxError, ValueError, TypeError, IndexError, MemoryError, RecursionError):
        found = toml_value(text) if isinstance(text, str) else text
        if isinstance(found, str):
            raise UsageError(
                f"the run was set up with {name}={found}, which cannot be read back", f"give it as {name}=VALUE"
            ) from None
        return found
