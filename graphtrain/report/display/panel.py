"""A snapshot as a few lines of text that fit a terminal, without control characters."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.text import Text

from graphtrain.printable import one_line
from graphtrain.report.numbers import count, duration, metric, rate, share, size
from graphtrain.report.snapshot import Snapshot

_GAP = "  "
_LEAST_BAR = 8
_MOST_BAR = 60
_ACTIVITIES = ("data", "train", "validate", "save")
_COLOURS = {"finished": "green", "failed": "red", "interrupted": "yellow", "stopped": "yellow", "stopping": "yellow"}


def facts(snapshot: Snapshot) -> list[str]:
    """The position of the run, the most important first; and amounts that end it, or stop it before its end."""
    totals: dict[str, int] = {}  # the least amounts of epochs, steps and units of enclosing graphs
    ends = []
    for text in snapshot.end:
        number, _, unit = text.partition(" ")
        if unit in ("epochs", "steps", *snapshot.clocks) and number.isdecimal() and len(number) < 16:
            totals[unit] = min(int(number), totals.get(unit, int(number)))
        else:
            ends.append(text)
    if snapshot.until:  # with its share, if the bar shows another one
        is_shown = snapshot.done is not None and snapshot.until_done is not None
        ends.append(" or ".join(snapshot.until) + (f" ({share(snapshot.until_done or 0)})" if is_shown else ""))
    words = [f"{one_line(name)} {_of(value, totals.get(name))}" for name, value in snapshot.clocks.items()]
    if snapshot.epoch is not None:
        words.append(f"epoch {_of(_epoch_number(snapshot, totals.get('epochs')), totals.get('epochs'))}")
    words += batch(snapshot)
    if snapshot.step is not None:
        words.append(f"step {_of(snapshot.step, totals.get('steps'))}")
    if snapshot.window is not None:
        words.append(f"window {_of(*snapshot.window)}")
    return [*words, *(f"until {one_line(end)}" for end in ends)]


def batch(snapshot: Snapshot) -> list[str]:
    """The batch of the epoch; nothing if not known."""
    return [f"batch {_of(snapshot.batch, snapshot.epoch_batches)}"] if snapshot.batch is not None else []


def _of(number: float, whole: float | None) -> str:
    return f"{count(number)}/{whole:.0f}" if whole else count(number)


def _epoch_number(snapshot: Snapshot, total: int | None) -> int:
    """The epoch the run is in, from 1; one that is complete is the current one while its batches are still counted."""
    epoch = snapshot.epoch or 0.0
    complete = epoch >= 1 and epoch == int(epoch)
    ended = complete and ((snapshot.batch and snapshot.epoch_batches) or snapshot.state == "finished")
    number = int(epoch) if ended else int(epoch) + 1
    return min(number, total) if total else number


def place(snapshot: Snapshot) -> str:
    """The progress of the evaluation, or the inner graph, or the state unless it is running."""
    match snapshot.state:
        case "running" if snapshot.evaluation is not None and snapshot.evaluation_batch is not None:
            fetched = _of(snapshot.evaluation_batch, snapshot.evaluation_batches)
            return f"batch {fetched} of {one_line(snapshot.evaluation)}"
        case "running":
            inner, slash, _ = snapshot.position.rpartition("/")
            return f"in {one_line(inner)}" if slash else ""
        case "failed" | "interrupted":
            return f"{snapshot.state} in {one_line(snapshot.position)}"
        case _:
            return one_line(snapshot.state)


def done(snapshot: Snapshot) -> float | None:
    """The share of the run that is done, or else of the amount until it stops, or of the epoch; None if not known."""
    fetched, whole = snapshot.batch, snapshot.epoch_batches
    of_epoch = min(fetched / whole, 1.0) if fetched is not None and whole else None
    return next((part for part in (snapshot.done, snapshot.until_done, of_epoch) if part is not None), None)


def metrics(snapshot: Snapshot, names: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Names and values of metrics; of all of them, `loss`, those without a prefix, then the rest, by name."""
    values = snapshot.measured
    chosen = sorted(values, key=lambda name: ("/" in name, name != "loss", name)) if names is None else names
    return [(one_line(name), metric(values[name])) for name in chosen]


def rates(snapshot: Snapshot) -> list[str]:
    """Its speed: ``"2.81 k batches/s"``."""
    return [rate(number, one_line(unit)) for unit, number in snapshot.rates.items()]


