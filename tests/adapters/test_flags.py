"""The flags of Lightning's Trainer as edits, without Lightning."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from graphtrain import Graph, UsageError
from graphtrain.adapters.lightning_flags import FLAGS, check_flags, with_flags

FIT = Graph.load("fit")
EDITS: list[tuple[dict[str, Any], Graph]] = [
    ({"max_epochs": 3}, FIT.set("finish", after="3 epochs")),
    ({"max_steps": 10}, FIT.set("finish", after="10 steps")),
    ({"max_epochs": 3, "max_steps": 10}, FIT.set("finish", after=["3 epochs", "10 steps"])),
    ({"max_epochs": -1}, FIT.set("finish", after="never")),
    ({"max_time": "00:01:00:00"}, FIT.set("finish", after="3600 seconds")),
    ({"limit_train_batches": 0.25}, FIT.set("next_batch", limit=0.25)),
    ({"limit_val_batches": 0}, FIT.set("validate", every="never")),
    ({"val_check_interval": 100}, FIT.set("validate", every="100 epoch_batches")),
    ({"val_check_interval": 100, "check_val_every_n_epoch": None}, FIT.set("validate", every="100 batches")),
    ({"check_val_every_n_epoch": 2}, FIT.set("validate", every="2 epochs")),
    ({"accumulate_grad_batches": 4}, FIT.set("accumulate", every=4)),
    ({"gradient_clip_val": 0.5}, FIT.set("clip", max_norm=0.5)),
    ({"precision": "bf16"}, FIT.set("train_batch", precision="bf16-mixed")),
    ({"precision": "16-mixed"}, FIT.overlay("fp16")),
    ({"log_every_n_steps": 5}, FIT.set("log", every="5 steps")),
    ({"overfit_batches": 2}, FIT.set("next_batch", overfit=2)),
    ({"enable_checkpointing": False}, FIT.set("checkpoint", every="never")),
]


@pytest.mark.parametrize(("flags", "graph"), EDITS)
def test_a_flag_is_an_edit(flags: dict[str, Any], graph: Graph) -> None:
    assert with_flags(FIT, flags) == graph
    endless = flags.get("max_epochs") == -1
    assert [problem.code for problem in graph.check()] == ["G504"] * endless


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_epochs": "two"}, "max_epochs: expected an integer, got 'two'"),
        ({"max_steps": True}, "max_steps: expected an integer, got True"),
        ({"check_val_every_n_epoch": [1]}, "check_val_every_n_epoch: expected an integer, got [1]"),
        ({"fast_dev_run": "two"}, "fast_dev_run: expected an integer, true or false, got 'two'"),
        ({"enable_checkpointing": "no"}, "enable_checkpointing: expected true or false, got 'no'"),
        ({"gradient_clip_algorithm": "two"}, 'gradient_clip_algorithm: expected "norm" or "value", got \'two\''),
        ({"callbacks": "two"}, "callbacks: expected callbacks, from a script, got 'two'"),
        ({"precision": "64-true"}, "precision='64-true' is nothing that the graph does"),
        ({"max_time": "1:2"}, "max_time: expected a time as \"DD:HH:MM:SS\" or a timedelta, got '1:2'"),
        ({"max_time": 60}, 'max_time: expected a time as "DD:HH:MM:SS" or a timedelta, got 60'),
        ({"val_check_interval": {"day": 1}}, "val_check_interval: expected a time as"),
    ],
    ids=str,
)
def test_a_flag_of_another_type(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_flags(flags)
        with_flags(FIT, flags)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("name", FLAGS)
def test_no_flag_of_another_type_is_an_error_of_python(name: str) -> None:
    for value in ("two", 1.5, -3, True, [1], {"a": 1}, None, 0, "1"):
        with suppress(UsageError):
            check_flags({name: value})
            with_flags(FIT, {name: value} if name != "callbacks" else {}, batches=10)


def test_shares_are_rounded_as_lightning_rounds_them() -> None:
    graph = with_flags(Graph.load("fit"), {"limit_train_batches": 0.29, "val_check_interval": 0.25}, batches=100)
    assert graph.nodes["next_batch"].parameters["limit"] == 28
    assert graph.nodes["validate"].parameters["every"] == "25 epoch_batches"
