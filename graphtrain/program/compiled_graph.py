"""A graph bound to resources and compiled. `rewire` replaces it by another."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, final

from torch.optim.lr_scheduler import ExponentialLR, MultiStepLR, StepLR

from graphtrain.errors import GraphError, UsageError
from graphtrain.graph import EditableGraph
from graphtrain.graph.canonical import saved_json, structural_hash
from graphtrain.graph.renaming import Renaming
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import resources_of
from graphtrain.plan.slots import Slots
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.cells import Cells
from graphtrain.program.clock import RunClock
from graphtrain.program.requests import Requests
from graphtrain.program.stateful_objects import StatefulObjects
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.table import Compiler
from graphtrain.program.triggers import set_triggers
from graphtrain.program.visits import Visits
from graphtrain.report.recorder import Recorder
from graphtrain.storage.retention import Retention


@final
class CompiledGraph:
    """The compiled graph: its transitions, and the slots that are alive at each position.

    Arguments:
        resources: those of the user, by name.
        prepared: the same as `prepare` returns them, and those that the engine provides.
        requests: receives "ended" when an edge leads to the end.
        former, renaming: the graph that this one replaces, and its renamed nodes.
        copies: the copies of resources that nodes ask for, each with the name of its source. Default: none.

    Raises:
        GraphError: a resource is missing, not read, or not usable.
        UsageError: a scheduler that counts epochs would be stepped by the default of the graph.

    Attributes:
        start: the position of the node that the graph starts with.
        retentions: path of a node -> which checkpoints it keeps.
        kept: the nodes whose instance is that of the former graph.
        returning: the paths of the nodes that may send the run back to a checkpoint.
    """

    def __init__(
        self,
        graph: EditableGraph,
        resources: Mapping[str, Any],
        prepared: Mapping[str, Any],
        requests: Requests,
        recorder: Recorder,
        watch: Stopwatch,
        former: CompiledGraph | None = None,
        renaming: Renaming | None = None,
        copies: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.graph = graph
        plan = Plan(graph)
        self.program = Program(plan, prepared)
        # An iterator in such an instance continues. Nodes get it first: compiled code refers to it.
        self.kept: set[ProgramNode] = set()
        if former is not None:
            assert renaming is not None, "they come together"
            self.kept = _keep_instances(self.program, former.program, renaming)
        set_triggers(self.program)
        visits = Visits(self.program, Cells(self.program))
        self.compiler = Compiler(visits, functools.partial(requests.add, "ended"), watch)
        # From here on all reads are known, including those of step functions.
        if problems := self.program.problems():
            raise GraphError(problems, f"graph `{graph.name}`")
        _refuse_schedulers_of_epochs(self.program)
        self.start = self.program.start_of(self.program.main).index
        self.run_clock = RunClock(self.program)
        self.state = StatefulObjects(self.program, resources, recorder, copies)
        bypassed = {node.path for node in self.program.nodes if node.bypassed}
        self._slots = Slots(plan, bypassed, self.compiler.cells.extra_inputs)
        acting = [node for node in self.program.nodes if not node.bypassed]
        self._drawing = [
            (node.fields, ref.path)
            for node in acting
            if node.kind.fetches
            for read, ref in node.plan_node.setup_reads
            if "written batches" in read.holds and ref.category == "slot"
        ]
        self._with_on_metrics = [node for node in acting if node.kind.has("on_metrics")]
        self.returning = [node.path for node in acting if "history" in node.asks_for]
        self.retentions: dict[str, Retention] = {
            node.path: node.instance.retention()
            for node in acting
            if "checkpoints" in node.asks_for and callable(getattr(node.instance, "retention", None))
        }

    @functools.cached_property
    def saved_graph(self) -> tuple[str, str]:
        """The graph as checkpoints store it, and its hash. Cached: making both takes a twentieth of a small save."""
        return saved_json(self.graph), structural_hash(self.graph)

    # ---- slots; `ended`: the run took an edge to the end from this position

    def alive(self, position: int, ended: bool = False) -> set[str]:
        """The slots that will be read before they are written, and those from which an open epoch draws batches."""
        inside = {slot for fields, slot in self._drawing if fields["opened"] and not fields["last"]}
        return {*self._slots.alive(self.program.nodes[position].path, ended=ended)} | inside & self.written()

    def has_batch(self, position: int) -> bool:
        """True if a fetched batch is alive at a position."""
        fetched = {path for node in self.program.nodes if node.kind.fetches for path in node.plan_node.own_writes}
        return bool(fetched & self.alive(position))

    def transient(self, position: int, ended: bool = False) -> list[str]:
        """The alive slots that are declared transient. A position with any is not a save point."""
        return sorted(self._slots.alive(self.program.nodes[position].path, ended=ended) & self._slots.transient)

    def written(self) -> set[str]:
        """The slots that have a value, alive or not."""
        return {path for path, value in self.program.slots.items() if value is not None}

    def activity(self, position: int) -> str | None:
        """The activity at a position, such as "validate"; None for training."""
        return self.program.nodes[position].scope.activity

    # ---- metrics

    def on_metrics(self, row: Mapping[str, float], position: int) -> None:
        """Pass a row of metrics, recorded at a position, to the nodes with `on_metrics` in the graphs around it."""
        for node in self._with_on_metrics:
            if node.scope in self.program.nodes[position].scope.around:  # nodes of other bodies may not be set up
                node.instance.on_metrics(row, self.activity(position) is not None)

    # ---- beginning and resuming

    def locate(self, path: str, saved: Collection[str], ended: bool = False) -> int:
        """The position of the node at a path, for a run that has saved some slots.

        Raises:
            UsageError: the graph has no such node, or needs a slot there that is not saved.
        """
        node = self.program.by_path.get(path)
        if node is None:
            raise UsageError(
                f"the run is at the node `{path}`, which this graph does not have",
                f"name the corresponding node: --rename {path}=NODE, in Python rename={{...}}; "
                "or resume with the saved graph: --graph saved",
            )
        if missing := sorted(self._slots.alive(path, ended=ended, optional=False) - {*saved}):
            raise UsageError(
                f"this graph needs the slot `{missing[0]}` at `{path}`, which the run does not have there",
                "train on to where it is not needed before what reads it is inserted, or read it with a default "
                f"(`{missing[0].rpartition('/')[2]}=None` in its kind); --graph saved resumes with the saved graph",
            )
        return node.index

    def release(self, kept: Collection[ProgramNode] = ()) -> None:
        """Call `release` of the nodes, except those kept: it ends the workers of loaders, for example."""
        objects = {id(node.instance) for node in kept}
        for node in self.program.nodes:
            if node.kind.has("release") and not node.bypassed and id(node.instance) not in objects:
                node.instance.release()

    # ---- the end, and resuming

    def reevaluate_end(self, position: int) -> tuple[int, bool]:
        """Evaluate the edges of the last node of an ended run again: the position, and True if it still ends."""
        target = self.compiler.exit_target(self.program.nodes[position])
        return (position, True) if target is None else (self.compiler.position(target), False)

    def resume_at(self, position: int, trained_last: str = "") -> None:
        """Set up the nodes of the graphs around a position, with their progress. This may draw random numbers.

        Arguments:
            trained_last: the path of the node whose body trained last. Default: none has, or it is not known.
        """
        program, around = self.program, self.program.nodes[position].scope.around
        last = [scope for scope in program.training if scope.path == f"{trained_last}/"]
        program.clocked = [program.clocked, *last, *(scope for scope in around if scope in program.training)][-1]
        for scope in around:
            self.compiler.visits.enter(scope, reset=False, ready=self.kept)


def _refuse_schedulers_of_epochs(program: Program) -> None:
    """Raise for a scheduler that counts epochs by its documentation, and is stepped by a default."""
    for node in program.nodes:
        trigger = node.plan_node.trigger
        if node.bypassed or trigger is None or trigger.is_never or "every" in node.node.parameters:
            continue
        for name in resources_of(node.plan_node.optional):
            value = program.resources.get(name)
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, StepLR | MultiStepLR | ExponentialLR):
                    raise UsageError(
                        f"`{name}`: {type(each).__name__} counts epochs by its documentation, and `{node.path}` would "
                        f'step it every "{trigger}", the default',
                        f'{node.path}.every="1 epochs" steps it after every epoch; {node.path}.every="1 steps", '
                        "written out, says that steps are meant",
                    )


def _keep_instances(program: Program, former: Program, renaming: Renaming) -> set[ProgramNode]:
    """Give unchanged nodes that fetch batches their former instance, but not with several ranks: see `rank_visits`."""
    kept = set()
    for node in program.nodes if program.resources.get("ranks") is None else ():
        old = former.by_path.get(renaming.former(node.path) or "")
        if old is None or old.bypassed or node.bypassed or not node.kind.fetches:
            continue
        reads = node.plan_node.setup_reads
        is_same = node.kind is old.kind and node.parameters == old.parameters and reads == old.plan_node.setup_reads
        for part in (part for _, ref in reads for part in ref.simple()):
            is_same &= part.category == "resource"  # a slot would be that of the former program
            is_same &= program.resources.get(part.name) is former.resources.get(part.name)
        if is_same:
            node.instance, node.own_attributes = old.instance, old.own_attributes
            node.fields = node.arguments = vars(old.instance)
            kept.add(node)
    return kept
