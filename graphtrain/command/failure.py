"""Errors as people read them, and exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped and resumable."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from graphtrain.errors import DataError, EditError, GraphError, GraphtrainError, UsageError

FAILED = 1
BAD_USAGE = 2
STOPPED = 75  # EX_TEMPFAIL: "try again", which job queues know

_PACKAGE = Path(__file__).parent.parent


@contextmanager
def exit_on_failure() -> Iterator[None]:
    """Turn an error into one readable message and its exit code; a traceback only where the user's own code raised."""
    try:
        yield
    except GraphtrainError as error:
        say_error(error)
        sys.exit(BAD_USAGE if isinstance(error, GraphError | UsageError | EditError | DataError) else FAILED)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(FAILED)
    except Exception as error:
        _exit_with_users_traceback(error)


def say_error(error: GraphtrainError) -> None:
    """Print an error of ours, with what was noted on its way."""
    print(f"error: {error}", file=sys.stderr)  # noqa: T201
    for note in getattr(error, "__notes__", ()):
        print(f"  {note}", file=sys.stderr)  # noqa: T201


def _exit_with_users_traceback(error: Exception) -> NoReturn:
    error.__traceback__ = users_frames(error.__traceback__) or error.__traceback__
    error.__suppress_context__ = True
    traceback.print_exception(error)
    sys.exit(FAILED)


def users_frames(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame after graphtrain's own and its libraries'; None if there is none."""
    inside = False
    while frames is not None:
        ours = Path(frames.tb_frame.f_code.co_filename).is_relative_to(_PACKAGE)
        if inside and not ours and not _is_machinery(frames):
            return frames
        inside = inside or ours
        frames = frames.tb_next
    return None


def _is_machinery(frames: TracebackType) -> bool:
    file = frames.tb_frame.f_code.co_filename
    return file.startswith("<frozen") or any(
        part in file for part in ("/typer/", "/click/", "/importlib/", "/contextlib.py")
    )
