"""`graphtrain run`, and the same command of a script that calls `graphtrain.main`: its options and its help."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from graphtrain.command.cli import (
    Command,
    command,
    launched,
    options,
    overlay_option,
    processes_option,
    settings_argument,
)
from graphtrain.command.failure import exit_on_failure
from graphtrain.command.output import notify_once
from graphtrain.command.script import load_graph, script_graph, setup_function, split_script
from graphtrain.command.settings import print_arguments, print_parameters, split_settings
from graphtrain.graph import Graph


@dataclass(frozen=True)
class Script:
    """A script or program to run.

    Attributes:
        function: the name of the setup.
        file: where it is; None for a program that has no file.
        words: the beginning of the command line, before the words of its user: ``["python", "train.py"]``.
        source: the words that name it for other commands: ``["train.py:setup"]``; none where they cannot.
        own_graph: returns its graph, which is used if the command line names none.
    """

    setup: Callable[..., Any]
    function: str
    file: Path | None
    words: Sequence[str]
    source: Sequence[str]
    own_graph: Callable[[], Graph | str | Path]

    @property
    def name(self) -> str:
        """The setup in messages: ``"train.py:setup"``."""
        return self.function if self.file is None else f"{self.file.name}:{self.function}"

    @classmethod
    def of_script(cls, script: str) -> Script:
        """That of ``SCRIPT[:FUNCTION]``, which is imported.

        Raises:
            UsageError: there is no such script or function.
        """
        path, name, setup = setup_function(script)
        return cls(setup, name, path, ["graphtrain"], [script], lambda: script_graph(script))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run, which are those of the command line: `run_options` has their help."""

    graph: str | None = None
    overlay: Sequence[str] = ()
    run_dir: Path | None = None
    resume: str = "auto"
    fork: Path | None = None
    init: Sequence[str] = ()
    init_only: Sequence[str] = ()
    rename: Sequence[str] = ()
    from_setup: str = ""
    from_saved: bool = False
    until: str | None = None
    dry_run: bool = False
    seed: int = 0
    device: str = "auto"
    processes: int | None = None
    deterministic: bool = False
    tensorboard: bool = False
    wandb: bool = False
    trace: bool = False
    quiet: bool = False
    lightning: str | None = None
    data: str | None = None


run_options = options(
    click.option("--graph", help="A name, a TOML file, another script, or saved. Default: the script's, else fit."),
    overlay_option,
    click.option("--run-dir", type=Path, help="Written to, or resumed from. Default: a new folder in runs."),
    click.option("--resume", default="auto", metavar="WHAT", help="auto, never, best, newest, or a path."),
    click.option("--fork", type=Path, metavar="RUN", help="Begin a new run from a checkpoint of another."),
    click.option("--init", multiple=True, metavar="NAME=FILE", help="Load weights, as in model=w.safetensors."),
    click.option("--init-only", multiple=True, metavar="NAMES", help="Load only names that match 'body.*'."),
    click.option("--rename", multiple=True, metavar="OLD=NEW", help="The node OLD of the saved graph is NEW now."),
    click.option("--from-setup", default="", metavar="NAMES", help="When resuming, take these from setup."),
    click.option("--from-saved", is_flag=True, help="When resuming, keep what was saved."),
    click.option("--until", metavar="AMOUNT", help="Stop after '500 steps', '2 hours'; to be resumed."),
    click.option("--dry-run", is_flag=True, help="Run everything once, and write nothing."),
    click.option("--seed", type=int, default=0, help="Seed of Python, NumPy and torch."),
    click.option("--device", default="auto", help="auto, cpu, cuda, cuda:1, ..."),
    processes_option,
    click.option("--deterministic", is_flag=True, help="Ask torch for deterministic kernels."),
    click.option("--tensorboard", is_flag=True, help="Log to TensorBoard too."),
    click.option("--wandb", is_flag=True, help="Log to Weights and Biases too."),
    click.option("--trace", is_flag=True, help="Print each transition, and the guards it asked."),
    click.option("--quiet", is_flag=True, help="Print errors only."),
)

