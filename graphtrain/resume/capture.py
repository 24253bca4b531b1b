"""What a checkpoint holds: the state of a run at one position, and the facts about it. `restore` is its mirror."""

from __future__ import annotations

from graphtrain.graph.canonical import saved_json, structural_hash
from graphtrain.program.clock import Moment
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop
from graphtrain.program.run_state import RunState
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.resume.environment import RunEnvironment
from graphtrain.resume.hyper_parameters import HyperParameters
from graphtrain.storage.manifest import Manifest


class Resumable:
    """All of a run that is saved, and that a resume puts back."""

    compiled: CompiledGraph
    loop: Loop
    watch: Stopwatch
    hyper_parameters: HyperParameters
    environment: RunEnvironment | None  # None where nothing is written, and nothing was read

    @property
    def alive(self) -> set[int]:
        """The slots that will be read after the present position."""
        return self.compiled.alive(self.loop.position, self.loop.ended)

    @property
    def moment(self) -> Moment | None:
        """How far the run is; None where the clock counts nothing."""
        return self.compiled.run_clock.moment(self.loop.position)


def capture(run: Resumable) -> tuple[RunState, Manifest]:
    """The content of a checkpoint made now: the state, sharing its tensors with the run, and what is known of it."""
    compiled, loop = run.compiled, run.loop
    state = compiled.state.capture(run.alive)
    step, epoch = compiled.run_clock.step_and_epoch()
    facts = Manifest(
        **(run.environment.as_plain() if run.environment is not None else {}),
        graph=saved_json(compiled.graph),
        graph_hash=structural_hash(compiled.graph),
        position=compiled.path(loop.position),
        ended=loop.ended,
        step=step,
        epoch=epoch,
        **compiled.run_clock.nested(),
        window_ranks=compiled.program.window_ranks,
        metrics=compiled.state.recorder.recorded_now(),
        seconds=run.watch.seconds(),
        unknown=compiled.state.unknown,
        aliases=compiled.state.aliases,
        not_state=sorted(compiled.state.left_out),
        hyper_parameters=run.hyper_parameters.made,
        hyper_parameters_in_force=run.hyper_parameters.values,
    )
    return state, facts
