"""`train_batch.only_own`: no gradients for parameters of other optimizers, against a loop by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from graphtrain import Graph, Trainer, UsageError
from graphtrain.state.random import seed_everything
from tests.ranks.fake_ranks import run_ranks

BATCHES, EPOCHS = 5, 2


class Gan(nn.Module):
    """Two networks, and a scale that both optimizers have."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(2, 2)
        self.critic = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)


def critic_loss(model: Gan, batch: torch.Tensor) -> torch.Tensor:
    fake = model.generator(torch.randn(len(batch), 2)) * model.scale
    return softplus(model.critic(fake)).mean() + softplus(-model.critic(batch * model.frozen)).mean()


def generator_loss(model: Gan, batch: torch.Tensor) -> torch.Tensor:
    return softplus(-model.critic(model.generator(torch.randn(len(batch), 2)) * model.scale)).mean()


def resources(**others: Any) -> dict[str, Any]:
    torch.manual_seed(1)
    model = Gan()
    return {
        "model": model,
        "g_optimizer": torch.optim.Adam([*model.generator.parameters(), model.scale], lr=0.01),
        "d_optimizer": torch.optim.Adam([*model.critic.parameters(), model.scale, model.frozen], lr=0.01),
        "train_data": [torch.randn(8, 2) + 3 for _ in range(BATCHES)],
        "critic_loss": critic_loss,
        "generator_loss": generator_loss,
        **others,
    }


def graph_of(only_own: bool = True, **parameters: Any) -> Graph:
    """Both optimizers are cleared after the step of each, as by one list of gradients."""
    graph = Graph.loads(f"""
format = 1
start  = "next_batch"

[nodes]
next_batch = {{}}
d_batch = {{ use = "train_batch", reads = {{ optimizer = "d_optimizer", training_step = "critic_loss" }} }}
d_step  = {{ use = "step", reads = {{ optimizer = "d_optimizer" }} }}
d_clear = {{ use = "zero_grad", reads = {{ optimizer = "d_optimizer" }} }}
g_batch = {{ use = "train_batch", reads = {{ optimizer = "g_optimizer", training_step = "generator_loss" }} }}
g_step  = {{ use = "step", reads = {{ optimizer = "g_optimizer" }} }}
g_clear = {{ use = "zero_grad", reads = {{ optimizer = "g_optimizer" }} }}
finish  = {{ after = "{EPOCHS} epochs" }}

[guards]
done = "finish.due"

[edges]
next_batch = ["d_batch"]
d_batch    = ["d_step"]
d_step     = ["d_clear"]
d_clear    = ["g_batch"]
g_batch    = ["g_step"]
g_step     = ["g_clear"]
g_clear    = ["finish"]
finish     = ["end if done", "next_batch"]

[clock]
epochs  = "next_batch.epochs"
batches = "next_batch.batches"
steps   = "d_step.steps"
""")
    for name in ("d_batch", "g_batch"):
        graph = graph.set(name, only_own=only_own, **parameters)
    return graph


def trainer_of(graph: Graph, run_dir: Path | None = None, **others: Any) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=lambda line: None, **resources(**others))


def by_hand(only_own: bool, dtype: torch.dtype | None = None) -> list[Any]:
    supplied = resources()
    model = supplied["model"]
    optimizers = {"d_optimizer": critic_loss, "g_optimizer": generator_loss}
    seed_everything(0)
    for _ in range(EPOCHS):
        for batch in supplied["train_data"]:
            for name, loss_of in optimizers.items():
                own = [each for group in supplied[name].param_groups for each in group["params"]]
                flags = {each: each.requires_grad for each in model.parameters()}
                for each in model.parameters() if only_own else ():
                    each.requires_grad_(flags[each] and any(each is other for other in own))
                with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = loss_of(model, batch)
                loss.backward()  # type: ignore[no-untyped-call]
                for each, flag in flags.items():
                    each.requires_grad_(flag)
                supplied[name].step()
                supplied[name].zero_grad()
    return [each.tolist() for each in model.parameters()]


def weights_of(trainer: Trainer) -> list[Any]:
    return [each.tolist() for each in trainer.resources["model"].parameters()]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("only_own", [True, False])
def test_it_trains_what_a_loop_that_toggles_trains(only_own: bool) -> None:
    trainer = trainer_of(graph_of(only_own))
    trainer.run()
    assert weights_of(trainer) == by_hand(only_own)
    flags = {name: each.requires_grad for name, each in trainer.resources["model"].named_parameters()}
    assert [name for name, flag in flags.items() if not flag] == ["frozen"]


def test_flags_are_put_back_when_the_step_function_raises() -> None:
    seen: list[bool] = []

    def failing(model: Gan, batch: torch.Tensor) -> torch.Tensor:
        seen.append(model.generator.weight.requires_grad)
        raise ValueError("no label")

    trainer = trainer_of(graph_of(), critic_loss=failing)
    with pytest.raises(ValueError, match="no label"):
        trainer.run()
    assert seen == [False]
    assert trainer.resources["model"].generator.weight.requires_grad


@pytest.mark.full
def test_a_cut_run_equals_one_never_cut(tmp_path: Path) -> None:
    whole, length = trainer_of(graph_of()), 0
    while whole.position != "end":
        whole.advance()
        length += 1
    for cut in (3, 5, length // 2):
        first = trainer_of(graph_of(), tmp_path / str(cut))
        first.advance(cut)
        first.save()
        second = trainer_of(graph_of(), tmp_path / str(cut))
        second.run()
        assert second.digest() == whole.digest(), f"cut before {first.position}"


def test_a_node_without_an_optimizer_of_its_own_is_refused() -> None:
    graph = graph_of()
    reads = {key: value for key, value in graph.nodes["d_batch"].reads.items() if key != "optimizer"}
    nodes = {**graph.nodes, "d_batch": replace(graph.nodes["d_batch"], reads=reads)}
    graph = replace(graph, nodes=nodes, allow=("G404", "G408", "G410", "G411"))
    with pytest.raises(UsageError, match="only_own: the node has no `optimizer`"):
        trainer_of(graph).run()


def test_the_turn_of_an_optimizer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="turn: expected an index below 1, the number of optimizers, got 5"):
        trainer_of(graph_of(turn=5)).run()


def test_ranks_train_the_same() -> None:
    graph = graph_of().insert("d_sum", "exchange", between=("d_batch", "d_step"), reads={"optimizer": "d_optimizer"})
    graph = graph.insert("g_sum", "exchange", between=("g_batch", "g_step"), reads={"optimizer": "g_optimizer"})

    def run(ranks: Any) -> list[Any]:
        trainer = trainer_of(graph)
        trainer.run()
        return weights_of(trainer)

    first, second = run_ranks(2, run)
    assert first == second


def test_an_optimizer_that_replaces_another_is_seen() -> None:
    trainer = trainer_of(graph_of())
    trainer.run(until="2 batches")
    other = torch.optim.SGD(trainer.resources["model"].generator.parameters(), lr=0.1)
    trainer.rewire(trainer.graph, g_optimizer=other)
    trainer.run()
    assert trainer.resources["model"].generator.weight.grad is None
