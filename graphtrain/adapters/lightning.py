"""A LightningModule, unchanged, as a graph and resources.

graph, resources = setup(Module(), datamodule=Data(), max_epochs=5, gradient_clip_val=0.5)
graphtrain.Trainer(graph, run_dir="run", **resources).run()
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.core.optimizer import (
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _configure_schedulers_manual_opt,
)

from graphtrain import Graph, UsageError, described
from graphtrain.adapters import lightning_nodes as nodes
from graphtrain.adapters.lightning_flags import CALLBACKS, REFUSED_CALLBACKS, SHOWN, check_flags, in_full, with_flags
from graphtrain.adapters.lightning_trainer import STAGES, ModuleTrainer, base_of, listed, overridden

_BATCH = {"epoch": "next_batch.epoch", "batch_index": "next_batch.batch_index"}
_OF_STEPS = ("on_after_backward", "on_before_optimizer_step", "on_before_zero_grad")
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")

# A method of the module, if it is overridden -> the node in place of which there is one that calls it.
_INSTEAD: dict[str, tuple[str, Any, dict[str, str]]] = {
    "backward": ("train_batch", nodes.ModuleBatch, {"window": "accumulate.window"}),
    "optimizer_step": ("step", nodes.ModuleStep, _BATCH),
    "optimizer_zero_grad": ("zero_grad", nodes.zero_grad, _BATCH),
    "configure_gradient_clipping": ("clip", nodes.clip, {}),
}

_NEVER = {
    "on_exception": "an exception is raised from `graphtrain.Trainer.run` as it is, so catch it there",
    **dict.fromkeys(
        ("on_sanity_check_start", "on_sanity_check_end"), "the overlay `sanity` is a check before training"
    ),
    **{f"on_{name}": f"since Lightning 2 it is `on_train_{name}`" for name in ("epoch_start", "batch_start")},
    **{f"on_{name}": f"since Lightning 2 it is `on_train_{name}`" for name in ("epoch_end", "batch_end")},
    **dict.fromkeys(("on_pretrain_routine_start", "on_pretrain_routine_end"), "since Lightning 2 it is `on_fit_start`"),
    "tbptt_split_batch": "the graph `tbptt` splits batches",
}
# The callbacks that are edits of the graph, and what replaces their methods.
_IN_PLACE = {
    **dict.fromkeys(SHOWN, "not called: the run has a display of its own"),
    "ModelCheckpoint": "the node `checkpoint`",
    "LearningRateMonitor": "`lr` in the rows of `log`",
    "OnExceptionCheckpoint": "not needed: a run that failed resumes from its last checkpoint",
}
# Endings of methods of Lightning 1, and what to do instead.
_ENDS = {"step_end": "do it at the end of the step", "epoch_end": "gather outputs in the step, for `on_{}_epoch_end`"}
# Arguments of `training_step` that are not passed, and what to do instead.
_NOT_PASSED = {
    **dict.fromkeys(("optimizer_idx", "hiddens"), "leave it out; the graphs `gan`, `yielding` and `tbptt` do this"),
    "dataloader_iter": "take `batch`, which the node `next_batch` fetches",
}


def setup(
    module: LightningModule,
    datamodule: LightningDataModule | None = None,
    *,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    stage: str = "fit",
    **trainer_flags: Any,
) -> tuple[Graph, dict[str, Any]]:
    """The graph and the resources of ``Trainer(**trainer_flags).fit(module, datamodule=datamodule)`` of Lightning.

    Arguments:
        module: is not changed; its attribute `trainer` is a stand-in for Lightning's.
        datamodule: has the data. Default: the module has it, or the next arguments.
        train_dataloaders, val_dataloaders: as of `fit`. Default: those of the datamodule, or of the module.
        stage: "fit", or "test" or "predict" for the graphs of these names. Default: "fit".
        trainer_flags: the arguments of Lightning's Trainer; `FLAGS` of `lightning_flags` has what each edits.

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
    trainer_flags = in_full(trainer_flags)
    if stage not in ("fit", "test", "predict"):
        raise UsageError(f"stage={stage!r} is no graph of a module", 'use "fit", "test" or "predict"')
    for value, expected in ((module, "LightningModule"), (datamodule, "LightningDataModule")):
        if value is not None and base_of(value, expected) is None:
            hint = f"make one: {value.__name__}(...)" if isinstance(value, type) else ""
            raise UsageError(f"lightning.setup takes a {expected}; got {described(value)}", hint)
    for name, instead in _NOT_PASSED.items():
        if name in inspect.signature(module.training_step).parameters:
            raise UsageError(f"`training_step` takes `{name}`, which is not passed", instead)
    for word, (end, instead) in itertools.product(STAGES.values(), _ENDS.items()):
        if callable(getattr(module, f"{word}_{end}", None)):
            instead = instead.format(word.replace("training", "train"))
            raise UsageError(f"`{word}_{end}` is of Lightning 1, and is not called", instead)
    trainer = ModuleTrainer(module, datamodule, trainer_flags, stage)
    flags = {**trainer_flags, "callbacks": _callbacks(trainer, trainer_flags.get("callbacks"))}
    if datamodule is not None:
        datamodule.prepare_data()
    module.prepare_data()
    for owner, hook in itertools.product((*trainer.owners, module), _NEVER):
        if overridden(owner, hook):
            warnings.warn(f"`{hook}` of {type(owner).__name__} is never called: {_NEVER[hook]}", stacklevel=2)
    if datamodule is not None:
        datamodule.setup(stage)
    for callback in trainer.callbacks:
        callback.setup(trainer, module, stage)
    module.setup(stage)
    module.configure_sharded_model()
    module.configure_model()
    if stage == "fit":
        graph, resources = _fitting(trainer, flags, train_dataloaders, val_dataloaders)
    else:
        graph, resources = _alone(trainer, stage)
    if (move := transfer(trainer)) is not None:
        resources["transfer"] = move
    if loggers := trainer.row_loggers():
        resources["loggers"] = loggers
    return graph, resources