# Those that stand in for a script.
ADAPTER_OPTIONS = ("lightning", "data")
adapter_options = options(
    click.option("--lightning", metavar="MODULE:CLASS", help="A LightningModule in place of a script."),
    click.option("--data", metavar="MODULE:CLASS", help="With --lightning: its LightningDataModule."),
)
script_argument = click.argument("script", default="", metavar="[SCRIPT[:FUNCTION]]")


@dataclass(frozen=True, kw_only=True)
class ScriptOrClass:
    """What the words of a command name: a script, or a class that an adapter trains.

    Attributes:
        script: ``SCRIPT[:FUNCTION]``; empty for a class.
        lightning, data: as of `RunOptions`.
    """

    script: str = ""
    lightning: str | None = None
    data: str | None = None

    @property
    def words(self) -> list[str]:
        """Those by which commands name it.

        >>> ScriptOrClass(lightning="net.py:Net", data="net.py:Data").words
        ['--lightning', 'net.py:Net', '--data', 'net.py:Data']
        """
        named = {name: getattr(self, name) for name in ADAPTER_OPTIONS}
        options = [word for name, value in named.items() if value is not None for word in (f"--{name}", value)]
        return [self.script] if self.script else options

    def program(self, values: Callable[[], Mapping[str, Any]] = dict) -> Script:
        """The script, which is imported, or what the adapter makes of the class.

        Arguments:
            values: returns the settings by which an adapter makes its graph. Default: none.

        Raises:
            UsageError: there is no such script, function or class.
        """
        if self.script:
            return Script.of_script(self.script)
        from graphtrain.command.adapted import adapted

        made = adapted(self.lightning or "", self.data, values)
        return replace(made, source=self.words)

    def imported_again(self) -> Script:
        """The program of a new import of its files, with new global variables."""
        for word in (self.script, self.lightning, self.data):
            file, _ = split_script(word or "")
            if file.suffix == ".py":
                sys.modules.pop(file.stem, None)
        return self.program()


def script_or_class(script: str, settings: Sequence[str], **options: Any) -> tuple[ScriptOrClass, list[str]]:
    """What the words of a command name, and its settings, of which `script` is one if a class is named.

    Raises:
        click.UsageError: neither is named.
    """
    if options["lightning"] is None:
        if not script:
            missing = "Missing argument 'SCRIPT[:FUNCTION]', or --lightning MODULE:CLASS."
            raise click.UsageError(missing, click.get_current_context())
        return ScriptOrClass(script=script), [*settings]
    return ScriptOrClass(**options), [*filter(None, [script]), *settings]


def without(words: Sequence[str], options: Collection[str]) -> list[str]:
    """The words of a command line without some options.

    Arguments:
        options: their names, followed by ``=`` if they take a value.

    >>> without(["a.py", "--until", "2 steps", "--resume=best", "--quiet"], ["--until=", "--quiet"])
    ['a.py', '--resume=best']
    """
    kept, remaining = [], iter(words)
    for word in remaining:
        name, equals, _ = word.partition("=")
        if word not in options and f"{name}=" not in options:
            kept.append(word)
        elif word not in options and not equals:
            next(remaining, None)
    return kept


# Options for the start of a run, which a resume does not repeat; and limits that have been reached.
OF_THE_START = ("--resume=", "--fork=", "--from-setup=", "--from-saved", "--rename=")
OF_THE_END = ("--until=",)


