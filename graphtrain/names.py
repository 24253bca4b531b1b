"""Suggestions for unknown names: the nearest known name, or the equivalent of a name of another framework."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

# The settings of `graphtrain.fit`, each with its edit of the graph `fit`: N stands for a number, X for any value.
FIT: dict[str, str] = {
    "epochs": 'finish.after = "N epochs"',
    "steps": 'finish.after = "N steps"',
    "accumulate": "accumulate.every = N",
    "clip": "clip.max_norm = X",
    "precision": 'train_batch.precision = "X"',
    "compile": "train_batch.compile = X",
    "train_batches": "next_batch.limit = N",
    "validate_every": 'validate.every = "X"',
    "validate_batches": "validate/next_batch.limit = N",
    "schedule_every": 'schedule.every = "X"',
    "log_every": 'log.every = "X"',
    "save_every": 'checkpoint.every = "X"',
    "keep": "checkpoint.keep = N",
    "best": 'checkpoint.best = "X"',
    "best_mode": 'checkpoint.best_mode = "X"',
    "ema": "--overlay ema ema.decay = X",
    "early_stop": "--overlay early_stop early_stop.patience = N",
}

# Names of Lightning and Hugging Face's TrainingArguments, and common names of data, and their equivalents.
FOREIGN: dict[str, str] = {
    **{name: f"`{edit}`" for name, edit in FIT.items() if name not in ("best_mode", "ema", "early_stop")},
    "max_epochs": '`finish.after = "N epochs"`',
    "num_train_epochs": '`finish.after = "N epochs"`',
    "max_steps": '`finish.after = "N steps"`',
    "max_time": '`finish.after = "N minutes"`',
    "accumulate_grad_batches": "`accumulate.every = N`",
    "gradient_accumulation_steps": "`accumulate.every = N`",
    "gradient_clip_val": "`clip.max_norm = X`",
    "max_grad_norm": "`clip.max_norm = X`",
    "val_check_interval": '`validate.every = "N epoch_batches"` or `validate.every = "0.25 epochs"`',
    "check_val_every_n_epoch": '`validate.every = "N epochs"`',
    "eval_steps": '`validate.every = "N steps"`',
    "eval_strategy": '`validate.every = "1 epochs"` or `"N steps"`',
    "limit_train_batches": "`next_batch.limit = N`",
    "limit_val_batches": "`validate/next_batch.limit = N`",
    "log_every_n_steps": '`log.every = "N steps"`',
    "logging_steps": '`log.every = "N steps"`',
    "save_steps": '`checkpoint.every = "N steps"`',
    "save_total_limit": "`checkpoint.keep = N`",
    "save_top_k": '`checkpoint.keep_best = N` with `checkpoint.best = "val/loss"`',
    "default_root_dir": "`--run-dir D`, or `Trainer(..., run_dir=D)`",
    "output_dir": "`--run-dir D`, or `Trainer(..., run_dir=D)`",
    "resume_from_checkpoint": "`--resume`, or `trainer.run(resume=...)`",
    "ckpt_path": "`--resume`, or `trainer.run(resume=...)`",
    "accelerator": "`Trainer(..., device=...)`",
    "train_dataloader": "the resource `train_data`",
    "train_dataloaders": "the resource `train_data`",
    "val_dataloader": "the resource `val_data`",
    "val_dataloaders": "the resource `val_data`",
    "eval_dataset": "the resource `val_data`",
    "train_dataset": "the resource `train_data`",
    "train_loader": "the resource `train_data`",
    "val_loader": "the resource `val_data`",
    "criterion": "a part of `training_step(model, batch)`, which returns the loss",
    "loss_fn": "a part of `training_step(model, batch)`, which returns the loss",
    "lr_scheduler": "the resource `scheduler`",
    "configure_optimizers": "the resources `optimizer` and `scheduler`",
    "learning_rate": "the learning rate of the `optimizer` that `setup` returns",
    "precision": '`train_batch.precision = "bf16-mixed"`',
    "overfit_batches": "`next_batch.overfit = N`",
    "fast_dev_run": (
        "`next_batch.limit=1 validate/next_batch.limit=1 validate.every='1 epochs' finish.after='1 epochs'`"
    ),
    "min_epochs": "a condition such as `next_batch.epochs >= 3` in the guard that stops",
    "logger": "`loggers=[...]`",
    "callbacks": "a node for each, added with `graph.insert(...)`",
    "n_epochs": '`finish.after = "N epochs"`',
    "num_epochs": '`finish.after = "N epochs"`',
    "grad_accum": "`accumulate.every = N`",
    "grad_clip": "`clip.max_norm = X`",
    "fp16": '`train_batch.precision = "bf16-mixed"`',
    "bf16": '`train_batch.precision = "bf16-mixed"`',
    "optim": "the resource `optimizer`",
    "valid_data": "the resource `val_data`",
    "gpus": "`--processes N`",
    "devices": "`--processes N`",
}


_EDIT = re.compile(r"(?:--overlay (\w+) )?([\w/]+)\.(\w+) = ([^`]+)")


def edit_named(edit: str, value: Any) -> tuple[str, str, str, Any]:
    """The overlay, the node, the parameter and its value of an edit in `FIT`, in which a value is put.

    >>> edit_named('finish.after = "N epochs"', 3), edit_named("--overlay ema ema.decay = X", 0.99)
    (('', 'finish', 'after', '3 epochs'), ('ema', 'ema', 'decay', 0.99))
    """
    match = _EDIT.fullmatch(edit)
    assert match is not None, edit
    overlay, node, parameter, template = match.groups(default="")
    text = template.strip('"')
    return overlay, node, parameter, value if text in ("N", "X") else text.replace("N", f"{value}")


def takes_number(edit: str) -> bool:
    """True for an edit in `FIT` in which a number is put.

    >>> takes_number('finish.after = "N epochs"'), takes_number('log.every = "X"')
    (True, False)
    """
    return re.search(r"\bN\b", edit) is not None


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that `name` is most likely a misspelling of, or None; `cutoff` is how alike they have to be.

    >>> nearest("chekpoint", ["checkpoint", "clip"])
    'checkpoint'
    """
    known = list(known)
    folded = {candidate.casefold().replace("-", "_"): candidate for candidate in known}
    match = folded.get(name.casefold().replace("-", "_"))
    if match is not None:
        return match
    matches = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return matches[0] if matches else None


