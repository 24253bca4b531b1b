"""Tables against Lightning itself: every hook and counter, every way to stop, every callback, every overlay."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics

pytest.importorskip("lightning")

from lightning.pytorch import Callback, callbacks

from graphtrain import GraphError, Trainer, UsageError
from graphtrain.adapters.lightning import setup
from tests.adapters import modules, peer
from tests.adapters.modules import Base, Case, Validated, data, val
from tests.adapters.test_lightning import cut, same, series
from tests.shipped import OVERLAYS

pytestmark = pytest.mark.filterwarnings("ignore")


def _words(text: str) -> list[str]:
    return text.split()


# ---- hooks and counters


HOOKS = _words("""
    on_train_start on_train_end on_fit_end on_train_epoch_start on_train_epoch_end on_train_batch_start
    on_train_batch_end on_before_backward on_after_backward on_before_optimizer_step on_before_zero_grad
    on_validation_start on_validation_end on_validation_epoch_start on_validation_epoch_end on_validation_batch_start
    on_validation_batch_end on_validation_model_zero_grad on_validation_model_eval on_validation_model_train
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
    assert same(ours[0], theirs[0])


def test_a_step_is_counted_when_its_hook_has_returned() -> None:
    SEEN.clear()
    run(noting(modules.WarmUp, "optimizer_step")())
    assert [each["global_step"] for each in SEEN["after optimizer_step"]] == [*range(5)]


def run(module: Any, **given: Any) -> Trainer:
    """Train a module for an epoch, or what is asked for."""
    graph, resources = setup(module, **{"train_dataloaders": data(), "max_epochs": 1, **given})
    trainer = Trainer(graph, device="cpu", display=None, notify=lambda line: None, **resources)
    trainer.run()
    return trainer


class Twice(Base):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()
        optimizer.step(closure=optimizer_closure)


def test_a_closure_that_is_called_twice_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"`optimizer_step` calls its closure twice"):
        run(Twice())


# ---- trainer.should_stop


STOPS = _words("""
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
    assert same(ours[0], theirs[0])


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
    "BatchSizeFinder": (lambda: callbacks.BatchSizeFinder(), "`trainer.fit_loop` is not here"),
    "DeviceStatsMonitor": (lambda: callbacks.DeviceStatsMonitor(), ""),
    "EMAWeightAveraging": (lambda: callbacks.EMAWeightAveraging(decay=0.9, update_starting_at_step=4), ""),
    "EarlyStopping": (lambda: callbacks.EarlyStopping("val_loss", patience=1), ""),
    "GradientAccumulationScheduler": (lambda: callbacks.GradientAccumulationScheduler({1: 2}), ""),
    "LambdaCallback": (lambda: callbacks.LambdaCallback(on_train_batch_end=shrink), ""),
    "LearningRateFinder": (lambda: callbacks.LearningRateFinder(), "`trainer.save_checkpoint` is not here"),
    "LearningRateMonitor": (lambda: callbacks.LearningRateMonitor(), ""),
    "ModelPruning": (lambda: callbacks.ModelPruning("l1_unstructured"), "is not the same here"),
    "SpikeDetection": (lambda: callbacks.SpikeDetection(), "is not the same here"),
    "ThroughputMonitor": (lambda: callbacks.ThroughputMonitor(len), "`trainer.fit_loop` is not here"),
    "Timer": (lambda: callbacks.Timer("00:01:00:00"), ""),
    "StochasticWeightAveraging": (lambda: callbacks.StochasticWeightAveraging(0.05), "is not the same here"),
    "WeightAveraging": (lambda: callbacks.WeightAveraging(), ""),
}
# Those that save or show, and that which the next test is about.
OTHERS = _words("""
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
    trainer = peer.trainer_of(case)
    trainer.run()
    expected, actual = peer.by_lightning(case), peer.result_of(trainer)
    assert same(actual.weights, expected.weights) and same(actual.optimizers, expected.optimizers)
    assert series(actual.rows)["val_loss"] == series(expected.rows)["val_loss"]
    cut(case, 2, tmp_path)


class Marked(callbacks.ModelCheckpoint):
    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        raise AssertionError("it is never called")


class Bar(callbacks.TQDMProgressBar):
    def on_train_batch_end(self, *args: Any) -> None:
        raise AssertionError("it is never called")


class Later(callbacks.GradientAccumulationScheduler):
    def get_accumulate_grad_batches(self, epoch: int) -> int:
        return 7


class Patient(callbacks.EarlyStopping):
    """Has settings of its own, and no method."""

    def __init__(self) -> None:
        super().__init__("val_loss", patience=7)

    unused = "of a subclass"


def test_a_subclass_that_only_has_other_settings_is_its_base() -> None:
    graph, _ = setup(Validated(), train_dataloaders=data(), val_dataloaders=val(), callbacks=[Patient()])
    assert graph.nodes["early_stop"].parameters["patience"] == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Marked(), "`_save_checkpoint` of Marked is never called: ModelCheckpoint is the node `checkpoint`"),
        (lambda: Bar(), "`on_train_batch_end` of Bar is never called"),
        (lambda: callbacks.ModelCheckpoint(monitor="loss"), "a second ModelCheckpoint is left"),
    ],
)
def test_a_subclass_that_only_observes_is_named(make: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        setup(Validated(), train_dataloaders=data(), callbacks=[callbacks.ModelCheckpoint(), make()])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Later({0: 2}), "`get_accumulate_grad_batches` of Later is never called: .* `accumulate.every`"),
        (lambda: callbacks.Timer("00:01:00:00", interval="epoch"), 'interval="epoch"'),
    ],
)
def test_a_callback_that_would_train_otherwise_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        setup(Validated(), train_dataloaders=data(), callbacks=[make()])


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
        graph, resources = setup(Base(), train_dataloaders=data(), max_epochs=1, callbacks=[Asks()])
        given = {"run_dir": tmp_path, "device": "cpu", "display": None, "notify": lambda line: None}
        Trainer(graph, **given, **resources).run(until=until)
    assert capsys.readouterr().out == "loaded with None 1\n"
    checkpoint = callbacks.ModelCheckpoint()
    module = Base()
    setup(module, train_dataloaders=data(), callbacks=[checkpoint, Asks()])
    assert module.trainer.checkpoint_callback is checkpoint and len(module.trainer.callbacks) == 2


