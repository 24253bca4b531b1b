"""A body acts on the optimizers that the node around it names: the run equals the loop written by hand, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer

EPOCHS = 3
WINDOW = 2
MAX_NORM = 0.5
MOST_TRANSITIONS = 400

# One batch after the other; a window is full before an epoch ends.
RING = f"""
format = 1
name = "ring"
start = "next_batch"

[nodes]
next_batch = {{}}
train = {{ use = "choice" }}
accumulate = {{ every = {WINDOW} }}
clip = {{ max_norm = {MAX_NORM} }}
step = {{}}
zero_grad = {{}}

[guards]
full = "accumulate.count >= accumulate.every"
finished = "next_batch.last and next_batch.epoch >= {EPOCHS - 1}"

[edges]
next_batch = ["train"]
train = ["accumulate"]
accumulate = ["clip if full", "next_batch"]
clip = ["step"]
step = ["zero_grad"]
zero_grad = ["end if finished", "next_batch"]
"""

# Only the backward pass is in the body; the window, the step and the clearing are around it.
BACKWARD = """
format = 1
name = "backward"
start = "train_batch"

[nodes]
train_batch = {}

[edges]
train_batch = ["end"]
"""

# A body around that body; what the inner one calls `optimizer` is handed through.
AROUND = """
format = 1
name = "around"
start = "inner"

[nodes]
inner = { use = "choice" }

[edges]
inner = ["end"]
"""

ONE_LEVEL = Graph.loads(BACKWARD)
BODIES = {
    "one level": ONE_LEVEL,
    "two levels": Graph.loads(AROUND).set("inner", graph=ONE_LEVEL),
    "listed at the inner level": Graph.loads(AROUND).set(
        "inner", graph=ONE_LEVEL, reads={"optimizer": ["first", "second"]}
    ),
}


def ring(body: str, counted: str | list[str], **reads: str | list[str]) -> Graph:
    """The ring with its backward pass in a body, clipping and stepping what `counted` and `reads` name."""
    graph = Graph.loads(RING)
    optimizers = reads.pop("optimizers")
    names = reads or {"optimizer": optimizers}
    graph = graph.set("train", graph=BODIES[body], reads={**names, "window": "accumulate.every"})
    for name in ("clip", "step", "zero_grad"):
        graph = graph.set(name, reads={"optimizer": optimizers})
    return graph.set("accumulate", reads={"optimizer": counted})


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def make_optimizers(model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    first, _, last = model.children()
    return {
        "a": torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9),
        "b": torch.optim.AdamW(last.parameters(), lr=0.01),
    }


def make_data() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(3, 4, generator=generator) for _ in range(4)]


def training_step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def train_by_hand(stepped: list[str]) -> tuple[dict[str, torch.Tensor], int]:
    """The weights, and how many steps were taken."""
    model = make_model()
    made = make_optimizers(model)
    optimizers = [made[name] for name in stepped]
    parameters = [parameter for one in optimizers for group in one.param_groups for parameter in group["params"]]
    data, steps = make_data(), 0
    for _ in range(EPOCHS):
        for number, batch in enumerate(data, start=1):
            (training_step(model, batch) / WINDOW).backward()
            if number % WINDOW == 0:
                nn.utils.clip_grad_norm_(parameters, MAX_NORM)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                steps += 1
    return model.state_dict(), steps


def train(graph: Graph) -> tuple[dict[str, torch.Tensor], int]:
    """The same by the graph."""
    model = make_model()
    trainer = Trainer(
        graph,
        seed=0,
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        train_data=make_data(),
        training_step=training_step,
        **make_optimizers(model),
    )
    trainer.advance(MOST_TRANSITIONS)
    return model.state_dict(), trainer.progress["step"]["steps"]


def assert_trains_as_by_hand(graph: Graph, stepped: list[str]) -> None:
    expected, expected_steps = train_by_hand(stepped)
    weights, steps = train(graph)
    assert steps == expected_steps
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


TWO_OPTIMIZERS = [ring("one level", counted, optimizers=["a", "b"]) for counted in ("a", "b", ["a", "b"])] + [
    ring("two levels", "a", optimizers=["a", "b"]),
    ring("listed at the inner level", "a", optimizers=["a", "b"], first="a", second="b"),
]
TITLES = ["a counted", "b counted", "both counted", "two levels", "listed at the inner level"]


@pytest.mark.parametrize("body", ["one level", "two levels"])
def test_a_body_with_one_renamed_optimizer_trains_as_by_hand(body: str) -> None:
    assert_trains_as_by_hand(ring(body, "a", optimizers="a"), ["a"])


@pytest.mark.parametrize("graph", TWO_OPTIMIZERS, ids=TITLES)
def test_a_body_with_two_optimizers_is_sound(graph: Graph) -> None:
    assert graph.check() == []


@pytest.mark.parametrize("graph", TWO_OPTIMIZERS, ids=TITLES)
def test_a_body_with_two_optimizers_trains_as_by_hand(graph: Graph) -> None:
    assert_trains_as_by_hand(graph, ["a", "b"])
