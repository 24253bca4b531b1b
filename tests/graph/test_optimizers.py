"""Promise 1: the optimizer that a graph names for its nodes, in bodies too: the run is the loop by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, GraphError, Trainer
from tests.graph.corpus import of, tiny
from tests.world import assert_same

# ---- a body acts on the optimizers that the node around it names

EPOCHS, WINDOW, MAX_NORM = 3, 2, 0.5
BACKWARD = tiny({}, "train_batch end")
LISTED = {"reads": {"optimizer": ["first", "second"]}}
BODIES = {
    "one level": BACKWARD,
    "two levels": tiny({"inner": BACKWARD}, "inner end"),
    "listed at the inner level": tiny({"inner": (BACKWARD, LISTED)}, "inner end"),
}


def ring(body: str, counted: Any, optimizers: Any = ("a", "b"), **reads: str) -> Graph:
    """One batch after the other: the backward pass in a body; the window, the step and the clearing around it."""
    around = {"reads": {**(reads or {"optimizer": optimizers}), "window": "accumulate.every"}}
    return tiny(
        {"train": (BODIES[body], around), "accumulate": of("accumulate", counted, every=WINDOW),
         "clip": of("clip", optimizers, max_norm=MAX_NORM), "step": of("step", optimizers),
         "zero_grad": of("zero_grad", optimizers)},
        "next_batch train accumulate; accumulate: clip if full, next_batch; clip step zero_grad; "
        "zero_grad: end if finished, next_batch",
        {"full": "accumulate.count >= accumulate.every",
         "finished": f"next_batch.last and next_batch.epoch >= {EPOCHS - 1}"},
    )  # fmt: skip


def resources() -> dict[str, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return {
        "model": model,
        "a": torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
        "b": torch.optim.AdamW(model[2].parameters(), lr=0.01),
        "train_data": list(torch.randn(4, 3, 4)),
        "training_step": lambda model, batch: model(batch).square().mean(),
    }


def trained_by_hand(stepped: str) -> dict[str, Any]:
    made = resources()
    parameters = [each for name in stepped for group in made[name].param_groups for each in group["params"]]
    for number in range(EPOCHS * 4):
        (made["training_step"](made["model"], made["train_data"][number % 4]) / WINDOW).backward()
        if number % WINDOW == WINDOW - 1:
            nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            for name in stepped:
                made[name].step()
                made[name].zero_grad()
    return made


@pytest.mark.parametrize(
    ("graph", "stepped"),
    [
        (ring("one level", "a", "a"), "a"),
        (ring("two levels", "a", "a"), "a"),
        (ring("one level", "a"), "ab"),
        (ring("one level", "b"), "ab"),
        (ring("one level", ["a", "b"]), "ab"),
        (ring("two levels", "a"), "ab"),
        (ring("listed at the inner level", "a", first="a", second="b"), "ab"),
    ],
)
def test_a_body_trains_as_by_hand_for_the_optimizers_around_it(graph: Graph, stepped: str) -> None:
    if stepped == "ab":
        assert graph.check() == []
    trainer = Trainer(graph, seed=0, device="cpu", display=None, notify=lambda line: None, **resources())
    trainer.advance(400)
    assert (trainer.position, trainer.progress["step"]["steps"]) == ("end", EPOCHS * 4 // WINDOW)
    assert_same(trainer.resources["model"].state_dict(), trained_by_hand(stepped)["model"].state_dict())


# ---- the optimizer of a whole graph

GAN = replace(
    tiny(
        {"g_batch": ("train_batch", {"reads": {"optimizer": "g_optimizer", "training_step": "g_step", "model": "g"},
                                     "writes": {"loss": "g_loss"}}),
         "g_step_it": of("step", "g_optimizer"), "g_zero": of("zero_grad", "g_optimizer")},
        "next_batch train_batch accumulate step zero_grad g_batch g_step_it g_zero; g_zero: end if done, next_batch",
        {"done": "next_batch.batches >= 3"}, units={"steps": "step.steps", "batches": "next_batch.batches"},
    ), optimizer="d_optimizer",
)  # fmt: skip


def of_gan() -> tuple[dict[str, Any], dict[str, Any]]:
    """Resources, and what their step functions are given."""
    given: dict[str, Any] = {}
    d, g = nn.Linear(2, 1), nn.Linear(2, 1)

    def training_step(model: nn.Module, batch: torch.Tensor, optimizer: object) -> Any:
        given["d_optimizer"] = optimizer
        return model(batch).square().mean()

    def g_step(model: nn.Module, batch: torch.Tensor, optimizer: object = None) -> Any:
        given["g_optimizer"] = optimizer
        return model(batch).sum()

    optimizers = {
        f"{name}_optimizer": torch.optim.SGD(each.parameters(), lr=0.1) for name, each in (("d", d), ("g", g))
    }
    data = {"train_data": [torch.ones(4, 2)] * 3}
    return {"model": d, "g": g, "training_step": training_step, "g_step": g_step, **optimizers, **data}, given


def test_both_optimizers_step_and_each_step_function_is_given_its_own() -> None:
    graph = Graph.loads(GAN.to_toml())
    assert graph.optimizer == "d_optimizer" and graph.check() == []
    made, given = of_gan()
    before = [each.weight.detach().clone() for each in (made["model"], made["g"])]
    trainer = Trainer(graph, display=None, **made)
    trainer.run()
    assert trainer.progress["step"]["steps"] == trainer.progress["g_step_it"]["steps"] == 3
    after = [each.weight for each in (made["model"], made["g"])]
    assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert given == {name: made[name] for name in given} and len(given) == 2
    with pytest.raises(GraphError, match="`d_optimizer` is read by `step`"):
        Trainer(graph, display=None, **{name: value for name, value in made.items() if name != "d_optimizer"})


@pytest.mark.parametrize(
    ("inner", "outer", "reads", "optimizer"),
    [
        ("", "", "", "optimizer"),
        ("", 'optimizer = "a"', "", "a"),
        ('optimizer = "b"', 'optimizer = "a"', "", "b"),
        ("", 'optimizer = "a"', 'reads = { optimizer = "c" }', "c"),
        ('optimizer = "b"', 'optimizer = "a"', 'reads = { b = "c" }', "c"),
    ],
)
def test_a_body_has_that_of_the_graph_around_unless_it_says_otherwise(
    inner: str, outer: str, reads: str, optimizer: str
) -> None:
    graph = Graph.loads(f"""
        format = 1
        start = "body"
        {outer}
        [nodes.body]
        {reads}
        [nodes.body.graph]
        start = "zero_grad"
        {inner}
        [nodes.body.graph.nodes]
        zero_grad = {{}}
        [nodes.body.graph.edges]
        zero_grad = ["end"]
        [edges]
        body = ["end"]
        """)
    with pytest.raises(GraphError, match=f"`{optimizer}` is read by `body/zero_grad`"):
        Trainer(graph, display=None)


def test_it_does_not_speak_for_what_an_overlay_adds(tmp_path: Path) -> None:
    graph, path = GAN, tmp_path / "clipped.toml"
    own = graph.insert("clipped", "clip", after="accumulate", max_value=1.0)
    assert "G410" not in {problem.code for problem in own.check()}
    edit = 'format = 1\n[[edit]]\ninsert = "clipped"\nuse = "clip"\nafter = "accumulate"\nmax_value = 1.0\n'
    path.write_text(edit)
    (problem,) = [problem for problem in graph.overlay(path).check() if problem.code == "G410"]
    assert "`clipped` acts on the gradients of `d_optimizer` by default" in problem.message
    path.write_text(edit + 'reads = { optimizer = "d_optimizer" }\n')
    assert graph.overlay(path).check() == []


def test_what_is_no_name_is_refused() -> None:
    for value in ("3", '["a", "b"]'):
        with pytest.raises(GraphError, match="optimizer"):
            Graph.loads(GAN.to_toml().replace('"d_optimizer"', value, 1))
    problems = Graph.loads(GAN.to_toml().replace('"d_optimizer"', '"a.b"', 1)).check()
    assert [(problem.code, problem.where.split()[-1]) for problem in problems if problem.severity == "error"] == [
        ("G114", "optimizer")
    ]
