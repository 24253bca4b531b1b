"""What a step function may ask for beside what it returns."""

from __future__ import annotations

import enum


class Ask(enum.Enum):
    """What a step function returns as the second of two, ``return loss, graphtrain.STOP``.

    >>> Ask.STOP, str(Ask.END_EPOCH)
    (STOP, 'the end of the epoch')
    """

    STOP = "the end of the run"
    END_EPOCH = "the end of the epoch"

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.value


STOP = Ask.STOP
"""The run ends as at its `finish.after`: the open window is closed first."""

END_EPOCH = Ask.END_EPOCH
"""The epoch ends as if its data had no further batch; in an evaluation, that of the evaluation does."""
