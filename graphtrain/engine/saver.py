"""Writing checkpoints of a run at its save points."""

from __future__ import annotations

from typing import final

from graphtrain.engine.assembly import Assembly
from graphtrain.engine.circumstances import Circumstances
from graphtrain.engine.hyper_parameters import SetUp
from graphtrain.engine.keeper import Keeper
from graphtrain.engine.loop import Loop
from graphtrain.engine.stopwatch import Stopwatch
from graphtrain.errors import CheckpointError
from graphtrain.storage.plain import UnsaveableError
from graphtrain.storage.tree import tree_digest
from graphtrain.text.canonical import structural_hash

# A slot that cannot be saved in this many transitions never can be.
_MOST_ATTEMPTS = 10_000


@final
class Saver:
    """Saves where everything alive can be saved; elsewhere it says no, so that the next position is tried."""

    def __init__(self, keeper: Keeper, watch: Stopwatch) -> None:
        self._keeper = keeper
        self._watch = watch
        self._attempts = 0

    def save(self, assembly: Assembly, loop: Loop, here: Circumstances, set_up: SetUp, keep: int) -> bool:
        """Save at this position; False where it is no save point.

        Raises:
            CheckpointError: the disk refuses, something can never be saved, or no save point was reached for long.
        """
        if not assembly.is_save_point(loop.position, loop.ended):
            return self._not_here(assembly, loop, "it is declared transient")
        try:
            with self._watch.measure("save"):
                self._write(assembly, loop, here, set_up, keep)
        except UnsaveableError as error:
            if error.path.startswith("slots"):
                return self._not_here(assembly, loop, error.message)
            raise
        self._attempts = 0
        return True

    def _write(self, assembly: Assembly, loop: Loop, here: Circumstances, set_up: SetUp, keep: int) -> None:
        state = assembly.state
        tree = state.capture(assembly.alive(loop.position, loop.ended))
        step, epoch = assembly.whereabouts.step_and_epoch()
        manifest = {
            **here.as_plain(),
            "graph": assembly.graph.to_json(),
            "graph_hash": structural_hash(assembly.graph),
            "position": assembly.path(loop.position),
            "ended": loop.ended,
            "digest": tree_digest(state.essential(tree)),
            "step": step,
            "epoch": epoch,
            "seconds": self._watch.seconds(),
            "hyper_parameters": set_up.made,
            "hyper_parameters_in_force": set_up.values,
        }
        self._keeper.save(tree, manifest, keep=keep)

    def _not_here(self, assembly: Assembly, loop: Loop, reason: str) -> bool:
        self._attempts += 1
        if self._attempts >= _MOST_ATTEMPTS:
            names = ", ".join(sorted(assembly.alive_names(loop.position, loop.ended)))
            raise CheckpointError(f"no save point was reached in {_MOST_ATTEMPTS} transitions; alive: {names}", reason)
        return False
