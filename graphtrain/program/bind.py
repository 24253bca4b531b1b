"""A plan bound to resources: instances of kinds, a table of slot values, nodes without their resources bypassed.

The result is data, which `program.table` compiles to calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

from graphtrain.data.loaders import by_name
from graphtrain.errors import UsageError
from graphtrain.graph.elements import Problem
from graphtrain.graph.registry import find_kind, known_kinds
from graphtrain.kind import Read
from graphtrain.kind.trigger import Term, Trigger, as_fraction
from graphtrain.lazy import lazy_import
from graphtrain.names import nearest, quoted, suggestion
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Ref, Scope, counter_of, resources_of
from graphtrain.program.resources import PROVIDED, USUAL, StepCall

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@final
class ProgramNode:
    """A node with its progress.

    Attributes:
        path: ``"validate/next_batch"``.
        node: the node in its graph.
        parameters: every parameter of the kind, of its type.
        index: its position, the number of its transition.
        bypassed: True if it does nothing, because a setting or a resource that it needs is absent.
        asks_for: the names of the arguments of its `setup`.
        fields: the `__dict__` of the instance, for code that reads or counts a field at every visit.
        arguments: the dictionary from which a visit reads parameters: `fields`, or the keywords of a function.
    """

    instance: Any
    fields: dict[str, Any]
    arguments: dict[str, Any]
    bypassed = False
    body: Scope | None = None
    trigger: Any = None

    def __init__(self, plan_node: PlanNode, index: int, instance: Any) -> None:
        self.plan_node, self.kind, self.scope, self.index = plan_node, plan_node.kind, plan_node.scope, index
        self.path, self.node, self.parameters = plan_node.path, plan_node.node, plan_node.parameters
        self.asks_for = {read.name for read in self.kind.setup_reads or ()}
        self.instance = instance
        self.fields = self.arguments = vars(instance)

    def check_fields(self) -> None:
        """Raise if the kind has replaced the `__dict__` of the instance, to which compiled code refers."""
        if vars(self.instance) is not self.fields:
            raise UsageError(
                f"{self.path}: the kind `{self.kind.name}` replaced its `__dict__`",
                "update it in place: `self.__dict__.update(state)`",
            )


@final
class Clock:
    """The counter of one unit: a field of a node.

    Attributes:
        declared: the declaration of the field.
        restarts: the field that changes when the counter restarts at 0; None if it never does.
    """

    def __init__(self, node: ProgramNode, field: str) -> None:
        self.node, self.field, self.declared = node, field, node.kind.fields[field]
        self.restarts = self.declared.restarts

    def now(self) -> Fraction:
        """The exact value of the clock."""
        return as_fraction(getattr(self.node.instance, self.field))

    def count(self) -> int | None:
        """The value of `restarts`; None if the counter never restarts."""
        return getattr(self.node.instance, self.restarts) if self.restarts is not None else None

    def reading(self) -> list[int | None]:
        """The value as it is stored in progress: numerator, denominator, and `count()`."""
        value = getattr(self.node.instance, self.field)
        now = value if type(value) is int else as_fraction(value)
        return [now.numerator, now.denominator, self.count()]


ClockTerm = tuple[Clock, Term]
"""An amount, with the clock of its unit."""


def _stage_of(node: ProgramNode) -> str:
    """The stage of a node that calls step functions: "train", "validate", "test" or "predict"."""
    if "backward" in node.kind.does:
        return "train"
    called = {*resources_of(ref for read, ref in node.plan_node.reads if "a step function" in read.holds)}
    return "test" if "test_step" in called else "predict" if "predict_step" in called else "validate"


@final
class Program:
    """A plan with its resources, instances of nodes, and values of slots.

    Arguments:
        resources: those of the user, and those that the engine provides, by name.
        new_instance: returns the instance of a node. Default: an instance of its kind.

    Attributes:
        scopes: the scope of every graph that is not in a bypassed node, by the prefix of its paths.
        clocks: scope -> unit -> its counter.
        drawn: the names of the resources from which nodes fetch batches.
        training: the scopes that train, and whose clock counts steps or epochs.
        nodes: every node, by position. Bypassed nodes are among them; nodes in their bodies are not.
        slots: the value of every slot that some node writes, by path (``"validate/batch"``); None before.
        clocked: the scope whose clock the run shows: the innermost training graph around the next node; else the one
            that trained last, or will train first; the outermost if nothing trains.
        read_resources: the names of the resources, other than data, that nodes and step functions read. Complete once
            the program is compiled.
        missing: name of a resource that is not supplied -> the paths of the nodes that read it.
        absent: a line for each node that is bypassed for lack of a resource, or does not support several ranks.
        window_ranks: with how many ranks the run began: a window has `every` micro-batches of each.
    """

    def __init__(
        self, plan: Plan, resources: Mapping[str, Any], new_instance: Callable[[PlanNode], Any] = PlanNode.new_instance
    ) -> None:
        self.plan, self.graph, self.main = plan, plan.graph, plan.main
        self.resources = dict(resources)
        self.nodes: list[ProgramNode] = []
        self.by_path: dict[str, ProgramNode] = {}
        self.missing: dict[str, set[str]] = {}
        self.absent: list[str] = []
        self.window_ranks = getattr(self.resources.get("ranks"), "world_size", 1)
        self.read_resources: set[str] = set()
        self.scopes: dict[str, Scope] = {}
        self.drawn = {name for plan_node in plan.nodes if plan_node.kind.fetches for name in plan_node.data}
        for plan_node in plan.nodes:
            scope = plan_node.scope
            if scope.outer is None or ((outer := self.by_path.get(scope.path[:-1])) and not outer.bypassed):
                self.scopes[scope.path] = scope
                node = ProgramNode(plan_node, len(self.nodes), new_instance(plan_node))
                self.nodes.append(node)
                self.by_path[node.path] = node
                lacking = [name for name in resources_of(plan_node.optional) if self.resources.get(name) is None]
                is_idle = node.kind.is_idle(node.parameters, plan_node.expressions)
                node.bypassed = is_idle or bool(lacking)
                node.body = None if node.bypassed else plan_node.body
                if lacking and not is_idle and lacking[0] not in PROVIDED and plan_node.body is not None:
                    metrics = lacking[0].removesuffix("_data") + "/"
                    waiting = [
                        f"`{each.path}.{monitor}`"
                        for each in plan.nodes
                        if (monitor := each.kind.monitor) and str(each.parameters[monitor]).startswith(metrics)
                    ]
                    waits = f", and {', '.join(waiting)} has no metric to wait for" if waiting else ""
                    self.absent.append(f"no `{lacking[0]}`, so `{node.path}` does not run{waits}")
        self.clocks: dict[Scope, dict[str, Clock]] = {}
        for scope in self.scopes.values():
            counters = {unit: counter_of(scope, unit) for unit in scope.graph.units}
            self.clocks[scope] = {
                unit: Clock(self.by_path[f"{scope.path}{name}"], field) for unit, (name, field) in counters.items()
            }
        self.training = [scope for scope in self.scopes.values() if scope.counts_training]
        self.clocked = self.training[0] if self.training else self.main
        self.slots: dict[str, Any] = dict.fromkeys([path for node in self.nodes for path in node.plan_node.writes])

    # ---- nodes

    def nodes_in(self, scope: Scope) -> list[ProgramNode]:
        """The nodes of one graph, without those of the bodies in it."""
        return [self.by_path[f"{scope.path}{name}"] for name in scope.graph.nodes]

    def start_of(self, scope: Scope) -> ProgramNode:
        """The node that a graph starts with."""
        return self.by_path[f"{scope.path}{scope.graph.start}"]

    def nodes_around(self, scope: Scope) -> list[ProgramNode]:
        """The nodes in whose bodies a graph is, the outermost first."""
        return [self.by_path[each.path.removesuffix("/")] for each in scope.around[1:]]

    # ---- names

    def resource(self, name: str, read: Read, reader: str) -> Any:
        """The value of a resource, or the default of the node that reads it. Without either it is noted as missing."""
        if "batches" not in read.holds:
            self.read_resources.add(name)
        if name in self.resources and (self.resources[name] is not None or name in PROVIDED):
            return self.resources[name]
        if not read.required:
            return read.default
        self.missing.setdefault(name, set()).add(reader)
        return None

    def step_input(self, node: ProgramNode, read: Read) -> Ref:
        """The reference of a parameter of a step function, other than model and batch, for the node that calls it.

        A resource of that name comes first, then a slot written in the graph of the counter or further inside. `step`
        and `epoch` are counted by the innermost enclosing graph that steps an optimizer, or else by the outermost;
        other counts by the loop that calls the function. `optimizer` is that of the node, `stage` its `_stage_of`.
        """
        name, scope = read.name, node.scope
        if name in node.plan_node.returned:
            return Ref("slot", node.plan_node.returned[name])  # which this function returned before
        if name == "optimizer":
            return scope.read_by(node.node, name)
        if name in self.resources:
            return scope.resolve(name)
        if name == "stage" and name not in scope.written:
            return Ref("expression", scope.path, f"{node.path}.stage", text=repr(_stage_of(node)), scope=scope)
        around = scope.around
        unit = "steps" if name == "step" else "batches"
        counting = [each for each in around if unit in self.clocks[each]]
        if name in ("step", "epoch"):  # those of the training, in an evaluation too, which begins no epoch
            counting = [each for each in counting if each.steps][-1:] or counting[:1]
        inside = around[around.index(counting[-1]) :] if counting else around
        if any(name in each.written for each in inside):
            return scope.resolve(name)
        if counting:
            clock = self.clocks[counting[-1]][unit]
            if (field := clock.field if name == "step" else clock.node.kind.step_inputs.get(name)) is not None:
                return Ref("field", clock.node.path, field)
        elif name == "step":  # a graph that only evaluates
            return Ref("expression", scope.path, f"{node.path}.step", text="0", scope=scope)
        return scope.resolve(name)

    def metric_prefix(self, node: ProgramNode) -> str:
        """The prefix of its metrics, ``"generate/"``; empty for the only such node, or one named like its kind."""
        acting = [each for each in self.nodes_in(node.scope) if each is not node and not each.bypassed]
        is_alone = not [each for each in acting if "metric_prefix" in each.asks_for]
        return "" if is_alone or node.node.name == node.kind.name else f"{node.node.name}/"

    # ---- amounts and edges

    def clock(self, scope: Scope, unit: str) -> Clock | None:
        """The counter of a unit on the clock of a graph, or of the innermost enclosing graph that counts it."""
        clocks = [self.clocks[each][unit] for each in scope.around if unit in self.clocks[each]]
        return clocks[-1] if clocks else None

    @property
    def training_precision(self) -> str:
        """The precision of the nodes that run backward; "32-true" if there are none, or they differ."""
        training = [node for node in self.nodes if "backward" in node.kind.does]
        precisions = {node.parameters["precision"] for node in training if "precision" in node.parameters}
        return precisions.pop() if len(precisions) == 1 else "32-true"

    def limits(self, limit: Trigger) -> list[ClockTerm]:
        """The amounts at which a run stops, with the counter of each: those of every training graph.

        A unit that a training graph does not count is that of the innermost enclosing graph that does.
        """
        training = self.training or [self.main]
        clocks = [(self.clock(scope, term.base.unit), term) for scope in training for term in limit.terms]
        return [*dict.fromkeys([(clock, term) for clock, term in clocks if clock is not None])]

    def targets(self, node: ProgramNode) -> list[ProgramNode | None]:
        """The targets of the edges of a node, in order; None is the end of its graph."""
        return [None if edge.target is None else self.by_path[edge.target.path] for edge in node.plan_node.edges]

    # ---- reports

    def problems(self) -> list[Problem]:
        """A problem for each resource that is missing, not read, or not usable; call it once all nodes are compiled."""
        problems, unread = [], self.unread()
        for name, readers in sorted([(name, sorted(paths)) for name, paths in self.missing.items()]):
            match = nearest(name, self.resources.keys() - self.read_resources - self.plan.main.read)
            hint = f"supply it: Trainer(..., {name}=...), or let `setup` return it"
            if match is not None:
                unread.pop(match, None)  # a misspelt name is one problem
                hint = f"did you mean `{match}`? if not, {hint}"
            creators = [kind.name for kind in filter(None, map(find_kind, known_kinds())) if name in kind.copies]
            if creators:
                hint += f"; or add a node of the kind `{creators[0]}`, which creates it"
            near = [node for node in self.nodes if node.scope is self.by_path[readers[0]].scope]
            fields = [(node.path.rpartition("/")[2], field) for node in near for field in node.kind.fields]
            if read := next((f"{node}.{field}" for node, field in fields if name in (node, field)), ""):
                hint += f'; or read a field of a node: reads = {{ {name} = "{read}" }}'
            message = f"`{name}` is read by {quoted(readers)}, and nothing supplies it"
            problems.append(Problem("G301", "error", f"{self.graph.name}: nodes.{readers[0]}", message, hint))
        for name, hint in unread.items():
            if hint and self.resources[name] is not None:
                problems.append(Problem("G302", "error", self.graph.name, f"nothing reads a resource `{name}`", hint))
        for node in self.nodes if "G309" not in self.graph.allow else ():
            supplied = {name: self.resources.get(name) for name in node.plan_node.data}
            for label, part in by_name(supplied, supplied):
                gives, hint = "", ""
                if isinstance(part, Mapping):
                    gives, hint = "its keys", "supply one of its values, or a Loader over TensorDataset(*data.values())"
                # It is read by index. A dataset with `__iter__` may give batches.
                elif isinstance(part, torch.utils.data.Dataset) and not hasattr(type(part), "__iter__"):
                    gives, hint = "samples", f"supply Loader({label}, batch_size=...)"
                if gives:
                    message = f"`{label}` is a {type(part).__name__}: iterating over it gives {gives}, not batches"
                    problems.append(Problem("G309", "error", f"{self.graph.name}: nodes.{node.path}", message, hint))
        return problems

    def unread(self) -> dict[str, str]:
        """The names of resources that no node, bypassed or not, and no step function reads, each with a hint or ""."""
        steps = [value for value in self.resources.values() if isinstance(value, StepCall)]
        asked = {read.name for step in steps for read in step.extra_inputs}
        readable = {*USUAL, *self.plan.main.read, *self.read_resources, *asked}
        missing = readable - {*PROVIDED, *self.resources} - self.plan.main.written
        unread = [name for name in self.resources if name not in readable and name not in PROVIDED]
        hints = {name: suggestion(name, missing) for name in unread}
        return {name: "" if hint.startswith("known") else hint for name, hint in hints.items()}

    @functools.cached_property
    def timed_nodes(self) -> list[ProgramNode]:
        """The nodes that are due by wall-clock time, and so at other moments in every replay."""
        acting = [node for node in self.nodes if not node.bypassed]
        return [node for node in acting if any(map(self._is_timed, self.plan.due_by(node.plan_node)))]

    def timed(self) -> list[str]:
        """A line with the nodes and guards by which wall-clock time decides about the training, if there are any."""
        acting = [node for node in self.nodes if not node.bypassed]
        goes_back = "history" in {name for node in self.nodes for name in node.asks_for}
        timed = [
            f"`{node.path}`"
            for node in self.timed_nodes
            if not node.kind.observer or (goes_back and "checkpoints" in node.asks_for)
        ]
        readers = {
            f"the guard `{scope.path}{name}`": [*scope.read_in(scope.parse(text))]
            for scope in self.scopes.values()
            for name, text in scope.graph.guards.items()
        }
        readers |= {f"`{ref.name}`": [ref] for node in acting for ref in node.plan_node.expressions.values()}
        timed += [reader for reader, refs in readers.items() if any(map(self._is_timed, refs))]
        line = f"wall-clock time decides about {', '.join(timed)}: a resumed run may differ from one that was never cut"
        return [line] if timed else []

    def _is_timed(self, ref: Ref) -> bool:
        """True for a reference to a field that is not in the digest, such as seconds."""
        fields = [part for part in ref.simple() if part.category == "field" and part.path in self.by_path]
        read = [(self.by_path[part.path].kind, part.name) for part in fields]
        declared = [kind.fields[name] for kind, name in read if name in kind.fields and kind.counter(name) is None]
        return not all(field.in_digest for field in declared)
