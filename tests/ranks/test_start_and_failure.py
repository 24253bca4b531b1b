"""Several processes that begin with what differs, or of which one fails: an error on all of them, and nothing hangs."""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from graphtrain import Graph, Loader, Trainer
from graphtrain.errors import UsageError
from graphtrain.program import agreement
from graphtrain.program.resources import resolve_device
from graphtrain.ranks import LostRankError, current_ranks, on_all_ranks
from graphtrain.ranks.current import prints, using_ranks
from graphtrain.ranks.processes import Processes
from graphtrain.storage.run_files import RunFiles, RunLock
from tests.ranks.processes import run_processes

Resources = dict[str, Any]


def resources(rank: int, *, model_seed: int = 0, batches: int = 6, lr: float = 0.1, every: int = 2) -> Resources:
    torch.manual_seed(model_seed)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    graph = Graph.load("fit").set("accumulate", every=every).set("finish", after="2 epochs").set("log", every="1 steps")
    return {
        "graph": graph,
        "display": None,
        "notify": lambda line: None,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr),
        "train_data": Loader(torch.ones(batches * 2, 2), batch_size=2),
        "training_step": lambda model, batch: model(batch).square().mean(),
    }


def wrapped(rank: int) -> Resources:
    given = resources(rank)
    return {**given, "model": torch.nn.Sequential(torch.nn.DataParallel(given["model"]))}


# What differs -> what each rank has, and what the error says on all of them.
DIFFERENT: dict[str, tuple[Callable[[int], Resources], str]] = {
    "weights": (
        lambda rank: resources(rank, model_seed=rank),
        r"ranks differ in `model\.0\.weight`: 'float32 \[2, 2\] \w+' on rank 0; 'float32 \[2, 2\] \w+' on rank 1",
    ),
    "shape": (
        lambda rank: {**resources(rank), "further": torch.nn.Linear(2 + rank, 1)},
        r"ranks differ in `further\.weight`: 'float32 \[1, 2\] \w+' on rank 0; 'float32 \[1, 3\] \w+' on rank 1",
    ),
    "data": (
        lambda rank: resources(rank, batches=6 - rank),
        "ranks differ in the length of `train_data`: 6 on rank 0; 5 on rank 1\n  hint: give all ranks the same data",
    ),
    "graph": (
        lambda rank: resources(rank, every=2 + rank),
        r"ranks differ in the graph, line \d+: 'accumulate = .*2 }' on rank 0; 'accumulate = .*3 }' on rank 1",
    ),
    "lr": (
        lambda rank: resources(rank, lr=0.5 + rank),
        r"ranks differ in `optimizer\.lr`: 0\.5 on rank 0; 1\.5 on rank 1",
    ),
    "seed": (lambda rank: {**resources(rank), "seed": rank}, "ranks differ in `seed`: 0 on rank 0; 1 on rank 1"),
    "arguments": (
        lambda rank: {**resources(rank), "about": {"arguments": {"width": 3 + rank}}},
        "ranks differ in `width`: 3 on rank 0; 4 on rank 1",
    ),
    "wrapped": (wrapped, "`model` is wrapped in DataParallel, which exchanges .*\n  hint: supply the plain model"),
}


def error_of(act: Callable[[], Any]) -> tuple[str, str]:
    """The type and the message of what a call raises."""
    try:
        act()
    except BaseException as error:
        return type(error).__name__, str(error)
    return "", ""


def failing(model: torch.nn.Module, batch: torch.Tensor, batch_index: int) -> torch.Tensor:
    if batch_index > 2 and current_ranks().rank == 1:
        raise ValueError("bad batch")
    loss: torch.Tensor = model(batch).mean()
    return loss


def fails_in_setup(rank: int) -> None:
    with on_all_ranks("in setup"):
        if rank == 1:
            raise OSError("no such file")
    Trainer(**resources(rank)).run()


def fails_in_trainer(rank: int) -> None:
    Trainer(**resources(rank), **({"unread": 3} if rank == 1 else {})).run()


