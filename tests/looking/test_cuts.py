"""Promise 16: `verify --cuts` in its processes: train, save copies on the way, compare the end of a resume."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from graphtrain import Outcome, node
from graphtrain.proof.cuts import CutTraining, TrainedRun, compare_runs
from tests.world import World, small_fit, world

IT = world()


def trained(folder: Path, name: str, cuts: Sequence[int] = (), until: str | None = None, it: World = IT) -> TrainedRun:
    """Train in ``folder/name``, with copies of the cuts beside it; through the text that processes exchange."""
    outcome, run = CutTraining(folder / name, cuts, folder, until).run(it.trainer(folder / name))
    assert outcome is (Outcome.FINISHED if until is None else Outcome.REACHED)
    assert TrainedRun.from_json(run.to_json()).to_json() == run.to_json()
    return TrainedRun.from_json(run.to_json())


def differences(folder: Path, name: str, run: TrainedRun) -> list[str]:
    return [str(difference) for difference in compare_runs(folder / "whole", folder / name, run)]


@pytest.mark.full
def test_cuts_change_nothing_and_copies_are_resumed_to_the_same_end(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole")
    cut_run = trained(tmp_path, "second", range(1, whole.transitions))
    assert differences(tmp_path, "second", whole) == []
    assert (cut_run.progress, cut_run.transitions) == (whole.progress, whole.transitions)
    assert len(cut_run.cuts) > 0.9 * whole.transitions, "nearly every position is a save point"
    assert {"train_batch", "zero_grad", "validate/eval_batch", "end_epoch"} <= {cut.node for cut in cut_run.cuts}
    for cut in cut_run.cuts[::9]:
        resumed = IT.trainer(tmp_path / cut.name)
        assert resumed.advance(0) == cut.node
        assert resumed.run() is Outcome.FINISHED
        assert differences(tmp_path, cut.name, whole) == [], cut


@node(writes="thing")
def transient() -> object:
    return object()


@node
def reader(thing: object) -> None:
    assert thing is not None


@pytest.mark.full
def test_what_is_no_save_point(tmp_path: Path) -> None:
    it = IT.but(
        IT.graph.insert("transient", transient, after="train_batch").insert("reader", reader, after="transient")
    )
    cuts = trained(tmp_path, "whole", range(1, 12), it=it).cuts
    assert "reader" not in {cut.node for cut in cuts} and "transient" in {cut.node for cut in cuts}, "at the next one"
    assert len({cut.transition for cut in cuts}) == len(cuts) < 11


def test_the_first_field_and_the_first_row_are_named(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole")
    trained(
        tmp_path, "other", it=world(optimizer="Adam with amsgrad", edit=lambda graph: graph.set("clip", max_norm=2))
    )
    lines = differences(tmp_path, "other", whole)
    assert any(re.match(r"resources/model/\S+: \d+ of \d+ elements, by at most ", line) for line in lines[:4]), lines
    assert any(line.startswith("hyper_parameters: ") for line in lines)
    assert lines[-1].startswith("metrics.jsonl, row ")
    assert not any("seconds" in line or "progress/log" in line for line in lines), "no clocks, no observers"
    trained(tmp_path, "short", until="4 batches")
    lines = differences(tmp_path, "short", whole)
    assert any(line.startswith("position: 'finish' -> 'next_batch'") for line in lines)
    assert any(line.endswith(" -> none") and line.startswith("metrics.jsonl, row ") for line in lines)


def test_rows_that_the_clock_decides_are_not_compared_nor_in_the_digest(tmp_path: Path) -> None:
    it = world(small_fit(log_every=["1 steps", "1 hours"]))
    whole = trained(tmp_path, "whole", it=it)
    assert whole.has_timed_rows
    trained(tmp_path, "other", it=it)
    (tmp_path / "other" / "metrics.jsonl").write_text("{}\n")
    assert differences(tmp_path, "other", whole) == []
    first, second = (world(small_fit(log_every=every)).trainer() for every in ("1 hours", "0.000001 seconds"))
    for each in (first, second):
        each.run(until="4 batches")
    assert len(first.metrics) < len(second.metrics) and first.digest() == second.digest()
