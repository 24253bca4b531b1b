"""What a trainer shows of its run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from graphtrain.errors import GuardError, NotFiniteError
from graphtrain.graph.calls import checked_call
from graphtrain.names import suggestion
from graphtrain.program import run_state
from graphtrain.report.recorded import Recorded
from graphtrain.report.snapshot import Snapshot
from graphtrain.resume.session import Session
from graphtrain.trainer.graph import Graph
from graphtrain.trainer.live_run import LiveRun
from graphtrain.trainer.tracing import Explanation, explain_end


class RunView(Recorded):
    """The part of a `Trainer` that reads its run, at any time, and changes nothing."""

    _run: LiveRun
    _session: Session

    @property
    def graph(self) -> Graph:
        """The graph that the run follows now."""
        return Graph.of(self._session.compiled.graph)

    @property
    def position(self) -> str:
        """The path of the node that runs next, such as ``"validate/next_batch"``; ``"end"`` when the run is over."""
        return self._run.position

    @property
    def state(self) -> str:
        """The state of the life cycle: ready, running, stopping, stopped, finished or failed."""
        return self._run.state

    @property
    def progress(self) -> dict[str, dict[str, Any]]:
        """The progress of every node: path -> field -> value, computed fields included."""
        return {
            node.path: {
                name: getattr(node.instance, name)
                for name in node.kind.fields
                if name != "due" and hasattr(node.instance, name)
            }
            for node in self._session.compiled.program.nodes
        }

    @property
    def resources(self) -> Mapping[str, Any]:
        """The objects that were supplied, by name."""
        return MappingProxyType(self._session.resources)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows recorded so far, oldest first; `frame` makes a table of them, and `plot` draws them.

        `step` and `epoch` are those of the innermost graph that trains; graphs around it have a column for each unit of
        their clocks.
        """
        return [dict(row) for row in self._session.recorder.rows]

    @checked_call()
    def read(self, name: str) -> Any:
        """The value of ``"node.field"`` (``"validate/next_batch.last"``), of a slot (``"batch"``), or of a resource.

        Raises:
            KeyError: there is no such node, field or slot.
        """
        compiled, (path, dot, field) = self._session.compiled, name.partition(".")
        plan, values = compiled.program.plan, {**compiled.program.slots, **self._session.resources}
        kinds = {node.path: node.kind for node in plan.by_path.values() if node.kind is not None}
        fields = [f"{path}.{field}" for path, kind in kinds.items() for field in (*kind.parameters, *kind.fields)]
        if name not in (known := fields if dot else values):
            raise KeyError(f"there is no `{name}`; {suggestion(name, known)}")
        return compiled.compiler.cells.at(path, field).read() if dot else values[name]

    def explain(self) -> Explanation:
        """Why the last transition took its edge: the guards that were evaluated, and the values that they read.

        It is known after `advance` and at the end of a run; for other transitions call `run` with `trace`.
        """
        return self._run.explanation or explain_end(self._session.compiled, self._session.loop)

    def digest(self) -> str:
        """A hash (hexadecimal) of what the continuation depends on: equal digests mean bitwise equal runs.

        It covers model, optimizer, scheduler, gradients, random generators, position in the data, and progress, except
        wall-clock time, the progress of kinds declared `observer`, a `runs` that nothing reads, and running means if
        rows are recorded by wall-clock time. With several processes it is the digest of this rank; `graphtrain status`
        shows the one of all ranks.

        Raises:
            CheckpointError: something alive at this position cannot be encoded.
        """
        objects = self._session.compiled.state
        return run_state.digest(objects, run_state.capture(objects, self._session.alive))

    def save_points(self) -> list[str]:
        """The paths of the nodes before which the run can be saved, by what kinds declare."""
        compiled = self._session.compiled
        return [node.path for node in compiled.program.nodes if not compiled.transient(node.index)]

    @property
    def unreached(self) -> tuple[str, ...]:
        """The paths of nodes that have not run, without bypassed nodes, and nodes inside one that has not run."""
        nodes = self._session.compiled.program.nodes
        idle = [node for node in nodes if node.bypassed or not node.fields["runs"]]
        inside = tuple(f"{node.path}/" for node in idle)
        return tuple(node.path for node in idle if not node.bypassed and not node.path.startswith(inside))

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of host time by activity, summed over interruptions: `data`, `train`, `validate`, `save`, ..."""
        return self._session.watch.seconds()

    @property
    def changes(self) -> tuple[str, ...]:
        """What has changed since the checkpoint that the run was resumed from, in words; empty without a resume.

        Graph, hyper-parameters, code, arguments of `setup`, data, and the weights that the models were set up with.
        """
        return self._run.changes

    def replay_options(self) -> list[str]:
        """After a failure inside a node: the options of ``graphtrain replay`` that lead to that node.

        Empty without a run directory or a checkpoint, or if the newest checkpoint is of another graph.
        """
        run, compiled = self._run, self._session.compiled
        latest, error = run.files.latest if run.files is not None else None, run.failure
        if latest is None or run.state != "failed":
            return []
        if isinstance(error, NotFiniteError) and error.samples and "samples" in self.graph.units:
            reader = next(node for node in compiled.program.nodes if node.instance is error.check)
            return ["--to", f"{error.samples} samples", "--node", reader.path]  # where batch and gradients are there
        batches = compiled.program.clock(compiled.program.main, "batches")
        if latest.manifest.graph_hash != compiled.saved_graph[1] or batches is None or not batches.now():
            return []
        node = compiled.program.nodes[self._session.loop.position]
        runs = node.fields["runs"] - isinstance(error, GuardError)  # a guard raises once the node has run
        return ["--to", f"{batches.now()} batches", "--node", node.path, "--runs", str(runs)]

    def snapshot(self) -> Snapshot:
        """The state and progress of the run, as in a display and in `status.json`."""
        return self._run.snapshot()

    def __repr__(self) -> str:
        return f"<Trainer of {self.graph.name}: {self.state}, {self._session.compiled.run_clock.describe()}>"

    @property
    def _runs(self) -> dict[str, int]:
        return {path: fields["runs"] for path, fields in self.progress.items()}
