"""Buffers of several ranks: those of rank 0 for all, at each exchange of gradients and in each evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain.nodes.exchange import Exchange
from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks
from tests.resume.rank_runs import trainer_of


def test_they_are_those_of_rank_0_after_a_step_and_in_an_evaluation_which_leaves_each_rank_its_own() -> None:
    def program(ranks: Ranks) -> list[list[list[float]]]:
        evaluated: list[list[list[float]]] = []

        def validation_step(model: torch.nn.Module, batch: Any) -> dict[str, float]:
            evaluated.append(buffers())
            return {"number": 0.0}

        def buffers() -> list[list[float]]:
            return [buffer.flatten().tolist() for buffer in trainer.resources["model"].buffers()]

        trainer = trainer_of(
            None, graph=lambda fit: fit.set("validate", every="6 batches"), validation_step=validation_step
        )
        trainer.run(until="4 batches")  # a window
        stepped = buffers()
        trainer.run(until="6 batches")
        before = buffers()
        while trainer.progress["validate"]["runs"] == 0:
            trainer.advance()
        return [stepped, before, buffers(), *evaluated]

    (stepped, own, _, evaluated, *_), (stepped_too, before, after, evaluated_too, *_) = run_ranks(2, program)
    assert stepped == stepped_too
    assert own != before == after
    assert evaluated == evaluated_too == own


@pytest.mark.parametrize("is_carried", [False, True])
def test_they_are_bitwise_those_of_rank_0_whatever_their_type_and_layout(is_carried: bool) -> None:
    """Also those that records carry, as they do from the second exchange on, if all have one shape."""

    def program(ranks: Ranks) -> list[torch.Tensor]:
        is_first = not ranks.rank
        buffers = {
            "odd": torch.tensor([-0.0, torch.inf, 1e-45] if is_first else [3.0, 4.0, 5.0]),
            "count": torch.tensor(2**53 + 1 if is_first else 7),
            "flag": torch.tensor([is_first, not is_first]),
            "turned": torch.full((3, 2), float(ranks.rank), dtype=torch.bfloat16).t(),
            "cache": torch.full((2 if is_carried else 2 + ranks.rank,), float(ranks.rank)),
            "empty": torch.zeros(0),
        }
        requests = Requests(agrees=True)
        exchange = Exchange()
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
        agreement = Agreement(ranks, requests)
        agreement.run.buffers = lambda: buffers  # type: ignore[method-assign]
        exchange.setup(optimizer, agreement)
        values = [buffer.clone() for buffer in buffers.values()]
        exchange()
        if is_carried:
            torch._foreach_copy_([*buffers.values()], values)
            exchange()
        assert (ranks.world.begun[ranks.rank][-1] == 0) is is_carried  # type: ignore[attr-defined]
        return [*buffers.values()]

    for rank, (odd, count, flag, turned, cache, _) in enumerate(run_ranks(3, program)):
        assert count == 2**53 + 1 and flag.tolist() == [True, False]
        assert turned.tolist() == [[0.0] * 3] * 2 and not turned.is_contiguous()
        assert cache.tolist() == ([0] * 2 if is_carried else [rank] * (2 + rank))
        assert odd.view(torch.int32).tolist() == torch.tensor([-0.0, torch.inf, 1e-45]).view(torch.int32).tolist()
