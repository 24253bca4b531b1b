"""The panel on a terminal, in real processes: what a person sees is decided by a terminal, not by the bytes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from graphtrain.report.display.panel import Panel, plain_text
from tests.report.display.runs import snapshot
from tests.report.display.terminal import Terminal


def panel(width: int = 79, **changes: Any) -> list[str]:
    """The lines of the panel, as a terminal without colours shows them."""
    return plain_text(Panel(snapshot(**changes)), width).splitlines()


def same_but_for_the_bar(shown: list[str], expected: list[str]) -> bool:
    """With colours the rest of the bar is drawn; without, it is blank."""
    return [line.translate({ord(one): " " for one in "━╸╺"}) for line in shown] == [
        line.translate({ord(one): " " for one in "━╸╺"}) for line in expected
    ]


def assert_shown(shown: list[str], *above: str, **changes: Any) -> None:
    """Some lines, and the panel below them."""
    lines = [*above, *panel(**changes)]
    assert same_but_for_the_bar(shown, lines), "\n".join(shown)


@pytest.mark.full
def test_prints_come_out_above_and_one_panel_stays(tmp_path: Path) -> None:
    script = """
print("before")
display.begin()
for step in range(5):
    display.show(snapshot(step=step))
    print("print", step)
    print("error", step, file=sys.stderr)
display.end(snapshot(step=5, state="finished"))
print("after")
"""
    screen = Terminal(script, tmp_path).end()
    above = [line for step in range(5) for line in (f"print {step}", f"error {step}")]
    *shown, last = screen.shown
    assert last == "after" and screen.column == 0
    assert_shown(shown, "before", *above, step=5, state="finished")


def test_an_exception_leaves_a_clean_terminal(tmp_path: Path) -> None:
    script = """
display.begin()
try:
    display.show(snapshot())
    raise ValueError("no label")
finally:
    display.end(snapshot(state="failed"))
"""
    terminal = Terminal(script, tmp_path)
    shown = terminal.end().shown
    assert terminal.process.returncode == 1
    assert_shown(shown[:4], state="failed")
    assert shown[4] == "Traceback (most recent call last):" and shown[-1] == "ValueError: no label"
    assert "?25l" not in terminal.text, "the cursor was never hidden"


def test_ctrl_c(tmp_path: Path) -> None:
    script = """
display.begin()
try:
    while True:
        display.show(snapshot())
        print("tick")
        time.sleep(0.01)
finally:
    display.end(snapshot(state="interrupted"))
"""
    terminal = Terminal(script, tmp_path)
    terminal.read(until="tick")
    os.kill(terminal.process.pid, signal.SIGINT)
    shown = terminal.end().shown
    rest = shown[shown.count("tick") :]
    assert "tick" not in rest
    assert_shown(rest[:4], state="interrupted")
    assert shown[-1] == "KeyboardInterrupt" and terminal.process.returncode == -signal.SIGINT


def test_killed_it_leaves_the_cursor_below_the_panel(tmp_path: Path) -> None:
    terminal = Terminal("display.begin()\ndisplay.show(snapshot())\ntime.sleep(60)", tmp_path)
    terminal.read(until="time: ")
    terminal.kill()
    screen = terminal.end()
    assert_shown(screen.shown)
    assert (screen.row, screen.column) == (4, 0) and "\x1b[?" not in terminal.text


@pytest.mark.full
def test_a_low_terminal_shows_what_it_can(tmp_path: Path) -> None:
    script = (
        'display.begin()\nfor n in range(3):\n    display.show(snapshot())\n    print("up", n)\ndisplay.end(snapshot())'
    )
    shown = Terminal(script, tmp_path, rows=3).end().shown
    assert same_but_for_the_bar(shown, ["up 0", "up 1", "up 2", *panel()[:2]])


@pytest.mark.full
def test_a_terminal_that_becomes_narrower(tmp_path: Path) -> None:
    script = """
import termios
print("above")
display.begin()
display.show(snapshot())
termios.tcsetwinsize(2, (24, 50))
display.show(snapshot())
display.end(snapshot())
"""
    terminal = Terminal(script, tmp_path)
    terminal.end()
    # What was drawn at 80 columns is folded at 50; the erasure goes up over all of it, and later over what is new.
    rows = sum(-(-len(line) // 50) for line in panel())
    assert [int(number) for number in re.findall(r"\x1b\[(\d+)A\x1b\[J", terminal.text)] == [rows, 4]
    assert rows > 4


def test_a_standard_output_that_goes_elsewhere_goes_there(tmp_path: Path) -> None:
    script = """
display.begin()
display.show(snapshot())
print("a result")
print("a word", file=sys.stderr)
display.end(snapshot())
"""
    shown = Terminal(script, tmp_path, output=tmp_path / "out.txt").end().shown
    assert (tmp_path / "out.txt").read_text() == "a result\n"
    assert_shown(shown, "a word")


def test_a_dumb_terminal_is_left_alone(tmp_path: Path) -> None:
    script = 'display.begin()\ndisplay.show(snapshot())\nprint("word")\ndisplay.end(snapshot())'
    terminal = Terminal(script, tmp_path, environment={"TERM": "dumb"})
    assert terminal.end().shown == ["word"] and "\x1b" not in terminal.text


def test_no_terminal_no_panel(tmp_path: Path) -> None:
    script = """
