"""Promise 20: a LightningModule trains here as Lightning trains it, bit for bit, and is resumed from everywhere."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import Callback, callbacks

from graphtrain import UsageError
from graphtrain.adapters.lightning import setup
from tests.company import modules, peer
from tests.company.modules import CASES, Base, Case, Validated, data, val
from tests.company.peer import ran, run
from tests.world import assert_same

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# Lightning's own Trainer is imported with everything that it needs: seconds.
@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_it_trains_as_lightning_does(name: str) -> None:
    peer.assert_as_lightning(CASES[name])


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", ["validated", "a GAN", *sorted({*CASES} - {"validated", "a GAN"})])
def test_it_is_resumed_exactly(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    flags = {**case.flags, "max_epochs": 3} if "max_steps" not in case.flags else case.flags
    short = Case(case.module, flags, case.train, case.val, case.datamodule)
    peer.assert_cut(lambda run_dir: peer.trainer_of(short, run_dir), 2, tmp_path)


# ---- hooks and counters


HOOKS = str.split("""
    on_train_start on_train_end on_fit_end on_train_epoch_start on_train_epoch_end on_train_batch_start
    on_train_batch_end on_before_backward on_after_backward on_before_optimizer_step on_before_zero_grad
    on_validation_start on_validation_end on_validation_epoch_start on_validation_epoch_end on_validation_batch_start
    on_validation_batch_end on_validation_model_zero_grad
    backward configure_gradient_clipping optimizer_step optimizer_zero_grad lr_scheduler_step training_step
    validation_step
""")

COUNTERS: dict[str, Callable[[Any], Any]] = {
    **{name: lambda trainer, name=name: getattr(trainer, name) for name in (
        "global_step", "current_epoch", "is_last_batch", "num_training_batches", "num_val_batches", "should_stop",
        "estimated_stepping_batches", "accumulate_grad_batches", "training", "validating", "sanity_checking",
    )},
    "stage": lambda trainer: str(trainer.state.stage),
    "metrics": lambda trainer: sorted(trainer.callback_metrics),
    "rate": lambda trainer: trainer.optimizers[0].param_groups[0]["lr"],
}  # fmt: skip

SEEN: dict[str, list[Any]] = {}  # of the module that is trained: it is no state of a run


def note(hook: str, trainer: Any, **numbers: Any) -> None:
    SEEN.setdefault(hook, []).append({**{name: read(trainer) for name, read in COUNTERS.items()}, **numbers})


def noting(base: type, *hooks: str) -> type:
    """A class of modules that notes the counters when a hook is called, and when its methods return."""

    def method(hook: str) -> Any:
        own = getattr(base, hook)
        names = [*inspect.signature(own).parameters]

        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names[1:], args, strict=False)), **kwargs}
            note(hook, self.trainer, **{name: given[name] for name in ("epoch", "batch_idx") if name in given})
            returned = own(self, *args, **kwargs)
            note(f"after {hook}", self.trainer)
            return returned

        called.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
        return called

    return type(base.__name__, (base,), {hook: method(hook) for hook in hooks})


class Watching(Callback):
    """Notes the counters in the hooks of a callback."""


for _hook in HOOKS:
    if hasattr(Callback, _hook):
        setattr(Watching, _hook, lambda self, trainer, *_, _hook=_hook: note(f"callback {_hook}", trainer))


class Scheduled(Validated):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]


_OF_STEPS = ("configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step")
_AUTOMATIC = {*_OF_STEPS, "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad", "backward"}
COUNTED = {
    "each batch": (Scheduled, {}, HOOKS),
    "windows, validated within epochs": (Scheduled, {"accumulate_grad_batches": 2, "val_check_interval": 2}, HOOKS),
    "a number of steps": (Scheduled, {"max_epochs": -1, "max_steps": 10}, HOOKS),
    "manual": (modules.ManualOverEpochs, {}, [hook for hook in HOOKS if hook not in _OF_STEPS]),
    "LBFGS": (
        modules.LBFGS,
        {"callbacks": []},
        [hook for hook in HOOKS if hook not in _AUTOMATIC and "validation" not in hook],
    ),
}


def trained_twice(make: Callable[[], Any], flags: dict[str, Any]) -> tuple[Any, Any]:
    """What Lightning trains, and what graphtrain trains, each with what was noted."""
    case = Case(make, flags, val=val)
    SEEN.clear()
    theirs = peer.by_lightning(case).weights, dict(SEEN)
    SEEN.clear()
    trainer = peer.trainer_of(case)
    trainer.run()
    return theirs, (peer.result_of(trainer).weights, dict(SEEN))


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", COUNTED)
def test_every_counter_is_that_of_lightning_in_every_hook(name: str) -> None:
    base, flags, hooks = COUNTED[name]
    theirs, ours = trained_twice(noting(base, *hooks), {"max_epochs": 3, "callbacks": [Watching], **flags})
    assert len(theirs[1]) >= len(hooks) and theirs[1].keys() == ours[1].keys()
    for hook, seen in theirs[1].items():
        if not hook.startswith("optimizer_step"):  # which is around the closure there: forward and backward are within
            assert [(hook, each) for each in ours[1][hook]] == [(hook, each) for each in seen]
    assert_same(ours[0], theirs[0])


# ---- trainer.should_stop


STOPS = str.split("""
    training_step on_train_epoch_start on_train_batch_start on_train_batch_end on_before_optimizer_step
    on_validation_epoch_end on_validation_end on_train_epoch_end
