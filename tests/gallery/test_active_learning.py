"""What the graph `active_learning` asks labels for."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from graphtrain import Graph, Loader
from graphtrain.graphs.gallery.active_learning.label_uncertain import label_uncertain
from graphtrain.ranks import Ranks
from tests.gallery.procedures.active_learning import COUNT, PROCEDURE, ROUNDS, SAMPLES
from tests.ranks.fake_ranks import run_ranks


def chosen_in_batches(scores: list[float], batch: int, labelled: list[int], count: int) -> list[int]:
    numbers, chosen, pool = labelled, None, Loader(range(len(scores)), batch)
    for first in range(0, len(scores), batch):
        part = torch.tensor(scores[first : first + batch], dtype=torch.float64)
        numbers, chosen = label_uncertain(
            len(part), first + len(part), pool, scores=part, indices=labelled, chosen=chosen, count=count
        )
    return numbers


def test_the_highest_scores_without_a_label_are_chosen_in_batches_of_any_size() -> None:
    draw = random.Random(0)
    for _ in range(100):
        scores = [draw.choice([0.25, 0.5, draw.random()]) for _ in range(draw.randint(1, 20))]
        labelled = draw.sample(range(len(scores)), draw.randint(0, len(scores)))
        count = draw.randint(1, 6)
        rest = sorted(set(range(len(scores))) - set(labelled), key=lambda number: (scores[number], number))
        expected = labelled + rest[::-1][:count]
        assert chosen_in_batches(scores, draw.randint(1, 7), labelled, count) == expected


@pytest.mark.full
def test_labels_grow_to_all_of_the_pool_and_rows_have_the_round() -> None:
    trainer = PROCEDURE.trainer(
        graph=PROCEDURE.graph().set("finish", after="6 rounds").set("fit/finish", after="1 epochs")
    )
    grown = []
    while trainer.position != "end":
        trainer.advance()
        if trainer.position == "renew":
            grown.append(list(trainer.read("indices")))
    assert [len(labelled) for labelled in grown] == [3, 6, 9, 12, SAMPLES, SAMPLES]
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(grown))
    assert sorted(grown[-1]) == list(range(SAMPLES))
    assert [row["rounds"] for row in trainer.metrics if "pool/unsure" in row] == list(range(6))


def test_two_ranks_choose_what_one_does() -> None:
    """The model of the first round is the same, and the last of three batches of the pool is one rank's alone."""
    alone = PROCEDURE.trainer()
    alone.run(before="renew")

    def program(ranks: Ranks) -> list[int]:
        trainer = PROCEDURE.trainer()
        trainer.run(before="renew")
        return list(trainer.read("indices"))

    assert run_ranks(2, program) == [alone.read("indices")] * 2


def test_one_model_may_be_trained_on() -> None:
    trainer = PROCEDURE.trainer(graph=PROCEDURE.graph().remove("renew"))
    model = trainer.resources["model"]
    trainer.run()
    assert trainer.resources["model"] is model
    assert len(trainer.read("indices")) == ROUNDS * COUNT


@pytest.mark.sweep
def test_chosen_labels_teach_more_than_random_ones() -> None:
    """A line between two classes: what is far from it tells nothing."""

    def accuracy(is_random: bool, seed: int) -> float:
        inputs = torch.randn(400, 2, generator=torch.Generator().manual_seed(seed)) * 3
        labels = (inputs @ torch.tensor([1.0, -0.6]) + 0.3 > 0).float()
        data = torch.utils.data.TensorDataset(inputs, labels)

        def pool_step(model: torch.nn.Module, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
            logits = model(batch[0]).flatten()
            scores = torch.rand(len(logits)) if is_random else -logits.abs()
            return {"unsure": scores.mean(), "scores": scores}

        torch.manual_seed(seed)
        model = torch.nn.Linear(2, 1)
        graph = Graph.load("active_learning").set("finish", after="5 rounds").set("query/label_uncertain", count=4)
        graph = graph.set("fit/finish", after="100 epochs").set("fit/checkpoint", every="never").remove("renew")
        trainer = PROCEDURE.trainer(
            graph=graph,
            resources={
                "model": model,
                "optimizer": torch.optim.Adam(model.parameters(), lr=0.05),
                "train_data": Loader(data, 20, shuffle=True),
                "pool_data": Loader(data, 400),
                "training_step": lambda model, batch: torch.nn.functional.binary_cross_entropy_with_logits(
                    model(batch[0]).flatten(), batch[1]
                ),
                "pool_step": pool_step,
            },
        )
        trainer.run()
        with torch.no_grad():
            return float(((model(inputs).flatten() > 0) == (labels > 0)).float().mean())

    chosen, by_chance = ([accuracy(is_random, seed) for seed in range(5)] for is_random in (False, True))
    assert sum(chosen) > sum(by_chance)
