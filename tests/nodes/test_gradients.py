"""Clipping by the weights, and the norms of gradients as metrics, against what they are by definition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer, UsageError
from graphtrain.report.recorder import Means
from tests.graphs.test_contract_overlays import clip_units
from tests.ranks.fake_ranks import run_ranks

BATCHES, WINDOW = 5, 2


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Net(nn.Module):
    """Parameters of one, two and four dimensions, one that begins as zeros, one of no dimension, one that is unused."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4))
        self.head = nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.unused = nn.Parameter(torch.ones(2))
        nn.init.zeros_(self.head.weight)


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (model.scale * model.head(model.body(batch)) - batch.sum((1, 2, 3)).unsqueeze(1)).square().mean()


def resources() -> dict[str, Any]:
    torch.manual_seed(2)
    model = Net()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
        "train_data": [torch.randn(6, 1, 3, 3) for _ in range(BATCHES)],
        "training_step": loss_of,
    }


def graph_of(*overlays: str) -> Graph:
    graph = Graph.load("fit").overlay(*overlays).set("accumulate", every=WINDOW).set("finish", after="2 epochs")
    return graph.set("log", every="2 steps").set("checkpoint", every="never")


def trainer_of(graph: Graph, run_dir: Path | None = None, **others: Any) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=lambda line: None, **{**resources(), **others})


def by_hand(ratio: float = math.inf, leave_out: tuple[str, ...] = (), p: float = 2.0) -> tuple[Any, list[Any]]:
    """The model at the end; and of every step the total norm, and that of each parameter by name."""
    supplied, norms = resources(), []
    model, optimizer = supplied["model"], supplied["optimizer"]
    for _ in range(2):
        for number, batch in enumerate(supplied["train_data"], start=1):
            (loss_of(model, batch) / WINDOW).backward()  # type: ignore[no-untyped-call]
            if number % WINDOW and number < BATCHES:
                continue
            gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
            flat = torch.cat([gradient.flatten() for gradient in gradients.values()])
            norms.append((norm(flat, p), {name: norm(gradient, p) for name, gradient in gradients.items()}))
            kept = {name: gradients[name].clone() for name in leave_out}
            if ratio < math.inf:
                clip_units(model, ratio)
            for name, gradient in kept.items():
                model.get_parameter(name).grad = gradient
            optimizer.step()
            optimizer.zero_grad()
    return model, norms


def norm(tensor: torch.Tensor, p: float) -> float:
    absolute = tensor.double().abs()
    return float(absolute.max() if p == math.inf else absolute.pow(p).sum().pow(1 / p))


# ---- clip_adaptive


@pytest.mark.first(4)
@pytest.mark.parametrize("ratio", [0.01, 0.3])
@pytest.mark.parametrize("leave_out", [(), ("head",), ("body.3.weight", "scale")])
def test_gradients_are_clipped_by_the_norms_of_units(ratio: float, leave_out: tuple[str, ...]) -> None:
    names = ("head.weight", "head.bias") if leave_out == ("head",) else leave_out
    model, _ = by_hand(ratio, names)
    trainer = trainer_of(graph_of("clip_adaptive").set("clip_adaptive", max_ratio=ratio, leave_out=list(leave_out)))
    trainer.run()
    for name, weight in trainer.resources["model"].named_parameters():
        torch.testing.assert_close(weight, model.get_parameter(name), rtol=0, atol=1e-6)


def test_other_units_and_other_parameters_would_give_other_weights() -> None:
    """What the comparison above would not notice."""
    settings = [(0.01, ()), (0.3, ()), (math.inf, ()), (0.3, ("head.weight", "head.bias"))]
    ends = [torch.cat([each.flatten() for each in by_hand(*each)[0].parameters()]) for each in settings]
    assert all((one - other).abs().max() > 1e-4 for index, one in enumerate(ends) for other in ends[:index])


def test_weights_that_begin_as_zeros_are_trained() -> None:
    trainer = trainer_of(graph_of("clip_adaptive"))
    trainer.run(until="1 steps")
    assert 0 < trainer.resources["model"].head.weight.norm() <= 0.05 * 0.01 * 1e-3 * 1.0001


def test_a_name_of_no_parameter_is_refused() -> None:
    graph = graph_of("clip_adaptive").set("clip_adaptive", leave_out=["haed"])
    with pytest.raises(
        UsageError, match=r"clip_adaptive\.leave_out: `haed` is neither a parameter nor a module with parameters"
    ):
        trainer_of(graph).run()


