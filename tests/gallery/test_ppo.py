"""Rollouts: advantages, returns of episodes, the state of environments, and the carts of the example."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain import Graph, Outcome, UsageError
from graphtrain.graphs.gallery.ppo.collect_rollout import CollectRollout
from graphtrain.graphs.gallery.ppo.ppo_example import CartPoles
from graphtrain.kind import kind_of
from graphtrain.report.recorder import Recorder
from tests.gallery.procedures.ppo import KEPT, PROCEDURE, Agent, Walk


class Chain:
    """Rewards 0, 1, 2, ...; the episode of the first environment ends after every third."""

    def __init__(self) -> None:
        self.now = 0.0

    def reset(self) -> numpy.ndarray:
        return numpy.zeros((2, 1))

    def step(self, actions: numpy.ndarray) -> tuple[numpy.ndarray, ...]:
        reward, self.now = self.now, self.now + 1
        return numpy.full((2, 1), self.now), numpy.full(2, reward), numpy.array([self.now % 3 == 0, False])


def act(model: Any, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.zeros(2), torch.zeros(2), 10 + observations[:, 0]


def collect_rollout(env: Any, act: Any, recorder: Recorder, **parameters: Any) -> Any:
    collect = kind_of(CollectRollout).new_instance()
    vars(collect).update(parameters)
    return collect(None, env, act, torch.device("cpu"), recorder)


def test_without_smoothing_it_is_the_error_of_the_critic_and_with_all_of_it_what_was_earned() -> None:
    recorder = Recorder(lambda: (0, 0.0))
    for smoothing in (0.0, 1.0):
        rollout, after, earned = collect_rollout(Chain(), act, recorder, steps=4, discount=0.5, smoothing=smoothing)
        advantages = rollout["advantages"].reshape(4, 2).T.tolist()
        if smoothing == 0:  # reward + what the critic expects then, unless the episode has ended, - what it expects now
            assert advantages == [
                [0 + 11 / 2 - 10, 1 + 12 / 2 - 11, 2 - 12, 3 + 14 / 2 - 13],
                [0 + 11 / 2 - 10, 1 + 12 / 2 - 11, 2 + 13 / 2 - 12, 3 + 14 / 2 - 13],
            ]
        else:
            assert advantages[0] == [0 + 1 / 2 + 2 / 4 - 10, 1 + 2 / 2 - 11, 2 - 12, 3 + 14 / 2 - 13]
            assert advantages[1][0] == 0 + 1 / 2 + 2 / 4 + 3 / 8 + 14 / 16 - 10
        returns = rollout["advantages"] + 10 + rollout["observations"][:, 0]
        assert torch.equal(rollout["returns"], returns)
        assert (after.tolist(), earned.tolist()) == ([[4.0], [4.0]], [3.0, 6.0])
    assert [row["rollout/return"] for row in recorder.rows] == [3, 3]


@pytest.mark.parametrize("kind", ["int64", "uint8", "float32"])
def test_ends_of_episodes_may_be_numbers(kind: str) -> None:
    class Numbers(Chain):
        def step(self, actions: numpy.ndarray) -> tuple[numpy.ndarray, ...]:
            observations, rewards, ended = super().step(actions)
            return observations, rewards, ended.astype(kind)

    recorder = Recorder(lambda: (0, 0.0))
    expected, numbers = (collect_rollout(env, act, recorder, steps=4)[0] for env in (Chain(), Numbers()))
    assert all(torch.equal(numbers[name], column) for name, column in expected.items())
    assert [row["rollout/return"] for row in recorder.rows] == [3, 3]


def test_what_is_not_one_number_for_each_environment_is_refused() -> None:
    """A column of values would broadcast with rewards, and with the ratios of a training step."""

    class Columns(Chain):
        def step(self, actions: numpy.ndarray) -> tuple[numpy.ndarray, ...]:
            observations, rewards, ended = super().step(actions)
            return observations, rewards[:, None], ended

    def act_in_columns(model: Any, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.zeros(2), torch.zeros(2), observations

    for env, function, message in (
        (Chain(), act_in_columns, r"values of `act` of shape \[2, 1\] for 2 environments\n.*one number for each"),
        (Columns(), act, r"rewards of shape \[2, 1\] for 2 environments"),
    ):
        with pytest.raises(UsageError, match=message):
            collect_rollout(env, function, Recorder(lambda: (0, 0.0)), steps=4)


@pytest.mark.full
def test_a_cut_among_minibatches_has_the_environments_as_they_were(tmp_path: Path) -> None:
    whole = PROCEDURE.trainer()
    whole.run()
    first = PROCEDURE.trainer(tmp_path)
    first.run(until=f"{KEPT + 0.5} epochs")
    assert first.read("collect_rollout.runs") == 2
    first.save()
    second = PROCEDURE.trainer(tmp_path)
    second.advance(0)
    for trainer in (first, second):
        env = trainer.resources["env"]
        assert numpy.array_equal(env.places, first.resources["env"].places)
        assert env.random.bit_generator.state == first.resources["env"].random.bit_generator.state
        assert not numpy.array_equal(env.places, Walk().places)
    second.run()
    assert (second.digest(), second.metrics) == (whole.digest(), whole.metrics)


def test_the_policy_is_given_observations_of_its_own_type() -> None:
    class Precise(Walk):
        def reset(self) -> numpy.ndarray:
            return super().reset().astype("float64")

        def step(self, actions: numpy.ndarray) -> tuple[numpy.ndarray, ...]:
            observations, rewards, ended = super().step(actions)
            return observations.astype("float64"), rewards.astype("float64"), ended

    graph, model = PROCEDURE.graph(), Agent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    resources = {**PROCEDURE.resources(), "model": model, "optimizer": optimizer, "env": Precise()}
    trainer = PROCEDURE.trainer(graph=graph, resources=resources)
    assert trainer.run() is Outcome.FINISHED
    assert {column.dtype for name, column in trainer.read("rollout").items() if name != "actions"} == {torch.float32}
    assert [row["loss"] for row in trainer.metrics if "loss" in row]


def test_a_rollout_is_kept_for_its_epochs() -> None:
    trainer = PROCEDURE.trainer(graph=PROCEDURE.graph().set("finish", after="5 epochs"))
    trainer.run()
    assert (trainer.read("collect_rollout.runs"), trainer.read("shuffle_rollout.runs")) == (math.ceil(5 / KEPT), 5)


@pytest.mark.parametrize("action", [0, 1])
def test_the_carts_obey_the_published_equations(action: int) -> None:
    carts = CartPoles(2, seed=0)
    place, speed, angle, turning = before = [0.1, -0.4, 0.05, 0.3]
    carts.state[0] = before
    carts.step(numpy.array([action, 0]))
    force = 10 if action else -10
    # g, the masses of cart and pole, half the length of the pole, and the two frictions.
    g, cart, pole, half, on_track, on_pole = 9.8, 1.0, 0.1, 0.5, 0.0005, 0.000002
    inner = (-force - pole * half * turning**2 * math.sin(angle) + on_track * math.copysign(1, speed)) / (cart + pole)
    turn = g * math.sin(angle) + math.cos(angle) * inner - on_pole * turning / (pole * half)
    turn /= half * (4 / 3 - pole * math.cos(angle) ** 2 / (cart + pole))
    pull = force + pole * half * (turning**2 * math.sin(angle) - turn * math.cos(angle))
    pull = (pull - on_track * math.copysign(1, speed)) / (cart + pole)
    expected = [place + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turning, turning + 0.02 * turn]
    assert carts.state[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_a_policy_that_is_not_trained_lets_the_pole_fall() -> None:
    """What the example calls its baseline."""
    carts, draw = CartPoles(20, seed=1), numpy.random.default_rng(0)
    ends = [carts.step(draw.integers(0, 2, 20))[2].sum() for _ in range(200)]
    assert 18 < 200 * 20 / sum(ends) < 27


def test_the_graph_is_fit_with_two_nodes() -> None:
    assert set(Graph.load("ppo").nodes) == {*Graph.load("fit").nodes, "collect_rollout", "shuffle_rollout"}
