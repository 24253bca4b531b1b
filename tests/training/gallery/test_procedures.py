"""Promise 8: what single procedures of the gallery do beyond the contract of all."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.model_selection import KFold

from graphtrain import Graph, Loader, NotFiniteError, Trainer
from graphtrain.graphs.gallery.active_learning.active_learning import label_uncertain
from graphtrain.graphs.gallery.kfold.kfold import begin_fold
from tests.fake_ranks import run_ranks
from tests.procedure import numbers, squared_error, step, step_with_mean_gradients
from tests.training.gallery.procedures import distill, gan, kfold, lbfgs, maml, manual, ppo, rollback, tbptt, yielding
from tests.world import World, assert_as_by_hand, assert_same, seed_generators


def run(it: World, run_dir: Path | None = None, lines: list[str] | None = None) -> Trainer:
    trainer = it.trainer(run_dir, lines=lines)
    trainer.run()
    return trainer


def weights(model: torch.nn.Module) -> list[Any]:
    return [parameter.tolist() for parameter in model.parameters()]


# ---- active learning, k-fold, distillation


def test_the_highest_scores_without_a_label_are_chosen_in_batches_of_any_size() -> None:
    draw = random.Random(0)
    for _ in range(100):
        scores = [draw.choice([0.25, 0.5, draw.random()]) for _ in range(draw.randint(1, 20))]
        labelled = draw.sample(range(len(scores)), draw.randint(0, len(scores)))
        count, batch, pool = draw.randint(1, 6), draw.randint(1, 7), Loader(range(len(scores)), 1)
        found, chosen = labelled, None
        for first in range(0, len(scores), batch):
            part = torch.tensor(scores[first : first + batch], dtype=torch.float64)
            found, chosen = label_uncertain(
                len(part), first + len(part), pool, scores=part, indices=labelled, chosen=chosen, count=count
            )
        rest = sorted(set(range(len(scores))) - set(labelled), key=lambda number: (scores[number], number))
        assert found == labelled + rest[::-1][:count]


def test_the_folds_are_those_of_scikit_learn() -> None:
    for samples, folds in [(size, count) for size in range(2, 12) for count in range(2, size + 1)]:
        expected = [(kept.tolist(), held.tolist()) for kept, held in KFold(folds).split(range(samples))]
        assert [begin_fold(range(samples), fold, folds=folds) for fold in range(folds)] == expected


@pytest.mark.full
def test_rows_have_the_fold_and_metrics_are_of_what_was_held_out() -> None:
    trainer = run(kfold.PROCEDURE.world)
    ensemble, data = trainer.resources["ensemble"].eval(), trainer.resources["train_data"].dataset
    folds = kfold.folds_of(kfold.SAMPLES, kfold.FOLDS)
    with torch.no_grad():
        losses = [float(squared_error(model, data[fold])) for model, fold in zip(ensemble, folds, strict=True)]
    rows = [row for row in trainer.metrics if "val/loss" in row]
    assert [row["fold"] for row in rows] == [fold for fold in range(kfold.FOLDS) for _ in range(kfold.EPOCHS)]
    assert [row["val/loss"] for row in rows[kfold.EPOCHS - 1 :: kfold.EPOCHS]] == pytest.approx(losses)
    total = sum(loss * len(fold) for loss, fold in zip(losses, folds, strict=True))
    [*_, last] = [row for row in trainer.metrics if "out_of_fold/loss" in row]
    assert last["out_of_fold/loss"] == pytest.approx(total / kfold.SAMPLES)


def test_a_teacher_is_neither_trained_nor_in_training_mode() -> None:
    teacher = run(distill.PROCEDURE.world).resources["teacher"]
    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in teacher.parameters())
    assert_same(teacher.state_dict(), distill.resources()["teacher"].state_dict())


# ---- several losses, several optimizers


def without_dropout(it: World) -> World:
    """Each rank has random numbers of its own."""

    def made() -> dict[str, Any]:
        resources = it.make()
        for module in resources["model"].modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return resources

    return World(it.graph, made, it.options)


@pytest.mark.parametrize(("window", "every"), [(2, "2"), (1, "3 if generator_step.steps < 1 else 2")])
def test_windows_of_a_critic_and_a_frequency_that_varies(window: int, every: str) -> None:
    graph = gan.graph().set("accumulate", every=window).set("alternate", reads={"every": every})
    turns = steps = 0

    def loop(resources: dict[str, Any]) -> None:
        nonlocal turns, steps
        seed_generators(0)
        for first in [*range(0, gan.BATCHES, window)] * gan.EPOCHS:
            batches, turns = resources["train_data"][first : first + window], turns + 1
            gan.update(resources, "critic", batches, window)
            if turns % (3 if "if" in every and steps < 1 else 2) == 0:
                gan.update(resources, "generator", batches[-1:])
                steps += 1

    trainer = assert_as_by_hand(gan.PROCEDURE.world.but(graph), ("model", "critic_optimizer"), loop=loop)
    assert (trainer.read("step.steps"), trainer.read("generator_step.steps")) == (turns, steps)


def test_a_window_of_all_losses_steps_all_optimizers_at_once() -> None:
    def loop(resources: dict[str, Any]) -> None:
        seed_generators(0)
        for batch in resources["train_data"] * yielding.EPOCHS:
            for optimizer, loss_of in zip(resources["optimizer"], yielding.LOSSES, strict=True):
                loss = loss_of(resources["model"], batch) / 2
                step_with_mean_gradients(optimizer.param_groups[0]["params"], [loss])
            step(*resources["optimizer"])

    it = yielding.PROCEDURE.world.but(yielding.graph().set("accumulate", every=2))
    trainer = assert_as_by_hand(it, ("model",), loop=loop)
    assert trainer.read("step.steps") == yielding.EPOCHS * yielding.BATCHES


def test_steps_of_a_manual_function_are_those_of_the_optimizer_and_not_batches() -> None:
    trainer = run(manual.PROCEDURE.world)
    assert trainer.read("step.steps") == manual.EPOCHS * (manual.BATCHES // manual.WINDOW)
    assert [row["step"] for row in trainer.metrics if "root" in row] == [1, 2, 3, 4, 5, 6, 6]  # after it, a batch more


@pytest.mark.parametrize(("counted", "steps"), [(["first", "second"], 3), ("second", 2)])
def test_of_several_optimizers_those_are_counted_that_the_manual_node_reads(counted: Any, steps: int) -> None:
    def training_step(model: Any, batch: torch.Tensor, first: Any, second: Any) -> None:
        squared_error(model, batch).backward()  # type: ignore[no-untyped-call]
        for optimizer in (first, second, second):
            optimizer.step()

    graph = manual.graph().set("step", reads={"optimizer": counted}).set("finish", after="1 batches")
    both = {name: lambda made: torch.optim.SGD(made["model"].parameters(), 0.1) for name in ("first", "second")}
    resources = {"optimizer": None, "scheduler": None, "training_step": lambda made: training_step, **both}
    it = manual.PROCEDURE.world.but(graph.set("log", reads={"optimizer": counted}), **resources)
    assert run(it).read("step.steps") == steps


@pytest.mark.full
def test_the_line_search_of_lbfgs_evaluates_the_batches_of_two_ranks() -> None:
    it = without_dropout(lbfgs.PROCEDURE.world).but(train_data=lambda made: numbers(6, 6, 6, 6, 6))
    resources = it.resources()
    model, rows = resources["model"], list[list[torch.Tensor]]()
    for start in [0, 2, 4] * lbfgs.EPOCHS:  # in the last round one of two ranks has no batch
        batches, first = resources["train_data"][start : start + 2], len(rows)

        def closure(batches: Any = batches) -> torch.Tensor:
            losses = [lbfgs.training_step(model, batch)["loss"] / len(batches) for batch in batches]
            step_with_mean_gradients(model.parameters(), losses)
            rows.append([torch.stack(losses).detach().sum()])
            return rows[-1][0]

        resources["optimizer"].step(closure)
    assert len(rows) - first > 2, "the line search had something to do"

    def program(ranks: Any) -> tuple[Any, ...]:
        trainer = run(it)
        return weights(trainer.resources["model"]), trainer.read("step.steps"), float(trainer.read("loss"))

    first_rank, second_rank = run_ranks(2, program)
    assert first_rank == second_rank == (weights(model), 3 * lbfgs.EPOCHS, float(rows[first][0]))


# ---- MAML, PPO, rollback


@pytest.mark.full
def test_the_second_order_of_maml_is_that_of_the_loop_by_hand_and_no_first_order() -> None:
    def loop(resources: dict[str, Any]) -> None:
        seed_generators(0)
        maml.by_hand(resources, second_order=True)

    trainer = assert_as_by_hand(maml.PROCEDURE.world.but(maml.graph(second_order=True)), loop=loop)
    first_order = run(maml.PROCEDURE.world)
    assert weights(trainer.resources["model"]) != weights(first_order.resources["model"])


class Chain:
    """Rewards 0, 1, 2, ...; the episode of the first environment ends after every third."""

    def __init__(self) -> None:
        self.now = 0.0

    def reset(self) -> Any:
        return torch.zeros(2, 3, dtype=torch.float64).numpy()

    def step(self, actions: Any) -> tuple[Any, Any, Any]:
        reward, self.now = self.now, self.now + 1
        state = torch.full((2, 3), self.now, dtype=torch.float64)
        return state.numpy(), torch.full((2,), reward).numpy(), torch.tensor([self.now % 3 == 0, False]).numpy()


def test_the_returns_of_episodes_are_a_metric_and_rollouts_go_on_where_the_last_one_ended() -> None:
    trainer = run(ppo.PROCEDURE.world.but(ppo.graph().set("collect_rollout", steps=4, epochs=1), env=Chain()))
    # 0 + 1 + 2; 3 + 4 + 5 over two rollouts; two episodes in the third one; the next in the fourth.
    returns = [row["rollout/return"] for row in trainer.metrics if "rollout/return" in row]
    assert returns == [3, 12, (21 + 30) / 2, 39]


LOSSES = [0.1, -0.1] * 20


def of_losses(*losses: float, save: str = "1 batches") -> World:
    """A run with these losses, each of a batch."""

    def training_step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return 0 * model(torch.ones(2, 3, dtype=torch.float64)).sum() + batch[0]

    graph = (
        rollback.graph().set("rollback", warmup=2, skip=1).set("accumulate", every=1).set("finish", after="1 epochs")
    )
    data = [torch.tensor([loss]) for loss in losses]
    it = rollback.PROCEDURE.world.but(graph.set("checkpoint", every=save, mode="sync"))
    return it.but(train_data=data, training_step=lambda made: training_step)


@pytest.mark.first(2)
@pytest.mark.parametrize(("level", "spike", "times"), [(0, 0.1, 0), (1000, 0.2, 0), (0, 1.5, 1), (1000, 1.5, 1)])
def test_deviations_judge_losses_of_any_sign_and_level(level: float, spike: float, times: int, tmp_path: Path) -> None:
    lines: list[str] = []
    run(of_losses(*(level + loss for loss in LOSSES[:12]), level + spike), tmp_path, lines)
    assert len([line for line in lines if "sends the run back" in line]) == times


def test_a_spike_with_nowhere_to_go_back_to_is_reported_once(tmp_path: Path) -> None:
    lines: list[str] = []
    run(of_losses(1.0, 1.1, 30.0, 90.0, save="1 epochs"), tmp_path, lines)
    (_,) = [line for line in lines if line.startswith("`rollback`: a loss spikes before the first checkpoint")]
    with pytest.raises(NotFiniteError, match="the loss is nan at batch 2 of epoch 1; there is no checkpoint"):
        run(of_losses(1.0, math.nan, save="1 epochs"), tmp_path / "other")


# ---- truncated backpropagation through time


LENGTHS = (7, 3, 6, 8)  # of the batches: a short last split, one split, a whole number of splits


def sequences(*lengths: int, graph: Graph | None = None) -> World:
    """Batches that are nests: sequences beside a text and weights that have no time."""

    def batches(made: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"inputs": torch.randn(2, length, 2, dtype=torch.float64), "more": ("a text", torch.rand(2))}
            for length in lengths or LENGTHS
        ]

    def training_step(model: Any, batch: Any, hidden: Any = None) -> dict[str, Any]:
        outputs, hidden = model(batch["inputs"], hidden)
        assert batch["more"][0] == "a text"
        loss = ((outputs - batch["inputs"].cumsum(1)).square().mean((1, 2)) * batch["more"][1]).mean()
        return {"loss": loss, "hidden": hidden}

    it = without_dropout(tbptt.PROCEDURE.world).but(graph or tbptt.graph(), val_data=None)
    return it.but(train_data=batches, training_step=lambda made: training_step)


def splits_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**batch, "inputs": part} for part in batch["inputs"].split(tbptt.LENGTH, 1)]


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("keep", [False, True])
def test_splits_are_trained_as_by_hand(window: int, keep: bool) -> None:
    def loop(resources: dict[str, Any]) -> None:
        hidden, count = None, 0
        for _, (number, batch) in itertools.product(range(2), enumerate(resources["train_data"])):
            hidden, splits = hidden if keep else None, splits_of(batch)
            for index, part in enumerate(splits):
                result = resources["training_step"](resources["model"], part, hidden)
                hidden, count = result["hidden"].detach(), count + 1
                (result["loss"] / window).backward()
                if count == window or (index, number) == (len(splits) - 1, len(LENGTHS) - 1):
                    step(resources["optimizer"])
                    count = 0

    graph = tbptt.graph().set("accumulate", every=window)
    it = sequences(graph=graph.set("train_batch", keep=["hidden"]) if keep else graph)
    trainer = assert_as_by_hand(it, loop=loop)
    assert trainer.read("train_batch.runs") == 2 * sum(-(-length // tbptt.LENGTH) for length in LENGTHS)
    assert trainer.read("next_batch.batches") == 2 * len(LENGTHS)


@pytest.mark.parametrize("length", [1, 5])
def test_another_length_of_splits_holds_for_the_next_batch(length: int, tmp_path: Path) -> None:
    sequences().trainer(tmp_path).run(before="zero_grad")  # behind the first of three splits
    second = sequences(graph=tbptt.graph().set("split_batch", length=length)).trainer(tmp_path)
    counts = []
    for _ in range(2):
        second.run(before="next_batch")
        counts.append(second.read("split_batch.index"))
    assert counts == [3, 3 if length == 1 else 1]


@pytest.mark.full
def test_ranks_with_different_numbers_of_splits_train_what_the_loop_by_hand_trains() -> None:
    given = sequences().resources()
    model, training_step = given["model"], given["training_step"]
    for first in [0, 2, 0, 2]:
        hidden: list[Any] = [None, None]
        for parts in itertools.zip_longest(*map(splits_of, given["train_data"][first : first + 2])):
            present = [(rank, part) for rank, part in enumerate(parts) if part is not None]
            results = {rank: training_step(model, part, hidden[rank]) for rank, part in present}
            hidden = [results[rank]["hidden"].detach() if rank in results else None for rank in range(2)]
            losses = [result["loss"] / 2 for result in results.values()]
            step_with_mean_gradients(model.parameters(), losses, given["optimizer"])

    def program(ranks: Any) -> tuple[Any, int]:
        trainer = run(sequences())
        return weights(trainer.resources["model"]), trainer.read("accumulate.last_count")

    first_rank, second_rank = run_ranks(2, program)
    # A rank that has no split left counts, with gradients of zero.
    assert first_rank == second_rank == (weights(model), 2)
