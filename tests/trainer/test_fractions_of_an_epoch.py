"""A fraction of an epoch of data without a length cannot be counted: it is refused before anything trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from graphtrain import Graph, Loader, Outcome, Trainer, UsageError


class Endless:
    """Five batches, and no length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.ones(2, 1)] * 5)


class Lengthless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.ones(1)] * 10)


def fit(**triggers: Any) -> Graph:
    graph = Graph.load("fit").set("checkpoint", every="never").set("finish", after=triggers.pop("finish", "2 epochs"))
    for node, amount in triggers.items():
        graph = graph.set(node, every=amount)
    return graph


def make_trainer(graph: Graph, data: Any, run_dir: Path | None = None) -> tuple[Trainer, list[int]]:
    trained: list[int] = []
    model = torch.nn.Linear(1, 1)

    def training_step(model: Any, batch: Any, step: int) -> Any:
        trained.append(step)
        return model(batch).mean()

    trainer = Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=data,
        val_data=[torch.ones(2, 1)],
        training_step=training_step,
        validation_step=lambda model, batch: model(batch).mean(),
    )
    return trainer, trained


@pytest.mark.first(4)
@pytest.mark.parametrize("data", [Endless(), DataLoader(Lengthless(), 2)], ids=["iterable", "IterableDataset"])
@pytest.mark.parametrize(
    ("triggers", "named"),
    [
        ({"validate": "0.25 epochs"}, 'validate.every = "0.25 epochs"'),
        ({"log": ["50 steps", "1/3 epochs"]}, 'log.every = "1/3 epochs"'),
        ({"finish": "1.5 epochs"}, 'finish.after = "1.5 epochs"'),
    ],
    ids=str,
)
def test_it_is_refused_before_anything_trains(triggers: dict[str, Any], named: str, data: Any, tmp_path: Path) -> None:
    trainer, trained = make_trainer(fit(**triggers), data, tmp_path)
    with pytest.raises(UsageError) as caught:
        trainer.run()
    assert caught.value.message == f"{named}: `train_data` has no length, so a fraction of an epoch cannot be counted"
    assert "count batches or steps, as in" in caught.value.hint and "`__len__`" in caught.value.hint
    assert trained == []
    trainer.rewire(fit())
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["validate"]["runs"] == 2


@pytest.mark.parametrize("until", ["0.5 epochs", "3/2 epochs"])
def test_until(until: str) -> None:
    trainer, trained = make_trainer(fit(), Endless())
    with pytest.raises(UsageError, match=r"^until = .*: `train_data` has no length"):
        trainer.run(until=until)
    assert trained == []
    assert trainer.run(until="1 epochs") is Outcome.REACHED
    assert len(trained) == 5


def test_a_graph_that_is_rewired_to_it_leaves_the_run_as_it_was() -> None:
    trainer, trained = make_trainer(fit(), Endless())
    trainer.run(until="3 batches")
    with pytest.raises(UsageError, match=r"validate\.every"):
        trainer.rewire(fit(validate="0.25 epochs"))
    assert trainer.run() is Outcome.FINISHED
    assert len(trained) == 10


def test_a_resume_with_it(tmp_path: Path) -> None:
    make_trainer(fit(), Endless(), tmp_path)[0].run(until="3 batches")
    trainer, trained = make_trainer(fit(validate="0.25 epochs"), Endless(), tmp_path)
    with pytest.raises(UsageError, match=r"validate\.every"):
        trainer.run()
    assert trained == []


@pytest.mark.parametrize(
    ("triggers", "data"),
    [
        ({"validate": "2.0 epochs"}, Endless()),
        ({"validate": "4/2 epochs"}, Endless()),
        ({"validate": "0.2 epochs"}, [torch.ones(2, 1)] * 5),
        ({"validate": "0.2 epochs", "finish": "1.4 epochs"}, Loader(torch.ones(10, 1), 2)),
        ({"validate": "0.5 minutes"}, Endless()),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else type(value).__name__,
)
def test_what_can_be_counted_is_not_refused(triggers: dict[str, Any], data: Any) -> None:
    trainer, _ = make_trainer(fit(**triggers), data)
    assert trainer.run() is Outcome.FINISHED
