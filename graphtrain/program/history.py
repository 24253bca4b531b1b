"""The slot `history`: a node may send the run back to a checkpoint.

A resumed run must go back to the same checkpoint as a run that was never interrupted, which has fewer of them. So it is
the last one that a node requested, not one that was saved because the run stopped.
"""

from __future__ import annotations

from typing import final

from graphtrain.errors import NotFiniteError, UsageError
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.requests import Requests


@final
class History:
    """The value of the slot `history` for one node."""

    def __init__(self, program: Program, node: ProgramNode, requests: Requests) -> None:
        self._program, self._node, self._requests = program, node, requests

    def restore(self, most: int | None = None) -> bool:
        """Send the run back to the last checkpoint that a node requested, with finite weights; False if there is none.

        The run goes back once the visit is over: resources, gradients, random numbers, the position in the data, and
        the progress of all nodes but this one become those of the checkpoint; later rows of metrics are deleted; a new
        checkpoint follows at once. All ranks have to call this at the same visit.

        A run does not go back to checkpoints from before a change: other hyper-parameters or another graph at a
        resume, a fork, `rewire`, or `load`. The checkpoint that is saved after such a change counts as requested.

        Arguments:
            most: how often the run may go back, at the request of any node. Default: no limit.

        Raises:
            NotFiniteError: the run has gone back that often.
        """
        if not self._requests.saves.can_go_back():
            return False
        times = self._requests.saves.returns
        if most is not None and times >= most:
            raise NotFiniteError(
                f"`{self._node.path}` sends the run back to a checkpoint, but it has already gone back "
                f"{'once' if times == 1 else f'{times} times'}, of at most {most}",
                "resume with a smaller learning rate, or with clipping; or skip more batches, or raise the limit",
            )
        self._requests.returning = self._node.path
        self._requests.add("return")
        return True

    def batches(self, count: int = 1) -> list[list[int]]:
        """The last batches of the epoch, at most `count`, newest last: for each ``[epoch, number in the epoch]``.

        Raises:
            UsageError: nothing in the graph counts batches by epochs.
        """
        clock = self._program.clock(self._node.scope, "batches")
        source = clock.node.instance if clock is not None else None
        epoch, last = (getattr(source, name, None) for name in ("epoch", "batch_index"))
        if epoch is None or last is None:
            raise UsageError(
                f"`{self._node.path}` needs the epoch and the number of the batch, and its graph does not count them",
                'let the clock count them, as in batches = "next_batch.batches"',
            )
        return [[epoch, number] for number in range(max(last - count + 1, 0), last + 1)]
