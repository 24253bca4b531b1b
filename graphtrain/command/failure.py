"""Errors as readable messages, and exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped and resumable."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from graphtrain.distributed import prints
from graphtrain.errors import (
    DataError,
    EditError,
    GraphError,
    GraphtrainError,
    RanksError,
    RankStoppedError,
    UsageError,
)
from graphtrain.printable import printable
from graphtrain.run.frames import users_frames
from graphtrain.run.signals import STOPPED as STOPPED

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
    except RankStoppedError:  # which has said so
        sys.exit(STOPPED)
    except GraphtrainError as error:
        if prints(str(error), is_of_all=isinstance(error, RanksError)):
            print_error(error)
        sys.exit(BAD_USAGE if isinstance(error, GraphError | UsageError | EditError | DataError) else FAILED)
    except KeyboardInterrupt:
        if prints("interrupted"):
            print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED)
    except SyntaxError as error:
        # A script that cannot be compiled has no frame; its file and line are in the message.
        error.__traceback__ = users_frames(error.__traceback__)
        _exit_with_traceback(error)
    except Exception as error:
        frames = users_frames(error.__traceback__)
        if frames is None and isinstance(error, BrokenPipeError):
            raise  # the reader of our output is gone: typer exits quietly
        error.__traceback__ = frames or error.__traceback__
        _exit_with_traceback(error)


def print_error(error: GraphtrainError) -> None:
    """Print an error of graphtrain with its notes."""
    print(printable(f"error: {error}"), file=sys.stderr)  # noqa: T201
    for note in getattr(error, "__notes__", ()):
        print(printable(f"  {note}"), file=sys.stderr)  # noqa: T201


def _exit_with_traceback(error: Exception) -> NoReturn:
    if prints(f"{type(error).__name__}: {error}"):
        traceback.print_exception(error)
    sys.exit(FAILED)
