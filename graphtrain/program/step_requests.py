"""Requests of step functions, `STOP` and `END_EPOCH`, and the nodes that serve them.

Among several ranks one request is enough. They learn of it where they next synchronise, which a save does too, and all
grant it before the next batch, regardless of saves in between. Until then it is progress of the requesting node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from graphtrain.errors import UsageError
from graphtrain.kind.declaration import Ask
from graphtrain.program.agreement import Agreement
from graphtrain.program.bind import BoundGraph, BoundNode, Program
from graphtrain.program.rounds import source_of_batches
from graphtrain.program.triggers import After

# The progress of a node with requests that are not granted yet.
_PENDING = "asking"
_MOST_NODES = 32  # with requests by step functions, in a record of ranks


@final
class StepRequests:
    """Grants the requests of the step functions of one program.

    Arguments:
        agreement: that with the other ranks. Default: there are none.
    """

    def __init__(self, program: Program, agreement: Agreement | None = None) -> None:
        self._program, self._agreement = program, agreement
        self._asking = [bound for bound in program.nodes if bound.is_set_up_with("asks")]
        if agreement is not None:
            agreement.learn, agreement.grant = self._learn, self._grant_all

    def of(self, bound: BoundNode) -> Callable[[Ask], None]:
        """A call by which the step function of a node makes a request."""
        if self._agreement is None:
            return lambda ask: self._grant(bound, ask)
        agreement, number = self._agreement, self._asking.index(bound)

        def ask_all(ask: Ask) -> None:
            if number >= _MOST_NODES:
                raise UsageError(f"`{bound.path}` asks for {ask}, and so may {number} nodes before it", "use fewer")
            agreement.asked |= 1 << (2 * number + (ask is Ask.END_EPOCH))

        return ask_all

    def _learn(self, asked: int) -> None:
        for number, bound in enumerate(self._asking[:_MOST_NODES]):
            for ask in Ask:
                if asked >> (2 * number + (ask is Ask.END_EPOCH)) & 1:
                    bound.fields[_PENDING] = f"{bound.fields[_PENDING]} {ask.name}".strip()

    def _grant_all(self) -> None:
        for bound in self._asking:
            self._grant_pending(bound)

    def _grant_pending(self, bound: BoundNode) -> None:
        if pending := bound.fields.get(_PENDING):
            bound.fields[_PENDING] = ""
            for name in dict.fromkeys(pending.split()):
                self._grant(bound, Ask[name])

    def enter(self, scope: BoundGraph) -> None:
        """Grant in one process the requests that several ranks saved before they granted them."""
        for bound in self._asking if self._agreement is None else ():
            if bound.scope is scope and not bound.bypassed:
                self._grant_pending(bound)

    def _grant(self, bound: BoundNode, ask: Ask) -> None:
        if ask is Ask.STOP:
            self._stop(bound)
        else:
            self._end_epoch(bound)

    def _stop(self, asking: BoundNode) -> None:
        """Make the ending of the innermost enclosing graph that has one due."""
        for scope in reversed([*asking.scope.around()]):
            ending = [
                bound
                for bound in scope.nodes.values()
                if isinstance(bound.trigger, After) and (bound.path, "due") in self._program.plan.fields_read
            ]
            for bound in ending:
                bound.trigger.stop()
            if ending:
                return
        raise UsageError(
            f"a step function that `{asking.path}` calls returned STOP, and no guard reads if a node with `after` is "
            "due",
            'add a node of the kind `finish`, and let the edge to "end" read `finish.due`, as in `fit`',
        )

    def _end_epoch(self, asking: BoundNode) -> None:
        """Let the node that fetches the batches end the epoch."""
        source = source_of_batches(self._program, asking)
        end_epoch = getattr(source.instance, "end_epoch", None) if source is not None else None
        if end_epoch is None:
            raise UsageError(
                f"a step function that `{asking.path}` calls returned END_EPOCH, and its batches come from no node "
                "that can end an epoch",
                "fetch them with `next_batch`, or give the kind that does a method `end_epoch()`",
            )
        end_epoch()
