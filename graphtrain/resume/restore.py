"""Going on from a checkpoint: the state is put back, what has changed is said, what is undecided is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.graph.renaming import lost_position_hint
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.resume.graph_change import GraphChange
from graphtrain.resume.hyper_parameters import HyperParameters, difference_error
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.state_files import tree_digest


@dataclass(frozen=True)
class Resumption:
    """How a run is to be gone on with.

    Attributes:
        resume: "auto", "never", or the name or path of a checkpoint.
        from_setup: hyper-parameters that are taken as they are set up now: ``("optimizer.lr", "scheduler")``.
        from_saved: True keeps all others as they were saved.
        rename: paths of nodes in the saved graph -> their paths now.
    """

    resume: str | Path = "auto"
    from_setup: tuple[str, ...] = ()
    from_saved: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        resume: str | Path,
        from_setup: str | Iterable[str],
        from_saved: bool,
        rename: Mapping[str, str] | None = None,
    ) -> Resumption:
        """From what a person gives: names as a list, or as one text with commas."""
        names = from_setup.split(",") if isinstance(from_setup, str) else from_setup
        return cls(resume, tuple(one.strip() for one in names if one.strip()), from_saved, dict(rename or {}))

    @property
    def named(self) -> bool:
        """True if a checkpoint is named."""
        return self.resume not in ("auto", "never")


@dataclass(frozen=True)
class Restored:
    """Where a run stands that was put back.

    Attributes:
        decided: True if something was decided for this resume, so that the next one need not be told again: which
            hyper-parameters to take, or which node is which.
        changes: of the graph and of hyper-parameters, these with what was decided; in words.
        aside: what differs in the graph and changes nothing, in words; empty for nothing.
        below: what is said after that, a line each.
    """

    position: int
    ended: bool
    decided: bool
    changes: list[str]
    aside: str = ""
    below: tuple[str, ...] = ()


def restore(
    checkpoint: Checkpoint, compiled: CompiledGraph, hyper_parameters: HyperParameters, how: Resumption
) -> Restored:
    """Put the state of a checkpoint back.

    Into a graph that is not the saved one: nodes take the progress that is saved under their names, or under the names
    that `how.rename` gives; of a kind whose fields are others, those that fit. A new node begins with its own progress.
    A new trigger, and one whose unit is another, counts from here; one whose unit has stayed counts from its last
    firing, so that a shorter interval which has passed meanwhile is due at once.

    Raises:
        UsageError: the graph has no place for it, or hyper-parameters differ and nobody said which to take.
        CheckpointError: a resource does not fit, or what was loaded is not what was saved.
    """
    manifest = checkpoint.manifest
    ended = bool(manifest["ended"])
    change = GraphChange.of(checkpoint, compiled.graph, how.rename)
    tree = change.renaming.tree(checkpoint.tree)
    path = change.renaming.path(manifest["position"])
    hint = lost_position_hint(path, change.difference, compiled.program.by_path)
    position = compiled.locate(path, tree["slots"], ended, hint)
    saved = manifest.get("hyper_parameters")
    in_force = manifest.get("hyper_parameters_in_force", saved)
    differences = hyper_parameters.differences(saved, in_force)
    chosen = hyper_parameters.chosen(how.from_setup, saved, in_force)
    undecided = [one for one in differences if one.name not in chosen]
    if undecided and not how.from_saved:
        raise difference_error(undecided)
    if lost := [one for one in undecided if hyper_parameters.cannot_keep(one)]:
        name = lost[0].resource if lost[0].field == "class" else lost[0].name
        raise UsageError(f"the saved state of `{name}` cannot be used: {lost[0]}", f"--from-setup {name}")
    anew = hyper_parameters.reinitialised(chosen)
    compiled.state.restore_objects(tree, anew)
    misfits = compiled.state.restore_progress(tree, change.replaced)
    compiled.go_on(position)
    compiled.state.restore_generators(tree)
    if not anew and not misfits and not change.renaming.names and not change.difference.matters:
        _expect_digest(checkpoint, compiled, position, ended)
    notes = hyper_parameters.apply(chosen, in_force)
    decided = [f"{one} ({'taken' if one.name in chosen else 'kept as saved'})" for one in differences]
    decided += [f"{name} (taken)" for name in sorted(chosen - {one.name for one in differences})]
    gone = sorted(set(tree["progress"]) - set(compiled.program.by_path))
    left = [f"progress of {', '.join(gone)} left out"] if gone else []
    return Restored(
        position,
        ended,
        bool(differences or chosen or change.renaming.names),
        [*change.words(), *left, *(misfits or ()), *decided, *notes],
        change.aside(),
        (*change.below(), *compiled.run_clock.mixed_windows(change.former, change.renaming)),
    )


def repeated(trained: tuple[int, float], status: Mapping[str, Any]) -> str:
    """What was trained after the checkpoint and is lost, as far as the status of that process told.

    A process that was killed has told less than it did.

    >>> repeated((100, 7.5), {"trained": [140, 48.2]}), repeated((140, 48.2), {"trained": [140, 48.2]})
    ('repeating 40 batches, 41 s', 'repeating nothing')
    >>> repeated((100, 7.5), {"trained": [140, 48.2], "state": "running"})
    'repeating 40 batches, 41 s, or a little more'
    """
    try:
        batches, seconds = status["trained"]
        lost, lost_seconds = int(batches) - trained[0], float(seconds) - trained[1]
    except (KeyError, TypeError, ValueError):
        return ""
    killed = status.get("state") in ("running", "stopping")
    if lost <= 0:
        return "repeating what came after it" if killed else "repeating nothing"
    more = ", or a little more" if killed else ""
    return f"repeating {lost} {'batch' if lost == 1 else 'batches'}, {max(lost_seconds, 0):.0f} s{more}"


def _expect_digest(checkpoint: Checkpoint, compiled: CompiledGraph, position: int, ended: bool) -> None:
    """What was loaded must be what was saved, to the last bit."""
    state = compiled.state
    found = tree_digest(state.essential(state.capture(compiled.alive(position, ended))))
    saved = checkpoint.manifest["digest"]
    if found != saved:
        raise CheckpointError(
            f"{checkpoint.path}: the state loaded is not the state saved (digest {found[:12]}, not {saved[:12]})",
            "a resource has state that its state_dict does not load back exactly",
        )
