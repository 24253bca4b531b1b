"""Rollouts: training data for reinforcement learning, collected by the current policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from graphtrain import Above, StepFunction, UsageError, lazy_import, node

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Rollout = dict[str, Tensor]
else:
    torch = lazy_import("torch")


Count = Annotated[int, Above(0)]


@node(
    writes=("rollout", "observations", "earned"),
    family="data",
    varying=("steps", "epochs", "discount", "smoothing"),
)
class CollectRollout:
    """Run the policy in several environments, and estimate the advantages of its actions.

    Episodes continue in the next rollout. The model keeps its current mode and gets no gradients. Advantages are
    estimated by GAE. The mean return of the episodes that ended in the rollout is recorded as ``rollout/return``.
    Sources: Schulman et al., "Proximal policy optimization algorithms", 2017, and "High-dimensional continuous control
    using generalized advantage estimation", 2016. The graph `ppo` uses this kind.

    Reads:
        env: a vectorized environment. ``env.reset()`` returns the first observations, an array whose first dimension is
            the environments; ``env.step(actions)`` returns the next observations, the rewards, and which episodes have
            ended. An ended episode is replaced by a new one, whose first observation is returned. The attributes of
            `env` are saved with the run.
        act: ``act(model, observations)`` returns actions, their log-probabilities, and the values of the critic, each
            for every environment.
        observations: the observations at the beginning of the rollout. Default: those of ``env.reset()``.
        earned: the return so far of the unfinished episodes. Default: zero.

    Arguments:
        steps: steps in each environment. Default: 128.
        epochs: epochs of training per rollout. Default: 4.
        discount: the discount factor (gamma). Default: 0.99.
        smoothing: the lambda of GAE: 0 relies on the critic, 1 on the rewards alone. Default: 0.95.

    Writes:
        rollout: `observations`, `actions`, `log_probs`, `advantages` and `returns`, for all steps and environments.
        observations: the observations after the rollout.
        earned: the return so far of the unfinished episodes.

    Raises:
        UsageError: there are several ranks, whose rollouts would differ; or `act` or ``env.step`` did not return one
            number for each environment.

    >>> import numpy, torch
    >>> from graphtrain import Graph
    >>> class Env:
    ...     def __init__(self):
    ...         self.now = numpy.zeros((2, 2), numpy.float32)
    ...     def reset(self):
    ...         return self.now
    ...     def step(self, actions):
    ...         self.now = self.now + 0.1 * actions
    ...         return self.now, self.now[:, 0], self.now[:, 1] > 0.5
    >>> env = Env()
    >>> def act(model, observations):
    ...     return observations + torch.rand(2, 2), torch.zeros(2), observations.sum(1)
    >>> def training_step(model, batch):
    ...     return model.training_step(batch["observations"])
    >>> def validation_step(model, batch):
    ...     return model.training_step(batch)
    >>> graph = Graph.load("ppo").set("collect_rollout", steps=5, epochs=1)
    >>> graph.check()
    []
    """

    steps: Count = 128
    epochs: Count = 4
    discount: float = 0.99
    smoothing: float = 0.95

    @staticmethod
    def refuse_settings(node: Any, *, ranks: bool) -> None:
        """Raise for settings with which a run could not start: the checks call it."""
        if ranks:
            raise UsageError(f"`{node.path}`: each rank would collect a rollout of its own", "train in one process")

    def __call__(
        self, model: Any, env: Any, act: StepFunction, device: Any, recorder: Any, observations: Any = None,
        earned: Any = None,
    ) -> tuple[Rollout, Tensor, Tensor]:  # fmt: skip
        visits, finished = [], []
        seen = torch.tensor(env.reset()) if observations is None else observations
        with torch.no_grad():
            for _ in range(self.steps):
                actions, log_probs, values = map(torch.Tensor.cpu, act(model, seen.to(device)))
                following, rewards, ended = map(torch.tensor, env.step(actions.numpy()))
                for name, column in {"values of `act`": values, "rewards": rewards, "ends of episodes": ended}.items():
                    if column.shape != seen.shape[:1]:
                        what = f"`collect_rollout`: {name} of shape {[*column.shape]} for {len(seen)} environments"
                        raise UsageError(what, "return one number for each, as in values.squeeze(1)")
                visits.append((seen, actions, log_probs, values, rewards.to(values), ended := ended.bool()))
                earned = rewards if earned is None else earned + rewards
                finished += earned[ended].tolist()
                seen, earned = following, earned * ~ended
            value = act(model, seen.to(device))[2].cpu()
        if finished:
            recorder.row({"rollout/return": sum(finished) / len(finished)})
        acted_on, actions, log_probs, values, rewards, ended = map(torch.stack, zip(*visits, strict=True))
        advantages = self._advantages(values, rewards, ended, value)
        rollout = {"observations": acted_on, "actions": actions, "log_probs": log_probs}
        rollout |= {"advantages": advantages, "returns": advantages + values}
        return {name: column.flatten(0, 1) for name, column in rollout.items()}, seen, earned

    def _advantages(self, values: Tensor, rewards: Tensor, ended: Tensor, value: Tensor) -> Tensor:
        """Advantages by GAE; `value` is the critic's estimate after the last step."""
        advantages, advantage = torch.empty_like(values), torch.zeros_like(value)
        for step in reversed(range(self.steps)):
            kept = self.discount * (~ended[step]).to(values)
            advantage = rewards[step] + kept * value - values[step] + kept * self.smoothing * advantage
            advantages[step], value = advantage, values[step]
        return advantages
