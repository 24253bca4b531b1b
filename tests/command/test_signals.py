"""Signals to the command: from its first line to the end of its process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from graphtrain.storage.run_directory import read_status as status_of
from tests.command.conftest import Command
from tests.command.running import STOPPING, TINY, in_a_process, python

SEND = "import os, signal, threading, time\nsend = lambda name: os.kill(os.getpid(), getattr(signal, name))\n"

# Where the signal comes: what stands before the script, and inside `setup`.
PLACES = {
    "import": ('send("SIGTERM")\nraise AssertionError("it is left")\n', ""),
    "setup": ("", 'send("SIGTERM"); raise AssertionError("it is left")'),
    "sleep": ("", 'threading.Timer(0.05, send, ["SIGTERM"]).start(); time.sleep(300)'),
    "clean-up": ("", 'try: send("SIGTERM")\n    finally: send("SIGTERM"); send("SIGHUP"); print("cleaned up")'),
    "interrupts": ("", 'try: send("SIGINT")\n    finally: send("SIGINT"); send("SIGINT")'),
    "warning": ("", 'send("SIGUSR1")'),
    "hang-up": ("", 'send("SIGHUP")'),
}


def script_with(at_import: str, in_setup: str) -> str:
    return SEND + at_import + TINY.replace("    model = torch", f"    {in_setup or 'pass'}\n    model = torch")


@pytest.mark.parametrize("place", PLACES)
def test_before_training_the_process_is_left_at_once(place: str, folder: Path, command: Command) -> None:
    (folder / "train.py").write_text(script_with(*PLACES[place]))
    result = command("run", "train.py", "lr=0.2", "finish.after=2 epochs")
    assert result.code == 75, result
    assert result.err.count("\n") == 1 and "nothing was trained, nothing was saved" in result.err
    assert result.err.endswith("start again with: graphtrain run train.py lr=0.2 'finish.after=2 epochs'\n")
    assert result.out == ("cleaned up\n" if place == "clean-up" else "")
    assert not (folder / "runs").exists()


def test_setup_that_catches_everything_delays_the_end_to_the_first_transition(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text(script_with("", 'try: send("SIGTERM")\n    except BaseException: pass'))
    result = command("run", "train.py", "--run-dir", "r")
    assert result.code == 75 and "stopped on request" in result.err, result
    assert status_of(folder / "r")["step"] == 0 and not list((folder / "r" / "checkpoints").iterdir())


@pytest.mark.full
def test_while_a_checkpoint_is_read(tiny: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "tiny.py", "finish.after=2 epochs", "--run-dir", "r"]
    assert command(*words, "--until", "3 batches").code == 0
    checkpoints = list((tiny / "r" / "checkpoints").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr("graphtrain.resume.session.restore", lambda *_: signal.raise_signal(signal.SIGTERM))
        result = command(*words)
    assert result.code == 75 and "nothing was trained, nothing was saved" in result.err, result
    assert list((tiny / "r" / "checkpoints").iterdir()) == checkpoints
    assert command(*words).code == 0
    assert command("run", "tiny.py", "finish.after=2 epochs", "--run-dir", "whole").code == 0
    assert status_of(tiny / "r")["digest"] == status_of(tiny / "whole")["digest"]


def test_an_inner_run_that_is_stopped_stops_the_outer_one(folder: Path, command: Command) -> None:
    """As where `setup` trains something first; what it does with the outcome is not known."""
    inner = (
        "from graphtrain import Trainer\n"
        '    Trainer("fit", display=None, notify=print, model=torch.nn.Linear(2, 1), train_data=[torch.ones(2, 2)] * 5,'
        "\n    optimizer=torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1),"
        "\n    training_step=lambda model, batch: send('SIGTERM') or model(batch).mean()).run()"
    )
    (folder / "train.py").write_text(script_with("", inner))
    result = command("run", "train.py", "--run-dir", "r")
    assert result.code == 75 and "stopped on request" in result.err, result
    assert status_of(folder / "r")["step"] == 0


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_ignored_at_the_start_stays_ignored(number: signal.Signals, folder: Path, command: Command) -> None:
    (folder / "train.py").write_text(
        SEND + TINY.replace("return model(batch)", f'send("{number.name}"); return model(batch)')
    )
    before = signal.signal(number, signal.SIG_IGN)
    try:
        result = command("run", "train.py", "finish.after=1 epochs", "--quiet")
        assert result.code == 0, result
    finally:
        signal.signal(number, before)


# A signal comes with the third batch, when the process exits, and when its modules are taken apart.
TO_THE_END = (
    "import atexit\nimport graphtrain\n"
    + SEND
    + TINY.replace("def training_step(model, batch):", "def training_step(model, batch, batch_index):").replace(
        "    return model(batch)", '    batch_index == 2 and send("SIGTERM")\n    return model(batch)'
    )
    + """
class Last:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGTERM):
        kill(process, number)

last = Last()
if __name__ == "__main__":
    atexit.register(send, "SIGTERM")
    atexit.register(send, "SIGTERM")
    graphtrain.main(setup)
"""
)


def test_handlers_stay_until_the_process_ends(folder: Path) -> None:
    (folder / "train.py").write_text(TO_THE_END)
    by_main = python("train.py", "--run-dir", "r", cwd=folder)
    assert by_main.code == 75 and "stopped on request" in by_main.err, by_main
    assert status_of(folder / "r")["step"] == 2
    (folder / "slow.py").write_text(script_with("", 'import atexit; atexit.register(send, "SIGTERM"); send("SIGTERM")'))
    by_command = in_a_process("run", "slow.py", cwd=folder)
    assert by_command.code == 75 and "nothing was trained" in by_command.err, by_command


@pytest.mark.sweep
def test_a_terminal_that_hangs_up_stops_the_run(folder: Path) -> None:
    """What is printed after that, by the user's code too, goes nowhere."""
    from tests.report.display.terminal import Terminal

    slow = "    time.sleep(0.02); print('batch', flush=True)\n    return model(batch)"
    (folder / "train.py").write_text(SEND + TINY.replace("    return model(batch)", slow))
    call = "sys.argv = ['graphtrain', 'run', 'train.py', 'batches=3000', '--run-dir', 'r']\n"
    terminal = Terminal(call + "from graphtrain.command import main\nmain()", folder)
    terminal.read(until="batch")
    terminal.hang_up()
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(300) == 75
    stopped = status_of(folder / "r")
    assert stopped["state"] == "stopped" and str(stopped["checkpoint"]).endswith(f"step-{stopped['step']}")
