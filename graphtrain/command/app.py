"""The commands, their options and their help. What a command does is imported when it runs."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from graphtrain.command.failure import exit_on_failure
from graphtrain.command.options import RunOptions, processes_option, takes_run_options
from graphtrain.command.plain_command import PlainCommand, PlainGroup
from graphtrain.command.run_help import EvaluationCommand, RunCommand
from graphtrain.distributed.current import is_one_of_several
from graphtrain.distributed.launcher import launched
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.version import __version__

_LOOKS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(
    **_LOOKS,
    cls=PlainGroup,
    no_args_is_help=True,
    help="Train PyTorch models with an explicit graph: edit it, draw it, check it, stop it, resume it bit for bit.",
    epilog="Begin with: [bold]graphtrain render fit -o fit.svg[/bold]",
)

_GRAPH = (
    "A shipped graph (`fit`), a TOML file, a script (`train.py`: the graph that it trains with; to find it, the script "
    "is imported, which runs its code), a run directory, or a checkpoint in one (RUN/best: the best)."
)
GraphArgument = Annotated[str, typer.Argument(metavar="GRAPH", help=_GRAPH)]


ContainedOption = Annotated[
    bool,
    typer.Option(
        "--contained",
        help="For graphs of strangers: refuse files outside of the folder of the graph file (of a name: the current "
        "folder), links that lead out of it, and scripts, whose code would run.",
    ),
]


OverlayOption = Annotated[
    list[str] | None,
    typer.Option(
        "--overlay",
        metavar="OVERLAY",
        help="Add an overlay to the graph: a shipped one, as in ema (see graphtrain graphs), or a TOML file; can "
        "be given several times.",
    ),
]


def _example(*lines: str) -> str:
    """Help text in which every example has its own line."""
    return "\n\n".join(["[dim]Examples:[/dim]", *[f"  [bold]{line}[/bold]" for line in lines]])


def _unwrapped(function: Callable[..., Any]) -> str:
    """The docstring of a command with a line for each paragraph: rich keeps every break that is in a text."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(function) or "")


def _command(
    name: str | None, *examples: str, cls: type[PlainCommand] = PlainCommand, app: typer.Typer = app
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """A command that exits with the code its function returns, and reports failures as one readable message."""

    def declare(function: Callable[..., int | None]) -> Callable[..., None]:
        # Inside typer, not around it: typer would handle an interrupt and a user's BrokenPipeError without a message.
        @functools.wraps(function)
        def guarded(*arguments: object, **options: object) -> None:
            with exit_on_failure():
                code = function(*arguments, **options)
            raise typer.Exit(code or 0)

        return app.command(name, help=_unwrapped(function), epilog=_example(*examples), cls=cls)(guarded)

    return declare


def _version(value: bool) -> None:
    if value:
        typer.echo(f"graphtrain {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options before any command."""


SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE",
        help="NAME=VALUE sets an argument of setup, as in lr=1e-3; NODE.PARAM=VALUE a parameter of a node, "
        "as in finish.after='500 steps'. Values are TOML, else strings.",
    ),
]


@_command(
    "run",
    "graphtrain run examples/digits.py accumulate.every=4 --run-dir runs/first",
    "graphtrain run train.py:setup lr=1e-3 finish.after='500 steps' --graph my_fit.toml",
    "graphtrain run train.py --overlay ema --overlay early_stop early_stop.patience=2",
    "graphtrain run train.py --help",
    cls=RunCommand,
)
@takes_run_options
def run(
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT[:FUNCTION]",
            help="A Python file, and its function that returns the model, the optimizer, the data, ... Default: setup.",
        ),
    ],
    settings: SettingsArgument = None,
    *,
    options: RunOptions,
) -> int:
    """Train with a script: its setup() returns model, optimizer and data. A run that was interrupted is resumed.

    What is done with them, in which order and when, is said by a graph: that of the script, of --graph, or `fit`.
    With a SCRIPT, --help also lists what can be set.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped by a signal and resumable.
    """
    if (code := launched(options.processes)) is not None:
        return code
    from graphtrain.command.run import run_script

    return run_script(script, settings or [], options)


