"""The stand-in for `module.trainer` of a LightningModule: counters, logged values, and what else modules read of it."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import Precision
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torchmetrics import Metric

from graphtrain import Histogram, Image, RunLogger, Text, UsageError
from graphtrain.adapters.lightning_flags import EQUIVALENTS, FLAGS

# Stage -> its word in the names of steps.
STAGES = {"train": "training", "validate": "validation", "test": "test", "predict": "predict"}

# Reduction -> how two values are joined, and the initial value.
_REDUCTIONS: dict[str, tuple[Callable[..., Any], float]] = {
    **dict.fromkeys(("mean", "sum"), (torch.add, 0.0)),
    **{"max": (torch.max, -torch.inf), "min": (torch.min, torch.inf)},
}

# Argument of Lightning's Trainer -> the value that None stands for.
_UNSET: dict[str, Any] = {
    **dict.fromkeys((f"limit_{stage}_batches" for stage in ("train", "val", "test", "predict")), 1.0),
    **{"log_every_n_steps": 50, "precision": "32-true", "val_check_interval": 1.0, "default_root_dir": "."},
    "num_sanity_val_steps": 0,
}


_NOTHING: Any = None  # of an attribute without a value yet


def base_of(owner: Any, *names: str) -> type | None:
    """The class of one of these names, of lightning or pytorch_lightning, that an object extends; None if none."""
    bases = (base for base in type(owner).__mro__ if base.__name__ in names)
    return next((base for base in bases if base.__module__.startswith(("lightning.", "pytorch_lightning."))), None)


def overridden(owner: Any, name: str) -> bool:
    """True if a module, a datamodule or a callback overrides a method; False for None."""
    method = inspect.unwrap(getattr(owner, name, None))  # type: ignore[arg-type]
    inherited = getattr(base_of(owner, "LightningModule", "LightningDataModule", "Callback"), name, None)
    method = method.func if isinstance(method, functools.partial) else method
    return callable(method) and getattr(method, "__code__", method) is not getattr(inherited, "__code__", None)


def listed(value: Any) -> list[Any]:
    """A list of what may be one value, several or None."""
    return [*value] if isinstance(value, list | tuple) else [] if value is None else [value]


class Logged:
    """What a stage logged since its epoch began: by hook, name and loader, the last value and the reduced one.

    Values and their bits are those of Lightning: sums in the type of the values, a mean by the samples of the batches.
    """

    def __init__(self, trainer: ModuleTrainer) -> None:
        self.trainer = trainer
        self.entries: dict[tuple[str, str, int | None], dict[str, Any]] = {}

    def log(self, fx: str, name: str, value: Any, **options: Any) -> None:
        """Record a value: `self.log` of a module calls this, with all options.

        Raises:
            UsageError: the reduction is not mean, sum, max or min, or the name was logged with other options before.
        """
        reduce = options["reduce_fx"]
        reduce = {"avg": "mean"}.get(reduce, reduce) if isinstance(reduce, str) else getattr(reduce, "__name__", "")
        if reduce not in _REDUCTIONS and not isinstance(value, Metric):
            message = f"self.log({name!r}): reduce_fx is {options['reduce_fx']!r}"
            raise UsageError(message, 'use "mean", "sum", "max" or "min"')
        fixed = {key: options[key] for key in ("on_step", "on_epoch", "logger", "add_dataloader_idx")}
        fixed |= {"reduce": reduce, "metric": options["metric_attribute"] if isinstance(value, Metric) else None}
        key = (fx, name, self.trainer.loader)
        # The samples of what is no mean are 1, by which the total is divided.
        initial = {"now": None, "total": None, "samples": 0 if reduce == "mean" else 1}
        entry = self.entries.setdefault(key, {**fixed, **initial})
        if any(entry[option] != fixed[option] for option in ("reduce", "on_step", "on_epoch")):
            raise UsageError(f"`self.log({name!r}, ...)` was called with different arguments in `{fx}`")
        if isinstance(value, Metric):
            entry["now"] = value._forward_cache
            return
        is_float = value.dtype in (torch.float32, torch.float64)
        entry["now"] = value = value if is_float else value.to(torch.get_default_dtype())
        if entry["on_epoch"]:
            if reduce == "mean":
                batch = self.trainer.batch
                size = options["batch_size"] or (1 if batch is None else int(extract_batch_size(batch)))
                value, entry["samples"] = value * size, entry["samples"] + size
            join, first = _REDUCTIONS[reduce]
            total = torch.tensor(first, device=value.device) if entry["total"] is None else entry["total"]
            entry["total"] = join(total, value)

    def row(self, *, on_step: bool, only: int | None = None) -> dict[str, float]:
        """The last values of what is logged `on_step`, of a loader, or the means of an epoch; also callback metrics."""
        trainer, row = self.trainer, {}
        for (_, name, loader), entry in self.entries.items():
            if not entry["on_step" if on_step else "on_epoch"] or (on_step and loader != only):
                continue
            if on_step:
                value = entry["now"]
            elif entry["metric"] is not None:
                value = trainer.model.get_submodule(entry["metric"]).compute()
            else:
                value = entry["total"] / torch.tensor(entry["samples"])
            if value is None:
                continue
            suffix = f"/dataloader_idx_{loader}" if loader is not None and entry["add_dataloader_idx"] else ""
            forked = f"_{'step' if on_step else 'epoch'}" if entry["on_step"] and entry["on_epoch"] else ""
            names = f"{name}{suffix}", f"{name}{forked}{suffix}"
            # Each may be changed in place.
            trainer.known_metrics |= {each: value.detach().clone() for each in names}
            if entry["logger"]:
                row[names[1]], trainer.logged_metrics[names[1]] = float(value), value.detach().clone()
        return row

    def reset(self) -> None:
        """Clear everything, and reset metrics of torchmetrics."""
        for metric in filter(None, (entry["metric"] for entry in self.entries.values())):
            self.trainer.model.get_submodule(metric).reset()
        self.entries = {}


def _shows(convert: Callable[[Any], Any], argument: str) -> Any:
    """A method that passes one of its arguments, converted, to `recorder.show`."""

    def show(self: Experiment, tag: str, value: Any = None, global_step: Any = None, **named: Any) -> None:
        self._recorder().show({tag: convert(named.get(argument, value))})

    return show


class Experiment(Logger):  # type: ignore[misc]
    """`self.logger` and its `experiment`, unless a logger of Lightning is passed.

    It has the calls of TensorBoard's writer that rows, texts, images and histograms of a run can hold.
    """

    name, version, save_dir, log_dir = "graphtrain", 0, ".", "."
    experiment = property(lambda self: self)

    def __init__(self, trainer: ModuleTrainer) -> None:
        self._trainer = trainer

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record a row."""
        self._recorder().row({name: float(value) for name, value in metrics.items()})

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: arguments and parameters are saved with every run."""

    watch = log_hyperparams

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None, **_: Any) -> None:
        """Record a value."""
        self.log_metrics({tag: scalar_value})

    def add_scalars(self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, **_: Any) -> None:
        """Record values, each under `main_tag` and its name."""
        self.log_metrics({f"{main_tag}/{name}": value for name, value in tag_scalar_dict.items()})

    add_text = _shows(Text, "text_string")
    add_image = _shows(lambda image: Image(torch.as_tensor(image)), "img_tensor")
    add_histogram = _shows(lambda values: Histogram(torch.as_tensor(values)), "values")

    def _recorder(self) -> Any:
        if self._trainer.recorder is None:
            raise UsageError("`logger.experiment` records while a step or a hook runs", "call it in one of them")
        return self._trainer.recorder

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"`logger.experiment.{name}` is not supported: loggers of a run receive rows, texts, images and histograms "
            "(docs/metrics.md)"
        )


class RowsFor(RunLogger):
    """Passes the rows of a run to a logger of Lightning, or anything that has `log_metrics`, `save` and `finalize`."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def begin(self, beginning: Any) -> None:
        """Nothing: a logger of Lightning begins by its first row."""

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        self._logger.log_metrics({name: value for name, value in metrics.items() if name != "step"}, step)

    def flush(self) -> None:
        self._logger.save()

    def ended(self, state: str, error: BaseException | None) -> None:
        self._logger.finalize("failed" if state == "failed" else "success")

    close = flush


