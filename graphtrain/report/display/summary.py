"""A run before it starts, in a few lines: the model and its size, the graph and its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from graphtrain.printable import one_line
from graphtrain.report.display.panel import plain_text
from graphtrain.report.numbers import count, size

_MOST_ROWS = 20


@dataclass(frozen=True)
class Row:
    """A module inside a model.

    Attributes:
        path: its name in the model: ``"blocks.0"``; empty for the model itself.
        type: the name of its class.
        parameters: elements of its parameters.
        trainable: of these, how many are trained.
        waiting: parameters without a shape yet; lazy modules get theirs from the first batch.
    """

    path: str
    type: str
    parameters: int
    trainable: int
    waiting: int = 0

    @property
    def remark(self) -> str:
        """Special properties of its parameters; empty for none."""
        remarks = []
        if self.parameters and not self.trainable:
            remarks.append("frozen")
        elif self.trainable < self.parameters:
            remarks.append(f"{count(self.parameters - self.trainable)} frozen")
        if self.waiting:
            remarks.append("not initialised")
        return ", ".join(remarks)


@dataclass(frozen=True)
class ModelSummary:
    """A model in numbers; tied parameters count once.

    Attributes:
        type: the name of its class.
        rows: its modules: the children, and theirs where there are few.
        hidden: how many rows were left out.
        parameters: elements of its parameters.
        trainable: of these, how many are trained.
        bytes: memory of parameters and buffers.
        waiting: parameters without a shape so far.
    """

    type: str
    rows: tuple[Row, ...]
    hidden: int
    parameters: int
    trainable: int
    bytes: int
    waiting: int = 0

    @staticmethod
    def of(model: Any) -> ModelSummary:
        """The summary of a `torch.nn.Module`, or of anything that has its methods.

        >>> import torch
        >>> summary = ModelSummary.of(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()))
        >>> print(summary.sentence)
        Sequential, 8 parameters, 32 B
        >>> [(row.path, row.type, row.parameters) for row in summary.rows]
        [('0', 'Linear', 8), ('1', 'ReLU', 0)]
        """
        whole = _measured("", model)
        tensors = [*_tensors(model, "parameters"), *_tensors(model, "buffers")]
        rows = _rows(model)
        return ModelSummary(
            type=whole.type,
            rows=tuple(rows[:_MOST_ROWS]),
            hidden=max(0, len(rows) - _MOST_ROWS),
            parameters=whole.parameters,
            trainable=whole.trainable,
            bytes=sum(elements * tensor.element_size() for tensor in tensors if (elements := _elements(tensor))),
            waiting=whole.waiting,
        )

    @property
    def sentence(self) -> str:
        """Type, parameters and memory on a line."""
        frozen = self.parameters - self.trainable
        trained = f", {count(frozen) if self.trainable else 'all'} frozen" if frozen else ""
        waiting = f", {self.waiting} more not initialised" if self.waiting else ""
        return f"{one_line(self.type)}, {count(self.parameters)} parameters{trained}{waiting}, {size(self.bytes)}"


@dataclass(frozen=True)
class Activity:
    """A node that has a trigger.

    Arguments:
        path: the node.
        verb: `every` amount again, or once `after` it.
        amount: as in the graph, ``"1 epochs"``; may be empty where there is a remark.
        remark: anything else. Default: nothing.

    >>> print(Activity("validate", "every", "1 epochs"))
    validate every 1 epochs
    >>> print(Activity("schedule", "every", "", "bypassed: there is no `scheduler`"))
    schedule bypassed: there is no `scheduler`
    """

    path: str
    verb: Literal["every", "after"]
    amount: str
    remark: str = ""

    @property
    def when(self) -> str:
        """``"every 1 epochs"``, and the remark."""
        verb = "" if self.amount.startswith("once") else f"{self.verb} "
        moment = f"{verb}{self.amount}" if self.amount else ""
        return one_line(f"{moment} ({self.remark})" if moment and self.remark else moment or self.remark)

    def __str__(self) -> str:
        return f"{one_line(self.path)} {self.when}"


@final
@dataclass(frozen=True, repr=False)
class Summary:
    """What is printed when a run starts. It prints as text, with colours through rich.

    Arguments:
        graph: the name of the graph.
        models: the trained models, by resource name.
        activities: the schedule of the graph.

    >>> print(Summary("fit", {}, [Activity("validate", "every", "1 epochs"), Activity("finish", "after", "10 epochs")]))
    graph fit
      validate  every 1 epochs
      finish    after 10 epochs
    """

    graph: str
    models: Mapping[str, ModelSummary]
    activities: Sequence[Activity]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"graph {one_line(self.graph)}", "bold", overflow="ellipsis", no_wrap=True)
        if self.activities:
            yield _table([(one_line(activity.path), activity.when) for activity in self.activities])
        for name, model in self.models.items():
            yield Text.assemble((one_line(name), "bold"), f": {model.sentence}", overflow="ellipsis", no_wrap=True)
            yield _table([*map(_cells, model.rows)])
            if model.hidden:
                yield Text(f"  ... and {model.hidden} more", style="dim")

    def __repr__(self) -> str:
        return plain_text(self)


def _cells(row: Row) -> tuple[str, ...]:
    indent, name = "  " * row.path.count("."), one_line(row.path.rpartition(".")[2])
    parameters = count(row.parameters) if row.parameters else ""
    return indent + name or "(itself)", one_line(row.type), parameters, row.remark


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    """Cells in columns, indented; the third is a number."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=0)
    for number in range(len(rows[0])):
        table.add_column(no_wrap=True, overflow="ellipsis", justify="right" if number == 2 else "left")
    for row in rows:
        table.add_row("", *map(Text, row))
    return table


def _rows(model: Any) -> list[Row]:
    """The children of a model, with their children below if all fit."""
    children = [*_children("", model)]
    if not children:
        return [_measured("", model)]
    with_theirs = [line for path, child in children for line in [(path, child), *_children(f"{path}.", child)]]
    rows = [_measured("", model, recurse=False)] if _tensors(model, "parameters", recurse=False) else []
    return [*rows, *(_measured(*line) for line in (with_theirs if len(with_theirs) <= _MOST_ROWS else children))]


def _measured(path: str, module: Any, **options: bool) -> Row:
    parameters = _tensors(module, "parameters", **options)
    trainable = sum(_elements(parameter) for parameter in parameters if parameter.requires_grad)
    waiting = sum(map(_is_waiting, parameters))
    return Row(path, type(module).__name__, sum(map(_elements, parameters)), trainable, waiting)


def _elements(tensor: Any) -> int:
    try:
        return int(tensor.numel())
    except (ValueError, RuntimeError):  # a parameter of a lazy module has no shape yet
        return 0


def _is_waiting(tensor: Any) -> bool:
    try:
        return tensor.shape is None
    except (ValueError, RuntimeError):
        return True


def _tensors(module: Any, kind: str, **options: bool) -> list[Any]:
    return [*getattr(module, kind)(**options)] if hasattr(module, kind) else []


def _children(prefix: str, module: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(module, "named_children"):
        yield from ((prefix + name, child) for name, child in module.named_children())