def _callbacks(trainer: ModuleTrainer, callbacks: Any) -> list[tuple[str, dict[str, Any]]]:
    """Give the trainer the callbacks, and those that run as nodes; returns the name and the arguments of each edit."""
    of_module = listed(trainer.model.configure_callbacks())
    pairs: dict[str, dict[str, Any]] = {}
    replaced = [type(callback) for callback in of_module]
    for callback in [callback for callback in listed(callbacks) if type(callback) not in replaced] + of_module:
        if refused := base_of(callback, *REFUSED_CALLBACKS):
            raise UsageError(f"{refused.__name__} is not supported", REFUSED_CALLBACKS[refused.__name__])
        known = base_of(callback, *CALLBACKS, *SHOWN)
        name = "" if known is None else known.__name__
        left = "" if known is None else _left_out(callback, known, pairs)
        if name == "EarlyStopping":  # a node where it takes each value, once an epoch; otherwise it is called
            usual = (trainer.check_val_every_n_epoch, str(trainer.val_check_interval)) == (1, "1.0") and callback.strict
            if left or not usual or callback.patience < 1 or callback._check_on_train_epoch_end is not None:
                name = ""
        elif left:
            warnings.warn(f"{left}: {name} is {_IN_PLACE[name]}", stacklevel=3)
        if name not in SHOWN:
            trainer.callbacks.append(callback)
        if name in CALLBACKS:
            pairs.setdefault(name, {key.removeprefix("_"): value for key, value in vars(callback).items()})
        if not name:
            trainer.called.append(callback)
    return [*pairs.items()]


def _left_out(callback: Any, known: type, before: Collection[str]) -> str:
    """What the edit of a callback of the class `known` would leave out; empty if nothing."""
    classes = type(callback).__mro__
    attributes = {
        key: value for each in (callback, *classes[: classes.index(known)]) for key, value in vars(each).items()
    }
    methods = {key for key, value in attributes.items() if callable(value) or isinstance(value, property)}
    for name in sorted(methods & {*dir(known)}):
        if not name.startswith("__"):  # what it begins with is in its attributes
            return f"`{name}` of {type(callback).__name__} is never called"
    return f"a second {known.__name__} is left out" if known.__name__ in before else ""


# ---- data


def _owner(trainer: ModuleTrainer, name: str) -> Any:
    """The datamodule or the module, whichever overrides a method; None if neither."""
    return next((each for each in (trainer.datamodule, trainer.model) if overridden(each, name)), None)


