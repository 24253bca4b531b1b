"""Set a script up as in a past run: with the seed, flags, arguments and graph of a checkpoint."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from graphtrain.checks import checked_graph
from graphtrain.command.adapted import ScriptOrClass
from graphtrain.command.output import ignore
from graphtrain.command.script import Script
from graphtrain.command.set_up import set_up, warm_start, weights_named
from graphtrain.command.settings import arguments_in_force, setup_arguments, split_settings, toml_value, with_parameters
from graphtrain.errors import UsageError
from graphtrain.graph.registry import trains
from graphtrain.program.resources import resolve_device
from graphtrain.ranks import current_ranks
from graphtrain.resume.environment import run_environment
from graphtrain.resume.rank_resume import processes
from graphtrain.storage.manifest import SavedCheckpoint
from graphtrain.storage.named import graph_of
from graphtrain.trainer.graph import Graph
from graphtrain.trainer.trainer import Trainer


@final
class TrainerFactory:
    """Creates trainers that write nothing to the run; for each, the script, or the class, is imported and set up again.

    Arguments:
        settings: ``NAME=VALUE``, instead of the arguments that the run had; ``NODE.PARAM=VALUE`` for a graph.
        notify: called once, with what changed since the run, which is the attribute `changes` from then on.
        graph: another graph, which only evaluates. Default: that of the run, with its parameters.
    """

    def __init__(
        self, source: ScriptOrClass, settings: Sequence[str], notify: Callable[[str], None], graph: Graph | None = None
    ) -> None:
        self._source, self._notify = source, notify
        self._arguments, parameters = split_settings(settings)
        if graph is None and parameters:
            message = f"`{next(iter(parameters))}=`: the graph is that of the run, with its parameters"
            raise UsageError(message, "NAME=VALUE sets an argument of setup")
        if graph is not None and trains(graph):
            raise UsageError(f"graph `{graph.title}` trains; use one that only evaluates", "leave --graph out")
        self._graph = Graph.of(checked_graph(with_parameters(graph, parameters))) if graph is not None else None
        self._program: Script | None = source.program()
        self.changes: str | None = None

    def trainer(self, checkpoint: SavedCheckpoint, *, from_the_beginning: bool, **options: Any) -> Trainer:
        """A trainer as the run had it when it made a checkpoint.

        Arguments:
            options: additional arguments and resources of it, or replacements.

        Raises:
            UsageError: an argument of the run cannot be read back, or setup no longer takes it.
        """
        # Imported again for each trainer: the global variables must not come from the replay before.
        program, self._program = self._program or self._source.reimported(), None
        manifest = checkpoint.manifest
        environment, about = manifest.environment, manifest.about
        arguments = setup_arguments(program.setup, {**self._saved(program, about), **self._arguments}, program.name)
        trained = Graph.of(graph_of(checkpoint.path, manifest))
        graph = Graph.of(checked_graph(trained)) if self._graph is None else _with_loss_units_of(self._graph, trained)
        seed, deterministic = environment.get("seed", 0), bool(environment.get("deterministic", False))
        seed_of_setup = about.get("seed", seed)  # that before the call of `setup`, which may seed too
        device = options.get("device", str(environment.get("device", "cpu")).partition(" ")[0])
        named = program.setup, arguments, program.name
        in_force, resources = set_up(*named, graph, seed_of_setup, device, ignore)
        resources.pop("loggers", None)
        if from_the_beginning:
            warm_start(resources, weights_named(map(str, about.get("init") or ())), ignore)
        about = {**about, "arguments": in_force, "explicit": sorted(self._arguments), "script": str(program.file)}
        if self.changes is None:
            environment_now = run_environment(
                resources, about, deterministic=deterministic, seed=seed, device=resolve_device(device)
            )
            ranks = current_ranks().world_size
            resized = [processes(ranks, manifest.ranks)] if ranks != manifest.ranks else []
            now = environment_now.compared(manifest, resized)
            self.changes = now.partition("what changed: ")[2]
            self._notify(now or "what changed since the run is not known")
        flags = {"device": device, "deterministic": deterministic, "display": None, "notify": ignore, "about": about}
        return Trainer(graph, **{**flags, **resources, **options})

    def _saved(self, program: Script, about: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the run that differ from the defaults, without defaults of arguments that are gone."""
        arguments, defaults = about.get("arguments", {}), arguments_in_force(program.setup, {})
        explicit = about.get("explicit", arguments)
        return {
            name: _value(name, text)
            for name, text in arguments.items()
            if name not in self._arguments and text != defaults.get(name) and (name in explicit or name in defaults)
        }


def _with_loss_units_of(graph: Graph, trained: Graph) -> Graph:
    """An evaluation graph whose losses are sums over the same unit as in the validation of a run, such as tokens."""
    body = trained.nodes["validate"].body if "validate" in trained.nodes else None
    units = {node.use: node.parameters.get("per") for node in body.nodes.values()} if body is not None else {}
    for name, node in graph.nodes.items():
        if units.get(node.use) is not None and "per" not in node.parameters:
            graph = graph.set(name, per=units[node.use])
    return graph


def _value(name: str, text: str) -> Any:
    """The value that a `repr` stands for: a plain one, or a number that only TOML can write.

    >>> _value("lr", "0.1"), _value("sizes", "[1, 2]"), _value("most", "inf")
    (0.1, [1, 2], inf)
    """
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        value = toml_value(str(text))
    if isinstance(value, str):
        hint = f"set it with {name}=VALUE"
        raise UsageError(f"the argument {name}={value} of the run cannot be read back", hint)
    return value
