"""The command line: the list of its commands, and what all of them have in common."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click

from graphtrain.command.failure import exit_on_failure
from graphtrain.lazy import installed, part
from graphtrain.names import FOREIGN, nearest, pasted, suggestion
from graphtrain.version import __version__

# Every command, and the module of this package that declares it, which is imported when the command is used. The
# commands of a module that was deleted are not listed.
COMMANDS = {
    "run": "run",
    "check": "graphs",
    "render": "graphs",
    "show": "graphs",
    "diff": "diff",
    "copy": "graphs",
    "new": "graphs",
    "graphs": "graphs",
    "nodes": "graphs",
    "export": "runs",
    "ls": "runs",
    "status": "runs",
    "explain": "explain",
    "report": "pages",
    "watch": "pages",
    "test": "evaluate",
    "predict": "evaluate",
    "verify": "prove",
    "replay": "prove",
}

# Commands of other tools, and what to write here.
_RUN = "write graphtrain run SCRIPT NAME=VALUE ..."
ELSEWHERE = {
    "train": _RUN,
    "fit": _RUN,
    "launch": "write graphtrain run SCRIPT --processes N",
    "resume": "the command that began a run resumes it: graphtrain run SCRIPT --run-dir RUN",
    "validate": "write graphtrain test SCRIPT --run-dir RUN",
    "evaluate": "write graphtrain test SCRIPT --run-dir RUN",
    "eval": "write graphtrain test SCRIPT --run-dir RUN",
    "init": "write graphtrain new train.py",
    "list": "write graphtrain ls",
    "runs": "write graphtrain ls",
    "draw": "write graphtrain render GRAPH -o graph.svg",
}

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class Argument(click.Argument):
    """An argument with a help text."""

    def __init__(self, names: Sequence[str], *, section: str, help: str, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.section, self.help = section, help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Its name and its help."""
        return f"{self.metavar}", f"{self.help}"


class Option(click.Option):
    """An option in a section of the help."""

    def __init__(self, names: Sequence[str], *, section: str, **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self.section = section


# The sections of a docstring, and their entries for parameters: ``name (PLACEHOLDER): text``.
_SECTION = re.compile(r"^(\S.*):\n((?:\n* {4}.+)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+)(?: \((.+?)\))?: (.+(?:\n {8}.+)*)", re.MULTILINE)


def parameters_of(declared: Callable[..., Any], shared: str = "") -> list[click.Parameter]:
    """The parameters of a function or a class as those of a command; keyword-only ones are options.

    Types and defaults come from the signature; sections, placeholders and texts from the docstring.

    Arguments:
        shared: a text with such sections, for the parameters that the docstring does not describe.

    >>> def count(folder: Path, *, every: int = 1, json: bool = False):
    ...     '''Count files.
    ...
    ...     Options:
    ...         every (NUMBER): Count one in so many.
    ...         json: Print JSON.
    ...     '''
    >>> [parameter.opts for parameter in parameters_of(count, "Arguments:\\n    folder: The folder.")]
    [['folder'], ['--every'], ['--json']]
    """
    texts = {
        entry[0]: (section, *entry[1:])
        for text in (shared, inspect.getdoc(declared) or "")
        for section, entries in _SECTION.findall(text)
        for entry in _ENTRY.findall(entries)
    }
    hints = get_type_hints(declared)
    parameters: list[click.Parameter] = []
    for name, parameter in inspect.signature(declared).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue  # those of `params`
        is_option = parameter.kind is parameter.KEYWORD_ONLY
        section, placeholder, text = texts.get(name, ("Options" if is_option else "Arguments", "", ""))
        inner = [hints[name], *get_args(hints[name])]
        is_several, default = get_origin(hints[name]) is Sequence, parameter.default
        attributes: dict[str, Any] = {
            "type": next((kind for kind in (Path, int) if kind in inner), None),
            "required": default is parameter.empty and not is_several,
            "metavar": placeholder or name.upper(),
            "help": " ".join(text.split()),
            "section": section,
        }
        if default is not parameter.empty and not is_several:
            attributes["default"] = default
        if not is_option:
            if not attributes["required"]:
                attributes["metavar"] = f"[{attributes['metavar']}]" + "..." * is_several
            parameters.append(Argument([name], nargs=-1 if is_several else 1, **attributes))
            continue
        flag = f"--{name.removeprefix('as_').replace('_', '-')}"
        attributes |= {"is_flag": True, "metavar": None} if default is False else {"multiple": is_several}
        attributes["show_default"] = type(default) is int or (isinstance(default, str) and default != "")
        parameters.append(Option([name, flag, *(["-o"] if name == "output" else [])], **attributes))
    return parameters


class _Helpful(click.Command):
    """The base of a command and of their group: the help, and suggestions for unknown options."""

    examples = "Examples"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; for an unknown option, suggest another."""
        words = list(args)  # which parsing takes apart
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [word for parameter in self.get_params(ctx) for word in parameter.opts if word[:2] == "--"]
            has_settings = any(parameter.name == "settings" for parameter in self.get_params(ctx))
            value = _value_of(error.option_name, words)
            hint = option_hint(error.option_name, known, value, has_settings=has_settings)
            hint = hint or f"{ctx.command_path} --help lists them"
            raise click.UsageError(f"There is no option `{error.option_name}`; {hint}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, and options by their sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing: they are among the sections above."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, a line each."""
        with formatter.section(self.examples):
            for line in (self.epilog or "").splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Command(_Helpful):
    """A command, which exits with the code that its function returns; a failure is one readable message."""

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function, and exit."""
        with exit_on_failure():
            code = super().invoke(ctx)
        ctx.exit(code or 0)


class CommandLine(_Helpful, click.Group):
    """The commands of `COMMANDS`."""

    examples = "Begin with"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands whose module exists, in the order of the help."""
        return [name for name in COMMANDS if self.get_command(ctx, name) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, whose module is imported now."""
        module = installed(f"{__package__}.{COMMANDS[cmd_name]}") if cmd_name in COMMANDS else None
        return getattr(module, cmd_name.replace("-", "_"), None)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that the first word names, and the words that follow."""
        if self.get_command(ctx, args[0]) is None:
            close = nearest(args[0], self.list_commands(ctx))
            hint = ELSEWHERE.get(args[0]) or (f"did you mean `{close}`?" if close else "")
            ctx.fail(f"There is no command `{args[0]}`" + (f"; {hint}" if hint else ""))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before the command; without any words, print the help."""
        if not args:
            click.echo(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, and a sentence on each command."""
        super().format_options(ctx, formatter)
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        helps = {name: (command and command.help) or "" for name, command in commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join(text.partition("\n\n")[0].split())) for name, text in helps.items()])


