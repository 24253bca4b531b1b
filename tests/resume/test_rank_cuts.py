"""Runs of several processes, over gloo: cut at a transition and resumed, they are the runs that were not cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphtrain import Graph, Loader, Outcome, Trainer
from graphtrain.ranks import current_ranks
from tests.ranks.processes import run_processes
from tests.ranks.test_by_hand import Uneven, loss_of

SAMPLES, BATCH = 26, 2  # 13 micro-batches: the last window of an epoch is short, and some ranks have none in it


def trainer_of(run_dir: Path | None) -> Trainer:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Uneven()
    inputs = torch.randn(SAMPLES, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    graph = Graph.load("fit").set("accumulate", every=3).set("clip", max_norm=0.5).set("validate", every="2 steps")
    return Trainer(
        graph.set("finish", after="4 steps").set("checkpoint", every="never"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        train_data=Loader(data, batch_size=BATCH, shuffle=True),
        val_data=Loader(data, batch_size=10),
        training_step=loss_of,
    )


def cut_everywhere(folder: str, only: list[str] | None) -> tuple[list[str], int]:
    """Where a run that is cut ends otherwise, and how many cuts there were.

    Arguments:
        only: cut where the run is before one of these nodes. Default: before any, from the first step to the first
            validation that is over.
    """
    current_ranks()
    whole = trainer_of(None)
    path = []
    while whole.position != "end":
        path.append((whole.position, whole.progress["step"]["steps"], whole.progress["validate"]["runs"]))
        whole.advance()
    first = next(number for number, (_, steps, _) in enumerate(path) if steps == 1)
    last = next(number for number, (_, _, validations) in enumerate(path) if validations == 1) + 1
    cuts = [*range(first - 12, last)] if only is None else [n for n, (name, _, _) in enumerate(path) if name in only]
    wrong = []
    for cut in cuts:
        run_dir = Path(folder) / str(cut)
        before = trainer_of(run_dir)
        before.advance(cut)
        assert before.position == path[cut][0]
        before.save()
        resumed = trainer_of(run_dir)
        assert resumed.run() is Outcome.FINISHED
        if resumed.digest() != whole.digest() or resumed.metrics != whole.metrics:
            wrong.append(f"cut {cut} before {path[cut][0]}")
    return wrong, len(cuts)


@pytest.mark.sweep
def test_a_cut_anywhere_in_two_windows_and_a_validation(tmp_path: Path) -> None:
    for wrong, cuts in run_processes(2, cut_everywhere, str(tmp_path), None):
        assert not wrong
        assert cuts == 38


@pytest.mark.full
@pytest.mark.second(1)
@pytest.mark.parametrize(("world_size", "nodes"), [(3, ["exchange"]), (3, ["clip", "zero_grad"]), (4, ["exchange"])])
def test_cuts_around_an_exchange_where_the_order_of_sums_shows(
    world_size: int, nodes: list[str], tmp_path: Path
) -> None:
    for wrong, cuts in run_processes(world_size, cut_everywhere, str(tmp_path), nodes):
        assert not wrong
        assert cuts == 4 * len(nodes)
