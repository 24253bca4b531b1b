"""The kinds of the shipped overlays: what they judge, when, and what they leave alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Outcome, Trainer, UsageError
from graphtrain.errors import UnknownMetricError

FIT = Graph.load("fit").set("log", every="never").set("finish", after="8 epochs")


def trainer_of(graph: Graph, values: Iterable[float] = (), said: list[str] | None = None, **others: Any) -> Trainer:
    """A run of which the validations give these values, one after the other."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    given = iter(values)
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.rand(4, 2) for _ in range(2)],
        "val_data": [torch.rand(4, 2)],
        "training_step": lambda model, batch: model(batch).square().mean(),
        "validation_step": lambda model, batch: {"loss": next(given)},
    }
    notify = (lambda line: None) if said is None else said.append
    return Trainer(graph, seed=0, display=None, notify=notify, **{**resources, **others})


def stopped_after(values: Iterable[float], said: list[str] | None = None, **parameters: Any) -> float:
    """The epochs that are trained until it stops early, or the end."""
    trainer = trainer_of(FIT.overlay("early_stop").set("early_stop", **parameters), values, said)
    assert trainer.run() is Outcome.FINISHED
    return float(trainer.progress["next_batch"]["epochs"])


# ---- early_stop


@pytest.mark.first(7)
@pytest.mark.parametrize(
    ("values", "parameters", "epochs"),
    [
        ([3, 2, 2, 2, 2, 1, 1, 1], {"patience": 3}, 5),
        ([3, 2, 2, 2, 1, 1, 1, 1], {"patience": 3}, 8),
        ([3, 2, 1, 0, -1, -2, -3, -4], {"patience": 1}, 8),
        ([3, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3], {"patience": 2, "min_delta": 0.5}, 3),
        ([1, 2, 3, 3, 2, 1, 1, 1], {"mode": "max", "patience": 1}, 4),
        ([5, 4, 0.5, 3, 3, 3, 3, 3], {"stopping_threshold": 1, "patience": 9}, 3),
        ([5, 40, 5, 3, 3, 3, 3, 3], {"divergence_threshold": 10, "patience": 9}, 2),
        ([0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], {"mode": "max", "stopping_threshold": 0.8, "patience": 9}, 2),
        ([5, math.nan, 5, 3, 3, 3, 3, 3], {"patience": 9}, 2),
        ([5, math.nan, 5, 3, 3, 3, 3, 3], {"patience": 9, "check_finite": False}, 8),
        ([math.nan, math.nan, 1, 1, 1, 1, 1, 1], {"patience": 2, "check_finite": False}, 2),
        ([1, 2, 3, 4, 5, 6, 7, 8], {"patience": 1, "min_epochs": 4}, 4),
        ([1, 2, 3, 0, 5, 6, 7, 8], {"patience": 2, "min_epochs": 4}, 6),
    ],
)
def test_a_run_stops_when_it_is_enough(values: list[float], parameters: dict[str, Any], epochs: float) -> None:
    assert stopped_after(values, **parameters) == epochs


def test_it_says_why() -> None:
    said: list[str] = []
    stopped_after([2, 1, 1, 1], said, patience=2)
    assert "early_stop: val/loss has not improved on 1 in 2 values" in said
    said.clear()
    stopped_after([2, math.inf], said)
    assert "early_stop: val/loss is inf" in said


