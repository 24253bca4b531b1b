"""Promise 20: what the adapter for Lightning does not do the same is an error or a warning by name, with the remedy."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningDataModule, callbacks
from lightning.pytorch.utilities import CombinedLoader

from graphtrain import Graph, UsageError
from graphtrain.adapters.lightning import setup
from graphtrain.adapters.lightning_flags import FLAGS, check_flags, with_flags
from tests.company import modules
from tests.company.modules import Base, Validated, data
from tests.company.peer import ran, run

pytestmark = pytest.mark.filterwarnings("ignore")


def but(base: type = Base, **methods: Any) -> Any:
    """A class of modules with other methods."""
    return type("Other", (base,), methods)


def doing(act: Callable[[Any], Any]) -> Any:
    """A class of modules whose training step does something of the trainer."""
    return but(training_step=lambda self, batch, batch_idx: act(self))


def sgd(module: Any) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def unlogged(module: Any) -> Any:
    optimizer = sgd(module)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_los"}


class Saves(Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint("here.ckpt")


class Twice(Base):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()
        optimizer.step(closure=optimizer_closure)


class Marked(callbacks.ModelCheckpoint):
    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        raise AssertionError("it is never called")


class Bar(callbacks.TQDMProgressBar):
    def on_train_batch_end(self, *args: Any) -> None:
        raise AssertionError("it is never called")


of_two = but(training_step=lambda self, batch, batch_idx, optimizer_idx: self.loss(batch))
of_iterators = but(training_step=lambda self, dataloader_iter: self.loss(next(dataloader_iter)[0]))
of_hiddens = but(training_step=lambda self, batch, batch_idx, hiddens: self.loss(batch))
of_figures = doing(lambda self: self.logger.experiment.add_figure("one", None))
of_no_closure = but(optimizer_step=lambda self, epoch, batch_idx, optimizer, optimizer_closure: None)
of_closures = but(modules.LBFGS, on_after_backward=lambda self: None)
# What is written -> a module, arguments of `setup`, and a part of what is said.
BAD: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "no such flag": (Base, {"max_epoch": 3}, "no argument `max_epoch`.*did you mean `max_epochs`"),
    "a class": (lambda: Base, {}, r"takes a LightningModule; got .*: make one: Base\(...\)"),
    "no LightningModule": (lambda: torch.nn.Linear(1, 1), {}, "takes a LightningModule; got .*Linear"),
    "no such stage": (Base, {"stage": "tset"}, "stage='tset' is no graph.*use"),
    "no data": (Base, {"train_dataloaders": None}, "there is no training data.*give train_dataloaders"),
    "no optimizer": (but(configure_optimizers=lambda self: None), {}, "returned None.*return an optimizer"),
    "several optimizers": (
        but(configure_optimizers=lambda self: [sgd(self), sgd(self)]),
        {},
        "returned 2 optimizers.*automatic_optimization = False",
    ),
    "an optimizer by its number": (of_two, {}, "`training_step` takes `optimizer_idx`.*leave it out.*`gan`"),
    "an iterator": (of_iterators, {}, "takes `dataloader_iter`, which is not passed.*take `batch`"),
    "hidden states": (of_hiddens, {}, "takes `hiddens`.*the graphs.*`tbptt`"),
    "an epoch that is left": (
        but(on_train_batch_start=lambda self, batch, batch_idx: -1),
        {},
        "returned -1, which ends no epoch here.*next_batch.limit",
    ),
    "modes of its own": (
        but(modules.Validated, on_validation_model_eval=lambda self: None),
        {"val_dataloaders": modules.val()},
        "`on_validation_model_eval` is not called.*use `on_validation_start`",
    ),
    "a hook of Lightning 1": (
        but(training_epoch_end=lambda self, outputs: None),
        {},
        "`training_epoch_end` is of Lightning 1.*for `on_train_epoch_end`",
    ),
    "a flag of Lightning 1": (Base, {"terminate_on_nan": True}, "no argument `terminate_on_nan`.*docs/coming-from"),
    "a loop": (
        doing(lambda self: self.trainer.fit_loop),
        {},
        "`trainer.fit_loop` is not supported; its equiv",
    ),
    "a callback that saves": (Base, {"callbacks": Saves()}, "`trainer.save_checkpoint` .* the node `checkpoint`"),
    "a metric that is not logged": (but(configure_optimizers=unlogged), {}, "follows `val_los`, which is not logged"),
    "a picture for a logger": (of_figures, {}, "`logger.experiment.add_figure` is not supported"),
    "a reduction": (doing(lambda self: self.log("a", 1.0, reduce_fx="median")), {}, "reduce_fx is 'median'.*use"),
    "a hook within a closure": (
        of_closures,
        {},
        "`on_after_backward`, and LBFGS steps itself.*replacing the node",
    ),
    "a closure that is called twice": (Twice, {}, "`optimizer_step` calls its closure twice"),
    "a closure that is not called": (of_no_closure, {}, "`optimizer_step` did not call its closure.*has run before it"),
    "a flag that is set in a hook": (
        but(on_train_start=lambda self: setattr(self.trainer, "accumulate_grad_batches", 2)),
        {},
        "`trainer.accumulate_grad_batches` cannot be set: edit the graph",
    ),
    "optimizers that are set in a hook": (
        but(on_train_start=lambda self: setattr(self.trainer.strategy, "optimizers", [sgd(self)])),
        {},
        "`trainer.optimizers` cannot be set: edit the graph",
    ),
    "an interval longer than an epoch": (
        Base,
        {"limit_train_batches": 4, "val_check_interval": 5},
        "val_check_interval=5: an epoch has 4 batches.*check_val_every_n_epoch=None",
    ),
    "a list of loaders": (Base, {"train_dataloaders": [data(), data()]}, "is a list of loaders.*name them"),
    "loaders that end with the shortest": (
        but(train_dataloader=lambda self: CombinedLoader([data()])),
        {"train_dataloaders": None},
        'the train data is a CombinedLoader of the mode "min_size".*"max_size_cycle"',
    ),
    "loaders read together": (
        but(Validated, val_dataloader=lambda self: CombinedLoader([modules.val()], "max_size")),
        {},
        'the val data is a CombinedLoader of the mode "max_size".*"sequential"',
    ),
    "no such node": (modules.GAN, {"accumulate_grad_batches": 2}, "=2, and the module steps.*do it in `training_step`"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_one_sentence_with_the_remedy(name: str) -> None:
    make, given, message = BAD[name]
    with pytest.raises((UsageError, AttributeError), match=re.compile(message, re.DOTALL)):
        run(make(), **given)


def test_a_batch_that_trains_nothing_is_said() -> None:
    with pytest.warns(UserWarning, match="returned None, so this batch trains nothing: return the loss"):
        run(doing(lambda self: None)())


OBSERVERS = [
    (lambda: Marked(), "`_save_checkpoint` of Marked is never called: ModelCheckpoint is the node `checkpoint`"),
    (lambda: Bar(), "`on_train_batch_end` of Bar is never called"),
    (lambda: callbacks.ModelCheckpoint(monitor="loss"), "a second ModelCheckpoint is left"),
]


@pytest.mark.parametrize(("make", "message"), OBSERVERS)
def test_a_subclass_that_only_observes_is_named(make: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        setup(Validated(), train_dataloaders=data(), callbacks=[callbacks.ModelCheckpoint(), make()])


class Closes(LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.closed: list[str] = []

    def train_dataloader(self) -> Any:
        return data(1)

    def teardown(self, stage: str) -> None:
        self.closed.append(stage)

    def on_exception(self, exception: BaseException) -> None: ...


class OfOldNames(Base):
    def on_epoch_end(self) -> None: ...


def test_a_datamodule_is_torn_down_and_what_is_never_called_is_said() -> None:
    datamodule = Closes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph, resources = setup(OfOldNames(), datamodule, max_epochs=1)
    said = [str(each.message) for each in caught if "is never called" in str(each.message)]
    assert len(said) == 2
    assert said[0].startswith("`on_exception` of Closes") and said[1].startswith("`on_epoch_end` of OfOldNames")
    ran(graph, resources)
    assert datamodule.closed == ["fit"]


# ---- flags


FIT = Graph.load("fit")
EDITS: list[tuple[dict[str, Any], Graph]] = [
    ({"max_epochs": 3}, FIT.set("finish", after="3 epochs")),
    ({"max_steps": 10}, FIT.set("finish", after="10 steps")),
    ({"max_epochs": 3, "max_steps": 10}, FIT.set("finish", after=["3 epochs", "10 steps"])),
    ({"max_epochs": -1}, FIT.set("finish", after="never")),
    ({"max_time": "00:01:00:00"}, FIT.set("finish", after="3600 seconds")),
    ({"limit_train_batches": 0.25}, FIT.set("next_batch", limit=0.25)),
    ({"limit_val_batches": 0}, FIT.set("validate", every="never")),
    ({"limit_val_batches": 0, "val_check_interval": 0.5}, FIT.set("validate", every="never")),
    ({"val_check_interval": 100}, FIT.set("validate", every="100 epoch_batches")),
    ({"val_check_interval": 100, "check_val_every_n_epoch": None}, FIT.set("validate", every="100 batches")),
    ({"check_val_every_n_epoch": 2}, FIT.set("validate", every="2 epochs")),
    ({"accumulate_grad_batches": 4}, FIT.set("accumulate", every=4)),
    ({"gradient_clip_val": 0.5}, FIT.set("clip", max_norm=0.5)),
    ({"precision": "bf16"}, FIT.set("train_batch", precision="bf16-mixed")),
    ({"precision": "16-mixed"}, FIT.overlay("fp16")),
    ({"log_every_n_steps": 5}, FIT.set("log", every="5 steps")),
    ({"overfit_batches": 2}, FIT.set("next_batch", overfit=2)),
    ({"enable_checkpointing": False}, FIT.set("checkpoint", every="never")),
]


@pytest.mark.parametrize(("flags", "graph"), EDITS)
def test_a_flag_is_an_edit(flags: dict[str, Any], graph: Graph) -> None:
    assert with_flags(FIT, flags) == graph


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_epochs": "two"}, "max_epochs: expected an integer, got 'two'"),
        ({"max_steps": True}, "max_steps: expected an integer, got True"),
        ({"check_val_every_n_epoch": [1]}, "check_val_every_n_epoch: expected an integer, got [1]"),
        ({"fast_dev_run": "two"}, "fast_dev_run: expected an integer, true or false, got 'two'"),
        ({"enable_checkpointing": "no"}, "enable_checkpointing: expected true or false, got 'no'"),
        ({"limit_train_batches": "two"}, "limit_train_batches: expected a number, got 'two'"),
        ({"gradient_clip_algorithm": "two"}, 'gradient_clip_algorithm: expected "norm" or "value", got \'two\''),
        ({"callbacks": "two"}, "callbacks: expected callbacks, from a script, got 'two'"),
        ({"precision": "64-true"}, "precision='64-true' is not supported"),
        ({"max_time": "1:2"}, "max_time: expected a time as \"DD:HH:MM:SS\" or a timedelta, got '1:2'"),
        ({"max_time": 60}, 'max_time: expected a time as "DD:HH:MM:SS" or a timedelta, got 60'),
        ({"val_check_interval": {"day": 1}}, "val_check_interval: expected a time as"),
    ],
    ids=str,
)
def test_a_flag_of_another_type(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_flags(flags)
        with_flags(FIT, flags)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("name", FLAGS)
def test_no_flag_of_another_type_is_an_error_of_python(name: str) -> None:
    for value in ("two", 1.5, -3, True, [1], {"a": 1}, None, 0, "1"):
        with suppress(UsageError):
            check_flags({name: value})
            with_flags(FIT, {name: value} if name != "callbacks" else {}, batches=10)


def test_shares_are_rounded_as_lightning_rounds_them() -> None:
    flags = {"limit_train_batches": 0.29, "val_check_interval": 0.25}
    graph, _ = setup(Base(), train_dataloaders=data(100), **flags)
    assert graph.nodes["next_batch"].parameters["limit"] == 28
    assert graph.nodes["validate"].parameters["every"] == "7 epoch_batches"


def test_what_debugging_flags_set() -> None:
    given = {"train_dataloaders": data(10), "val_dataloaders": data(10)}
    dry, _ = setup(Validated(), **given, fast_dev_run=3, max_steps=99, limit_train_batches=1, val_check_interval=2)
    assert dry.nodes["next_batch"].parameters["limit"] == 3
    assert dry == dry.set("validate/next_batch", limit=3).set("validate", every="1 epochs").set(
        "finish", after="1 epochs"
    )
    module = Validated()
    graph, _ = setup(module, **given, overfit_batches=0.2)
    assert graph.nodes["next_batch"].parameters["overfit"] == 2
    assert (module.trainer.num_training_batches, module.trainer.num_val_batches) == (2, [2])
