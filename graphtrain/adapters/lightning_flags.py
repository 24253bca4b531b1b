"""What the arguments of Lightning's Trainer, and of its callbacks, are in the graph `fit`: one table, as edits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from numbers import Integral
from typing import Any, NamedTuple

from graphtrain import Graph, UsageError, suggestion


class GraphEdit(NamedTuple):
    """A call of a verb of `Graph`.

    >>> print(GraphEdit("set", ("accumulate",), {"every": 4}))
    .set("accumulate", every=4)
    """

    verb: str
    arguments: tuple[str, ...]
    keywords: Mapping[str, Any] = {}

    def __str__(self) -> str:
        words = [*map(_text, self.arguments), *(f"{name}={_text(value)}" for name, value in self.keywords.items())]
        return f".{self.verb}({', '.join(words)})"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else repr(value)


Edits = list[GraphEdit]
Given = Mapping[str, Any]
"""All arguments of the Trainer that are given, and `batches` of an epoch, or None."""
Meaning = Callable[[Any, Given], Edits]
"""Makes edits of the value of an argument, or of the arguments of a callback."""


def _set(node: str, **parameters: Any) -> Edits:
    return [GraphEdit("set", (node,), parameters)]


def _overlay(name: str, **parameters: Any) -> Edits:
    return [GraphEdit("overlay", (name,)), *(_set(name, **parameters) if parameters else [])]


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
        raise UsageError(f'{name}: expected a time as "DD:HH:MM:SS" or a timedelta, got {_text(time)}') from None


def _ending(_: Any, given: Given) -> Edits:
    amounts = {unit: given.get(f"max_{unit}") for unit in ("epochs", "steps")}
    after = [f"{amount} {unit}" for unit, amount in amounts.items() if amount not in (None, -1)]
    after += [_seconds("max_time", given["max_time"])] if given.get("max_time") is not None else []
    return _set("finish", after=_any_of(after or ["never" if -1 in amounts.values() else "1000 epochs"]))


def _limit(node: str, value: Any, batches: int | None = None) -> Edits:
    if value is None or (isinstance(value, float) and value == 1.0):
        return []
    # Lightning rounds a share down as it is in binary: 0.29 of 100 batches are 28.
    return _set(node, limit=int(value * batches) if isinstance(value, float) and batches else value)


def _validations(_: Any, given: Given) -> Edits:
    interval, epochs = given.get("val_check_interval", 1.0), given.get("check_val_every_n_epoch", 1)
    if not isinstance(interval, int | float):
        every = _seconds("val_check_interval", interval)
    elif isinstance(interval, int):
        every = f"{interval} {'batches' if epochs is None else 'epoch_batches'}"
    elif interval < 1.0 and given.get("batches"):
        every = f"{max(int(given['batches'] * interval), 1)} epoch_batches"
    else:
        every = f"{interval if interval < 1.0 else epochs} epochs"
    edits = _set("validate", every=every)
    if (epochs or 1) > 1 and interval != 1.0:
        guard = f"validate.due and next_batch.epoch % {epochs} == {epochs - 1}"
        edits += [GraphEdit("guard", ("val_check_batch", guard))]
    return edits


def _clip(_: Any, given: Given) -> Edits:
    value, algorithm = given.get("gradient_clip_val"), given.get("gradient_clip_algorithm") or "norm"
    if not value:
        return []
    by_value = getattr(algorithm, "value", algorithm) == "value"
    return _set("clip", max_value=value) if by_value else _set("clip", max_norm=value)


def _precision(value: Any, _: Given) -> Edits:
    known = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true", "None": "32-true"}
    name = known.get(str(value), str(value))
    special: dict[str, Edits] = {"32-true": [], "16-mixed": _overlay("fp16")}
    return special.get(name, _set("train_batch", precision=name))


def _dry(value: Any, _: Given) -> Edits:
    number = int(value or 0)
    edits = _set("next_batch", limit=number) + _set("validate/next_batch", limit=number)
    return edits + _set("validate", every="1 epochs") + _set("finish", after="1 epochs") if number else []


def _model_checkpoint(arguments: Given, _: Given) -> Edits:
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
    return _set("checkpoint", every=_any_of(every), **more) if most else _set("checkpoint", every="never")


def _early_stopping(arguments: Given, given: Given) -> Edits:
    names = ("monitor", "mode", "patience", "stopping_threshold", "divergence_threshold", "check_finite")
    kept = {name: arguments[name] for name in names if arguments.get(name) is not None}
    kept.setdefault("mode", "min")
    kept |= {"min_delta": abs(arguments["min_delta"])} if arguments.get("min_delta") else {}
    kept |= {"min_epochs": float(given["min_epochs"])} if given.get("min_epochs") else {}
    edits = _overlay("early_stop", **kept)
    if given.get("min_steps"):
        guard = f"finish.due or (early_stop.stop and step.steps >= {given['min_steps']} and "
        edits += [GraphEdit("guard", ("ending", f"{guard}next_batch.epochs >= early_stop.min_epochs)"))]
    return edits


def _accumulation(arguments: Given, _: Given) -> Edits:
    scheduling = {0: 1, **(arguments.get("scheduling") or {})}
    text = str(scheduling.pop(0))
    for epoch, factor in sorted(scheduling.items()):
        text = f"{factor} if next_batch.epoch >= {epoch} else {text}"
    return _set("accumulate", reads={"every": text})


def _weight_averaging(arguments: Given, given: Given) -> Edits:
    start = arguments.get("swa_epoch_start", 0.8)
    first = start if isinstance(start, int) else int((given.get("max_epochs") or 1000) * start)
    return [*_overlay("swa"), *_overlay("update_bn"), *_set("swa", from_=f"{first} epochs")]


def _timer(arguments: Given, given: Given) -> Edits:
    duration = arguments.get("duration")
    if arguments.get("interval", "step") != "step":
        raise UsageError('Timer(interval="epoch"): a run ends with the step at which the time is up', "leave it out")
    if isinstance(duration, float):  # the object has it in seconds
        duration = timedelta(seconds=duration)
    return _ending(None, {**given, "max_time": duration})


CALLBACKS: Mapping[str, Meaning] = {
    "ModelCheckpoint": _model_checkpoint,
    "EarlyStopping": _early_stopping,
    "LearningRateMonitor": lambda arguments, given: [],  # every row of `log` has `lr`
    "GradientAccumulationScheduler": _accumulation,
    "StochasticWeightAveraging": _weight_averaging,
    "Timer": _timer,
    "OnExceptionCheckpoint": lambda arguments, given: [],  # a run that failed resumes from its last checkpoint
}
"""The callbacks that are edits, by the names of their classes."""

# Callbacks that only show something.
SHOWN = ("ProgressBar", "TQDMProgressBar", "RichProgressBar", "ModelSummary", "RichModelSummary", "DeviceStatsMonitor")


def _callbacks(pairs: Any, given: Given) -> Edits:
    """The edits of callbacks that are given as pairs of a name and its arguments."""
    return [edit for name, more in pairs or () if name in CALLBACKS for edit in CALLBACKS[name](more, given)]


ELSEWHERE: Mapping[str, str] = {
    "min_epochs": "a condition of what ends a run early: `early_stop.min_epochs`",
    "min_steps": "a condition of what ends a run early: the guard `ending`",
    "limit_test_batches": "`next_batch.limit` of the graph `test`",
    "limit_predict_batches": "`next_batch.limit` of the graph `predict`",
    "num_sanity_val_steps": "`--overlay sanity`; `--dry-run` tries everything once",
    "logger": "`metrics.jsonl` is always written, and a logger that is given gets every row",
    **dict.fromkeys(
        ("accelerator", "devices", "num_nodes", "strategy", "use_distributed_sampler"),
        "where a run is: `Trainer(..., device=...)`, `--device`; several processes by `--processes`",
    ),
    "sync_batchnorm": "not yet: every process normalizes by its own batches",
    "default_root_dir": "`--run-dir`, or `Trainer(..., run_dir=...)`; a run that is started again is resumed",
    "ckpt_path": "`--resume`; the weights of a .ckpt are loaded by `ckpt_path` of the adapter",
    "weights_only": "never anything else: a checkpoint has no pickle",
    **dict.fromkeys(("enable_progress_bar", "enable_model_summary"), "`--quiet`, or `Trainer(..., display=None)`"),
    "deterministic": "`--deterministic`, or `Trainer(..., deterministic=True)`",
    **dict.fromkeys(("benchmark", "detect_anomaly"), "a switch of torch, which the script sets itself"),
    "inference_mode": "evaluation runs under `torch.no_grad()`",
    "profiler": "`graphtrain report RUN`: seconds of each node",
    "barebones": "the graph does no hidden work",
    "plugins": "a kind of its own, by `replace`",
    "reload_dataloaders_every_n_epochs": "data is opened again in every epoch",
    "enable_autolog_hparams": "arguments are saved with the run",
    "model_registry": "a checkpoint is a folder with `model.safetensors`",
}
"""Arguments of the Trainer that no edit of a graph is, with where it is done."""

# Of those that would change the run, the values with which there is nothing to do.
_DONE: Mapping[str, tuple[Any, ...]] = {
    "devices": ("auto", 1, "1", [0]),
    "num_nodes": (1,),
    "strategy": ("auto", "single_device"),
    "plugins": (None, []),
    "deterministic": (None, False),
    "reload_dataloaders_every_n_epochs": (0,),
    **dict.fromkeys(("sync_batchnorm", "detect_anomaly"), (False,)),
}

FLAGS: Mapping[str, Meaning | str] = {
    **dict.fromkeys(("max_epochs", "max_steps", "max_time"), _ending),
    "limit_train_batches": lambda value, given: _limit("next_batch", value, given["batches"]),
    "limit_val_batches": lambda value, given: (
        _set("validate", every="never") if value == 0 else _limit("validate/next_batch", value)
    ),
    "overfit_batches": lambda value, given: _set("next_batch", overfit=value) if value else [],
    "fast_dev_run": _dry,
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), _validations),
    "log_every_n_steps": lambda value, given: _set("log", every=f"{value} steps" if value else "never"),
    "accumulate_grad_batches": lambda value, given: _set("accumulate", every=value),
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm"), _clip),
    "precision": _precision,
    "callbacks": _callbacks,
    "enable_checkpointing": lambda value, given: _set("checkpoint", every="never") if value is False else [],
    **ELSEWHERE,
}
"""Every argument of Lightning's Trainer: what makes its edits, or where it is done instead."""


