"""Promise 18: what a terminal, a notebook and a log file show of a run; text of others commands nothing.

What a person sees on a terminal is decided by one, in real processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from html.parser import HTMLParser
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from graphtrain import Snapshot
from graphtrain.report.display.choose import PlainLines, display_for
from graphtrain.report.display.notebook import Notebook
from graphtrain.report.display.panel import Panel, plain_text
from tests.looking.terminal import VALUES, Terminal


def snapshot(**changes: Any) -> Snapshot:
    return Snapshot(**{**VALUES, **changes})


# ---- which one is chosen


@pytest.mark.parametrize(
    ("is_terminal", "term", "shell", "chosen"),
    [
        (True, "xterm", None, "Live"),
        (True, "dumb", None, "PlainLines"),
        (False, "xterm", None, "PlainLines"),
        (None, "xterm", None, "PlainLines"),
        (False, "xterm", SimpleNamespace(kernel=1), "Notebook"),
        (True, "xterm", SimpleNamespace(), "Live"),
    ],
)
def test_a_display_is_chosen(
    is_terminal: bool | None, term: str, shell: Any, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setenv("TERM", term)
    stream = None if is_terminal is None else SimpleNamespace(isatty=lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    assert type(display_for(print)).__name__ == chosen


# ---- on a terminal


def assert_shown(shown: list[str], *above: str, **changes: Any) -> None:
    """Some lines, and the panel below them. With colours the rest of its bar is drawn; without, it is blank."""
    expected = [*above, *plain_text(Panel(snapshot(**changes)), 79).splitlines()]
    blank = {ord(one): " " for one in "━╸╺"}
    assert [line.translate(blank) for line in shown] == [line.translate(blank) for line in expected]


FORKED = """
def forked(talk):
    child = os.fork()
    if not child:
        talk()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""

