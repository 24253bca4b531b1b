"""What `module.trainer` of a LightningModule is here: counters, what is logged, and what else modules ask of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torchmetrics import Metric

from graphtrain import Histogram, Image, RunLogger, Text, UsageError

STAGES = {"train": "training", "validate": "validating", "test": "testing", "predict": "predicting"}
_REDUCTIONS: dict[str, Callable[..., Any]] = {"mean": torch.add, "sum": torch.add, "max": torch.max, "min": torch.min}

# What a module asks of Lightning's Trainer, and what does it here.
_HERE = {
    "fit": "`graphtrain.Trainer(graph, **resources).run()`",
    "fit_loop": "the graph, whose position and counters are in `graphtrain.Trainer.progress`",
    "validate": "the node `validate`",
    "test": "the graph `test`",
    "predict": "the graph `predict`",
    "save_checkpoint": "the node `checkpoint`",
    "checkpoint_callback": "the node `checkpoint`",
    "checkpoint_callbacks": "the node `checkpoint`",
    "early_stopping_callback": "the node `early_stop`",
    "early_stopping_callbacks": "the node `early_stop`",
    "profiler": "`graphtrain render --seconds --run-dir RUN`",
    "scaler": "the node `unscale` of the overlay `fp16`",
    "val_check_batch": "the guard `val_check_batch`",
    "num_sanity_val_batches": "the overlay `sanity`",
    "distributed_sampler_kwargs": "`graphtrain.Loader`, whose batches are divided among processes",
    "init_module": '`with torch.device("cuda"):`, around what makes the module',
    **dict.fromkeys(("validate_loop", "test_loop", "predict_loop"), "the graphs `evaluate`, `test` and `predict`"),
    **dict.fromkeys(("accelerator", "device_ids"), "`graphtrain.Trainer(..., device=...)`"),
}

# What Lightning's Trainer has as attributes of the names of its arguments, with what None stands for.
_FLAGS: dict[str, Any] = {
    **dict.fromkeys(("max_epochs", "max_steps", "min_epochs", "min_steps", "accumulate_grad_batches", "fast_dev_run")),
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm", "check_val_every_n_epoch", "overfit_batches")),
    **dict.fromkeys(("reload_dataloaders_every_n_epochs", "barebones", "enable_autolog_hparams")),
    **dict.fromkeys((f"limit_{stage}_batches" for stage in ("train", "val", "test", "predict")), 1.0),
    **{"log_every_n_steps": 50, "precision": "32-true", "val_check_interval": 1.0, "default_root_dir": "."},
    "num_sanity_val_steps": 0,
}


def base_of(owner: Any, *names: str) -> type | None:
    """The class of Lightning that an object extends, which the package pytorch_lightning has too; None if none."""
    bases = (base for base in type(owner).__mro__ if base.__name__ in names)
    return next((base for base in bases if base.__module__.startswith(("lightning.", "pytorch_lightning."))), None)


def overridden(owner: Any, name: str) -> bool:
    """True if a module, a datamodule or a callback has its own method of a name."""
    own = inspect.unwrap(getattr(owner, name, None))  # type: ignore[arg-type]
    theirs = getattr(base_of(owner, "LightningModule", "LightningDataModule", "Callback"), name, None)
    own = own.func if isinstance(own, functools.partial) else own
    return callable(own) and getattr(own, "__code__", own) is not getattr(theirs, "__code__", None)


class Logged:
    """What a stage has logged since its epoch began: for each hook, name and loader the last value and the reduced one.

    Values and their bits are those of Lightning: sums in the type of the values, a mean by the samples of the batches.
    """

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str, int | None], dict[str, Any]] = {}

    def add(
        self, key: tuple[str, str, int | None], value: Any, samples: Callable[[], int], how: dict[str, Any]
    ) -> None:
        """Add a value: a tensor, or a metric of torchmetrics, of which `metric` of `how` is the name."""
        entry = self.entries.setdefault(key, {**how, "now": None, "total": None, "samples": 0})
        if any(entry[name] != how[name] for name in ("reduce", "on_step", "on_epoch")):
            raise UsageError(f"`self.log({key[1]!r}, ...)` was called with different arguments in `{key[0]}`")
        if isinstance(value, Metric):
            entry["now"] = value._forward_cache
            return
        value = value if value.dtype in (torch.float32, torch.float64) else value.to(torch.get_default_dtype())
        entry["now"] = value.clone() if how["on_step"] else None
        if not how["on_epoch"]:
            return
        reduction = how["reduce"]
        if reduction == "mean":
            size = samples()
            value, entry["samples"] = value * size, entry["samples"] + size
        if entry["total"] is None:
            first = {"max": -torch.inf, "min": torch.inf}.get(reduction, 0.0)
            entry["total"] = torch.tensor(first, device=value.device)
        entry["total"] = _REDUCTIONS[reduction](entry["total"], value)

    def values(self, module: LightningModule, *, on_step: bool) -> Iterator[tuple[str, str, Any, bool]]:
        """The name, the name in rows, the value and whether loggers get it: the last ones, or those of the epoch."""
        loaders = [*dict.fromkeys(loader for _, _, loader in self.entries)]
        for (_, name, loader), entry in sorted(self.entries.items(), key=lambda item: loaders.index(item[0][2])):
            if not entry["on_step" if on_step else "on_epoch"]:
                continue
            value = entry["now"] if on_step else _reduced(module, entry)
            if value is None:
                continue
            suffix = f"/dataloader_idx_{loader}" if loader is not None and entry["suffix"] else ""
            forked = f"_{'step' if on_step else 'epoch'}" if entry["on_step"] and entry["on_epoch"] else ""
            yield f"{name}{suffix}", f"{name}{forked}{suffix}", value.detach(), entry["logger"]

    def reset(self, module: LightningModule) -> None:
        """Forget everything; metrics of torchmetrics begin again."""
        for entry in self.entries.values():
            if entry["metric"] is not None:
                module.get_submodule(entry["metric"]).reset()
        self.entries = {}


def _reduced(module: LightningModule, entry: Mapping[str, Any]) -> Any:
    if entry["metric"] is not None:
        return module.get_submodule(entry["metric"]).compute()
    return entry["total"] / torch.tensor(entry["samples"]) if entry["reduce"] == "mean" else entry["total"]


def _without_graph(output: Any) -> Any:
    if isinstance(output, Mapping):
        return {name: _without_graph(value) for name, value in output.items()}
    return output.detach() if isinstance(output, torch.Tensor) else output


def _shows(made: Callable[[Any], Any], argument: str) -> Any:
    """A method that shows what is made of its argument, which has a name."""

    def show(self: Experiment, tag: str, value: Any = None, global_step: Any = None, **named: Any) -> None:
        self._recorder().show({tag: made(named.get(argument, value))})

    return show


class Experiment:
    """What `self.logger.experiment` is: the calls of TensorBoard's writer that rows and texts of a run can hold."""

    def __init__(self, trainer: ModuleTrainer) -> None:
        self._trainer = trainer

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None, **_: Any) -> None:
        """Record a value."""
        self._recorder().row({tag: float(scalar_value)})

    def add_scalars(self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, **_: Any) -> None:
        """Record values, each under `main_tag` and its name."""
        self._recorder().row({f"{main_tag}/{name}": float(value) for name, value in tag_scalar_dict.items()})

    add_text = _shows(Text, "text_string")
    add_image = _shows(lambda image: Image(torch.as_tensor(image)), "img_tensor")
    add_histogram = _shows(lambda values: Histogram(torch.as_tensor(values)), "values")

    def _recorder(self) -> Any:
        if self._trainer.recorder is None:
            raise UsageError("`logger.experiment` records while a step or a hook runs", "call it in one of them")
        return self._trainer.recorder

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"`logger.experiment.{name}` is not here: a run logs by `loggers` of graphtrain.Trainer, of rows, texts, "
            "images and histograms (docs/metrics.md)"
        )


