"""Visits in a run of several ranks.

Ranks go through the data in *rounds*. In each, the node that fetches batches takes one micro-batch for each rank, or
fewer at the end of an epoch or a window, and gives each rank the one with its number. A rank without a batch is *idle*
in that round: nodes that depend on a batch are not called, and everything is counted as on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from graphtrain.errors import UsageError
from graphtrain.kind.fields import IDLE, ROUND
from graphtrain.lazy import lazy_import
from graphtrain.plan.scope import outputs_of, slots_of
from graphtrain.program.bind import Program, ProgramNode

if TYPE_CHECKING:
    import torch

    from graphtrain.program.agreement import Agreement
    from graphtrain.state import generators
else:
    torch = lazy_import("torch")
    generators = lazy_import("graphtrain.state.generators")

Act = Callable[[], Any]


def then(first: Act, second: Act) -> Act:
    """A call that makes both calls, in this order."""

    def both() -> None:
        first()
        second()

    return both


@final
class RankVisits:
    """Wraps visits for one of several ranks. `call_of` returns a call of a function with the reads of a node."""

    def __init__(
        self, program: Program, agreement: Agreement, call_of: Callable[[Callable[..., Any], ProgramNode], Act]
    ) -> None:
        self._program, self.agreement, self._call_of = program, agreement, call_of
        self._dependent = batch_slots(program)

    def wrap(self, node: ProgramNode, act: Act) -> Act:
        """The call of a node, on this rank."""
        if node.kind.fetches:
            # A kind without support for ranks fetches its own batches on each.
            return act if _divides_batches(node) else then(self.agreement.before_batch, act)
        source = source_of(node, self._dependent)
        if source is None or node.body is not None:
            return act
        if self.agreement.sharded and (modules := _sharded_modules(node, self._program)):
            return self._wrap_sharded(node, source, act, modules)
        has_batch, slots = self._has_batch(source), self._program.slots
        # Slots that a step function returns keep their values, as if it was not called.
        writes = node.plan_node.own_writes

        def act_on_own_batch() -> None:
            if has_batch():
                act()
                return
            for path in writes:
                slots[path] = None

        return act_on_own_batch

    def _wrap_sharded(self, node: ProgramNode, source: ProgramNode, act: Act, modules: list[Any]) -> Act:
        # An idle rank runs the model too, as all ranks must: by the method `idle` of the kind, with the first batch of
        # the round, which adds nothing. Without that method a round needs a batch for each rank.
        from graphtrain.ranks.sharded import reshard  # which few runs need

        agreement, slots = self.agreement, self._program.slots
        idle = getattr(node.instance, "idle", None)
        runs_backward = any(action.effect == "backward" for action in node.plan_node.actions)
        if runs_backward and idle is None:
            raise UsageError(
                f"`{node.path}` runs backward through a sharded model, and its kind `{node.kind.name}` has no method "
                "`idle`, by which a rank without a batch takes part",
                "use `train_batch`; or write an `idle`, if the kind calls `backward()` and not `torch.autograd.grad`",
            )
        writes = node.plan_node.own_writes
        required = slots_of(ref for read, ref in node.plan_node.reads if read.required)
        stand_ins = [path for path in required if path in source.plan_node.own_writes]
        call = self._call_of(idle, node) if idle is not None and stand_ins else None
        has_batch, fields = self._has_batch(source), source.fields

        def forward(act: Act) -> None:
            agreement.forward(act)
            for module in () if runs_backward else modules:
                reshard(module)

        def take_part() -> None:
            has_stand_ins = call is not None and all(slots[path] is not None for path in stand_ins)
            if not (has_stand_ins or (has_batch() and fields[ROUND] >= agreement.world_size)):
                raise UsageError(
                    f"`{node.path}` runs a sharded model, in which every rank takes part, and this round has batches "
                    f"for {fields[ROUND]} of {agreement.world_size} ranks",
                    "use drop_last, and epochs and windows whose batches are a multiple of the number of ranks",
                )
            if call is None or has_batch():
                forward(act)
                return
            kept = {path: buffer.detach().clone() for path, buffer in agreement.buffers().items()}
            with generators.PreservedRandom(generators.named_generators().values()):
                forward(call)
            with torch.no_grad():
                for path, buffer in agreement.buffers().items():
                    buffer.copy_(kept.get(path, buffer))
            for path in writes:
                slots[path] = None

        return take_part

    def _has_batch(self, source: ProgramNode) -> Callable[[], bool]:
        """A call that returns whether this rank has a batch in the last round of a node."""
        fields, rank = source.fields, self.agreement.rank
        return lambda: rank < fields[ROUND] and not fields.get(IDLE)

    def amount(self, node: ProgramNode) -> Callable[[], int]:
        """A call that returns for how many micro-batches of all ranks a visit of a node runs backward."""
        source, world_size = source_of(node, self._dependent), self.agreement.world_size
        return (lambda: world_size) if source is None else lambda: int(source.fields[ROUND])

    def undivided(self) -> list[str]:
        """A line for each node that fetches batches and does not divide them among ranks."""
        return [
            f"`{node.path}` does not divide its batches: each of {self.agreement.world_size} ranks fetches all of them;"
            f" use `next_batch`, or let `{node.kind.name}` fetch other batches on each rank"
            for node in self._program.nodes
            if node.kind.family == "data" and not _divides_batches(node) and not node.bypassed
        ]

    def trained_on(self, fetching: ProgramNode) -> set[str]:
        """The optimizers for which backward passes with the batches of a node compute gradients."""
        trained: set[str] = set()
        for node in self._program.nodes:
            source = source_of(node, self._dependent)
            while source is not None and not source.kind.fetches:  # it provides parts of a batch
                source = _first_source(source, self._dependent)
            if source is fetching:
                actions = [action for action in node.plan_node.actions if action.effect == "backward"]
                trained.update(name for action in actions for name in action.optimizers)
        return trained


def _sharded_modules(node: ProgramNode, program: Program) -> list[Any]:
    """The sharded models that a node reads."""
    from graphtrain.ranks.sharded import is_sharded  # which few runs need

    read = [program.resources.get(ref.name) for _, ref in node.plan_node.reads if ref.category == "resource"]
    modules = [value for value in read if isinstance(value, torch.nn.Module)]
    return [module for module in modules if any(map(is_sharded, module.parameters()))]


def batch_slots(program: Program) -> dict[str, ProgramNode]:
    """The slots that depend on a batch: path -> the node that fetches the batch."""
    dependent = {path: node for node in program.nodes if _divides_batches(node) for path in node.plan_node.own_writes}
    count = 0
    while count < len(dependent):
        count = len(dependent)
        for node in program.nodes:
            sources = [source_of(node, dependent)] * len(node.plan_node.own_writes)
            if node.body is not None:
                sources = [dependent.get(f"{node.body.path}{name}") for name in outputs_of(node.body.graph)]
            for path, source in zip(node.plan_node.own_writes, sources, strict=True):
                if source is not None and not node.bypassed:
                    dependent.setdefault(path, source)
    return dependent


def source_of(node: ProgramNode, dependent: dict[str, ProgramNode]) -> ProgramNode | None:
    """The node that fetches the batches that a node reads, directly or through others; None if it reads none."""
    # Nodes in which ranks synchronise run on all of them, and write the same on all.
    if _divides_batches(node) or node.kind.synchronises:
        return None
    return _first_source(node, dependent)


def _first_source(node: ProgramNode, dependent: dict[str, ProgramNode]) -> ProgramNode | None:
    required = (ref for read, ref in node.plan_node.reads if read.required)
    return next((dependent[path] for path in slots_of(required) if path in dependent), None)


def _divides_batches(node: ProgramNode) -> bool:
    return ROUND in node.kind.fields and not node.bypassed
