"""Suggestions for unknown names: the nearest known name, or the equivalent of a name of another framework."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

# What names of Lightning, of TrainingArguments, of `graphtrain.fit`, and common names of data are called in a graph.
_MEANT = {
    '`finish.after = "N epochs"`': "epochs max_epochs num_train_epochs",
    '`finish.after = "N steps"`': "steps max_steps",
    '`finish.after = "N minutes"`': "max_time",
    "`accumulate.every = N`": "accumulate_grad_batches gradient_accumulation_steps",
    "`clip.max_norm = X`": "gradient_clip_val max_grad_norm",
    '`validate.every = "N epoch_batches"` or `validate.every = "0.25 epochs"`': "val_check_interval",
    '`validate.every = "N epochs"`': "validate_every check_val_every_n_epoch",
    '`validate.every = "N steps"`': "eval_steps",
    "`next_batch.limit = N`": "train_batches limit_train_batches",
    "`validate/next_batch.limit = N`": "validate_batches limit_val_batches",
    '`schedule.every = "N steps"`': "schedule_every",
    '`log.every = "N steps"`': "log_every log_every_n_steps logging_steps",
    '`checkpoint.every = "N steps"`': "save_every save_steps",
    "`checkpoint.keep = N`": "save_total_limit",
    "`--resume`, or `trainer.run(resume=...)`": "ckpt_path",
    "the resource `train_data`": "train_dataloader train_loader train_dataset",
    "the resource `val_data`": "val_dataloader val_loader eval_dataset",
    "the resource `scheduler`": "lr_scheduler",
    "a part of `training_step(model, batch)`, which returns the loss": "criterion",
}
_FOREIGN = {name: meant for meant, names in _MEANT.items() for name in names.split()}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is most likely a misspelling of, or None.

    >>> nearest("chekpoint", ["checkpoint", "clip"])
    'checkpoint'
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def suggestion(name: str, known: Iterable[str], foreign: Mapping[str, str] = _FOREIGN) -> str:
    """A hint for an unknown name: what a foreign one is called here, or the nearest; empty if there is none.

    >>> suggestion("max_epochs", ["after"])
    'that is `finish.after = "N epochs"` here'
    >>> suggestion("aftr", ["after"])
    'did you mean `after`?'
    """
    known = sorted(known)
    if name in foreign and name not in known:
        same = [f"`{each}`" for each in known if foreign.get(each) == foreign[name]]
        return f"that is {', '.join(same) or foreign[name]} here"
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
