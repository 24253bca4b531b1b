"""What the graph `active_learning` asks labels for."""

from __future__ import annotations

import random

import torch

from graphtrain import Loader
from graphtrain.graphs.gallery.active_learning.label_uncertain import label_uncertain


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
