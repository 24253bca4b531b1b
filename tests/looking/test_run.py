"""Promises 2, 7, 12, 14: `graphtrain run`: settings, stops, resumes, forks, overlays, dry runs, failures, signals."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, fit
from tests.looking.conftest import Command
from tests.looking.running import SLOW, TINY, Result, Started, in_a_process, start, written
from tests.world import world

WITH_VALIDATION = TINY.replace('"training_step"', '"val_data": [torch.ones(2, 2)], "training_step"')


def status_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "status.json").read_text())


def rows_of(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def printed_command(err: str) -> list[str]:
    """The words after the last "resume with:"."""
    words = shlex.split(err.rpartition("resume with: ")[2].splitlines()[0])
    assert words[:2] == ["graphtrain", "run"]
    return words[1:]


# --- From beginning to end -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_run_is_kept_in_a_fresh_directory(tiny: Path, command: Command) -> None:
    for number in (1, 2):
        result = command("run", "tiny.py", "finish.after=2 epochs")
        assert (result.code, result.out) == (0, "")
        assert f"run directory: runs/tiny-00{number};" in result.err
        assert f"the run is finished: runs/tiny-00{number}" in result.err
    first, second = (status_of(tiny / "runs" / f"tiny-00{number}") for number in (1, 2))
    assert (first["state"], first["step"], first["epoch"]) == ("finished", 8, 2)
    assert first["digest"] == second["digest"], "one seed, one result"


def test_the_command_that_resumes_is_the_one_that_was_typed(tiny: Path, command: Command) -> None:
    """Without what was reached, and what is done once; the run directory is named if it was not."""
    assert command("run", "tiny.py", "--run-dir", "first", "--until", "1 steps").code == 0
    words = ["--seed=3", "tiny.py", "--fork", "first", "--until=3 steps", "--device=cpu", "name='a b'"]
    result = command("run", *words)
    kept = ["--seed=3", "tiny.py", "--device=cpu", "name='a b'"]
    assert printed_command(result.err) == ["run", *kept, "--run-dir", "runs/tiny-001"]
    first = result.err.partition("resume with: ")[2].splitlines()[0]
    assert "'--until=3 steps'" in first and "--fork" not in first, "before it is reached"


def test_a_setup_serves_several_graphs(folder: Path, command: Command) -> None:
    """What a graph does not read is named."""
    (folder / "tiny.py").write_text(TINY.replace('"training_step"', '"callbacks": [], "warm_up": 3, "training_step"'))
    (folder / "my.toml").write_text('format = 1\nextends = "fit"\n')
    for words in ([], ["--graph", "my.toml", "--resume", "never", "--run-dir", "r"]):
        result = command("run", "tiny.py", "finish.after=1 steps", *words)
        assert result.code == 0
        assert "nothing in the graph reads `warm_up`\n" in result.err
        assert "nothing in the graph reads `callbacks`" in result.err
    assert command("replay", "tiny.py", "--run-dir", "r", "--to", "1 steps").code == 0


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("words", "steps", "rows"),
    [
        (["batches=6"], 6, 2),
        (["accumulate.every=2"], 2, 2),
        (["finish.after=3 steps"], 3, 1),
        (["log.every=1 steps"], 4, 5),
        (["next_batch.limit=2"], 2, 2),
        (["validate/next_batch.limit=1"], 4, 3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_reach_setup_and_nodes(
    words: list[str], steps: int, rows: int, folder: Path, command: Command
) -> None:
    (folder / "tiny.py").write_text(WITH_VALIDATION if "validate" in words[0] else TINY)
    if not words[0].startswith("finish"):
        words = [*words, "finish.after=1 epochs"]
    assert command("run", "tiny.py", *words, "--run-dir", "r").code == 0
    assert status_of(folder / "r")["step"] == steps
    assert len(rows_of(folder / "r")) == rows


def test_the_last_line_and_the_status_tell_of_a_loss_that_is_not_finite(folder: Path, command: Command) -> None:
    diverging = "    return model(batch).square().mean()"
    assert diverging in TINY
    (folder / "mine.py").write_text(TINY.replace(diverging, f"{diverging} * float('nan')"))
    done = command("run", "mine.py", "finish.after=4 steps", "log.every=2 steps", "--run-dir", "r")
    assert done.code == 0
    assert "the run is finished, and `loss` became non-finite between steps 0 and 2, " in done.err.splitlines()[-1]
    assert "`loss` became non-finite between steps 0 and 2" in command("status", "r").out
    (newest,) = (path.name for path in (folder / "r" / "checkpoints").iterdir())
    forked = command(
        "run", "mine.py", "--fork", f"r/{newest}", "--until", "8 steps", "log.every=1 steps", "--run-dir", "s"
    )
    assert "run again to resume. `loss` became non-finite between steps 0 and 5" in forked.err, forked.err


@pytest.mark.full
def test_a_finished_run_is_reported_and_can_be_trained_further(tiny: Path, command: Command) -> None:
    words = ["run", "tiny.py", "--run-dir", "r"]
    assert command(*words, "finish.after=1 epochs").code == 0
    before, status = written(tiny / "r"), status_of(tiny / "r")
    refused = command(*words, "batches=3", "finish.after=1 epochs")
    assert refused.code == 2 and written(tiny / "r") == before, "nothing is written"
    assert "or from this one: --fork r; a later finish.after trains it further\n" in refused.err
    again = command(*words, "finish.after=1 epochs")
    assert again.code == 0
    assert "\nthe run was finished before; a later finish.after trains it further: r  digest " in again.err
    assert (status_of(tiny / "r")["digest"], status_of(tiny / "r")["step"]) == (status["digest"], 4)
    raised = command(*words, "finish.after=2 epochs")
    assert raised.code == 0 and "the run is finished: r" in raised.err
    assert status_of(tiny / "r")["step"] == 8


EVALUATED = TINY.replace('"training_step"', '"val_data": [torch.ones(2, 2)] * batches, "training_step"')


@pytest.mark.second(3)
@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("words", "text", "change"),
    [
        (["batches=5"], EVALUATED, "batches 4 -> 5"),
        (["next_batch.limit=2"], EVALUATED, "next_batch.limit"),
        (
            [],
            EVALUATED.replace("torch.ones(2, 2)", "torch.zeros(2, 2)"),
            "val_data has changed since the checkpoint",
        ),
        ([], EVALUATED.replace("Linear(2, 1)", "Linear(2, 1, bias=True)"), "tiny.py"),
    ],
    ids=["arguments", "graph", "data", "code"],
)
def test_something_else_is_not_asked_of_a_finished_run(
    words: list[str], text: str, change: str, folder: Path, command: Command
) -> None:
    (folder / "tiny.py").write_text(EVALUATED)
    command_words = ["run", "tiny.py", "--graph", "evaluate", "--run-dir"]
    assert command(*command_words, "r").code == 0
    (folder / "tiny.py").write_text(text)
    for name in set(sys.modules) & {"tiny"}:
        del sys.modules[name]
    refused = command(*command_words, "r", *words)
    assert refused.code == 2, refused
    assert "error: the run in `r` is finished, so nothing was run; changed since: " in refused.err
    assert change in refused.err and "\n  hint: start another run in a new directory, with --run-dir, or" in refused.err
    assert command(*command_words, "r", *words).code == 2, "nor when it is asked again"
    assert command(*command_words, "new", *words).code == 0


def test_the_directory_of_another_run_is_refused_with_all_that_differs(tiny: Path, command: Command) -> None:
    assert command("run", "tiny.py", "finish.after=1 epochs", "--run-dir", "r").code == 0
    refused = command("run", "tiny.py", "lr=0.5", "batches=3", "finish.after=1 epochs", "--run-dir", "r", "--quiet")
    assert refused.code == 2 and refused.err.startswith(
        "error: the run is finished, and the hyper-parameters set up now differ from the saved ones:\n"
        "    optimizer.lr: 0.1 -> 0.5\n"
    )
    assert refused.err.endswith("or run(from_saved=True); or begin another run, with another --run-dir\n")


def test_quiet_prints_errors_only(tiny: Path, command: Command) -> None:
    assert command("run", "tiny.py", "finish.after=1 epochs", "--quiet") == Result(0, "", "")
    assert command("run", "tiny.py", "lr=fast", "--quiet").err.startswith("error: ")


# --- Until, and the command that resumes -----------------------------------------------------------------------------


@pytest.mark.full
def test_until_and_the_printed_command(tiny: Path, command: Command) -> None:
    assert command("run", "tiny.py", "lr=0.05", "finish.after=3 epochs", "--run-dir", "whole", "--seed", "3").code == 0
    words = ["run", "tiny.py", "lr=0.05", "finish.after=3 epochs", "--seed", "3", "--resume", "never"]
    first = command(*words, "--until", "5 steps")
    assert first.code == 0
    run_dir = tiny / "runs" / "tiny-001"
    assert (status_of(run_dir)["state"], status_of(run_dir)["step"]) == ("stopped", 5)
    second = command(*printed_command(first.err))
    assert second.code == 0, second
    assert "resumed" in second.err and "exact" in second.err
    assert status_of(run_dir)["digest"] == status_of(tiny / "whole")["digest"]
    assert (run_dir / "metrics.jsonl").read_text() == (tiny / "whole" / "metrics.jsonl").read_text()
    third = command(*printed_command(first.err))
    assert third.code == 0 and "finished before" in third.err


# --- Failures of the user's code -------------------------------------------------------------------------------------

FAILING = TINY.replace(
    "def training_step(model, batch):\n",
    """\
