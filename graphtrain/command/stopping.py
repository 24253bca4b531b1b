"""Signals from the first line of a command to the end of its process."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence

from graphtrain.distributed import prints
from graphtrain.printable import printable
from graphtrain.run.signals import StoppedBeforeTrainingError, handle_until_exit


@contextlib.contextmanager
def stoppable(words: Sequence[str]) -> Iterator[None]:
    """Handle signals until the process ends; inside the block, one that comes before anything is trained ends it.

    Arguments:
        words: the command line.

    Raises:
        StoppedBeforeTrainingError: a signal came; a message has said so.
    """
    handle_until_exit()
    try:
        yield
    except StoppedBeforeTrainingError as stopped:
        line = f"stopped by {stopped.signal}: nothing was trained, nothing was saved; start again with: "
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            if prints("stopped before training"):
                print(line + printable(shlex.join(words)), file=sys.stderr, flush=True)  # noqa: T201  # a command prints
        raise
