"""How a run starts: from the beginning, from a checkpoint, or back at an earlier checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.kind.trigger import Trigger
from graphtrain.names import quoted
from graphtrain.printable import shown_path
from graphtrain.program import run_state
from graphtrain.program.requests import SavePolicy
from graphtrain.resume.equal_ranks import require_equal_weights
from graphtrain.resume.rank_resume import choose
from graphtrain.resume.restore import ResumeOptions, repeated, restore_checkpoint
from graphtrain.resume.setup_change import setup_changes
from graphtrain.state.generators import capture_random
from graphtrain.state.reachable import REMEDY
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.run_directory import last_status
from graphtrain.trainer.live_run import LiveRun


def get_ready(run: LiveRun, options: ResumeOptions, holder: Any, limit: Trigger | None) -> None:
    """Begin or resume a run, unless it has begun in this process. `holder`: the trainer, see `Session.set_up`."""
    session, files, was_over = run.session, run.files, run.has_begun
    if not run.has_begun:
        random, returning = capture_random(), session.compiled.returning
        require_equal_weights(session.world, session.resources)
        if returning and files is None and not run.is_replay:
            raise UsageError(
                f"{quoted(returning)} may send the run back to a checkpoint, but there is no run directory",
                "set one: --run-dir runs/first, in Python Trainer(..., run_dir=...)",
            )
        checkpoint, run.writer.run_name = choose(files, options.resume, session.world)
        status = last_status(files.folder) if files is not None and checkpoint is not None else {}
        lines = dict.fromkeys([*map(tuple, status.get("notices") or ()), *run.notices.last])
        run.notices.last.clear()
        run.notices.last.extend(lines)
        session.set_up(checkpoint, holder)
        was_over = checkpoint is not None and _resume(run, checkpoint, options, status)
        if checkpoint is None:
            session.begin(random)
            if files is not None:
                run.cut_back_to(None)
        run.has_begun, run.resumed_from = True, checkpoint
    compiled, loop = session.compiled, session.loop
    if loop.ended:  # its end may have been postponed
        loop.position, loop.ended = compiled.reevaluate_end(loop.position)
    if not (run.is_announced or (was_over and loop.ended)):
        checkpoint, environment, setup = run.resumed_from, session.environment, session.setup
        is_from_this_run = files is not None and checkpoint is not None and files.owns(checkpoint)
        if files is not None and environment is not None:
            known = files.setup_of(checkpoint) if checkpoint is not None and is_from_this_run else {}
            name = None if checkpoint is None else checkpoint.path.name if is_from_this_run else str(checkpoint.path)
            start = {**vars(environment), "checkpoint": name}
            files.append_start(start if setup == known else {**start, "setup": setup})  # which may be long
            run.writer.check()
        run.announce("resumed" if is_from_this_run else "started")
        run.write_status()
        run.is_announced = True
    if compiled.activity(loop.position) is None:
        for name in compiled.state.objects.trained_in_evaluation_mode():
            run.notices.once(
                f"`{name}` trains in evaluation mode: without dropout, and batch norm keeps its statistics; "
                f"call {name}.train() before the run, unless this is intended"
            )
    run.started(limit)


def go_back(run: LiveRun, node: str) -> None:
    """Go back to a checkpoint in place, as a node requested, and save; the node keeps its progress.

    If the process is killed in between, the resumed run goes back again.
    """
    if run.is_replay:
        raise UsageError(
            f"`{node}` sent the run back to an earlier checkpoint, which a replay does not follow",
            "replay from a later checkpoint, by its name: --to NAME",
        )
    session, files, writer, seconds = run.session, run.files, run.writer, run.session.watch.seconds()
    assert files is not None, "refused at the start"
    writer.wait()  # the checkpoint may be the one that is being written
    if not (name := writer.saved):
        raise CheckpointError(
            f"`{node}` sends the run back to a checkpoint that could not be written, or has weights that are "
            "not finite",
            "remove the cause, and resume from an earlier checkpoint: --resume NAME",
        )
    checkpoint, writer.run_name = choose(files, files.checkpoints / name, session.world)
    assert checkpoint is not None, "it is named"
    trained, progress = session.trained, run_state.capture(session.compiled.state, set(), ("progress",))["progress"]
    session.compiled.release()
    session.watch.stop()
    session.recompile()
    restore_checkpoint(checkpoint, session, ResumeOptions(kept={node: progress[node]}))
    session.watch.load(seconds)  # this time was spent
    session.watch.start(inside=session.compiled.activity(session.loop.position))
    run.cut_back_to(checkpoint)
    place = session.compiled.run_clock.describe()
    run.notices(f"`{node}` sends the run back to {name}: {place}; {repeated(session.trained, trained)}")
    writer.returns += 1
    is_saved = run.save(SavePolicy("sync"))
    assert is_saved, "a checkpoint was made here before"
    run.announce("resumed")


def _resume(run: LiveRun, checkpoint: Checkpoint, options: ResumeOptions, status: Mapping[str, Any]) -> bool:
    """Resume from a checkpoint; `status` is the last one of the run. Returns True if the run was finished before."""
    session, files, manifest = run.session, run.files, checkpoint.manifest
    restored = restore_checkpoint(checkpoint, session, options)
    is_from_this_run = files is not None and files.owns(checkpoint)
    is_newest = files is not None and files.is_newest(checkpoint)
    # It finished before, and the graph that it has now does not postpone its end.
    is_over = is_newest and session.loop.ended and session.compiled.reevaluate_end(session.loop.position)[1]
    environment, snapshot = session.environment, session.compiled.state.snapshot
    assert snapshot is not None and environment is not None, "the session is set up"
    different: list[str] = []
    if files is not None:
        changed = [*environment.changed_data(manifest), *restored.taken]
        different = setup_changes(files.setup_of(checkpoint), session.setup, snapshot, changed)
    parts, lost = [*restored.changes], [*dict.fromkeys((*manifest.unknown, *restored.lost))]
    environment_changes = environment.changes(manifest)
    if environment_changes or restored.decided:  # so somebody has changed `setup`
        parts += [f"{path} as set up" for path in different]
    else:
        remedy = f"differs from what `setup` created before: seed it, or {REMEDY}"
        lost += [f"{shown_path(path)} {remedy}" for path in different[:3]]  # which show what to do
        lost += [f"{len(different) - 3} more differ likewise"] * (len(different) > 3)
    session.inexact_since = manifest.inexact_since or checkpoint.path.name * bool(lost)
    run.changes = (*restored.changes, *environment_changes)
    where = checkpoint.path.name if files is None else str(files.path)
    if options.resume not in ("auto", "never") and files is not None:
        where += f" from {checkpoint.path.name if is_from_this_run else checkpoint.path}"
    repetition = repeated(session.trained, status) if is_from_this_run else ""
    ended = "the run was finished before, so nothing is run" * is_over
    resumed = f"resumed {where}: {session.compiled.run_clock.describe() or f'at `{run.position}`'}"
    exactness = [environment.compared(manifest, parts, lost), "" if lost else restored.sampled]
    run.notices("; ".join(filter(None, [resumed, repetition, *exactness, ended])))
    if files is not None:
        run.cut_back_to(checkpoint)
    is_unchanged = (is_from_this_run or run.is_replay) and not (restored.decided or restored.is_other_graph)
    saved = checkpoint.path.name if manifest.return_to == "" else manifest.return_to
    run.writer.saved, run.writer.returns = saved if is_unchanged else None, manifest.returns
    begins_lineage = bool(session.compiled.returning) and not is_unchanged
    must_save = not is_newest or ((restored.decided or begins_lineage) and not is_over)
    # Saved before anything else, so that from now on a resume chooses this state, and the run can go back to it.
    if files is not None and must_save:
        run.save(SavePolicy("sync"), is_requested=begins_lineage)
    return is_over
