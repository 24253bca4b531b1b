"""Proximal policy optimization: rollouts of a policy, and epochs of minibatches over each."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from graphtrain import Graph
from tests.procedure import Procedure, Resources, momentum, short, step, windows

EPOCHS, KEPT, STEPS, ENVIRONMENTS, BATCH = 4, 2, 5, 2, 4
DISCOUNT, SMOOTHING = 0.9, 0.8


def graph() -> Graph:
    small = short(Graph.load("ppo").set("shuffle_rollout", batch_size=BATCH), EPOCHS, 2, log="2 steps")
    return small.set("collect_rollout", steps=STEPS, epochs=KEPT, discount=DISCOUNT, smoothing=SMOOTHING)


class Walk:
    """Steps to the left or to the right, with noise; an episode ends far from the middle."""

    def __init__(self) -> None:
        self.random = numpy.random.default_rng(3)
        self.places = self.random.normal(size=(ENVIRONMENTS, 3))

    def reset(self) -> Any:
        return self.places

    def step(self, actions: Any) -> tuple[Any, Any, Any]:
        self.places[:, 0] += actions - 0.5 + 0.3 * self.random.normal(size=ENVIRONMENTS)  # in place
        rewards = 1 - abs(self.places[:, 0])
        ended = abs(self.places[:, 0]) > 1
        self.places[ended] = self.random.normal(size=(ended.sum(), 3)) / 3
        return self.places, rewards, ended


class Agent(torch.nn.Module):
    """Two logits, and what the critic expects; with dropout, whose numbers are drawn in rollouts too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 3))

    def forward(self, observations: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        outputs = self.layers(observations)
        return torch.distributions.Categorical(logits=outputs[:, :2]), outputs[:, 2]


def act(model: Any, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
    policy, values = model(observations)
    actions = policy.sample()
    return actions, policy.log_prob(actions), values


def training_step(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    policy, values = model(batch["observations"])
    ratio = (policy.log_prob(batch["actions"]) - batch["log_probs"]).exp()
    gains = torch.min(ratio * batch["advantages"], ratio.clamp(0.8, 1.2) * batch["advantages"])
    return (0.5 * (values - batch["returns"]).square() - gains).mean()


def resources() -> Resources:
    torch.manual_seed(1)
    model = Agent().double()
    return {
        "model": model,
        "optimizer": momentum(model),
        "env": Walk(),
        "act": act,
        "training_step": training_step,
    }


def collected(model: Any, env: Walk, observations: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A rollout, and the observations after it."""
    visits, values = list[tuple[torch.Tensor, ...]](), list[torch.Tensor]()
    with torch.no_grad():
        for _ in range(STEPS):
            actions, log_probs, value = act(model, observations)
            following, rewards, ended = env.step(actions.numpy())
            visits.append((observations, actions, log_probs, torch.tensor(rewards), torch.tensor(ended)))
            values.append(value)
            observations = torch.tensor(following)
        values.append(act(model, observations)[2])
    advantages = [torch.zeros(ENVIRONMENTS, dtype=torch.float64)]
    for number, (*_, reward, end) in reversed([*enumerate(visits)]):
        goes_on = (~end).double()
        error = reward + DISCOUNT * goes_on * values[number + 1] - values[number]
        advantages.insert(0, error + DISCOUNT * goes_on * SMOOTHING * advantages[0])
    columns = [torch.cat(column) for column in [*[*zip(*visits, strict=True)][:3], advantages[:-1]]]
    rollout = dict(zip(("observations", "actions", "log_probs", "advantages"), columns, strict=True))
    return {**rollout, "returns": rollout["advantages"] + torch.cat(values[:-1])}, observations


def by_hand(resources: Resources) -> None:
    model, env = resources["model"], resources["env"]
    observations = torch.tensor(env.reset())
    for epoch in range(EPOCHS):
        if epoch % KEPT == 0:
            rollout, observations = collected(model, env, observations)
        parts = torch.randperm(STEPS * ENVIRONMENTS).split(BATCH)
        minibatches = [{name: column[part] for name, column in rollout.items()} for part in parts]
        for _, batch, is_end in windows(minibatches, 1, 2):
            (training_step(model, batch) / 2).backward()  # type: ignore[no-untyped-call]
            if is_end:
                step(resources["optimizer"])


def values_in_a_column(model: Any, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
    actions, log_probs, values = act(model, observations)
    return actions, log_probs, values[:, None]


class RewardsInAColumn(Walk):
    def step(self, actions: Any) -> tuple[Any, Any, Any]:
        places, rewards, ended = super().step(actions)
        return places, rewards[:, None], ended


PROCEDURE = Procedure(
    "ppo",
    graph,
    resources,
    by_hand,
    one_rank_only="each rank would collect its own rollout",
    bad={
        "values in a column": (
            lambda it: it.but(act=lambda made: values_in_a_column),
            r"values of `act` of shape \[2, 1\] for 2 environments\n.*one number for each",
        ),
        "rewards in a column": (
            lambda it: it.but(env=RewardsInAColumn()),
            r"rewards of shape \[2, 1\] for 2 environments",
        ),
    },
)
