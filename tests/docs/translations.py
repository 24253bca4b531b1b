"""The rows of the page about Lightning as cases that can be run: its options, and what the page has for them."""

from __future__ import annotations

import ast
import re
import shlex
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from graphtrain import Graph, Trainer, Trigger, node, progress
from tests.docs.blocks import read_blocks
from tests.docs.small_training import Materials, Record, Training

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-lightning.md"


@dataclass(frozen=True)
class Translation:
    """An option of Lightning, and its equivalent.

    Arguments:
        name: of the case.
        row: the name in the first column of the page.
        options: of Lightning's Trainer, beyond those of `small_training`: three epochs, each with a validation.
        spans: the equivalent, as in the second column: ``accumulate.every = N``.
        letters: what stands for the letters in it.
        graph: the name of a graph in a Python block of the page. Default: the shipped `fit`.
        beyond: settings that the row does not name: those that the other options of the case need.
        callbacks: of Lightning, arguments by name.
        training: what is trained.
        stop: how Lightning stops otherwise, as the page says: it "validates" once more; or it also "drops" the open
            window, which is stepped here. Default: in the same way.
    """

    name: str
    row: str
    options: Mapping[str, Any] = field(default_factory=dict)
    spans: tuple[str, ...] = ()
    letters: Mapping[str, str] = field(default_factory=dict)
    graph: str = "fit"
    beyond: tuple[str, ...] = ()
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    stop: Literal["", "validates", "drops"] = ""

    def as_json(self) -> dict[str, Any]:
        """Lightning's side of the case."""
        return {"training": vars(self.training), "trainer": dict(self.options), "callbacks": dict(self.callbacks)}


_FALLS_ONCE = (1.0, 0.9, 0.95, 0.96, 0.97, 0.8, 0.7, 0.6, 0.5, 0.4)
_PATIENCE = {"EarlyStopping": {"monitor": "val_loss", "patience": 3}}
_AT_ONCE = {"EarlyStopping": {"monitor": "val_loss", "patience": 1}}

