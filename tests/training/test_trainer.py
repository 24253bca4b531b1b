"""Promises 3, 7 and 11: what a trainer says of its run, what is bypassed, its seeds, metrics and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Edge, Graph, LifeCycleError, Loader, Node, Outcome, UsageError, fit, node, progress
from tests.training.tiny import FIT, batches, squared, tiny
from tests.world import world

NO_VALIDATION = "no `val_data`, so `validate` does not run"
READING = FIT.guard("log_due", "log.due and validate/next_batch.batches > 3 and validate.runs > 1 and validate.due")


def schedule() -> dict[str, Any]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


@pytest.mark.parametrize(
    ("graph", "supplied", "line", "bypassed"),
    [
        (FIT, {"val_data"}, None, {"exchange", "clip", "schedule"}),
        (FIT.set("clip", max_norm=1.0), {"val_data", "scheduler"}, None, {"exchange"}),
        (FIT, {"scheduler"}, NO_VALIDATION, {"exchange", "clip", "validate"}),
        (FIT, {}, NO_VALIDATION, {"exchange", "clip", "validate", "schedule"}),
        (READING, {}, NO_VALIDATION, {"exchange", "clip", "validate", "schedule", "log"}),
    ],
)  # fmt: skip
def test_a_node_without_work_is_bypassed_and_its_resource_named(
    graph: Graph, supplied: set[str], line: str | None, bypassed: set[str]
) -> None:
    said: list[str] = []
    given = {
        **(schedule() if "scheduler" in supplied else {}),
        **({"val_data": batches(1)} if "val_data" in supplied else {}),
    }
    trainer = tiny(graph.set("log", every="1 steps"), said=said, **given)
    assert said == ([line] if line else [])
    trainer.run()
    ran = {path.partition("/")[0] for path, fields in trainer.progress.items() if fields["runs"]}
    assert {name for name in graph.nodes if name not in ran} - {"end_epoch", "checkpoint"} == bypassed
    assert "there is no run directory, so no checkpoint is written" in said and len(said) == len({*said})


def test_a_run_that_is_finished_says_so_when_it_is_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    tiny(fit(steps=2), tmp_path, said=said).run()
    again = tiny(fit(steps=2, clip=1.0), tmp_path, said=said)
    assert again.run() is again.run() is Outcome.ALREADY_FINISHED
    (line,) = [line for line in said if "nothing is run" in line]
    assert "the run was finished before" in line and "exact except for what changed" in line and "clip.max_norm" in line


# ---- what decides, and what is reported


@pytest.mark.parametrize(
    ("graph", "names"),
    [
        (fit(), ""),  # `checkpoint` observes
        (FIT.set("validate", every=["1 epochs", "5 minutes"]), "`validate`"),
        (FIT.set("validate", **{"every": "1 epochs", "from": "5 minutes"}), "`validate`"),
        (FIT.guard("log_due", "log.due and late").guard("late", "next_batch.seconds > 3"),
         "the guard `late`"),
        (FIT.set("clip", reads={"max_norm": "1 + next_batch.seconds"}).set("finish", after="5 minutes"),
         "`finish`, `clip.max_norm`"),
    ],
)  # fmt: skip
def test_what_depends_on_the_clock_is_said(graph: Graph, names: str) -> None:
    said: list[str] = []
    tiny(graph, said=said, val_data=batches(1))
    timed = [line for line in said if line.startswith("wall-clock time decides about ")]
    assert timed == [line for line in timed if f"about {names}: a resumed run may differ" in line]
    assert bool(timed) == bool(names)


def test_an_object_with_state_that_nothing_reads_is_saved_and_reported() -> None:
    said: list[str] = []
    trainer = tiny(said=said, average=nn.Linear(1, 1))
    assert "nothing in the graph reads `average`" in said
    assert "average" in trainer.resources


def test_a_scheduler_of_an_optimizer_that_is_not_supplied_is_reported() -> None:
    said: list[str] = []
    model = nn.Linear(1, 1)
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: 0.5) for each in (optimizer, other)]
    tiny(said=said, model=model, optimizer=optimizer, scheduler=schedulers)
    assert [line for line in said if "not supplied" in line] == [
        "`scheduler[1]` changes the learning rate of an optimizer that was not supplied"
    ]


def test_a_number_of_transitions_is_none_or_more() -> None:
    with pytest.raises(UsageError, match="n: expected an integer of at least 0; got -3"):
        tiny().advance(-3)


def test_a_model_that_would_train_in_evaluation_mode_is_reported() -> None:
    """Pretrained models come so, and a cell of a notebook may have left it so; nobody would notice."""
    said: list[str] = []
    trainer = tiny(said=said, val_data=batches(3))
    trainer.run(before="validate/eval_batch")
    trainer.run(until="1 epochs")
    assert not [line for line in said if "evaluation mode" in line], "the evaluation puts it back"
    trainer.resources["model"].eval()
    trainer.run()
    assert [line for line in said if "`model` trains in evaluation mode: " in line]


@pytest.mark.parametrize("is_copy", [False, True], ids=["of another type", "of a copy"])
def test_a_first_step_without_gradients_is_reported(is_copy: bool) -> None:
    model = nn.Linear(1, 1).bfloat16()
    tensors = [nn.Parameter(tensor.clone() if is_copy else tensor.float()) for tensor in model.parameters()]
    said: list[str] = []
    data = [torch.ones(2, 1, dtype=torch.bfloat16)]
    tiny(model=model, optimizer=torch.optim.SGD(tensors, lr=0.1), train_data=data, said=said).run()
    (line,) = [line for line in said if "has a gradient" in line]
    assert line.endswith("was it created with the parameters of the model that is trained?")


def test_a_run_that_ends_with_a_loss_that_is_not_finite_says_since_when(tmp_path: Path) -> None:
    def faulty(model: Any, batch: Any, step: int) -> Any:
        return squared(model, batch) * (math.nan if step >= 2 else 1)

    graph = fit(epochs=2, log_every="1 steps")
    trainer = tiny(graph, tmp_path, training_step=faulty)
    assert trainer.run() is Outcome.FINISHED
    assert json.loads((tmp_path / "status.json").read_text())["not_finite"].startswith(
        "`loss` is not finite since step 3"
    )


# ---- step functions, metrics


def test_the_models_own_methods_are_used() -> None:
    calls: list[str] = []

    class Model(nn.Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            calls.append(f"train {batch_idx}")
            return {"loss": self(batch).mean(), "size": len(batch)}

        def validation_step(self, batch: Any) -> Any:
            calls.append("validate")
            assert not self.training and not torch.is_grad_enabled()
            return {"answer": 42}

    trainer = tiny(model=Model(1, 1), training_step=None, val_data=batches(1))
    trainer.run()
    assert calls[:7] == ["train 0", "train 1", "train 2", "train 3", "train 4", "validate", "train 0"]
    assert [row["val/answer"] for row in trainer.metrics if "val/answer" in row] == [42, 42]


def test_loggers_get_every_row_and_losses_are_means_over_samples() -> None:
    rows: list[tuple[Mapping[str, float], int]] = []
    trainer = tiny(
        fit(epochs=1, log_every="2 steps"),
        loggers=[lambda row, step: rows.append((row, step))],
        train_data=[torch.full((count, 1), float(count)) for count in (1, 2, 3)],
        training_step=lambda model, batch: {"loss": model(batch).mean(), "size": batch.mean()},
    )
    trainer.run()
    assert [step for _, step in rows] == [2, 3, 3]
    assert rows[0][0]["size"] == pytest.approx((1 * 1 + 2 * 2) / 3)
    assert rows[1][0]["epoch/size"] == pytest.approx((1 + 4 + 9) / 6)
    assert trainer.metrics == [dict(row) for row, _ in rows]


def test_without_a_run_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = tiny()
    trainer.run()
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="save: the trainer has no run directory"):
        trainer.save()


# ---- errors


def test_an_exception_names_the_node_and_keeps_the_users_frames(tmp_path: Path) -> None:
    def failing(model: Any, batch: Any) -> Any:
        raise KeyError("mine")

    trainer = tiny(run_dir=tmp_path, training_step=failing)
    with pytest.raises(KeyError, match="mine") as caught:
        trainer.run()
    assert caught.value.__notes__ == [
        "raised in node `train_batch` (step 0, epoch 0.20, batch 1/5)",
        f"no checkpoint was saved before: {tmp_path} starts from the beginning",
    ]
    assert caught.traceback[-1].name == "failing"
    assert (trainer.state, trainer.position) == ("failed", "train_batch")
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"
    assert not list((tmp_path / "checkpoints").iterdir()), "a failure is not a save point"
    with pytest.raises(LifeCycleError, match="failed"):
        trainer.run()


@pytest.mark.parametrize("edges", ['["end"]', '["end if many", "tick"]', '["end if few", "end if many", "tick"]'])
def test_what_a_body_raises_at_its_end_keeps_its_cause(edges: str) -> None:
    """An edge whose guard holds ends the body, and an error of the user's is not one of the guard."""

    @node(name="tick")
    class Tick:
        """Raise as the body ends."""

        ticks: int = progress(0)

        def __call__(self) -> None:
            self.ticks += 1

        def at_body_end(self) -> None:
            raise ValueError("mine") from KeyError("its cause")

    guards = "[guards]\nmany = 'tick.ticks > 2'\nfew = 'tick.ticks == 9'\n"
    body = Graph.loads(f'format = 1\nstart = "tick"\n[nodes]\ntick = {{}}\n{guards}[edges]\ntick = {edges}\n')
    outer = Graph("outer", "fold", {"fold": Node("fold", "nested", body=body)}, {"fold": (Edge("end"),)})
    with pytest.raises(ValueError, match="mine") as caught:
        tiny(outer, model=None, train_data=None, training_step=None).run()
    assert isinstance(caught.value.__cause__, KeyError)