# What the process does after `display.begin(); display.show(snapshot())` -> the lines above the panel that stays, the
# lines below it, and what the panel shows.
SCENES: dict[str, tuple[str, list[str], list[str], dict[str, Any]]] = {
    "it prints on both streams": (
        """
for step in range(3):
    display.show(snapshot(step=step))
    print("print", step)
    print("error", step, file=sys.stderr)
display.end(snapshot(step=5, state="finished"))
print("after")
""",
        [line for step in range(3) for line in (f"print {step}", f"error {step}")],
        ["after"],
        {"step": 5, "state": "finished"},
    ),
    "forked processes print, one after the end": (
        FORKED
        + """
for number in range(3):
    forked(lambda: print("child", number))
def late():
    display.show(snapshot())
    print("late")
display.end(snapshot())
forked(late)
""",
        ["child 0", "child 1", "child 2"],
        ["late"],
        {},
    ),
    "logging and rich write": (
        """
import rich
logging.basicConfig(format="%(message)s")
logging.warning("a warning")
rich.print("[red]from rich[/red]")
late = logging.StreamHandler()
display.end(snapshot())
logging.warning("after")
logging.getLogger("late").addHandler(late)
logging.getLogger("late").propagate = False
logging.getLogger("late").warning("late")
""",
        ["a warning", "from rich"],
        ["after", "late"],
        {},
    ),
    "signal handlers print": (
        """
import signal
signal.signal(signal.SIGALRM, lambda number, frame: sys.stdout.write("alarm\\n"))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.005)
for step in range(300):
    display.show(snapshot(step=step))
signal.setitimer(signal.ITIMER_REAL, 0)
display.end(snapshot())
""",
        ["alarm"],
        [],
        {},
    ),
    "a fork while a thread holds the lock": (
        FORKED
        + """
import warnings
warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads, which is what this is about
held, release = threading.Event(), threading.Event()
def hold():
    with display._footer.lock:
        held.set()
        release.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
forked(lambda: print("no lock"))
release.set()
thread.join()
display.end(snapshot())
""",
        ["no lock"],
        [],
        {},
    ),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("name", SCENES)
def test_output_comes_out_above_and_one_panel_stays(name: str, tmp_path: Path) -> None:
    script, above, below, changes = SCENES[name]
    screen = Terminal(f'print("before")\ndisplay.begin()\ndisplay.show(snapshot())\n{script}', tmp_path).end()
    shown = [line for number, line in enumerate(screen.shown) if line != "alarm" or screen.shown.index(line) == number]
    end = len(shown) - len(below)
    assert shown[end:] == below and screen.column == 0
    assert_shown(shown[:end], "before", *above, **changes)


@pytest.mark.first(1)
@pytest.mark.parametrize("begun", ["begun", "b", "b" * 79, "b" * 80])
def test_a_line_that_was_begun_before(begun: str, tmp_path: Path) -> None:
    script = 'display.begin()\nfor step in range(3): display.show(snapshot())\nprint("above")\ndisplay.end(snapshot())'
    assert_shown(Terminal(f'print({begun!r}, end="")\n{script}', tmp_path).end().shown, begun, "above")


@pytest.mark.parametrize("end", ["an exception", "Ctrl-C", "kill -9"])
def test_the_end_leaves_a_clean_terminal(end: str, tmp_path: Path) -> None:
    script = """
display.begin()
try:
    display.show(snapshot())
    print("tick")
    WHAT
finally:
    display.end(snapshot(state="failed"))
"""
    what = "raise ValueError('no label')" if end == "an exception" else "time.sleep(60)"
    terminal = Terminal(script.replace("WHAT", what), tmp_path)
    if end != "an exception":
        terminal.read(until="tick")
        terminal.read(until="time: ")
        number = signal.SIGINT if end == "Ctrl-C" else signal.SIGKILL
        os.kill(terminal.process.pid, number)
    screen = terminal.end()
    state = "running" if end == "kill -9" else "failed"
    assert_shown(screen.shown[:5], "tick", state=state)
    last = {"an exception": "ValueError: no label", "Ctrl-C": "KeyboardInterrupt", "kill -9": screen.shown[4]}[end]
    assert screen.shown[-1] == last and "\x1b[?" not in terminal.text, "the cursor was never hidden"


def test_a_question_is_asked_where_the_answer_is_typed(tmp_path: Path) -> None:
    script = """
display.begin()
display.show(snapshot())
print("got", input("your name: "))
display.show(snapshot())
for line in sys.stdin:
    print("line", line.strip())
    break
display.end(snapshot())
"""
    terminal = Terminal(script, tmp_path)
    terminal.read(until="your name: ")
    assert terminal.screen.shown == ["your name:"], "the panel made room"
    terminal.type("Ada\n")
    terminal.read(until="time: ")
    terminal.read(until="\x1b[J")
    terminal.type("more\n")
    assert_shown(terminal.end().shown, "your name: Ada", "got Ada", "more", "line more")


WRITES = """
display.begin()
display.show(snapshot())
print("a result")
print("a word", file=sys.stderr)
display.end(snapshot())
"""


@pytest.mark.first(1)
@pytest.mark.parametrize("where", ["standard output in a file", "dumb terminal", "standard error in a file"])
def test_what_is_no_terminal_to_draw_on_is_left_alone(where: str, tmp_path: Path) -> None:
    file = tmp_path / "written"
    if where == "standard error in a file":
        script = f"with open({str(file)!r}, 'w') as sys.stderr:\n    " + WRITES.strip().replace("\n", "\n    ")
        assert Terminal(script, tmp_path).end().shown == ["a result"] and file.read_text() == "a word\n"
    elif where == "dumb terminal":
        terminal = Terminal(WRITES, tmp_path, environment={"TERM": "dumb"})
        assert terminal.end().shown == ["a result", "a word"] and "\x1b" not in terminal.text
    else:
        assert_shown(Terminal(WRITES, tmp_path, output=file).end().shown, "a word")
        assert file.read_text() == "a result\n"


def test_a_terminal_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    script = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
display.begin()
display.show(snapshot())
while not os.path.exists("gone"):
    time.sleep(0.01)
display.show(snapshot())
display.end(snapshot())
open("done", "w").close()
"""
    terminal = Terminal(script, tmp_path)
    terminal.read(until="time: ")
    terminal.hang_up()
    (tmp_path / "gone").touch()
    terminal.process.wait(300)
    assert (tmp_path / "done").exists()


# ---- lines in a file

ROW = {"val/loss": 2.0, "step": 12, "epoch": 0.4, "loss": 1.0, "lr": 0.1}
OF_STEPS = {"val/loss": 10, "step": 12, "epoch": 12, "loss": 12, "lr": 12}
PLACE = {"step": 12, "epoch": 0.4, "batch": 4, "metric_steps": OF_STEPS}
NAN = {"loss": float("nan")}

# Seconds later, what is shown of the run, and the lines that it makes; one run after the other.
Course = list[tuple[float, dict[str, Any], list[str]]]
COURSES: dict[str, Course] = {
    "everything that is known": [
        (
            0,
            VALUES,
            [
                "step 4812  epoch 2.12  val/loss 0.051  loss 0.04231  accuracy 0.987  lr 0.001"
                "  batch 117/938  812 batches/s  26.0 k samples/s  2 min 13 s left"
            ],
        )
    ],
    "only what is known, and NaN is no news": [
        (0, {"metrics": NAN}, ["step 10  epoch 0.50  loss nan"]),
        (5, {"metrics": NAN}, []),
        (5, {"metrics": {"loss": 1.0}, "step": None, "epoch": None}, ["loss 1"]),
    ],
    "a line in an interval, and one in a long silence": [
        (0, {"metrics": {"loss": 1.0}}, ["step 10  epoch 0.50  loss 1"]),
        (1, {"metrics": {"loss": 0.9}}, []),
        (1, {"metrics": {"loss": 0.8}}, ["step 10  epoch 0.50  loss 0.8"]),
        (2, {"metrics": {"loss": 0.8}}, []),
        (57, {"metrics": {"loss": 0.8}}, []),
        (1, {"metrics": {"loss": 0.8}, "batch": 7, "epoch_batches": 9}, ["step 10  epoch 0.50  batch 7/9"]),
        (59, {"metrics": {"loss": 0.8}}, []),
    ],
    "the latest row and no older one": [
        (0, {"metrics": {"loss": 1.0, "lr": 0.1}}, ["step 10  epoch 0.50  loss 1  lr 0.1"]),
        (2, {"metrics": {"loss": 1.0, "lr": 0.1, "val/loss": 2.0}}, ["step 10  epoch 0.50  val/loss 2"]),
        (2, {"metrics": {"val/loss": 2.0, "loss": 0.5, "lr": 0.1}}, ["step 10  epoch 0.50  loss 0.5  lr 0.1"]),
    ],
    "what is older says so": [
        (0, {**PLACE, "metrics": ROW}, ["step 12  epoch 0.40  val/loss 2 (step 10)  loss 1  lr 0.1  batch 4"]),
        (
            2,
            {**PLACE, "step": 15, "epoch": 0.5, "batch": 7, "metrics": {**ROW, "val/loss": 3.0}},
            ["step 15  epoch 0.50  val/loss 3 (step 10)  loss 1, lr 0.1 (step 12)  batch 7"],
        ),
    ],
    "the end has the rest and where time went": [
        (0, {"metrics": {"loss": 1.0}}, ["step 10  epoch 0.50  loss 1"]),
        (
            -1,
            {"metrics": {"loss": 0.9}, "seconds": {"data": 1.0, "train": 3.0}},
            ["step 10  epoch 0.50  loss 0.9", "time: data 25 %  train 75 %"],
        ),
    ],
    "in an evaluation its place, until it stops": [
        (
            0,
            {"metrics": {"loss": 1.0}, "evaluation": "val", "evaluation_batch": 3, "evaluation_batches": 5},
            ["step 10  epoch 0.50  loss 1  batch 3/5 of val"],
        ),
        (
            -1,
            {"metrics": {"loss": 0.9}, "evaluation": "val", "evaluation_batch": 4, "state": "stopped"},
            ["step 10  epoch 0.50  loss 0.9"],
        ),
    ],
    "text of others stays on its line": [(0, {"metrics": {"a\n\x1b[2J": 1.0}}, [r"step 10  epoch 0.50  a\n\x1b[2J 1"])],
}


@pytest.mark.parametrize("name", COURSES)
def test_new_metrics_are_lines_and_nothing_twice(name: str) -> None:
    said, now = list[str](), [100.0]
    display = PlainLines(said.append, clock=lambda: now[0])
    display.begin()
    for seconds, values, lines in COURSES[name]:
        bare = {"state": "running", "graph": "fit", "position": "step", "step": 10, "epoch": 0.5}
        now[0] += max(seconds, 0)
        said.clear()
        (display.end if seconds < 0 else display.show)(Snapshot(**{**bare, **values}))
        assert said == lines


# ---- the panel

LONG = {f"validation/a_rather_long_name_of_a_metric/{number}": number + 0.5 for number in range(12)}
SOME = {"lr": 0.1, "loss": 0.5, "val/loss": 0.75, "val/accuracy": 0.25}


@pytest.mark.parametrize(
    ("changes", "width", "parts"),
    [
        ({}, 60, ["epoch 3/10 ━", "loss 0.04231", "\n812 batches/s  26.0 k samples/s  2 min 13 s left\n"]),
        ({"position": "validate/next_batch"}, 60, ["batch 117/938 · in validate\n"]),
        ({}, 70, ["\n812 batches/s  26.0 k samples/s  41 s elapsed  2 min 13 s left\n"]),
        ({"metrics": SOME}, 40, ["\nloss 0.5  lr 0.1  val/loss 0.75  +1 more\n"]),
        ({"metrics": dict(reversed(SOME.items()))}, 32, ["\nloss 0.5  val/loss 0.75  +2 more\n"]),
        ({"metrics": {**LONG, **SOME}}, 120, ["/0 0.5  +11 more\n"]),
    ],
)
def test_a_narrow_terminal_keeps_what_matters(changes: dict[str, Any], width: int, parts: list[str]) -> None:
    shown = plain_text(Panel(snapshot(**changes)), width)
    assert all(part in shown for part in parts), shown


names = st.text(max_size=30)
amounts = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
counts = st.integers(min_value=0, max_value=2**60)
ANYTHING = st.fixed_dictionaries(
    dict.fromkeys(("state", "graph", "position"), names),
    optional={
        **dict.fromkeys(("step", "batch", "epoch_batches", "memory_bytes"), st.none() | counts),
        **dict.fromkeys(("epoch", "seconds_left"), st.none() | amounts),
        **{"device": names, "elapsed_seconds": amounts, "end": st.lists(names, max_size=3).map(tuple)},
        **{"done": st.none() | st.floats(0, 1), "window": st.none() | st.tuples(counts, counts)},
        "metrics": st.dictionaries(names, st.floats() | counts, max_size=5),
        **dict.fromkeys(("rates", "seconds"), st.dictionaries(names, amounts, max_size=3)),
    },
)


@pytest.mark.full
@settings(max_examples=40)
@given(ANYTHING, st.integers(1, 200))
@example({**VALUES, "metrics": {"損失" * 40: 1.0, "é" * 300: float("nan"), "i": float("-inf")}}, 40)
def test_anything_fits_on_four_lines_and_in_a_file(values: dict[str, Any], width: int) -> None:
    one = Snapshot(**values)
    shown = plain_text(Panel(one), width).splitlines()
    assert len(shown) <= 4 and all(cell_len(line) <= width and line.isprintable() for line in shown), shown
    assert repr(Snapshot.from_plain(json.loads(json.dumps(one.as_plain(), allow_nan=False)))) == repr(one)


def test_a_terminal_without_unicode() -> None:
    file = TextIOWrapper(BytesIO(), encoding="ascii")
    Console(file=file, width=100, color_system=None).print(Panel(snapshot()))
    file.flush()
    assert b"--" in file.buffer.getvalue()  # type: ignore[attr-defined]


# ---- in a notebook


class Words(HTMLParser):
    """The text of some HTML, and its tags, which must be closed as they were opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_one_output_of_a_notebook_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[list[Any]] = []

    def show(content: Any, display_id: bool) -> Any:
        outputs.append([content])
        return SimpleNamespace(update=outputs[-1].append)

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=show))  # type: ignore[arg-type]
    display = Notebook()
    assert display.interval_seconds >= 0.5
    for run in range(2):
        display.begin()
        for step in range(3):
            display.show(snapshot(step=step))
        display.end(snapshot(step=3, state="finished"))
        assert len(outputs) == run + 1 and len(outputs[run]) == 4
    last = outputs[0][-1]
    assert "finished" in last._repr_html_() and "loss 0.04231" in repr(last) and "epoch 3/10 ━" in repr(last)


def test_the_html_says_what_the_panel_says_and_text_of_others_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    contents: list[Any] = []
    show = SimpleNamespace(display=lambda content, display_id: contents.append(content))
    monkeypatch.setitem(sys.modules, "IPython.display", show)  # type: ignore[arg-type]

    def html(one: Snapshot) -> str:
        display = Notebook()
        display.begin()
        display.show(one)
        return str(contents[-1]._repr_html_())

    shown = Words(html(snapshot())).text
    assert [line.rstrip() for line in shown.splitlines()] == plain_text(Panel(snapshot()), 100).splitlines()
    text = "<script>alert('x')</script>&amp;\"\x1b"
    nasty = Words(html(snapshot(state=text, metrics={text: 1.0}, rates={text: 1.0}, seconds={})))
    assert {*nasty.tags} == {"pre", "span"} and "\x1b" not in nasty.text
    assert nasty.text.count("<script>alert('x')</script>&amp;\"\\x1b") == 3
