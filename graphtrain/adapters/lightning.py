"""A LightningModule, unchanged, as a graph and resources.

graph, resources = setup(Module(), datamodule=Data(), max_epochs=5, gradient_clip_val=0.5)
graphtrain.Trainer(graph, run_dir="run", **resources).run()
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.core.optimizer import (
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _configure_schedulers_manual_opt,
)
from lightning.pytorch.trainer.states import TrainerFn
from safetensors.torch import load_file

from graphtrain import STOP, Graph, PlannedRun, UsageError, checkpoint_folder, described
from graphtrain.adapters import lightning_nodes as nodes
from graphtrain.adapters.lightning_flags import CALLBACKS, SHOWN, check_done, check_flags, with_flags
from graphtrain.adapters.lightning_trainer import ModuleLogger, ModuleTrainer, RowsFor, base_of, overridden

_COUNTS = {"epoch": "next_batch.epoch", "step": "step.steps"}
_BATCH = {"epoch": "next_batch.epoch", "batch_index": "next_batch.batch_index"}
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_MOMENTS = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
_STEPS = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}
_LOADERS = {"train": "train_dataloader", "validate": "val_dataloader", "test": "test_dataloader"}

_NEVER = {
    "on_exception": "an exception is raised from `graphtrain.Trainer.run` as it is, so catch it there",
    **dict.fromkeys(
        ("on_sanity_check_start", "on_sanity_check_end"), "the overlay `sanity` is a check before training"
    ),
    **{f"on_{name}": f"since Lightning 2 it is `on_train_{name}`" for name in _MOMENTS[1:5]},
    **dict.fromkeys(("on_pretrain_routine_start", "on_pretrain_routine_end"), "since Lightning 2 it is `on_fit_start`"),
    "tbptt_split_batch": "the overlay `split_batch` splits batches",
}
_OF_LIGHTNING_1 = {
    "optimizer_idx": "leave it out; several optimizers are stepped by `training_step` with automatic_optimization = "
    "False, or by a node each in the graphs `gan` and `yielding`",
    "hiddens": "use the graph `tbptt`, whose step function returns `hidden` and takes it with the next split",
}
_TOOK_THEM = (
    *("training_step", "backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"),
    *("configure_gradient_clipping", "on_before_optimizer_step"),
)


def setup(
    module: LightningModule,
    datamodule: LightningDataModule | None = None,
    *,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    stage: str = "fit",
    ckpt_path: Any = None,
    **trainer_flags: Any,
) -> tuple[Graph, dict[str, Any]]:
    """The graph and the resources of ``Trainer(**trainer_flags).fit(module, datamodule=datamodule)`` of Lightning.

    Arguments:
        module: is not changed; its attribute `trainer` is a stand-in for Lightning's.
        datamodule: has the data. Default: the module has it, or the next arguments.
        train_dataloaders, val_dataloaders: as of `fit`. Default: those of the datamodule, or of the module.
        stage: "fit", or "test" or "predict" for the graphs of these names. Default: "fit".
        ckpt_path: a .ckpt of Lightning whose weights are loaded; nothing in it is unpickled. Default: none.
        trainer_flags: the arguments of Lightning's Trainer; `edits_of` of `lightning_flags` says what each is.

    Raises:
        UsageError: it is no LightningModule, there is no such flag, or there is no data or no optimizer.

    >>> import torch
    >>> class Net(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(2, 1)
    ...     def training_step(self, batch):
    ...         return self.layer(batch).square().mean()
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> graph, resources = setup(Net(), train_dataloaders=[torch.ones(4, 2)] * 3, max_epochs=2)
    >>> graph.check(), graph.nodes["finish"]
    ([], <Node finish: after = "2 epochs">)
    """
    check_flags(trainer_flags)
    check_done(trainer_flags)
    if stage not in ("fit", "test", "predict"):
        raise UsageError(f"stage={stage!r} is no graph of a module", 'use "fit", "test" or "predict"')
    for value, expected in ((module, "LightningModule"), (datamodule, "LightningDataModule")):
        if value is not None and base_of(value, expected) is None:
            hint = f"make one: {value.__name__}(...)" if isinstance(value, type) else ""
            raise UsageError(f"lightning.setup takes a {expected}; got {described(value)}", hint)
    for hook, (name, instead) in itertools.product(_TOOK_THEM, _OF_LIGHTNING_1.items()):
        if name in inspect.signature(getattr(module, hook)).parameters:
            raise UsageError(f"`{hook}` takes `{name}`, which Lightning 2 does not give", instead)
    if getattr(module, "truncated_bptt_steps", 0):
        raise UsageError("`truncated_bptt_steps` is set, which Lightning 2 does not read", _OF_LIGHTNING_1["hiddens"])
    trainer = ModuleTrainer(module, trainer_flags)
    trainer.datamodule, trainer.runs = datamodule, TrainerFn(stage)
    pairs = _callbacks(trainer, trainer_flags.get("callbacks"))
    flags: dict[str, Any] = {**trainer_flags, "callbacks": pairs}
    owners: list[Any] = [owner for owner in (datamodule, module) if owner is not None]
    for owner in owners:
        owner.trainer = trainer
    for owner in owners:
        owner.prepare_data()
    _warn_of_what_is_never_called(trainer)
    if datamodule is not None:
        datamodule.setup(stage)
    for callback in trainer.callbacks:
        callback.setup(trainer, module, stage)
    module.setup(stage)
    if overridden(module, "configure_sharded_model"):
        module.configure_sharded_model()
    module.configure_model()
    if ckpt_path is not None:
        _load_weights(module, ckpt_path)
    if stage in ("test", "predict"):
        graph, resources = _alone(trainer, stage)
    else:
        graph, resources = _fitting(trainer, flags, train_dataloaders, val_dataloaders)
    if given := [RowsFor(logger) for logger in trainer.loggers if not isinstance(logger, ModuleLogger)]:
        resources["loggers"] = given
    return graph, resources


def _warn_of_what_is_never_called(trainer: ModuleTrainer) -> None:
    for owner in (*trainer.owners, trainer.model):
        for hook, here in _NEVER.items():
            if overridden(owner, hook):
                warnings.warn(f"`{hook}` of {type(owner).__name__} is never called: {here}", stacklevel=3)


def _callbacks(trainer: ModuleTrainer, given: Any) -> list[tuple[str, dict[str, Any]]]:
    """Give the trainer the callbacks that run as nodes; returns the others, which are edits, as pairs."""
    callbacks = [*given] if isinstance(given, list | tuple) else [given] if given is not None else []
    own = trainer.model.configure_callbacks()
    own = [*own] if isinstance(own, list | tuple) else [own]
    types = {type(callback) for callback in own}
    callbacks = [callback for callback in callbacks if type(callback) not in types] + own
    pairs = []
    for callback in callbacks:
        known = [base.__name__ for base in type(callback).__mro__]
        name = next((name for name in known if name in CALLBACKS), None)
        if name is not None:
            attributes = {key.removeprefix("_"): value for key, value in vars(callback).items()}
            pairs.append((name, attributes))
        elif not set(known) & set(SHOWN):
            trainer.callbacks.append(callback)
    return pairs


def _load_weights(module: LightningModule, path: Any) -> None:
    """Load the weights of a .ckpt of Lightning.

    Raises:
        UsageError: it holds objects, which only unpickling would make, or no weights.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        weights = checkpoint["state_dict"]
    except Exception as error:
        raise UsageError(
            f"ckpt_path: `{path}` holds no weights that load without running its code ({type(error).__name__})",
            "where the file is trusted, save module.state_dict() with safetensors; --init model=FILE loads that",
        ) from None
    module.on_load_checkpoint(checkpoint)
    module.load_state_dict(weights, strict=module.strict_loading)


def load_from_checkpoint(module_class: type[LightningModule], checkpoint: str | Path, **arguments: Any) -> Any:
    """A module with the weights of a checkpoint of graphtrain, such as ``"RUN/best"``.

    Arguments:
        module_class: its class, which is called with `arguments`.
        checkpoint: the folder of one, or a run and `best` or `newest`.

    Raises:
        UsageError: there is no such checkpoint, or its model has other weights.
    """
    path = checkpoint_folder(str(checkpoint)) / "model.safetensors"
    if not path.is_file():
        raise UsageError(f"there is no `{path}`", "name a checkpoint, as in RUN/best")
    module = module_class(**arguments)
    try:
        module.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise UsageError(f"`{path}` is not of this {module_class.__name__}: {error}") from None
    return module


# ---- data


def _data(trainer: ModuleTrainer, stage: str, given: Any = None) -> Any:
    """The data of a stage: a loader, or a mapping of several; None if there is none."""
    name = _LOADERS.get(stage, "predict_dataloader")
    owners = (owner for owner in (trainer.datamodule, trainer.model) if owner is not None and overridden(owner, name))
    loaders: Any = given if given is not None else next((getattr(owner, name)() for owner in owners), None)
    if hasattr(loaders, "flattened"):  # a CombinedLoader
        loaders = loaders.iterables
    if stage == "train" or not isinstance(loaders, list | tuple) or isinstance(loaders[0], torch.Tensor):
        return loaders
    return {str(number): loader for number, loader in enumerate(loaders)} if len(loaders) > 1 else loaders[0]


def _length(data: Any) -> int | float:
    try:
        return max(map(len, data.values())) if isinstance(data, Mapping) else len(data)
    except TypeError:
        return math.inf


def transfer(trainer: ModuleTrainer) -> Any:
    """What puts a batch on its device by the hooks of the datamodule or the module; None if neither has its own."""
    if not any(
        overridden(owner, name) for owner in (trainer.datamodule, trainer.model) for name in _TRANSFERS if owner
    ):
        return None

    def move(batch: Any, device: Any) -> Any:
        for name in _TRANSFERS:
            data = trainer.datamodule is not None and overridden(trainer.datamodule, name)
            more = (device, 0) if name == "transfer_batch_to_device" else (0,)
            batch = getattr(trainer.datamodule if data else trainer.model, name)(batch, *more)
        return batch

    return move


# ---- step functions


def training_step(model: Any, batch: Any, batch_index: int, epoch: int, step: int, is_last: bool, recorder: Any) -> Any:
    """That of the module; a mapping that it returns has more than metrics, and is for `on_train_batch_end`."""
    trainer = model.trainer
    trainer.at("train", epoch, step, batch_index, is_last=is_last)
    output = trainer.step(model, "training_step", batch, batch_index, None, recorder)
    loss = output.get("loss") if isinstance(output, Mapping) else output
    automatic, share = model.automatic_optimization, trainer.accumulate_grad_batches
    trainer.losses = [trainer.losses[0] + 1, trainer.losses[1] + (loss is not None)]
    more = {name: value for name, value in output.items() if name != "loss"} if isinstance(output, Mapping) else {}
    trainer.output = {} if loss is None else {"loss": loss.detach() / share if share > 1 else loss.detach(), **more}
    if loss is not None and automatic and not trainer.closes:
        trainer.recorder = recorder
        trainer.call("on_before_backward", loss / share if share > 1 else loss)
        trainer.recorder = None
    elif loss is not None and not automatic:
        loss = {"loss": loss.detach()}
    return (loss, STOP) if trainer.should_stop else loss


def evaluation_step(model: Any, batch: Any, batch_index: int, stage: str, loader: str, recorder: Any) -> Any:
    """`validation_step` or `test_step` of the module."""
    trainer = model.trainer
    trainer.stage, trainer.batch_index = stage, batch_index
    number = int(loader) if loader else None
    trainer.output = trainer.step(model, _STEPS[stage], batch, batch_index, number, recorder)
    return {}


def predict_step(model: Any, batch: Any, batch_index: int, recorder: Any) -> Any:
    """`predict_step` of the module."""
    model.trainer.stage = "predict"
    model.trainer.output = model.trainer.step(model, "predict_step", batch, batch_index, None, recorder)
    return model.trainer.output


# ---- the graph


def _fitting(trainer: ModuleTrainer, flags: dict[str, Any], train: Any, val: Any) -> tuple[Graph, dict[str, Any]]:
    module = trainer.model
    trainer.train_dataloader = train = _data(trainer, "train", train)
    if train is None:
        raise UsageError("there is no training data", "give train_dataloaders=..., or a datamodule")
    trainer.val_dataloaders = val = _data(trainer, "validate", val) if overridden(module, "validation_step") else None
    length = _length(train)
    batches = None if length == math.inf else int(length)
    planned = with_flags(Graph.load("fit"), flags, batches)
    trainer.num_training_batches = min(length, planned.nodes["next_batch"].parameters.get("limit", math.inf))
    trainer.num_val_batches = [
        _length(each) for each in (val.values() if isinstance(val, Mapping) else [val] if val else [])
    ]
    try:
        trainer.estimated_stepping_batches = PlannedRun(planned).steps(train)
    except UsageError:
        trainer.estimated_stepping_batches = math.inf
    optimizers, automatic = _optimizers(trainer), module.automatic_optimization
    names = ["optimizer"] if len(optimizers) == 1 else [f"optimizer_{number}" for number in range(len(optimizers))]
    resources = {
        "model": module,
        "train_data": train,
        "training_step": training_step,
        **dict(zip(names, optimizers, strict=True)),
    }
    resources |= {"not_state": ["model._metric_attributes"]}
    if (move := transfer(trainer)) is not None:
        resources["transfer"] = move
    graph = _based(trainer, planned, flags, batches)
    if len(names) > 1:
        graph = graph.set("step", reads={"optimizer": names})
    # Where the module steps, Lightning counts batches.
    every = graph.nodes["log"].parameters["every"] if automatic else f"{trainer.log_every_n_steps} batches"
    graph = graph.replace("log", nodes.ModuleLog, every=every)
    own_states = any(overridden(owner, name) for owner in trainer.owners for name in ("state_dict", "load_state_dict"))
    if own_states or trainer.calls("on_save_checkpoint") or trainer.calls("on_load_checkpoint"):
        resources["checkpoint_hooks"] = nodes.CheckpointHooks(trainer)
    graph = _schedules(_training(graph, trainer), trainer, resources)
    if val is not None:
        resources |= {"val_data": val, "validation_step": evaluation_step}
        body = graph.nodes["validate"].body
        assert body is not None, "it is that of `fit`"
        graph = graph.set("validate", graph=_evaluation(body, trainer, "validate", "end_evaluation"))
        if automatic and overridden(module, "on_validation_model_zero_grad"):
            name = "on_validation_model_zero_grad"
            reads = {**_COUNTS, **({"waiting": "accumulate.count"} if "accumulate" in graph.nodes else {})}
            graph = graph.insert(name, nodes.ModuleHook, before="validate", hook=name, reads=reads)
    if "on_train_batch_start" in graph.nodes:  # after everything that is on the way of a batch
        graph = graph.guard("epoch_skipped", "on_train_batch_start.skips")
        graph = graph.connect("on_train_batch_start", "decide", when="epoch_skipped")
    return graph, resources


def _based(trainer: ModuleTrainer, planned: Graph, flags: dict[str, Any], batches: int | None) -> Graph:
    """The graph of the trainer's flags: `fit`, or one in which the module or the optimizer steps itself."""
    automatic = trainer.model.automatic_optimization
    base = "manual" if not automatic else "lbfgs" if isinstance(trainer.optimizers[0], torch.optim.LBFGS) else "fit"
    for name in ("accumulate_grad_batches", *(["gradient_clip_val"] if not automatic else [])):
        if base != "fit" and flags.get(name) not in (None, 1 if name.startswith("acc") else None):
            stepper = "the module steps its optimizers itself" if not automatic else "LBFGS steps with every batch"
            raise UsageError(
                f"{name}={flags[name]!r}, and {stepper}, so no node does that",
                "do it in `training_step`, or let automatic_optimization be True",
            )
    kept = {name: value for name, value in flags.items() if not (base == "lbfgs" and name.startswith("gradient_clip"))}
    graph = planned if base == "fit" else with_flags(Graph.load(base), kept, batches)
    if base == "lbfgs":
        graph = graph.replace("step", nodes.ModuleClosureStep, reads=_BATCH)
    return graph


def _optimizers(trainer: ModuleTrainer) -> list[Any]:
    """Give the trainer what `configure_optimizers` of its module returns; returns the optimizers.

    Raises:
        UsageError: there is none, or there are several and the module does not step them itself.
    """
    configured = trainer.model.configure_optimizers()
    if configured is None:
        raise UsageError("`configure_optimizers` returned None, so nothing would be trained", "return an optimizer")
    optimizers, schedulers, monitor = _configure_optimizers(configured)
    automatic = trainer.model.automatic_optimization
    if automatic and len(optimizers) > 1:
        raise UsageError(
            f"`configure_optimizers` returned {len(optimizers)} optimizers, and automatic optimization steps one",
            "set automatic_optimization = False; as a graph, `gan` or `yielding` have a node for each",
        )
    trainer.optimizers = optimizers
    trainer.lr_scheduler_configs = (
        _configure_schedulers_automatic_opt(schedulers, monitor)
        if automatic
        else _configure_schedulers_manual_opt(schedulers)
    )
    return trainer.optimizers


def _hook(graph: Graph, name: str, place: str = "", stage: str = "train", reads: Any = None) -> Graph:
    """A graph with a node that calls a hook at a place of the same name, or at another."""
    inputs = {**_COUNTS, **({"batch_index": "next_batch.batch_index"} if "_batch_" in name else {}), **(reads or {})}
    use = nodes.BatchStart if name == "on_train_batch_start" else nodes.ModuleHook
    return graph.hook(place or name, use, name=name, hook=name, stage=stage, reads=inputs)


def _training(graph: Graph, trainer: ModuleTrainer) -> Graph:
    """A graph with a node for each hook of training that is overridden."""
    module, automatic = trainer.model, "train_batch" in graph.nodes
    names = ["on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start"]
    names += ["on_train_end", "on_fit_end", "teardown"]
    names += ["on_after_backward", "on_before_optimizer_step", "on_before_zero_grad"] if automatic else []
    places = {"on_fit_start": "on_train_start", "on_fit_end": "on_train_end", "teardown": "on_train_end"}
    for name in filter(trainer.calls, names):
        reads = {"epoch": "begin_epoch.runs - 1"} if name == "on_train_epoch_start" else None
        graph = _hook(graph, name, places.get(name, ""), reads=reads)
    if automatic:
        graph = graph.set("train_batch", skip_none=True)
        if overridden(module, "backward"):
            graph = graph.replace("train_batch", nodes.ModuleBatch, reads={"window": "accumulate.window"})
        if overridden(module, "optimizer_step"):
            graph = graph.replace("step", nodes.ModuleStep, reads=_BATCH)
        if overridden(module, "optimizer_zero_grad"):
            graph = graph.replace("zero_grad", nodes.zero_grad, reads=_BATCH)
        if overridden(module, "configure_gradient_clipping"):
            graph = graph.replace("clip", nodes.clip)
    return graph


def _schedules(graph: Graph, trainer: ModuleTrainer, resources: dict[str, Any]) -> Graph:
    """A graph with a node for each scheduler, and where an epoch ends: its hook, its row, then plateaus."""
    if "schedule" in graph.nodes:
        graph = graph.remove("schedule", to="decide")
    late = []
    for number, config in enumerate(trainer.lr_scheduler_configs):
        name = f"scheduler_{number}" if len(trainer.lr_scheduler_configs) > 1 else "scheduler"
        resources[name] = config.scheduler
        if not trainer.model.automatic_optimization:
            continue
        of_batches = config.interval == "step" and config.frequency > 1
        every = f"{config.frequency} {'epoch_batches' if of_batches else f'{config.interval}s'}"
        more: dict[str, Any] = {"every": every, "reads": {"scheduler": name}}
        use: Any = "schedule"
        if config.reduce_on_plateau or overridden(trainer.model, "lr_scheduler_step"):
            use = nodes.schedule
            more |= {"monitor": config.monitor, "strict": config.strict} if config.reduce_on_plateau else {}
        place = f"schedule_{number}" if number else "schedule"
        if config.reduce_on_plateau and config.interval == "epoch":
            late.append((place, use, more))
        else:
            graph = graph.hook("on_train_batch_end", use, name=place, **more)
    if trainer.calls("on_train_batch_end"):
        graph = _hook(graph, "on_train_batch_end")
    chain: list[tuple[str, Any, dict[str, Any]]] = []
    if trainer.calls("on_train_epoch_end"):
        reads = {**_COUNTS}
        chain += [("on_train_epoch_end", nodes.ModuleHook, {"hook": "on_train_epoch_end", "reads": reads})]
    chain += [("module_epoch_end", nodes.epoch_end, {"reads": {"epoch": "next_batch.epoch"}}), *late]
    first, use, more = chain[0]
    graph = graph.guard(f"{first}_due", f"{first}.runs < end_epoch.runs").insert(
        first, use, at="decide", after="validate", **more
    )
    for (before, _, _), (name, use, more) in itertools.pairwise(chain):
        graph = graph.insert(name, use, after=before, **more)
    return graph


def _evaluation(graph: Graph, trainer: ModuleTrainer, stage: str, end: str) -> Graph:
    """A graph that evaluates, or predicts, with a node for each hook of the stage, and the row of the module."""
    word = nodes.STAGES[stage]
    zero = {"epoch": "0", "step": "0"}
    if overridden(trainer.model, f"on_{word}_model_eval"):
        graph = graph.hook(f"on_{word}_start", nodes.model_eval, name=f"on_{word}_model_eval", stage=stage)
    for moment in _MOMENTS:
        if trainer.calls(name := f"on_{word}_{moment}"):
            place = {"epoch_start": "start", "end": "epoch_end"}.get(moment, moment)
            loader = {"loader": "next_batch.loader"} if "_batch_" in name else {}
            graph = _hook(graph, name, f"on_{word}_{place}", stage, {**zero, **loader})
    graph = graph.replace(end, nodes.end_evaluation, stage=stage) if stage != "predict" else graph
    if stage != "validate" and trainer.calls("teardown"):
        graph = graph.insert("teardown", nodes.ModuleHook, after=end, hook="teardown", stage=stage, reads=zero)
    return graph


def _alone(trainer: ModuleTrainer, stage: str) -> tuple[Graph, dict[str, Any]]:
    """The graph `test` or `predict`, and its resources."""
    data = _data(trainer, stage)
    if data is None:
        raise UsageError(f"there is no data to {stage}", f"give the module or the datamodule a {stage}_dataloader")
    function = evaluation_step if stage == "test" else predict_step
    resources = {"model": trainer.model, f"{stage}_data": data, f"{stage}_step": function}
    if (move := transfer(trainer)) is not None:
        resources["transfer"] = move
    loaders = [*data.values()] if isinstance(data, Mapping) else [data]
    limit = trainer.limit_test_batches if stage == "test" else trainer.limit_predict_batches
    batches = [min(_length(each), limit if isinstance(limit, int) else math.inf) for each in loaders]
    setattr(trainer, f"num_{stage}_batches", batches)
    setattr(trainer, f"{stage}_dataloaders", data)
    graph = _evaluation(Graph.load(stage), trainer, stage, "end_evaluation" if stage == "test" else "end_prediction")
    return (graph if limit == 1.0 and isinstance(limit, float) else graph.set("next_batch", limit=limit)), resources
