"""A run from the command line: a program's setup, a graph, and a directory."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from graphtrain.checks import checked_graph
from graphtrain.command.adapted import ScriptOrClass
from graphtrain.command.failure import STOPPED
from graphtrain.command.options import RunOptions, ended_by, omit, replay_command, resume_command
from graphtrain.command.output import notify_once
from graphtrain.command.script import Script, load_graph
from graphtrain.command.set_up import set_up, warm_start
from graphtrain.command.settings import pairs, setup_arguments, split_settings, with_parameters
from graphtrain.command.start import Start
from graphtrain.errors import UsageError
from graphtrain.graph.registry import kind_of_node
from graphtrain.lazy import imported
from graphtrain.names import quoted
from graphtrain.outcome import Outcome
from graphtrain.printable import one_line
from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.program.resources import USUAL
from graphtrain.ranks import current_ranks, on_all_ranks
from graphtrain.report.numbers import scaled
from graphtrain.report.values import not_finite_since
from graphtrain.storage.files import readable_failure
from graphtrain.storage.rank_files import digest_of_ranks
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
from graphtrain.trainer.graph import Graph
from graphtrain.trainer.trainer import Trainer

_RUNS = Path("runs")

# Runs a trainer in place of `Trainer.run`, which None stands for.
Drive = Callable[[Trainer, RunOptions], Outcome] | None


def train(program: Script | ScriptOrClass, settings: Sequence[str], options: RunOptions, drive: Drive) -> int:
    """Train a script, which is imported if it is only named; the exit code."""
    arguments, parameters = split_settings(settings)
    with on_all_ranks(f"in {shlex.join(program.words) if isinstance(program, ScriptOrClass) else program.name}"):
        report = notify_once(quiet=options.quiet)
        start = Start.decide(options, report)  # an error is reported before the script is imported
        if isinstance(program, ScriptOrClass):
            program = program.program()
        return _Training(program, options, start, report, drive).run(arguments, parameters)


@final
@dataclass
class _Training:
    """One call of the command."""

    program: Script
    options: RunOptions
    start: Start
    report: Callable[[str], None]
    drive: Drive

    def run(self, values: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
        """Set the program up, and train; the exit code."""
        options, program = self.options, self.program
        arguments = setup_arguments(program.setup, values, program.name)
        graph = Graph.of(checked_graph(with_parameters(self.graph(arguments), parameters)))
        named = program.setup, arguments, program.name
        in_force, resources = set_up(*named, graph, options.seed, options.device, self.report)
        loggers = [*resources.pop("loggers", ())]
        if options.logger:
            from graphtrain.report.tensorboard import TensorBoard
            from graphtrain.report.wandb import WandB

            loggers += [{"tensorboard": TensorBoard, "wandb": WandB}[name]() for name in options.logger]
        settings = inspect.signature(Trainer).parameters.keys() - {*USUAL, "not_state"}
        for name in sorted(settings & resources.keys()):
            hint = f"set it with --{name.replace('_', '-')}" if name in vars(options) else "give it another name"
            raise UsageError(f"{program.name} returns `{name}`, which is a setting of the run, not a resource", hint)
        warm_start(resources, self.start.init, self.report)
        trainer: Callable[..., Trainer] = functools.partial(
            Trainer,
            device=options.device,
            deterministic=options.deterministic,
            display=None if options.quiet else imported("graphtrain.report.display.choose").display_for(self.report),
            notify=self.report,
            **resources,
        )
        if options.dry_run:
            return self._dry_run(trainer(graph.dry_run()))
        about = {
            "command": shlex.join([*program.words, *sys.argv[1:]]),
            "arguments": in_force,
            "explicit": sorted(arguments),
            "seed": options.seed,
            "script": str(program.file or ""),
            "init": [f"{name}={path}" for name, path in self.start.init.items()],
        }
        with contextlib.ExitStack() as stack:
            run_dir = options.run_dir or stack.enter_context(_new_directory(program.file))
            return self._train(trainer(graph, run_dir=run_dir, loggers=loggers, about=about), run_dir)

    def graph(self, arguments: Mapping[str, Any]) -> Graph:
        """The graph to run, with its overlays."""
        named, overlays = self.options.graph, self.options.overlay
        if named == "saved":
            saved = self.start.graph(self.report)  # the command of a resume may name overlays that it has
            return load_graph(saved, overlays=[name for name in overlays if name not in saved.layers.names])
        return load_graph(named or self.program.own_graph(arguments), overlays=overlays)

    def _train(self, trainer: Trainer, run_dir: Path) -> int:
        """Train, and report the outcome; the exit code."""
        options, report = self.options, self.report
        for line in _introduced(trainer):
            report(line)
        if options.run_dir is None:
            report(f"run directory: {run_dir}; {self._resume_with(run_dir)}")
        try:
            outcome = self.drive(trainer, options) if self.drive is not None else self._driven(trainer)
        except Exception as error:
            if (where := trainer.replay_options()) and self.program.source:
                ranks = current_ranks().world_size
                error.add_note(f"replay it: {replay_command(self.program.source, run_dir, where, ranks)}")
            raise
        except KeyboardInterrupt:
            report(self._resume_with(run_dir))
            raise
        note = ""
        if diverged := not_finite_since(trainer.metrics):  # to train it further would not help
            note = f". {diverged}" if outcome.resumable else f", and {diverged}"
        elif outcome is Outcome.ALREADY_FINISHED:
            note = _how_to_train_longer(trainer.graph, run_dir)
        if outcome is Outcome.ALREADY_FINISHED and trainer.changes:  # nothing that was requested would be done
            fork = f"in a new directory, with --run-dir, or from this one: --fork {shlex.quote(str(run_dir))}"
            changed = f"the run in `{run_dir}` is finished, so nothing was run; changed since: "
            raise UsageError(changed + ", ".join(trainer.changes), f"start another run {fork}{note}")
        digest = digest_of_ranks([each.decode() for each in current_ranks().gather(trainer.digest().encode())])
        report(f"{outcome}{note}: {run_dir}  digest {digest[:16]}")
        if outcome.resumable:
            report(self._resume_with(run_dir, is_reached=outcome is not Outcome.STOPPED))
        return STOPPED if outcome is Outcome.STOPPED else 0

    def _driven(self, trainer: Trainer) -> Outcome:
        """Run the trainer as the options ask for."""
        options, trace = self.options, notify_once()
        return trainer.run(
            resume=self.start.resume,
            until=options.until,
            from_setup=options.from_setup,
            from_saved=options.from_saved,
            rename=pairs(options.rename, "--rename OLD=NEW"),
            trace=(lambda explanation: trace(f"trace  {explanation}")) if options.trace else None,
        )

    def _dry_run(self, trainer: Trainer) -> int:
        """Run everything once, and write nothing; the exit code."""
        if trainer.run() is Outcome.STOPPED:
            return STOPPED
        unreached = trainer.unreached
        self.report(f"dry run: every node was reached{f' but {quoted(unreached)}' if unreached else ''}")
        return 0

    def _resume_with(self, run_dir: Path, *, is_reached: bool = False) -> str:
        count, words = current_ranks().world_size, [*self.program.words, *sys.argv[1:]]
        is_launched = count > 1 and omit(words, ["--processes="]) == words
        how = f"  in {count} processes, by the same launcher" if is_launched else ""
        return f"resume with: {resume_command(words, run_dir, is_reached=is_reached)}{how}"


def _introduced(trainer: Trainer) -> Iterator[str]:
    """The graph, and each model with its size."""
    from torch.nn import Module
    from torch.nn.parameter import is_lazy

    yield f"graph {one_line(trainer.graph.title)}"
    for name, model in trainer.resources.items():
        if isinstance(model, Module):
            elements = sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter))
            yield f"{name}: {type(model).__name__}, {scaled(elements)} parameters"


def _how_to_train_longer(graph: Graph, run_dir: Path) -> str:
    """What trains a finished run further; empty for a graph that ends by itself, as an evaluation does."""
    is_at_its_end = True
    with contextlib.suppress(UsageError):  # a status that cannot be read
        run = imported("graphtrain.report.run").Run(run_dir)
        if ended := ended_by(run):
            return f"; {ended}"
        is_at_its_end = run.snapshot().is_at_its_end
    kinds = {name: kind_of_node(node) for name, node in graph.nodes.items()}
    ends = ", ".join(f"{name}.after" for name, kind in kinds.items() if kind and kind.trigger == "after")
    if not is_at_its_end:
        return f"; it ended by itself, before its {ends}" if ends else ""
    return f"; a later {ends} trains it further" if ends else ""


@contextlib.contextmanager
def _new_directory(script: Path | None) -> Iterator[Path]:
    """The first free one of runs/STEM-001, -002, ..., of rank 0; removed if the block fails and left it empty."""
    stem = script.stem if script is not None and script.stem.isidentifier() else "run"

    def make() -> str:
        for number in itertools.count(1):
            path = _RUNS / f"{stem}-{number:03d}"
            with readable_failure(path, UsageError), contextlib.suppress(FileExistsError):
                path.mkdir(parents=True)
                break
        return str(path)

    run_dir = Path(Agreement(current_ranks(), Requests()).on_rank_0(make))
    try:
        yield run_dir
    except BaseException:
        for folder in (run_dir / CHECKPOINTS_FOLDER, run_dir, _RUNS):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
        raise
