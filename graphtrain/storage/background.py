"""A job in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar, final

T = TypeVar("T")
_SECONDS = 1.0


@final
class Background(Generic[T]):
    """A job that runs at once, in a thread of its own. Its result, or what it raised, can be asked for.

    The thread is left behind when the process ends: whoever needs the answer waits for it.

    Arguments:
        job: what is done.
        done: called from that thread when it is over; it may only set a flag. Default: nothing is called.

    >>> Background(lambda: 6 * 7).result()
    42
    """

    def __init__(self, job: Callable[[], T], done: Callable[[], None] = lambda: None) -> None:
        self._job, self._done = job, done
        self._over = Event()
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="graphtrain-background", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._job())
        except BaseException as error:  # whatever it is, it is raised where the answer is asked for
            self._error = error
        finally:
            self._over.set()
            self._done()

    @property
    def is_over(self) -> bool:
        """True if the answer is there."""
        return self._over.is_set()

    def result(self) -> T:
        """The answer; waited for, if need be.

        Raises:
            BaseException: what the job raised.
        """
        # Not by `join`: one that was interrupted takes the thread for ended.
        while not self._over.wait(_SECONDS):
            # In a fork of the process that it is a thread of; it may also have ended since the wait did.
            if not self._thread.is_alive() and not self._over.is_set():
                raise RuntimeError("the job is another process's")
        if self._error is not None:
            raise self._error
        return self._answer[0]