def _of_class(name: str) -> Any:
    """A property: the callbacks that are of a class of Lightning."""
    return property(lambda self: [each for each in self.callbacks if base_of(each, name) is not None])


def trainer_of(model: Any) -> ModuleTrainer:
    """The trainer of a module; a copy, such as an average of the weights, has that of the module."""
    if model._trainer is None:  # which Lightning leaves out of a copy
        model.trainer = model._module_trainer
    trainer: ModuleTrainer = model.trainer
    return trainer


class ModuleTrainer:
    """The stand-in for Lightning's Trainer.

    Arguments:
        module: the LightningModule.
        datamodule: has its data, or None.
        flags: the arguments of Lightning's Trainer, each of which is an attribute.
        stage: "fit", "test" or "predict".
    """

    is_global_zero, world_size, num_nodes, num_devices = True, 1, 1, 1
    global_rank = local_rank = node_rank = 0
    sanity_checking = is_distributed = interrupted = received_sigterm = False
    max_epochs: Any
    gradient_clip_algorithm: Any
    fixed: Collection[str] = ()
    progress_bar_callback = ckpt_path = train_dataloader = val_dataloaders = test_dataloaders = _NOTHING
    predict_dataloaders = num_training_batches = _NOTHING
    estimated_stepping_batches = Trainer.estimated_stepping_batches

    def __init__(self, module: Any, datamodule: Any, flags: Mapping[str, Any], stage: str) -> None:
        self.model = module
        self.datamodule, self.runs, self.stage = datamodule, TrainerFn(stage), "train"
        defaults = {name: each.default for name, each in inspect.signature(Trainer).parameters.items()}
        for name, value in {**defaults, **flags}.items():
            if name not in EQUIVALENTS and not hasattr(type(self), name):
                setattr(self, name, _UNSET.get(name) if value is None else value)
        if self.max_epochs is None:
            self.max_epochs = -1 if self.max_steps != -1 else 1000
        if self.gradient_clip_algorithm:
            self.gradient_clip_algorithm = GradClipAlgorithmType(self.gradient_clip_algorithm)
        self.log_dir, self.precision_plugin = self.default_root_dir, Precision()
        for each in ("val", "test", "predict"):
            setattr(self, f"num_{each}_batches", [])
        self.callbacks: list[Any] = []  # but for those that only show something
        self.called: list[Any] = []  # those of them whose hooks are called
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[Any] = []
        loggers = listed(flags.get("logger", True))
        self.loggers = [Experiment(self) if each is True else each for each in loggers if each]
        self.current_epoch = self.global_step = self.batch_index = 0
        self.is_last_batch = self.should_stop = False
        self.results = {stage: Logged(self) for stage in STAGES}
        self.known_metrics: dict[str, Any] = {}  # of Lightning's callbacks
        self.logged_metrics: dict[str, Any] = {}
        self.output = _NOTHING  # of the step that was called last
        self.recorder = self.batch = self.loader = _NOTHING  # while a step or a hook runs
        self.fixed = {*FLAGS}  # what the graph has, so setting it would change nothing
        module._module_trainer = self
        for owner in (datamodule, module):
            if owner is not None:
                owner.trainer = self

    def row_loggers(self) -> list[RowsFor]:
        """The loggers that were given, as those of a run."""
        return [RowsFor(logger) for logger in self.loggers if not isinstance(logger, Experiment)]

    def __deepcopy__(self, memory: object) -> ModuleTrainer:
        return self  # an average of the module logs where the module does

    def __reduce__(self) -> Any:
        return type(None), ()  # a module that is pickled has none

    # Lightning's own methods of a module read these: there is one process, and what its epoch has logged.
    strategy = _logger_connector = _accelerator_connector = property(lambda self: self)
    reduce = all_gather = broadcast = barrier = reduce_boolean_decision = staticmethod(
        lambda value=None, *_, **__: value
    )
    should_reset_tensors = staticmethod(lambda fx: False)
    _results = property(lambda self: self.results[self.stage])
    _lightning_optimizers = property(
        lambda self: [LightningOptimizer._to_lightning_optimizer(each, self) for each in self.optimizers]
    )
    print = staticmethod(print)
    training = property(lambda self: self.stage == "train")
    validating = property(lambda self: self.stage == "validate")
    testing = property(lambda self: self.stage == "test")
    predicting = property(lambda self: self.stage == "predict")
    evaluating = property(lambda self: self.stage in ("validate", "test"))
    enable_validation = property(lambda self: self.val_dataloaders is not None)
    state = property(lambda self: TrainerState(TrainerStatus.RUNNING, self.runs, RunningStage(self.stage)))
    owners = property(lambda self: [*self.called, *([] if self.datamodule is None else [self.datamodule])])
    lightning_module = property(lambda self: self.model)
    checkpoint_callbacks, early_stopping_callbacks = _of_class("Checkpoint"), _of_class("EarlyStopping")
    checkpoint_callback = property(lambda self: next(iter(self.checkpoint_callbacks), None))
    early_stopping_callback = property(lambda self: next(iter(self.early_stopping_callbacks), None))
    progress_bar_metrics = property(lambda self: self.logged_metrics)
    logger = property(lambda self: self.loggers[0] if self.loggers else None)
    root_device = property(lambda self: self.model.device)

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """What was logged, with the values of this batch, or of the epoch where that ends."""
        hook = self.model._current_fx_name or ""
        ends = hook.endswith("_end") and "_batch_" not in hook
        if ends or self.training:
            self._results.row(on_step=not ends)
        return self.known_metrics

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.fixed:
            raise AttributeError(f"`trainer.{name}` cannot be set: edit the graph (docs/coming-from.md has the names)")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        equivalent = EQUIVALENTS.get(name, "the graph (docs/coming-from.md has the names)")
        raise AttributeError(f"`trainer.{name}` is not supported; its equivalent is {equivalent}")

    # ---- optimizers

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Take a step: called by `self.optimizers()`, and by an overridden `optimizer_step`."""
        is_manual = not self.model.automatic_optimization

        def stepping() -> Any:
            loss = closure()
            if is_manual:
                self.call("on_before_optimizer_step", optimizer)
            return loss

        output = optimizer.step(closure=stepping, **kwargs)
        if is_manual and self.model._current_fx_name == "training_step":
            self.count()
        return output

    def count(self, *_: Any) -> None:
        """Count a step of an optimizer, where Lightning counts it."""
        self.global_step += 1

    @property
    def is_accumulating(self) -> bool:
        """True if a window is open after this batch."""
        return bool((self.batch_index + 1) % self.accumulate_grad_batches) and not self.is_last_batch

    def stops(self, *, epochs: int = 0, steps: int = 0) -> bool:
        """True if `should_stop` ends the training, with so many epochs and steps more than are counted yet."""
        if not self.should_stop or self.runs != TrainerFn.FITTING:
            return False
        enough_epochs = self.current_epoch + epochs >= (self.min_epochs or 0)
        return enough_epochs and self.global_step + steps >= (self.min_steps or 0)

    def backward(self, loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Run backward: called by `manual_backward`."""
        self.call("on_before_backward", loss)
        self.model.backward(loss, *args, **kwargs)
        self.call("on_after_backward")

    # ---- calls

    @contextlib.contextmanager
    def during(self, name: str, **now: Any) -> Iterator[None]:
        """Set these attributes while a step or a hook runs, under whose name it logs."""
        before = {each: getattr(self, each) for each in now}
        vars(self).update(now)
        model, outer = self.model, self.model._current_fx_name
        model._current_fx_name = name
        try:
            yield
        finally:
            vars(self).update(before)
            model._current_fx_name = outer

    def owners_of(self, hook: str) -> list[Any]:
        """The objects that override a hook: callbacks, the module, and for `teardown` the datamodule.

        Callbacks that follow a metric see what the module logs where an epoch ends.
        """
        followed = ("EarlyStopping", "Checkpoint") if hook == "on_train_epoch_end" else ()
        last = [each for each in self.called if base_of(each, *followed) is not None]
        first = [each for each in self.called if each not in last]
        owners = [self.datamodule if hook == "teardown" else None, *first, self.model, *last]
        return [owner for owner in owners if overridden(owner, hook)]

    def call(self, hook: str, *args: Any, **now: Any) -> Any:
        """Call a hook of all objects that override it; returns what the last one returns: the module, if it does."""
        answer = None
        with self.during(hook, **now):
            for owner in self.owners_of(hook):
                first = () if owner in (self.model, self.datamodule) else (self, self.model)
                answer = getattr(owner, hook)(*first, *args)
        return answer

    def step(self, model: LightningModule, batch: Any, batch_index: int, loader: str, recorder: Any) -> Any:
        """Call the step of the module for this stage, with as many arguments as it takes, by position."""
        word, number = STAGES[self.stage], int(loader) if loader else None
        function, args = getattr(model, f"{word}_step"), [batch]
        if is_param_in_hook_signature(function, "batch_idx", min_args=2):
            args.append(batch_index)
        if number is not None and is_param_in_hook_signature(function, "dataloader_idx", min_args=3):
            args.append(number)
        with self.during(f"{word}_step", model=model, batch=batch, loader=number, recorder=recorder):
            return function(*args)

    def end_epoch(self, stage: str, recorder: Any) -> dict[str, float]:
        """Record and return what has been logged for the epoch."""
        row = self.results[stage].row(on_step=False)
        self.results[stage].reset()
        if row:
            recorder.row(row)
        return row