def program_app(
    setup: Callable[..., Any], graph: Graph | str | Path, words: list[str], script: Path | None
) -> typer.Typer:
    """The command of a script that calls `graphtrain.main`.

    Arguments:
        words: the beginning of its command line, such as ``["python", "train.py"]``.
        script: its file, if it has one.
    """
    program = typer.Typer(**_LOOKS)
    example = " ".join(words)

    @_command(
        None,
        f"{example} accumulate.every=4 finish.after='500 steps' --run-dir runs/first",
        cls=RunCommand.of(setup, graph),
        app=program,
    )
    @takes_run_options
    def run(settings: SettingsArgument = None, *, options: RunOptions) -> int:
        """Train with this script. A run that was interrupted is resumed.

        What is done, in which order and when, is said by a graph: that of the script, of --graph, or `fit`.

        Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped by a signal and resumable.
        """
        if (code := launched(options.processes)) is not None:
            return code
        from graphtrain.command.run import Script, run_program

        return run_program(Script.of(setup, graph, words, script), settings or [], options)

    return program


@_command("check", "graphtrain check my_fit.toml", "graphtrain check my_fit.toml --json")
def check(
    graph: GraphArgument,
    script: Annotated[
        str | None,
        typer.Option(
            "--script", metavar="SCRIPT", help="A Python file that declares kinds which the graph uses; it is imported."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the problems as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as errors.")] = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Check it for a run of several ranks, of which more is asked (G7xx).")
    ] = False,
    overlay: OverlayOption = None,
    contained: ContainedOption = False,
) -> int:
    """Check a graph without running it: all its problems, each with a code, a place and a hint.

    Exit codes: 0 no errors, 2 errors.
    """
    from graphtrain.command.check import check_command

    return check_command(graph, script, overlay or [], as_json=json, strict=strict, ranks=ranks, contained=contained)


@_command(
    "render", "graphtrain render fit -o fit.svg", "graphtrain render my_fit.toml -o my_fit.png --run-dir runs/first"
)
def render(
    graph: GraphArgument,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The picture: .svg, .png, .pdf, .dot or .mmd (mermaid)."),
    ],
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir", metavar="RUN_DIR", help="Show how often each node ran in this run, and which is next."
        ),
    ] = None,
    seconds: Annotated[
        bool,
        typer.Option("--seconds", help="With --run-dir: show how long each node took, of a run with --time-nodes."),
    ] = False,
    guards: Annotated[
        bool, typer.Option("--guards", help="Add a table with the expressions of the guards below the picture.")
    ] = False,
    overlay: OverlayOption = None,
    contained: ContainedOption = False,
) -> None:
    """Draw a graph to a file.

    The graph of a run directory is drawn as the run has it; --run-dir adds the counts of a run to any graph.
    """
    from graphtrain.command.render import render_command

    render_command(graph, output, run_dir, overlays=overlay or [], contained=contained, seconds=seconds, guards=guards)


@_command("show", "graphtrain show fit", "graphtrain show my_fit.toml --save-points --script train.py")
def show(
    graph: GraphArgument,
    save_points: Annotated[
        bool,
        typer.Option(
            "--save-points",
            help="Show for every node whether a checkpoint can be made before it runs, and "
            "which slots it would hold. Imports the kinds.",
        ),
    ] = False,
    script: Annotated[
        str | None,
        typer.Option(
            "--script", metavar="SCRIPT", help="A Python file that declares kinds which the graph uses; it is imported."
        ),
    ] = None,
    overlay: OverlayOption = None,
    contained: ContainedOption = False,
) -> None:
    """Print a graph: its nodes and parameters, edges in order of priority, guards and clock.

    Exit codes: 0 printed, 2 there is no such graph, or it cannot be bound.
    """
    from graphtrain.command.show import show_command

    show_command(graph, save_points=save_points, script=script, overlays=overlay or [], contained=contained)


