"""What an epoch has: the same batches in each, and data that depends on the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import DataError, Graph, Loader, PlannedRun, Trainer, node
from graphtrain.state.random import seed_everything
from tests.program.cuts import assert_same

FIT = Graph.load("fit").set("finish", after="3 epochs").set("log", every="never").set("checkpoint", every="never")
NUMBERS = torch.arange(12.0).repeat(2, 1).T


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return len(NUMBERS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return NUMBERS[index] + 0.1 * torch.rand(())


def make(graph: Graph, data: Any, seen: list[Any] | None = None, run_dir: Path | None = None) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.5))

    def training_step(model: Any, batch: Any) -> torch.Tensor:
        parts = [*batch.values()] if isinstance(batch, dict) else [batch]
        if seen is not None:
            seen.append([part.tolist() for part in parts])
        return sum(model(part).square().mean() for part in parts)  # type: ignore[return-value]

    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        not_state=["training_step<seen>"],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        train_data=data,
        training_step=training_step,
    )


def seen_of(graph: Graph, data: Any) -> list[Any]:
    seen: list[Any] = []
    make(graph, data, seen).run()
    return seen


def expect_a_cut_is_exact(graph: Graph, make_data: Any, folder: Path, cut: int) -> None:
    whole, again = seen_of(graph, make_data()), []
    first = make(graph, make_data(), again, folder / str(cut))
    first.advance(cut)
    first.save()
    make(graph, make_data(), again, folder / str(cut)).run()
    assert again == whole


def loader() -> Loader:
    return Loader(Noisy(), batch_size=2, shuffle=True)


def together() -> dict[str, Any]:
    return {"a": loader(), "b": Loader(Noisy(), batch_size=4, shuffle=True)}


# ---- overfit


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("make_data", [loader, together, lambda: DataLoader(NUMBERS, 2), lambda: [*NUMBERS.split(2)]])
def test_every_epoch_has_the_same_batches(make_data: Any, tmp_path: Path) -> None:
    graph = FIT.set("next_batch", overfit=3)
    seen = seen_of(graph, make_data())
    assert len(seen) == 9 and seen[:3] == seen[3:6] == seen[6:]
    assert seen[0] != seen[1] != seen[2]
    assert PlannedRun(graph).steps(make_data()) == 9
    expect_a_cut_is_exact(graph, make_data, tmp_path, 40)


def test_data_that_shuffles_is_refused() -> None:
    with pytest.raises(DataError, match="with a RandomSampler, which gives other batches in every epoch"):
        make(FIT.set("next_batch", overfit=3), DataLoader(NUMBERS, 2, shuffle=True)).run()


# ---- a function of the epoch


class Growing:
    """One batch more in every epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.epoch + 1

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(NUMBERS[: 2 * len(self)].split(2))


@pytest.mark.full
def test_data_that_is_told_the_epoch_is_a_function_of_it(tmp_path: Path) -> None:
    firsts = [parts[0][0][0] for parts in seen_of(FIT, Growing())]
    assert firsts == [0, 0, 2, 0, 2, 4]
    for cut in (7, 16, 30):
        expect_a_cut_is_exact(FIT, Growing, tmp_path, cut)


# ---- in a nested graph


@node
def receive(model: Any, server: Any) -> None:
    """Begin a client with the weights of the server."""
    model.load_state_dict(server.state_dict())


@node
def contribute(model: Any, total: Any) -> None:
    """Add half of what a client has trained."""
    for weight, trained in zip(total.parameters(), model.parameters(), strict=True):
        weight.data.add_(trained.data / 2)


@node
def publish(server: Any, total: Any) -> None:
    """Let the server have the mean of both clients."""
    server.load_state_dict(total.state_dict())
    for weight in total.parameters():
        weight.data.zero_()