# ---- gradient_norm


@pytest.mark.first(4)
@pytest.mark.parametrize("p", [2.0, 1.0, 3.5, math.inf])
@pytest.mark.parametrize("per_parameter", [False, True])
def test_rows_have_the_mean_norm_of_their_steps(p: float, per_parameter: bool) -> None:
    _, norms = by_hand(p=p)
    graph = graph_of("gradient_norm").set("gradient_norm", norm_type=p, per_parameter=per_parameter)
    trainer = trainer_of(graph.set("clip", max_norm=1e9))
    trainer.run()
    rows = [row for row in trainer.metrics if "gradient_norm" in row]
    assert [row["step"] for row in rows] == [2, 4, 6]
    for index, row in enumerate(rows):
        (first, first_each), (second, second_each) = norms[2 * index : 2 * index + 2]
        assert row["gradient_norm"] == pytest.approx((first + second) / 2, rel=1e-5)
        each = {name.removeprefix("gradient_norm/"): value for name, value in row.items() if "norm/" in name}
        expected = {name: (first_each[name] + second_each[name]) / 2 for name in first_each} if per_parameter else {}
        assert each == pytest.approx(expected, rel=1e-5)
        assert "unused" not in each
    epoch = [row["epoch/gradient_norm"] for row in trainer.metrics if "epoch/gradient_norm" in row]
    assert epoch == pytest.approx([sum(total for total, _ in norms[at : at + 3]) / 3 for at in (0, 3)], rel=1e-5)


def test_it_is_the_norm_before_clipping_and_changes_nothing() -> None:
    plain, measured = (
        trainer_of(graph_of().set("clip", max_norm=0.1)),
        trainer_of(graph_of("gradient_norm").set("clip", max_norm=0.1)),
    )
    for trainer in (plain, measured):
        trainer.run()
    for one, other in zip(*(trainer.resources["model"].parameters() for trainer in (plain, measured)), strict=True):
        assert torch.equal(one, other)
    assert max(row.get("gradient_norm", 0) for row in measured.metrics) > 0.2


@pytest.mark.full
def test_rows_of_a_cut_run_are_those_of_one_never_cut(tmp_path: Path) -> None:
    graph = graph_of("gradient_norm").set("gradient_norm", per_parameter=True)
    whole = trainer_of(graph)
    whole.run()
    for amount in ("3 batches", "6 batches", "7 batches"):
        trainer_of(graph, tmp_path).run(until=amount)
    cut = trainer_of(graph, tmp_path)
    cut.run()
    assert cut.metrics == whole.metrics
    assert cut.digest() == whole.digest()


def test_ranks_record_the_norm_of_what_they_have_exchanged() -> None:
    def run(ranks: Any) -> list[dict[str, float]]:
        trainer = trainer_of(graph_of("gradient_norm").set("accumulate", every=1).set("log", every="1 steps"))
        trainer.run()
        return trainer.metrics

    first, second = run_ranks(2, run)
    assert first == second
    _, norms = by_hand()
    recorded = [row["gradient_norm"] for row in first if "gradient_norm" in row]
    assert recorded == pytest.approx([total for total, _ in norms], rel=1e-5)


def test_parameters_outside_of_the_model_have_the_names_of_their_places() -> None:
    supplied = resources()
    outside = nn.Parameter(torch.ones(1))
    supplied["optimizer"].add_param_group({"params": [outside]})
    supplied["training_step"] = lambda model, batch: outside.square().sum() + loss_of(model, batch)
    graph = graph_of("gradient_norm").set("gradient_norm", per_parameter=True)
    trainer = trainer_of(graph, **supplied)
    trainer.run(until="2 steps")
    assert "gradient_norm/1.0" in trainer.metrics[0]


def test_nothing_waits_for_the_device_before_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector is kept as it is, and read once, whatever its type is beside that of the losses."""
    means = Means(("log",))
    reads: list[torch.Tensor] = []
    read = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(tensor) or read(tensor))
    for value in (1.0, 3.0):
        means.add(torch.tensor(value, dtype=torch.float64), 2)
        means.add((["a", "b"], torch.tensor([value, 2 * value])), 1)
    assert reads == []
    assert means.take("log") == {"loss": 2.0, "a": 2.0, "b": 4.0}
    assert len(reads) == 2, "one for each type"
