"""Data that keeps its own position, and is asked for batches early, among several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks
from tests.resume import rank_runs


class Counted:
    """Batches, and which comes next: at its end the data begins again."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(3)
        batches = [torch.randn(2, 3, dtype=torch.float64, generator=generator) for _ in range(5)]
        while self.next < len(batches):
            self.next += 1
            yield batches[self.next - 1], batches[self.next - 1].sum(1, keepdim=True)
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


@pytest.mark.sweep
def test_a_cut_at_the_end_of_an_epoch_is_exact(tmp_path: Path) -> None:
    def early(graph: Graph) -> Graph:
        return graph.set("next_batch", prefetch=True).set("finish", after="2 epochs").set("accumulate", every=1)

    def run(folder: Path, advance: int = 0) -> list[str]:
        def program(ranks: Ranks) -> str:
            trainer = rank_runs.trainer_of(folder, graph=early, is_plain=True, train_data=Counted())
            if advance:
                trainer.advance(advance)
                trainer.save()
            else:
                assert trainer.run() is Outcome.FINISHED
            return trainer.digest()

        return run_ranks(2, program)

    whole = run(tmp_path / "whole")
    for cut in range(12, 32, 3):
        run(tmp_path / str(cut), cut)
        assert run(tmp_path / str(cut)) == whole, cut
