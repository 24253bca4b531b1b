"""Serving the requests to a run, between two transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

from torch.optim.optimizer import register_optimizer_step_post_hook

from graphtrain.errors import (
    CheckpointError,
    DataError,
    GraphtrainError,
    RanksError,
    SaveFailedError,
    UnknownMetricError,
)
from graphtrain.graph.registry import trains
from graphtrain.outcome import Outcome
from graphtrain.program.loop import Transition
from graphtrain.program.requests import Request
from graphtrain.state.optimizers import note_rates
from graphtrain.trainer.debugging import users_frames
from graphtrain.trainer.entry import go_back
from graphtrain.trainer.live_run import LiveRun

Answer = Outcome | Literal["compiled"] | None
"""The outcome if the run stops; "compiled" if its graph was compiled again; else None."""


def drive(run: LiveRun, transitions: Callable[[], list[Transition]], tracer: Any = None) -> Outcome:
    """Run transitions until a request stops the run.

    Arguments:
        transitions: returns the table with breakpoints; called again when the graph was compiled again.
        tracer: the explainer, if transitions are traced. Default: they are not.
    """
    run.drives(tracer)
    try:
        with register_optimizer_step_post_hook(note_rates):
            while not isinstance(outcome := run.session.loop.drive(transitions(), lambda: serve(run)), Outcome):
                pass
        return outcome
    except (SaveFailedError, UnknownMetricError) as error:  # between two nodes: the run can continue from here
        if isinstance(error, UnknownMetricError):  # on all ranks, which have the same rows
            _save_before(run, error)
        run.session.world.fail(error)
        run.requests.clear()
        raise
    except BaseException as error:
        _fail(run, error)


def serve(run: LiveRun) -> Answer:
    """Serve the requests of the last transition that this position allows."""
    pending = run.requests.pending
    answer: Answer = None
    for requests, handle in _HANDLERS:
        if not pending.isdisjoint(requests):
            answer = handle(run) or answer
            if isinstance(answer, Outcome):
                return run.ends(answer)
    return answer


def _return(run: LiveRun) -> Answer:
    go_back(run, run.requests.take_return())
    return "compiled"


def _written(run: LiveRun) -> None:
    run.requests.take("written")
    run.writer.settle()
    run.report_written()


def _ended(run: LiveRun) -> Answer:
    compiled = run.session.compiled
    batches = compiled.program.main.clocks.get("batches")
    if trains(compiled.graph) and batches is not None and not batches.now():
        raise DataError(
            "the run ended without a batch: the data is empty, was exhausted in `setup`, or no edge led to it",
            'supply data that starts over at each `__iter__`, or look at the guards of the edges to "end"',
        )
    run.session.loop.ended, run.is_end_saved = True, False
    compiled.at_end()
    run.requests.clear()
    run.save_end()
    return Outcome.FINISHED


def _recorded(run: LiveRun) -> None:
    session = run.session
    if session.compiled.activity(session.position) is None:  # else an evaluation is under way
        run.requests.take("recorded")
        run.monitors.expect()


def _save_or_stop(run: LiveRun) -> Answer:
    requests = run.requests
    if "save" in requests and run.save(requests.policy, requests.values, is_asked=True):
        requests.saved()
    if "stop" not in requests:
        return None
    run.go("ask_to_stop")
    # What could not be saved for the other request cannot be saved for this one.
    if "save" in requests or not run.save(requests.stop_policy):
        return None
    requests.clear()
    return Outcome.STOPPED


def _reached(run: LiveRun) -> Answer:
    if not run.save(run.requests.stop_policy):
        return None  # as a stop, it waits for the next save point
    run.requests.clear()
    return Outcome.REACHED


def _breakpoint(run: LiveRun) -> Answer:
    run.requests.clear()
    if not run.save(run.requests.stop_policy):
        run.notices(f"`{run.position}` is not a save point ({run.writer.refusal}); nothing is saved here")
    return Outcome.BREAKPOINT


def _pause(run: LiveRun) -> Answer:
    run.requests.take("pause")
    return Outcome.REACHED


# In order of priority.
_HANDLERS: Sequence[tuple[tuple[Request, ...], Callable[[LiveRun], Answer]]] = (
    (("return",), _return),
    (("written",), _written),
    (("ended",), _ended),
    (("recorded",), _recorded),
    (("save", "stop"), _save_or_stop),
    (("reached",), _reached),
    (("breakpoint",), _breakpoint),
    (("pause",), _pause),
)


def _save_before(run: LiveRun, error: UnknownMetricError) -> None:
    """Save where the run stops by an error in its graph, so that what was trained is not lost."""
    if run.files is None or run.is_replay:
        return
    try:
        if run.save(run.requests.sync_policy):
            error.add_note("what was trained is saved: with another name the run continues from here")
    except CheckpointError as failure:
        error.add_note(f"what was trained is not saved: {failure.message}")


def _fail(run: LiveRun, error: BaseException) -> NoReturn:
    """Note that a node has raised, on all ranks and in the status; raise with a note of where."""
    session = run.session
    if not isinstance(error, KeyboardInterrupt):
        run.writer.fails()
    session.world.fail(error)
    run.go("fail")  # an interrupt too: the state of a node that is half done cannot be resumed
    run.requests.clear()
    run.failure = error
    if not isinstance(error, RanksError):
        error.add_note(f"raised in node `{session.path}` ({session.compiled.run_clock.describe()})")
    run.status.write("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
    frames = None if isinstance(error, GraphtrainError) else users_frames(error.__traceback__)
    raise error.with_traceback(frames or error.__traceback__)