def option_hint(option: str, known: Sequence[str], value: str = "", *, has_settings: bool = True) -> str:
    """What to write instead of an option that does not exist; empty if that is not known.

    Arguments:
        value: the word that follows it. Default: none.
        has_settings: False for a command that takes no settings of a graph or of a script. Default: True.

    >>> option_hint("--run-dri", ["--run-dir", "--resume"]), option_hint("--max-epochs", ["--run-dir"])
    ('did you mean `--run-dir`?', 'that is `finish.after = "N epochs"` here')
    >>> option_hint("--max-epochs", ["--run-dir"], "3"), option_hint("--lr", ["--run-dir"], "1e-3")
    ("write finish.after='3 epochs'", 'a setting of that name, if there is one, is written without dashes: lr=1e-3')
    """
    name = option.lstrip("-").replace("-", "_")
    number = re.fullmatch(r"\d+(\.\d+)?", value)
    if words := pasted(name, (float if number[1] else int)(value) if number else value) if value else "":
        return f"write {words}"
    if name in FOREIGN:
        return suggestion(name, ())
    # Without the dashes, which all of them have.
    if match := nearest(name, [word.removeprefix("--") for word in known]):
        return f"did you mean `--{match}`?"
    without = f"a setting of that name, if there is one, is written without dashes: {name}={value or 'VALUE'}"
    return without if has_settings else ""


def _value_of(option: str, words: Sequence[str]) -> str:
    """The value of an option among the words of a command line; empty if it has none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option and not following.startswith("-"):
            return following
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return ""


def command(
    *examples: str, cls: type[Command] = Command, shared: str = "", params: Sequence[click.Parameter] = ()
) -> Callable[[Callable[..., int | None]], Command]:
    """Declare a command: a function that is called with its parameters, and returns the exit code.

    Arguments:
        shared: as for `parameters_of`.
        params: further parameters.
    """

    def declare(function: Callable[..., int | None]) -> Command:
        return cls(
            function.__name__,
            callback=function,
            params=[*parameters_of(function, shared), *params],
            help=_SECTION.split(inspect.getdoc(function) or "")[0],
            epilog="\n".join(examples),
            context_settings=_CONTEXT,
        )

    return declare


def launched(processes: int | None) -> int | None:
    """Start this command in ``--processes`` processes; the exit code of all, or None to run it in this one.

    Raises:
        UsageError: the number is not possible, or this copy of the package cannot start processes.
    """
    return part("launcher").launched(processes) if processes is not None else None


app = CommandLine(
    "graphtrain",
    help="Train PyTorch models with an explicit graph: edit it, draw it, check it, stop it, resume it bit for bit.",
    epilog="graphtrain new train.py\npython train.py",
    context_settings=_CONTEXT,
)
click.version_option(
    __version__, prog_name="graphtrain", message="%(prog)s %(version)s", help="Print the version and exit."
)(app)