with open("err.txt", "w") as sys.stderr:
    display.begin()
    display.show(snapshot())
    display.end(snapshot())
"""
    assert Terminal(script, tmp_path).end().shown == []
    assert (tmp_path / "err.txt").read_text() == ""


def test_logging_and_rich_go_above_too(tmp_path: Path) -> None:
    script = """
import rich
logging.basicConfig(format="%(message)s")
display.begin()
display.show(snapshot())
logging.warning("a warning")
rich.print("[red]from rich[/red]")
late = logging.StreamHandler()
display.show(snapshot())
display.end(snapshot())
logging.warning("after")
logging.getLogger("late").addHandler(late)
logging.getLogger("late").propagate = False
logging.getLogger("late").warning("late")
assert logging.getLogger().handlers[0].stream is sys.stderr
"""
    terminal = Terminal(script, tmp_path)
    *shown, after, late = terminal.end().shown
    assert_shown(shown, "a warning", "from rich")
    assert (after, late) == ("after", "late") and terminal.process.returncode == 0


@pytest.mark.second(6)
@pytest.mark.first(1)
@pytest.mark.parametrize("begun", ["b", "begun", "b" * 79, "b" * 80])
@pytest.mark.parametrize("flush", [True, False])
def test_a_line_that_was_begun_before(begun: str, flush: bool, tmp_path: Path) -> None:
    script = f"""
print({begun!r}, end="", flush={flush})
display.begin()
for step in range(3):
    display.show(snapshot())
print("above")
display.end(snapshot())
"""
    assert_shown(Terminal(script, tmp_path).end().shown, begun, "above")


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
    shown = terminal.end().shown
    assert_shown(shown, "your name: Ada", "got Ada", "more", "line more")


@pytest.mark.full
def test_signal_handlers_may_print(tmp_path: Path) -> None:
    script = """
import signal
signal.signal(signal.SIGALRM, lambda number, frame: sys.stdout.write("alarm\\n"))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
display.begin()
for step in range(300):
    display.show(snapshot(step=step))
signal.setitimer(signal.ITIMER_REAL, 0)
display.end(snapshot())
"""
    shown = Terminal(script, tmp_path).end().shown
    assert shown.count("alarm") > 1
    assert_shown([line for line in shown if line != "alarm"])


# --- Forked processes ------------------------------------------------------------------------------------------------

FORK = """
def forked(talk):
    child = os.fork()
    if not child:
        talk()
        sys.stdout.flush()
        os._exit(0)
    return child

class Gate:  # what is behind it waits until it is opened
    def __init__(self):
        self.inside, self.outside = os.pipe()
    def wait(self):
        os.read(self.inside, 1)
    def open(self):
        os.write(self.outside, b" ")
"""


def test_what_a_forked_process_prints_comes_out_above(tmp_path: Path) -> None:
    script = """
display.begin()
display.show(snapshot(metrics={}))
children = []
for number in range(5):
    gate = Gate()
    children.append((gate, forked(lambda: (gate.wait(), print("child", number)))))
display.show(snapshot())
print("parent")
for gate, child in children:
    gate.open()
    os.waitpid(child, 0)
gate = Gate()
last = forked(lambda: (gate.wait(), print("late"), display.show(snapshot()), display.end(snapshot())))
display.end(snapshot())
gate.open()
os.waitpid(last, 0)
"""
    *shown, late = Terminal(FORK + script, tmp_path).end().shown
    assert late == "late", "there is no panel any more, so it is written as it stands, and the child draws none"
    assert_shown(shown, "parent", *(f"child {number}" for number in range(5)))


def test_a_fork_meets_no_lock_that_is_held(tmp_path: Path) -> None:
    script = """
import warnings
warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads, which is what this is about
display.begin()
display.show(snapshot())
held, release = threading.Event(), threading.Event()
def hold():
    with display._footer.lock:
        held.set()
        release.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = forked(lambda: print("no lock"))
deadline = time.monotonic() + 300
while os.waitpid(child, os.WNOHANG) == (0, 0):
    if time.monotonic() > deadline:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.write(2, b"it hangs")
        break
    time.sleep(0.01)
release.set()
thread.join()
display.end(snapshot())
"""
    assert_shown(Terminal(FORK + script, tmp_path).end().shown, "no lock")


def test_a_terminal_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    script = """
display.begin()
display.show(snapshot())
while not os.path.exists("gone"):
    time.sleep(0.01)
display.show(snapshot())
display.end(snapshot())
with open("done", "w"):
    pass
"""
    terminal = Terminal("import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + script, tmp_path)
    terminal.read(until="time: ")
    terminal.hang_up()
    (tmp_path / "gone").touch()
    terminal.process.wait(300)
    assert (tmp_path / "done").exists()