def rewired(rank: int) -> tuple[Any, Any]:
    """What a `rewire` that one rank refuses raises, and what the run comes to that is as before."""
    trainer = Trainer(**resources(rank))
    graph = trainer.graph
    trainer.advance(3)
    other = graph if rank else graph.set("log", every="2 steps")
    refused = error_of(lambda: trainer.rewire(other, **({"x": 1} if rank else {})))
    return refused, (repr(trainer.run()), trainer.graph is graph)


def unwritable(rank: int, folder: Path) -> None:
    """Rank 0 alone writes the list of starts, and cannot."""
    folder.mkdir(exist_ok=True)
    trainer = Trainer(**resources(rank), run_dir=folder)
    find = RunFiles.find
    with pytest.MonkeyPatch.context() as patched:
        # Between what looks at the folder and what writes to it.
        patched.setattr(
            RunFiles, "find", lambda self, resume: (find(self, resume), (folder / "starts.jsonl").mkdir())[0]
        )
        trainer.run()


def sleeping(model: torch.nn.Module, batch: torch.Tensor, batch_index: int) -> torch.Tensor:
    if batch_index > 2 and current_ranks().rank == 1:
        assert current_ranks().read("failure", 60) is not None  # until the other one has given up
    loss: torch.Tensor = model(batch).mean()
    return loss


