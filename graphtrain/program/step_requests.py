"""What step functions ask for, `STOP` and `END_EPOCH`, and the nodes that are told.

Among several ranks one that asks is enough. They learn of it where they synchronise next, which a save does too, and
grant it all at once before the next batch: whether anything was saved in between makes no difference. Until then it is
progress of the node that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import final

from graphtrain.errors import NotFiniteError, UsageError
from graphtrain.kind.ask import Ask
from graphtrain.names import suggestion
from graphtrain.program.agreement import Agreement
from graphtrain.program.bind import BoundGraph, BoundNode, Program
from graphtrain.program.requests import Requests, Return
from graphtrain.program.rounds import source_of_batches
from graphtrain.program.triggers import After

# The progress of a node that holds what was asked for and is not granted.
_PENDING = "asking"
_MOST_NODES = 32  # whose step functions ask, in a record of ranks


@final
class StepRequests:
    """Grants what the step functions of one program ask for.

    Arguments:
        agreement: with the other ranks. Default: there are none.
    """

    def __init__(self, program: Program, agreement: Agreement | None = None) -> None:
        self._program, self._agreement = program, agreement
        self._asking = [bound for bound in program.nodes if bound.is_set_up_with("asks")]
        if agreement is not None:
            agreement.learn, agreement.grant = self._learn, self._grant_all

    def of(self, bound: BoundNode) -> Callable[[Ask], None]:
        """A call by which the step function of a node asks."""
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
        """Grant in one process what several ranks have saved before they granted it."""
        for bound in self._asking if self._agreement is None else ():
            if bound.scope is scope and not bound.bypassed:
                self._grant_pending(bound)

    def _grant(self, bound: BoundNode, ask: Ask) -> None:
        if ask is Ask.STOP:
            self._stop(bound)
        else:
            self._end_epoch(bound)

    def _stop(self, asking: BoundNode) -> None:
        """Let what ends the innermost graph around, where anything does, be due."""
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
            f"a step function that `{asking.path}` calls returned STOP, and no guard asks whether a node with `after` "
            "is due",
            'add a node of the kind `finish`, and let the edge to "end" ask `finish.due`, as in `fit`',
        )

    def _end_epoch(self, asking: BoundNode) -> None:
        """Let the node that fetches the batches see no further one."""
        source = source_of_batches(self._program, asking)
        end_epoch = getattr(source.instance, "end_epoch", None) if source is not None else None
        if end_epoch is None:
            raise UsageError(
                f"a step function that `{asking.path}` calls returned END_EPOCH, and its batches come from no node "
                "that can end an epoch",
                "fetch them with `next_batch`, or give the kind that does a method `end_epoch()`",
            )
        end_epoch()


@final
class History:
    """What the slot `history` holds, for one node.

    Arguments:
        requests: those of the run.
    """

    def __init__(self, bound: BoundNode, program: Program, requests: Requests) -> None:
        self._bound, self._program, self._requests = bound, program, requests

    def restore(self, to: str = "checkpoint", keep: Collection[str] | None = None, most: int | None = None) -> bool:
        """Ask the run to go back to what the node `to` has saved last; False if it has saved nothing so far.

        The run does so once the visit is over: resources, progress, gradients, random numbers and the position in the
        data become those of the checkpoint, rows of metrics that were recorded since are cut, and a checkpoint follows
        at once. All ranks have to ask at the same visit.

        A run does not go back to what was saved before somebody changed it: by other hyper-parameters or another graph
        at a resume, by `rewire`, or by `load`.

        Arguments:
            to: the name of a node that asks for checkpoints, of the same graph or of one around it.
            keep: the names of nodes of the same graph whose progress stays. Default: the node that asks.
            most: how often the run may go back, over all its nodes. Default: without a limit.

        Raises:
            UsageError: there is no such node.
            NotFiniteError: the run has gone back as often as it may.
        """
        source = self._named(to)
        kept = tuple(self._named(name, is_near=True).path for name in keep) if keep is not None else (self._bound.path,)
        if source.path not in self._requests.saves.saved_by():
            return False
        times = self._requests.saves.returns
        if most is not None and times >= most:
            raise NotFiniteError(
                f"`{self._bound.path}` asks the run to go back to what `{source.path}` has saved, and it has gone back "
                f"{'once' if times == 1 else f'{times} times'}, of at most {most}",
                "resume with a smaller learning rate, or with clipping; or let it leave out more, and raise the limit",
            )
        self._requests.go_back(Return(self._bound.path, source.path, kept))
        return True

    def batches(self, count: int = 1) -> list[list[int]]:
        """The last batches, at most so many, of the epoch: of each the epoch and its number in that, the newest last.

        Raises:
            UsageError: nothing in the graph counts batches by epochs.
        """
        scope = self._bound.scope.counting("batches")
        source = scope.counter("batches")[0] if scope is not None else None
        epoch, last = (getattr(source.instance if source else None, name, None) for name in ("epoch", "batch_index"))
        if epoch is None or last is None:
            raise UsageError(
                f"`{self._bound.path}` asks which batch of which epoch it is, and nothing counts them in its graph",
                'let the clock count them, as in batches = "next_batch.batches"',
            )
        return [[epoch, number] for number in range(max(last - count + 1, 0), last + 1)]

    def _named(self, name: str, *, is_near: bool = False) -> BoundNode:
        scopes = [*self._bound.scope.around()]
        for scope in scopes[-1:] if is_near else reversed(scopes):
            if name in scope.nodes:
                return scope.nodes[name]
        raise UsageError(
            f"`{self._bound.path}` names `{name}`, and there is no such node in its graph",
            suggestion(name, scopes[-1].nodes),
        )
