"""What the arguments of Lightning's Trainer, and of its callbacks, are in the graph `fit`: one table of edits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from numbers import Integral, Real
from typing import Any

from graphtrain import Graph, UsageError, suggestion

Flags = Mapping[str, Any]
"""The arguments of the Trainer by name, and `batches`: those of an epoch, or None."""
Meaning = Callable[[Graph, Any, Flags], Graph]
"""Edits a graph by the value of an argument, or by the arguments of a callback."""


def _any_of(triggers: list[str]) -> Any:
    return triggers if len(triggers) > 1 else triggers[0]


def _seconds(name: str, time: Any) -> str:
    """The trigger of a `max_time`: ``"DD:HH:MM:SS"``, a mapping of units, or a timedelta."""
    try:
        if isinstance(time, str):
            time = dict(zip(("days", "hours", "minutes", "seconds"), map(int, time.split(":")), strict=True))
        span = timedelta(**time) if isinstance(time, Mapping) else time
        return f"{int(span.total_seconds())} seconds"
    except (AttributeError, TypeError, ValueError):
        raise UsageError(f'{name}: expected a time as "DD:HH:MM:SS" or a timedelta, got {time!r}') from None


def _ending(graph: Graph, _: Any, flags: Flags) -> Graph:
    amounts = {unit: flags.get(f"max_{unit}") for unit in ("epochs", "steps")}
    after = [f"{amount} {unit}" for unit, amount in amounts.items() if amount not in (None, -1)]
    after += [_seconds("max_time", flags["max_time"])] if flags.get("max_time") is not None else []
    return graph.set("finish", after=_any_of(after or ["never" if -1 in amounts.values() else "1000 epochs"]))


def _limited(graph: Graph, node: str, name: str, value: Any, batches: int | None = None) -> Graph:
    if value is None or (isinstance(value, float) and value == 1.0):
        return graph
    return graph.set(node, **{name: batches if isinstance(value, float) and batches else value})


def _validations(graph: Graph, _: Any, flags: Flags) -> Graph:
    interval, epochs = flags.get("val_check_interval", 1.0), flags.get("check_val_every_n_epoch", 1)
    batches = flags["batches"]
    if flags.get("limit_val_batches") == 0:
        every = "never"
    elif not isinstance(interval, int | float):
        every = _seconds("val_check_interval", interval)
    elif isinstance(interval, int):
        if batches and epochs is not None and interval > batches:
            hint = "check_val_every_n_epoch=None counts the batches of all epochs"
            raise UsageError(f"val_check_interval={interval}: an epoch has {batches} batches", hint)
        every = f"{interval} {'batches' if epochs is None else 'epoch_batches'}"
    elif interval < 1.0 and batches:
        every = f"{max(int(batches * interval), 1)} epoch_batches"
    else:
        every = f"{interval if interval < 1.0 else epochs} epochs"
    graph = graph.set("validate", every=every)
    if (epochs or 1) > 1 and interval != 1.0:
        graph = graph.guard("val_check_batch", f"validate.due and next_batch.epoch % {epochs} == {epochs - 1}")
    return graph


def _clip(graph: Graph, _: Any, flags: Flags) -> Graph:
    value, algorithm = flags.get("gradient_clip_val"), flags.get("gradient_clip_algorithm") or "norm"
    if not value:
        return graph
    by_value = getattr(algorithm, "value", algorithm) == "value"
    return graph.set("clip", max_value=value) if by_value else graph.set("clip", max_norm=value)


def _precision(graph: Graph, value: Any, _: Flags) -> Graph:
    known = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "None": "32-true"}
    name = known.get(str(value), str(value))
    if name not in known.values():
        hint = "convert the module and the data: module.double(), module.bfloat16()"
        raise UsageError(f"precision={value!r} is not supported", hint)
    if name == "16-mixed":
        return graph.overlay("fp16")
    return graph if name == "32-true" else graph.set("train_batch", precision=name)


def _model_checkpoint(graph: Graph, arguments: Mapping[str, Any], _: Flags) -> Graph:
    steps, epochs = arguments.get("every_n_train_steps"), arguments.get("every_n_epochs")
    time = arguments.get("train_time_interval")
    every = [f"{steps} steps"] if steps else []
    every += [_seconds("train_time_interval", time)] if time is not None else []
    every += [f"{epochs or 1} epochs"] if epochs or not every else []
    monitor, most = arguments.get("monitor"), arguments.get("save_top_k", 1)
    more: dict[str, Any] = {"keep": 1_000_000} if most == -1 else {}
    if monitor is not None:
        more |= {"best": monitor, "best_mode": arguments.get("mode", "min")}
        more |= {"keep_best": most} if most > 1 else {}
    return graph.set("checkpoint", every=_any_of(every), **more) if most else graph.set("checkpoint", every="never")


def _early_stopping(graph: Graph, arguments: Mapping[str, Any], flags: Flags) -> Graph:
    names = ("monitor", "mode", "patience", "stopping_threshold", "divergence_threshold", "check_finite")
    kept = {name: arguments[name] for name in names if arguments.get(name) is not None}
    kept.setdefault("mode", "min")
    kept |= {"min_delta": abs(arguments["min_delta"])} if arguments.get("min_delta") else {}
    kept |= {"min_epochs": float(flags["min_epochs"])} if flags.get("min_epochs") else {}
    graph = graph.overlay("early_stop").set("early_stop", **kept)
    if flags.get("min_steps"):
        guard = f"finish.due or (early_stop.stop and step.steps >= {flags['min_steps']} and "
        graph = graph.guard("ending", f"{guard}next_batch.epochs >= early_stop.min_epochs)")
    return graph


CALLBACKS: Mapping[str, Meaning] = {
    "ModelCheckpoint": _model_checkpoint,
    "EarlyStopping": _early_stopping,
    "LearningRateMonitor": lambda graph, arguments, flags: graph,  # every row of `log` has `lr`
    "OnExceptionCheckpoint": lambda graph, arguments, flags: graph,  # a failed run resumes from its last checkpoint
}
"""The callbacks that are edits, by the names of their classes."""

# Callbacks that only show something.
SHOWN = ("ProgressBar", "TQDMProgressBar", "RichProgressBar", "ModelSummary", "RichModelSummary", "DeviceStatsMonitor")


def _callbacks(graph: Graph, pairs: Any, flags: Flags) -> Graph:
    """A graph with the edits of callbacks, which are pairs of a name and its arguments."""
    for name, arguments in pairs or ():
        graph = CALLBACKS[name](graph, arguments, flags) if name in CALLBACKS else graph
    return graph


_PROCESSES = "`Trainer(..., device=...)` or `--device`; for several processes `--processes N`"
REFUSED_FLAGS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "devices": (("auto", 1, "1", [0]), _PROCESSES),
    "num_nodes": ((1,), _PROCESSES),
    "strategy": (("auto", "single_device"), _PROCESSES),
    "plugins": ((None, []), "a kind of your own in place of a node, by `replace`"),
    "deterministic": ((None, False), "`--deterministic`, or `Trainer(..., deterministic=True)`"),
    "reload_dataloaders_every_n_epochs": ((0,), "not needed: data is opened again in every epoch"),
    "sync_batchnorm": ((False,), "every process normalizes by its own batches"),
    "detect_anomaly": ((False,), "a switch of torch: `torch.autograd.set_detect_anomaly(True)` in the script"),
    "ckpt_path": ((None,), 'before `setup`: module.load_state_dict(torch.load(path, weights_only=True)["state_dict"])'),
}
"""Arguments of the Trainer that are refused except for these values, and what to use instead."""

REFUSED_CALLBACKS = {
    "GradientAccumulationScheduler": "`accumulate.every` may be an expression: 1 if next_batch.epoch < 2 else 4",
    "ModelPruning": "prune before `setup`, or after the run",
    "SpikeDetection": "the overlay `rollback` goes back to a checkpoint after a spike",
    "Timer": "give `max_time`, or set `finish.after`",
    "StochasticWeightAveraging": "the overlays `swa` and `update_bn` average the weights, and anneal no learning rate",
}
"""Callbacks that are refused, by the names of their classes, and what to use instead."""

EQUIVALENTS = {
    "fit": "`graphtrain.Trainer(graph, **resources).run()`",
    "fit_loop": "the graph, whose position and counters are in `graphtrain.Trainer.progress`",
    "validate": "the node `validate`",
    "test": "the graph `test`",
    "predict": "the graph `predict`",
    "save_checkpoint": "the node `checkpoint`",
    "profiler": "`graphtrain report RUN`: seconds of each node",
    "scaler": "the node `unscale` of the overlay `fp16`",
    "val_check_batch": "the guard `val_check_batch`",
    "num_sanity_val_batches": "the overlay `sanity`",
    "distributed_sampler_kwargs": "`graphtrain.Loader`, whose batches are divided among processes",
    "init_module": '`with torch.device("cuda"):`, around what makes the module',
    **dict.fromkeys(("validate_loop", "test_loop", "predict_loop"), "the graphs `evaluate`, `test` and `predict`"),
    **dict.fromkeys(("accelerator", "device_ids"), "`graphtrain.Trainer(..., device=...)`"),
}
"""Attributes of the Trainer that a module does not find, and what to use instead."""

# Those that change nothing of the graph: what they do is done by others, or not needed.
_NO_EDIT = """
    min_epochs min_steps limit_test_batches limit_predict_batches num_sanity_val_steps logger accelerator
    use_distributed_sampler default_root_dir weights_only enable_progress_bar enable_model_summary benchmark
    inference_mode profiler barebones enable_autolog_hparams model_registry fast_dev_run