def starts_and_failures(folder: Path) -> dict[str, Any]:
    """Row after row in one process: ranks leave each other after every failure, and join again."""
    ranks = current_ranks()
    rank = ranks.rank
    agreement._GRACE_SECONDS = 0.2
    rows: dict[str, Any] = {}
    for name, (given, _) in DIFFERENT.items():
        rows[name] = error_of(lambda given=given: Trainer(**given(rank)))  # type: ignore[misc]
    rows["fails in setup"] = error_of(lambda: fails_in_setup(rank))
    rows["fails in trainer"] = error_of(lambda: fails_in_trainer(rank))
    trainer = Trainer(**{**resources(rank), "training_step": failing})
    rows["fails"] = error_of(trainer.run)
    rows["fails again"] = error_of(trainer.run)
    rows["rewired"], rows["not rewired"] = rewired(rank)
    rows["unwritable"] = error_of(lambda: unwritable(rank, folder / "unwritable"))
    taken, lock = folder / "taken", RunLock(folder / "taken", print)
    taken.mkdir(exist_ok=True)
    if rank == 0:
        lock.acquire()
    rows["taken"] = error_of(lambda: Trainer(**resources(rank), run_dir=taken).run())
    lock.release()
    rows["file"] = error_of(lambda: Trainer(**resources(rank), run_dir=Path(__file__)))
    assert isinstance(ranks, Processes)
    ranks._timeout, ranks.timeout_seconds = timedelta(seconds=1), 1.0
    rows["sleeps"] = error_of(lambda: Trainer(**{**resources(rank), "training_step": sleeping}).run())
    ranks._timeout = timedelta(seconds=60)
    trainer = Trainer(**resources(rank))
    rows["end"] = repr(trainer.run()), [parameter.tolist() for parameter in trainer.resources["model"].parameters()]
    return rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_processes(2, starts_and_failures, tmp_path_factory.mktemp("ranks"))


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_begin_with_what_differs(name: str, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        kind, message = row[name]
        assert kind == "UsageError" and re.match(DIFFERENT[name][1], message), message
    assert rows[0][name] == rows[1][name]


def test_one_rank_fails(rows: list[dict[str, Any]]) -> None:
    first, second = rows
    assert second["fails in setup"] == ("OSError", "no such file")
    assert first["fails in setup"] == ("RankFailedError", "rank 1 failed in setup: OSError: no such file")
    assert second["fails in trainer"][0] == "GraphError"
    assert first["fails in trainer"][1].startswith("rank 1 failed before the run: GraphError: ")
    assert second["fails"] == ("ValueError", "bad batch")
    kind, message = first["fails"]
    assert kind == "RankFailedError"
    assert (
        message == "rank 1 failed in `train_batch` at step 0, epoch 0.67, batch 4/6, window 2/4: ValueError: bad batch"
    )


def test_what_fails_on_one_rank_between_runs_and_when_it_begins(rows: list[dict[str, Any]]) -> None:
    first, second = rows
    assert first["fails again"][0] == second["fails again"][0] == "LifeCycleError"
    assert "the run has failed inside a node\n  hint: make a new " in first["fails again"][1]
    assert second["rewired"][0] == "GraphError"
    assert first["rewired"][1].startswith("rank 1 failed in `rewire`: GraphError: ")
    assert first["not rewired"] == second["not rewired"] == ("Outcome.FINISHED", True)
    assert first["unwritable"][0] == "CheckpointError" and "starts.jsonl" in first["unwritable"][1]
    assert second["unwritable"][1].startswith("rank 0 failed in `")
    assert ": CheckpointError: cannot write " in second["unwritable"][1]


def test_a_rank_that_does_not_come_in_time(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        kind, message = row["sleeps"]
        assert kind == "RankFailedError"
        assert re.match(r"rank 1 did not come to call \d+, where others wait in `train_batch` at step 0, .*; ", message)
        assert "ranks last synchronised at `next_batch`" in message, message
    assert "ranks wait 1 s for each other, or GRAPHTRAIN_TIMEOUT_SECONDS" in rows[0]["sleeps"][1]


def test_one_run_directory(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["taken"][0] == row["file"][0] == "UsageError"
        assert "is being trained by process " in row["taken"][1]
        assert "cannot be written: " in row["file"][1]
    assert rows[0]["taken"] == rows[1]["taken"]


def test_ranks_join_again_after_every_failure(rows: list[dict[str, Any]]) -> None:
    assert rows[0]["end"] == rows[1]["end"]
    assert rows[0]["end"][0] == "Outcome.FINISHED"


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan", ""])
def test_a_timeout_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHTRAIN_TIMEOUT_SECONDS", text)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"GRAPHTRAIN_TIMEOUT_SECONDS is {text!r}\\n  hint: set it to the seconds"):
        Processes.join()


def test_the_environment_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphtrain.ranks.current._of_process", None)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "two")
    hint = "\n  hint: start the processes with torchrun, or with graphtrain run --processes"
    with pytest.raises(UsageError) as refused:
        current_ranks()
    assert str(refused.value) == f"WORLD_SIZE is 'two', which is not a number{hint}"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(UsageError) as refused:
        current_ranks()
    assert str(refused.value) == f"RANK and WORLD_SIZE are set, but MASTER_PORT is not{hint}"


def test_a_restart_finds_nothing_of_the_attempt_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun keeps its store, with the addresses of processes that have died."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for name, value in {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(atexit, "register", lambda function: None)
    attempts = []
    for attempt in ("0", "1", "0"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        attempts.append(Processes.join())
        if len(attempts) == 1:
            attempts[0].publish("joins/1", b"address")
    assert [ranks.read("joins/1") for ranks in attempts] == [b"address", None, b"address"]


def test_every_rank_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    assert [str(resolve_device(name, 1)) for name in ("auto", "cuda", torch.device("cuda"), "cpu")] == [
        *["cuda:1"] * 3,
        "cpu",
    ]
    assert list(map(str, used)) == ["cuda:1"] * 3
    with pytest.raises(UsageError, match="local rank 2 has no CUDA device of its own: there are 2 here\n  hint: start"):
        resolve_device("auto", 2)


@pytest.mark.parametrize(("rank", "prints_it"), [(1, True), (2, False)])
def test_without_a_store_the_first_that_is_left_prints(rank: int, prints_it: bool) -> None:
    class Left:
        world_size = 3

        def claim(self, name: str) -> bool:
            raise LostRankError("the store is gone")

        def ended(self) -> set[int]:
            return {0}

    ranks: Any = Left()
    ranks.rank = rank
    with using_ranks(ranks):
        assert prints("all of them", is_of_all=True) is prints_it
        assert prints("one of them")


def test_a_script_that_has_made_a_group_is_told_to_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match=r"the script has called torch\.distributed\.init_process_group\n  hint:"):
        Processes.join()


def test_an_address_that_cannot_be_reached_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*words: Any, **options: Any) -> Any:
        raise RuntimeError("timed out\nand where in the C++ code")

    monkeypatch.setattr("graphtrain.ranks.processes.TCPStore", connect)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"rank 1 cannot reach the other processes at node7:29500: timed out\n  hint:"):
        Processes.join()