TRANSLATIONS = [
    Translation("max_epochs", "max_epochs", {"max_epochs": 2}, ('finish.after = "N epochs"',), {"N": "2"}),
    Translation(
        "max_steps",
        "max_steps",
        {"max_steps": 14, "max_epochs": -1},
        ('finish.after = "N steps"',),
        {"N": "14"},
    ),
    Translation(
        "max_steps in a window",
        "max_steps",
        {"max_steps": 5, "max_epochs": -1, "accumulate_grad_batches": 4},
        ('finish.after = "N steps"',),
        {"N": "5"},
        beyond=("accumulate.every = 4",),
    ),
    Translation(
        "max_time in a window",
        "max_time",
        {"max_time": {"seconds": 7}, "max_epochs": 3, "accumulate_grad_batches": 4},
        ('finish.after = "N minutes"',),
        {"N": "7/60"},
        beyond=("accumulate.every = 4",),
        stop="drops",
    ),
    Translation(
        "max_time",
        "max_time",
        {"max_time": {"seconds": 7}},
        ('finish.after = "N minutes"',),
        {"N": "7/60"},
        stop="validates",
    ),
    Translation(
        "limit_train_batches", "limit_train_batches", {"limit_train_batches": 7}, ("next_batch.limit = N",), {"N": "7"}
    ),
    Translation(
        "limit_train_batches in windows",
        "limit_train_batches",
        {"limit_train_batches": 7, "accumulate_grad_batches": 4},
        ("next_batch.limit = N",),
        {"N": "7"},
        beyond=("accumulate.every = 4",),
    ),
    Translation(
        "limit_train_batches, beyond the data",
        "limit_train_batches",
        {"limit_train_batches": 12},
        ("next_batch.limit = N",),
        {"N": "12"},
    ),
    Translation(
        "limit_train_batches, a fraction",
        "limit_train_batches",
        {"limit_train_batches": 0.29, "max_epochs": 1},
        ("next_batch.limit = N",),
        {"N": str(int(0.29 * 100))},
        beyond=('finish.after = "1 epochs"',),
        training=Training(batches=100),
    ),
    Translation(
        "limit_val_batches",
        "limit_val_batches",
        {"limit_val_batches": 2},
        ("validate/next_batch.limit = N",),
        {"N": "2"},
    ),
    Translation(
        "limit_val_batches, a fraction",
        "limit_val_batches",
        {"limit_val_batches": 0.29, "max_epochs": 1},
        ("validate/next_batch.limit = N",),
        {"N": str(int(0.29 * 100))},
        beyond=('finish.after = "1 epochs"',),
        training=Training(val=(100,)),
    ),
    Translation(
        "limit_val_batches, none", "limit_val_batches", {"limit_val_batches": 0}, ('validate.every = "never"',)
    ),
    Translation(
        "overfit_batches",
        "overfit_batches",
        {"overfit_batches": 2},
        ("next_batch.overfit = N", "validate/next_batch.overfit = N"),
        {"N": "2"},
    ),
    Translation(
        "fast_dev_run",
        "fast_dev_run",
        {"fast_dev_run": True},
        ("next_batch.limit=1 validate/next_batch.limit=1 validate.every='1 epochs' finish.after='1 epochs'",),
    ),
    Translation(
        "fast_dev_run of two batches, in a window",
        "fast_dev_run",
        {"fast_dev_run": 2, "accumulate_grad_batches": 4},
        ("next_batch.limit=1 validate/next_batch.limit=1 validate.every='1 epochs' finish.after='1 epochs'",),
        {"limit=1": "limit=2"},
        beyond=("accumulate.every = 4",),
    ),
    Translation(
        "val_check_interval",
        "val_check_interval",
        {"val_check_interval": 4},
        ('validate.every = "N epoch_batches"',),
        {"N": "4"},
    ),
    Translation(
        "val_check_interval, a fraction that divides the epoch",
        "val_check_interval",
        {"val_check_interval": 0.25},
        ('validate.every = "0.25 epochs"',),
        training=Training(batches=12),
    ),
    Translation(
        "val_check_interval, a fraction that does not",
        "val_check_interval",
        {"val_check_interval": 0.25},
        ('validate.every = "N epoch_batches"',),
        {"N": str(int(0.25 * 10))},
    ),
    Translation(
        "val_check_interval, a fraction with a remainder",
        "val_check_interval",
        {"val_check_interval": 0.25},
        ('validate.every = "N epoch_batches"',),
        {"N": str(int(0.25 * 33))},
        training=Training(batches=33),
    ),
    Translation(
        "val_check_interval across epochs",
        "val_check_interval",
        {"val_check_interval": 14, "check_val_every_n_epoch": None},
        ('validate.every = "N batches"',),
        {"N": "14"},
    ),
    Translation(
        "val_check_interval of time",
        "val_check_interval",
        {"val_check_interval": "00:00:00:04"},
        ('validate.every = "15 minutes"',),
        {"15": "4/60"},
    ),
    Translation(
        "check_val_every_n_epoch",
        "check_val_every_n_epoch",
        {"check_val_every_n_epoch": 2, "max_epochs": 5},
        ('validate.every = "N epochs"',),
        {"N": "2"},
        beyond=('finish.after = "5 epochs"',),
    ),
    Translation(
        "check_val_every_n_epoch, and within them",
        "check_val_every_n_epoch",
        {"check_val_every_n_epoch": 2, "val_check_interval": 5, "max_epochs": 5},
        graph="second",
        beyond=('finish.after = "5 epochs"',),
    ),
    Translation("num_sanity_val_steps", "num_sanity_val_steps", {"num_sanity_val_steps": 2}, graph="sane"),
    Translation(
        "log_every_n_steps", "log_every_n_steps", {"log_every_n_steps": 4}, ('log.every = "N steps"',), {"N": "4"}
    ),
    Translation(
        "log_every_n_steps in windows",
        "log_every_n_steps",
        {"log_every_n_steps": 2, "accumulate_grad_batches": 4},
        ('log.every = "N steps"',),
        {"N": "2"},
        beyond=("accumulate.every = 4",),
    ),
    Translation(
        "accumulate_grad_batches",
        "accumulate_grad_batches",
        {"accumulate_grad_batches": 4},
        ("accumulate.every = N",),
        {"N": "4"},
    ),
    Translation(
        "accumulate_grad_batches, and validation in a window",
        "accumulate_grad_batches",
        {"accumulate_grad_batches": 4, "val_check_interval": 3},
        ("accumulate.every = N",),
        {"N": "4"},
        beyond=('validate.every = "3 epoch_batches"',),
    ),
    Translation(
        "accumulate_grad_batches with a scheduler",
        "accumulate_grad_batches",
        {"accumulate_grad_batches": 4},
        ("accumulate.every = N",),
        {"N": "4"},
        training=Training(schedule="step"),
    ),
    Translation(
        "the options of the module that is ported",
        "accumulate_grad_batches",
        {"accumulate_grad_batches": 4, "gradient_clip_val": 1.0, "val_check_interval": 0.25, "log_every_n_steps": 10},
        beyond=(
            *("accumulate.every = 4", "clip.max_norm = 1.0"),
            *('validate.every = "8 epoch_batches"', 'log.every = "10 steps"'),
        ),
        training=Training(batches=33, schedule="step"),
    ),
    Translation(
        "GradientAccumulationScheduler",
        "GradientAccumulationScheduler",
        {"max_epochs": 4},
        graph="scheduled",
        beyond=('finish.after = "4 epochs"',),
        callbacks={"GradientAccumulationScheduler": {"scheduling": {"0": 1, "2": 4}}},
    ),
    Translation(
        "gradient_clip_val",
        "gradient_clip_val",
        {"gradient_clip_val": 0.5},
        ("clip.max_norm = X",),
        {"X": "0.5"},
    ),
    Translation(
        "gradient_clip_val in windows",
        "gradient_clip_val",
        {"gradient_clip_val": 0.5, "accumulate_grad_batches": 4},
        ("clip.max_norm = X",),
        {"X": "0.5"},
        beyond=("accumulate.every = 4",),
    ),
    Translation(
        "gradient_clip_algorithm",
        "gradient_clip_algorithm",
        {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"},
        graph="clipped",
    ),
    Translation(
        "precision",
        "precision",
        {"precision": "bf16-mixed"},
        ('train_batch.precision = "bf16-mixed"',),
    ),
    Translation(
        "a scheduler of epochs",
        "lr_scheduler_step",
        spans=('schedule.every = "1 epochs"',),
        training=Training(schedule="epoch"),
    ),
    Translation(
        "hooks",
        "on_train_epoch_start",
        {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
        beyond=("accumulate.every = 2", "clip.max_norm = 0.5"),
        training=Training(batches=5, hooks=True),
    ),
    Translation("val_dataloaders", "val_dataloaders", graph="both", training=Training(val=(3, 2))),
    Translation(
        "EarlyStopping",
        "EarlyStopping",
        {"max_epochs": 10},
        graph="stopping",
        callbacks=_PATIENCE,
        beyond=('finish.after = "10 epochs"',),
        training=Training(val_losses=_FALLS_ONCE),
    ),
    Translation(
        "min_epochs",
        "min_epochs",
        {"max_epochs": 10, "min_epochs": 3},
        ("next_batch.epochs >= 3",),
        graph="stopping",
        callbacks=_AT_ONCE,
        beyond=('finish.after = "10 epochs"', "patience.patience = 1"),
        training=Training(val_losses=(1.0, 2.0, 3.0, 4.0)),
    ),
    Translation(
        "min_epochs, and a loss that improves after patience is exhausted",
        "min_epochs",
        {"max_epochs": 10, "min_epochs": 3},
        ("next_batch.epochs >= 3",),
        graph="stopping",
        callbacks=_AT_ONCE,
        beyond=('finish.after = "10 epochs"', "patience.patience = 1"),
        training=Training(val_losses=(1.0, 2.0, 0.5, 0.4, 0.3)),
    ),
    Translation(
        "min_epochs, with validations in mid-epoch",
        "min_epochs",
        {"max_epochs": 10, "min_epochs": 3, "val_check_interval": 5},
        ("next_batch.epochs >= 3",),
        graph="stopping",
        callbacks=_AT_ONCE,
        beyond=('finish.after = "10 epochs"', "patience.patience = 1", 'validate.every = "5 epoch_batches"'),
        training=Training(val_losses=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)),
    ),
    Translation(
        "min_steps",
        "min_steps",
        {"max_epochs": 10, "min_epochs": 3, "min_steps": 15, "accumulate_grad_batches": 2},
        ("next_batch.epochs >= 3", "step.steps >= 15"),
        graph="stopping",
        callbacks=_AT_ONCE,
        beyond=('finish.after = "10 epochs"', "patience.patience = 1", "accumulate.every = 2"),
        training=Training(val_losses=(1.0, 2.0, 3.0, 4.0, 5.0)),
    ),
    Translation(
        "min_steps in mid-epoch",
        "min_steps",
        {"max_epochs": 10, "min_epochs": 3, "min_steps": 15, "accumulate_grad_batches": 3},
        ("next_batch.epochs >= 3", "step.steps >= 15"),
        graph="stopping",
        callbacks=_AT_ONCE,
        beyond=('finish.after = "10 epochs"', "patience.patience = 1", "accumulate.every = 3"),
        training=Training(val_losses=(1.0, 2.0, 3.0, 4.0, 5.0)),
        stop="validates",
    ),
    Translation(
        "LearningRateMonitor",
        "LearningRateMonitor",
        {"log_every_n_steps": 4},
        callbacks={"LearningRateMonitor": {"logging_interval": "step"}},
        beyond=('log.every = "4 steps"',),
        training=Training(schedule="step"),
    ),
    Translation(
        "every_n_train_steps",
        "every_n_train_steps",
        {},
        ('checkpoint.every = "N steps"',),
        {"N": "4"},
        callbacks={"ModelCheckpoint": {"every_n_train_steps": 4, "save_top_k": -1}},
        beyond=("checkpoint.keep = 1000",),
    ),
    Translation(
        "every_n_epochs",
        "every_n_epochs",
        {"max_epochs": 5},
        ('checkpoint.every = "N epochs"',),
        {"N": "2"},
        callbacks={"ModelCheckpoint": {"every_n_epochs": 2, "save_top_k": -1}},
        beyond=("checkpoint.keep = 1000", 'finish.after = "5 epochs"'),
    ),
    Translation(
        "save_top_k",
        "save_top_k",
        {"max_epochs": 6},
        ("checkpoint.keep_best = N", 'checkpoint.best = "val/loss"'),
        {"N": "2"},
        callbacks={"ModelCheckpoint": {"monitor": "val_loss", "save_top_k": 2, "every_n_epochs": 1}},
        beyond=('checkpoint.every = "1 epochs"', "checkpoint.keep = 1", 'finish.after = "6 epochs"'),
        training=Training(val_losses=(1.0, 0.5, 0.7, 0.4, 0.9, 0.8)),
    ),
    Translation(
        "monitor and mode",
        "mode",
        {"max_epochs": 6},
        ('checkpoint.best = "val/loss"', 'checkpoint.best_mode = "max"'),
        callbacks={"ModelCheckpoint": {"monitor": "val_loss", "mode": "max", "save_top_k": 1, "every_n_epochs": 1}},
        beyond=('checkpoint.every = "1 epochs"', "checkpoint.keep = 1", 'finish.after = "6 epochs"'),
        training=Training(val_losses=(0.5, 1.0, 0.7, 0.4, 0.9, 0.8)),
    ),
]


def settings_of(span: str) -> list[tuple[str, str, Any]]:
    """Nodes, parameters and values that a code span sets.

    >>> settings_of('validate.every = "0.25 epochs"')
    [('validate', 'every', '0.25 epochs')]
    >>> settings_of("next_batch.limit=2 finish.after='1 epochs'")
    [('next_batch', 'limit', 2), ('finish', 'after', '1 epochs')]
    """
    parts = [span.split(" = ", 1)] if " = " in span else [word.split("=", 1) for word in shlex.split(span)]
    settings = []
    for name, text in parts:
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        owner, _, parameter = name.rpartition(".")
        settings.append((owner, parameter, value))
    return settings


def with_letters(span: str, letters: Mapping[str, str]) -> str:
    """The span with numbers in place of its letters.

    >>> with_letters('finish.after = "N epochs"', {"N": "3"})
    'finish.after = "3 epochs"'
    """
    for letter, value in letters.items():
        span = re.sub(rf"\b{re.escape(letter)}\b", value, span)
    return span


@cache
def graphs_of_the_page() -> dict[str, Graph]:
    """Every graph that a Python block of the page assigns to a name."""
    namespace: dict[str, Any] = {"__name__": "page"}
    exec("import torch\nfrom torch import nn\nfrom graphtrain import Graph, Trainer, node", namespace)  # noqa: S102
    for block in read_blocks(PAGE):
        if block.language != "python" or block.words or "Graph.load" not in block.text:
            continue
        # Definitions only: what runs a training is for the test of the page.
        kept = [statement for statement in ast.parse(block.text).body if not _trains(statement)]
        exec(compile(ast.Module(kept, []), str(PAGE), "exec"), namespace)  # noqa: S102
    return {name: value for name, value in namespace.items() if isinstance(value, Graph)}


def _trains(statement: ast.stmt) -> bool:
    """True for what is neither an import, nor a definition, nor the assignment of a graph."""
    if isinstance(statement, ast.Assign):
        return not ast.unparse(statement.value).startswith("Graph.load(")
    return not isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)


