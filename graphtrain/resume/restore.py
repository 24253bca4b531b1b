"""Capture the content of a checkpoint, and restore it with a report of what has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from graphtrain.errors import CheckpointError, GraphtrainError, UsageError
from graphtrain.graph import EditableGraph
from graphtrain.graph.difference import Difference
from graphtrain.graph.elements import nodes_of
from graphtrain.graph.renaming import Renaming
from graphtrain.plan.scope import resource_copies
from graphtrain.printable import one_line
from graphtrain.program import run_state
from graphtrain.program.own_attributes import changed_attributes, own_attributes
from graphtrain.program.run_state import SECTIONS, Exemptions, RunState, Section
from graphtrain.resume.environment import torch_settings
from graphtrain.resume.hyper_parameters import SettingChange
from graphtrain.resume.session import Session, other_kinds
from graphtrain.state.codec import MALFORMED
from graphtrain.state.generators import fitted_random
from graphtrain.state.reachable import is_within
from graphtrain.state.snapshot import compared_data
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.named import graph_of

_MOST_DIFFERENCES = 8  # of the graph, in one line


def graph_change(checkpoint: Checkpoint, now: EditableGraph, rename: Mapping[str, str]) -> tuple[Renaming, Difference]:
    """How nodes were renamed since a checkpoint, and how the present graph differs from the renamed saved one.

    A changed graph can be resumed if it has the saved position, and if all slots that are read from there were saved.
    Nodes take the progress that was saved under their present or former names; if the fields of the kind differ, those
    that match. A new trigger, or one with another unit, counts from here. Any other counts from its last firing: if its
    shorter interval has already passed, it is due at once.
    """
    former = graph_of(checkpoint.path, checkpoint.manifest)
    paths = set(nodes_of(former))
    # If the command of a resume is repeated, the checkpoint may already have the renamed graph.
    renaming = Renaming({old: new for old, new in rename.items() if old in paths or new not in paths}, former, now)
    return renaming, renaming.graph(former).diff(now)


def capture(run: Session) -> tuple[RunState, Manifest]:
    """The content of a checkpoint at this moment: the state, which shares its tensors with the run, and the facts."""
    compiled, loop, setup = run.compiled, run.loop, run.environment
    state = run_state.capture(compiled.state, run.alive)
    place = compiled.run_clock.of_row()
    attributes = own_attributes(compiled.state)
    run.attributes = run.attributes or attributes
    graph, graph_hash = compiled.saved_graph
    facts = Manifest(
        **(vars(setup) | {"environment": {**setup.environment, **torch_settings()}} if setup is not None else {}),
        graph=graph,
        graph_hash=graph_hash,
        position=run.path,
        ended=loop.ended,
        step=int(place["step"]),
        epoch=place["epoch"],
        **compiled.run_clock.nested(),
        window_ranks=compiled.program.window_ranks,
        ranks=run.world.world_size,
        metrics=compiled.state.recorder.recorded_now(),
        seconds=run.watch.seconds(),
        unknown=[*compiled.state.unknown, *changed_attributes(compiled.program, run.attributes, attributes)],
        attributes=attributes,
        inexact_since=run.inexact_since,
        not_state=sorted(compiled.state.left_out),
        hyper_parameters=run.hyper_parameters.values,
    )
    return state, facts


@dataclass(frozen=True)
class ResumeOptions:
    """How a run is to be resumed, as for `Trainer.run`."""

    resume: str | Path = "auto"
    from_setup: str | Iterable[str] = ()
    from_saved: bool = False
    rename: Mapping[str, str] | None = None
    kept: Section = field(default_factory=dict)  # path of a node -> progress that replaces the saved one


class Restored(NamedTuple):
    """What is reported about a restored run."""

    decided: bool  # True if the user has chosen hyper-parameters or renamed nodes, which a save makes permanent
    is_other_graph: bool  # True if the graph differs from the saved one
    changes: list[str]  # in words: those of the graph, and of hyper-parameters with the decisions
    lost: list[str]  # in words: state that differs from what was saved
    sampled: str  # in words: the data of which only a sample was compared
    taken: list[str]  # the resources of which hyper-parameters were taken from `setup`


def restore_checkpoint(checkpoint: Checkpoint, run: Session, options: ResumeOptions) -> Restored:
    """Restore the state of a checkpoint: the inverse of `capture`.

    Raises:
        UsageError: the graph does not have the position, or hyper-parameters differ and the user has not decided.
        CheckpointError: a resource does not fit the saved state, or the loaded state is not the saved one.
    """
    compiled, manifest = run.compiled, checkpoint.manifest
    # Everything that can be refused is refused before an object is changed.
    renaming, difference = graph_change(checkpoint, compiled.graph, options.rename or {})
    checkpoint, state, fitted = _fitted(checkpoint, run, renaming)
    differences, chosen = _decided(run, checkpoint, options, difference)

    # Copies of resources that no node uses any more.
    copies = resource_copies(difference.before, compiled.program.resources).keys() & state["resources"].keys()
    # The saved state of a resource of another class is not loaded either.
    as_set_up = copies | {name.removesuffix(".class") for name in chosen if name.endswith(".class")}
    changed = {path: part for path, part in state["reachable"].items() if not is_within(path, copies)}
    state = {**state, "reachable": changed, "progress": {**state["progress"], **options.kept}}
    place = renaming.path(manifest.position), manifest.ended, renaming.path(manifest.clock_of)
    run.watch.load(manifest.seconds)  # first: nodes that measure time read it when they are set up
    try:
        not_restored = run.enter(state, *place, Exemptions(as_set_up, other_kinds(difference)))
        reported = run.environment.changed_data(manifest) if run.environment is not None else []
        other_data, sampled = compared_data(manifest.data_content, compiled.state.snapshot, changed, reported)
    except MALFORMED as error:
        if isinstance(error, GraphtrainError):
            raise
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        raise CheckpointError(f"{checkpoint.path}: its state cannot be restored ({reason})") from error

    # Before the hyper-parameters are applied: those taken from `setup` are not what was saved.
    left_out = [
        f"not_state: {'+' if path in compiled.state.left_out else '-'} {path}"
        for path in sorted({*manifest.not_state} ^ {*compiled.state.left_out})
    ]
    lost = [*compiled.state.data_state.differences(), *other_data]
    lost = lost or ([] if left_out else compiled.state.differs_from(changed))
    before, around = manifest.attributes, compiled.program.nodes[run.loop.position].scope.around
    if not (difference.changes or renaming.names):
        lost += changed_attributes(compiled.program, before, own_attributes(compiled.state), around)
    # The digests can only be equal if everything was saved and restored.
    if not any((as_set_up, not_restored, left_out, manifest.unknown, renaming.names, difference.changes)):
        is_whole = not (fitted or options.kept) and manifest.graph_hash == compiled.saved_graph[1]
        _expect_digest(checkpoint, run, state, is_whole=is_whole)
    applied = run.hyper_parameters.apply(chosen, manifest.hyper_parameters)
    decided = [f"{each} ({'taken' if each.name in chosen else 'kept as saved'})" for each in differences]
    named = [each.resource for each in differences if each.name in chosen]
    decided += [f"settings of {name} as set up" for name in applied if name not in named]
    left = sorted(set(state["progress"]) - set(compiled.program.by_path))
    listed = [str(change) for change in difference.changes]
    more = len(listed) - _MOST_DIFFERENCES
    changes = [
        *(f"node {old} renamed {new}" for old, new in renaming.names.items()),
        *listed[:_MOST_DIFFERENCES],
        *([f"{more} more differences of the graph: graphtrain diff"] if more > 0 else []),
        *([f"progress of {', '.join(left)} left out"] if left else []),
        *(f"{name} left out" for name in sorted(copies)),
        *left_out,
        *not_restored,
        *decided,
        *fitted,
    ]
    return Restored(bool(decided or renaming.names), bool(difference), changes, lost, sampled, named)


def _fitted(checkpoint: Checkpoint, run: Session, renaming: Renaming) -> tuple[Checkpoint, RunState, list[str]]:
    """Adapt a checkpoint and its state to this graph, number of ranks, and devices; what that changes, in words."""
    compiled, manifest, world, words = run.compiled, checkpoint.manifest, run.world, []
    compiled.program.window_ranks = manifest.window_ranks
    if checkpoint.manifest.ranks != world.world_size:
        from graphtrain.resume.rank_resume import resized  # which few runs need

        checkpoint, resizing = resized(checkpoint, compiled, world.ranks, run.seed, renaming)
        words.append(resizing)
    if manifest.sharded or world.sharded:
        from graphtrain.resume.sharded import assembled  # which few runs need

        checkpoint, reshaped = assembled(checkpoint, compiled.state.objects.modules.values(), world.rank)
        words.append(reshaped)
    state = renaming.sections(checkpoint.sections)
    state["random"], of_devices = fitted_random(state["random"])
    return checkpoint, state, [*filter(None, [*words, of_devices])]


def _decided(
    run: Session, checkpoint: Checkpoint, options: ResumeOptions, difference: Difference
) -> tuple[list[SettingChange], set[str]]:
    """The hyper-parameters that differ, and the names of those whose new values the user has chosen."""
    now, manifest = run.hyper_parameters, checkpoint.manifest
    differences = now.differences(manifest.hyper_parameters, checkpoint.sections["resources"])
    texts = options.from_setup
    names = texts.split(",") if isinstance(texts, str) else texts
    chosen = now.chosen([name.strip() for name in names if name.strip()], differences)
    undecided = [difference for difference in differences if difference.name not in chosen]
    if undecided and not options.from_saved:
        names = ",".join(now.names_of(undecided))
        ended = "the run is finished, and " if manifest.ended else ""
        lines = "".join(f"\n    {change}" for change in undecided)
        causes = [*map(str, difference.changes), *(run.environment.changes(manifest) if run.environment else ())]
        if causes and "." not in names:  # a schedule, which is often made for the length of the run
            lines += f"\n    which may follow from: {one_line(', '.join(causes), 200)}"
        can_keep = not any(change.cannot_be_kept for change in undecided)
        hint = (
            f"--from-setup {names} takes the new values{', --from-saved keeps the old ones' * can_keep}; in Python: "
            f'run(from_setup="{names}"){" or run(from_saved=True)" * can_keep}; or begin another run, with another '
            "--run-dir"
        )
        if can_keep and (began := manifest.window_ranks) != run.world.world_size:
            keeps = "keeps the size of its windows: --from-saved keeps the values for it; or run(from_saved=True)"
            hint = f"the run began with another number of processes, {began}, and {keeps}"
        raise UsageError(f"{ended}the hyper-parameters set up now differ from the saved ones:{lines}", hint)
    if change := next((change for change in undecided if change.cannot_be_kept), None):
        name = now.names_of([change])[0]
        raise UsageError(f"the saved state of `{name}` cannot be used: {change}", f"--from-setup {name} takes the new")
    return differences, chosen


def _expect_digest(checkpoint: Checkpoint, run: Session, state: RunState, *, is_whole: bool) -> None:
    """Raise a CheckpointError unless the loaded state equals the saved one, bit for bit."""
    objects = run.compiled.state
    # If nodes and slots have new names, those in progress and slots, and references to them, differ.
    incomparable = () if is_whole else ("progress", "slots")
    sections = [name for name in SECTIONS if name in checkpoint.sections and name not in incomparable]
    saved = checkpoint.digest if is_whole else run_state.digest(objects, state, sections)
    loaded = {**run_state.capture(objects, run.alive, sections), "reachable": state["reachable"]}
    if (digest := run_state.digest(objects, loaded, sections)) != saved:
        raise CheckpointError(
            f"{checkpoint.path}: the loaded state is not the saved state (digest {digest[:12]}, not {saved[:12]})",
            "a resource has state that its load_state_dict does not restore exactly",
        )


def repeated(now: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """What is trained again because it came after the checkpoint, in words; empty if the status does not show it."""
    if "trained" not in status:
        return ""
    if any(status.get(name) != now[name] for name in now.keys() - {"trained"}):
        return "repeating what came after it"  # each training of a body has its own counts
    lost = max(int(status["trained"][0]) - now["trained"][0], 0)
    about = "about " * (status.get("state") in ("running", "stopping"))  # killed after its last status
    return f"repeating {about}{lost} {'batch' if lost == 1 else 'batches'}" if lost or about else "repeating nothing"