def _data(trainer: ModuleTrainer, name: str, data: Any = None) -> Any:
    """The "train", "val", "test" or "predict" data: a loader, several, or None; the trainer gets it too."""
    owner = _owner(trainer, f"{name}_dataloader")
    if data is None and owner is not None:
        data = getattr(owner, f"{name}_dataloader")()
    mode = "max_size_cycle" if name == "train" else "sequential"
    if (other := getattr(data, "_mode", mode)) != mode:
        raise UsageError(f'the {name} data is a CombinedLoader of the mode "{other}"', f'give it the mode "{mode}"')
    data = getattr(data, "iterables", data)  # of a CombinedLoader
    if name == "train":
        if isinstance(data, list | tuple) and any(isinstance(each, torch.utils.data.DataLoader) for each in data):
            raise UsageError("the train data is a list of loaders", "name them: {'a': ..., 'b': ...}, as batches are")
        trainer.train_dataloader = data
        return data
    setattr(trainer, f"{name}_dataloaders", data)
    if isinstance(data, list | tuple) and not isinstance(data[0], torch.Tensor):
        data = {str(number): loader for number, loader in enumerate(data)} if len(data) > 1 else data[0]
    loaders = data.values() if isinstance(data, Mapping) else [] if data is None else [data]
    limit = getattr(trainer, f"limit_{name}_batches")
    setattr(trainer, f"num_{name}_batches", [_limited(_length(loader), limit) for loader in loaders])
    return data


def _limited(length: int | float, limit: int | float) -> int | float:
    """The batches within a limit. Lightning rounds a share down as it is in binary: 0.29 of 100 batches are 28."""
    if isinstance(limit, int):
        return min(length, limit)
    return length if length == math.inf else int(length * limit)


def _length(data: Any) -> int | float:
    try:
        return max(map(len, data.values())) if isinstance(data, Mapping) else len(data)
    except TypeError:
        return math.inf


def transfer(trainer: ModuleTrainer) -> Any:
    """Moves a batch to its device by hooks of the datamodule or the module; None if neither overrides one."""
    owners = {name: _owner(trainer, name) for name in _TRANSFERS}
    if not any(owner is not None for owner in owners.values()):
        return None

    def move(batch: Any, device: Any) -> Any:
        for name, owner in owners.items():
            more = (device, 0) if name == "transfer_batch_to_device" else (0,)
            batch = getattr(trainer.model if owner is None else owner, name)(batch, *more)
        return batch

    return move


# ---- the graph


def _fitting(trainer: ModuleTrainer, flags: dict[str, Any], train: Any, val: Any) -> tuple[Graph, dict[str, Any]]:
    module = trainer.model
    train = _data(trainer, "train", train)
    if train is None:
        raise UsageError("there is no training data", "give train_dataloaders=..., or a datamodule")
    val = _data(trainer, "val", val) if overridden(module, "validation_step") else None
    number = trainer.num_training_batches = _limited(_length(train), trainer.limit_train_batches)
    batches = None if number == math.inf else int(number)
    graph = with_flags(Graph.load("fit"), flags, batches)
    optimizers, automatic = _numbered("optimizer", _optimizers(trainer)), module.automatic_optimization
    resources = {"model": module, "train_data": train, "training_step": nodes.training_step, **optimizers}
    resources["not_state"] = ["model._metric_attributes"]
    if not automatic or isinstance(trainer.optimizers[0], torch.optim.LBFGS):
        graph = _stepping_itself(trainer, flags, batches)
    if len(optimizers) > 1:
        graph = graph.set("step", reads={"optimizer": [*optimizers]})
    windows = graph.nodes.get("accumulate")
    if windows is not None and windows.parameters["every"] != 1:
        # A window that is open where the run ends is not stepped.
        graph = graph.guard("window_cut", "next_batch.last").guard("window_left", "ending and accumulate.count > 0")
        graph = graph.insert("leave_window", "discard").connect("leave_window", "decide")
        graph = graph.connect("decide", "leave_window", when="window_left", before="finish")
    # Where the module steps, Lightning counts batches.
    every = graph.nodes["log"].parameters["every"] if automatic else f"{trainer.log_every_n_steps} batches"
    graph = graph.replace("log", nodes.log_module, every=every)
    own_states = any(overridden(owner, name) for owner in trainer.owners for name in ("state_dict", "load_state_dict"))
    if own_states or trainer.owners_of("on_save_checkpoint") or trainer.owners_of("on_load_checkpoint"):
        resources["checkpoint_hooks"] = nodes.CheckpointHooks(trainer)
    graph = _schedules(_training(graph, trainer), trainer, resources)
    if val is not None:
        resources |= {"val_data": val, "validation_step": nodes.evaluation_step}
        if overridden(module, name := "on_validation_model_zero_grad") or not automatic:
            graph = graph.hook("on_validation_start", nodes.model_zero_grad, name=name)
        graph = _evaluation(graph, trainer, "validate").set("validate/end_evaluation", use=nodes.end_evaluation)
    if "on_train_epoch_start" in graph.nodes:
        graph = graph.connect("on_train_epoch_start", graph.edges["finish"][0].target, when="finished")
    return graph, resources


