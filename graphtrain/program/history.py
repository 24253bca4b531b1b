"""The past of the run, as a node is given it: it may ask the run to go back to a checkpoint.

What is meant by a checkpoint has to be the same for a run that was cut and for one that was not, which has fewer of
them. So a node names another node, and means what that one asked to save last: a stop saves too, but nobody goes back
to what it has saved.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from graphtrain.errors import NotFiniteError, UsageError
from graphtrain.names import suggestion
from graphtrain.program.bind import BoundNode, Program
from graphtrain.program.requests import Requests, Return


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
