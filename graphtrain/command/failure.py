"""How a command ends: errors and signals as readable messages, and exit codes.

These are 0 done, 1 failed, 2 bad usage, 75 stopped and resumable.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import click

from graphtrain.errors import DataError, EditError, GraphError, GraphtrainError, UsageError
from graphtrain.outcome import STOPPED as STOPPED
from graphtrain.printable import printable
from graphtrain.ranks import prints
from graphtrain.trainer.debugging import users_frames

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as in a shell


@contextmanager
def exit_on_failure() -> Iterator[None]:
    """Turn an exception into a readable message and an exit code; a traceback only if the user's code raised it.

    A message that several ranks have is printed by one of them.
    """
    try:
        yield
    except click.ClickException:  # which click prints, with the usage
        raise
    except GraphtrainError as error:
        if prints(str(error)):
            for line in (f"error: {error}", *(f"  {note}" for note in getattr(error, "__notes__", ()))):
                print(printable(line), file=sys.stderr)  # noqa: T201  # a command prints
        sys.exit(BAD_USAGE if isinstance(error, GraphError | UsageError | EditError | DataError) else FAILED)
    except KeyboardInterrupt:
        if prints("interrupted"):
            print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED)
    except Exception as error:
        frames = users_frames(error.__traceback__)
        if frames is None and isinstance(error, BrokenPipeError):
            raise  # the reader of our output is gone: click exits quietly
        # A script that cannot be compiled has no frame; its file and line are in the message.
        error.__traceback__ = frames or (None if isinstance(error, SyntaxError) else error.__traceback__)
        if prints(f"{type(error).__name__}: {error}"):
            traceback.print_exception(error)
        sys.exit(FAILED)