def suggestion(name: str, known: Iterable[str], foreign: Mapping[str, str] = FOREIGN, *, cutoff: float = 0.6) -> str:
    """A hint for an unknown name; empty if there is none.

    Arguments:
        foreign: names of other libraries and their equivalents, which go first. Default: those of settings.
        cutoff: as of `nearest`.

    >>> suggestion("max_epochs", ["after"])
    'that is `finish.after = "N epochs"` here'
    >>> suggestion("aftr", ["after"])
    'did you mean `after`?'
    """
    known = sorted(known)
    if name in foreign:
        return f"that is {foreign[name]} here"
    match = nearest(name, known, cutoff)
    if match is not None:
        return f"did you mean `{match}`?"
    if 0 < len(known) <= 20:
        return "known: " + ", ".join(known)
    return ""


# A number with a sign where it cannot be a hyphen, a fraction where it is no version, and an exponent; or digits.
_NUMBER = re.compile(
    r"((?:(?<![^=,_/])[+-])?(?<![A-Za-z0-9.])(?:\d+\.)?\d+(?:[eE][+-]?\d+)?(?![A-Za-z0-9.])|\d+)", re.ASCII
)


def in_natural_order(name: str) -> list[tuple[float, str]]:
    """A key for sorting by which numbers are compared as numbers: ``run-10`` comes after ``run-9``.

    >>> sorted(["run-10", "run-9", "a"], key=in_natural_order)
    ['a', 'run-9', 'run-10']
    >>> sorted(["lr=0.001", "lr=1e-05", "lr=0.0003", "lr=8", "lr=-1", "lr=-0.5"], key=in_natural_order)
    ['lr=-1', 'lr=-0.5', 'lr=1e-05', 'lr=0.0003', 'lr=0.001', 'lr=8']
    >>> sorted(["v1.10.0", "v1.9.0"], key=in_natural_order)
    ['v1.9.0', 'v1.10.0']
    """
    parts = enumerate(_NUMBER.split(name))  # texts and numbers in turn
    return [(int(part) if part.isdecimal() else float(part), "") if i % 2 else (0, part) for i, part in parts]


def quoted(names: Iterable[str], most: int = 6) -> str:
    """Names for a message, the first of them where there are many.

    >>> quoted(["clip", "step"]), quoted(["clip", "step"], 1)
    ('`clip`, `step`', '`clip` and 1 more')
    """
    texts = [f"`{name}`" for name in names]
    return ", ".join(texts) if len(texts) <= most else f"{', '.join(texts[:most])} and {len(texts) - most} more"


def plain_name(name: str) -> str:
    """The name that a module or a weight has without `torch.compile`, which puts a module into another one.

    >>> plain_name("_orig_mod.body.0._orig_mod.weight")
    'body.0.weight'
    """
    return ".".join([part for part in name.split(".") if part != "_orig_mod"])


def plainly_named(named: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """What a method such as `named_parameters` returns, with these names."""
    return [(plain_name(name) if "_orig_mod" in name else name, value) for name, value in named]