# ---- overlays


class Named(Validated):
    """Logs `val/loss`, which some overlays follow."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch))


class ManualNamed(modules.Manual):
    validation_step = Named.validation_step


def _tail(model: Any) -> Any:
    return torch.optim.SGD(model.net[4].parameters(), lr=0.1)


# Parameters and resources that an overlay needs, and what is said; empty where it trains.
NEEDED: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any], str]] = {
    "distill": ({}, {"teacher": torch.nn.Linear(4, 1), "teacher_step": lambda model, batch: model(batch[0])},
        "`training_step` of a LightningModule is given no `teacher_output`"),
    "early_stop": ({"early_stop": {"monitor": "val/loss"}}, {}, ""),
    "plateau": ({}, {"scheduler": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)}, ""),
    "token_windows": ({"train_batch": {"per": "samples"}}, {}, ""),
    "unfreeze": ({}, {"body_optimizer": lambda optimizer: optimizer}, ""),
    "update_bn": ({}, {}, "`swa_model` is read by"),
    "val_guided": ({"guide": {"metric": "guiding/val/loss"}}, {"guiding_data": val()}, ""),
}  # fmt: skip


def overlaid(base: type, name: str, folder: Path | None = None) -> Trainer:
    """A module with an overlay, or several with a plus between them."""
    torch.manual_seed(0)
    graph, resources = setup(base(), train_dataloaders=data(), val_dataloaders=val(), max_epochs=2, log_every_n_steps=1)
    for each in name.split("+"):
        parameters, more, _ = NEEDED.get(each, ({}, {}, ""))
        graph = graph.overlay(each)
        for node, values in parameters.items():
            graph = graph.set(node, **values)
        for key, value in more.items():
            own = key in ("body_optimizer", "scheduler")  # which are made for the module
            made = _tail(resources["model"]) if key == "body_optimizer" else resources["optimizer"]
            resources[key] = value(made) if own else value
    given = {"device": "cpu", "display": None, "notify": lambda line: None, "seed": 1, "run_dir": folder}
    return Trainer(graph.set("checkpoint", every="never"), **given, **resources)


@pytest.mark.parametrize("name", [*sorted(OVERLAYS), "swa+update_bn", "ema+sanity"])
def test_an_overlay_trains_a_module_or_says_why_not(name: str, tmp_path: Path) -> None:
    message = NEEDED.get(name, ({}, {}, ""))[2]
    if message:
        with pytest.raises((GraphError, UsageError), match=message):
            overlaid(Named, name).run()
        return
    trainer = overlaid(Named, name, tmp_path)
    trainer.run()
    assert {"train_loss", "val/loss"} <= {metric for row in trainer.metrics for metric in row}


# On a module that steps its optimizers itself: these train, and others are errors about the nodes that are not there.
OF_MANUAL = ("carry", "early_stop", "ema", "sanity", "save_first", "swa", "swa+update_bn")


@pytest.mark.parametrize("name", OF_MANUAL)
def test_an_overlay_trains_a_module_that_steps_itself(name: str) -> None:
    overlaid(ManualNamed, name).run()


@pytest.mark.parametrize("name", sorted({*OVERLAYS} - {*OF_MANUAL}))
def test_an_overlay_for_other_nodes_names_them(name: str) -> None:
    with pytest.raises((GraphError, UsageError), match=r"there is no |nothing supplies it"):
        overlaid(ManualNamed, name)


class Gathering(Named):
    """Gathers what it validates, with a metric and in a list, and logs it where the validation ends."""

    def __init__(self) -> None:
        super().__init__()
        self.error, self.seen = torchmetrics.MeanSquaredError(), []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.error(self(batch[0]), batch[1])
        self.log("val/error", self.error)
        self.seen.append(self.loss(batch))

    def on_validation_epoch_end(self) -> None:
        self.log("val/seen", torch.stack(self.seen).mean())
        self.seen.clear()


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("base", [Gathering, ManualNamed])
def test_an_average_of_a_module_is_validated_as_the_module_is_and_resumed(base: type, tmp_path: Path) -> None:
    whole, transitions = overlaid(base, "ema"), 0
    while whole.position != "end":
        whole.advance()
        transitions += 1
    average = copy.deepcopy(whole.resources["average"]).eval()
    with torch.no_grad():
        expected = torch.stack([average.loss(batch) for batch in val()]).mean()
    for name in ("val/loss", "val/error", "val/seen") if base is Gathering else ("val/loss",):
        assert whole.metrics[-1][name] == float(expected)
    for where in range(2, transitions, transitions // 6):
        first = overlaid(base, "ema", tmp_path / str(where))
        first.advance(where)
        first.save()
        second = overlaid(base, "ema", tmp_path / str(where))
        second.run()
        assert second.digest() == whole.digest() and second.metrics == whole.metrics


def test_a_check_before_training_is_no_part_of_the_first_validation() -> None:
    plain, checked = overlaid(Named, "carry"), overlaid(Named, "sanity")
    plain.run()
    checked.run()
    assert "sanity/val/loss" in checked.metrics[0]
    assert [row["val/loss"] for row in checked.metrics if "val/loss" in row] == [
        row["val/loss"] for row in plain.metrics if "val/loss" in row
    ]
    with pytest.raises(UsageError, match="`sanity` calls no hook, so not on_validation_epoch_end"):
        overlaid(Gathering, "sanity").run()


class SomeWithoutLoss(Named):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)


def test_sharpness_aware_minimization_passes_batches_without_a_loss() -> None:
    trainer = overlaid(SomeWithoutLoss, "sam")
    trainer.run()
    assert trainer.progress["step"]["steps"] == 10


# ---- forms of Lightning 1


class ByNumber(Base):
    """Its steps take the number of the batch by a name of their own."""

    def training_step(self, batch: Any, batch_nb: int) -> Any:
        return self.loss(batch) * (1 + batch_nb)

    def validation_step(self, batch: Any, batch_nb: int) -> None:
        self.log("val/number", float(batch_nb))

    def test_step(self, batch: Any, batch_nb: int) -> None:
        self.log("test/number", float(batch_nb))

    def predict_step(self, batch: Any, batch_nb: int) -> Any:
        return torch.full((len(batch[0]),), batch_nb)

    test_dataloader = predict_dataloader = lambda self: val()


def test_a_number_of_the_batch_has_any_name_in_every_stage(tmp_path: Path) -> None:
    trainer = run(ByNumber(), val_dataloaders=val())
    assert [row["val/number"] for row in trainer.metrics if "val/number" in row] == [0.5]
    graph, resources = setup(ByNumber(), stage="test")
    given = {"device": "cpu", "display": None, "notify": lambda line: None}
    tester = Trainer(graph, **given, **resources)
    tester.run()
    assert tester.metrics[-1]["test/number"] == 0.5
    graph, resources = setup(ByNumber(), stage="predict")
    Trainer(graph, predictions_file=str(tmp_path / "out.jsonl"), **given, **resources).run()
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 16