""")
ENDINGS: dict[str, dict[str, Any]] = {
    "epochs": {},
    "windows": {"accumulate_grad_batches": 3, "val_check_interval": 2},
    "not before": {"min_epochs": 3, "min_steps": 16},
}


def stopping(hook: str) -> type:
    own = getattr(Validated, hook)

    def stop(self: Any, *args: Any) -> Any:
        self.trainer.should_stop = self.trainer.should_stop or self.global_step >= 5
        return own(self, *args)

    stop.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
    return type("Stopping", (Validated,), {hook: stop})


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("hook", STOPS)
def test_a_run_is_stopped_where_lightning_stops(hook: str, ending: str) -> None:
    theirs, ours = trained_twice(stopping(hook), {"max_epochs": 5, **ENDINGS[ending]})
    assert_same(ours[0], theirs[0])


# ---- callbacks


class Finetuned(Validated):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.backbone(x))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([each for each in self.parameters() if each.requires_grad], lr=0.05)


def shrink(trainer: Any, module: Any, *_: Any) -> None:
    with torch.no_grad():
        module.net[0].weight.mul_(0.99)


# How each callback that Lightning has is made, and what a run with it says; empty if it trains as Lightning does.
CALLBACKS: dict[str, tuple[Callable[[], Any], str]] = {
    "BackboneFinetuning": (lambda: callbacks.BackboneFinetuning(1, lambda epoch: 1.5), ""),
    "BatchSizeFinder": (lambda: callbacks.BatchSizeFinder(), "`trainer.fit_loop` is not supported"),
    "DeviceStatsMonitor": (lambda: callbacks.DeviceStatsMonitor(), ""),
    "EMAWeightAveraging": (lambda: callbacks.EMAWeightAveraging(decay=0.9, update_starting_at_step=4), ""),
    "EarlyStopping": (lambda: callbacks.EarlyStopping("val_loss", patience=1), ""),
    "GradientAccumulationScheduler": (lambda: callbacks.GradientAccumulationScheduler({1: 2}), "is not supported"),
    "LambdaCallback": (lambda: callbacks.LambdaCallback(on_train_batch_end=shrink), ""),
    "LearningRateFinder": (lambda: callbacks.LearningRateFinder(), "`trainer.save_checkpoint` is not supported"),
    "LearningRateMonitor": (lambda: callbacks.LearningRateMonitor(), ""),
    "ModelPruning": (lambda: callbacks.ModelPruning("l1_unstructured"), "is not supported"),
    "SpikeDetection": (lambda: callbacks.SpikeDetection(), "is not supported"),
    "ThroughputMonitor": (lambda: callbacks.ThroughputMonitor(len), "`trainer.fit_loop` is not supported"),
    "Timer": (lambda: callbacks.Timer("00:01:00:00"), "is not supported"),
    "StochasticWeightAveraging": (lambda: callbacks.StochasticWeightAveraging(0.05), "is not supported"),
    "WeightAveraging": (lambda: callbacks.WeightAveraging(), ""),
}
# Those that save or show, and that which the next test is about.
OTHERS = str.split("""
    BaseFinetuning BasePredictionWriter Callback Checkpoint ModelCheckpoint ModelSummary OnExceptionCheckpoint
    ProgressBar RichModelSummary RichProgressBar TQDMProgressBar
""")


def test_every_callback_of_lightning_has_a_row() -> None:
    assert {*CALLBACKS, *OTHERS} == set(callbacks.__all__)


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_trains_as_in_lightning_and_is_resumed_or_is_refused(name: str, tmp_path: Path) -> None:
    make, message = CALLBACKS[name]
    case = Case(Finetuned, {"max_epochs": 3, "callbacks": [make]}, val=val)
    if message:
        with pytest.raises((AttributeError, UsageError), match=message):
            peer.trainer_of(case).run()
        return
    peer.assert_as_lightning(case, ["val_loss"])
    peer.assert_cut(lambda run_dir: peer.trainer_of(case, run_dir), 2, tmp_path)


class Patient(callbacks.EarlyStopping):
    """Has settings of its own, and no method."""

    def __init__(self) -> None:
        super().__init__("val_loss", patience=7)

    unused = "of a subclass"


def test_callbacks_that_are_edits() -> None:
    given = [
        callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=3, every_n_epochs=2),
        callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.1),
    ]
    graph, _ = setup(Validated(), train_dataloaders=data(), val_dataloaders=val(), callbacks=given)
    assert graph.nodes["checkpoint"].parameters["best"] == "val_loss"
    assert graph.nodes["checkpoint"].parameters["keep_best"] == 3
    assert graph.nodes["early_stop"].parameters["patience"] == 2
    graph, _ = setup(Validated(), train_dataloaders=data(), val_dataloaders=val(), callbacks=[Patient()])
    assert graph.nodes["early_stop"].parameters["patience"] == 7


class EarlyStopping(Callback):
    """Has only the name of that of Lightning."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == 2


