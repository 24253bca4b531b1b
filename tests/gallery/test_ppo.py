"""Rollouts: advantages, returns of episodes, the state of environments, and the carts of the example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain import UsageError
from graphtrain.graphs.gallery.ppo.collect_rollout import CollectRollout
from graphtrain.kind import kind_of
from graphtrain.report.recorder import Recorder
from tests.gallery.procedures.ppo import KEPT, PROCEDURE, Walk


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
