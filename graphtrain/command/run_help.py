"""The help of a run: the options, and the arguments and parameters of the script and the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphtrain.command.failure import exit_on_failure
from graphtrain.command.plain_command import PlainCommand
from graphtrain.graph import Graph


class RunCommand(PlainCommand):
    """The command `run`; its help lists arguments and parameters if a script is named, and imports nothing else."""

    setup: Callable[..., Any] | None = None
    graph: Graph | str | Path = "fit"
    _typed: tuple[str, ...] = ()

    @classmethod
    def of(cls, setup: Callable[..., Any], graph: Graph | str | Path) -> type[RunCommand]:
        """The command of a script that calls `graphtrain.main`."""
        return type("ScriptCommand", (cls,), {"setup": staticmethod(setup), "graph": graph})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self._typed = tuple(args)  # help is printed before the arguments are parsed
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        setup = type(self).setup
        words = [word for word in self._typed if word not in (self._value("--graph"), *self._values("--overlay"))]
        script = next((word for word in words if word.partition(":")[0].endswith(".py")), None)
        if setup is None and script is None:
            return
        with exit_on_failure():
            from graphtrain.command.script import setup_function
            from graphtrain.command.script_graph import load_graph
            from graphtrain.command.settings_help import print_arguments, print_parameters

            name = "setup"
            if setup is None:
                assert script is not None
                _, name, setup = setup_function(script)
            print_arguments(setup, name)
            print_parameters(load_graph(self._named_graph(script), overlays=self._values("--overlay")))

    def _named_graph(self, script: str | None) -> Graph | str | Path:
        """The graph of the command line, or else that of the script."""
        named = self._value("--graph")
        if named == "saved":
            named = self._value("--run-dir")
        return named or (self.graph if self.setup is not None or script is None else script)

    def _value(self, option: str) -> str | None:
        return next(iter(self._values(option)), None)

    def _values(self, option: str) -> list[str]:
        values = []
        for word, following in zip(self._typed, (*self._typed[1:], ""), strict=True):
            if word == option and following:
                values.append(following)
            elif word.startswith(f"{option}="):
                values.append(word.partition("=")[2])
        return values


class EvaluationCommand(RunCommand):
    """The command `test` or `predict`: without another graph, it is that of its name."""

    def _named_graph(self, script: str | None) -> Graph | str | Path:
        return self._value("--graph") or str(self.name)