""".split()  # noqa: SIM905

FLAGS: Mapping[str, Meaning | None] = {
    **dict.fromkeys(("max_epochs", "max_steps", "max_time"), _ending),
    "limit_train_batches": lambda graph, value, flags: _limited(graph, "next_batch", "limit", value, flags["batches"]),
    "limit_val_batches": lambda graph, value, flags: (
        _limited(graph, "validate/next_batch", "limit", value) if value != 0 else _validations(graph, value, flags)
    ),
    "overfit_batches": lambda graph, value, flags: _limited(
        graph, "next_batch", "overfit", value or None, flags["batches"]
    ),
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), _validations),
    "log_every_n_steps": lambda graph, value, flags: graph.set("log", every=f"{value} steps" if value else "never"),
    "accumulate_grad_batches": lambda graph, value, flags: graph.set("accumulate", every=1 if value is None else value),
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm"), _clip),
    "precision": _precision,
    "callbacks": _callbacks,
    "enable_checkpointing": lambda graph, value, flags: (
        graph.set("checkpoint", every="never") if value is False else graph
    ),
    **dict.fromkeys((*REFUSED_FLAGS, *_NO_EDIT)),
}
"""Every argument of Lightning's Trainer: what edits the graph, or None."""


_LIMITS = ("overfit_batches", *(f"limit_{stage}_batches" for stage in ("train", "val", "test", "predict")))
_INTEGERS = ("max_epochs", "max_steps", "min_epochs", "min_steps", "check_val_every_n_epoch", "log_every_n_steps")
# What a node would not refuse by the name of the argument; None is always taken.
_EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_LIMITS, ("a number", lambda each: isinstance(each, Real))),
    **dict.fromkeys(_INTEGERS, ("an integer", lambda each: isinstance(each, Integral) and not isinstance(each, bool))),
    "fast_dev_run": ("an integer, true or false", lambda value: isinstance(value, Integral)),
    "enable_checkpointing": ("true or false", lambda value: isinstance(value, bool)),
    "gradient_clip_algorithm": ('"norm" or "value"', lambda value: getattr(value, "value", value) in ("norm", "value")),
    "callbacks": ("callbacks, from a script", lambda value: not isinstance(value, bool | float | int | str)),
}


