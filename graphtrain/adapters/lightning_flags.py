"""What the arguments of Lightning's Trainer, and of its callbacks, are in the graph `fit`: one table, as edits.

The adapter applies it to values, and ``graphtrain from-lightning`` to the text of a script; neither this module nor the
command imports Lightning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphtrain import Graph, UsageError, suggestion


@dataclass(frozen=True)
class GraphEdit:
    """A call of a verb of `Graph`.

    >>> print(GraphEdit("set", ("accumulate",), {"every": 4}))
    .set("accumulate", every=4)
    """

    verb: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, graph: Graph) -> Graph:
        """The graph with the edit."""
        edited: Graph = getattr(graph, self.verb)(*self.arguments, **self.keywords)
        return edited

    def __str__(self) -> str:
        words = [_text(value) for value in self.arguments]
        words += [f"{name}={_text(value)}" for name, value in self.keywords.items()]
        return f".{self.verb}({', '.join(words)})"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else repr(value)


Edits = list[GraphEdit] | str
"""The edits, or a sentence that says where it is done instead."""
Given = Mapping[str, Any]


def _set(node: str, **parameters: Any) -> list[GraphEdit]:
    return [GraphEdit("set", (node,), parameters)]


def _ending(_: Any, given: Given) -> list[GraphEdit]:
    epochs, steps, time = (given.get(name) for name in ("max_epochs", "max_steps", "max_time"))
    after = [f"{epochs} epochs"] if epochs not in (None, -1) else []
    after += [f"{steps} steps"] if steps not in (None, -1) else []
    after += [f"{_seconds(time)} seconds"] if time is not None else []
    if not after:
        after = ["never"] if epochs == -1 or steps == -1 else ["1000 epochs"]
    return _set("finish", after=after if len(after) > 1 else after[0])


def _seconds(time: Any) -> int:
    """The seconds of a `max_time`: ``"DD:HH:MM:SS"``, a mapping of units, or a timedelta."""
    units = {"weeks": 604800, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    if isinstance(time, str):
        numbers = [int(part) for part in time.split(":")]
        return sum(number * unit for number, unit in zip(numbers, (86400, 3600, 60, 1), strict=True))
    if isinstance(time, Mapping):
        return int(sum(units[name] * value for name, value in time.items()))
    return int(time.total_seconds())


def _limit(node: str, value: Any, batches: int | None) -> Edits:
    if value is None or (isinstance(value, float) and value == 1.0):
        return []
    # Lightning rounds a share down as it is in binary: 0.29 of 100 batches are 28.
    share = int(value * batches) if isinstance(value, float) and batches else value
    return _set(node, limit=share)


def _validations(_: Any, given: Given) -> Edits:
    interval, epochs = given.get("val_check_interval", 1.0), given.get("check_val_every_n_epoch", 1)
    if isinstance(interval, float) and interval < 1.0:
        batches = given.get("batches")
        every = f"{max(int(batches * interval), 1)} epoch_batches" if batches else f"{interval} epochs"
    elif isinstance(interval, int):
        every = f"{interval} {'batches' if epochs is None else 'epoch_batches'}"
    elif isinstance(interval, float):
        every = f"{epochs} epochs"
    else:
        every = f"{_seconds(interval)} seconds"
    edits = _set("validate", every=every)
    if isinstance(epochs, int) and epochs > 1 and not every.endswith(" epochs"):
        guard = f"validate.due and next_batch.epoch % {epochs} == {epochs - 1}"
        edits += [GraphEdit("guard", ("val_check_batch", guard))]
    return edits


def _clip(_: Any, given: Given) -> Edits:
    value, algorithm = given.get("gradient_clip_val"), given.get("gradient_clip_algorithm") or "norm"
    if not value:
        return []
    if str(getattr(algorithm, "value", algorithm)) == "value":
        return [GraphEdit("overlay", ("clip_value",)), *_set("clip_value", max_value=value)]
    return _set("clip", max_norm=value)


def _precision(value: Any, _: Given) -> Edits:
    known = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true", "None": "32-true"}
    name = known.get(str(value), str(value))
    if name == "32-true":
        return []
    return [GraphEdit("overlay", ("fp16",))] if name == "16-mixed" else _set("train_batch", precision=name)


def _dry(value: Any, _: Given) -> Edits:
    if not value:
        return []
    number = int(value)
    edits = _set("next_batch", limit=number) + _set("validate/next_batch", limit=number)
    return [*edits, *_set("validate", every="1 epochs"), *_set("finish", after="1 epochs")]


def _callbacks(callbacks: Any, given: Given) -> Edits:
    """The edits of callbacks that are given as pairs of a name and its arguments."""
    edits: list[GraphEdit] = []
    for name, arguments in callbacks or ():
        if name in CALLBACKS:
            edits += CALLBACKS[name](arguments, given)
    return edits


def _model_checkpoint(arguments: Given, given: Given) -> list[GraphEdit]:
    every: list[str] = []
    if arguments.get("every_n_train_steps"):
        every += [f"{arguments['every_n_train_steps']} steps"]
    if arguments.get("train_time_interval") is not None:
        every += [f"{_seconds(arguments['train_time_interval'])} seconds"]
    if arguments.get("every_n_epochs") or not every:
        every += [f"{arguments.get('every_n_epochs') or 1} epochs"]
    monitor, most = arguments.get("monitor"), arguments.get("save_top_k", 1)
    if most == 0:
        return _set("checkpoint", every="never")
    more: dict[str, Any] = {"keep": 1_000_000} if most == -1 else {}
    if monitor is not None:
        more |= {"best": monitor, "best_mode": arguments.get("mode", "min")}
        more |= {"keep_best": most} if most > 1 else {}
    return _set("checkpoint", every=every if len(every) > 1 else every[0], **more)


def _early_stopping(arguments: Given, given: Given) -> list[GraphEdit]:
    names = ("monitor", "mode", "patience", "stopping_threshold", "divergence_threshold", "check_finite")
    kept = {name: arguments[name] for name in names if arguments.get(name) is not None}
    kept.setdefault("mode", "min")
    if arguments.get("min_delta"):
        kept["min_delta"] = abs(arguments["min_delta"])
    if given.get("min_epochs"):
        kept["min_epochs"] = float(given["min_epochs"])
    edits = [GraphEdit("overlay", ("early_stop",)), *_set("early_stop", **kept)]
    if given.get("min_steps"):
        guard = f"finish.due or (early_stop.stop and step.steps >= {given['min_steps']} and "
        edits += [GraphEdit("guard", ("ending", f"{guard}next_batch.epochs >= early_stop.min_epochs)"))]
    return edits


def _accumulation(arguments: Given, given: Given) -> list[GraphEdit]:
    scheduling: dict[int, int] = dict(sorted((arguments.get("scheduling") or {}).items()))
    text = str(scheduling.pop(0, 1))
    for epoch, factor in scheduling.items():
        text = f"{factor} if next_batch.epoch >= {epoch} else {text}"
    return _set("accumulate", reads={"every": text})


def _weight_averaging(arguments: Given, given: Given) -> list[GraphEdit]:
    start = arguments.get("swa_epoch_start", 0.8)
    first = start if isinstance(start, int) else int((given.get("max_epochs") or 1000) * start)
    added = [GraphEdit("overlay", ("swa",)), GraphEdit("overlay", ("update_bn",))]
    return [*added, *_set("swa", from_=f"{first} epochs")]


CALLBACKS: Mapping[str, Callable[[Given, Given], list[GraphEdit]]] = {
    "ModelCheckpoint": _model_checkpoint,
    "EarlyStopping": _early_stopping,
    "LearningRateMonitor": lambda arguments, given: [],  # every row of `log` has `lr`
    "GradientAccumulationScheduler": _accumulation,
    "StochasticWeightAveraging": _weight_averaging,
    "Timer": lambda arguments, given: _ending(None, {**given, "max_time": arguments.get("duration")}),
}
"""The callbacks that are edits, by the names of their classes."""

# Callbacks that only show something.
SHOWN = ("ProgressBar", "TQDMProgressBar", "RichProgressBar", "ModelSummary", "RichModelSummary", "DeviceStatsMonitor")


_DEVICE = "where a run is: `Trainer(..., device=...)`, `--device`; several processes by `--processes`"
_RUN_DIR = "`--run-dir`, or `Trainer(..., run_dir=...)`; a run that is started again is resumed"
_DISPLAY = "`--quiet`, or `Trainer(..., display=None)`"
_TORCH = "a switch of torch, which the script sets itself"

ELSEWHERE: Mapping[str, str] = {
    "min_epochs": "a condition of what ends a run early: `early_stop.min_epochs`",
    "min_steps": "a condition of what ends a run early: the guard `ending`",
    "limit_test_batches": "`next_batch.limit` of the graph `test`",
    "limit_predict_batches": "`next_batch.limit` of the graph `predict`",
    "num_sanity_val_steps": "`--overlay sanity`; `--dry-run` tries everything once",
    "logger": "`metrics.jsonl` is always written, and a logger that is given gets every row",
    **dict.fromkeys(("accelerator", "devices", "num_nodes", "strategy", "use_distributed_sampler"), _DEVICE),
    "sync_batchnorm": "not yet: every process normalizes by its own batches",
    "default_root_dir": _RUN_DIR,
    "ckpt_path": "`--resume`; the weights of a .ckpt are loaded by `ckpt_path` of the adapter",
    "weights_only": "never anything else: a checkpoint has no pickle",
    **dict.fromkeys(("enable_progress_bar", "enable_model_summary"), _DISPLAY),
    "deterministic": "`--deterministic`, or `Trainer(..., deterministic=True)`",
    **dict.fromkeys(("benchmark", "detect_anomaly"), _TORCH),
    "inference_mode": "evaluation runs under `torch.no_grad()`",
    "profiler": "`graphtrain render --seconds --run-dir RUN`",
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
    "sync_batchnorm": (False,),
    "plugins": (None, []),
    "deterministic": (None, False),
    "detect_anomaly": (False,),
    "reload_dataloaders_every_n_epochs": (0,),
}

FLAGS: Mapping[str, Callable[[Any, Given], Edits]] = {
    **dict.fromkeys(("max_epochs", "max_steps", "max_time"), _ending),
    "limit_train_batches": lambda value, given: _limit("next_batch", value, given.get("batches")),
    "limit_val_batches": lambda value, given: (
        _limit("validate/next_batch", value, None) if value != 0 else _set("validate", every="never")
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
    **{name: lambda value, given, sentence=sentence: sentence for name, sentence in ELSEWHERE.items()},  # type: ignore[misc]
}
"""Every argument of Lightning's Trainer, with what it is here."""


