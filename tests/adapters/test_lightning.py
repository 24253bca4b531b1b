"""A LightningModule trains here as Lightning trains it, bit for bit, and is resumed from everywhere."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule

from graphtrain import Graph, Trainer, UsageError
from graphtrain.adapters.lightning import setup
from tests.adapters import modules, peer
from tests.adapters.modules import CASES, Base, Case, Validated, data, val

pytestmark = pytest.mark.filterwarnings("ignore")

# What costs no Lightning Trainer, and most of the adapter: run with every commit.
FIRST = ("validated", "a GAN")

# Lightning's own Trainer is imported with everything that it needs: seconds.
EVERY = pytest.mark.parametrize("name", CASES)


def same(first: Any, second: Any) -> bool:
    """True if two states are equal, bit for bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def series(rows: list[tuple[int, dict[str, float]]]) -> dict[str, list[float]]:
    """The values of each metric, in order."""
    values: dict[str, list[float]] = {}
    for _, row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return values


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.second(3)
@pytest.mark.full
@EVERY
def test_it_trains_as_lightning_does(name: str) -> None:
    expected = peer.by_lightning(CASES[name])
    trainer = peer.trainer_of(CASES[name])
    trainer.run()
    actual = peer.result_of(trainer)
    assert same(actual.weights, expected.weights)
    assert same(actual.optimizers, expected.optimizers)
    logged = series(actual.rows)
    assert {name: logged.get(name) for name in series(expected.rows)} == series(expected.rows)


def cut(case: Case, places: int, folder: Path) -> None:
    """Compare a run with those that are cut at as many places and resumed."""
    whole = peer.trainer_of(case)
    transitions = 0
    while whole.position != "end":
        whole.advance()
        transitions += 1
    for number in range(places):
        where = 1 + (number * transitions + transitions // 3) // places
        run_dir = folder / f"{number}"
        first = peer.trainer_of(case, run_dir)
        first.advance(where)
        first.save()
        second = peer.trainer_of(case, run_dir)
        second.run()
        assert second.digest() == whole.digest(), f"cut before {first.position}"
        assert same(peer.result_of(second).weights, peer.result_of(whole).weights)
        assert series(peer.result_of(second).rows) == series(peer.result_of(whole).rows)


@pytest.mark.sweep
@EVERY
def test_it_is_resumed_from_everywhere(name: str, tmp_path: Path) -> None:
    cut(CASES[name], 6, tmp_path)


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("name", FIRST)
def test_it_is_resumed_from_somewhere(name: str, tmp_path: Path) -> None:
    cut(replace(CASES[name], flags={**CASES[name].flags, "max_epochs": 2}), 1, tmp_path)


# ---- bad input


class AlwaysNone(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class Several(Base):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]


class Unoptimized(Base):
    def configure_optimizers(self) -> Any:
        return None


class OfTwoOptimizers(Base):
    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
        return self.loss(batch)


class StepsByNumber(Base):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, closure: Any) -> None:
        optimizer.step(closure=closure)


class OfHiddens(Base):
    def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
        return self.loss(batch)


class OfLightning1(Base):
    def training_epoch_end(self, outputs: Any) -> None: ...


