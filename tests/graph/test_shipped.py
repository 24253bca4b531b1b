"""Promises 1, 2 and 7: the contract of every shipped graph and overlay; overlays together are the loop by hand."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from graphtrain import Graph, GraphError, Outcome
from tests.graph.corpus import FIT
from tests.shipped import GRAPHS, OVERLAYS, PROCEDURES
from tests.world import DATA, SEED, Augmented, World, assert_exact, assert_same, seed_generators, world

Names = tuple[str, ...]


@pytest.mark.parametrize("name", sorted({**GRAPHS, **OVERLAYS}))
def test_its_first_line_says_what_it_does(name: str) -> None:
    line = {**GRAPHS, **OVERLAYS}[name].read_text().splitlines()[0]
    assert line.startswith("# ") and line.endswith(".")


# ---- graphs


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_a_graph_is_found_by_its_name_has_no_problem_and_round_trips(name: str, tmp_path: Path) -> None:
    graph = Graph.load(name)
    assert graph == Graph.load(GRAPHS[name]) and graph.name == name
    assert graph.check() == [] and graph.allow == ()
    graph.save(tmp_path / "copy.toml")
    for again in (Graph.load(tmp_path / "copy.toml"), Graph.from_json(graph.to_json())):
        assert again == graph and again.structural_hash == graph.structural_hash
        assert again.to_json() == graph.to_json()
    assert Graph.load(tmp_path / "copy.toml").to_toml() == graph.to_toml()
    edited = graph.insert("pause", "choice", before=graph.start)
    assert edited != graph and edited.structural_hash != graph.structural_hash
    assert Graph.from_json(edited.to_json()) == edited


@pytest.mark.parametrize("name", sorted({*GRAPHS} - {*PROCEDURES}))
def test_a_graph_runs_to_its_end(name: str, tmp_path: Path) -> None:
    """Those of the gallery have resources of their own, and tests that run them."""
    data: dict[str, Any] = {f"{split}_data": lambda: [(torch.ones(4, 6), torch.zeros(4, dtype=torch.long))] * 2
            for split in ("test", "predict")}  # fmt: skip
    made = world(Graph.load(name).set("finish", after="2 steps") if name == "fit" else Graph.load(name), **data)
    file = tmp_path / "predictions.jsonl"
    more: dict[str, Any] = {"predictions_file": file, "predict_step": lambda model, batch: model(batch[0])}
    trainer = made.trainer(tmp_path / "run", **(more if name == "predict" else {}))
    assert trainer.position == trainer.graph.start
    assert trainer.run() is Outcome.FINISHED and trainer.position == "end"
    assert trainer.metrics or len(file.read_text().splitlines()) == 8


# ---- an evaluation


def generators() -> list[Any]:
    return [random.getstate(), str(numpy.random.get_state()), torch.get_rng_state()]


def drawing(model: nn.Module, batch: Any) -> Any:
    """A validation step that draws from every generator."""
    assert not torch.is_grad_enabled() and not model.training
    return model(batch[0]).mean() + random.random() + numpy.random.rand() + torch.rand(())


VALIDATION: dict[str, Callable[[], Any]] = {
    **{kind: partial(DATA[kind], Augmented(), 0) for kind in ("list", "DataLoader", "Loader", "stream")},
    "two workers": lambda: DATA["DataLoader"](Augmented(), 2),
    "no batch": lambda: [],
}


@pytest.mark.first(5)
@pytest.mark.parametrize("data", VALIDATION)
@pytest.mark.parametrize("seed", [None, SEED])
def test_an_evaluation_leaves_modes_weights_and_generators_as_they_were(data: str, seed: int | None) -> None:
    """Without a seed the generators are where they were before the run, with one where it put them at its beginning."""
    made = world(Graph.load("evaluate"), val_data=VALIDATION[data], options={"seed": seed})
    trainer = made.trainer(validation_step=drawing)
    model = trainer.resources["model"]
    model.first.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    weights = copy.deepcopy(model.state_dict())
    seed_generators(SEED)
    if seed is None:
        torch.rand(3), random.random(), numpy.random.rand()  # somewhere in the middle of a training
    before = generators()
    if seed is not None:
        torch.rand(3), random.random(), numpy.random.rand()
    trainer.run()
    assert_same(generators(), before)
    assert_same(model.state_dict(), weights)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert {*modes.values()} == {True, False}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_its_metrics_are_means_over_samples() -> None:
    data = [torch.full((size, 3), float(size)) for size in (1, 2, 5)]
    for split in ("val", "test"):
        graph = Graph.load("evaluate").set("begin_evaluation", split=split)
        trainer = world(graph, val_data=lambda: data).trainer(
            validation_step=lambda model, batch: {"size": batch.mean(), "one": 1}
        )
        trainer.run()
        (row,) = trainer.metrics
        assert row[f"{split}/size"] == pytest.approx((1 * 1 + 2 * 2 + 5 * 5) / 8)
        assert (row[f"{split}/one"], len(row)) == (1, 4)


def test_without_a_validation_step_the_training_step_is_called_without_gradients() -> None:
    trainer = world(Graph.load("evaluate")).trainer(training_step=lambda model, batch: drawing(model, batch) * 0 + 2)
    trainer.run()
    assert trainer.metrics[0]["val/loss"] == 2.0


# ---- overlays: those that the loop by hand below has; the others of the gallery are compared with one of their own

TRAINED = sorted({*OVERLAYS} - {*PROCEDURES, "update_bn"})  # which goes with `swa` there
REFUSED = [{"carry", "drop"}, {"scaled", "token_windows"}]
# These compose to graphs that the checks refuse: `sam_batch` has no scale, no sums and one optimizer, and gradients of
# which optimizer `val_guided` scales is not said.
UNSOUND = [{"sam", "fp16"}, {"sam", "token_windows"}, {"sam", "unfreeze"}, {"val_guided", "unfreeze"}]
BATCHES, EPOCHS, WINDOW = 5, 4, 2


def is_refused(names: Iterable[str]) -> bool:
    return any(pair <= set(names) for pair in REFUSED)


def loss_of(model: nn.Module, batch: torch.Tensor) -> Any:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def sum_of(model: nn.Module, batch: torch.Tensor) -> dict[str, Any]:
    return {"loss": loss_of(model, batch) * len(batch), "tokens": len(batch)}


def with_overlays(names: Names) -> World:
    graph = FIT.overlay(*names).set("finish", after=f"{EPOCHS} epochs").set("accumulate", every=WINDOW)
    graph = graph.set("log", every="never").set("checkpoint", every="never")
    settings: dict[str, dict[str, Any]] = {
        "early_stop": {"patience": 1, "min_epochs": 2},
        "ema": {"decay": 0.9},
        "fp16": {"init_scale": 2.0**20},
    }
    for name in settings.keys() & set(names):
        graph = graph.set({"fp16": "unscale"}.get(name, name), **settings[name])

    def make() -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.25), nn.Linear(6, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        made: dict[str, Any] = {
            "model": model,
            "optimizer": optimizer,
            "train_data": [torch.randn(6, 4) for _ in range(BATCHES)],
            "val_data": [torch.randn(5, 4) for _ in range(3)],
            "training_step": sum_of if "token_windows" in names else loss_of,
            "validation_step": loss_of,
        }
        if "plateau" in names:
            made["scheduler"] = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return made

    return World(graph, make)


AVERAGES = {"average": "ema", "swa_model": "swa"}


def by_hand(names: Names) -> tuple[dict[str, nn.Module], int, int]:
    """What the overlays say, as a loop: the models, the steps and the batches."""
    made = with_overlays(names).resources()
    model, optimizer = made["model"], made["optimizer"]
    models = {"model": model}
    models |= {name: copy.deepcopy(model) for name, overlay in AVERAGES.items() if overlay in names}
    seed_generators(SEED)
    scaler = torch.amp.GradScaler("cpu", enabled="fp16" in names, init_scale=2.0**20)
    count = steps = batches = waited = averaged = tokens = 0
    best = float("inf")
    while True:
        batch = made["train_data"][batches % BATCHES]
        batches += 1
        is_last = batches % BATCHES == 0
        stops = "early_stop" in names and waited >= 1 and batches >= 2 * BATCHES
        ending = batches >= EPOCHS * BATCHES or stops
        with torch.autocast("cpu", torch.float16, enabled="fp16" in names):
            loss = sum_of(model, batch)["loss"] if "token_windows" in names else loss_of(model, batch) / WINDOW
        scaler.scale(loss).backward()
        count, tokens = count + 1, tokens + len(batch)
        is_cut = ending or (is_last and "carry" not in names)
        if count == WINDOW or (is_cut and "drop" not in names):
            scaler.unscale_(optimizer)
            divisor = tokens if "token_windows" in names else count / WINDOW if "scaled" in names else 1
            for parameter in model.parameters() if divisor != 1 else ():
                parameter.grad /= divisor
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            is_taken = scaler.get_scale() >= scale
            steps += is_taken
            if "ema" in names and is_taken:
                move(models["average"], model, 1 - min(0.9, steps / (9 + steps)))
        if count == WINDOW or is_cut:
            optimizer.zero_grad()
            count = tokens = 0
        if is_last:
            with torch.autocast("cpu", torch.float16, enabled="fp16" in names):
                value = validated(models["average" if "ema" in names else "model"], made["val_data"])
            if "plateau" in names:
                made["scheduler"].step(value)
            best, waited = (value, 0) if value < best else (best, waited + 1)
            if "swa" in names:
                averaged += 1
                move(models["swa_model"], model, 1 / averaged)
        stops = "early_stop" in names and waited >= 1 and batches >= 2 * BATCHES
        if (batches >= EPOCHS * BATCHES or stops) and count == 0:
            return models, steps, batches


@torch.no_grad()
def move(average: nn.Module, model: nn.Module, weight: float) -> None:
    for mean, value in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(value, weight)
    for name, buffer in model.named_buffers():
        average.get_buffer(name).copy_(buffer)


@torch.no_grad()
def validated(model: nn.Module, data: list[torch.Tensor]) -> float:
    model.eval()
    total: float = sum(loss_of(model, batch).item() * len(batch) for batch in data)
    model.train()
    return total / sum(map(len, data))


COMBINATIONS: list[Names] = [
    ("ema", "fp16"),
    ("swa", "token_windows", "early_stop"),
    tuple(name for name in TRAINED if name not in ("drop", "scaled")),  # all at once
    *((name,) for name in TRAINED),
    *(tuple(random.Random(number).sample(TRAINED, 2 + number % 2)) for number in range(60)),
]


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("names", COMBINATIONS, ids=" ".join)
def test_overlays_train_what_the_loop_by_hand_trains_and_resume_exactly(names: Names, tmp_path: Path) -> None:
    if is_refused(names):
        with pytest.raises(GraphError, match="do not compose"):
            FIT.overlay(*names)
        return
    made = with_overlays(names)
    assert {problem.code for problem in made.graph.check()} <= {
        "G503"
    }  # all at once have more states than are explored
    models, steps, batches = by_hand(names)
    trainer = assert_exact(made, tmp_path, at=2).trainer
    for name, model in models.items():
        assert_same(trainer.resources[name].state_dict(), model.state_dict(), name)
    assert (trainer.progress["step"]["steps"], trainer.progress["next_batch"]["batches"]) == (steps, batches)


@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_an_overlay_is_sound_in_one_process_and_in_several(name: str) -> None:
    graph = FIT.overlay(name)
    assert graph.check() == graph.check(ranks=True) == [] and graph != FIT
    assert Graph.loads(graph.to_toml()) == graph


@pytest.mark.sweep
def test_every_pair_in_both_orders_is_clean_or_refused_by_both_names() -> None:
    for pair in itertools.permutations(sorted(OVERLAYS), 2):
        if is_refused(pair):
            with pytest.raises(GraphError, match=f"overlay `{pair[1]}`: it and `{pair[0]}` do not compose"):
                FIT.overlay(*pair)
            continue
        graph = FIT.overlay(*pair)
        assert (graph.check() != []) == (set(pair) in UNSOUND), pair
        try:
            assert FIT.overlay(pair[0]).overlay(pair[1]) == graph, pair
        except GraphError as refusal:
            assert f"it and `{pair[0]}` do not compose" in str(refusal), pair
