"""Promise 17: a graph on two processes is the same loop with DistributedDataParallel, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from graphtrain import Graph, Loader, Trainer
from tests.ranks.processes import run_processes

BATCHES, EPOCHS = 24, 2


class Uneven(torch.nn.Module):
    """A model whose modules are registered in another order than they are used, with dropout and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(16, 1)
        self.first = torch.nn.Linear(4, 16)
        self.middle = torch.nn.Linear(16, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.drop = torch.nn.Dropout(0.2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.tanh(self.norm(self.first(inputs))))
        output: torch.Tensor = self.last(torch.tanh(self.middle(hidden)))
        return output


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Uneven()
    inputs = torch.randn(BATCHES * 4, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), data


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def weights(model: torch.nn.Module) -> list[list[float]]:
    return [tensor.detach().flatten().tolist() for tensor in (*model.parameters(), *model.buffers())]


def by_graph(every: int, *, overlap: bool = True) -> tuple[list[list[float]], int]:
    model, optimizer, data = parts()
    torch.manual_seed(7 + int(os.environ["RANK"]))
    graph = Graph.load("fit").set("accumulate", every=every).set("clip", max_norm=0.5)
    trainer = Trainer(
        graph.set("finish", after=f"{EPOCHS} epochs").set("exchange", overlap=overlap),
        seed=None,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=optimizer,
        train_data=Loader(data, batch_size=4, shuffle=True, seed=5),
        training_step=loss_of,
    )
    trainer.run()
    return weights(model), trainer.progress["step"]["steps"]


def by_hand(every: int) -> tuple[list[list[float]], int]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, optimizer, data = parts()
    loader = Loader(data, batch_size=4, shuffle=True, seed=5)
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(7 + rank)
    steps = 0
    for epoch in range(EPOCHS):
        for number, batch in enumerate(list(loader.batches(epoch))[rank::world_size]):
            wrapped.require_backward_grad_sync = (number + 1) % every == 0  # as no_sync() does
            (loss_of(wrapped, batch) / every).backward()
            if wrapped.require_backward_grad_sync:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)  # as the next forward pass does
    return weights(model), steps


def three_ways(amounts: tuple[int, ...]) -> list[tuple[Any, Any, Any]]:
    """By the graph first, which begins the process group; with sums that begin in the pass, and at the node."""
    return [(by_graph(every), by_graph(every, overlap=False), by_hand(every)) for every in amounts]


@pytest.mark.full
def test_two_ranks_equal_distributed_data_parallel() -> None:
    first, second = run_processes(2, three_ways, (1, 3))
    for (graph, at_node, hand), (graph_of_second, *_) in zip(first, second, strict=True):
        assert graph == at_node == hand == graph_of_second
    assert [steps for (_, steps), *_ in first] == [24, 8]