class ModuleLogger:
    """What `self.logger` is where no logger of Lightning is given."""

    name, version, save_dir, log_dir = "graphtrain", 0, ".", "."

    def __init__(self, trainer: ModuleTrainer) -> None:
        self.experiment = Experiment(trainer)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record a row."""
        self.experiment._recorder().row({name: float(value) for name, value in metrics.items()})

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: arguments and parameters are saved with every run."""

    log_graph = save = finalize = watch = log_hyperparams


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

    def close(self) -> None:
        self._logger.save()


class ModuleTrainer:
    """What `module.trainer` is.

    Arguments:
        module: the LightningModule.
        flags: the arguments of Lightning's Trainer.
    """

    is_global_zero, world_size, num_nodes, num_devices, max_time = True, 1, 1, 1, None
    global_rank = local_rank = node_rank = 0
    sanity_checking = is_distributed = interrupted = received_sigterm = False
    progress_bar_callback = ckpt_path = None

    def __init__(self, module: LightningModule, flags: Mapping[str, Any]) -> None:
        self.model = self.lightning_module = module
        arguments = inspect.signature(Trainer).parameters
        given = {name: flags.get(name, arguments[name].default) for name in _FLAGS}
        vars(self).update({name: _FLAGS[name] if value is None else value for name, value in given.items()})
        epochs = -1 if given["max_steps"] != -1 else 1000
        self.max_epochs = given["max_epochs"] if given["max_epochs"] is not None else epochs
        algorithm = given["gradient_clip_algorithm"]
        self.gradient_clip_algorithm = GradClipAlgorithmType(algorithm) if algorithm else None
        self.log_dir = self.default_root_dir
        self.callbacks: list[Any] = []
        nothing: Any = None
        self.datamodule = self.train_dataloader = self.val_dataloaders = self.test_dataloaders = nothing
        self.predict_dataloaders = nothing
        self.num_training_batches = self.estimated_stepping_batches = nothing
        self.num_val_batches, self.num_test_batches, self.num_predict_batches = nothing, nothing, nothing
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[Any] = []
        logger = flags.get("logger", True)
        own = [*logger] if isinstance(logger, list | tuple) else [logger]
        self.loggers = [] if not logger else [ModuleLogger(self) if each is True else each for each in own]
        self.current_epoch = self.global_step = self.batch_index = 0
        self.is_last_batch = self.should_stop = self.epoch_ends = False
        self.closes = False  # while an optimizer evaluates its closure itself
        self.stage, self.runs = "train", TrainerFn.FITTING
        self.loader = self.batch = nothing
        self.results = {stage: Logged() for stage in STAGES}
        self.known_metrics: dict[str, Any] = {}  # of Lightning's callbacks
        self.logged_metrics: dict[str, Any] = {}
        # Of the epoch, for a module that has `*_epoch_end` of Lightning 1.
        self.outputs: dict[str, list[Any]] = {stage: [] for stage in STAGES}
        self.output = self.answer = nothing  # of the step, and of the hook, that was called last
        self.losses: list[int] = [0, 0]  # batches of the epoch, and those with a loss
        self.recorder: Any = None  # while a step or a hook runs

    def __deepcopy__(self, memory: object) -> ModuleTrainer:
        return self  # an average of the module logs where the module does

    # Lightning's own methods of a module ask these for what is here.
    strategy = precision_plugin = _results = _logger_connector = _accelerator_connector = property(lambda self: self)
    training = property(lambda self: self.stage == "train")
    validating = property(lambda self: self.stage == "validate")
    testing = property(lambda self: self.stage == "test")
    predicting = property(lambda self: self.stage == "predict")
    evaluating = property(lambda self: self.stage in ("validate", "test"))
    enable_validation = property(lambda self: self.val_dataloaders is not None)
    state = property(lambda self: TrainerState(TrainerStatus.RUNNING, self.runs, RunningStage(self.stage)))
    owners = property(lambda self: [*self.callbacks, *filter(None, [self.datamodule])])  # of hooks, beside the module
    progress_bar_metrics = property(lambda self: self.logged_metrics)
    logger = property(lambda self: self.loggers[0] if self.loggers else None)
    root_device = property(lambda self: self.model.device)

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """What was logged, with the values of this batch, or of the epoch where that ends."""
        if self.epoch_ends or self.training:
            self.row(self.stage, on_step=not self.epoch_ends)
        return self.known_metrics

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        here = _HERE.get(name, "the graph (docs/coming-from-lightning.md has every name)")
        raise AttributeError(f"`trainer.{name}` is not here: what does it is {here}")

    # ---- logging

    def should_reset_tensors(self, fx: str) -> bool:
        """False: what is logged is forgotten where its epoch ends."""
        return False

    def reduce(self, value: Any = None, *_: Any, **__: Any) -> Any:
        """The value itself: there is one process."""
        return value

    all_gather = broadcast = barrier = reduce
    print = staticmethod(print)

    def log(self, fx: str, name: str, value: Any, **options: Any) -> None:
        """What `self.log` of a module ends in, with every option of it.

        Raises:
            UsageError: the reduction is none of mean, sum, max and min.
        """
        reduce = options["reduce_fx"]
        reduce = {"avg": "mean"}.get(reduce, reduce) if isinstance(reduce, str) else getattr(reduce, "__name__", "")
        if reduce not in _REDUCTIONS and not isinstance(value, Metric):
            raise UsageError(
                f"self.log({name!r}): reduce_fx is {options['reduce_fx']!r}", 'use "mean", "sum", "max" or "min"'
            )
        how = {key: options[key] for key in ("on_step", "on_epoch", "logger")}
        how |= {"reduce": reduce, "suffix": options["add_dataloader_idx"], "metric": None}
        if isinstance(value, Metric):
            how["metric"] = options["metric_attribute"]
        else:
            value = value if options["enable_graph"] else value.detach()
        self.results[self.stage].add((fx, name, self.loader), value, lambda: self._samples(options["batch_size"]), how)

    def _samples(self, given: int | None) -> int:
        if given is not None or self.batch is None:
            return given or 1
        return int(extract_batch_size(self.batch))

    def row(self, stage: str, *, on_step: bool) -> dict[str, float]:
        """The last values of what is logged `on_step`, or what an epoch comes to; they become callback metrics."""
        row = {}
        for name, own, value, is_logged in self.results[stage].values(self.model, on_step=on_step):
            self.known_metrics |= {name: value.clone(), own: value.clone()}  # each may be changed in place
            if is_logged:
                row[own], self.logged_metrics[own] = value, value.clone()
        return {name: float(value) for name, value in row.items()}

    # ---- optimizers

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        wrapped: list[Any] = [LightningOptimizer(optimizer) for optimizer in self.optimizers]
        for optimizer in wrapped:
            optimizer._strategy = self
        return wrapped

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """What a step of `self.optimizers()` ends in, and that of an overridden `optimizer_step`."""
        manual = not self.model.automatic_optimization

        def stepping() -> Any:
            loss = closure()
            if manual or self.closes:
                self.call("on_before_optimizer_step", optimizer)
            if self.closes:
                self.clip(optimizer)
            return loss

        result = optimizer.step(closure=stepping, **kwargs)
        self.global_step += manual
        return result

    def backward(self, loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """What `manual_backward` ends in."""
        self.call("on_before_backward", loss)
        self.model.backward(loss, *args, **kwargs)
        self.call("on_after_backward")

    def clip(self, optimizer: Any) -> None:
        """Call `configure_gradient_clipping` of the module."""
        value, algorithm = self.gradient_clip_val, self.gradient_clip_algorithm
        self.model.configure_gradient_clipping(optimizer, gradient_clip_val=value, gradient_clip_algorithm=algorithm)

    def clip_gradients(self, optimizer: Any, value: float = 0.0, algorithm: Any = GradClipAlgorithmType.NORM) -> None:
        """What `clip_gradients` of a module ends in."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if value and algorithm == GradClipAlgorithmType.VALUE:
            torch.nn.utils.clip_grad_value_(parameters, value)
        elif value:
            torch.nn.utils.clip_grad_norm_(parameters, value)

    # ---- calls

    def at(self, stage: str, epoch: int, step: int, batch_index: int = 0, *, is_last: bool = False) -> None:
        """Note where the run is."""
        self.stage, self.current_epoch, self.global_step = stage, epoch, step
        self.batch_index, self.is_last_batch = batch_index, is_last

    def calls(self, hook: str) -> bool:
        """True if the module or a callback has a hook of its own, or the datamodule its `teardown`."""
        owners = self.owners if hook == "teardown" else self.callbacks
        return any(overridden(owner, hook) for owner in (*owners, self.model))

    def call(self, hook: str, *args: Any) -> Any:
        """Call a hook of callbacks, then that of the module; returns what that returns."""
        before, self.model._current_fx_name = self.model._current_fx_name, hook
        try:
            if hook == "teardown" and self.datamodule is not None:
                self.datamodule.teardown(*args)
            for callback in self.callbacks:
                if overridden(callback, hook):
                    getattr(callback, hook)(self, self.model, *args)
            return getattr(self.model, hook)(*args) if overridden(self.model, hook) else None
        finally:
            self.model._current_fx_name = before

    def step(self, model: Any, name: str, batch: Any, batch_index: int, loader: int | None, recorder: Any) -> Any:
        """Call a step of the module with as many arguments as it takes, by position."""
        function = getattr(model, name)
        args = [batch]
        if is_param_in_hook_signature(function, "batch_idx", min_args=2):
            args.append(batch_index)
        if loader is not None and is_param_in_hook_signature(function, "dataloader_idx", min_args=3):
            args.append(loader)
        self.loader, self.batch, self.recorder, model._current_fx_name = loader, batch, recorder, name
        try:
            output = function(*args)
            end = getattr(model, f"{name}_end", None)  # of Lightning 1
            output = end(output) if callable(end) else output
            if callable(getattr(model, f"{name.removesuffix('_step')}_epoch_end", None)) and output is not None:
                self.outputs[self.stage].append(_without_graph(output))
            return output
        finally:
            self.loader = self.recorder = model._current_fx_name = None

    def end_epoch(self, stage: str, recorder: Any) -> dict[str, float]:
        """Call `*_epoch_end` of Lightning 1, where the module has it; returns the row of the epoch, which is over."""
        word = {"train": "training", "validate": "validation"}.get(stage, stage)
        end = getattr(self.model, f"{word}_epoch_end", None)
        if callable(end):
            hook = "train" if stage == "train" else word
            self.batch, self.recorder, self.model._current_fx_name = None, recorder, f"on_{hook}_epoch_end"
            end(self.outputs[stage])
            self.outputs[stage] = []
            self.recorder = self.model._current_fx_name = None
        row = self.row(stage, on_step=False)
        self.results[stage].reset(self.model)
        return row
