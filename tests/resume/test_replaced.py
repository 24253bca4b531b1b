"""A save that comes when no clock has moved takes the place of the newest checkpoint: none is kept twice (12, 14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Run, Trainer
from tests.world import small_fit, small_model, world


def checkpoints(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir() if not path.name.startswith("."))


def saving(every: str = "never", **parameters: Any) -> Graph:
    return small_fit(validate_every="never").set("checkpoint", every=every, **parameters)


def small_trainer(run_dir: Path, graph: Graph) -> Trainer:
    return world(graph, model=small_model, data="list").trainer(run_dir)


def losing(run_dir: Path, losses: list[float], graph: Graph, rate: float = 0.01) -> Trainer:
    """A run of two batches an epoch, whose validations give these losses."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    left = iter(losses)
    return Trainer(
        graph.set("finish", after=f"{len(losses)} epochs"),
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        train_data=[torch.ones(4, 2)] * 2,
        val_data=[torch.ones(4, 2)],
        training_step=lambda model, batch: model(batch).square().mean(),
        validation_step=lambda model, batch: {"loss": next(left)},
    )


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_end_of_a_run_is_not_saved_twice(mode: str, tmp_path: Path) -> None:
    small_trainer(tmp_path, graph=saving("1 epochs", keep=2, mode=mode)).run()
    assert [saved["epoch"] for saved in Run(tmp_path).checkpoints] == [1.0, 2.0]
    assert checkpoints(tmp_path)[-1].startswith("000003-"), "numbers count saves"


def test_the_best_are_as_many_states_as_were_asked_for(tmp_path: Path) -> None:
    graph = Graph.load("fit").set("checkpoint", every="1 epochs", keep=1, best="val/loss", keep_best=2)
    losing(tmp_path, [10.0, 9.0, 2.8, 5.0, 2.5], graph).run()
    assert [saved["metrics"]["val/loss"] for saved in Run(tmp_path).checkpoints] == [2.8, 2.5]


def test_a_save_that_is_asked_for_twice_leaves_one(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, graph=saving())
    trainer.advance(8)
    former = trainer.save()
    path = trainer.save()
    assert path is not None and checkpoints(tmp_path) == [path.name] and path != former
    while trainer.position != "next_batch":
        trainer.advance()
    trainer.advance()  # a batch: the clock moves
    trainer.save()
    assert len(checkpoints(tmp_path)) == 2


def test_two_nodes_and_a_stop_that_save_one_moment_leave_one(tmp_path: Path) -> None:
    graph = saving("2 batches", keep=10).insert("second", "checkpoint", between=("checkpoint", "decide"))
    graph = graph.set("second", every="2 batches", keep=10, mode="sync")
    trainer = small_trainer(tmp_path, graph=graph)
    assert trainer.run(until="4 batches") is Outcome.REACHED
    epochs = [saved["epoch"] for saved in Run(tmp_path).checkpoints]
    assert len(epochs) == len({*epochs}) == 2
    assert checkpoints(tmp_path)[-1].startswith("000005-")


def test_a_resumed_run_saves_in_the_place_of_what_it_was_resumed_from(tmp_path: Path) -> None:
    graph = saving(keep=10)
    small_trainer(tmp_path, graph=graph).run(until="3 batches")
    again = small_trainer(tmp_path, graph=graph)
    again.advance(0)
    again.save()
    assert [name[:6] for name in checkpoints(tmp_path)] == ["000002"]


LOSSES = [3.0, 2.0, 1.0]


@pytest.mark.parametrize("change", ["rate", "name"])
def test_the_way_back_from_a_change_stays(change: str, tmp_path: Path) -> None:
    """What was saved before the change can be returned to, and `verify` compares the span that led there."""
    losing(tmp_path, LOSSES, saving(keep=10)).run(until="3 batches")
    if change == "rate":
        losing(tmp_path, LOSSES, saving(keep=10), rate=0.5).advance(0, from_setup="optimizer.lr")
    else:
        graph = saving(keep=10).rename("zero_grad", "clear")
        losing(tmp_path, LOSSES, graph).advance(0, rename={"zero_grad": "clear"})
    assert [name[:6] for name in checkpoints(tmp_path)] == ["000001", "000002"]


def test_what_was_saved_before_a_graph_is_rewired_stays(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, graph=saving(keep=10))
    trainer.run(until="3 batches")
    trainer.rewire(saving(keep=10).set("clip", max_norm=0.5))
    trainer.save()
    trainer.save()
    assert [name[:6] for name in checkpoints(tmp_path)] == ["000001", "000003"]


def test_an_earlier_checkpoint_that_is_resumed_by_its_name_stays(tmp_path: Path) -> None:
    small_trainer(tmp_path, graph=saving("3 batches", keep=10)).run(until="6 batches")
    before = checkpoints(tmp_path)
    small_trainer(tmp_path, graph=saving("3 batches", keep=10)).advance(0, resume=before[0])
    assert checkpoints(tmp_path)[:-1] == before