def check_flags(flags: Flags) -> None:
    """Refuse what is no argument of Lightning's Trainer, and a value that would change the run and is no edit.

    Raises:
        UsageError: there is one, with where it is done.
    """
    for name, value in flags.items():
        if name not in FLAGS:
            rows = "docs/coming-from.md has the arguments of Lightning 2.6"
            raise UsageError(f"Lightning's Trainer has no argument `{name}`", suggestion(name, FLAGS) or rows)
        expected, is_expected = _EXPECTED.get(name, ("", lambda value: True))
        if value is not None and not is_expected(value):
            raise UsageError(f"{name}: expected {expected}, got {value!r}")
        if name in REFUSED_FLAGS and value not in REFUSED_FLAGS[name][0]:
            raise UsageError(f"{name}={value!r} is not supported", REFUSED_FLAGS[name][1])


def with_flags(graph: Graph, flags: Flags, batches: int | None = None) -> Graph:
    """A graph with the edits of these arguments.

    Arguments:
        flags: the arguments; `callbacks` as pairs of the name of a class and its arguments.
        batches: of an epoch, within its limit, for shares. Default: they are not known.

    >>> graph = with_flags(Graph.load("fit"), {"max_epochs": 3, "max_steps": 500, "gradient_clip_val": 0.5})
    >>> graph.nodes["finish"], graph.nodes["clip"].parameters["max_norm"]
    (<Node finish: after = ["3 epochs", "500 steps"]>, 0.5)
    """
    for name, value in flags.items():
        if (meaning := FLAGS[name]) is not None:
            graph = meaning(graph, value, {**flags, "batches": batches})
    return graph


def in_full(flags: Flags) -> dict[str, Any]:
    """The arguments, with those that `fast_dev_run` and `overfit_batches` set."""
    flags, number = dict(flags), int(flags.get("fast_dev_run") or 0)
    if number:
        flags |= {"max_epochs": 1, "max_steps": -1, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
    if limit := flags.get("overfit_batches") or number:
        flags |= {"limit_train_batches": limit, "limit_val_batches": limit}
    return flags