@node
class Second:
    """A clock by which every batch takes a second."""

    seconds: int = progress(0)

    def __call__(self) -> None:
        self.seconds += 1


def graph_of(translation: Translation) -> Graph:
    """The graph of the translation: that of the page, with the settings of its row."""
    graph = Graph.load("fit") if translation.graph == "fit" else graphs_of_the_page()[translation.graph]
    settings = ['finish.after = "3 epochs"', 'checkpoint.every = "never"', *translation.beyond]
    settings += [with_letters(span, translation.letters) for span in translation.spans if ">=" not in span]
    for owner, parameter, value in (setting for span in settings for setting in settings_of(span)):
        graph = graph.set(owner, **{parameter: value})
    if translation.training.hooks:
        graph = with_hooks(graph)
    if any("minutes" in span for span in translation.spans):
        graph = graph.insert("second", Second, before="train_batch").clock("seconds", "second.seconds")
    return graph


# Where each hook goes, as the page has it.
HOOK_SPANS = {
    "on_train_epoch_start": 'after="begin_epoch"',
    "on_train_batch_start": 'before="train_batch"',
    "on_after_backward": 'after="train_batch"',
    "on_before_optimizer_step": 'between=("accumulate", "clip")',
    "on_before_zero_grad": 'before="zero_grad"',
    "on_train_batch_end": 'before="decide"',
    "on_train_epoch_end": 'after="end_epoch"',
    "on_validation_start": 'after="begin_evaluation"',
    "on_validation_batch_start": 'before="eval_batch"',
    "on_validation_batch_end": 'after="eval_batch"',
    "on_validation_end": 'after="validate"',
}


