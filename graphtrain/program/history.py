"""The past of the run for a node, which may request a return to a checkpoint.

The checkpoint has to be the same for a run that was cut and for one that was not, which has fewer of them. So it is the
last one that a node requested: a stop saves too, but nothing returns to that.
"""

from __future__ import annotations

from typing import final

from graphtrain.errors import NotFiniteError, UsageError
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.requests import Requests


@final
class History:
    """The value of the slot `history` for one node.

    Arguments:
        requests: the requests of the run.
    """

    def __init__(self, program: Program, node: ProgramNode, requests: Requests) -> None:
        self._program, self._node, self._requests = program, node, requests

    def restore(self, most: int | None = None) -> bool:
        """Request a return to the last checkpoint that a node requested, with finite weights; False if there is none.

        The run returns once the visit is over: resources, progress except that of this node, gradients, random numbers
        and the position in the data become those of the checkpoint, rows of metrics recorded since are cut, and a
        checkpoint follows immediately. All ranks have to request it at the same visit.

        A run does not return to checkpoints from before it was changed: by other hyper-parameters or another graph
        at a resume, by a fork, by `rewire`, or by `load`. The checkpoint that such a resume, or a fork, begins with is
        one of every node that saves.

        Arguments:
            most: how often the run may return, over all its nodes. Default: no limit.

        Raises:
            NotFiniteError: the run has returned as often as it may.
        """
        if not self._requests.saves.can_go_back():
            return False
        times = self._requests.saves.returns
        if most is not None and times >= most:
            raise NotFiniteError(
                f"`{self._node.path}` asks the run to go back to a checkpoint, and it has gone back "
                f"{'once' if times == 1 else f'{times} times'}, of at most {most}",
                "resume with a smaller learning rate, or with clipping; or let it leave out more, and raise the limit",
            )
        self._requests.returning = self._node.path
        self._requests.add("return")
        return True

    def batches(self, count: int = 1) -> list[list[int]]:
        """The last batches of the epoch, at most this many: the epoch and the number in it of each, the newest last.

        Raises:
            UsageError: nothing in the graph counts batches by epochs.
        """
        clock = self._program.clock(self._node.scope, "batches")
        source = clock.node.instance if clock is not None else None
        epoch, last = (getattr(source, name, None) for name in ("epoch", "batch_index"))
        if epoch is None or last is None:
            raise UsageError(
                f"`{self._node.path}` asks which batch of which epoch it is, and nothing counts them in its graph",
                'let the clock count them, as in batches = "next_batch.batches"',
            )
        return [[epoch, number] for number in range(max(last - count + 1, 0), last + 1)]