@_command(
    "diff",
    "graphtrain diff fit my_fit.toml",
    "graphtrain diff runs/first runs/second",
    "graphtrain diff runs/first my_fit.toml -o difference.svg",
    "graphtrain diff fit fit --overlay ema",
    "graphtrain diff runs/first/checkpoints/000001-step-60 runs/second",
)
def diff(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A shipped graph, a TOML file, a script (which is imported), a run directory (its newest checkpoint), "
            "or a checkpoint.",
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="What to compare it with, likewise.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Draw both in one picture: .svg, .png, .pdf, .dot or .mmd (mermaid)."
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="OLD=NEW", help="The node OLD of A is the node NEW of B."),
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if anything that is compared differs.")
    ] = False,
    overlay: OverlayOption = None,
    contained: ContainedOption = False,
) -> int:
    """Show how two graphs, or two runs, differ.

    Of graphs: nodes, edges and their order, guards, parameters, clock. Of two run directories or checkpoints also:
    arguments of setup, hyper-parameters, code, data, versions and flags, and the last metrics. A + was added, a -
    removed, a ~ changed from A to B.

    Exit codes: 0 shown, different or not; 1 different, with --exit-code; 2 there is no such graph.
    """
    from graphtrain.command.diff import diff_command

    return diff_command(
        before, after, output, rename or [], exit_code=exit_code, overlays=overlay or [], contained=contained
    )


@_command("copy", "graphtrain copy fit my_fit.toml", "graphtrain copy ema my_ema.toml")
def copy(
    graph: GraphArgument,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file to write; it must not exist.")],
    overlay: OverlayOption = None,
) -> None:
    """Copy a graph, or an overlay by its name, to a new file that you can edit.

    The text of a shipped graph, of an overlay or of a file is copied with its comments; that of a script or a run, and
    of a graph with --overlay, is generated.
    """
    from graphtrain.command.listing import copy_command

    copy_command(graph, path, overlay or [])


@_command("graphs", "graphtrain graphs")
def graphs() -> None:
    """List the shipped and installed graphs, and the overlays that can be added to a graph."""
    from graphtrain.command.listing import graphs_command

    graphs_command()


@_command("nodes", "graphtrain nodes", "graphtrain nodes clip")
def nodes(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="Describe this kind in detail. Default: all are listed.")
    ] = None,
) -> None:
    """List the kinds of nodes that a graph can have, or describe one: its parameters, what it reads and writes, ..."""
    from graphtrain.command.listing import nodes_command

    nodes_command(kind)


@_command(
    "export",
    "graphtrain export runs/first weights.safetensors",
    "graphtrain export runs/first/best weights.safetensors",
    "graphtrain export runs/first/checkpoints/000003-step-120 weights.safetensors --model generator",
)
def export(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory (its newest checkpoint), or a checkpoint in one; RUN/best is the best.",
        ),
    ],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, .safetensors; it must not exist.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Only this model, by the name that setup gives it. Default: all."),
    ] = None,
) -> None:
    """Write the weights of a run to one file that needs nothing but safetensors to be read.

    Parameters and buffers have the names of the model's state_dict, with the name of the model in front where there are
    several. Of a run of several processes the file is as whole; buffers that differ are those of rank 0.

    Exit codes: 0 written, 1 the checkpoint is damaged, 2 there is no such run or model, or the file exists.
    """
    from graphtrain.command.export import export_command

    export_command(run, path, model)


@_command("ls", "graphtrain ls runs", "graphtrain ls runs --json")
def ls(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="The folder that holds the run directories, at most 4 levels below it."),
    ] = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="Print the status of each run, as JSON.")] = False,
) -> None:
    """List the runs in a folder: state, place, graph, last metrics, age, and whether they can be resumed.

    Only status files are read. A run whose process is gone is `interrupted`.

    Exit codes: 0 listed, 2 there is no such folder.
    """
    from graphtrain.command.ls import ls_command

    ls_command(folder, as_json=json)


