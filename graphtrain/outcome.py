"""How a run ended: a closed enumeration whose members carry their sentence."""

from __future__ import annotations

import enum

STOPPED = 75  # the exit code of a run that is stopped: EX_TEMPFAIL, "try again", as job queues expect it


class Outcome(enum.Enum):
    """What `Trainer.run` returns.

    >>> Outcome.FINISHED, str(Outcome.FINISHED), Outcome.STOPPED.resumable
    (Outcome.FINISHED, 'the run is finished', True)
    """

    FINISHED = "the run is finished"
    ALREADY_FINISHED = "the run was finished before"
    REACHED = "stopped at `until`, which counts from the beginning of the run; run again to resume"
    BREAKPOINT = "stopped before the node of `before`; run again to continue"
    STOPPED = "stopped on request; run again to resume"

    @property
    def resumable(self) -> bool:
        """True if there is more to do."""
        return self in (Outcome.REACHED, Outcome.BREAKPOINT, Outcome.STOPPED)

    def __repr__(self) -> str:
        return f"Outcome.{self.name}"

    def __str__(self) -> str:
        return self.value