_INTEGERS = ("max_epochs", "max_steps", "min_epochs", "min_steps", "check_val_every_n_epoch", "log_every_n_steps")
# What a node would not refuse by the name of the argument; None is always taken.
_EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_INTEGERS, ("an integer", lambda each: isinstance(each, Integral) and not isinstance(each, bool))),
    "fast_dev_run": ("an integer, true or false", lambda value: isinstance(value, Integral)),
    "enable_checkpointing": ("true or false", lambda value: isinstance(value, bool)),
    "gradient_clip_algorithm": ('"norm" or "value"', lambda value: getattr(value, "value", value) in ("norm", "value")),
    "callbacks": ("callbacks, from a script", lambda value: not isinstance(value, bool | float | int | str)),
}


def check_flags(flags: Given) -> None:
    """Refuse what is no argument of Lightning's Trainer, and a value that would change the run and is no edit.

    Raises:
        UsageError: there is one, with where it is done.
    """
    for name, value in flags.items():
        if name not in FLAGS:
            rows = "docs/coming-from-lightning.md has a row for each argument of Lightning 2.6"
            raise UsageError(f"Lightning's Trainer has no argument `{name}`", suggestion(name, FLAGS) or rows)
        expected, is_expected = _EXPECTED.get(name, ("", lambda value: True))
        if value is not None and not is_expected(value):
            raise UsageError(f"{name}: expected {expected}, got {_text(value)}")
        if name in _DONE and value not in _DONE[name]:
            raise UsageError(f"{name}={value!r} is nothing that the graph does", ELSEWHERE[name])