@_command(
    "status",
    "graphtrain status runs/digits-001",
    "graphtrain status runs/digits-001 --json",
    "graphtrain status runs/digits-001 --exit-code",
)
def status(
    run_dir: Annotated[
        Path,
        typer.Argument(metavar="RUN_DIR", help="The directory of a run; or a folder of them, listed as by ls."),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit as the run did, which torchrun does not: 0 finished, 75 stopped and resumable, else 1.",
        ),
    ] = False,
) -> int:
    """Show the progress of a run, whether it is running or not, from its run directory.

    Exit codes: 0 shown, 2 there is no run; with --exit-code also 75 for a run that is stopped and can be resumed, and 1
    for one that has failed, was killed, or is running.
    """
    from graphtrain.command.status import status_command

    return status_command(run_dir, as_json=json, exit_code=exit_code)


ScriptArgument = Annotated[
    str,
    typer.Argument(metavar="SCRIPT[:FUNCTION]", help="The Python file that the run was started with."),
]
PastRunOption = Annotated[
    Path, typer.Option("--run-dir", metavar="RUN_DIR", help="The run directory; it is only read.")
]
ArgumentsOfSetup = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME=VALUE", help="Arguments of setup, in place of those that the run had."),
]


WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="WHAT",
        help="Whose: best, newest, the name of a checkpoint of the run, or the path of another one. Default: the best, "
        "or the newest of a run that has ranked none by checkpoint.best.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The model in the checkpoint whose weights `model` is given, as in average. Default: the one that the run "
        "validates.",
    ),
]
EvaluatedRunOption = Annotated[
    Path, typer.Option("--run-dir", metavar="RUN_DIR", help="The run whose weights are used; it is not changed.")
]
EvaluationDeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="Where: auto, cpu, cuda, ... Default: where the run was trained."),
]
EvaluationProcessesOption = Annotated[
    int | None,
    processes_option("Evaluate in this many processes, each with its own part of the batches."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print the result and errors only.")]
EvaluationSettings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE",
        help="NAME=VALUE sets an argument of setup, in place of the one that the run had; NODE.PARAM=VALUE a parameter "
        "of a node, as in next_batch.limit=10.",
    ),
]


@_command(
    "test",
    "graphtrain test train.py --run-dir runs/first",
    "graphtrain test train.py --run-dir runs/first --weights newest",
    "graphtrain test train.py --follow runs/first",
    cls=EvaluationCommand,
)
def test(
    script: ScriptArgument,
    settings: EvaluationSettings = None,
    *,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="RUN_DIR", help="The run whose weights are tested; it is not changed."),
    ] = None,
    weights: WeightsOption = None,
    follow: Annotated[
        Path | None,
        typer.Option(
            "--follow",
            metavar="RUN_DIR",
            help="Test every checkpoint of this run that was not tested yet, and each that comes, until it is over.",
        ),
    ] = None,
    model: ModelOption = None,
    graph: Annotated[
        str,
        typer.Option(
            "--graph", metavar="GRAPH", help="Another graph: evaluate, for the validation data, or a TOML file."
        ),
    ] = "test",
    device: EvaluationDeviceOption = None,
    processes: EvaluationProcessesOption = None,
    quiet: QuietOption = False,
) -> int:
    """Evaluate `test_data` of a script with the weights of a checkpoint of a run.

    It calls `test_step`, else `validation_step`, else `training_step`. The means are printed, and are a row of
    RUN_DIR/test.jsonl with the step and the name of the checkpoint. setup() is called with the arguments of the run.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped by a signal.
    """
    if (run_dir is None) == (follow is None):
        raise UsageError(
            "name one run, with --run-dir or with --follow", "graphtrain test train.py --run-dir runs/first"
        )
    if follow is not None and weights is not None:
        raise UsageError("--follow tests every checkpoint", "leave --weights out")
    if (code := launched(processes)) is not None:
        return code
    from graphtrain.command.evaluate import Weights, test_command

    named = run_dir if run_dir is not None else follow
    assert named is not None, "one of them is"
    of_run = Weights(named, weights, model, device, quiet)
    return test_command(script, settings or [], of_run, graph, follow=follow is not None)