def left(snapshot: Snapshot) -> list[str]:
    """The time until its end, if that is known and it is running."""
    is_active = snapshot.seconds_left is not None and snapshot.state in ("ready", "running", "stopping")
    return [f"{duration(snapshot.seconds_left or 0)} left"] if is_active else []


def pace(snapshot: Snapshot, width: float) -> list[str]:
    """Its speed and its use of resources; without the memory, and the elapsed time, where there is no room."""
    speed, elapsed, remaining = rates(snapshot), f"{duration(snapshot.elapsed_seconds)} elapsed", left(snapshot)
    layouts = [[*speed, elapsed, *remaining], [*speed, *remaining]]
    if snapshot.memory_bytes is not None:
        layouts.insert(0, [*layouts[0], f"{size(snapshot.memory_bytes)} on {one_line(snapshot.device)}"])
    return next((words for words in layouts if cell_len(_GAP.join(words)) <= width), layouts[-1])


def host_time(snapshot: Snapshot) -> list[str]:
    """The shares of host time that activities took, the usual ones first."""
    seconds, total = snapshot.seconds, sum(snapshot.seconds.values())
    names = dict.fromkeys((*_ACTIVITIES, *sorted(seconds)))
    return [f"{one_line(name)} {share(seconds[name] / total)}" for name in names if seconds.get(name) and total]


def plain_text(renderable: RenderableType, width: int = 100) -> str:
    """A rich renderable as text without colours, and without a line break at the end."""
    console = Console(file=StringIO(), width=width, color_system=None, force_jupyter=False, highlight=False)
    with console.capture() as drawn:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in drawn.get().splitlines())


class Panel:
    """A snapshot as a rich renderable of at most four lines, none longer than the terminal is wide."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        lines = [
            self._first_line(console, options),
            self._metrics_line(width),
            Text(_GAP.join(pace(self._snapshot, width))),
        ]
        if shares := host_time(self._snapshot):
            lines.append(Text(f"time: {_GAP.join(shares)}", style="dim"))
        for line in filter(None, lines):
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis")
            yield line

    def _repr_html_(self) -> str:
        console = Console(file=StringIO(), width=100, record=True, force_jupyter=False, highlight=False)
        console.print(self)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    def __repr__(self) -> str:
        return plain_text(self)

    def _first_line(self, console: Console, options: ConsoleOptions) -> Text:
        """The bar, with as many facts as leave room for it."""
        separator = " | " if options.ascii_only else " · "
        state, part = place(self._snapshot), done(self._snapshot)
        head, *optional = facts(self._snapshot) or (one_line(self._snapshot.graph),)
        percent = f" {share(part)}" if part is not None else ""
        while True:
            words = separator.join(filter(None, [*optional, state]))
            tail = percent + (_GAP + words if words else "")
            room = min(options.max_width - cell_len(head + tail) - 1, _MOST_BAR)
            if not optional or room >= (_LEAST_BAR if part is not None else -1):
                break
            optional.pop()
        line = Text().append(head, style="bold")
        if part is not None and room >= _LEAST_BAR:
            bar = console.render(ProgressBar(1.0, part, width=room), options)
            drawn = Text.assemble(*((segment.text, segment.style or "") for segment in bar))
            drawn.truncate(room, pad=True)  # without colours the rest of a bar is not drawn
            line.append(" ").append_text(drawn)
        return line.append(tail.removesuffix(state)).append(state, style=_COLOURS.get(self._snapshot.state, "cyan"))

    def _metrics_line(self, width: int) -> Text:
        """The metrics, losses first where there is no room for all, so that these are the same from row to row."""
        every = metrics(self._snapshot)
        wanted, number, more = sorted(every, key=lambda metric: not metric[0].endswith("loss")), 0, ""
        for number in range(min(len(wanted), width // 5 + 1), 0, -1):  # each takes five cells
            more = f"{_GAP}+{len(wanted) - number} more" if number < len(wanted) else ""
            if cell_len(_GAP.join([" ".join(metric) for metric in wanted[:number]]) + more) <= width:
                break
        shown, line = {*wanted[:number]}, Text()
        for name, value in filter(shown.__contains__, every):
            line.append(_GAP if line else "").append(name, style="dim").append(f" {value}")
        return line.append(more, style="dim")
