"""A run without files, screen and signals: a graph bound to resources, the position in it, and entering a state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, final

import torch

from graphtrain.data.fingerprint import fingerprints
from graphtrain.data.loader import derived_seed
from graphtrain.data.state import DataState
from graphtrain.graph import EditableGraph
from graphtrain.graph.difference import Difference
from graphtrain.graph.renaming import Renaming
from graphtrain.plan.scope import resource_copies
from graphtrain.printable import Notices
from graphtrain.program import run_state
from graphtrain.program.agreement import Agreement
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop
from graphtrain.program.requests import Requests, SavePolicy
from graphtrain.program.resources import SHARDED, STEP_FUNCTIONS, prepare, resolve_device, with_copies
from graphtrain.program.run_state import AFTER_SETUP, EVERYTHING, OF_NODES, SECTIONS, Exemptions, RunState
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.visits import handle_request
from graphtrain.ranks import Ranks
from graphtrain.report.recorder import Recorder
from graphtrain.resume.environment import RunEnvironment, run_environment
from graphtrain.resume.equal_ranks import prepare_models, require_equal
from graphtrain.resume.hyper_parameters import HyperParameters
from graphtrain.resume.setup_change import setup_hashes
from graphtrain.state.generators import restore_random, seed_everything, seed_the_rest, torch_seed
from graphtrain.storage.checkpoint import Checkpoint


def other_kinds(difference: Difference) -> list[str]:
    """The paths of nodes whose kind has changed."""
    return [change.path.partition(".")[0] for change in difference.changes if change.category == "kind"]


@final
class Session:
    """A graph bound to resources, with a position in it.

    It begins at the start of the graph, or enters a state: that of a checkpoint, or that of another graph (`rewire`).

    Arguments:
        graph: a checked graph.
        seed, device, deterministic, about, not_state: as for `Trainer`.
        saving: True if checkpoints will be written.

    Attributes:
        requests: what signals, nodes and other threads request of the loop.
        world: the ranks of the run, possibly only this one.
        resources: the present ones, by name.
        setup: hashes of what `setup` created, by path.
        environment: None if no checkpoint is written or read.
        attributes: those of nodes when the run began, as hashes; None before.
        inexact_since: the name of the first checkpoint from which a resume was not exact; empty if all were.
    """

    environment: RunEnvironment | None = None
    attributes: Mapping[str, Mapping[str, str]] | None = None
    inexact_since = ""

    def __init__(
        self,
        graph: EditableGraph,
        resources: Mapping[str, Any],
        ranks: Ranks,
        *,
        seed: int | None,
        device: str | torch.device,
        deterministic: bool,
        about: Mapping[str, Any],
        not_state: Collection[str],
        saving: bool,
        notices: Notices,
    ) -> None:
        if deterministic:
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        self.notices = notices
        self._deterministic = deterministic
        self._about = about
        self._not_state = not_state
        self.requests = Requests()
        self.world = Agreement(ranks, self.requests)
        several = self.world if ranks.world_size > 1 else None
        self._copies = resource_copies(graph, resources)
        self.resources = with_copies(resources, self._copies)
        self._takes_seed = seed is None
        own_seed = seed if seed is not None else torch_seed() or 0
        self.seed: int = self.world.gather(own_seed)[0] if seed is None else own_seed
        # Ranks with the same seed, which equal models require, would draw the same dropout masks.
        self._reseeds = seed is not None or (ranks.rank > 0 and own_seed == self.seed)
        self.device = resolve_device(device, ranks.local_rank if several is not None else None)
        if several is not None or [each for each in self.resources.values() if hasattr(type(each), SHARDED)]:
            prepare_models(self.world, self.resources)
        self.watch = Stopwatch()
        self.recorder = Recorder(
            lambda: self.compiled.run_clock.of_row(),
            lambda: self.compiled.run_clock.columns,
            several.gather if several is not None else None,
        )
        self._prepared: dict[str, Any] = {
            **prepare(self.resources, self.device),
            "checkpoints": self.requests,
            "data_state": DataState(),
            "device": self.device,
            "history": None,  # each node gets one
            "recorder": self.recorder,
            "run_optimizers": self._optimizers,
            "running_seconds": self.world.seconds,
            "saving": saving,
            "notify": notices.once,
            "ranks": several,
            "seed": self.seed,
        }
        self._shared = self.requests, self.recorder, self.watch  # by all compiled graphs
        self.compiled = CompiledGraph(graph, self.resources, self._prepared, *self._shared, copies=self._copies)
        self.requests.retentions = self.compiled.retentions
        self.hyper_parameters = HyperParameters(self.compiled.state.set_up())
        self.loop = Loop(self.compiled.start, self.requests)
        self.setup: dict[str, str] = {}

    # ---- the position

    @property
    def alive(self) -> set[str]:
        """The slots that nodes read after the present position, before they are written."""
        return self.compiled.alive(self.loop.position, self.loop.ended)

    @property
    def path(self) -> str:
        """The path of the node that runs next, or is running."""
        return self.compiled.program.nodes[self.loop.position].path

    @property
    def trained(self) -> dict[str, Any]:
        """How much the run has trained, as in a status: batches and seconds, and the clocks of bodies."""
        run_clock = self.compiled.run_clock
        trained = int(run_clock.count("batches") or 0), float(run_clock.count("seconds") or 0)
        return {"trained": trained, **run_clock.nested()}

    def join(self) -> None:
        """From now on, let the other ranks know the position of this one."""
        world = self.world
        world.position = lambda: self.loop.position
        world.path_of = lambda position: self.compiled.program.nodes[position].path
        world.place = lambda: f"in `{self.path}` at {self.compiled.run_clock.describe()}"
        world.running_seconds, world.buffers = lambda: self.watch.running(), self._buffers
        world.handle_request = lambda path, request: handle_request(self.compiled.program, path, request)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [value for value in self.resources.values() if isinstance(value, torch.optim.Optimizer)]

    def _buffers(self) -> dict[str, torch.Tensor]:
        modules = {name: module for name, module in self.resources.items() if isinstance(module, torch.nn.Module)}
        return {f"{name}.{path}": tensor for name, module in modules.items() for path, tensor in module.named_buffers()}

    # ---- entering a state

    def set_up(self, checkpoint: Checkpoint | None, holder: Any) -> None:
        """Record what was set up, before the run begins or is resumed. Inspecting data may draw random numbers.

        Arguments:
            holder: the object through which a step function may reach this session, which is not state.
        """
        if checkpoint is not None and self._takes_seed:  # it determines the order of the data
            saved = checkpoint.manifest.environment.get("seed", self.seed)
            if saved != self.seed:
                self.seed = self._prepared["seed"] = saved
                self.recompile()
        if self._prepared["saving"] or checkpoint is not None:
            self.environment = run_environment(
                self.resources, self._about, deterministic=self._deterministic, seed=self.seed, device=self.device
            )
        self.compiled.state.begin(self._not_state, holder)
        snapshot = self.compiled.state.snapshot
        if snapshot is not None and self.environment is not None:
            self.setup = setup_hashes(snapshot)

    def begin(self, random: Mapping[str, Any]) -> None:
        """Go to the start of the graph, with the state of the random generators as the user left them."""
        restore_random(dict(random))
        if self._reseeds:
            seed_everything(derived_seed(self.seed, self.world.rank) if self.world.rank else self.seed)
        else:
            seed_the_rest(self.seed)
        self.compiled.compiler.visits.enter(self.compiled.program.main, reset=True)

    def enter(
        self,
        state: RunState,
        path: str,
        ended: bool,
        clock_of: str,
        exempt: Exemptions = EVERYTHING,
        sections: Collection[str] = tuple(SECTIONS),
    ) -> list[str]:
        """Enter a state, that of a checkpoint or of the previous graph; returns messages about what does not fit.

        Arguments:
            path: that of the next node, or of the node that has `ended` the run.
            clock_of: the path of the node whose body trained last; empty for none.
            exempt: what is not restored although it is saved. Default: nothing.

        Raises:
            UsageError: the graph has no such node, or a slot that is read there has no value.
            CheckpointError: an object has another shape than the saved one, or is missing.
        """
        position = self.compiled.locate(path, state["slots"], ended)
        objects = self.compiled.state
        not_restored = run_state.restore(objects, state, [name for name in sections if name not in AFTER_SETUP], exempt)
        self.compiled.resume_at(position, clock_of)
        run_state.restore(objects, state, [name for name in AFTER_SETUP if name in sections])
        self.loop.position, self.loop.ended = position, ended
        return not_restored

    def recompile(self) -> None:
        """Compile the graph again for a resume with the same objects. Nodes lose their state, as in a new process."""
        former = self.compiled.state
        self.recorder.running_means.clear()  # nodes that are set up again recreate theirs
        prepared = {**self._prepared, "saving": True}  # data that cannot be reopened exactly is refused
        self.compiled = CompiledGraph(self.compiled.graph, self.resources, prepared, *self._shared, copies=self._copies)
        if former.snapshot is not None:
            self.compiled.state.track(former.snapshot, former)

    def rewire(
        self, graph: EditableGraph, rename: Mapping[str, str], resources: Mapping[str, Any], *, moves: bool
    ) -> None:
        """Continue with another graph, and with additional or replaced resources; if that raises, nothing changes.

        The state of nodes moves to the graph if `moves` is True; it is False for a run that has not begun.
        """
        all_resources = {**self.resources, **resources}
        new_copies = resource_copies(graph, all_resources)
        all_resources = with_copies(all_resources, new_copies)
        resources = {**resources, **{name: all_resources[name] for name in new_copies}}
        copies, renaming = self._copies | new_copies, Renaming(rename, self.compiled.graph, graph)
        former, policy, environment, loop = self.compiled, self.requests.policy, self.environment, self.loop
        # The state of nodes moves to the other graph in memory; resources are the same objects.
        state = run_state.capture(former.state, former.written(), OF_NODES if moves else ("random",))
        position = loop.position
        try:
            prepared = {name: value for name, value in self._prepared.items() if name not in STEP_FUNCTIONS}
            prepared |= prepare(all_resources, self.device)
            if environment is not None:
                environment = replace(environment, data=fingerprints(all_resources))
            older = former if moves else None
            compiled = CompiledGraph(graph, all_resources, prepared, *self._shared, older, renaming, copies)
            compiled.program.window_ranks = former.program.window_ranks
            if not compiled.retentions:  # the policy of a removed node no longer applies
                self.requests.policy = SavePolicy()
            self.compiled, loop.position = compiled, compiled.start
            if moves:
                moved = renaming.sections(state)
                # Nodes that keep their object hold their progress in it.
                kept = {node.path for node in compiled.kept}
                progress = {path: fields for path, fields in moved["progress"].items() if path not in kept}
                path = renaming.path(former.program.nodes[position].path)
                compiled.locate(path, moved["slots"], loop.ended)  # raises before anything is released
                former.release(compiled.kept)  # before new nodes open the same data
                clock_of = renaming.path(former.program.clocked.path.rstrip("/"))
                exempt = Exemptions(replaced=other_kinds(renaming.graph(former.graph).diff(graph)))
                self.enter({**moved, "progress": progress}, path, loop.ended, clock_of, exempt, OF_NODES)
            hyper_parameters = HyperParameters(compiled.state.set_up(), former=self.hyper_parameters)
            if self.world.world_size > 1:
                prepare_models(self.world, resources)
            require_equal(self.world, graph, resources, {}, hyper_parameters.values, begins=False)
            if former.state.snapshot is not None:
                compiled.state.track(former.state.snapshot, former.state)
        except BaseException:
            self.requests.policy = policy  # which the `setup` of a `checkpoint` may have changed
            self.compiled, loop.position = former, position
            raise
        finally:
            run_state.restore(former.state, state, ("random",))
        self.requests.retentions = compiled.retentions
        self.resources, self._copies = all_resources, copies
        self._prepared, self.environment = prepared, environment
        self.hyper_parameters = hyper_parameters