@_command(
    "predict",
    "graphtrain predict train.py --run-dir runs/first",
    "graphtrain predict train.py --run-dir runs/first --weights newest --output predictions.jsonl",
    cls=EvaluationCommand,
)
def predict(
    script: ScriptArgument,
    settings: EvaluationSettings = None,
    *,
    run_dir: EvaluatedRunOption,
    weights: WeightsOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write, .safetensors or .jsonl; it must not exist. Default: predictions.safetensors in "
            "RUN_DIR/predict/CHECKPOINT.",
        ),
    ] = None,
    model: ModelOption = None,
    graph: Annotated[
        str, typer.Option("--graph", metavar="GRAPH", help="Another graph, a TOML file. Default: predict.")
    ] = "predict",
    device: EvaluationDeviceOption = None,
    processes: EvaluationProcessesOption = None,
    quiet: QuietOption = False,
) -> int:
    """Write what the model predicts for `predict_data` of a script, with the weights of a checkpoint of a run.

    It calls `predict_step`, or else the model with the batch. Every sample is written once, in the order of the data.
    Stopped or killed, the same command continues where it was, with the weights that it has begun with.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped by a signal and resumable.
    """
    if (code := launched(processes)) is not None:
        return code
    from graphtrain.command.evaluate import Weights, predict_command

    return predict_command(script, settings or [], Weights(run_dir, weights, model, device, quiet), graph, output)


_OF_A_RUN = "To verify a run that was made"
_OF_CUTS = "To verify a script, without a run"
_REPLAYS = "Replay in this many processes on this host: as many as have trained the run."


@_command(
    "verify",
    "graphtrain verify train.py --run-dir runs/first",
    "graphtrain verify train.py --run-dir runs/first --last 1",
    "graphtrain verify train.py --run-dir runs/first --processes 2",
    "graphtrain verify train.py --cuts 20 --until '50 batches'",
    "graphtrain verify train.py lr=1e-3 accumulate.every=4 --cuts 5 --graph my_fit.toml",
)
def verify(
    script: Annotated[str, typer.Argument(metavar="SCRIPT[:FUNCTION]", help="The Python file that trains.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="Arguments of setup; with --run-dir in place of those that the run had. With --cuts also "
            "NODE.PARAM=VALUE, parameters of nodes, as for run.",
        ),
    ] = None,
    *,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir", metavar="RUN_DIR", help="The run directory; it is only read.", rich_help_panel=_OF_A_RUN
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", metavar="N", help="Only the N newest spans. Default: all.", rich_help_panel=_OF_A_RUN),
    ] = None,
    processes: Annotated[int | None, processes_option(_REPLAYS, _OF_A_RUN)] = None,
    cuts: Annotated[
        int | None,
        typer.Option("--cuts", metavar="N", help="Cut the run at N random transitions.", rich_help_panel=_OF_CUTS),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="GRAPH",
            help="A shipped graph, a TOML file, or another script. Default: the graph of the script.",
            rich_help_panel=_OF_CUTS,
        ),
    ] = None,
    overlay: Annotated[
        list[str] | None,
        typer.Option(
            "--overlay",
            metavar="OVERLAY",
            help="Add an overlay to the graph, as for run; can be given several times.",
            rich_help_panel=_OF_CUTS,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="AMOUNT",
            help="Where every run stops, as in '50 batches'. Default: where the graph ends it.",
            rich_help_panel=_OF_CUTS,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="NUMBER",
            help="Seed of Python, NumPy and torch, set before setup() is called. Default: 0.",
            rich_help_panel=_OF_CUTS,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="Where to train. Default: auto.", rich_help_panel=_OF_CUTS),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Ask torch for deterministic kernels.", rich_help_panel=_OF_CUTS),
    ] = False,
    cuts_seed: Annotated[
        int | None,
        typer.Option(
            "--cuts-seed",
            metavar="NUMBER",
            help="Chooses the transitions. Default: another number each time, which is printed.",
            rich_help_panel=_OF_CUTS,
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FOLDER",
            help="A new folder for the run directories of cuts that are not exact, as they were when they were cut and "
            "after the resume. Default: none is kept.",
            rich_help_panel=_OF_CUTS,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=_OF_CUTS)] = False,
) -> int:
    """Prove that resuming is exact: of a run that was made, with --run-dir; or of a script, with --cuts.

    With --run-dir, the run is replayed from each checkpoint to the next, and everything is compared bit by bit. The
    cause of a difference is named: a field that was lost between saving and resuming, or the node whose computation is
    not repeatable.

    With --cuts, the script is trained once, and then again, cut at random transitions. Each cut is resumed in a new
    process to the same end, and compared with the run that was not cut: weights, optimizers, everything else that is
    saved, and the file of metrics. How long that takes is printed once the script has been trained for the first time.

    Exit codes: 0 bitwise equal, 1 different, 2 nothing to compare or bad usage.
    """
    of_cuts = {
        "--graph": graph,
        "--overlay": overlay or None,
        "--until": until,
        "--seed": seed,
        "--device": device,
        "--deterministic": deterministic or None,
        "--cuts-seed": cuts_seed,
        "--keep": keep,
        "--json": json or None,
    }
    _refuse_a_mixture(run_dir is not None, cuts is not None, {"--last": last, "--processes": processes}, of_cuts)
    if cuts is None:
        if (code := launched(processes)) is not None:
            return code
        from graphtrain.command.verify import verify_command

        assert run_dir is not None, "one of them is given"
        return verify_command(script, run_dir, settings or [], last)
    if is_one_of_several():
        raise UsageError(
            "verify --cuts was started as one of several processes, and it starts processes itself",
            "start it alone; of a run that several processes have made, --run-dir verifies the spans",
        )
    from graphtrain.command.verify_cuts import CutOptions, verify_cuts_command

    options = RunOptions(
        graph=graph,
        overlay=overlay or [],
        until=until,
        seed=seed or 0,
        device=device or "auto",
        deterministic=deterministic,
    )
    return verify_cuts_command(script, settings or [], CutOptions(cuts, options, cuts_seed, keep, json))


