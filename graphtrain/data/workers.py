"""The processes of a loader, and the signals that are meant for the run and not for them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

_FOR_THE_RUN = {getattr(signal, name) for name in ("SIGINT", "SIGUSR1") if hasattr(signal, name)}


def iterate(data: Any) -> Iterator[Any]:
    """``iter(data)``, with workers that no signal reaches which asks the run to stop.

    A terminal sends Ctrl-C to every process, a job queue its warning; workers that died of them would take the run
    along before its save point. Processes inherit the signals that are blocked while they start, however they start.
    SIGTERM is not blocked: by it torch ends its workers. A signal that comes meanwhile reaches the run afterwards.
    """
    if not getattr(data, "num_workers", 0) or not hasattr(signal, "pthread_sigmask"):
        return iter(data)
    context = getattr(data, "multiprocessing_context", None) or multiprocessing.get_context()
    if context.get_start_method() != "fork":
        resource_tracker.ensure_running()  # which unblocks signals when it is started by the first worker
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_RUN)
    try:
        return iter(data)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