class AsksForLoops(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * self.trainer.fit_loop.epoch_progress


class Saves(Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint("here.ckpt")


class WithoutMonitor(Base):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_los"}


class Draws(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.logger.experiment.add_figure("one", None)


class Reduces(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("one", 1.0, reduce_fx="median")


def run(module: Any, **given: Any) -> Trainer:
    """Train a module for an epoch, or what comes of it."""
    graph, resources = setup(module, **{"train_dataloaders": data(), "max_epochs": 1, **given})
    trainer = Trainer(graph, device="cpu", display=None, notify=lambda line: None, **resources)
    trainer.run()
    return trainer


def test_schedulers_that_the_module_steps_are_read() -> None:
    graph, resources = setup(modules.GAN(), train_dataloaders=data(), max_epochs=1)
    lines: list[str] = []
    Trainer(graph, device="cpu", display=None, notify=lines.append, **resources)
    assert "scheduler_1" in resources and not [line for line in lines if "nothing in the graph reads" in line]


class HookOfAClosure(modules.LBFGS):
    def on_after_backward(self) -> None: ...


BAD = {
    "a module that trains nothing": (AlwaysNone, {}, "returned None for each of the 5 batches.*return the loss"),
    "no such flag": (Base, {"max_epoch": 3}, "no argument `max_epoch`.*did you mean `max_epochs`"),
    "a class": (lambda: Base, {}, "takes a LightningModule; got .*: make one: Base\\(...\\)"),
    "no LightningModule": (lambda: torch.nn.Linear(1, 1), {}, "takes a LightningModule; got .*Linear"),
    "no such stage": (Base, {"stage": "tset"}, "stage='tset' is no graph.*use"),
    "no data": (Base, {"train_dataloaders": None}, "there is no training data.*give train_dataloaders"),
    "no optimizer": (Unoptimized, {}, "`configure_optimizers` returned None.*return an optimizer"),
    "several optimizers": (Several, {}, "returned 2 optimizers.*automatic_optimization = False"),
    "an optimizer by its number": (
        OfTwoOptimizers,
        {},
        "`training_step` takes `optimizer_idx`.*leave it out.*`gan` and",
    ),
    "a hook with the number of an optimizer": (StepsByNumber, {}, "`optimizer_step` takes `optimizer_idx`.*`yielding`"),
    "hidden states": (OfHiddens, {}, "takes `hiddens`.*the graph `tbptt`, whose step function returns `hidden`"),
    "an end of an epoch of Lightning 1": (
        OfLightning1,
        {},
        "`training_epoch_end` is of Lightning 1.*for `on_train_epoch_end`",
    ),
    "a flag of Lightning 1": (
        Base,
        {"terminate_on_nan": True},
        "no argument `terminate_on_nan`.*docs/coming-from-lightning.md has the arguments",
    ),
    "a loop": (AsksForLoops, {}, "`trainer.fit_loop` is not here: what does it is the graph"),
    "a callback that saves": (Base, {"callbacks": Saves()}, "`trainer.save_checkpoint` .* the node `checkpoint`"),
    "a metric that is not logged": (WithoutMonitor, {}, "follows `val_los`, which is not logged.*train_loss"),
    "a picture for a logger": (Draws, {}, "`logger.experiment.add_figure` is not here"),
    "a reduction": (Reduces, {}, "reduce_fx is 'median'.*use"),
    "a hook of each evaluation of a closure": (
        HookOfAClosure,
        {},
        "`on_after_backward`, and LBFGS steps itself.*replacing the node `step`",
    ),
    "a graph that has no such node": (
        modules.GAN,
        {"accumulate_grad_batches": 2},
        "accumulate_grad_batches=2, and the module steps.*do it in `training_step`",
    ),
}


@pytest.mark.first(13)
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_one_sentence_with_the_remedy(name: str) -> None:
    make, given, message = BAD[name]
    with pytest.raises((UsageError, AttributeError), match=re.compile(message, re.DOTALL)):
        run(make(), **given)


# ---- checkpoints


class Kept(Validated):
    """Keeps something of its own in checkpoints."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["kept"] = {"epoch": self.current_epoch}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        print("loaded", checkpoint["kept"])


@pytest.mark.full
def test_what_hooks_add_to_a_checkpoint_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, resources = setup(Kept(), train_dataloaders=data(), val_dataloaders=val(), max_epochs=3)
    given = {"device": "cpu", "display": None, "notify": lambda line: None, "run_dir": tmp_path}
    first = Trainer(graph, **given, **resources)
    first.run(until="2 epochs")
    graph, resources = setup(Kept(), train_dataloaders=data(), val_dataloaders=val(), max_epochs=3)
    Trainer(graph, **given, **resources).run()
    assert "loaded {'epoch': 1}" in capsys.readouterr().out


# ---- graphs


def test_a_hook_that_is_not_overridden_costs_no_node() -> None:
    plain, _ = setup(Base(), train_dataloaders=data())
    hooked, _ = setup(modules.Hooks(), train_dataloaders=data(), val_dataloaders=val())
    assert not [name for name in plain.nodes if name.startswith("on_")]
    assert {name for name in hooked.nodes if name.startswith("on_")} == {
        *("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_after_backward"),
        *("on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end"),
    }
    assert plain.check() == hooked.check() == []


@pytest.mark.first(10)
@pytest.mark.parametrize("name", CASES)
def test_the_graph_of_a_module_is_sound(name: str) -> None:
    case = CASES[name]
    graph, _ = setup(case.module(), **peer.flags_of(case), **peer.data_of(case))
    assert graph.check() == []


class Predicts(Validated):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0])

    def on_test_epoch_end(self) -> None:
        self.log("test_twice", 2.0)

    def test_dataloader(self) -> Any:
        return data(2)

    predict_dataloader = test_dataloader


def test_a_module_is_tested_and_predicts(tmp_path: Path) -> None:
    module = Predicts()
    graph, resources = setup(module, stage="test")
    tester = Trainer(graph, device="cpu", display=None, notify=lambda line: None, **resources)
    tester.run()
    module.eval()
    with torch.no_grad():
        losses = [module.loss(batch) for batch in data(2)]
    assert tester.metrics[-1]["test_loss"] == float((losses[0] * 8 + losses[1] * 8) / 16)
    assert tester.metrics[-1]["test_twice"] == 2.0
    graph, resources = setup(module, stage="predict")
    predicted = tmp_path / "predicted.jsonl"
    Trainer(
        graph, device="cpu", display=None, notify=lambda line: None, predictions_file=str(predicted), **resources
    ).run()
    assert len(predicted.read_text().splitlines()) == 16


class CountsInValidations(Validated):
    def on_validation_epoch_end(self) -> None:
        self.log("reached", 100.0 * self.current_epoch + self.global_step)


def test_a_validation_knows_the_epoch_and_the_steps() -> None:
    trainer = run(CountsInValidations(), val_dataloaders=val(), max_epochs=3)
    assert series(peer.result_of(trainer).rows)["reached"] == [5.0, 110.0, 215.0]


def test_callbacks_that_are_edits() -> None:
    from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint

    callbacks = [
        ModelCheckpoint(monitor="val_loss", save_top_k=3, every_n_epochs=2),
        EarlyStopping("val_loss", patience=2, min_delta=0.1),
        GradientAccumulationScheduler({0: 1, 2: 4}),
    ]
    graph, _ = setup(Validated(), train_dataloaders=data(), val_dataloaders=val(), callbacks=callbacks)
    expected = Graph.load("fit").overlay("early_stop")
    assert graph.nodes["checkpoint"].parameters["best"] == "val_loss"
    assert graph.nodes["checkpoint"].parameters["keep_best"] == 3
    assert graph.nodes["early_stop"].parameters["patience"] == 2
    assert graph.nodes["accumulate"].reads["every"] == "4 if next_batch.epoch >= 2 else 1"
    assert graph.guards["ending"] == expected.guards["ending"]


def test_every_argument_of_the_trainer_has_an_answer() -> None:
    import inspect

    from lightning.pytorch import Trainer as LightningTrainer

    from graphtrain.adapters.lightning_flags import FLAGS

    assert set(inspect.signature(LightningTrainer).parameters) - {"self"} <= set(FLAGS)


def test_a_module_in_a_module_shares_its_trainer() -> None:
    class Outer(Base):
        def __init__(self) -> None:
            super().__init__()
            self.inner: LightningModule = Base()

    module = Outer()
    setup(module, train_dataloaders=data())
    assert module.inner.trainer is module.trainer
