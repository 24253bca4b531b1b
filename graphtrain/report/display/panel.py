"""A snapshot as a few lines of text that fit a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.text import Text

from graphtrain.printable import one_line
from graphtrain.report.numbers import counted, duration, metric, rate, share, size
from graphtrain.report.snapshot import Snapshot

_GAP = "  "
_LEAST_BAR = 8
_MOST_BAR = 60
_ACTIVITIES = ("data", "train", "validate", "save")
_COLOURS = {"finished": "green", "failed": "red", "interrupted": "yellow", "stopped": "yellow", "stopping": "yellow"}


@dataclass(frozen=True)
class Parts:
    """The texts of a snapshot, without control characters; empty if not known.

    Attributes:
        clocks: those of enclosing graphs: ``"fold 2/5"``.
        epoch, batch, step, window: ``"epoch 3/10"`` and so on.
        ends: other amounts that end the run, or stop it before its end: ``"until 2 hours"``, ``"until 500 steps (40
            %)"``.
        done: the share of the run that is done, or else of the amount until it stops, or of the epoch, 0 to 1; None if
            none is known.
        place: the progress of the evaluation, or the inner graph, or the state unless it is running.
        metrics: names and values.
        rates: ``"2.81 k batches/s"``.
        elapsed, left: times.
        memory: the amount, and the device.
        host_time: shares of host time, by activity.
    """

    clocks: tuple[str, ...]
    epoch: str
    batch: str
    step: str
    window: str
    ends: tuple[str, ...]
    done: float | None
    place: str
    metrics: tuple[tuple[str, str], ...]
    rates: tuple[str, ...]
    elapsed: str
    left: str
    memory: str
    host_time: tuple[str, ...]

    @property
    def facts(self) -> tuple[str, ...]:
        """The position of the run, the most important first."""
        return tuple(filter(None, (*self.clocks, self.epoch, self.batch, self.step, self.window, *self.ends)))

    @property
    def pace(self) -> tuple[str, ...]:
        """Its speed, and its use of resources."""
        return tuple(filter(None, (*self.rates, self.elapsed, self.left, self.memory)))


def parts(snapshot: Snapshot, metrics: Sequence[str] | None = None) -> Parts:
    """The texts of a snapshot.

    Arguments:
        metrics: names of the metrics to show, in this order. Default: all, the latest last.

    >>> snapshot = Snapshot("running", "fit", "validate/next_batch", step=40, epoch=2.5, end=("10 epochs",), batch=5)
    >>> texts = parts(snapshot)
    >>> texts.facts, texts.place
    (('epoch 3/10', 'batch 5', 'step 40'), 'in validate')
    """
    totals, other_ends = _ends(snapshot)
    epochs = totals.get("epochs")
    epoch, batch, left, memory = snapshot.epoch, snapshot.batch, snapshot.seconds_left, snapshot.memory_bytes
    is_active = snapshot.state in ("ready", "running", "stopping")
    of_epoch = min(batch / snapshot.epoch_batches, 1.0) if batch is not None and snapshot.epoch_batches else None
    shares = snapshot.done, snapshot.until_done, of_epoch
    if snapshot.until:  # with its share, if the bar shows another one
        is_shown = snapshot.done is not None and snapshot.until_done is not None
        other_ends.append(" or ".join(snapshot.until) + (f" ({share(snapshot.until_done or 0)})" if is_shown else ""))
    measured = snapshot.measured.items()
    chosen = measured if metrics is None else [(n, snapshot.metrics[n]) for n in metrics if n in snapshot.metrics]
    of_host = snapshot.shares
    activities = dict.fromkeys((*_ACTIVITIES, *sorted(of_host)))  # the usual ones first
    return Parts(
        clocks=tuple(
            f"{one_line(name)} {counted(value)}" + (f"/{totals[name]}" if totals.get(name) else "")
            for name, value in snapshot.clocks.items()
        ),
        epoch=f"epoch {_of(_epoch_number(snapshot, epochs), epochs)}" if epoch is not None else "",
        batch=f"batch {_of(batch, snapshot.epoch_batches)}" if batch is not None else "",
        step=f"step {_of(snapshot.step, totals.get('steps'))}" if snapshot.step is not None else "",
        window=f"window {_of(*snapshot.window)}" if snapshot.window is not None else "",
        ends=tuple(f"until {one_line(end)}" for end in other_ends),
        done=next((part for part in shares if part is not None), None),
        place=_place(snapshot),
        metrics=tuple((one_line(name), metric(value)) for name, value in chosen),
        rates=tuple(rate(number, one_line(unit)) for unit, number in snapshot.rates.items()),
        elapsed=f"{duration(snapshot.elapsed_seconds)} elapsed",
        left=f"{duration(left)} left" if left is not None and is_active else "",
        memory=f"{size(memory)} on {one_line(snapshot.device)}" if memory is not None else "",
        host_time=tuple(f"{one_line(name)} {share(of_host[name])}" for name in activities if name in of_host),
    )


def _ends(snapshot: Snapshot) -> tuple[dict[str, int], list[str]]:
    """The least amounts of epochs, steps and units of enclosing graphs, as numbers; all others as they are."""
    totals: dict[str, int] = {}
    others = []
    for text in snapshot.end:
        number, _, unit = text.partition(" ")
        if unit in ("epochs", "steps", *snapshot.clocks) and number.isascii() and number.isdigit() and len(number) < 16:
            totals[unit] = min(int(number), totals.get(unit, int(number)))
        else:
            others.append(text)
    return totals, others


def _of(number: float, whole: float | None) -> str:
    return f"{number:.0f}/{whole:.0f}" if whole else f"{number:.0f}"


def _epoch_number(snapshot: Snapshot, total: int | None) -> int:
    """The epoch the run is in, from 1; one that is complete is the current one while its batches are still counted."""
    epoch = snapshot.epoch or 0.0
    complete = epoch >= 1 and epoch == int(epoch)
    ended = complete and ((snapshot.batch and snapshot.epoch_batches) or snapshot.state == "finished")
    number = int(epoch) if ended else int(epoch) + 1
    return min(number, total) if total else number


def _place(snapshot: Snapshot) -> str:
    match snapshot.state:
        case "running" if snapshot.evaluation is not None and snapshot.evaluation_batch is not None:
            batch = _of(snapshot.evaluation_batch, snapshot.evaluation_batches)
            return f"batch {batch} of {one_line(snapshot.evaluation)}"
        case "running":
            inner, slash, _ = snapshot.position.rpartition("/")
            return f"in {one_line(inner)}" if slash else ""
        case "failed" | "interrupted":
            return f"{snapshot.state} in {one_line(snapshot.position)}"
        case _:
            return one_line(snapshot.state)


def plain_text(renderable: RenderableType, width: int = 100) -> str:
    """A rich renderable as text without colours, and without a line break at the end."""
    console = Console(file=StringIO(), width=width, color_system=None, force_jupyter=False, highlight=False)
    with console.capture() as drawn:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in drawn.get().splitlines())


def in_reading_order(metrics: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Metrics in an order that is the same from row to row: `loss`, those without a prefix, then the rest, by name."""
    return sorted(metrics, key=lambda metric: ("/" in metric[0], metric[0] != "loss", metric[0]))


