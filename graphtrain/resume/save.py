"""Writing checkpoints of a run at its save points: copied at once, written beside the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event
from typing import final

from graphtrain.errors import CheckpointError, SaveFailedError
from graphtrain.graph.canonical import structural_hash
from graphtrain.metrics.recorder import Recorder
from graphtrain.metrics.values import OF_THE_ROW
from graphtrain.names import suggestion
from graphtrain.program.compiled_graph import Assembly
from graphtrain.program.loop import Loop
from graphtrain.program.save_policy import SavePolicy
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.resume.environment import Circumstances
from graphtrain.resume.hyper_parameters import SetUp
from graphtrain.resume.run_files import Keeper, Written
from graphtrain.storage.background import Background
from graphtrain.storage.digest import combined
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.state_files import PROGRESS_FILE, Split, split
from graphtrain.storage.tensor_files import Layout, Memory, checksums, copied

# A slot that cannot be saved in this many transitions never can be.
_MOST_ATTEMPTS = 10_000


@final
class Saver:
    """Saves where everything alive can be saved; elsewhere it says no, so that the next position is tried.

    One checkpoint is written at a time, from one copy of the state; a further save waits for it.

    Arguments:
        say: told of a save that failed where the run goes on nevertheless.
        wake: called from another thread when a checkpoint is written, or has failed to be.
    """

    def __init__(
        self,
        keeper: Keeper,
        recorder: Recorder,
        watch: Stopwatch,
        say: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self._keeper = keeper
        self._recorder = recorder
        self._watch = watch
        self._say = say
        self._wake = wake
        self._memory = Memory()
        self._writing: Background[Written] | None = None
        self._given_up = Event()
        self._policy = SavePolicy()
        self._attempts = 0

    def check(self, assembly: Assembly, loop: Loop) -> None:
        """Find out now what could not be saved later.

        Raises:
            UnsaveableError: something has no plain form; its path is named.
        """
        for tensors in split(assembly.state.capture(assembly.alive(loop.position, loop.ended))).files:
            Layout.of(tensors)

    def save(self, assembly: Assembly, loop: Loop, here: Circumstances, set_up: SetUp, policy: SavePolicy) -> bool:
        """Save at this position; False where it is no save point. The checkpoint is there when `settle` says so.

        Raises:
            SaveFailedError: this save or the one before it failed, and the policy is to stop.
            CheckpointError: something can never be saved, or no save point was reached for long.
        """
        if not assembly.is_save_point(loop.position, loop.ended):
            return self._not_here(assembly, loop, "it is declared transient")
        try:
            with self._watch.measure("save"):
                self.wait()
                self._policy = policy
                self._begin(assembly, loop, here, set_up)
                if policy.mode == "sync":
                    self.wait()
        except UnsaveableError as error:
            if error.path.startswith("slots"):
                return self._not_here(assembly, loop, error.message)
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
            self._keeper.wrote(self._writing.result())
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
        self._given_up, self._writing, self._memory = Event(), None, Memory()

    def _begin(self, assembly: Assembly, loop: Loop, here: Circumstances, set_up: SetUp) -> None:
        state = assembly.state
        tree = state.capture(assembly.alive(loop.position, loop.ended))
        whole = split(tree)
        essential = whole.with_section("progress", state.essential(tree)["progress"])
        step, epoch = assembly.whereabouts.step_and_epoch()
        manifest = {
            **here.as_plain(),
            "graph": assembly.graph.to_json(),
            "graph_hash": structural_hash(assembly.graph),
            "position": assembly.path(loop.position),
            "ended": loop.ended,
            "step": step,
            "epoch": epoch,
            "metrics": self._recorder.recorded_at(step),
            "seconds": self._watch.seconds(),
            "hyper_parameters": set_up.made,
            "hyper_parameters_in_force": set_up.values,
        }
        best = self._policy.retention.best
        if loop.ended and best is not None and best not in self._recorder.latest:
            self._say(
                f"no checkpoint was kept as the best: no row of metrics has `{best}`" + _known(self._recorder, best)
            )
        try:
            job = self._keeper.saving(
                {PROGRESS_FILE: whole.packed, **copied(whole.files, self._memory)},
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
        self._say(f"{error.message}; earlier checkpoints are kept, and the run goes on")

    def _not_here(self, assembly: Assembly, loop: Loop, reason: str) -> bool:
        self._attempts += 1
        if self._attempts >= _MOST_ATTEMPTS:
            names = ", ".join(sorted(assembly.alive_names(loop.position, loop.ended)))
            raise CheckpointError(f"no save point was reached in {_MOST_ATTEMPTS} transitions; alive: {names}", reason)
        return False


def _known(recorder: Recorder, name: str) -> str:
    nearest = suggestion(name, [one for one in recorder.latest if one not in OF_THE_ROW])
    return f"; {nearest}" if nearest else ""


def _digest_of(essential: Split, whole: Split) -> Callable[[Mapping[str, str]], str]:
    """The digest of what is essential, once the files of the whole have been read through for their checksums."""
    packed = essential.packed
    own = [tensors for name, tensors in essential.tensors.items() if tensors is not whole.tensors.get(name)]
    sums = checksums([tensors for tensors in own if tensors.named])  # small; and the run will change them
    shared = {tensors.file for tensors in essential.files} - {tensors.file for tensors in own}

    def digest(written: Mapping[str, str]) -> str:
        from_files = {name: one for name, one in written.items() if name.rpartition(".")[0] in shared}
        return combined(packed, {**from_files, **sums})

    return digest