@node
def called(hook: Callable[[str], None], *, label: str) -> None:
    """Record the call of a hook."""
    hook(label)


@node
class CalledForEveryBatch:
    """The same, once for every batch."""

    label: str
    every: Trigger = Trigger("1 batches")

    def __call__(self, hook: Callable[[str], None]) -> None:
        hook(self.label)


def with_hooks(graph: Graph) -> Graph:
    """The graph with a node for every hook."""
    body = graph.nodes["validate"].body
    assert body is not None
    for name, span in HOOK_SPANS.items():
        kind = CalledForEveryBatch if name == "on_train_batch_end" else called
        (keyword,) = ast.parse(f"insert({span})", mode="eval").body.keywords  # type: ignore[attr-defined]
        place = {keyword.arg: ast.literal_eval(keyword.value)}
        if name.startswith("on_validation") and name != "on_validation_end":
            body = body.insert(name, kind, label=name, **place)
        else:
            graph = graph.insert(name, kind, label=name, **place)
    return graph.set("validate", graph=body)


def run(translation: Translation) -> Record:
    """Train with graphtrain."""
    materials = Materials(translation.training)
    rows: list[list[Any]] = []

    def logger(metrics: Mapping[str, Any], step: int) -> None:
        if "loss" in metrics:
            rate = [metrics["lr"]] if "LearningRateMonitor" in translation.callbacks else []
            rows.append([step, metrics["loss"], *rate])

    def training_step(model: Any, batch: Any, epoch: int, batch_idx: int, step: int) -> Any:
        return materials.train_loss(batch, epoch, batch_idx, step, trainer.read("next_batch.last"))

    def validation_step(model: Any, batch: Any, batch_idx: int) -> Any:
        return {"loss": materials.val_loss(batch, batch_idx)}

    names = ("val_data", "noisy_data")
    resources = dict(zip(names, materials.val_data, strict=False))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            graph_of(translation),
            run_dir=f"{folder}/run" if "ModelCheckpoint" in translation.callbacks else None,
            device="cpu",
            loggers=[logger],
            display=None,
            notify=lambda line: None,
            model=materials.model,
            optimizer=materials.optimizer,
            train_data=materials.train_data,
            training_step=training_step,
            validation_step=validation_step,
            **resources,
            **({} if materials.scheduler is None else {"scheduler": materials.scheduler}),
            **({"hook": materials.hook} if translation.training.hooks else {}),
        )
        trainer.run()
        steps = [int(path.name.rpartition("-")[2]) for path in sorted(Path(folder).glob("run/checkpoints/0*"))]
    validations = [name for name in ("validate", "validate_noisy") if name in trainer.graph.nodes]
    batches = [trainer.read(f"{name}/next_batch.epoch_length") for name in validations]
    materials.record.more = {
        "steps": trainer.read("step.steps"),
        "batches": [trainer.read("next_batch.epoch_length"), *batches],
        "rows": rows,
        "checkpoints": steps,
    }
    return materials.finished()