def edits_of(flags: Given, batches: int | None = None) -> dict[str, Edits | str]:
    """What each argument is, by its name: edits, of which the first of several that make one has it, or a sentence.

    Arguments:
        flags: the arguments; `callbacks` as pairs of the name of a class and its arguments.
        batches: of an epoch, for shares that Lightning rounds. Default: they are not known.

    >>> edits = edits_of({"max_epochs": 3, "max_steps": 500, "gradient_clip_val": 0.5})
    >>> print(*edits["max_epochs"], edits["max_steps"], *edits["gradient_clip_val"])
    .set("finish", after=["3 epochs", "500 steps"]) [] .set("clip", max_norm=0.5)
    """
    given, found = {**flags, "batches": batches}, dict[str, Edits | str]()
    for name, value in flags.items():
        meaning = FLAGS[name]
        made = any(FLAGS[other] is meaning for other in found)
        found[name] = meaning if isinstance(meaning, str) else [] if made else meaning(value, given)
    return found


def with_flags(graph: Graph, flags: Given, batches: int | None = None) -> Graph:
    """A graph with the edits of these arguments."""
    for edits in edits_of(flags, batches).values():
        for edit in edits if isinstance(edits, list) else ():
            graph = getattr(graph, edit.verb)(*edit.arguments, **edit.keywords)
    return graph