class Panel:
    """A snapshot as a rich renderable of at most four lines, none longer than the terminal is wide.

    Arguments:
        snapshot: the run.

    >>> console = Console(width=60, highlight=False, no_color=True)
    >>> console.print(Panel(Snapshot("stopped", "fit", "step", step=7, epoch=0.5, done=0.25, metrics={"loss": 0.25})))
    epoch 1 ━━━━━━━                       25 %  step 7 · stopped
    loss 0.25
    0 s elapsed
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._parts = parts(snapshot)
        self._graph = one_line(snapshot.graph)
        self._colour = _COLOURS.get(snapshot.state, "cyan")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts, width = self._parts, options.max_width
        yield from self._first_line(console, options)
        if texts.metrics:
            yield self._metrics_line(width)
        yield self._pace_line(width)
        if texts.host_time:
            yield _cut(Text(f"time: {_GAP.join(texts.host_time)}", style="dim"), width)

    def _first_line(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = self._parts
        separator = " | " if options.ascii_only else " · "
        head, *facts = texts.facts or (self._graph,)
        percent = f" {share(texts.done)}" if texts.done is not None else ""

        def tail() -> str:
            words = separator.join([*facts, *filter(None, [texts.place])])
            return _GAP + words if words else ""

        def room() -> int:
            return min(options.max_width - cell_len(head + percent + tail()) - 1, _MOST_BAR)

        while facts and room() < (_LEAST_BAR if texts.done is not None else -1):
            facts.pop()
        line = Text().append(head, style="bold")
        if texts.done is not None and room() >= _LEAST_BAR:
            bar = console.render(ProgressBar(1.0, texts.done, width=room()), options)
            drawn = Text.assemble(*((segment.text, segment.style or "") for segment in bar))
            drawn.truncate(room(), pad=True)  # without colours the rest of a bar is not drawn
            line.append(" ").append_text(drawn)
        line.append(percent + tail().removesuffix(texts.place)).append(texts.place, style=self._colour)
        yield _cut(line, options.max_width)

    def _pace_line(self, width: int) -> Text:
        words = list(self._parts.pace)
        for dispensable in (self._parts.memory, self._parts.elapsed):
            if dispensable in words and cell_len(_GAP.join(words)) > width:
                words.remove(dispensable)
        return _cut(Text(_GAP.join(words)), width)

    def _metrics_line(self, width: int) -> Text:
        # The metrics without room are the same from row to row.
        wanted = sorted(in_reading_order(self._parts.metrics), key=lambda metric: not metric[0].endswith("loss"))
        number, taken, hidden = 0, 0, ""
        for number, (name, value) in enumerate(wanted, 1):
            taken += cell_len(f"{_GAP}{name} {value}")
            more = f"{_GAP}+{len(wanted) - number} more" if number < len(wanted) else ""
            if number > 1 and taken - len(_GAP) + len(more) > width:
                number, hidden = number - 1, f"{_GAP}+{len(wanted) - number + 1} more"
                break
        line = Text()
        for name, value in in_reading_order(wanted[:number]):
            line.append(_GAP if line else "").append(name, style="dim").append(f" {value}")
        return _cut(line.append(hidden, style="dim"), width)


def _cut(line: Text, width: int) -> Text:
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line
