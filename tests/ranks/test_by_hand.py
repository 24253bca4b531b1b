"""A graph on several processes against the same loop written by hand, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from graphtrain import Graph, Loader, Trainer
from graphtrain.ranks import current_ranks
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


def by_graph(every: int, seed: int) -> tuple[list[list[float]], int]:
    current_ranks()
    model, optimizer, data = parts()
    torch.manual_seed(seed + int(os.environ["RANK"]))
    graph = Graph.load("fit").set("accumulate", every=every).set("clip", max_norm=0.5)
    trainer = Trainer(
        graph.set("finish", after=f"{EPOCHS} epochs"),
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


def by_hand(every: int, seed: int, *, with_ddp: bool) -> tuple[list[list[float]], int]:
    current_ranks().gather(b" ")  # which begins the process group
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, optimizer, data = parts()
    loader = Loader(data, batch_size=4, shuffle=True, seed=5)
    wrapped = DistributedDataParallel(model) if with_ddp else model
    torch.manual_seed(seed + rank)
    steps = 0
    for epoch in range(EPOCHS):
        for number, batch in enumerate(list(loader.batches(epoch))[rank::world_size]):
            is_full = (number + 1) % every == 0
            if with_ddp:
                wrapped.require_backward_grad_sync = is_full  # as no_sync() does
                (loss_of(wrapped, batch) / every).backward()
            else:
                (loss_of(wrapped, batch) / (every * world_size)).backward()
            if not is_full:
                continue
            if not with_ddp:
                flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]
                dist.all_reduce(flat)
                start = 0
                for parameter in model.parameters():
                    parameter.grad = flat[start : start + parameter.numel()].view_as(parameter).clone()
                    start += parameter.numel()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if not with_ddp:
                share_buffers(model)
    share_buffers(model)  # as the next forward pass does with DistributedDataParallel
    return weights(model), steps


def share_buffers(model: torch.nn.Module) -> None:
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


def both_with_ddp(every: int) -> tuple[Any, Any]:
    return by_graph(every, 7), by_hand(every, 7, with_ddp=True)


def both(every: int) -> tuple[Any, Any]:
    return by_graph(every, 7), by_hand(every, 7, with_ddp=False)


def all_with_ddp() -> list[tuple[Any, Any]]:
    return [both_with_ddp(every) for every in (1, 3)]


@pytest.mark.full
def test_two_ranks_equal_distributed_data_parallel() -> None:
    first, second = run_processes(2, all_with_ddp)
    for (graph, hand), (graph_of_second, _) in zip(first, second, strict=True):
        assert graph == hand == graph_of_second
    (_, steps), (_, steps_of_three) = [graph for graph, _ in first]
    assert (steps, steps_of_three) == (24, 8)


@pytest.mark.sweep
def test_four_ranks_equal_a_loop_that_exchanges_in_the_same_buckets() -> None:
    for graph, hand in run_processes(4, both, 3):
        assert graph == hand