def _refuse_a_mixture(
    has_run: bool, has_cuts: bool, of_a_run: Mapping[str, object], of_cuts: Mapping[str, object]
) -> None:
    """Refuse options of `verify` that do not belong together."""
    if has_run == has_cuts:
        raise UsageError(
            f"verify takes either --run-dir or --cuts, got {'both' if has_run else 'neither'}",
            "--run-dir RUN_DIR verifies a run that was made, --cuts 20 the script, without a run",
        )
    mine, others = ("--run-dir", of_cuts) if has_run else ("--cuts", of_a_run)
    if given := [name for name, value in others.items() if value is not None]:
        other = "--cuts" if has_run else "--run-dir"
        raise UsageError(f"{', '.join(given)}: only with {other}, not with {mine}", "see graphtrain verify --help")


@_command(
    "replay",
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps'",
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps' --pdb",
    "graphtrain replay train.py --run-dir runs/first --to '300 batches' --node validate/eval_batch",
    "graphtrain replay train.py --run-dir runs/first --to best --node train_batch",
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps' --processes 2",
)
def replay(
    script: ScriptArgument,
    settings: ArgumentsOfSetup = None,
    *,
    run_dir: PastRunOption,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="MOMENT",
            help="'48211 steps' stops right after that step, '300 batches' right after that batch is fetched; best, "
            "newest or the name of a checkpoint: where that was made.",
        ),
    ],
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="PATH", help="Continue from there until this node is the next to run."),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            metavar="N",
            help="With --node: until it has run N times as well; inside a node, since that was entered. Default: the "
            "first time.",
        ),
    ] = None,
    debug: Annotated[
        bool,
        typer.Option(
            "--pdb", help="Open Python's debugger at that moment, with trainer, model, batch, loss, gradients, ..."
        ),
    ] = False,
    processes: Annotated[int | None, processes_option(_REPLAYS)] = None,
) -> int:
    """Replay a past run to a moment exactly, and show its batch, loss and gradients.

    It starts from the newest checkpoint before that moment. The run directory is only read. Of several processes, what
    is shown is of rank 0.

    Exit codes: 0 done, 1 failed on the way, 2 the moment cannot be reached or bad usage.
    """
    if (code := launched(processes)) is not None:
        return code
    from graphtrain.command.replay import replay_command

    return replay_command(script, run_dir, settings or [], to, node, runs, debug=debug)