# ---- seeds


def seen_of(seed: int | None, before: int, run_dir: Path | None = None, until: str = "2 batches") -> list[float]:
    """The order of the samples, with a number that is drawn for each batch.

    Arguments:
        before: what torch is seeded with before the trainer is made.
    """
    seen: list[float] = []

    def step(model: Any, batch: Any) -> Any:
        seen.extend([*batch[:, 0].tolist(), float(torch.rand(()))])
        return squared(model, batch)

    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(0.5), model.bias.fill_(0.5)
    torch.manual_seed(before)
    data = Loader(torch.arange(8.0).reshape(-1, 1), batch_size=2, shuffle=True)
    given = {"model": model, "train_data": data, "training_step": step, "not_state": "training_step<seen>"}
    tiny(FIT, run_dir, seed=seed, **given).run(until=until)
    return seen


def test_the_seed_is_what_torch_was_seeded_with() -> None:
    first, again, other = seen_of(None, 1), seen_of(None, 1), seen_of(None, 2)
    assert first == again
    assert first[:2] + first[3:5] != other[:2] + other[3:5], "another order"
    assert first[2] != other[2]
    assert seen_of(7, 1) == seen_of(7, 2)


def test_a_resume_takes_the_seed_of_the_run(tmp_path: Path) -> None:
    whole = seen_of(None, 1, until="6 batches")
    cut = seen_of(None, 1, tmp_path, "3 batches") + seen_of(None, 2, tmp_path, "6 batches")
    assert cut == whole


def test_the_generators_that_somebody_has_seeded_go_on() -> None:
    torch.manual_seed(5)
    expected = float(torch.rand(()))
    assert seen_of(None, 5, until="1 batches")[-1] == expected


@pytest.mark.full
def test_the_order_of_nodes_in_a_file_is_no_difference(tmp_path: Path) -> None:
    it = world()
    trainer, whole = it.trainer(tmp_path), it.trainer()
    trainer.advance(20)
    trainer.save()
    turned = replace(it.graph, nodes=dict(reversed(it.graph.nodes.items())))
    assert turned == it.graph and list(turned.nodes) != list(it.graph.nodes)
    again = it.but(turned).trainer(tmp_path)
    again.run()
    whole.run()
    assert again.digest() == whole.digest()
