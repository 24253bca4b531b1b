"""Suggestions for unknown names: the nearest known name, or the equivalent of a name of another framework."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

# The settings of `graphtrain.fit`, each with its edit of the graph: the node, the parameter, and the unit of an amount.
FIT: dict[str, tuple[str, str, str]] = {
    "epochs": ("finish", "after", "epochs"),
    "steps": ("finish", "after", "steps"),
    "accumulate": ("accumulate", "every", ""),
    "clip": ("clip", "max_norm", ""),
    "precision": ("train_batch", "precision", ""),
    "compile": ("train_batch", "compile", ""),
    "train_batches": ("next_batch", "limit", ""),
    "validate_every": ("validate", "every", ""),
    "validate_batches": ("validate/next_batch", "limit", ""),
    "schedule_every": ("schedule", "every", ""),
    "log_every": ("log", "every", ""),
    "save_every": ("checkpoint", "every", ""),
    "keep": ("checkpoint", "keep", ""),
    "best": ("checkpoint", "best", ""),
    "best_mode": ("checkpoint", "best_mode", ""),
    "ema": ("ema", "decay", ""),
    "early_stop": ("early_stop", "patience", ""),
}

# Names of Lightning and Hugging Face's TrainingArguments, and common names of data, and their equivalents.
FOREIGN: dict[str, str] = {
    **{
        name: f"`{node}.{parameter} = " + (f'"N {unit}"`' if unit else "X`")
        for name, (node, parameter, unit) in FIT.items()
        if name not in ("accumulate", "best_mode", "clip", "ema", "early_stop")  # or the name is that of a node
    },
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
    "limit_train_batches": "`next_batch.limit = N`",
    "limit_val_batches": "`validate/next_batch.limit = N`",
    "log_every_n_steps": '`log.every = "N steps"`',
    "logging_steps": '`log.every = "N steps"`',
    "save_steps": '`checkpoint.every = "N steps"`',
    "save_total_limit": "`checkpoint.keep = N`",
    "ckpt_path": "`--resume`, or `trainer.run(resume=...)`",
    "train_dataloader": "the resource `train_data`",
    "train_loader": "the resource `train_data`",
    "train_dataset": "the resource `train_data`",
    "val_dataloader": "the resource `val_data`",
    "val_loader": "the resource `val_data`",
    "eval_dataset": "the resource `val_data`",
    "criterion": "a part of `training_step(model, batch)`, which returns the loss",
    "lr_scheduler": "the resource `scheduler`",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is most likely a misspelling of, or None.

    >>> nearest("chekpoint", ["checkpoint", "clip"])
    'checkpoint'
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: what another library's is called here, or the nearest; empty if there is none.

    >>> suggestion("max_epochs", ["after"])
    'that is `finish.after = "N epochs"` here'
    >>> suggestion("aftr", ["after"])
    'did you mean `after`?'
    """
    known = sorted(known)
    if name in FOREIGN and name not in known:
        return f"that is {FOREIGN[name]} here"
    if (match := nearest(name, known)) is not None:
        return f"did you mean `{match}`?"
    return "known: " + ", ".join(known) if 0 < len(known) <= 20 else ""


def in_natural_order(name: str) -> list[tuple[int, str]]:
    """A key for sorting by which whole numbers are compared as numbers: ``run-10`` comes after ``run-9``.

    >>> sorted(["run-10", "run-9", "a"], key=in_natural_order)
    ['a', 'run-9', 'run-10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


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
    return ".".join([part for part in name.split(".") if part != "_orig_mod"]) if "_orig_mod" in name else name


def plainly_named(named: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """What a method such as `named_parameters` returns, with these names."""
    return [(plain_name(name), value) for name, value in named]
