"""Moving a run to another graph in memory: position and progress are kept."""

from __future__ import annotations

from dataclasses import replace

from graphtrain.graph.renaming import Renaming
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop
from graphtrain.program.run_state import OF_NODES, Exemptions, RunState
from graphtrain.resume.graph_change import GraphChange
from graphtrain.resume.restore import placed


def move(
    state: RunState, former: CompiledGraph, loop: Loop, compiled: CompiledGraph, renaming: Renaming
) -> tuple[int, list[str]]:
    """Restore into a graph what the nodes of a former one held: the next position, and messages.

    Arguments:
        state: what they held.
        loop: where the run is in the former graph.

    Raises:
        UsageError: the new graph has no place for it.
    """
    change = GraphChange(former.graph, renaming, renaming.graph(former.graph).diff(compiled.graph))
    state, position = placed(change, state.sections(), former.path(loop.position), loop.ended, compiled)
    # Nodes that keep their object hold their progress in it.
    kept_paths = {bound.path for bound in compiled.kept}
    progress = {path: fields for path, fields in state.progress.items() if path not in kept_paths}
    compiled.state.restore(replace(state, progress=progress), Exemptions(replaced=change.replaced), OF_NODES)
    former.release(compiled.kept)  # before the new ones open the same data
    compiled.resume_at(position, renaming.path(former.program.clocked.prefix.rstrip("/")))
    return position, compiled.run_clock.mixed_windows(former.graph, renaming)
