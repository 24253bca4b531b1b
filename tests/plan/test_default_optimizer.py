"""The optimizer that a graph names for all of its nodes: what they read, what outlives it, and who knows of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphtrain import Graph, GraphError, Trainer
from graphtrain.command.graphs import show
from graphtrain.plan.plan import Plan

GAN = """
format = 1
name = "gan"
start = "next_batch"
optimizer = "d_optimizer"
[nodes]
next_batch = {}
train_batch = {}
accumulate = {}
step = {}
zero_grad = {}
g_step_it = { use = "step", reads = { optimizer = "g_optimizer" } }
g_zero = { use = "zero_grad", reads = { optimizer = "g_optimizer" } }
decide = { use = "choice" }
[nodes.g_batch]
use = "train_batch"
reads = { optimizer = "g_optimizer", training_step = "g_step", model = "g" }
writes = { loss = "g_loss" }
[guards]
done = "next_batch.batches >= 3"
[edges]
next_batch = ["train_batch"]
train_batch = ["accumulate"]
accumulate = ["step"]
step = ["zero_grad"]
zero_grad = ["g_batch"]
g_batch = ["g_step_it"]
g_step_it = ["g_zero"]
g_zero = ["decide"]
decide = ["end if done", "next_batch"]
[clock]
steps = "step.steps"
batches = "next_batch.batches"
"""


def optimizers(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {
        planned.path: planned.optimizers
        for planned in Plan(graph).nodes
        if planned.actions or planned.node.use == "accumulate"
    }


def test_it_is_for_every_node_that_does_not_bind_one() -> None:
    graph = Graph.loads(GAN)
    assert graph.optimizer == "d_optimizer"
    assert graph.check() == []
    of = optimizers(graph)
    assert {of[name] for name in ("train_batch", "accumulate", "step", "zero_grad")} == {("d_optimizer",)}
    assert {of[name] for name in ("g_batch", "g_step_it", "g_zero")} == {("g_optimizer",)}


def test_both_optimizers_step() -> None:
    d, g = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    resources = {
        "model": d,
        "g": g,
        "d_optimizer": torch.optim.SGD(d.parameters(), lr=0.1),
        "g_optimizer": torch.optim.SGD(g.parameters(), lr=0.1),
        "training_step": lambda model, batch: model(batch).square().mean(),
        "g_step": lambda model, batch: model(batch).sum(),
        "train_data": [torch.ones(4, 2)] * 3,
    }
    before = [parameter.detach().clone() for parameter in (d.weight, g.weight)]
    trainer = Trainer(Graph.loads(GAN), display=None, **resources)
    trainer.run()
    assert trainer.progress["step"]["steps"] == trainer.progress["g_step_it"]["steps"] == 3
    assert not any(torch.equal(*pair) for pair in zip(before, (d.weight, g.weight), strict=True))
    with pytest.raises(GraphError, match="`d_optimizer` is read by `step`"):
        Trainer(Graph.loads(GAN), display=None, **{k: v for k, v in resources.items() if k != "d_optimizer"})


def test_a_step_function_that_asks_for_the_optimizer_is_given_that_of_its_node() -> None:
    asked: dict[str, object] = {}
    d, g = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

    def training_step(model: torch.nn.Module, batch: torch.Tensor, optimizer: object) -> torch.Tensor:
        asked["d"] = optimizer
        return model(batch).square().mean()

    def g_step(model: torch.nn.Module, batch: torch.Tensor, optimizer: object = None) -> torch.Tensor:
        asked["g"] = optimizer
        return model(batch).sum()

    resources = {
        "model": d,
        "g": g,
        "d_optimizer": torch.optim.SGD(d.parameters(), lr=0.1),
        "g_optimizer": torch.optim.SGD(g.parameters(), lr=0.1),
        "training_step": training_step,
        "g_step": g_step,
        "train_data": [torch.ones(4, 2)] * 3,
    }
    Trainer(Graph.loads(GAN), display=None, **resources).run()
    assert asked == {name: resources[f"{name}_optimizer"] for name in ("d", "g")}


def nested(inner: str = "", outer: str = "", reads: str = "") -> Graph:
    text = f"""
        format = 1
        name = "outer"
        start = "fit"
        {outer}
        [nodes.fit]
        {reads}
        [nodes.fit.graph]
        start = "step"
        {inner}
        [nodes.fit.graph.nodes]
        step = {{}}
        [nodes.fit.graph.edges]
        step = ["end"]
        [edges]
        fit = ["end"]
        """
    return Graph.loads(text)


@pytest.mark.parametrize(
    ("graph", "optimizer"),
    [
        (nested(), "optimizer"),
        (nested(outer='optimizer = "a"'), "a"),
        (nested(outer='optimizer = "a"', inner='optimizer = "b"'), "b"),
        (nested(outer='optimizer = "a"', reads='reads = { optimizer = "c" }'), "c"),
        (nested(outer='optimizer = "a"', inner='optimizer = "b"', reads='reads = { b = "c" }'), "c"),
        (nested(inner='optimizer = "b"', reads='reads = { optimizer = "c" }'), "b"),
    ],
)
def test_a_body_has_that_of_the_graph_around_unless_it_says_otherwise(graph: Graph, optimizer: str) -> None:
    assert optimizers(graph) == {"fit/step": (optimizer,)}


def test_it_does_not_speak_for_what_an_overlay_adds(tmp_path: Path) -> None:
    graph = Graph.loads(GAN)
    edit = 'format = 1\n[[edit]]\ninsert = "clipped"\nuse = "clip"\nafter = "accumulate"\nmax_value = 1.0\n'
    assert "G410" not in {
        problem.code for problem in graph.insert("clipped", "clip", after="accumulate", max_value=1.0).check()
    }
    path = tmp_path / "clipped.toml"
    path.write_text(edit)
    (problem,) = [problem for problem in graph.overlay(path).check() if problem.code == "G410"]
    assert "`clipped` acts on the gradients of `d_optimizer` by default" in problem.message
    path.write_text(edit + 'reads = { optimizer = "d_optimizer" }\n')
    assert graph.overlay(path).check() == []


def test_it_is_written_read_compared_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = Graph.load("fit")
    graph = replace(fit, optimizer="d_optimizer")
    assert "optimizer" not in json.loads(fit.to_json()), "the digests of graphs without one stay"
    assert Graph.from_json(graph.to_json()) == graph == Graph.loads(graph.to_toml(), name="fit")
    assert graph.structural_hash != fit.structural_hash
    assert str(fit.diff(graph)) == "~ optimizer as named -> d_optimizer"
    assert fit.diff(graph).matters
    assert "optimizer d_optimizer" in str(graph).splitlines()[0]
    graph.save(tmp_path / "named.toml")
    show.callback(str(tmp_path / "named.toml"))
    head = capsys.readouterr().out.splitlines()[0]
    assert head.startswith("fit  start: ") and head.endswith("  optimizer: d_optimizer")
    assert "optimizer d_optimizer" in graph.render(tmp_path / "fit.mmd").read_text()
    extended = tmp_path / "other.toml"
    extended.write_text('format = 1\nextends = "fit"\noptimizer = "d_optimizer"\n')
    assert Graph.load(extended).optimizer == "d_optimizer"


@pytest.mark.parametrize("value", ['"a.b"', "3", '["a", "b"]', '""'])
def test_what_is_no_name_is_refused(value: str) -> None:
    with pytest.raises(GraphError, match="optimizer"):
        Graph.loads(GAN.replace('"d_optimizer"', value, 1))
