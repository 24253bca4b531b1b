"""The contract of the shipped overlays: together they are sound, train what the loop by hand trains, and resume."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, GraphError, Outcome, Trainer
from graphtrain.graph.registry import find_overlay, known_overlays
from graphtrain.state.random import seed_everything
from tests.shipped import OVERLAYS, PROCEDURES

FIT = Graph.load("fit")
SHIPPED = sorted(OVERLAYS)
# Those that the loop by hand of this module has; the others of the gallery are compared with one of their own.
OF_GALLERY = {*PROCEDURES, "update_bn"}  # which goes with `swa` there
TRAINED = [name for name in SHIPPED if name not in OF_GALLERY]
REFUSED = [{"carry", "drop"}, {"scaled", "token_windows"}]
# These compose to graphs that the checks refuse: `sam_batch` has no scale, no sums and one optimizer, and gradients of
# which optimizer `val_guided` scales is not said.
UNSOUND = [{"sam", "fp16"}, {"sam", "token_windows"}, {"sam", "unfreeze"}, {"val_guided", "unfreeze"}]
BATCHES, EPOCHS, WINDOW = 5, 4, 2

Names = tuple[str, ...]


def is_refused(names: Iterable[str]) -> bool:
    return any(pair <= set(names) for pair in REFUSED)


PAIRS = list(itertools.permutations(SHIPPED, 2))
SOUND_PAIRS = [pair for pair in itertools.combinations(TRAINED, 2) if not is_refused(pair)]
TRIPLES = [tuple(random.Random(number).sample(TRAINED, 3)) for number in range(200)]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # undone after each test; others want the processors too


# ---- one run, by the graph and by hand


def resources(names: Names) -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.25), torch.nn.Linear(6, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    supplied = {
        "model": model,
        "optimizer": optimizer,
        "train_data": [torch.randn(6, 4) for _ in range(BATCHES)],
        "val_data": [torch.randn(5, 4) for _ in range(3)],
        "training_step": loss_of,
        "validation_step": loss_of,
    }
    if "token_windows" in names:
        supplied["training_step"] = sum_of
    if "plateau" in names:
        supplied["scheduler"] = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    return supplied


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def sum_of(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, Any]:
    return {"loss": loss_of(model, batch) * len(batch), "tokens": len(batch)}


def graph_of(names: Names) -> Graph:
    graph = FIT.overlay(*names).set("finish", after=f"{EPOCHS} epochs").set("accumulate", every=WINDOW)
    graph = graph.set("log", every="never").set("checkpoint", every="never")
    settings: dict[str, dict[str, Any]] = {
        "early_stop": {"patience": 1, "min_epochs": 2},
        "ema": {"decay": 0.9},
        "fp16": {"init_scale": 2.0**20},
    }
    for name in settings.keys() & set(names):
        graph = graph.set({"fp16": "unscale"}.get(name, name), **settings[name])
    return graph


def trainer_of(names: Names, run_dir: Path | None = None) -> Trainer:
    return Trainer(graph_of(names), seed=0, run_dir=run_dir, display=None, notify=lambda line: None, **resources(names))


def result(trainer: Trainer) -> dict[str, Any]:
    models = {name: value for name, value in trainer.resources.items() if isinstance(value, torch.nn.Module)}
    weights = {
        f"{name}.{key}": tensor.tolist() for name, model in models.items() for key, tensor in model.state_dict().items()
    }
    return {**weights, "steps": trainer.progress["step"]["steps"], "batches": trainer.progress["next_batch"]["batches"]}


def by_hand(names: Names) -> dict[str, Any]:
    """What the overlays say, as a loop."""
    supplied = resources(names)
    model, optimizer = supplied["model"], supplied["optimizer"]
    models = {"model": model}
    models |= {name: copy.deepcopy(model) for name, overlay in AVERAGES.items() if overlay in names}
    seed_everything(0)
    scaler = torch.amp.GradScaler("cpu", enabled="fp16" in names, init_scale=2.0**20)
    count = steps = batches = waited = averaged = tokens = 0
    best = float("inf")
    while True:
        batch = supplied["train_data"][batches % BATCHES]
        batches += 1
        is_last = batches % BATCHES == 0
        stops = "early_stop" in names and waited >= 1 and batches >= 2 * BATCHES
        ending = batches >= EPOCHS * BATCHES or stops
        with half_precision(names):
            loss = sum_of(model, batch)["loss"] if "token_windows" in names else loss_of(model, batch) / WINDOW
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
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
                towards(models["average"], model, 1 - min(0.9, steps / (9 + steps)))
        if count == WINDOW or is_cut:
            optimizer.zero_grad()
            count = tokens = 0
        if is_last:
            with half_precision(names):
                value = validated(models["average" if "ema" in names else "model"], supplied["val_data"])
            if "plateau" in names:
                supplied["scheduler"].step(value)
            best, waited = (value, 0) if value < best else (best, waited + 1)
            if "swa" in names:
                averaged += 1
                towards(models["swa_model"], model, 1 / averaged)
        stops = "early_stop" in names and waited >= 1 and batches >= 2 * BATCHES
        if (batches >= EPOCHS * BATCHES or stops) and count == 0:
            break
    weights = {
        f"{name}.{key}": tensor.tolist() for name, model in models.items() for key, tensor in model.state_dict().items()
    }
    return {**weights, "steps": steps, "batches": batches}


def half_precision(names: Names) -> torch.autocast:
    return torch.autocast("cpu", torch.float16, enabled="fp16" in names)


AVERAGES = {"average": "ema", "swa_model": "swa"}


@torch.no_grad()
def towards(average: torch.nn.Module, model: torch.nn.Module, weight: float) -> None:
    for mean, value in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(value, weight)
    for mean, value in zip(average.buffers(), model.buffers(), strict=True):
        mean.copy_(value)


@torch.no_grad()
def validated(model: torch.nn.Module, data: list[torch.Tensor]) -> float:
    model.eval()
    total = sum(loss_of(model, batch).item() * len(batch) for batch in data)
    model.train()
    return total / sum(map(len, data))


def expect_cuts_are_exact(names: Names, whole: Trainer, cuts: Iterable[int], folder: Path) -> None:
    for cut in cuts:
        first = trainer_of(names, folder / str(cut))
        first.advance(cut)
        first.save()
        second = trainer_of(names, folder / str(cut))
        second.run()
        assert result(second) == result(whole), f"cut before {first.position}"
        assert second.digest() == whole.digest(), f"cut before {first.position}"


def cuts_of(names: Names, count: int) -> list[int]:
    return random.Random("".join(names)).sample(range(1, 100), count)


# ---- the contract


def test_every_file_in_the_folder_is_an_overlay() -> None:
    assert known_overlays() == SHIPPED
    assert all(find_overlay(name) is not None for name in SHIPPED)
    assert set(SHIPPED) >= {
        "ema",
        "swa",
        "early_stop",
        "plateau",
        "gradient_norm",
        "fp16",
        "carry",
        "drop",
        "sanity",
        "save_first",
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_its_first_line_says_what_it_does(name: str) -> None:
    line = OVERLAYS[name].read_text().splitlines()[0]
    assert line.startswith("# ") and line.endswith(".")


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", TRAINED)
def test_each_is_clean_and_trains_what_the_loop_by_hand_trains(name: str, tmp_path: Path) -> None:
    graph = FIT.overlay(name)
    assert graph.check() == []
    assert graph.layers.names == (name,)
    assert Graph.loads(graph.to_toml()) == graph
    whole = trainer_of((name,))
    assert whole.run() is Outcome.FINISHED
    assert result(whole) == by_hand((name,))
    expect_cuts_are_exact((name,), whole, cuts_of((name,), 1), tmp_path)


@pytest.mark.sweep
def test_every_pair_in_both_orders_is_clean_or_refused_by_both_names() -> None:
    for pair in PAIRS:
        if is_refused(pair):
            with pytest.raises(GraphError, match=f"overlays `{pair[0]}` and `{pair[1]}` do not compose"):
                FIT.overlay(*pair)
            continue
        graph = FIT.overlay(*pair)
        assert (graph.check() != []) == (set(pair) in UNSOUND), pair
        try:
            assert FIT.overlay(pair[0]).overlay(pair[1]) == graph, pair
        except GraphError as refusal:
            assert f"which `{pair[0]}` has changed" in str(refusal), pair


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("pair", SOUND_PAIRS[::6], ids=" ".join)
def test_some_pairs_train_what_the_loop_by_hand_trains(pair: Names, tmp_path: Path) -> None:
    whole = trainer_of(pair)
    assert whole.run() is Outcome.FINISHED
    assert result(whole) == by_hand(pair)
    expect_cuts_are_exact(pair, whole, cuts_of(pair, 1), tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "names", [*((name,) for name in TRAINED), *itertools.permutations(TRAINED, 2), *TRIPLES], ids=" ".join
)
def test_each_all_pairs_and_many_triples(names: Names, tmp_path: Path) -> None:
    if is_refused(names):
        with pytest.raises(GraphError, match="do not compose"):
            FIT.overlay(*names)
        return
    assert FIT.overlay(*names).check() == []
    whole = trainer_of(names)
    assert whole.run() is Outcome.FINISHED
    assert result(whole) == by_hand(names)
    expect_cuts_are_exact(names, whole, cuts_of(names, 3), tmp_path)


@pytest.mark.full
def test_all_of_them_at_once(tmp_path: Path) -> None:
    names = tuple(name for name in TRAINED if name not in ("drop", "scaled"))
    assert FIT.overlay(*names).check() == []
    whole = trainer_of(names)
    assert whole.run() is Outcome.FINISHED
    assert result(whole) == by_hand(names)
    expect_cuts_are_exact(names, whole, cuts_of(names, 2), tmp_path)
