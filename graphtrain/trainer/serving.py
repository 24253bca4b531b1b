"""Serves the requests to a run between two transitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from graphtrain.errors import DataError, GraphtrainError, RanksError, SaveFailedError, UnknownMetricError
from graphtrain.graph.registry import trains
from graphtrain.outcome import Outcome
from graphtrain.program.loop import Transition
from graphtrain.program.requests import SavePolicy
from graphtrain.resume.equal_ranks import require_equal_weights
from graphtrain.trainer.debugging import users_frames
from graphtrain.trainer.entry import go_back
from graphtrain.trainer.live_run import LiveRun


def drive(run: LiveRun, transitions: Callable[[], list[Transition]]) -> Outcome:
    """Run transitions until a request stops the run; `transitions` is called again if the graph is compiled again."""
    run.explanation = run.failure = None
    run.reason, run.error, run.replay = "", "", ()
    try:
        while not isinstance(outcome := run.session.loop.drive(transitions(), partial(serve, run)), Outcome):
            pass
        return outcome
    except (SaveFailedError, UnknownMetricError) as error:  # between two nodes: the run can continue from here
        run.session.world.fail(error)
        run.requests.clear()
        raise
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):
            run.writer.wait_briefly()
        run.session.world.fail(error)
        run.trigger("fail")  # also at an interrupt: a node that is half done cannot be resumed
        run.requests.clear()
        run.failure = error
        if not isinstance(error, RanksError):
            error.add_note(f"raised in node `{run.session.path}` ({run.session.compiled.run_clock.describe()})")
        frames = None if isinstance(error, GraphtrainError) else users_frames(error.__traceback__)
        raise error.with_traceback(frames or error.__traceback__)  # noqa: B904


def serve(run: LiveRun) -> Outcome | Literal["compiled"] | None:
    """Serve the requests of the last transition; "compiled" if its graph was compiled again, an outcome if it stops."""
    session, requests = run.session, run.requests
    answer: Literal["compiled"] | None = None
    if "return" in requests:
        go_back(run, requests.take_return())
        answer = "compiled"
    if requests.take("written"):
        run.writer.complete_written()
    if "ended" in requests:
        end(run)
        requests.clear()
        return Outcome.FINISHED
    policy, activity = SavePolicy(requests.policy.mode), session.compiled.activity(session.loop.position)
    if activity is None and requests.take("recorded"):
        try:
            run.monitors.expect()
        except UnknownMetricError:  # on all ranks, which have the same rows
            run.save(SavePolicy("sync"))  # with another name the run continues from here
            raise
    if "save" in requests and run.save(requests.policy, requests.values, is_requested=True):
        requests.discard("save")
        requests.values = {}
    if "stop" in requests:
        run.trigger("ask_to_stop")
        # Where the requested save is not possible, neither is this one: both wait for the next save point.
        if "save" not in requests and run.save(policy):
            requests.clear()
            run.reason = run.stopped_by
            return Outcome.STOPPED
    if "reached" in requests and run.save(policy):
        requests.clear()
        run.reason = f"--until {' or '.join(run.snapshot().until)}"
        return Outcome.REACHED
    if "breakpoint" in requests:
        if not run.save(policy):
            run.notices(f"`{run.position}` is not a save point ({run.writer.refusal}); nothing is saved here")
        requests.clear()
        run.reason = f"the breakpoint before {run.position}"
        return Outcome.BREAKPOINT
    return Outcome.REACHED if requests.take("pause") else answer


def end(run: LiveRun) -> None:
    """Run what nodes do at the end, and save: the run may continue after a failed save, but not end without one."""
    session, files, compiled = run.session, run.files, run.session.compiled
    batches = compiled.program.clock(compiled.program.main, "batches")
    if trains(compiled.graph) and batches is not None and not batches.now():
        raise DataError(
            "the run ended without a batch: the data is empty, was exhausted in `setup`, or no edge led to it",
            'supply data that starts over at each `__iter__`, or look at the guards of the edges to "end"',
        )
    session.loop.ended, run.is_end_saved = True, False
    for act in compiled.compiler.at_end:
        act()
    run.requests.clear()
    run.save(SavePolicy("sync"))
    if files is None:  # a save would have compared them
        require_equal_weights(session.world, session.resources)
    for node, retention in run.requests.retentions.items():
        if files is not None and retention.best is not None and not files.has_ranked(node):
            run.notices(
                "no checkpoint was kept as the best: no row at a step at which "
                f"`{node}` was due has a finite `{retention.best}`"
            )
    run.is_end_saved = True