def test_a_class_of_the_same_name_is_a_callback_of_its_own() -> None:
    assert run(Base(), callbacks=[EarlyStopping()]).progress["step"]["steps"] == 2


# ---- what a resume asks for


class Asks(Callback):
    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.ckpt_path is None and trainer.early_stopping_callback is None:
            print("loaded with", trainer.checkpoint_callback, len(trainer.callbacks))


def test_callbacks_are_there_where_a_checkpoint_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for until in ("2 steps", None):
        run(Base(), callbacks=[Asks()], run_dir=tmp_path, until=until)
    assert capsys.readouterr().out == "loaded with None 1\n"
    checkpoint = callbacks.ModelCheckpoint()
    module = Base()
    setup(module, train_dataloaders=data(), callbacks=[checkpoint, Asks()])
    assert module.trainer.checkpoint_callback is checkpoint and len(module.trainer.callbacks) == 2


class Adds(Validated):
    """Keeps something of its own in checkpoints, of which one is not plain data."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["hyper_parameters"].update(lr=len(checkpoint["state_dict"]))
        checkpoint |= {"kept": self.current_epoch, "loss": torch.nn.MSELoss(), "weights": OrderedDict(a=torch.ones(1))}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        print("loaded", checkpoint["kept"], checkpoint["loss"], *checkpoint["weights"])


class Remembers(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"kept": 3}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        print("loaded", state_dict)


def test_what_hooks_add_to_a_checkpoint_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="adds loss, which is not plain data, so it is not saved"):
        for until in ("2 epochs", None):
            given = {"val_dataloaders": val(), "max_epochs": 3, "callbacks": [Remembers()]}
            run(Adds(), **given, run_dir=tmp_path, until=until)
    said = capsys.readouterr().out
    assert "loaded 1 MSELoss() a\n" in said and "loaded {'kept': 3}\n" in said


# ---- other stages, and forms of Lightning 1


class ByNumber(Validated):
    """Its steps take the number of the batch by a name of their own."""

    def training_step(self, batch: Any, batch_nb: int) -> Any:
        return self.loss(batch) * (1 + batch_nb)

    def validation_step(self, batch: Any, batch_nb: int) -> None:
        self.log("val/number", float(batch_nb))

    def test_step(self, batch: Any, batch_nb: int) -> None:
        self.log("test/number", float(batch_nb))
        self.log("test_loss", self.loss(batch))

    def on_test_epoch_end(self) -> None:
        self.log("test_twice", 2.0)

    def predict_step(self, batch: Any, batch_nb: int) -> Any:
        return torch.full((len(batch[0]),), batch_nb)

    test_dataloader = predict_dataloader = lambda self: val()


def test_a_module_is_tested_and_predicts(tmp_path: Path) -> None:
    module = ByNumber()
    trainer = run(module, val_dataloaders=val())
    assert [row["val/number"] for row in trainer.metrics if "val/number" in row] == [0.5]
    tester = ran(*setup(module, stage="test"))
    module.eval()
    with torch.no_grad():
        losses = [module.loss(batch) for batch in val()]
    expected = {"test/number": 0.5, "test_twice": 2.0, "test_loss": float((losses[0] * 8 + losses[1] * 8) / 16)}
    assert expected.items() <= tester.metrics[-1].items()
    predicted = tmp_path / "predicted.jsonl"
    ran(*setup(module, stage="predict"), predictions_file=str(predicted))
    assert len(predicted.read_text().splitlines()) == 16


# ---- around a module


def test_a_hook_that_is_not_overridden_costs_no_node() -> None:
    plain, _ = setup(Base(), train_dataloaders=data())
    hooked, _ = setup(modules.Hooks(), train_dataloaders=data(), val_dataloaders=val())
    assert not [name for name in plain.nodes if name.startswith("on_")]
    assert {name for name in hooked.nodes if name.startswith("on_")} == {
        *("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_after_backward"),
        *("on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end"),
    }


def test_a_module_in_a_module_shares_its_trainer() -> None:
    module = Base()
    module.inner = Base()
    setup(module, train_dataloaders=data())
    assert module.inner.trainer is module.trainer


def test_a_logger_gets_every_row_and_how_the_run_ended(tmp_path: Path) -> None:
    kept = peer.Rows()
    trainer = run(Base(), max_epochs=2, log_every_n_steps=1, logger=kept, run_dir=tmp_path / "run")
    rows = [{name: value for name, value in row.items() if name != "epoch"} for row in trainer.metrics]
    assert [{"step": step, **row} for step, row in kept.rows] == rows
    assert any("train_loss" in row for row in rows) and kept.calls[-2:] == ["success", "save"]
    for logger in (True, False, None):
        assert "loggers" not in setup(Base(), train_dataloaders=data(), logger=logger)[1]