def resume_command(words: Sequence[str], run_dir: Path, *, is_reached: bool) -> str:
    """The command that resumes a run: the one that was typed, without options that no longer apply.

    Arguments:
        is_reached: True if the run has come to its --until.

    >>> resume_command(["graphtrain", "run", "a.py", "--fork", "r", "--until", "2 steps"], Path("s"), is_reached=True)
    'graphtrain run a.py --run-dir s'
    """
    kept = without(words, [*OF_THE_START, *(OF_THE_END if is_reached else ())])
    is_named = any(word.partition("=")[0] == "--run-dir" for word in kept)
    return shlex.join([*kept, *([] if is_named else ["--run-dir", str(run_dir)])])


class ScriptCommand(Command):
    """A command that takes a script; if one is named, the help lists what can be set, else it imports nothing.

    Attributes:
        program: the script that is its own command, if it is one.
    """

    program: Script | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; if there is an option for help anywhere, as far as they can be parsed."""
        if not set(ctx.help_option_names) & set(args):
            return super().parse_args(ctx, args)
        ctx.resilient_parsing = True
        super().parse_args(ctx, [word for word in args if word not in ctx.help_option_names])
        ctx.resilient_parsing = False
        click.echo(ctx.get_help())
        with exit_on_failure():
            self._print_settings(**ctx.params)
        ctx.exit()

    def _print_settings(
        self,
        script: str | None = None,
        settings: Sequence[str] = (),
        graph: str | None = None,
        overlay: Sequence[str] = (),
        **options: Any,
    ) -> None:
        program = self.program
        if program is None and script is not None and script.partition(":")[0].endswith(".py"):
            program = Script.of_script(script)
        if program is not None:
            print_arguments(program.setup, program.function)
            named = options.get("run_dir") if graph == "saved" else graph
            print_parameters(load_graph(named or program.own_graph(), overlays=overlay), settings)


@command(
    "graphtrain run examples/digits.py accumulate.every=4 --run-dir runs/first",
    "graphtrain run train.py:setup lr=1e-3 finish.after='500 steps' --graph my_fit.toml",
    "graphtrain run train.py --overlay ema --overlay early_stop early_stop.patience=2",
    "graphtrain run --lightning train.py:Net lr=1e-3 max_epochs=5 --run-dir runs/net",
    "graphtrain run train.py --help",
    cls=ScriptCommand,
)
@script_argument
@settings_argument
@run_options
@adapter_options
def run(script: str, settings: Sequence[str], **options: Any) -> int:
    """Train with a script: its setup() returns model, optimizer and data. A run that was interrupted is resumed.

    NAME=VALUE sets an argument of setup (lr=1e-3) or a parameter of a node (finish.after='9 epochs'). With a SCRIPT,
    --help also lists what can be set. FUNCTION is another function than setup.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped and resumable.
    """
    made = RunOptions(**options)
    source, settings = script_or_class(script, settings, **{name: options[name] for name in ADAPTER_OPTIONS})
    if source.script:
        return _train(script, settings, made)
    return _train(source.program(lambda: split_settings(settings)[0]), settings, made)


def program_command(program: Script) -> Command:
    """The command of a script that calls `graphtrain.main`."""

    @command(
        f"{shlex.join(program.words)} accumulate.every=4 --run-dir runs/first",
        cls=ScriptCommand,
    )
    @settings_argument
    @run_options
    def run(settings: Sequence[str], **options: Any) -> int:
        """Train with this script. A run that was interrupted is resumed.

        NAME=VALUE sets an argument of setup (lr=1e-3) or a parameter of a node (finish.after='9 epochs').

        Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped and resumable.
        """
        return _train(program, settings, RunOptions(**options))

    assert isinstance(run, ScriptCommand)
    run.program = program
    return run


def _train(program: Script | str, settings: Sequence[str], options: RunOptions) -> int:
    if (code := launched(options.processes)) is not None:
        return code
    if isinstance(program, str) and sys.stderr.isatty() and not options.quiet:
        notify_once()(f"importing {program}")  # and torch, which takes seconds
    from graphtrain.command.training import train

    return train(program, settings, options, click.get_current_context().obj)
