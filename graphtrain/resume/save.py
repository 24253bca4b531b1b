"""Writing checkpoints of a run at its save points: copied at once, written beside the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event
from typing import final

from graphtrain.errors import CheckpointError, SaveFailedError
from graphtrain.graph.canonical import structural_hash
from graphtrain.metrics.recorder import Recorder
from graphtrain.metrics.values import ROW_POSITION
from graphtrain.names import suggestion
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop
from graphtrain.program.save_policy import SavePolicy
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.resume.environment import RunEnvironment
from graphtrain.resume.hyper_parameters import HyperParameters
from graphtrain.resume.run_files import RunFiles, Written
from graphtrain.storage.background import Background
from graphtrain.storage.digest import combined
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.state_files import PROGRESS_FILE, StateFiles, split
from graphtrain.storage.tensor_files import Layout, StagingBuffers, checksums, stage

# A slot that cannot be saved in this many transitions never can be.
_MOST_ATTEMPTS = 10_000


@final
class CheckpointWriter:
    """Saves where everything alive can be saved; elsewhere it says no, so that the next position is tried.

    One checkpoint is written at a time, from one copy of the state; a further save waits for it.

    Arguments:
        notify: told of a save that failed where the run goes on nevertheless.
        wake: called from another thread when a checkpoint is written, or has failed to be.
    """

    def __init__(
        self,
        run_files: RunFiles,
        recorder: Recorder,
        watch: Stopwatch,
        notify: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self._run_files = run_files
        self._recorder = recorder
        self._watch = watch
        self._notify = notify
        self._wake = wake
        self._memory = StagingBuffers()
        self._writing: Background[Written] | None = None
        self._given_up = Event()
        self._policy = SavePolicy()
        self._attempts = 0

    def check(self, compiled: CompiledGraph, loop: Loop) -> None:
        """Find out now what could not be saved later.

        Raises:
            UnsaveableError: something has no plain form; its path is named.
        """
        for tensors in split(compiled.state.capture(compiled.alive(loop.position, loop.ended))).files:
            Layout.of(tensors)

    def save(
        self,
        compiled: CompiledGraph,
        loop: Loop,
        here: RunEnvironment,
        hyper_parameters: HyperParameters,
        policy: SavePolicy,
    ) -> bool:
        """Save at this position; False where it is no save point. The checkpoint is there when `settle` says so.

        Raises:
            SaveFailedError: this save or the one before it failed, and the policy is to stop.
            CheckpointError: something can never be saved, or no save point was reached for long.
        """
        if not compiled.is_save_point(loop.position, loop.ended):
            return self._not_here(compiled, loop, "it is declared transient")
        try:
            with self._watch.measure("save"):
                self.wait()
                self._policy = policy
                self._begin(compiled, loop, here, hyper_parameters)
                if policy.mode == "sync":
                    self.wait()
        except UnsaveableError as error:
            if error.path.startswith("slots"):
                return self._not_here(compiled, loop, error.message)
            raise
        self._attempts = 0
        return True

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being written."""
        return self._writing is not None and not self._writing.is_over

    def settle(self) -> bool:
        """True if a checkpoint was written since this was last asked.

        Raises:
            SaveFailedError: it could not be, and the policy is to stop.
        """
        return self._writing is not None and self._writing.is_over and self.wait()

    def wait(self) -> bool:
        """Wait for the checkpoint that is being written; True if there was one and it is on the disk now.

        Raises:
            SaveFailedError: it could not be written, and the policy is to stop.
        """
        if self._writing is None:
            return False
        try:
            self._run_files.wrote(self._writing.result())
        except CheckpointError as error:
            self._writing = None
            self._failed(error)
            return False
        except KeyboardInterrupt:
            raise  # it is still being written
        except BaseException:
            self._writing = None
            raise
        self._writing = None
        return True

    def give_up(self) -> None:
        """See to it that what is being written does not become a checkpoint, nor keeps anybody waiting."""
        self._given_up.set()
        self._given_up, self._writing, self._memory = Event(), None, StagingBuffers()

    def _begin(
        self, compiled: CompiledGraph, loop: Loop, here: RunEnvironment, hyper_parameters: HyperParameters
    ) -> None:
        state = compiled.state
        tree = state.capture(compiled.alive(loop.position, loop.ended))
        whole = split(tree)
        essential = whole.with_section("progress", state.essential(tree)["progress"])
        step, epoch = compiled.run_clock.step_and_epoch()
        manifest = {
            **here.as_plain(),
            "graph": compiled.graph.to_json(),
            "graph_hash": structural_hash(compiled.graph),
            "position": compiled.path(loop.position),
            "ended": loop.ended,
            "step": step,
            "epoch": epoch,
            "metrics": self._recorder.recorded_at(step),
            "seconds": self._watch.seconds(),
            "hyper_parameters": hyper_parameters.made,
            "hyper_parameters_in_force": hyper_parameters.values,
        }
        best = self._policy.retention.best
        if loop.ended and best is not None and best not in self._recorder.latest:
            self._notify(
                f"no checkpoint was kept as the best: no row of metrics has `{best}`" + _known(self._recorder, best)
            )
        try:
            job = self._run_files.saving(
                {PROGRESS_FILE: whole.packed, **stage(whole.files, self._memory)},
                manifest,
                _digest_of(essential, whole),
                self._policy.retention,
                self._given_up,
            )
        except CheckpointError as error:  # the metrics do not reach the disk
            self._failed(error)
            return
        self._writing = Background(job, self._wake)

    def _failed(self, error: CheckpointError) -> None:
        if self._policy.if_failed == "stop":
            raise SaveFailedError(
                f"{error.message}; earlier checkpoints are kept",
                error.hint
                or "mend what refused it, and go on; checkpoint.if_failed = 'continue' goes on until the end",
            ) from error
        self._notify(f"{error.message}; earlier checkpoints are kept, and the run goes on")

    def _not_here(self, compiled: CompiledGraph, loop: Loop, reason: str) -> bool:
        self._attempts += 1
        if self._attempts >= _MOST_ATTEMPTS:
            names = ", ".join(sorted(compiled.alive_names(loop.position, loop.ended)))
            raise CheckpointError(f"no save point was reached in {_MOST_ATTEMPTS} transitions; alive: {names}", reason)
        return False


def _known(recorder: Recorder, name: str) -> str:
    nearest = suggestion(name, [one for one in recorder.latest if one not in ROW_POSITION])
    return f"; {nearest}" if nearest else ""


def _digest_of(essential: StateFiles, whole: StateFiles) -> Callable[[Mapping[str, str]], str]:
    """The digest of what is essential, once the files of the whole have been read through for their checksums."""
    packed = essential.packed
    own = [tensors for name, tensors in essential.tensors.items() if tensors is not whole.tensors.get(name)]
    sums = checksums([tensors for tensors in own if tensors.named])  # small; and the run will change them
    shared = {tensors.file for tensors in essential.files} - {tensors.file for tensors in own}

    def digest(written: Mapping[str, str]) -> str:
        from_files = {name: one for name, one in written.items() if name.rpartition(".")[0] in shared}
        return combined(packed, {**from_files, **sums})

    return digest