def _numbered(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Resources by name; several have numbered names."""
    return {f"{name}_{number}" if len(values) > 1 else name: value for number, value in enumerate(values)}


def _stepping_itself(trainer: ModuleTrainer, flags: dict[str, Any], batches: int | None) -> Graph:
    """The graph in which the module steps its optimizers, or LBFGS evaluates its closure as often as it likes."""
    automatic, unset = trainer.model.automatic_optimization, {"accumulate_grad_batches": 1, "gradient_clip_val": None}
    base, who = ("lbfgs", "LBFGS steps") if automatic else ("manual", "the module steps its optimizers")
    unsupported = [f"{name}={flags[name]!r}" for name in unset if flags.get(name) not in (None, unset[name])]
    unsupported += [f"`{name}`" for name in (*_INSTEAD, *_OF_STEPS) if automatic and trainer.owners_of(name)]
    if unsupported:
        instead = "do it in `training_step`, or by replacing the node `step`"
        raise UsageError(f"{unsupported[0]}, and {who} itself with every batch, so no node does that", instead)
    return with_flags(Graph.load(base), {name: flags[name] for name in flags if name not in unset}, batches)


def _optimizers(trainer: ModuleTrainer) -> list[Any]:
    """Give the trainer the optimizers and schedulers of its module; returns the optimizers."""
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
    trainer.optimizers, trainer.fixed = optimizers, {*trainer.fixed, "optimizers"}
    if automatic and not overridden(trainer.model, "optimizer_step"):
        optimizers[0].register_step_post_hook(trainer.count)
    trainer.lr_scheduler_configs = (
        _configure_schedulers_automatic_opt(schedulers, monitor)
        if automatic
        else _configure_schedulers_manual_opt(schedulers)
    )
    return trainer.optimizers


def _hooks(graph: Graph, trainer: ModuleTrainer, places: Mapping[str, str], stage: str = "train") -> Graph:
    """A graph with a node for each of these hooks that is overridden, at its place."""
    for name, place in places.items():
        if owners := trainer.owners_of(name):
            of_batch = ("batch_index", "loader") if stage != "train" else ("batch_index",)
            reads = {key: f"next_batch.{key}" for key in of_batch if "_batch_" in name}
            if name in ("on_train_epoch_start", "on_train_batch_start"):
                reads["epoch"] = "begin_epoch.runs - 1"
            elif place == "on_train_end":
                reads["epoch"] = "begin_epoch.runs"
            if name == "on_train_batch_start":
                reads["is_last"] = "next_batch.last"
            settings = {"hook": name, "of": _classes(owners), "stage": stage}
            graph = graph.hook(place, nodes.ModuleHook, name=name, **settings, reads=reads)
    return graph


def _classes(owners: list[Any]) -> str:
    return ", ".join(type(owner).__name__ for owner in owners)


def _training(graph: Graph, trainer: ModuleTrainer) -> Graph:
    """A graph with a node for each hook and method of training that is overridden, but for those that end an epoch."""
    names = ["on_train_start", "on_train_epoch_start", "on_train_batch_start"]
    if "train_batch" in graph.nodes:
        names += _OF_STEPS
        graph = graph.set("train_batch", skip_none=True)
        for method, (place, kind, reads) in _INSTEAD.items():
            if overridden(trainer.model, method):
                graph = graph.replace(place, kind, reads=reads)
    places = {"on_fit_start": "on_train_start", **dict(zip(names, names, strict=True))}
    places |= dict.fromkeys(("on_train_end", "on_fit_end", "teardown"), "on_train_end")
    return _hooks(graph, trainer, places)


def _schedules(graph: Graph, trainer: ModuleTrainer, resources: dict[str, Any]) -> Graph:
    """A graph with a node for each scheduler, and where an epoch ends: its hook, its row, then plateaus."""
    if "schedule" in graph.nodes and trainer.lr_scheduler_configs:
        graph = graph.remove("schedule", to="decide")
    chain: list[tuple[str, Any, dict[str, Any]]] = [("module_epoch_end", nodes.ModuleEpochEnd, {})]
    if owners := trainer.owners_of(name := "on_train_epoch_end"):
        chain.insert(0, (name, nodes.ModuleHook, {"hook": name, "of": _classes(owners)}))
    schedulers = _numbered("scheduler", [config.scheduler for config in trainer.lr_scheduler_configs])
    resources |= schedulers
    if schedulers and not trainer.model.automatic_optimization:  # the module steps them
        graph = graph.set("log", reads={"schedulers": [*schedulers]})
    configs = trainer.lr_scheduler_configs if trainer.model.automatic_optimization else []
    of_steps: list[tuple[str, dict[str, Any]]] = []  # those that follow a metric, of a validation too
    for number, (scheduler, config) in enumerate(zip(schedulers, configs, strict=False)):
        of_batches = config.interval == "step" and config.frequency > 1
        every = f"{config.frequency} {'epoch_batches' if of_batches else f'{config.interval}s'}"
        more: dict[str, Any] = {"every": every, "reads": {"scheduler": scheduler}}
        more |= {"monitor": config.monitor, "strict": config.strict} if config.reduce_on_plateau else {}
        name = f"schedule_{number}" if number else "schedule"
        if not config.reduce_on_plateau:
            graph = graph.hook("on_train_batch_end", nodes.schedule, name=name, **more)
        elif config.interval == "epoch":
            chain.append((name, nodes.schedule, more))
        else:
            of_steps.append((name, more))
    graph = _hooks(graph, trainer, {"on_train_batch_end": "on_train_batch_end"})
    first, kind, more = chain[0]
    graph = graph.guard(f"{first}_due", f"{first}.runs < end_epoch.runs")
    graph = graph.insert(first, kind, at="decide", after="validate", **more)
    for (before, _, _), (name, kind, more) in itertools.pairwise(chain):
        graph = graph.insert(name, kind, after=before, **more)
    for name, more in reversed(of_steps):
        graph = graph.insert(name, nodes.schedule, at="decide", after="validate", **more)
    return graph


def _evaluation(graph: Graph, trainer: ModuleTrainer, stage: str) -> Graph:
    """A graph with a node for each hook of an evaluation, or of a prediction, that is overridden."""
    start, end = f"on_{STAGES[stage]}_start", f"on_{STAGES[stage]}_epoch_end"
    for name in (f"on_{STAGES[stage]}_model_eval", f"on_{STAGES[stage]}_model_train"):
        if overridden(trainer.model, name):
            raise UsageError(f"`{name}` is not called: training modes are those of `model.eval()`", f"use `{start}`")
    batches = {name: name for name in (f"on_{STAGES[stage]}_batch_start", f"on_{STAGES[stage]}_batch_end")}
    places = {start: start, f"on_{STAGES[stage]}_epoch_start": start, **batches, end: end}
    return _hooks(graph, trainer, {**places, f"on_{STAGES[stage]}_end": end}, stage)


def _alone(trainer: ModuleTrainer, stage: str) -> tuple[Graph, dict[str, Any]]:
    """The graph `test` or `predict`, and its resources."""
    data = _data(trainer, stage)
    if data is None:
        raise UsageError(f"there is no data to {stage}", f"give the module or the datamodule a {stage}_dataloader")
    graph, last = _evaluation(Graph.load(stage), trainer, stage), "end_prediction"
    if stage == "test":
        last = "end_evaluation"
        graph = graph.replace(last, nodes.end_evaluation)
    if owners := trainer.owners_of("teardown"):
        of = _classes(owners)
        graph = graph.insert("teardown", nodes.ModuleHook, after=last, hook="teardown", of=of, stage=stage)
    limit = getattr(trainer, f"limit_{stage}_batches")
    graph = graph if limit == 1.0 and isinstance(limit, float) else graph.set("next_batch", limit=limit)
    resources = {"model": trainer.model, f"{stage}_data": data, f"{stage}_step": nodes.evaluation_step}
    return graph, resources | ({"training_step": nodes.training_step} if stage == "test" else {})