@pytest.mark.parametrize(
    ("graph", "parameter", "misspelt", "meant"),
    [
        (FIT.overlay("early_stop"), "early_stop.monitor", "val/los", "val/loss"),
        (FIT.overlay("plateau"), "plateau.monitor", "val_loss", "val/loss"),
        (FIT, "checkpoint.best", "val_loss", "val/loss"),
    ],
)
def test_a_metric_that_is_never_recorded_is_an_error_at_the_first_row_that_should_have_it(
    graph: Graph, parameter: str, misspelt: str, meant: str
) -> None:
    name, _, key = parameter.partition(".")
    named = {key: misspelt, "best_mode" if key == "best" else "mode": "min"}
    trainer = trainer_of(graph.set(name, **named), [1] * 8, **plateau_of(name))
    with pytest.raises(UnknownMetricError, match=f"no row of metrics has `{misspelt}`, which {parameter}") as caught:
        trainer.run()
    in_time = " (--dry-run, in Python graph.dry_run(), finds this in one batch)"
    assert caught.value.hint == f"did you mean `{meant}`?{in_time}"
    assert trainer.progress["validate"]["runs"] == 1 and trainer.state == "stopped"


# ---- plateau


def plateau_of(overlay: str, **settings: Any) -> dict[str, Any]:
    if overlay != "plateau":
        return {}
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **settings)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def test_a_plateau_lowers_the_rate() -> None:
    trainer = trainer_of(
        FIT.overlay("plateau"), [3, 2, 2, 2, 1, 1, 1, 1], **plateau_of("plateau", patience=1, factor=0.5)
    )
    trainer.run()
    assert trainer.resources["optimizer"].param_groups[0]["lr"] == 0.25


def test_a_plateau_takes_no_other_scheduler() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    trainer = trainer_of(FIT.overlay("plateau"), [1] * 8, model=model, optimizer=optimizer, scheduler=scheduler)
    with pytest.raises(UsageError, match="plateau: `scheduler` is a StepLR, whose steps take no metric"):
        trainer.run()