def check_flags(names: Iterable[str]) -> None:
    """Refuse an argument that Lightning's Trainer does not have.

    Raises:
        UsageError: there is no such argument.
    """
    for name in names:
        if name not in FLAGS:
            hint = (
                suggestion(name, FLAGS) or "docs/coming-from-lightning.md has a row for each argument of Lightning 2.6"
            )
            raise UsageError(f"Lightning's Trainer has no argument `{name}`", hint)


def check_done(flags: Given) -> None:
    """Refuse a value that asks for what no edit of a graph is and would change the run.

    Raises:
        UsageError: there is one, with where it is done.
    """
    for name, done in _DONE.items():
        if name in flags and flags[name] not in done:
            raise UsageError(f"{name}={flags[name]!r} is nothing that the graph does", ELSEWHERE[name])


def edits_of(flags: Given, batches: int | None = None) -> dict[str, Edits]:
    """What each argument is, by its name; of several that make one edit, the first has it.

    Arguments:
        flags: the arguments; `callbacks` as pairs of the name of a class and its arguments.
        batches: of an epoch, for shares that Lightning rounds. Default: they are not known.

    >>> edits = edits_of({"max_epochs": 3, "max_steps": 500, "gradient_clip_val": 0.5})
    >>> print(*edits["max_epochs"], edits["max_steps"], *edits["gradient_clip_val"])
    .set("finish", after=["3 epochs", "500 steps"]) [] .set("clip", max_norm=0.5)
    """
    check_flags(flags)
    given = {**flags, "batches": batches}
    found: dict[str, Edits] = {}
    made: set[Any] = set()
    for name, value in flags.items():
        translate = FLAGS[name]
        found[name] = [] if translate in made else translate(value, given)
        if translate in (_ending, _validations, _clip):
            made.add(translate)
    return found


def with_flags(graph: Graph, flags: Given, batches: int | None = None) -> Graph:
    """A graph with the edits of these arguments."""
    every = (edit for edits in edits_of(flags, batches).values() if isinstance(edits, list) for edit in edits)
    return functools.reduce(lambda edited, edit: edit.applied(edited), every, graph)
