"""The step functions and the kinds of node that call a LightningModule, where `fit` has no kind that does."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from graphtrain import STOP, CallsTrainingStep, StepFunction, Trigger, UsageError, node, progress, put_back
from graphtrain.adapters.lightning_trainer import Logged, listed, overridden, trainer_of

# ---- step functions


def training_step(
    model: Any, batch: Any, batch_index: int, epoch: int, is_last: bool, recorder: Any, teacher_output: Any = None
) -> Any:
    """Call that of the module; a mapping that it returns is passed to `on_train_batch_end`, and not recorded."""
    trainer = model.trainer
    if teacher_output is not None:
        hint = "leave the overlay `distill` out, and run the teacher in `training_step`"
        raise UsageError("`training_step` of a LightningModule receives no `teacher_output`", hint)
    trainer.stage, trainer.current_epoch = "train", epoch
    trainer.batch_index, trainer.is_last_batch = batch_index, is_last
    output = trainer.step(model, batch, batch_index, "", recorder)
    outputs = output if isinstance(output, Mapping) else {"loss": output}
    loss, share = outputs.get("loss"), trainer.accumulate_grad_batches
    trainer.output = {}
    if loss is None and model.automatic_optimization:
        warnings.warn("`training_step` returned None, so this batch trains nothing: return the loss", stacklevel=2)
    if loss is not None:
        divided = loss / share if share > 1 else loss
        trainer.output = {**outputs, "loss": divided.detach()}
        if model.automatic_optimization:
            trainer.call("on_before_backward", divided, batch=batch, recorder=recorder)
    return (loss, STOP) if trainer.stops(steps=int(model.automatic_optimization)) else loss


def evaluation_step(
    model: Any, batch: Any, batch_index: int, stage: str, loader: str, recorder: Any, split: str = "val"
) -> Any:
    """`validation_step`, `test_step` or `predict_step` of the module, whose predictions it returns.

    In an evaluation without the nodes of the module, such as `sanity`, it returns what the step has logged.
    """
    trainer = trainer_of(model)
    trainer.stage = stage
    if split not in _SPLITS:
        if hooks := [hook for hook in dir(model) if hook.startswith("on_validation_") and trainer.owners_of(hook)]:
            if split == "sanity":  # what they clear would be part of the first validation
                raise UsageError(f"`sanity` calls no hook, so not {', '.join(hooks)}", "leave it out, or use --dry-run")
            warnings.warn(f"`{split}` calls no hook, so not {', '.join(hooks)}", stacklevel=2)
        logged = Logged(trainer)
        now = {"results": {stage: logged}, "known_metrics": {}, "logged_metrics": {}}
        with trainer.during("", model=model, **now):
            trainer.step(model, batch, batch_index, loader, recorder)
            row = logged.row(on_step=False)
            logged.reset()
        return row
    trainer.output = trainer.step(model, batch, batch_index, loader, recorder)
    if row := trainer.results[stage].row(on_step=True, only=int(loader) if loader else None):
        recorder.row(row)
    return trainer.output if stage == "predict" else {}


# ---- kinds


class _Asks:
    """What the kinds that end the run, or its epoch, have in common."""

    def setup(self, asks: Any) -> None:
        """Take the call by which they ask for it."""
        self._asks = asks


@node(name="lightning_hook")
class ModuleHook(_Asks):
    """Call a hook: that of the callbacks, then that of the model, a LightningModule.

    Arguments:
        hook: its name.
        of: the classes that have it, as pictures of the graph say; it changes nothing.
        stage: "train", "validate", "test" or "predict". Default: "train".

    Reads:
        epoch: of training. Default: that of the last step.
        is_last: whether the batch is the last of its epoch. Default: that of the last step.
    """

    hook: str = ""
    of: str = ""
    stage: str = "train"

    def __call__(
        self, model: Any, recorder: Any, epoch: int | None = None, is_last: bool | None = None, batch: Any = None,
        batch_index: int = 0, loader: str = "", optimizer: Any = None,
    ) -> None:  # fmt: skip
        trainer, is_of_batch = trainer_of(model), "_batch_" in self.hook
        if is_of_batch and batch is None:
            return
        trainer.stage = self.stage
        if epoch is not None:
            trainer.current_epoch = epoch
        if is_last is not None:
            trainer.is_last_batch = is_last
        steps = ("on_before_optimizer_step", "on_before_zero_grad")
        args: list[Any] = [optimizer] if self.hook in steps else []
        now = {"model": model, "recorder": recorder, "batch": None, "loader": None}
        if self.hook == "on_before_zero_grad":  # Lightning counts the step after it
            now["global_step"] = trainer.global_step - 1
        if is_of_batch:
            now |= {"batch": batch, "loader": int(loader) if loader else None}
            ended = [trainer.output] if self.hook.endswith("end") else []
            args = [*ended, batch, batch_index, *([int(loader)] if loader else [])]
        elif self.hook == "teardown":
            args = [trainer.runs.value]
        with torch.set_grad_enabled(self.stage == "train"):
            answer = trainer.call(self.hook, *args, **now)
        if self.hook == "on_train_batch_start" and answer == -1 and overridden(model, self.hook):
            raise UsageError("`on_train_batch_start` returned -1, which ends no epoch here", "set next_batch.limit")
        if trainer.stops():
            self._asks(STOP)


@node(name="lightning_log", observer=True, synchronises=True)
def log_module(
    model: Any, recorder: Any, optimizer: Any = None, checkpoint_hooks: Any = None, schedulers: Any = None, *,
    every: Trigger = Trigger("50 steps"),  # noqa: B008
) -> None:  # fmt: skip
    """Record what the module has logged `on_step`, the means of other metrics since the last row, and learning rates.

    Arguments:
        every: when to write a row. Default: every 50 steps.
    """
    trainer, means = model.trainer, recorder.means("train")
    groups = [group for each in listed(optimizer) or trainer.optimizers for group in each.param_groups]
    rates = {"lr" if number == 0 else f"lr/{number}": float(group["lr"]) for number, group in enumerate(groups)}
    recorder.row({**means.take("log"), **rates, **trainer.results["train"].row(on_step=True)})


@node(name="lightning_epoch_end", synchronises=True)
class ModuleEpochEnd(_Asks):
    """Record what the module has logged `on_epoch`, and begin to gather it again."""

    def __call__(self, model: Any, recorder: Any) -> None:
        trainer = model.trainer
        trainer.results["train"].row(on_step=True)  # the last values are callback metrics
        trainer.end_epoch("train", recorder)
        if trainer.stops(epochs=1):
            self._asks(STOP)


_SPLITS = {"val": "validate", "test": "test", "predict": "predict"}  # what an evaluation is called -> its stage


@node(name="lightning_end_evaluation", writes="metrics", effects="train", synchronises=True)
def end_evaluation(model: Any, split: str, training_state: dict[str, Any], recorder: Any) -> dict[str, float]:
    """Record what the module has logged in an evaluation, and put training modes and random numbers back."""
    trainer = trainer_of(model)
    with torch.no_grad(), trainer.during("", model=model):
        row: dict[str, float] = trainer.end_epoch(_SPLITS[split], recorder)
    recorder.means(split).take("whole")
    put_back(model, training_state)
    trainer.stage = "train"
    return row


@node(name="lightning_batch", writes="loss", effects="backward")
class ModuleBatch(CallsTrainingStep):
    """Call `training_step`, and `backward` of the model with the loss divided by `window`."""

    def __call__(self, model: Any, batch: Any, training_step: StepFunction, samples: int, window: int = 1) -> Any:
        result = self.result_of(training_step, model, batch)
        if result is None:
            return None
        model.backward(result if window == 1 else result / window)
        self._means.add(result.detach(), samples)
        return result.detach()


@node(name="lightning_step", effects="step")
class ModuleStep:
    """Call `optimizer_step` of the model, with a closure that has run already.

    Guard fields:
        steps: steps taken since the start.

    Raises:
        UsageError: it calls the closure not at all, or again, to compute the gradients once more.
    """

    steps: int = progress(0, adds=1)

    def __call__(self, model: Any, optimizer: Any, epoch: int, batch_index: int, loss: Any = None) -> None:
        calls = itertools.count()

        def closure() -> Any:
            if next(calls):
                raise UsageError(
                    "`optimizer_step` calls its closure twice, and forward and backward have run once, before it",
                    "the overlay `sam` computes gradients twice; other steps need automatic_optimization = False",
                )
            return loss

        model.optimizer_step(epoch, batch_index, model.trainer._lightning_optimizers[0], closure)
        if not next(calls):
            hint = "call `optimizer_closure()` if there is no step; training_step has run before it here"
            raise UsageError("`optimizer_step` did not call its closure", hint)
        model.trainer.count()
        self.steps += 1


@node(name="lightning_clip", effects="clip")
def clip(model: Any, optimizer: Any) -> None:
    """Call `configure_gradient_clipping` of the model."""
    value, algorithm = model.trainer.gradient_clip_val, model.trainer.gradient_clip_algorithm
    model.configure_gradient_clipping(optimizer, gradient_clip_val=value, gradient_clip_algorithm=algorithm)


@node(name="lightning_zero_grad", effects="zero_grad")
def zero_grad(model: Any, optimizer: Any, epoch: int, batch_index: int) -> None:
    """Call `optimizer_zero_grad` of the model, with the counters that Lightning has where a window begins."""
    trainer = model.trainer
    with trainer.during("optimizer_zero_grad", global_step=trainer.global_step - 1):
        model.optimizer_zero_grad(epoch, batch_index - batch_index % trainer.accumulate_grad_batches, optimizer)


@node(name="lightning_model_zero_grad")
def model_zero_grad(model: Any) -> None:
    """Call `on_validation_model_zero_grad` of the model, which clears gradients, unless a window is open."""
    trainer = trainer_of(model)
    if not trainer.is_accumulating:
        trainer.stage = "validate"
        with trainer.during("on_validation_model_zero_grad"):
            trainer.model.on_validation_model_zero_grad()  # that which trains, where an average is evaluated


_EACH_EPOCH = Trigger("1 epochs")


@node(name="lightning_schedule", family="update")
def schedule(
    model: Any, scheduler: Any, *, every: Trigger = _EACH_EPOCH, monitor: str | None = None, strict: bool = True
) -> None:
    """Call `lr_scheduler_step` of the model, with the metric `monitor` if there is one, unless a window is open.

    Raises:
        UsageError: the module has not logged that metric.
    """
    if model.trainer.is_accumulating:
        return
    metrics = model.trainer.callback_metrics if monitor is not None else {}
    if monitor is None or monitor in metrics:
        model.lr_scheduler_step(scheduler, metrics.get(monitor))
    elif strict:
        known = ", ".join(metrics) or "nothing"
        raise UsageError(f"the scheduler follows `{monitor}`, which is not logged", f"the module has logged {known}")


class CheckpointHooks:
    """A resource whose state is what the hooks of saving add to a checkpoint; those of loading get it back."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """What `on_save_checkpoint` adds, and what `state_dict` of callbacks and of the datamodule returns."""
        weights, added = self._added()
        added = {name: value for name, value in added.items() if value is not weights}  # which are those of the model
        if unsaved := [name for name, value in added.items() if not _is_plain(value)]:
            warnings.warn(
                f"on_save_checkpoint adds {', '.join(unsaved)}, which is not plain data, so it is not saved; "
                "on a resume, on_load_checkpoint receives what on_save_checkpoint adds at that time",
                stacklevel=2,
            )
        states = {str(number): owner.state_dict() for number, owner in enumerate(self._trainer.owners)}
        return {"states": states, "added": {name: value for name, value in added.items() if name not in unsaved}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Call the hooks of loading."""
        for owner, owner_state in zip(self._trainer.owners, state["states"].values(), strict=True):
            owner.load_state_dict(owner_state)
        weights, added = self._added()
        self._trainer.call("on_load_checkpoint", {"state_dict": weights, **added, **state["added"]})

    def _added(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The weights of the module, and what the hooks of saving add to the checkpoint that Lightning would save."""
        trainer, model = self._trainer, self._trainer.model
        basis = {"epoch": trainer.current_epoch, "global_step": trainer.global_step, "state_dict": model.state_dict()}
        basis[model.CHECKPOINT_HYPER_PARAMS_KEY] = dict(model.hparams)
        checkpoint = dict(basis)
        trainer.call("on_save_checkpoint", checkpoint)
        added = {name: value for name, value in checkpoint.items() if value is not basis.get(name, self)}
        return basis["state_dict"], added


def _is_plain(value: Any) -> bool:
    if type(value) in (dict, OrderedDict):
        return all(type(key) in (str, int) and _is_plain(each) for key, each in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, torch.Tensor) or type(value) in (bool, int, float, str)
