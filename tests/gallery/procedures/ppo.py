"""Proximal policy optimization: rollouts of a policy, and epochs of minibatches over each."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources

EPOCHS, KEPT, STEPS, ENVIRONMENTS, BATCH = 4, 2, 5, 2, 4
DISCOUNT, SMOOTHING = 0.9, 0.8


def graph() -> Graph:
    small = Graph.load("ppo").set("finish", after=f"{EPOCHS} epochs").set("accumulate", every=2)
    small = small.set("collect_rollout", steps=STEPS, epochs=KEPT, discount=DISCOUNT, smoothing=SMOOTHING)
    small = small.set("shuffle_rollout", batch_size=BATCH)
    return small.set("checkpoint", every="never").set("log", every="2 steps")


class Walk:
    """Steps to the left or to the right, with noise; an episode ends far from the middle."""

    def __init__(self) -> None:
        self.random = numpy.random.default_rng(3)
        self.places = self.random.normal(size=(ENVIRONMENTS, 3))

    def reset(self) -> numpy.ndarray:
        return self.places

    def step(self, actions: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
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
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "env": Walk(),
        "act": act,
        "training_step": training_step,
    }


def by_hand(resources: Resources) -> None:
    model, optimizer, env = resources["model"], resources["optimizer"], resources["env"]
    observations = torch.tensor(env.reset())
    for epoch in range(EPOCHS):
        if epoch % KEPT == 0:
            acted_on, actions, log_probs, values, rewards, ended = [], [], [], [], [], []
            with torch.no_grad():
                for _ in range(STEPS):
                    chosen, log_prob, value = act(model, observations)
                    acted_on.append(observations)
                    actions.append(chosen)
                    log_probs.append(log_prob)
                    values.append(value)
                    following, reward, end = env.step(chosen.numpy())
                    observations = torch.tensor(following)
                    rewards.append(torch.tensor(reward))
                    ended.append(torch.tensor(end))
                values.append(act(model, observations)[2])
            advantages = [torch.zeros(ENVIRONMENTS, dtype=torch.float64)]
            for step in range(STEPS - 1, -1, -1):
                goes_on = (~ended[step]).double()
                error = rewards[step] + DISCOUNT * goes_on * values[step + 1] - values[step]
                advantages.insert(0, error + DISCOUNT * goes_on * SMOOTHING * advantages[0])
            rollout = {
                "observations": torch.cat(acted_on),
                "actions": torch.cat(actions),
                "log_probs": torch.cat(log_probs),
                "advantages": torch.cat(advantages[:-1]),
            }
            rollout["returns"] = rollout["advantages"] + torch.cat(values[:-1])
        order = torch.randperm(STEPS * ENVIRONMENTS)
        minibatches = [{name: column[part] for name, column in rollout.items()} for part in order.split(BATCH)]
        for number, batch in enumerate(minibatches, 1):
            (training_step(model, batch) / 2).backward()
            if number % 2 == 0 or number == len(minibatches):
                optimizer.step()
                optimizer.zero_grad()


PROCEDURE = Procedure(
    name="ppo",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer"),
    one_rank_only="each rank would collect a rollout of its own",
)
