"""Promise 17: processes over gloo, of which one fails, sleeps or is killed, all end and say so; and they join again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import STOP, Trainer
from tests.ranks.processes import KILLED, TINY, outcomes_of, run_command, run_processes
from tests.world import small_fit, small_model, world


def rank() -> int:
    return int(os.environ["RANK"])


def trainer_of(acts: Callable[[int], Any] = lambda index: None, **options: Any) -> Trainer:
    """Something happens in the fourth micro-batch of an epoch, which is that of rank 1."""

    def step(model: torch.nn.Module, batch: Any, batch_index: int) -> Any:
        asked = acts(batch_index) if batch_index == 3 else None
        loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        return loss if asked is None else (loss, asked)

    return world(small_fit(validate_every="never"), model=small_model, training_step=step).trainer(**options)


def error_of(act: Callable[[], Any]) -> tuple[str, str]:
    """The type and the message of what a call raises."""
    try:
        act()
    except BaseException as error:
        return type(error).__name__, str(error)
    return "", ""


def raises(index: int) -> None:
    raise ValueError("bad batch")


def failures() -> dict[str, Any]:
    """Row after row in one process: ranks leave each other after every failure, and join again."""
    pytest.MonkeyPatch().setattr("graphtrain.program.agreement._GRACE_SECONDS", 0.2)
    trainer = trainer_of(raises)
    rows: dict[str, Any] = {"fails": error_of(trainer.run), "fails again": error_of(trainer.run)}
    rows["before"] = error_of(lambda: trainer_of(**({"max_epochs": 3} if rank() else {})).run())
    other, graph = trainer_of(lambda index: STOP), small_fit(validate_every="never")
    other.advance(3)
    rows["rewired"] = error_of(
        lambda: other.rewire(graph.set("log", every="2 steps"), **({"max_epochs": 1} if rank() else {}))
    )
    rows["not rewired"] = (other.run().name, other.graph == graph, other.progress["next_batch"]["epoch"])
    rows["file"] = error_of(lambda: trainer_of(run_dir=Path(__file__)))
    last = trainer_of()
    rows["end"] = ("", last.run().name)
    return rows


@pytest.mark.full
def test_what_fails_is_named_on_all_and_ranks_join_again() -> None:
    first, second = run_processes(2, failures)
    place = "rank 1 failed in `train_batch` at step 0, epoch 0.80, batch 4/5, window 2/4: ValueError: bad batch"
    assert (first["fails"], second["fails"]) == (("RankFailedError", place), ("ValueError", "bad batch"))
    assert first["fails again"][0] == second["fails again"][0] == "LifeCycleError"
    assert second["before"][0] == "GraphError"
    assert first["before"][1].startswith("rank 1 failed before the run: GraphError: ")
    assert second["rewired"][0] == "GraphError" and "rank 1 failed in `rewire`: GraphError: " in first["rewired"][1]
    for row in (first, second):
        assert row["not rewired"] == ("FINISHED", True, 0), "and the graph that it keeps grants what steps ask for"
        assert "cannot write " in row["file"][1]
        assert row["end"] == ("", "FINISHED")


def sleeping(folder: Path) -> tuple[str, str]:
    os.environ["GRAPHTRAIN_TIMEOUT_SECONDS"] = "2"
    trainer = trainer_of(lambda index: wait_for(folder / "ended-0"))
    (folder / f"begins-{rank()}").touch()
    wait_for(folder / f"begins-{1 - rank()}")
    error = error_of(trainer.run)
    (folder / f"ended-{rank()}").touch()
    return error


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 100
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} does not come"
        time.sleep(0.01)


@pytest.mark.full
def test_a_rank_that_does_not_come_in_time_is_named(tmp_path: Path) -> None:
    first, _ = run_processes(2, sleeping, tmp_path)
    assert first[0] == "RankFailedError"
    assert first[1].startswith("rank 1 did not arrive in time; the others wait in `train_batch` at step 0, ")
    assert "Ranks wait 2 s for each other; GRAPHTRAIN_TIMEOUT_SECONDS" in first[1]


def killed() -> None:
    trainer_of(lambda index: os.kill(os.getpid(), 9)).run()


@pytest.mark.full
def test_a_rank_that_is_killed_is_missed() -> None:
    (is_returned, error), second = outcomes_of(2, killed)
    assert not is_returned and "RankFailedError: rank 1 " in error
    assert second == (False, KILLED)


# ---- through the command


def script(act: str) -> str:
    """Of which rank 1 does something in the fourth batch of the run."""
    condition = 'if batch_index == 3 and os.environ.get("RANK") == "1":'
    return TINY.replace("    return model(", f"    {condition}\n        {act}\n    return model(")


@pytest.mark.full
def test_an_exception_on_one_rank_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script('raise ValueError("a bad batch")'))
    first, second = run_command(2, "run", "train.py", cwd=tmp_path)
    assert first.code == second.code == 1
    assert second.err.startswith("Traceback") and second.err.count("\n") < 10
    assert "ValueError: a bad batch\non rank 1\nraised in node `train_batch` (step 1, epoch 1, batch 4/4)" in second.err
    assert first.err.count("error: ") == first.err.count("graph fit") == 1
    assert "error: rank 1 failed in `train_batch` at step 1, epoch 1, batch 4/4: ValueError: a bad batch\n" in first.err
    assert (
        "resume with: graphtrain run train.py --run-dir runs/train-001  in 2 processes, by the same launcher\n"
        in first.err
    )
    folder = tmp_path / "runs" / "train-001"
    assert '"state": "failed"' in (folder / "status.json").read_text()
    assert len((folder / "starts.jsonl").read_text().splitlines()) == 1
    assert not (folder / "checkpoints").exists()


@pytest.mark.full
def test_a_signal_to_one_rank_stops_all_with_one_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script("os.kill(os.getpid(), 10)"))
    words = ["run", "train.py", "finish.after=3 epochs", "checkpoint.every=never", "--run-dir", "r"]
    first, second = run_command(2, *words, cwd=tmp_path)
    assert first.code == second.code == 75, (first, second)
    assert second.err == "" and first.err.count("stopped on request; run again to resume: r  digest") == 1
    assert len(list((tmp_path / "r" / "checkpoints").iterdir())) == 1
    (resumed,) = run_command(1, *words, cwd=tmp_path)
    digest = json.loads((tmp_path / "r" / "status.json").read_text())["digest"]
    assert resumed.code == 0 and f"the run is finished: r  digest {digest[:16]}" in resumed.err, resumed


SHARDED = f"""\
import os
import sys
import time

sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.ranks import sharded

def training_step(model, batch):
    return sharded.loss_of(model, batch)

def setup():
    return {{**sharded.parts_of(sharded.Case(samples=16)), "training_step": training_step}}
"""
KILLING = """
import random
import threading

whole = setup

def kill(attempt):
    while attempt == 0 and not os.path.exists("killed/starts.jsonl"):  # the first inside the run, on a slow machine too
        time.sleep(0.01)
    time.sleep(random.Random(attempt).uniform(0, 1 if attempt else 0.3))
    os.kill(os.getpid(), 9)

def setup():
    attempt, rank = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "9")), os.environ.get("RANK")
    if attempt < 4 and rank == str(attempt % 2):
        threading.Thread(target=kill, args=[attempt], daemon=True).start()
    return whole()
"""


@pytest.mark.sweep
@pytest.mark.parametrize("text", [TINY, SHARDED], ids=["replicated", "sharded"])
def test_ranks_that_are_killed_at_any_moment_come_to_the_end_of_a_run_that_is_not(text: str, tmp_path: Path) -> None:
    slow = text.replace("    return model(batch)", "    time.sleep(0.02)\n    return model(batch)")
    (tmp_path / "train.py").write_text(slow + KILLING)
    words = ["run", "train.py", "finish.after=8 epochs", "checkpoint.every=2 steps", "--run-dir"]
    assert all(rank.code == 0 for rank in run_command(2, *words, "whole", cwd=tmp_path))
    elastic = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*elastic, "--max-restarts", "4", "-m", "graphtrain", *words, "killed"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "killed" / "starts.jsonl").read_text().splitlines()) > 1
    whole, killed = (json.loads((tmp_path / name / "status.json").read_text()) for name in ("whole", "killed"))
    assert whole["state"] == killed["state"] == "finished"
    assert whole["digest"] == killed["digest"]
