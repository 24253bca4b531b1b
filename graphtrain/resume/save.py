"""Write checkpoints of a run at its save points: the state is copied at once, and written while training continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from typing import Any, NamedTuple, final

from graphtrain.errors import CheckpointError, SaveFailedError
from graphtrain.names import quoted
from graphtrain.program import run_state
from graphtrain.program.gradient_windows import counters_of
from graphtrain.program.requests import SavePolicy
from graphtrain.resume.rank_saves import RankSave
from graphtrain.resume.restore import capture
from graphtrain.resume.session import Session
from graphtrain.state.optimizers import NO_RESUME
from graphtrain.state.snapshot import data_contents
from graphtrain.storage.checkpoint import new_folder, write_manifest
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.manifest import Manifest, SavedCheckpoint
from graphtrain.storage.run_files import RunFiles
from graphtrain.storage.state_files import StagedState, local_of, split
from graphtrain.storage.tensor_files import Buffers, layout_of

_PATIENCE = 100  # after this many transitions without a save point, a message says why
_SLICE_SECONDS = 0.5


class _Save(NamedTuple):
    """A checkpoint that is being written."""

    part: RankSave
    writing: Future[SavedCheckpoint]
    policy: SavePolicy
    is_requested: bool  # True if a node requested it, and a node of the graph can return to it


@final
class CheckpointWriter:
    """Writes checkpoints. It refuses positions where a slot in use cannot be saved: the caller tries the next position.

    Several ranks save between two windows only, so that any number of ranks can resume. One checkpoint is written at a
    time, from one copy of the state; the next save waits for it.

    Arguments:
        run_files: the run directory. None: nothing is saved.
        written: called in the thread of the run after a checkpoint was written.

    Attributes:
        run_name: the prefix of the keys of this run in the store of the ranks, the same on all of them.
        refusal, remedy: why the last position was not a save point, and what to do about it.
        saved: the last checkpoint that a node requested and to which the run can return: its weights are finite.
        returns: how often the run has returned to a checkpoint.
    """

    def __init__(self, run: Session, run_files: RunFiles | None, written: Callable[[], Any]) -> None:
        self._run = run
        self._run_files = run_files
        self._written = written
        self.world = run.world
        self.run_name = "run"
        self._is_alone = run.world.world_size == 1
        self._requests, self._notices = run.requests, run.notices
        self._staging: Buffers = {}  # reused by each copy
        self._save: _Save | None = None  # that is being written
        self._begun = 0  # the number of saves so far
        self._attempts = 0
        self.refusal = self.remedy = ""
        self.saved: str | None = None
        self.returns = 0

    def check(self) -> None:
        """Raise an UnsaveableError now for state that could not be saved later."""
        try:
            for tensors in split(capture(self._run)[0])[1]:
                layout_of(tensors)
        except UnsaveableError:
            if not self._run.compiled.state.objects.is_lazy():  # after the first batch it can be saved
                raise

    def can_go_back(self) -> bool:
        """True if there is a checkpoint to which the run can return, or one is being written."""
        return self.saved is not None or (self._save is not None and self._save.is_requested)

    def save(self, policy: SavePolicy, values: Mapping[str, float | None], *, is_requested: bool) -> bool:
        """Save at this position; False if it is not a save point.

        Arguments:
            values: metric by which checkpoints are ranked -> its value; None if there is none yet.
            is_requested: True if a node requested it; False when the run stops.

        Raises:
            SaveFailedError: this save or the one before it failed, and the policy is to stop.
        """
        if self._run_files is None:
            return True
        compiled, loop = self._run.compiled, self._run.loop
        if transient := compiled.transient(loop.position, loop.ended):
            return self._refuse(f"{quoted(transient)} cannot be saved (declared transient)")
        if not self._is_alone and (reason := self._why_not_between_windows()):
            return self._refuse(f"{reason}, and several ranks save between two windows")
        # From here on all ranks have the requests of each.
        if [record for record in self.world.synchronise("save") if record["requested"]] and not loop.ended:
            return self._refuse("a request of a step function is handled where ranks synchronise next")
        try:
            with self._run.watch.measure("save"):
                self.wait()
                self._save = self._begin(self._run_files, policy, values, is_requested)
                if policy.mode == "sync":
                    self.wait()
        except UnsaveableError as error:
            if not (error.path.startswith(("slots", "the slot ")) or compiled.state.objects.is_lazy()):
                raise
            rewrite = "write it again before it is read, so that it is not alive there"
            self.remedy = f"{error.hint}; or {rewrite}" if error.hint else rewrite
            return self._refuse(error.message)
        self._attempts = 0
        return True

    def _why_not_between_windows(self) -> str:
        """Why another number of ranks could not resume from this position, in words; empty if it could."""
        compiled, loop = self._run.compiled, self._run.loop
        if loop.ended:
            return ""
        if any(node.fields[field.name] for node, field in counters_of(compiled.program)):
            return "a window of gradients is open"
        return "a batch is in use" if compiled.has_batch(loop.position) else ""

    def complete_written(self) -> None:
        """Complete the present save, if it has been written."""
        # Several ranks know the outcome once rank 0 has passed it on at a synchronization.
        if (self.saves_over() if self._is_alone else self.world.saves_known) >= self._begun:
            self.wait()

    def saves_over(self) -> int:
        """How many saves are over, written or failed, as far as this rank knows."""
        return self._begun - (self._save is not None and not self._save.writing.done())

    @contextmanager
    def completed(self) -> Iterator[None]:
        """A context after which no save is unfinished. An interrupt abandons it: the run has to stop at once."""
        self._attempts = 0
        try:
            yield
        except KeyboardInterrupt:
            if self._save is not None:
                self._save.part.staged.abandoned.set()
            # Its thread may still read the buffers.
            self._save, self._staging = None, {}
            raise
        except BaseException as error:
            self.wait_briefly()
            try:
                self.wait()
            except CheckpointError as problem:
                error.add_note(f"a checkpoint could not be written either: {problem}")
            raise
        self.wait()
        self.world.synchronise("stop")

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, if there is one; raises its error, as for `save`."""
        if (save := self._save) is None:
            return
        with self._run.watch.measure("save"):
            self._await_outcome(save)
            error = save.writing.exception()  # if this is interrupted, it is still being written
        self._save = None
        if isinstance(error, CheckpointError):
            self._requests.failures += 1
            message = f"{error.message}; earlier checkpoints are kept"
            if save.policy.if_failed == "continue":
                self._notices(f"{message}, and the run continues")
                return
            remedy = "remove the cause, then resume; with checkpoint.if_failed = 'continue' a run trains on"
            raise SaveFailedError(message, error.hint or remedy) from error
        written = save.writing.result()
        files, weight = self._run_files, written.manifest.not_finite
        assert files is not None, "it was saved there"
        if save.is_requested and not weight:
            self.saved = written.name
        if weight and (files.latest is None or not files.latest.manifest.not_finite):
            kept = "checkpoints with finite weights are kept, whatever `keep` is, and a resume uses the newest of them"
            self._notices(f"{written.name}: `{weight}` is not finite{f'; {kept}' * (files.latest is not None)}")
        files.latest = written
        self._written()

    def wait_briefly(self) -> None:
        """Before leaving the other ranks, wait for the present save, but not long: ranks may be dead."""
        if self._save is not None and not self._is_alone:
            self._save.part.shorten_timeout()
            self._await_outcome(self._save)

    def _await_outcome(self, save: _Save) -> None:
        """Wait for the outcome of a save of several ranks, in slices: ranks may be threads of this process."""
        while not (self._is_alone or save.writing.done() or save.part.has_outcome(_SLICE_SECONDS)):
            pass

    def _begin(
        self, files: RunFiles, policy: SavePolicy, values: Mapping[str, float | None], is_requested: bool
    ) -> _Save:
        """Copy the state on all ranks, and begin to write the copy."""
        compiled, before = self._run.compiled, self.saved
        try:
            staged, facts = self.world.together(self._staged_now)
        finally:
            self.world.synchronised = False  # saving does not change where ranks synchronise next
        for line in facts.unknown:
            self._notices.once(line if NO_RESUME in line else f"a resume will not be exact: {line}")
        problem: CheckpointError | None = None  # all ranks learn of it as the outcome of the save
        try:
            facts = files.with_lengths(facts)
        except CheckpointError as error:
            problem = error
        if compiled.returning:  # the name of this checkpoint is not known yet
            facts = replace(facts, return_to="" if is_requested else before, returns=self.returns)
        state, retentions = compiled.state, self._requests.retentions
        snapshot, changed = state.snapshot, state.changed
        previous = files.latest.name if files.latest is not None else ""
        self._begun += 1
        key, equal = f"{self.run_name}/save/{self._begun}", set() if self._is_alone else state.must_be_equal()
        part = RankSave(self.world.ranks, key, staged, equal, files.checkpoints, previous)

        def write() -> SavedCheckpoint:
            """Write the checkpoint, in a separate thread, while training continues."""
            content = data_contents(snapshot, changed) if snapshot is not None else {}
            known = replace(facts, data_content=content)
            if part.ranks.rank:
                return part.follow(known)
            try:
                if problem is not None:
                    raise problem
                if weight := staged.weight_that_is_not_finite:
                    known = replace(known, not_finite=weight, return_to=before)
                new = files.new(known, retentions, values)
                with new_folder(new.path, staged.abandoned) as folder:
                    manifest = part.files(folder, new.manifest)
                    write_manifest(folder, manifest)
                written = files.keep(SavedCheckpoint(new.path, manifest), retentions)
            except BaseException as error:
                part.publish_outcome(error)
                raise
            part.publish_outcome(written)
            return written

        writing: Future[SavedCheckpoint] = Future()
        # Its thread does not keep the process alive.
        Thread(target=_complete, args=(writing, write), name="graphtrain-save", daemon=True).start()
        if self._is_alone:  # several ranks learn that it is over when they synchronise
            writing.add_done_callback(lambda _: self._requests.add("written"))
        return _Save(part, writing, policy, is_requested and bool(compiled.returning))

    def _staged_now(self) -> tuple[StagedState, Manifest]:
        """A copy of the state, in the buffers of the previous copy, and the facts about it."""
        state, facts = capture(self._run)
        stateful = self._run.compiled.state
        essential, weights = run_state.essential(stateful, state), stateful.objects.weights()
        return StagedState(essential, local_of(state, essential), self._staging, weights), facts

    def _refuse(self, why: str) -> bool:
        """Record why this is not a save point; if that lasts, it is reported once."""
        self.refusal = f"alive: {', '.join(sorted(self._run.alive))}; {why}"
        self._attempts += 1
        if self._attempts == _PATIENCE:
            self._notices.once(f"no save point in {_PATIENCE} transitions: {why}; training on to the next save point")
        return False


def _complete(future: Future[SavedCheckpoint], job: Callable[[], SavedCheckpoint]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # of any type: `result` raises it
        future.set_exception(error)
