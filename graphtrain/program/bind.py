"""A plan bound to resources: instances of kinds, one table of slot values, absent options bypassed.

The result is data, which `program.table` compiles to calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import torch

from graphtrain.data.loaders import are_loaders
from graphtrain.errors import UsageError
from graphtrain.graph.elements import Problem
from graphtrain.graph.registry import trains
from graphtrain.kind import Read
from graphtrain.kind.trigger import RUN, Term, Trigger, exactly
from graphtrain.names import FOREIGN, quoted, suggestion
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Ref, Scope, resources_of, used_guards
from graphtrain.program.resources import PROVIDED, USUAL, may_be_unread, resources_read, unread_line

if TYPE_CHECKING:
    from graphtrain.program.whole_run import WholeRun

# Inputs of a step function that are those of the training, in an evaluation too, which begins no epoch.
_OF_TRAINING = ("step", "epoch")

# The step function that a node reads -> the stage that it is for; of those that run backward it is "train".
_STAGES = {"test_step": "test", "predict_step": "predict"}


@final
class ProgramNode:
    """A node with its progress: one row of the table that the engine runs.

    Attributes:
        path: ``"validate/next_batch"``.
        node: the node in its graph.
        parameters: every parameter of the kind, of its type.
        index: its position.
        bypassed: True if it has nothing to do because an option or a resource that it needs is absent.
        fields: the dictionary of the instance. Code that reads or counts a field at every visit uses it directly.
        arguments: the dictionary in which a visit finds its parameters: `fields`; of a function, its keywords.
    """

    instance: Any
    fields: dict[str, Any]
    arguments: dict[str, Any]
    bypassed = False
    body: ProgramGraph | None = None
    trigger: Any = None

    def __init__(self, plan_node: PlanNode, scope: ProgramGraph, index: int, instance: Any) -> None:
        self.plan_node, self.kind, self.scope, self.index = plan_node, plan_node.kind, scope, index
        self.path, self.node, self.parameters = plan_node.path, plan_node.node, plan_node.parameters
        self.hold(instance)

    @property
    def metric_prefix(self) -> str:
        """``"generate/"`` if several nodes of its graph use one: its name, but for one that has that of its kind."""
        acting = (node for node in self.scope.nodes.values() if not node.bypassed)
        asking = [node for node in acting if node.is_set_up_with("metric_prefix")]
        name = self.path.removeprefix(self.scope.prefix)
        return f"{name}/" if len(asking) > 1 and name != self.kind.name else ""

    def is_set_up_with(self, name: str) -> bool:
        """True for a node that reads a slot of this name when it is set up."""
        return any(read.name == name for read in self.kind.setup_reads or ())

    def hold(self, instance: Any) -> None:
        """Replace the instance."""
        self.instance = instance
        self.fields = self.arguments = vars(instance)

    def check_fields(self) -> None:
        """Raise if the instance has another dictionary, unknown to the code that reads its fields.

        Raises:
            UsageError: the kind replaced it.
        """
        if vars(self.instance) is not self.fields:
            raise UsageError(
                f"{self.path}: the kind `{self.kind.name}` replaced its `__dict__`, in which its fields are read",
                "change the one it has: `self.__dict__.update(state)`",
            )


@final
class ProgramGraph:
    """A graph inside the program: the outermost, or the body of a node.

    Attributes:
        graph: the graph itself.
        prefix: the prefix of the paths in it: empty, or ``"validate/"``.
    """

    def __init__(self, names: Scope, outer: ProgramNode | None, by_path: Mapping[str, ProgramNode]) -> None:
        self.names, self.outer, self._by_path = names, outer, by_path
        self.graph, self.prefix = names.graph, names.path
        self.nodes: dict[str, ProgramNode] = {}

    @property
    def activity(self) -> str | None:
        """The name of the body under which all time in here is counted; None for the time of training.

        A body without a backward pass, such as an evaluation, counts as one activity; the outermost such body names it.
        """
        outer = [scope.outer for scope in self.around() if scope.outer is not None and not trains(scope.graph)]
        return outer[0].node.name if outer else None

    def at(self, path: str) -> ProgramNode | None:
        """The node at a path from here; None for one in a body that is bypassed, which never runs."""
        return self._by_path.get(f"{self.prefix}{path}")

    def counter(self, unit: str) -> tuple[ProgramNode | None, str]:
        """The node and the field that count a unit of its clock; None for one in a body that is bypassed."""
        owner, name = self.names.counter(unit)
        return self.at(owner), name

    def count(self, unit: str) -> Fraction | None:
        """The exact value of a unit of its clock; None if there is no such unit."""
        if unit not in self.graph.units:
            return None
        owner, field_name = self.counter(unit)
        return exactly(getattr(owner.instance, field_name)) if owner is not None else Fraction(0)

    def counting(self, unit: str) -> ProgramGraph | None:
        """The innermost enclosing graph, including itself, whose clock has a unit; None if there is none."""
        return next((scope for scope in reversed([*self.around()]) if unit in scope.graph.units), None)

    def around(self) -> Iterator[ProgramGraph]:
        """The enclosing graphs, the outermost first, and itself."""
        if self.outer is not None:
            yield from self.outer.scope.around()
        yield self


@dataclass(frozen=True)
class Limit:
    """An amount at which a run stops.

    Attributes:
        scope: the graph that counts it.
        owner, field: the node, and the field of it.
    """

    scope: ProgramGraph
    owner: ProgramNode
    field: str
    term: Term


def _stage_of(node: ProgramNode) -> str:
    """What a node calls step functions for: "train", "validate", "test" or "predict"."""
    if node.kind.has_effect("backward"):
        return "train"
    functions = [target for read, target in node.plan_node.reads if "a step function" in read.holds]
    called = {*resources_of(functions)}
    return next((stage for name, stage in _STAGES.items() if name in called), "validate")


@final
class Program:
    """The whole graph, flat, over one table of slot values.

    Arguments:
        resources: those of the user and those provided by the engine, by slot name.
        whole_run: counts the run ahead, for amounts that are a share of it.
        left_out: the paths of nodes that do nothing, and of bodies (``"validate/"``) that are passed at once. Default:
            none.
        new_instance: makes the instance of a node. Default: that of its kind.

    Attributes:
        scopes: every bound graph, by the prefix of its paths.
        training: those of them that train, and whose clock counts it.
        nodes: every bound node, by position. Bypassed ones stay in the table and do nothing; nodes in their bodies are
            left out.
        clocked: the graph whose clock the run uses: the innermost training graph around the next node. If there is
            none, the one that trained last, or will first; the outermost if nothing trains.
        read_resources: the resources that nodes and step functions read, once all are compiled.
        missing: resources that are not supplied, with the paths of the nodes that read each.
        absent: a line for each node that is bypassed for lack of a resource, or that does not support several ranks.
        window_ranks: the ranks with which the run began: a window has `every` micro-batches of each.
    """

    def __init__(
        self,
        plan: Plan,
        resources: Mapping[str, Any],
        whole_run: WholeRun | None,
        left_out: Collection[str] = (),
        new_instance: Callable[[PlanNode], Any] = PlanNode.new_instance,
    ) -> None:
        self.plan, self.whole_run, self._left_out = plan, whole_run, left_out
        self._new_instance = new_instance
        self.graph = plan.graph
        self.resources = dict(resources)
        self.nodes: list[ProgramNode] = []
        self.by_path: dict[str, ProgramNode] = {}
        self.missing: dict[str, set[str]] = {}
        self.absent: list[str] = []
        self.window_ranks = getattr(self.resources.get("ranks"), "world_size", 1)
        self.read_resources: set[str] = set()
        self._takes_no_step = False
        self.scopes: dict[str, ProgramGraph] = {}
        self.main = self._bind_graph(plan.main, None)
        self.training = [scope for scope in self.scopes.values() if scope.names.counts_training]
        self.clocked = self.training[0] if self.training else self.main
        self.slot_names = list(dict.fromkeys(path for node in self.nodes for path in node.plan_node.writes))
        self.slots: list[Any] = [None] * len(self.slot_names)
        self._slot_index = {path: index for index, path in enumerate(self.slot_names)}

    # ---- nodes

    def _bind_graph(self, names: Scope, outer: ProgramNode | None) -> ProgramGraph:
        scope = self.scopes[names.path] = ProgramGraph(names, outer, self.by_path)
        for plan_node in self.plan.nodes_in(names):
            node = ProgramNode(plan_node, scope, len(self.nodes), self._new_instance(plan_node))
            self.nodes.append(node)
            self.by_path[plan_node.path] = scope.nodes[plan_node.node.name] = node
            node.bypassed = self._has_no_work(node)
            if plan_node.body is not None and not node.bypassed and plan_node.body.path not in self._left_out:
                node.body = self._bind_graph(plan_node.body, node)
        return scope

    def _has_no_work(self, node: ProgramNode) -> bool:
        if node.path in self._left_out or node.kind.is_idle(node.parameters, node.plan_node.expressions):
            return True
        optional = resources_of(node.plan_node.optional)
        lacking = next((name for name in optional if self.resources.get(name) is None), None)
        if lacking is not None and lacking not in PROVIDED and node.plan_node.body is not None:
            self.absent.append(f"no `{lacking}`, so `{node.path}` does not run")
        return lacking is not None

    # ---- names

    @functools.cached_property
    def drawn(self) -> Mapping[str, bool]:
        """The resources that nodes draw batches from; True where a node may keep its position by a `state_dict`."""
        drawn: dict[str, bool] = {}
        for plan_node in self.plan.nodes:
            if plan_node.kind.fetches:
                keeps = plan_node.parameters.get("resume") != "replay"
                drawn |= {name: keeps or drawn.get(name, False) for name in plan_node.data}
        return drawn

    def resource(self, name: str, read: Read, reader: str) -> Any:
        """The value of a resource, or the default of the node that reads it; without either, it is missing."""
        self.read_resources.add(name)
        if name in self.resources and (self.resources[name] is not None or name in PROVIDED):
            return self.resources[name]
        if not read.required:
            return read.default
        if name == "step" and self._takes_no_step:  # an input of a step function of a graph that only evaluates
            return 0
        self.missing.setdefault(name, set()).add(reader)
        return None

    def step_input(self, node: ProgramNode, read: Read) -> Ref:
        """The meaning of a further parameter of a user's step function, for the node that calls it.

        A resource of that name comes first, then a slot that is written no further out than the counter. `step` and
        `epoch` are counted by the innermost enclosing graph that steps an optimizer, or else by the outermost; anything
        else by the loop in which the function is called. `optimizer` is that of the node, `stage` what that is for.
        """
        name = read.name
        if name in node.plan_node.returned:
            return Ref("slot", node.plan_node.returned[name])  # a value that it returned itself
        if name == "optimizer":
            return node.scope.names.read_by(node.node, name)
        if name == "stage" and name not in {*self.resources, *node.scope.names.written}:
            stage, scope = repr(_stage_of(node)), node.scope.names
            return Ref("expression", scope.path, f"{node.path}.stage", text=stage, scope=scope)
        unit = "steps" if name == "step" else "batches"
        around = list(node.scope.around())
        counting = [scope for scope in around if unit in scope.graph.units and name not in self.resources]
        if name in _OF_TRAINING:
            counting = [scope for scope in counting if scope.names.steps][-1:] or counting[:1]
        if counting and not any(name in scope.names.written for scope in around[around.index(counting[-1]) :]):
            counter, counted = counting[-1].counter(unit)
            field_name = counted if name == "step" else counter.kind.step_inputs.get(name) if counter else None
            if counter is not None and field_name is not None:
                return Ref("field", counter.path, field_name)
        elif name == "step" and not counting:
            self._takes_no_step = True
        return node.scope.names.resolve(name)

    def slot_index(self, path: str) -> int:
        """The place of a slot that some node writes, by path (``"validate/batch"``); KeyError if there is none."""
        return self._slot_index[path]

    # ---- amounts and edges

    @property
    def training_precision(self) -> str:
        """The precision of the nodes that train; "32-true" if there are none, or they differ."""
        found = {
            node.parameters["precision"]
            for node in self.nodes
            if node.kind.has_effect("backward") and "precision" in node.parameters
        }
        return found.pop() if len(found) == 1 else "32-true"

    def terms(self, node: ProgramNode, trigger: Trigger) -> list[tuple[ProgramNode, str, Term]]:
        """For each amount of a trigger: the node and field that count its unit, by the clock of the graph of a node.

        An amount that is counted in a body which is bypassed is left out: it is never reached.

        Raises:
            UsageError: an amount is a share of the whole run, whose steps cannot be counted ahead.
        """
        terms = []
        for owner, field_name, term in self.plan.terms(node.scope.names, trigger):
            if owner.path not in self.by_path:
                continue
            if term.unit == RUN:
                try:
                    term = replace(term, whole=self.whole_run.total(owner, field_name))
                except UsageError as error:
                    due = f'`{node.path}` is due by "{term}": '  # which the message has if its length depends on it
                    raise UsageError(due + error.message.removeprefix(due), error.hint) from None
            terms.append((self.by_path[owner.path], field_name, term))
        return terms

    def begun_with(self, ranks: int) -> Iterator[str]:
        """Note the number of ranks with which the run began; a line for each share of the run counted with another."""
        counted, self.window_ranks = self.window_ranks, ranks
        for node in self.nodes if counted != ranks else ():
            shares = [term for trigger in node.plan_node.triggers for term in trigger.terms if term.unit == RUN]
            if shares and not node.bypassed:
                yield (
                    f'`{node.path}` is due by "{shares[0]}", as counted with a world size of {counted}; '
                    f"the run began with {ranks}, and its windows are of that size: count steps instead"
                )

    def limits(self, limit: Trigger) -> list[Limit]:
        """The amounts at which a run stops, with their counters: one for each graph that may be meant.

        A unit is that of the graph that trains, or else of the innermost enclosing one that counts it. Counters in a
        bypassed body are left out.
        """
        limits: dict[tuple[str, Term], Limit] = {}
        for term in limit.terms:
            unit = term.base.unit
            for scope in filter(None, (training.counting(unit) for training in self.training or [self.main])):
                owner, field_name = scope.counter(unit)
                if owner is not None:
                    limits[scope.prefix, term] = Limit(scope, owner, field_name, term)
        return list(limits.values())

    def targets(self, node: ProgramNode) -> list[ProgramNode | None]:
        """The targets of the edges of a node, in order; None is the end of its graph."""
        return [None if way.target is None else self.by_path[way.target.path] for way in node.plan_node.exits]

    # ---- reports

    def problems(self, supplied: Mapping[str, Any], new: Collection[str]) -> list[Problem]:
        """A problem for each resource that is missing, not read, or unusable; which are read is known once compiled.

        Arguments:
            supplied: the resources of the user.
            new: the names in it that are new. If nothing reads one of the others, or an object with saved state, that
                is only reported.
        """
        problems = []
        unread = self._unread()
        for name, paths in sorted(self.missing.items()):
            hint = suggestion(name, {*supplied} - self.read_resources - {*(USUAL if name in USUAL else ())})
            if "did you mean" not in hint:
                hint = f"supply it: Trainer(..., {name}=...), or let `setup` return it"
            unread = [other for other in unread if f"`{other}`" not in hint]  # a misspelt name is one problem
            readers = sorted(paths)
            where = f"{self.graph.name}: nodes.{readers[0]}"
            message = f"`{name}` is read by {quoted(readers)}, and nothing supplies it"
            problems.append(Problem("G301", "error", where, message, hint))
        for name in unread:
            if name in new and (name in FOREIGN or not may_be_unread(self.resources[name])):
                hint = suggestion(name, self._readable())
                if name not in FOREIGN and "did you mean" not in hint:
                    hint = "leave it out, or insert a node that reads it"
                problems.append(Problem("G302", "error", self.graph.name, f"nothing reads a resource `{name}`", hint))
        return problems + [problem for problem in self._without_batches() if problem.code not in self.graph.allow]

    def _without_batches(self) -> Iterator[Problem]:
        for node in self.nodes:
            reads = (*node.plan_node.reads, *node.plan_node.setup_reads)
            batches = [(read, target) for read, target in reads if "batches" in read.holds]
            for read, name in [(read, name) for read, target in batches for name in resources_of([target])]:
                data: Any = self.resources.get(name)
                where, parts = f"{self.graph.name}: nodes.{node.path}", {name: data}
                if "loaders" in read.holds and are_loaders(data):
                    parts = {f"{name}[{key!r}]": part for key, part in data.items()}
                elif isinstance(data, Mapping):
                    keys = quoted(map(str, data), 4) or "no keys"
                    message = f"`{name}` is a mapping ({keys}): iterating over it gives its keys, not batches"
                    hint = (
                        f"supply one of its values, as in {name}=data[{next(iter(data), 'key')!r}]; a "
                        "dataset of tensors is TensorDataset(*data.values()), in a Loader"
                    )
                    yield Problem("G309", "error", where, message, hint)
                for label, part in parts.items():
                    # It is read by index; one that can be iterated over may give batches.
                    if isinstance(part, torch.utils.data.Dataset) and not hasattr(type(part), "__iter__"):
                        message = f"`{label}` is a {type(part).__name__}: iterating over it gives samples, not batches"
                        hint = (
                            f"supply Loader({label}, batch_size=...); if its items are batches already, "
                            f"DataLoader({label}, batch_size=None)"
                        )
                        yield Problem("G309", "error", where, message, hint)

    def _unread(self) -> list[str]:
        read = self.read_resources | resources_read(self.graph, self.resources)
        return [name for name in self.resources if name not in read and name not in PROVIDED and name not in USUAL]

    def _readable(self) -> set[str]:
        """The further resources that the graph could use."""
        readable = resources_read(self.graph, self.resources) | set(USUAL)
        return readable - {*PROVIDED, *self.resources} - self.plan.main.written

    def unread_resources(self) -> list[str]:
        """A line about each resource that no node of the graph reads."""
        lines = [unread_line(name, self._readable()) for name in self._unread()]
        if objects := self.resources.get("metric_objects"):
            from graphtrain.program.metric_objects import not_updated  # which few runs have

            lines += not_updated(objects, self)
        return lines

    @functools.cached_property
    def timed_nodes(self) -> list[ProgramNode]:
        """The nodes that fire by wall-clock time, and so at different moments in every replay."""
        acting = [node for node in self.nodes if not node.bypassed]
        return [node for node in acting if any(map(self._is_timed, self.plan.due_by(node.plan_node)))]

    @property
    def records_by_time(self) -> bool:
        """True if rows of metrics are recorded by wall-clock time: an observer takes means of metrics."""
        return any(node.kind.observer and node.kind.may_record_rows for node in self.timed_nodes)

    def timed(self) -> list[str]:
        """A line about what reads wall-clock time and decides about the training; none if nothing does."""
        goes_back = any(node.is_set_up_with("history") for node in self.nodes)
        timed = [
            f"`{node.path}`"
            for node in self.timed_nodes
            if not node.kind.observer or (goes_back and node.is_set_up_with("checkpoints"))
        ]
        timed += [
            f"the guard `{scope.prefix}{name}`"
            for scope in self.scopes.values()
            for name, guard in used_guards(scope.names).items()
            if any(map(self._is_timed, scope.names.read_in(guard)))
        ]
        acting = [node.plan_node for node in self.nodes if not node.bypassed]
        expressions = [ref for plan_node in acting for ref in plan_node.expressions.values()]
        timed += [f"`{ref.name}`" for ref in expressions if self._is_timed(ref)]
        line = f"wall-clock time decides about {', '.join(timed)}: a resumed run may differ from one that was never cut"
        return [line] if timed else []

    def _is_timed(self, ref: Ref) -> bool:
        """True for what reads a field that no digest has, such as seconds."""
        leaves = [leaf for leaf in ref.leaves() if leaf.kind == "field" and leaf.path in self.by_path]
        read = [(self.by_path[leaf.path].kind, leaf.name) for leaf in leaves]
        fields = [kind.fields[name] for kind, name in read if name in kind.fields and kind.counter(name) is None]
        return not all(field.in_digest for field in fields)
