"""Every row by one or several means: whole, cut in the second epoch, and resumed, each in a process of its own.

    python -m tests.resume.peers.compare MEANS ANSWERS [ROW ...]

`MEANS` is one of `MEANS` below; `ANSWERS`, a JSON file, is written: row -> result, one of

* "exact": losses, weights and optimizer of the resumed run are those of the run that was never cut;
* "differs: ...": what is not, without a word of warning; "differs (warned): ...": after a warning of the resume;
* "reported: ..." (graphtrain alone): that the resume is not exact, and why; or the refusal;
* "error: ...": the exception that saving or resuming ended with;
* "-: ...": the row cannot be expressed.
"""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # here once, and not in every copy of this process: the first step of an optimizer imports it

from tests.resume.setups import ROWS
from tests.rows_elsewhere import Killed, NotExpressibleError, Train

MEANS = {
    "graphtrain": "with_graphtrain:train",
    "by hand": "by_hand:train",
    "Lightning": "with_lightning:train",
    "Lightning, stateful loader": "with_lightning:train_with_position",
    "Transformers": "with_transformers:train",
}
PEERS = ("Lightning", "Lightning, stateful loader", "Transformers")
"""Those that have an environment of their own, and are run on the rows `OF_ALL`."""

# What Lightning and Transformers can express, each of another nature; all have seven batches.
OF_ALL = (
    "plain",
    "dropout",
    "batch_norm",
    "counter_in_forward",
    "hidden_state",
    "replay_buffer_in_a_model",
    "old_weight_norm",
    "spectral_norm",
    "teacher_in_a_closure",
    "three_global_generators",
    "sgd_with_momentum",
    "adam_whose_groups_share_a_rate",
    "lambda_with_a_counter",
    "schedules_in_a_sequence",
    "counter_in_a_closure",
    "task_object",
    "replay_buffer",
    "shuffled_loader",
    "shuffled_loader_with_a_generator",
    "transform_with_state",
)
BATCHES = 4
"""Of the second epoch, before the cut: 11 of 14 in all, no multiple of a short period."""
USUAL_LENGTH = 7  # of an epoch, where a loop by hand cannot tell

_SECONDS = 120


def result(train: Train, name: str, folder: Path) -> str:
    """What a resume gives."""
    whole = _forked(train, name, folder / "whole")
    if "not expressible" in whole:
        return f"-: {whole['not expressible']}"
    if "refused" in whole:
        return f"reported: {_short(whole['refused'])}"
    if "error" in whole:
        return f"-: {_short(whole['error'])}"
    counted = whole if "losses" in whole else _forked(train_of("by hand"), name, folder / "length")
    losses = counted.get("losses", ())
    first, second = (sum(place == epoch for place, _ in losses) or USUAL_LENGTH for epoch in (0, 1))
    cut = _forked(train, name, folder / "cut", cut=first + (BATCHES if second > BATCHES else BATCHES // 2))
    if "error" in cut:
        return f"error: {_short(cut['error'])}"
    if "losses" in cut:
        return "-: it ends before the cut"
    assert cut == {"killed": True} or "refused" in cut, cut
    resumed = cut if "refused" in cut else _forked(train, name, folder / "cut", resume=True)
    if "error" in resumed:
        return f"error: {_short(resumed['error'])}"
    if "refused" in resumed:
        return f"reported: {_short(resumed['refused'])}"
    if "not exact" in (report := resumed.pop("report", "")):
        return f"reported: {_short(report.partition('not exact: ')[2])}"
    warned = " (warned)" if resumed.pop("warned", False) else ""
    different = [
        what for what in whole if what not in ("report", "warned") and not _same(what, whole[what], resumed[what])
    ]
    return f"differs{warned}: {', '.join(different)}" if different else "exact"


def train_of(means: str) -> Train:
    """What trains a row by some means, imported now: a framework may be missing."""
    module, _, function = MEANS[means].partition(":")
    return getattr(importlib.import_module(f"tests.resume.peers.{module}"), function)  # type: ignore[no-any-return]


def _same(what: str, whole: Any, resumed: Any) -> bool:
    return bool(whole[-len(resumed) :] == resumed) if what == "losses" else bool(whole == resumed)


def _short(message: str) -> str:
    return " ".join(message.split())[:200]


def _forked(train: Train, name: str, folder: Path, **options: Any) -> dict[str, Any]:
    """What `train` returns in a copy of this process, which has trained nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "answer.json"
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(train, name, folder, options, file))
    process.start()
    process.join(_SECONDS)
    if process.exitcode is None:
        process.kill()
    if process.exitcode != 0:
        return {"error": f"exit code {process.exitcode}"}
    answer = dict(json.loads(file.read_text(encoding="utf-8")))
    file.unlink()
    return answer


def _answer(train: Train, name: str, folder: Path, options: dict[str, Any], file: Path) -> None:
    answer: dict[str, Any]
    try:
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            answer = train(name, folder, **options)
        said = [str(each.message) for each in warned if not issubclass(each.category, ResourceWarning)]
        if any("resum" in text for text in said):
            answer["warned"] = True
    except Killed:
        answer = {"killed": True}
    except NotExpressibleError as error:
        answer = {"not expressible": str(error)}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    file.write_text(json.dumps(answer), encoding="utf-8")


def results(means: str, names: Iterable[str]) -> dict[str, str]:
    """Row -> result, for rows whose libraries are installed."""
    train, answers = train_of(means), dict[str, str]()
    for name in names:
        library = ROWS[name].requires
        if library and find_spec(library) is None:
            continue
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:  # noqa: S108
            answers[name] = result(train, name, Path(folder))
    return answers


def main(means: str, answers: str, *names: str) -> None:
    """Write the results of all rows, or of those that are named."""
    rows = names or (OF_ALL if means in PEERS else tuple(ROWS))
    Path(answers).write_text(json.dumps(results(means, rows), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