def helper():
    try:
        {}["label"]
    except KeyError:
        raise ValueError("no label")

def training_step(model, batch, step):
    if step == 2:
        helper()
""",
)


@pytest.mark.parametrize("name", ["project", "click"])
def test_an_exception_in_training_step_is_the_users(name: str, folder: Path, command: Command) -> None:
    (folder / name).mkdir()
    (folder / name / "mine.py").write_text(FAILING)
    result = command("run", f"{name}/mine.py", "--run-dir", "r")
    assert (result.code, result.out) == (1, "")
    last = result.err.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    assert last[0].endswith(", in training_step"), "the user's frame comes first"
    assert sum(line.startswith("  File ") for line in last) == 2
    assert all(f"/{name}/mine.py" in line for line in last if line.startswith("  File "))
    assert "ValueError: no label" in last
    assert any("`train_batch`" in line and "step 2" in line for line in last), "the note names node and step"
    assert "KeyError: 'label'" in result.err, "what the user's exception came from is kept"
    assert "graphtrain/trainer" not in result.err and "graphtrain/program" not in result.err
    status = status_of(folder / "r")
    assert (status["state"], status["position"]) == ("failed", "train_batch")
    shown = command("status", "r").out
    assert "r: failed" in shown and "train_batch" in shown


# --- Signals, in real processes --------------------------------------------------------------------------------------


def wait_for(process: Started, is_so: Callable[[], bool]) -> None:
    """Return when something holds of a process that runs."""
    deadline = time.monotonic() + 300
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.02)


def wait_until_it_runs(process: Started, run_dir: Path) -> None:
    """Return when the run has taken a step."""
    wait_for(process, lambda: (run_dir / "status.json").exists() and status_of(run_dir)["step"] >= 1)


@pytest.fixture
def slow(folder: Path) -> list[str]:
    (folder / "slow.py").write_text(SLOW)
    return ["run", "slow.py", "batches=250", "finish.after=1 epochs", "checkpoint.every=1 steps", "--run-dir"]


@pytest.mark.full
def test_a_stopped_run_resumes_and_ends_as_if_never_stopped(slow: list[str], folder: Path, command: Command) -> None:
    process = start([*slow, "r"], folder)
    wait_until_it_runs(process, folder / "r")
    shown = command("status", "r")
    assert shown.code == 0 and shown.out.startswith("r: running, graph fit, next node ")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (75, ""), err
    assert "stopped on request" in err
    stopped = status_of(folder / "r")
    assert stopped["state"] == "stopped" and 0 < stopped["step"] < 250
    shown = command("status", "r", "--json")
    assert json.loads(shown.out)["state"] == "stopped"
    (folder / "fast").touch()
    again = in_a_process(*printed_command(err), cwd=folder)
    assert again.code == 0, again
    assert "unchanged: exact" in again.err
    assert command(*slow, "whole").code == 0
    assert status_of(folder / "r")["digest"] == status_of(folder / "whole")["digest"]
    assert (folder / "r" / "metrics.jsonl").read_text() == (folder / "whole" / "metrics.jsonl").read_text()
    assert command("status", "r").out.startswith("r: finished, graph fit\n")


@pytest.mark.full
def test_a_killed_run_is_interrupted_and_a_second_interrupt_is_at_once(
    slow: list[str], folder: Path, command: Command
) -> None:
    killed = start([*slow, "killed"], folder)
    (folder / "stuck.py").write_text(
        TINY.replace(
            "    return model(batch)", "    open('inside', 'w').close()\n    while True: pass\n    return model(batch)"
        )
    )
    stuck = start(["run", "stuck.py", "--run-dir", "stuck"], folder)
    try:
        wait_until_it_runs(killed, folder / "killed")
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate(timeout=300)
        assert status_of(folder / "killed")["state"] == "running", "nobody could write otherwise"
        assert command("status", "killed").out.startswith("killed: interrupted, graph fit, next node ")
        assert json.loads(command("status", "killed", "--json").out)["state"] == "interrupted"

        wait_for(stuck, lambda: (folder / "inside").exists())
        stuck.send_signal(signal.SIGINT)
        wait_for(stuck, lambda: "Ctrl-C again stops at once" in stuck.said())
        with pytest.raises(subprocess.TimeoutExpired):
            stuck.wait(0.3)
        stuck.send_signal(signal.SIGINT)
        _, err = stuck.communicate(timeout=300)
        assert stuck.returncode == 130
        assert "Traceback" not in err and err.endswith("interrupted\n")
        assert printed_command(err) == ["run", "stuck.py", "--run-dir", "stuck"]
        assert command("status", "stuck").out.startswith("stuck: interrupted, ")
    finally:
        for process in (killed, stuck):
            process.kill()
            process.communicate()


# --- Forked from another run ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_fork_begins_from_another_run_and_continues_by_itself(tiny: Path, command: Command) -> None:
    assert command("run", "tiny.py", "finish.after=2 epochs", "--run-dir", "whole").code == 0
    assert command("run", "tiny.py", "finish.after=1 epochs", "--run-dir", "old").code == 0
    old = (tiny / "old" / "metrics.jsonl").read_bytes()
    forked = command("run", "tiny.py", "finish.after=2 epochs", "--fork", "old", "--run-dir", "new")
    assert forked.code == 0
    assert "resumed" in forked.err
    assert status_of(tiny / "new")["digest"] == status_of(tiny / "whole")["digest"]
    assert (tiny / "old" / "metrics.jsonl").read_bytes() == old
    assert rows_of(tiny / "new") == rows_of(tiny / "whole")[1:]
    again = command("run", "tiny.py", "finish.after=2 epochs", "--fork", "old", "--run-dir", "new")
    assert (again.code, "was finished before" in again.err) == (0, True)


# ---- overlays

BOTH = ("--overlay", "ema", "--overlay", "early_stop")


@pytest.fixture
def script(tiny: Path) -> Path:
    (tiny / "tiny.py").write_text(WITH_VALIDATION)
    return tiny


def place_of(run_dir: Path) -> tuple[int, str, str]:
    status = json.loads((run_dir / "status.json").read_text())
    return status["step"], status["state"], status["digest"]


@pytest.mark.full
def test_a_run_with_overlays_stops_early_and_is_resumed_exactly(script: Path, command: Command) -> None:
    # A rate of zero improves nothing; the average of weights that stand still stands still.
    words = ("run", "tiny.py", "lr=0", *BOTH, "early_stop.patience=2", "ema.decay=0.5", "finish.after=9 epochs")
    whole = command(*words, "--run-dir", "whole")
    assert whole.code == 0
    assert "early_stop: val/loss has not improved" in whole.err
    assert place_of(script / "whole")[:2] == (12, "finished"), "three epochs of four batches"
    assert command(*words, "--run-dir", "cut", "--until", "6 steps").code == 0
    resumed = command(*words, "--run-dir", "cut")
    assert "unchanged: exact" in resumed.err
    assert place_of(script / "cut") == place_of(script / "whole")
    assert Graph.load(script / "whole").layers.names == ("ema", "early_stop")
    further = command(
        *words[:-3], "early_stop.patience=4", "ema.decay=0.5", "finish.after=9 epochs", "--run-dir", "cut"
    )
    assert "early_stop.patience 2 -> 4" in further.err
    assert place_of(script / "cut")[:2] == (20, "finished"), "a patience that is raised trains on"


def test_the_command_of_a_resume_names_the_overlays(script: Path, command: Command) -> None:
    result = command("run", "tiny.py", *BOTH, "--until", "2 steps", "--run-dir", "r")
    assert "resume with: graphtrain run tiny.py --overlay ema --overlay early_stop --run-dir r" in result.err
    assert command("run", "tiny.py", *BOTH, "--run-dir", "r", "--graph", "saved", "--until", "3 steps").code == 0


@pytest.mark.full
def test_other_overlays_than_those_of_the_run_are_a_reported_change(script: Path, command: Command) -> None:
    assert command("run", "tiny.py", "--overlay", "carry", "--until", "2 steps", "--run-dir", "r").code == 0
    words = ("run", "tiny.py", "--overlay", "carry", "--overlay", "ema", "finish.after=1 epochs")
    for result in (command(*words, "--fork", "r", "--run-dir", "f"), command(*words, "--run-dir", "r")):
        assert result.code == 0 and "average new, a copy of model" in result.err
    again = command(*words[:-1], "finish.after=2 epochs", "--run-dir", "r")
    assert again.code == 0 and "average new" not in again.err
    without = command("run", "tiny.py", "--until", "9 steps", "finish.after=3 epochs", "--run-dir", "r")
    assert "guard window_cut ending -> next_batch.last or ending" in without.err


def test_show_names_the_overlays(folder: Path, command: Command) -> None:
    out = command("show", "fit", *BOTH).out
    assert "overlays ema, early_stop" in out
    assert any(line.startswith("  early_stop ") for line in out.splitlines())
    assert "overlay" not in command("show", "fit").out


# ---- dry runs

# Everything comes late; what is called is noted in a file.
DRY = (
    WITH_VALIDATION.replace("import torch\n", "import torch\nfrom graphtrain import Graph\n", 1)
    .replace(
        "def training_step(model, batch):\n",
        """\
