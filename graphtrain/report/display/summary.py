"""A run before it starts, in a few lines: the model and its size, the graph and its schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from graphtrain.printable import one_line
from graphtrain.report.display.panel import plain_text
from graphtrain.report.numbers import count, size

_MOST_ROWS = 20


@final
class Summary:
    """What is printed when a run starts. It prints as text, with colours through rich.

    Arguments:
        graph: the title of the graph.
        schedule: the path of each node with a trigger, and when it is due.
        models: the modules, by resource name. Tied parameters count once.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> print(Summary("fit", {"validate": "every 1 epochs", "finish": "after 10 epochs"}, {"model": model}))
    graph fit
      validate  every 1 epochs
      finish    after 10 epochs
    model: Sequential, 8 parameters, 32 B
      0  Linear  8
      1  ReLU
    """

    def __init__(self, graph: str, schedule: Mapping[str, str], models: Mapping[str, Any]) -> None:
        self._graph, self._schedule, self._models = graph, schedule, models

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"graph {one_line(self._graph)}", "bold", overflow="ellipsis", no_wrap=True)
        if self._schedule:
            yield _table([(one_line(path), one_line(when)) for path, when in self._schedule.items()])
        for name, model in self._models.items():
            yield Text.assemble((one_line(name), "bold"), f": {_sentence(model)}", overflow="ellipsis", no_wrap=True)
            rows = _rows(model)
            yield _table([_cells(*row) for row in rows[:_MOST_ROWS]])
            if len(rows) > _MOST_ROWS:
                yield Text(f"  ... and {len(rows) - _MOST_ROWS} more", style="dim")

    def __repr__(self) -> str:
        return plain_text(self)


def _sentence(model: Any) -> str:
    """Type, parameters and memory on a line."""
    elements, frozen, waiting = _measured(model.parameters())
    tensors = [*model.parameters(), *model.buffers()]
    memory = sum(number * tensor.element_size() for tensor in tensors if (number := _elements(tensor)))
    trained = f", {'all' if frozen == elements else count(frozen)} frozen" if frozen else ""
    more = f", {waiting} more not initialised" if waiting else ""
    return f"{one_line(type(model).__name__)}, {count(elements)} parameters{trained}{more}, {size(memory)}"


def _rows(model: Any) -> list[tuple[str, Any, bool]]:
    """The path and module of each row, and whether it counts modules inside: children, and theirs if all fit."""
    children = [(path, child, True) for path, child in model.named_children()]
    if not children:
        return [("", model, True)]
    own = [("", model, False)] if [*model.parameters(recurse=False)] else []
    inner = [
        row
        for path, child, _ in children
        for row in [(path, child, True), *((f"{path}.{name}", each, True) for name, each in child.named_children())]
    ]
    return own + (inner if len(inner) <= _MOST_ROWS else children)


def _cells(path: str, module: Any, recurse: bool) -> tuple[str, ...]:
    elements, frozen, waiting = _measured(module.parameters(recurse))
    remarks = [f"{count(frozen)} frozen" if frozen < elements else "frozen"] if frozen else []
    remarks += ["not initialised"] if waiting else []
    name = "  " * path.count(".") + one_line(path.rpartition(".")[2])
    return name or "(itself)", one_line(type(module).__name__), count(elements) if elements else "", ", ".join(remarks)


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    """Cells in columns, indented; the third is a number."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=0)
    for number in range(len(rows[0])):
        table.add_column(no_wrap=True, overflow="ellipsis", justify="right" if number == 2 else "left")
    for row in rows:
        table.add_row("", *map(Text, row))
    return table


def _measured(parameters: Iterable[Any]) -> tuple[int, int, int]:
    """The elements of parameters, how many of these are frozen, and how many parameters have no shape yet."""
    sizes = [(_elements(parameter), parameter.requires_grad) for parameter in parameters]
    frozen = sum(number or 0 for number, is_trained in sizes if not is_trained)
    return sum(number or 0 for number, _ in sizes), frozen, sum(number is None for number, _ in sizes)


def _elements(tensor: Any) -> int | None:
    """How many elements a tensor has; None for a parameter of a lazy module, which has no shape yet."""
    try:
        return int(tensor.numel())
    except (ValueError, RuntimeError):
        return None
