"""Cases from bug reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.rows import batches, perceptron, row, rows, seeded, squared


@row(needs="random")
def two_shuffled_loaders_in_a_dictionary() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, batch["a"]) + squared(model, batch["b"]).sqrt()

    data = {name: DataLoader(torch.cat(batches()), batch_size=4, shuffle=True) for name in "ab"}  # type: ignore[arg-type]
    return seeded(perceptron, training_step=step, train_data=data)


class Buffer:
    """A replay buffer that saves itself, and that can be iterated over as data can."""

    def __init__(self) -> None:
        self.items: list[float] = []

    def __iter__(self) -> Iterator[float]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def state_dict(self) -> dict[str, Any]:
        return {"items": list(self.items)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.items = list(state["items"])


@row(needs="state_dicts")
def replay_buffer_as_a_resource() -> dict[str, Any]:
    def step(model: Any, batch: Any, buffer: Buffer) -> torch.Tensor:
        buffer.items.append(float(batch.mean()))
        return squared(model, batch) * (1 + abs(sum(buffer.items)))

    return seeded(perceptron, training_step=step, buffer=Buffer())


def critic_with(norm: Callable[[nn.Linear], nn.Module]) -> dict[str, Any]:
    """A critic that is trained within the step function, whose `weight` keeps a graph that nothing needs."""
    critic = nn.Sequential(norm(nn.Linear(2, 4)), nn.ReLU(), norm(nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

    def step(model: Any, batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        (1 - critic(model(batch).detach())).square().mean().backward(retain_graph=True)
        optimizer.step()
        return critic(model(batch)).square().mean()

    return seeded(perceptron, training_step=step)


rows(
    needs="state_dicts",
    critic_with_weight_norm=lambda: critic_with(torch.nn.utils.weight_norm),
    critic_with_spectral_norm=lambda: critic_with(torch.nn.utils.spectral_norm),
)