def note(name):
    with open("calls", "a") as file:
        file.write(name + "\\n")

def validation_step(model, batch):
    note("val")
    return {"loss": model(batch).mean()}

graph = (
    Graph.load("fit").set("schedule", every="1 steps")
    .set("accumulate", every=4).set("validate", every="5 epochs", from_="2 epochs").set("log", every="1000 steps")
    .set("checkpoint", best="val/loss").set("finish", after="100 epochs")
)

def training_step(model, batch):
    note("train")
""",
    )
    .replace(
        '"training_step"',
        '"validation_step": validation_step, "loggers": [lambda row, step: note("row")], "training_step"',
    )
    .replace(
        "    return {\n",
        """\
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return {
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
""",
    )
    .replace('"optimizer": torch.optim.SGD(model.parameters(), lr=lr)', '"optimizer": optimizer')
)


def test_every_node_runs_once_and_nothing_is_written(folder: Path, command: Command) -> None:
    (folder / "script.py").write_text(DRY)
    for words in ((), ("--run-dir", "r", "--logger", "tensorboard", "next_batch.limit=9")):
        result = command("run", "script.py", "--dry-run", *words)
        assert result.code == 0, result.err
        assert "dry run: every node was reached\n" in result.err, result.err
        assert Path("calls").read_text().split() == ["train", "val"]
        assert {path.name for path in folder.iterdir()} == {"script.py", "calls"}
        Path("calls").unlink()


def test_what_is_not_reached_is_listed(folder: Path, command: Command) -> None:
    (folder / "script.py").write_text(DRY)
    (folder / "my.toml").write_text(
        'format = 1\nextends = "fit"\n[[edit]]\ninsert = "rest"\nuse = "choice"\n'
        '[[edit]]\nguard = "late"\nexpression = "step.steps > 8"\n'
        '[[edit]]\nconnect = "clip"\ntarget = "rest"\nwhen = "late"\n'
        '[[edit]]\nconnect = "rest"\ntarget = "step"\n'
        '[[edit]]\ninsert = "again"\ngraph = "evaluate"\nat = "decide"\nbefore = "checkpoint"\nevery = "never"\n'
        '[[edit]]\nset = "again/begin_evaluation"\nsplit = "again"\n'
    )
    words = ["run", "script.py", "--graph", "my.toml", "--dry-run"]
    assert "StepLR counts epochs by its documentation" in command(*words).err, "as a run would be refused"
    result = command(*words, "schedule.every=1 epochs")
    assert result.code == 0, result.err
    assert "dry run: every node was reached but `rest`, `again`\n" in result.err, result.err


def test_a_mistake_in_what_would_come_late_is_met(folder: Path, command: Command) -> None:
    (folder / "script.py").write_text(DRY.replace('{"loss": model(batch).mean()}', "model.missing"))
    result = command("run", "script.py", "--dry-run")
    assert (result.code, "has no attribute 'missing'" in result.err) == (1, True), result.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("overlay", ["ema", "swa", "early_stop", "carry", "save_first"])
def test_overlays_are_tried_too(overlay: str) -> None:
    trainer = world(fit().overlay(overlay).set("accumulate", every=3).dry_run()).trainer()
    trainer.run()
    unreached = {"exchange", "clip", "step", "zero_grad"} if overlay == "carry" else set()
    assert {*trainer.unreached} <= unreached
    assert trainer.progress["train_batch"]["runs"] == 1
