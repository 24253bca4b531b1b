"""A run that is cut on the way: where it is saved and copied, and what is compared at the end of a resume."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer
from graphtrain.errors import UsageError
from graphtrain.kind.mark import node
from graphtrain.program import run_state
from graphtrain.program.stateful_objects import StatefulObjects
from graphtrain.proof.cuts import (
    CutTraining,
    TrainedRun,
    compare_runs,
)

GRAPH = (
    Graph.load("fit")
    .set("accumulate", every=2)
    .set("validate", every="0.5 epochs")
    .set("log", every="1 steps")
    .set("finish", after="2 epochs")
)
QUIET: dict[str, Any] = {"display": None, "notify": lambda line: None}


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(batch)
    return output.square().mean()


def trainer(run_dir: Path, graph: Graph = GRAPH, lr: float = 0.1) -> Trainer:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=lr),
        train_data=[torch.randn(2, 2) for _ in range(5)],
        val_data=[torch.randn(2, 2) for _ in range(2)],
        training_step=training_step,
        validation_step=training_step,
        **QUIET,
    )


def trained(folder: Path, name: str, cuts: Sequence[int] = (), until: str | None = None, **about: Any) -> TrainedRun:
    """Train in ``folder/name``, with copies of the cuts beside it; through the text that processes exchange."""
    outcome, run = CutTraining(folder / name, cuts, folder, until).run(trainer(folder / name, **about))
    assert outcome is (Outcome.FINISHED if until is None else Outcome.REACHED)
    assert TrainedRun.from_json(run.to_json()).to_json() == run.to_json()
    return TrainedRun.from_json(run.to_json())


def differences(folder: Path, name: str, run: TrainedRun) -> list[str]:
    return [str(difference) for difference in compare_runs(folder / "whole", folder / name, run)]


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedRun, TrainedRun]:
    """A run that was not cut, and one that was cut after each of its transitions."""
    folder = tmp_path_factory.mktemp("cuts")
    whole = trained(folder, "whole")
    return folder, whole, trained(folder, "second", range(1, whole.transitions))


@pytest.mark.full
def test_cuts_change_nothing_of_the_run(everywhere: tuple[Path, TrainedRun, TrainedRun]) -> None:
    folder, whole, cut_run = everywhere
    assert differences(folder, "second", whole) == []
    assert (cut_run.progress, cut_run.transitions) == (whole.progress, whole.transitions)
    assert len(cut_run.cuts) > 0.9 * whole.transitions, "nearly every position is a save point"


@pytest.mark.full
def test_copies_are_resumed_to_the_same_end(everywhere: tuple[Path, TrainedRun, TrainedRun]) -> None:
    folder, whole, cut_run = everywhere
    assert {"train_batch", "zero_grad", "validate/eval_batch", "end_epoch"} <= {cut.node for cut in cut_run.cuts}
    for cut in cut_run.cuts[::5]:
        resumed = trainer(folder / cut.name)
        assert resumed.advance(0) == cut.node
        assert resumed.run() is Outcome.FINISHED
        assert differences(folder, cut.name, whole) == [], cut


@pytest.mark.full
def test_a_run_until_an_amount_is_compared_there(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole", until="4 batches")
    cut_run = trained(tmp_path, "second", [3, whole.transitions - 1], until="4 batches")
    for cut in cut_run.cuts:
        assert trainer(tmp_path / cut.name).run(until="4 batches") is Outcome.REACHED
        assert differences(tmp_path, cut.name, whole) == []
    assert len(cut_run.cuts) == 2


@node(writes="thing")
def transient() -> object:
    return object()


@node
def reader(thing: object) -> None:
    assert thing is not None


def test_an_end_that_is_no_save_point_is_refused(tmp_path: Path) -> None:
    graph = GRAPH.insert("transient", transient, before="next_batch").insert("reader", reader, after="train_batch")
    with pytest.raises(UsageError, match="the run stops before the node `next_batch`, which is not a save point"):
        trained(tmp_path, "whole", until="2 batches", graph=graph)


@pytest.mark.full
def test_a_cut_at_no_save_point_is_made_at_the_next_one(tmp_path: Path) -> None:
    graph = GRAPH.insert("transient", transient, after="train_batch").insert("reader", reader, after="transient")
    whole = trained(tmp_path, "whole", graph=graph)
    cut_run = trained(tmp_path, "second", range(1, whole.transitions), graph=graph)
    assert "reader" not in {cut.node for cut in cut_run.cuts}
    assert "transient" in {cut.node for cut in cut_run.cuts}
    assert len({cut.transition for cut in cut_run.cuts}) == len(cut_run.cuts) < whole.transitions - 1


# --- Copies ----------------------------------------------------------------------------------------------------------


# --- The comparison --------------------------------------------------------------------------------------------------


def test_the_first_field_and_the_first_row_are_named(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole")
    trained(tmp_path, "other", lr=0.2)
    lines = differences(tmp_path, "other", whole)
    assert lines[0].startswith("resources/model/0.weight: 8 of 8 elements, by at most ")
    assert any(line.startswith("hyper_parameters_in_force: ") for line in lines)
    assert lines[-1].startswith("metrics.jsonl, row 1: lr 0.1 -> 0.2")
    assert not any("seconds" in line or "progress/log" in line for line in lines), "no clocks, no observers"


def test_another_end_is_a_difference(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole")
    trained(tmp_path, "other", until="4 batches")
    lines = differences(tmp_path, "other", whole)
    assert any(line.startswith("position: 'finish' -> 'next_batch'") for line in lines)
    assert any(line.endswith(" -> none") and line.startswith("metrics.jsonl, row ") for line in lines)


def test_rows_that_the_clock_decides_are_not_compared(tmp_path: Path) -> None:
    graph = GRAPH.set("log", every=["1 steps", "1 hours"])
    whole = trained(tmp_path, "whole", graph=graph)
    assert whole.has_timed_rows
    trained(tmp_path, "other", graph=graph)
    (tmp_path / "other" / "metrics.jsonl").write_text("{}\n")
    assert differences(tmp_path, "other", whole) == []


def test_means_whose_rows_the_clock_decides_are_in_no_digest(tmp_path: Path) -> None:
    first, second = (
        trainer(tmp_path / every, GRAPH.set("log", every=every)) for every in ("1 hours", "0.000001 seconds")
    )
    for each in (first, second):
        each.run(until="4 batches")
    assert len(first.metrics) < len(second.metrics)
    assert first.digest() == second.digest()


def without(*names: str) -> Any:
    """A capture that loses sections of the state."""
    captured = StatefulObjects.capture

    def capture(self: StatefulObjects, *arguments: Any) -> run_state.RunState:
        sections = captured(self, *arguments).sections()
        kept = {name: {"model": {}} if name == "gradients" else {} for name in names}
        return run_state.RunState.of({**sections, **kept})

    return capture


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("lost", ["gradients", "metrics"])
def test_state_that_was_not_saved_is_found(lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatefulObjects, "capture", without(lost))
    whole = trained(tmp_path, "whole")
    cut_run = trained(tmp_path, "second", [5, 9, 33])
    assert differences(tmp_path, "second", whole) == [], "saving alone changes nothing"
    found = []
    for cut in cut_run.cuts:
        trainer(tmp_path / cut.name).run()
        found += differences(tmp_path, cut.name, whole)
    expected = "metrics.jsonl, row " if lost == "metrics" else "resources/model/0.weight: "
    assert any(line.startswith(expected) for line in found)


# --- Samples ----------------------------------------------------------------------------------------------------------
