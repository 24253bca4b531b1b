"""Proximal policy optimization learns to balance a pole on a cart.

    graphtrain run graphs/gallery/ppo/ppo.py shuffle_rollout.batch_size=128 finish.after='240 epochs'

The equations of motion, the force, the time step, and the limits at which an episode ends are those of Barto, Sutton
and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems", 1983, without friction.
Each time step gives a reward of 1, and an episode has at most 500 steps. `rollout/return` is the mean return of the
episodes that ended in a rollout, which is the number of steps the pole stayed up; an untrained policy reaches 22.
"""

from typing import Annotated, Any

from graphtrain import Above, StepFunction, UsageError, lazy_import, node

numpy = lazy_import("numpy")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")

graph = "ppo"

Count = Annotated[int, Above(0)]


@node(writes=("rollout", "observations", "earned"), family="data", varying=("steps", "epochs", "discount", "smoothing"))
class CollectRollout:
    """Run the policy in several environments, and estimate the advantages of its actions.

    Episodes continue in the next rollout. The model keeps its current mode and gets no gradients. Advantages are
    estimated by GAE. The mean return of the episodes that ended in the rollout is recorded as ``rollout/return``.
    Sources: Schulman et al., "Proximal policy optimization algorithms", 2017, and "High-dimensional continuous control
    using generalized advantage estimation", 2016.

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
    ...     def reset(self):
    ...         return numpy.zeros((2, 2), numpy.float32)
    ...     def step(self, actions):
    ...         return actions, actions[:, 0], actions[:, 1] > 0.5
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
            raise UsageError(f"`{node.path}`: each rank would collect its own rollout", "train in one process")

    def __call__(
        self, model: Any, env: Any, act: StepFunction, device: Any, recorder: Any, observations: Any = None,
        earned: Any = None,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        visits, finished = [], []
        seen = torch.tensor(env.reset()) if observations is None else observations
        with torch.no_grad():
            for _ in range(self.steps):
                actions, log_probs, values = map(torch.Tensor.cpu, act(model, seen.to(device)))
                following, rewards, ended = map(torch.tensor, env.step(actions.numpy()))
                for name, column in {"values of `act`": values, "rewards": rewards, "ends of episodes": ended}.items():
                    if column.shape != seen.shape[:1]:
                        message = f"`collect_rollout`: {name} of shape {[*column.shape]} for {len(seen)} environments"
                        raise UsageError(message, "return one number for each, as in values.squeeze(1)")
                visits.append((seen, actions, log_probs, values, rewards.to(values), ended := ended.bool()))
                earned = rewards if earned is None else earned + rewards
                finished += earned[ended].tolist()
                seen, earned = following, earned * ~ended
            value = act(model, seen.to(device))[2].cpu()
        if finished:
            recorder.row({"rollout/return": sum(finished) / len(finished)})
        acted_on, actions, log_probs, values, rewards, ended = map(torch.stack, zip(*visits, strict=True))
        advantages, advantage = torch.empty_like(values), torch.zeros_like(value)
        for step in reversed(range(self.steps)):
            kept = self.discount * (~ended[step]).to(values)
            advantage = rewards[step] + kept * value - values[step] + kept * self.smoothing * advantage
            advantages[step], value = advantage, values[step]
        rollout = {"observations": acted_on, "actions": actions, "log_probs": log_probs}
        rollout |= {"advantages": advantages, "returns": advantages + values}
        return {name: column.flatten(0, 1) for name, column in rollout.items()}, seen, earned


@node(writes="minibatches", family="data")
def shuffle_rollout(rollout: Any, *, batch_size: Count = 64) -> list[dict[str, Any]]:
    """Divide a rollout into minibatches, shuffled at each visit; `next_batch` reads them as its data.

    Reads:
        rollout: a mapping of tensors whose first dimension is the samples, as `collect_rollout` writes it.

    Arguments:
        batch_size: samples per minibatch; the last one may have fewer. Default: 64.

    Writes:
        minibatches: a list of such mappings, one for each minibatch.

    >>> import torch
    >>> from graphtrain import Graph
    >>> rollout = {"advantages": torch.rand(5, 2)}
    >>> def training_step(model, batch):
    ...     return model.training_step(batch["advantages"])
    >>> graph = Graph.load("fit").insert("shuffle_rollout", before="next_batch", batch_size=2)
    >>> graph = graph.set("next_batch", reads={"train_data": "minibatches"}).set("validate", every="never")
    >>> graph.check()
    []
    """
    order = torch.randperm(len(next(iter(rollout.values()))))
    return [{name: column[part] for name, column in rollout.items()} for part in torch.split(order, batch_size)]


class CartPoles:
    """Carts on tracks, each with a pole: positions, angles and their velocities."""

    def __init__(self, count: int = 8) -> None:
        self.random = numpy.random.default_rng(0)
        self.state = self.random.uniform(-0.05, 0.05, (count, 4)).astype(numpy.float32)
        self.age = numpy.zeros(count, int)

    def reset(self) -> Any:
        """The initial observations."""
        return self.state

    def step(self, actions: Any) -> tuple[Any, Any, Any]:
        """Push each cart to the left or to the right; a new episode replaces one that has ended."""
        speed, angle, turning = self.state.T[1:]
        sine, cosine = numpy.sin(angle), numpy.cos(angle)
        push = (numpy.where(actions == 1, 10.0, -10.0) + 0.05 * turning**2 * sine) / 1.1  # for the mass of both
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        pull = push - 0.05 * turn * cosine / 1.1
        self.state = self.state + 0.02 * numpy.stack([speed, pull, turning, turn], 1).astype(numpy.float32)
        self.age = self.age + 1
        ended = (abs(self.state[:, 0]) > 2.4) | (abs(self.state[:, 2]) > numpy.radians(12)) | (self.age >= 500)
        self.age[ended], self.state[ended] = 0, self.random.uniform(-0.05, 0.05, (ended.sum(), 4))
        return self.state, numpy.ones(len(ended)), ended


def act(model: Any, observations: Any) -> tuple[Any, Any, Any]:
    """Sample actions; returns them, their log-probabilities, and the values of the critic."""
    policy = torch.distributions.Categorical(logits=model["policy"](observations))
    actions = policy.sample()
    return actions, policy.log_prob(actions), model["critic"](observations).squeeze(1)


def training_step(model: Any, batch: Any) -> dict[str, Any]:
    """The clipped loss of the policy, the loss of the critic, and an entropy bonus."""
    policy = torch.distributions.Categorical(logits=model["policy"](batch["observations"]))
    ratio = (policy.log_prob(batch["actions"]) - batch["log_probs"]).exp()
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    critic = nn.functional.mse_loss(model["critic"](batch["observations"]).squeeze(1), batch["returns"])
    entropy = policy.entropy().mean()
    return {"loss": 0.5 * critic - gain - 0.01 * entropy, "critic": critic, "entropy": entropy}


def setup() -> dict[str, Any]:
    """The resources of the run."""
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    model = nn.ModuleDict({"policy": policy, "critic": critic})
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "env": CartPoles(),
        "act": act,
        "training_step": training_step,
    }
