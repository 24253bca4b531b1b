"""Proximal policy optimization learns to balance a pole on a cart.

    graphtrain run graphs/gallery/ppo/ppo_example.py
    graphtrain run graphs/gallery/ppo/ppo_example.py lr=1e-3 collect_rollout.epochs=8

The equations of motion with friction, the force, the time step, and the limits at which an episode ends are those of
Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems", 1983.
Each time step gives a reward of 1, and an episode has at most 500 steps.

METRIC is the mean return of the episodes that ended in a rollout, which is the number of steps the pole stayed up.
BASELINE is that of an untrained policy, which pushes at random; the trained policy reaches 500.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch
from torch import nn

from graphtrain import Graph

METRIC = "rollout/return"
BASELINE = 22
LEVEL = 300

graph = (
    Graph.load("ppo")
    .set("collect_rollout", steps=128)
    .set("shuffle_rollout", batch_size=128)
    .set("finish", after="240 epochs")
)


class CartPoles:
    """Carts on tracks, each with a pole: positions, angles and their velocities."""

    gravity, cart, pole, half_length, force, seconds = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    track_friction, pole_friction, most_steps = 0.0005, 0.000002, 500

    def __init__(self, count: int, seed: int) -> None:
        self.random = numpy.random.default_rng(seed)
        self.state = self.random.uniform(-0.05, 0.05, (count, 4)).astype(numpy.float32)
        self.age = numpy.zeros(count, int)

    def reset(self) -> numpy.ndarray:
        """The initial observations."""
        return self.state

    def step(self, actions: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
        """Push each cart to the left or to the right; a new episode replaces one that has ended."""
        speed, angle, turning = self.state.T[1:]
        sine, cosine, mass = numpy.sin(angle), numpy.cos(angle), self.cart + self.pole
        push = numpy.where(actions == 1, self.force, -self.force) - self.track_friction * numpy.sign(speed)
        push = push + self.pole * self.half_length * turning**2 * sine
        inertia = self.half_length * (4 / 3 - self.pole * cosine**2 / mass)
        friction = self.pole_friction * turning / (self.pole * self.half_length)
        turn = (self.gravity * sine - cosine * push / mass - friction) / inertia
        pull = (push - self.pole * self.half_length * turn * cosine) / mass
        self.state = self.state + self.seconds * numpy.stack([speed, pull, turning, turn], 1).astype(numpy.float32)
        self.age = self.age + 1
        has_fallen = (abs(self.state[:, 0]) > 2.4) | (abs(self.state[:, 2]) > math.radians(12))
        ended = has_fallen | (self.age >= self.most_steps)
        self.age[ended], self.state[ended] = 0, self.random.uniform(-0.05, 0.05, (ended.sum(), 4))
        return self.state, numpy.ones(len(ended)), ended


class Agent(nn.Module):
    """A policy, and a critic that estimates the return."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sample actions; returns them, their log-probabilities, and the values of the critic."""
        policy = torch.distributions.Categorical(logits=self.policy(observations))
        actions = policy.sample()
        return actions, policy.log_prob(actions), self.critic(observations).squeeze(1)

    def training_step(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The clipped loss of the policy, the loss of the critic, and an entropy bonus."""
        policy = torch.distributions.Categorical(logits=self.policy(batch["observations"]))
        ratio = (policy.log_prob(batch["actions"]) - batch["log_probs"]).exp()
        advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        critic = nn.functional.mse_loss(self.critic(batch["observations"]).squeeze(1), batch["returns"])
        entropy = policy.entropy().mean()
        return {"loss": 0.5 * critic - gain - 0.01 * entropy, "critic": critic, "entropy": entropy}


def setup(lr: float = 3e-3, carts: int = 8, seed: int = 0) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        lr: learning rate of Adam.
        carts: number of parallel environments.
        seed: for the initial positions.
    """
    torch.set_num_threads(1)  # a network this small is slower with two
    agent = Agent()
    return {
        "model": agent,
        "optimizer": torch.optim.Adam(agent.parameters(), lr=lr),
        "env": CartPoles(carts, seed),
        "act": Agent.act,
    }
