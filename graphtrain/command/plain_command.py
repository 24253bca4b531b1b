"""Commands whose help shows no types of Python, and which name the nearest option for one that does not exist."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from graphtrain.names import FOREIGN, nearest, suggestion

# The base of all errors of usage, wherever typer takes it from.
_UsageError: Any = typer.BadParameter.__mro__[1]


class _Plain:
    """What a command and a group of commands have in common."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class beside this one
        for parameter in parameters:
            is_flag = getattr(parameter, "is_flag", False)  # an argument has no such attribute
            if is_flag or parameter.param_type_name == "argument":  # the name of an argument stands there already
                parameter.display_type_rich = _nothing
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except _UsageError as error:
            if type(error).__name__ == "NoSuchOption":
                known = [word for parameter in self.get_params(ctx) for word in parameter.opts if word[:2] == "--"]
                hint = option_hint(error.option_name, known)
                error.message, error.possibilities = f"There is no option `{error.option_name}`; {hint}", None
            raise
        return rest


def option_hint(option: str, known: list[str]) -> str:
    """What to write instead of an option that does not exist.

    >>> option_hint("--run-dri", ["--run-dir", "--resume"]), option_hint("--max-epochs", ["--run-dir"])
    ('did you mean `--run-dir`?', 'that is `finish.after = "N epochs"` here')
    >>> option_hint("--lr", ["--run-dir"])
    'options: --run-dir; what is no option is written without dashes, as in lr=VALUE'
    """
    name = option.lstrip("-").replace("-", "_")
    if name in FOREIGN:
        return suggestion(name, ())
    # Without the dashes, in which all of them are alike.
    if match := nearest(name, [word.removeprefix("--") for word in known]):
        return f"did you mean `--{match}`?"
    return f"options: {', '.join(known)}; what is no option is written without dashes, as in {name}=VALUE"


class PlainCommand(_Plain, TyperCommand):
    """A command."""


class PlainGroup(_Plain, TyperGroup):
    """A command with commands below it."""


def _nothing(ctx: Any) -> None:
    """In the place of the type in a help text."""