FEDERATED = """
format = 1
name   = "federated"
start  = "receive_a"

[nodes]
receive_a    = { use = "receive" }
a            = { graph = "fit", reads = { train_data = "a_data" } }
contribute_a = { use = "contribute" }
receive_b    = { use = "receive" }
b            = { graph = "fit", reads = { train_data = "b_data" } }
contribute_b = { use = "contribute" }
publish      = {}

[guards]
enough = "publish.runs >= 3"

[edges]
receive_a    = ["a"]
a            = ["contribute_a"]
contribute_a = ["receive_b"]
receive_b    = ["b"]
b            = ["contribute_b"]
contribute_b = ["publish"]
publish      = ["end if enough", "receive_a"]
"""

CLIENTS = {
    "Loader": lambda: Loader(Noisy(), 4, shuffle=True, seed=5),
    "DataLoader": lambda: DataLoader(Noisy(), 4, shuffle=True),
}


def supplies(kind: str, seen: list[Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    seed_everything(0)
    models = [torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.5)) for _ in range(2)]
    total = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.5))
    for weight in total.parameters():
        weight.data.zero_()

    def training_step(model: Any, batch: Any) -> torch.Tensor:
        seen.append(batch.tolist())
        loss: torch.Tensor = model(batch).square().mean()
        return loss

    return {
        "model": models[0],
        "server": models[1],
        "total": total,
        "optimizer": torch.optim.SGD(models[0].parameters(), lr=1e-3),
        "training_step": training_step,
        "a_data": CLIENTS[kind](),
        "b_data": CLIENTS[kind](),
    }


def federated(kind: str, seen: list[Any], run_dir: Path | None = None) -> Trainer:
    graph = Graph.loads(FEDERATED).replace("publish", publish)
    for client in "ab":
        graph = graph.replace(f"receive_{client}", receive).replace(f"contribute_{client}", contribute)
        graph = graph.set(f"{client}/finish", after="2 epochs").set(f"{client}/checkpoint", every="never")
    steps = ["training_step<seen>"]
    return Trainer(
        graph, run_dir=run_dir, seed=5, display=None, notify=lambda line: None, not_state=steps, **supplies(kind, seen)
    )


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("kind", CLIENTS)
def test_a_federated_average_by_nested_graphs_equals_its_loop_by_hand(kind: str, tmp_path: Path) -> None:
    expected: list[Any] = []
    by_hand = supplies(kind, expected)
    model, optimizer = by_hand["model"], by_hand["optimizer"]
    seed_everything(5)
    for _ in range(3):
        for data in ("a_data", "b_data"):
            model.load_state_dict(by_hand["server"].state_dict())
            for _ in range(2):
                for batch in by_hand[data]:
                    by_hand["training_step"](model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            contribute(model, by_hand["total"])
        publish(by_hand["server"], by_hand["total"])
    seen: list[Any] = []
    trainer = federated(kind, seen)
    trainer.run()
    assert seen == expected
    assert_same(trainer.resources["server"].state_dict(), by_hand["server"].state_dict())
    assert trainer.read("a/next_batch.passes") == 6
    for cut in (30, 75, 140):  # in an epoch of the first visit, between two visits, in one of the second
        again: list[Any] = []
        first = federated(kind, again, tmp_path / str(cut))
        first.advance(cut)
        first.save()
        federated(kind, again, tmp_path / str(cut)).run()
        assert again == expected, f"cut before {first.position}"


@pytest.mark.parametrize("kind", CLIENTS)
def test_each_evaluation_sees_the_same_order_and_random_numbers(kind: str) -> None:
    seen: list[Any] = []
    trainer = make(FIT, [*NUMBERS.split(2)], run_dir=None)
    resources = {**trainer.resources, "val_data": CLIENTS[kind]()}
    resources["validation_step"] = lambda model, batch: seen.append(batch.tolist()) or {}
    Trainer(FIT, seed=0, display=None, notify=lambda line: None, **resources).run()
    assert len(seen) == 9 and seen[:3] == seen[3:6] == seen[6:]