def averages(steps: int, **parameters: Any) -> list[float]:
    """The average of a weight that every step raises by one, from zero on, after each step."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    graph = FIT.insert("ema", after="step", **parameters).set("finish", after=f"{steps} steps")
    trainer = trainer_of(
        graph,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        train_data=[torch.ones(1, 1)] * 2,
        val_data=None,
        training_step=lambda model, batch: -model(batch).sum(),
    )
    means = []
    for step in range(1, steps + 1):
        trainer.run(until=f"{step} steps")
        means.append(trainer.resources["average"].weight.item())
    return means


def test_the_decay_of_an_average_grows_with_its_updates() -> None:
    mean, expected = 0.0, []
    for updates in range(8):  # as TensorFlow's ExponentialMovingAverage(0.3, num_updates) has it
        decay = min(0.3, (1 + updates) / (10 + updates))
        mean = decay * mean + (1 - decay) * (updates + 1)
        expected.append(mean)
    assert averages(8, decay=0.3, warmup=True) == pytest.approx(expected)
    assert averages(2, decay=0.75) == pytest.approx([0.25, 0.6875]), "without it every step has the same decay"


def test_the_overlay_warms_up_and_a_resume_counts_on(tmp_path: Path) -> None:
    graph = FIT.overlay("ema").set("finish", after="5 steps")
    assert graph.nodes["ema"].parameters == {"decay": 0.999, "warmup": True}
    others = {
        "validation_step": lambda model, batch: {"loss": 0.0},
        "training_step": lambda model, batch: model(batch).sum(),
    }
    whole = trainer_of(graph, [], **others)
    whole.run()
    assert whole.read("ema.updates") == 5
    first = trainer_of(graph, [], run_dir=tmp_path, **others)
    first.run(until="3 steps")
    second = trainer_of(graph, [], run_dir=tmp_path, **others)
    second.run()
    assert second.digest() == whole.digest()


# ---- sanity


def losses(graph: Graph, **others: Any) -> list[dict[str, float]]:
    trainer = trainer_of(graph, **{"validation_step": lambda model, batch: {"loss": batch.mean()}, **others})
    trainer.run()
    return [row for row in trainer.metrics if "sanity/loss" not in row]


def test_validation_before_training_moves_nothing() -> None:
    generator = torch.Generator()

    def shuffled(seed: int) -> DataLoader[Any]:
        data = torch.rand(12, 2, generator=torch.Generator().manual_seed(seed))
        return DataLoader(data, batch_size=2, shuffle=True, generator=generator.manual_seed(seed))  # type: ignore[arg-type]

    graph = FIT.set("validate/next_batch", limit=2).set("finish", after="2 epochs")
    plain, checked = (losses(each, val_data=shuffled(3)) for each in (graph, graph.overlay("sanity")))
    assert plain == checked
    trainer = trainer_of(
        graph.overlay("sanity"), val_data=shuffled(3), validation_step=lambda model, batch: batch.mean()
    )
    trainer.run(until="1 batches")
    assert trainer.metrics[0]["step"] == 0 and "sanity/loss" in trainer.metrics[0]


def test_data_that_cannot_be_set_back_is_reported() -> None:
    said: list[str] = []
    stream = iter([torch.rand(4, 2) for _ in range(40)])
    graph = FIT.overlay("sanity").set("validate/next_batch", limit=1).set("finish", after="2 epochs")
    trainer = trainer_of(graph, [1] * 40, said, val_data=stream)
    trainer.run()
    assert any("keeps its own position: the first validation begins after them" in line for line in said)


# ---- save_first


def test_a_checkpoint_is_made_before_each_validation(tmp_path: Path) -> None:
    def failing(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("the validation is broken")

    graph = FIT.overlay("save_first").set("checkpoint", every="never").set("finish", after="2 epochs")
    broken = trainer_of(graph, run_dir=tmp_path, validation_step=failing)
    with pytest.raises(ArithmeticError):
        broken.run()
    trainer = trainer_of(graph, [1.0] * 8, run_dir=tmp_path)
    assert trainer.advance(0) == "validate", "what was trained before the validation is not lost"
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["save_first"]["runs"] == 2


# ---- update_bn


@pytest.mark.parametrize("cut", [False, True])
def test_batch_norm_layers_have_their_momentum_again(cut: bool, tmp_path: Path) -> None:
    def trainer() -> Trainer:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2, momentum=0.3), torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        graph = Graph.load("fit").overlay("swa", "update_bn").set("finish", after="2 steps").set("swa", every="1 steps")
        data = [torch.rand(4, 2), torch.rand(4, 2)]
        step = lambda model, batch: model(batch).square().mean()  # noqa: E731
        return Trainer(
            graph, run_dir=tmp_path, display=None, notify=lambda line: None, model=model, optimizer=optimizer,
            train_data=data, training_step=step,
        )  # fmt: skip

    first = trainer()
    if cut:
        while first.position != "update_bn/eval_batch":
            first.advance()
        assert first.resources["swa_model"][1].momentum is None
        first.save()
        first = trainer()
    first.run()
    assert first.resources["swa_model"][1].momentum == 0.3
    assert first.resources["swa_model"][1].num_batches_tracked == 2


# ---- modes


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        (FIT.set("checkpoint", best="val/width"), "checkpoint.best_mode"),
        (FIT.overlay("early_stop").set("early_stop", monitor="val/width"), "early_stop.mode"),
        (FIT.overlay("plateau").set("plateau", monitor="val/width"), "plateau.mode"),
    ],
)
def test_a_metric_that_does_not_say_what_is_good_needs_a_mode(graph: Graph, name: str) -> None:
    (problem,) = graph.check()
    assert problem.code == "G104" and problem.message.startswith(f"`{name}` is missing: the name `val/width`")
    node, _, parameter = name.partition(".")
    assert f'{parameter} = "max"' in problem.hint and f'{parameter} = "min"' in problem.hint
    monitor = "best" if node == "checkpoint" else "monitor"
    assert graph.set(node, **{parameter: "max"}).check() == []
    for known in ("val/loss", "val/top1_error", "perplexity", "val/bits_per_byte", "val/accuracy", "val/f1"):
        assert graph.set(node, **{monitor: known}).check() == []
