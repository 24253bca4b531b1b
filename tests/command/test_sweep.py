"""Sweeps: one command makes a run of each combination of values, and makes those again that are not done."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphtrain.command import sweep
from graphtrain.storage.run_directory import read_status
from tests.command.conftest import Command
from tests.command.running import SLOW, TINY, environment, start_new

WORDS = ["run", "tiny.py", "lr=1e-1,1e-2", "name=a", "accumulate.every=1,2", "--run-dir", "runs/s"]
NAMES = [f"lr={lr},accumulate.every={every}" for lr in ("0.1", "0.01") for every in (1, 2)]
LISTED = [*NAMES[2:], *NAMES[:2]]  # in the order of their numbers


class Process:
    """In the place of a run: it leaves the files of one, and ends with a code when it is asked for the second time."""

    def __init__(self, words: Sequence[str], code: int, on_poll: Callable[[], None]) -> None:
        self.words, self.signals, self._codes, self._on_poll = [*words], list[int](), [None, code], on_poll
        self.run_dir = Path(words[-1])
        self._leave("running")

    def _leave(self, state: str) -> None:
        status = {
            "state": state,
            "position": "step",
            "process": os.getpid(),
            "error": "OSError: x" * (state == "failed"),
        }
        (self.run_dir / "status.json").write_text(json.dumps(status))
        about = {"command": shlex.join(["graphtrain", *self.words])}
        (self.run_dir / "starts.jsonl").write_text(json.dumps({"run": "", "checkpoint": None, "about": about}) + "\n")

    def poll(self) -> int | None:
        self._on_poll()
        code = self._codes.pop(0)
        if code is not None:
            self._leave({0: "finished", 75: "stopped", -15: "interrupted"}.get(code, "failed"))
        return code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self._codes = [75]

    def wait(self) -> None:
        pass


class Processes:
    """Every process that a sweep starts, in order."""

    def __init__(self) -> None:
        self.started: list[Process] = []
        self.outputs: list[Path | None] = []
        self.codes: dict[str, int] = {}  # of runs by their names
        self.on_poll: Callable[[], None] = lambda: None

    def start(self, words: Sequence[str], output: Path | None) -> Process:
        self.outputs.append(output)
        self.started.append(Process(words, self.codes.get(Path(words[-1]).name, 0), self.on_poll))
        return self.started[-1]

    def take(self) -> list[str]:
        """The names of those that were started since."""
        started, self.started = self.started, []
        return [process.run_dir.name for process in started]


@pytest.fixture
def processes(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    made = Processes()
    monkeypatch.setattr(sweep, "start", made.start)
    monkeypatch.setattr(sweep, "_POLLING_SECONDS", 0)
    return made


def states(out: str) -> list[tuple[str, str]]:
    return [(Path(line.split()[0]).name, line.split()[1]) for line in out.splitlines()[1:]]


@pytest.mark.first(2)
@pytest.mark.parametrize("options", [[], ["--parallel", "3"], ["--parallel=1", "--quiet"]], ids=str)
def test_each_combination_is_a_run(options: list[str], processes: Processes, command: Command) -> None:
    result = command(*WORDS, *options)
    assert result.code == 0, result
    own = [word for word in options if word == "--quiet"]
    assert processes.started[1].words == [
        *("run", "tiny.py", "lr=1e-1", "name=a", "accumulate.every=2", *own, "--run-dir", f"runs/s/{NAMES[1]}")
    ]
    assert [process.run_dir.name for process in processes.started] == NAMES
    assert [output.name for output in processes.outputs if output] == ["output.txt"] * 4
    if "--quiet" in options:
        assert result.out == result.err == ""
    else:
        assert states(result.out) == [(name, "finished") for name in LISTED]
        assert result.err.startswith("4 runs in runs/s, ") and result.err.endswith("\n4 of 4 runs done\n")
        assert f"\n2/4 runs/s/{NAMES[1]}: begins\n" in result.err


def test_the_same_command_makes_those_again_that_are_not_done(processes: Processes, command: Command) -> None:
    processes.codes = {NAMES[1]: 1, NAMES[2]: 75, NAMES[3]: -9}
    result = command(*WORDS)
    assert result.code == 75 and processes.take() == NAMES
    assert [state for _, state in states(result.out)] == ["stopped", "failed", "finished", "failed"]
    assert result.err.splitlines()[-3:] == [
        f"runs/s/{NAMES[1]} failed: OSError: x",
        f"runs/s/{NAMES[3]} failed: killed by SIGKILL",
        "1 of 4 runs done, 2 failed, 1 stopped or not begun; try again with: " + shlex.join(["graphtrain", *WORDS]),
    ]
    assert f"{NAMES[1]}: failed after 0 s; see output.txt there\n" in result.err
    processes.codes = {NAMES[3]: 2}
    result = command(*WORDS, "--parallel", "2")
    assert result.code == 1 and processes.take() == NAMES[1:], "in any number at a time"
    assert f"1/4 runs/s/{NAMES[0]}: finished before\n" in result.err and f"{NAMES[1]}: continues\n" in result.err
    longer = [*WORDS, "finish.after=20 epochs"]
    assert command(*longer).code == 1 and processes.take() == NAMES, "another command may train a finished run further"


def test_a_run_that_another_process_trains_is_left_to_it(processes: Processes, command: Command) -> None:
    (Path("runs/s") / NAMES[1]).mkdir(parents=True)
    Process([f"runs/s/{NAMES[1]}"], 0, processes.on_poll)
    result = command(*WORDS)
    assert result.code == 75 and processes.take() == [NAMES[0], *NAMES[2:]]
    assert f"{NAMES[1]}: process {os.getpid()} trains it already\n" in result.err


@pytest.mark.parametrize(("number", "most"), [(signal.SIGTERM, 1), (signal.SIGINT, 2), (signal.SIGUSR1, 4)])
def test_a_signal_stops_all(number: int, most: int, processes: Processes, command: Command) -> None:
    processes.on_poll = lambda: signal.raise_signal(number) if not processes.started[0].signals else None
    result = command(*WORDS, "--parallel", str(most))
    assert result.code == 75, result
    assert [process.signals for process in processes.started] == [[number]] * most
    assert [state for _, state in states(result.out)] == ["stopped"] * most
    assert "\n0 of 4 runs done, 4 stopped or not begun; resume with: graphtrain run tiny.py lr=1e-1,1e-2 " in result.err


def test_at_most_so_many_run_at_a_time(processes: Processes, command: Command) -> None:
    under_way: list[int] = []
    processes.on_poll = lambda: under_way.append(
        sum(read_status(process.run_dir)["state"] == "running" for process in processes.started)
    )
    assert command(*WORDS, "--parallel", "3").code == 0
    assert max(under_way) == 3 and under_way.count(3) > 1


def test_on_a_terminal_one_run_after_the_other_is_shown(
    processes: Processes, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    processes.codes = {NAMES[0]: 1}
    result = command(*WORDS)
    assert processes.outputs == [None] * 4 and "output.txt" not in result.err
    command(*WORDS, "--parallel", "2")
    assert processes.outputs[4:] == [Path("runs/s") / NAMES[0] / "output.txt"]


def test_a_refused_run_is_reported_with_what_it_printed(processes: Processes, command: Command) -> None:
    processes.codes = {NAMES[0]: 2}
    output = Path("runs/s") / NAMES[0] / "output.txt"
    output.parent.mkdir(parents=True)
    output.write_text("error: of the time before\n")

    def refuse() -> None:
        with output.open("a") as file:
            file.write("error: the run is finished\n  hint: none\n")

    assert "of the time before" not in command(*WORDS).err
    processes.on_poll = refuse
    result = command(*WORDS, "finish.after=20 epochs")
    assert result.code == 1 and f"\nruns/s/{NAMES[0]} failed: the run is finished\n3 of 4 runs done, " in result.err


def test_a_run_whose_script_is_imported_is_listed(
    processes: Processes, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "_leave", lambda process, state: None)
    seen: list[str] = []
    processes.on_poll = lambda: seen.append(read_status(processes.started[-1].run_dir)["state"])
    processes.codes = {NAMES[2]: 75, NAMES[3]: 1}
    result = command(*WORDS)
    assert set(seen) == {"starting"}
    rows = [line.split("  ") for line in result.out.splitlines()[1:3]]
    assert [[cell.strip() for cell in row if cell][1:] for row in rows] == [
        ["not begun", *"-----"],
        ["failed", *"---", "0 s ago", "no checkpoint"],
    ]


@pytest.mark.full
def test_the_runs_that_are_there_are_compared_before_the_first_one(processes: Processes, command: Command) -> None:
    made = ["run", "tiny.py", "lr=0.1", "finish.after=2 epochs", "--run-dir", "runs/s/lr=0.1", "--quiet"]
    assert command(*made).code == 0
    words = ["run", "tiny.py", "lr=0.1,0.2", "--run-dir", "runs/s"]
    refused = command(*words, "batches=3", "name=b")
    assert (refused.code, processes.take()) == (2, []) and refused.err.startswith(
        "error: the runs in `runs/s` were made with other arguments:\n"
        "    batches 4 -> 3 in `lr=0.1`\n    name 'tiny' -> 'b' in `lr=0.1`\n  hint: name another folder with "
    )
    assert command(*words, "finish.after=1 epochs").code == 0 and processes.take() == ["lr=0.2"]
    result = command(*words, "finish.after=2 epochs")
    assert "1/2 runs/s/lr=0.1: finished before\n" in result.err and processes.take() == ["lr=0.2"]
    result = command(*words, "finish.after=1 epochs")
    assert "1/2 runs/s/lr=0.1: finished before, after 2 epochs\n" in result.err
    for further in (["finish.after=3 epochs"], ["finish.after=1 epochs", "accumulate.every=2"], ["--seed=1"]):
        processes.take()
        assert command(*words, *further).code == 0 and processes.take() == ["lr=0.1", "lr=0.2"]
        assert command(*made).code in (0, 2)
    assert command(*words, "batches=3", "--from-saved").code == 0


REFUSED = {
    "no folder": (["lr=1,2"], "`lr=1,2` makes a run of each value, and their directories need a folder\n"),
    "one value": (["lr=1,2"], "for one value, write 'lr=[1,2]' (a list) or 'lr=\"1,2\"' (a text)\n"),
    "one run": (["lr=1", "--parallel", "2", "--run-dir", "s"], "--parallel 2: there is only one run\n"),
    "none at a time": (["lr=1,2", "--parallel", "0", "--run-dir", "s"], "--parallel 0: expected an integer "),
    "a run": (["lr=1,2", "--run-dir", "taken"], "`taken` holds a run, and `lr=1,2` makes several\n"),
    "twice": (["lr=1e-1,0.1", "--run-dir", "s"], "two of the runs have the directory `s/lr=0.1`\n  hint: give each"),
    "dry": (["lr=1,2", "--run-dir", "s", "--dry-run"], "--dry-run tries one run, and `lr=1,2` makes several\n"),
    "argument": (["lr=1,2", "nmae=a", "--run-dir", "s"], "`nmae` is not an argument of tiny.py:setup\n"),
    "type": (["lr=1,fast", "--run-dir", "s"], "tiny.py:setup: lr: expected a number, got \"fast\"\n"),
    "node": (["acumulate.every=1,2", "--run-dir", "s"], "`acumulate.every=`: there is no node `acumulate`\n"),
    "graph": (["accumulate.every=1,0", "--run-dir", "s"], "accumulate.every: expected "),
    "amount": (["lr=1,2", "--until", "many", "--run-dir", "s"], "many"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_found_before_the_first_run(case: str, processes: Processes, command: Command) -> None:
    words, message = REFUSED[case]
    Path("taken").mkdir()
    Path("taken/status.json").write_text('{"state": "stopped", "position": "step"}')
    result = command("run", "tiny.py", *words)
    assert (result.code, result.out, processes.started) == (2, "", []) and message in result.err, result
    assert not Path("s").exists()


def test_one_of_several_processes_makes_no_sweep(
    processes: Processes, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "is_one_of_several", lambda: True)
    result = command(*WORDS, "--processes", "2")
    assert result.code == 2 and "--processes trains each run in several processes" in result.err
    monkeypatch.undo()


def test_processes_are_those_of_each_run(processes: Processes, command: Command) -> None:
    assert command(*WORDS, "--processes", "2").code == 0
    assert processes.started[0].words[-4:-2] == ["--processes", "2"]


def test_one_value_with_a_comma_is_one_run(tiny: Path, command: Command) -> None:
    result = command("run", "tiny.py", 'name="a,b"', "finish.after=1 steps", "--run-dir", "r", "--quiet")
    assert result.code == 0 and read_status("r")["arguments"]["name"] == "a,b"


def test_a_script_that_is_its_own_command(processes: Processes, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    from tests.command.running import signals_as_before

    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(TINY, namespace)  # noqa: S102 - our own text
    monkeypatch.setattr("sys.argv", ["train.py", "lr=1,2", "--run-dir", "s"])
    import graphtrain

    with signals_as_before(), pytest.raises(SystemExit) as leaving:
        graphtrain.main(namespace["setup"])
    assert leaving.value.code == 0
    assert [process.words for process in processes.started] == [
        ["lr=1", "--run-dir", "s/lr=1"],
        ["lr=2", "--run-dir", "s/lr=2"],
    ]


@pytest.mark.sweep
def test_stopped_and_made_again_it_ends_as_if_it_was_not(folder: Path, command: Command) -> None:
    """In processes of their own: stopped as the command, made again as the script."""
    text = SLOW.replace("0.02", "0.5") + '\nfrom graphtrain import main\nif __name__ == "__main__":\n    main(setup)\n'
    (folder / "tiny.py").write_text(text)
    words = ["finish.after=10 epochs", "checkpoint.every=5 steps", "--run-dir"]
    first = start_new(["run", "tiny.py", "lr=0.1,0.2", *words, "cut", "--parallel", "2"], folder)
    while not all(list(folder.glob(f"cut/lr={lr}/checkpoints/*")) for lr in ("0.1", "0.2")):
        time.sleep(0.01)
    first.send_signal(signal.SIGTERM)
    out, err = first.communicate(timeout=300)
    assert first.returncode == 75 and [state for _, state in states(out)] == ["stopped"] * 2, err
    (folder / "fast").touch()
    again = [sys.executable, "tiny.py", "lr=0.1,0.2", *words, "cut"]
    done = subprocess.run(
        again, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and [state for _, state in states(done.stdout)] == ["finished"] * 2, done
    for lr in ("0.1", "0.2"):
        assert command("run", "tiny.py", f"lr={lr}", *words, f"whole/{lr}").code == 0
        assert read_status(folder / "cut" / f"lr={lr}")["digest"] == read_status(folder / "whole" / lr)["digest"]
        output = (folder / "cut" / f"lr={lr}" / "output.txt").read_text()
        assert "stopped on request" in output and "resumed cut" in output
