"""Promises 10 and 17: models that `fully_shard` has sharded train as by a loop by hand, and are cut anywhere.

A checkpoint is resumed by any number of ranks; exports, damaged files, failures and refusals are as without shards.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from graphtrain import Graph, PlannedRun
from tests.devices import DEVICES
from tests.ranks import sharded
from tests.ranks.processes import run_command, run_processes
from tests.ranks.sharded import Case, swa, validated

EXACT = Case(every=2, dtype=torch.float64, dropout=0.0)  # so that sums in another order are the same numbers
SHORT = Case(every=2, samples=28, epochs=1)
ALONE = Case(every=2, samples=12, epochs=1)  # a window, and a short one


@pytest.fixture
def own_group() -> Iterator[None]:
    """The group of a test that is in this process."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


# ---- as by hand, and exactly resumed


@pytest.mark.full
def test_one_rank_trains_as_by_hand_and_a_cut_is_exact(own_group: None, tmp_path: Path) -> None:
    assert sharded.apart([ALONE]) == [{}]
    mesh = PlannedRun(sharded.FIT, "cpu").mesh
    assert (mesh.shape, mesh.mesh_dim_names) == ((1,), ("shards",))
    assert sharded.cut(ALONE, tmp_path, [7], validated) == []


CASES = [Case(), Case(every=3), Case(every=3, mixed=True), Case(mixed=True, foreach=False)]


@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.full), *(pytest.param(n, marks=pytest.mark.sweep) for n in (3, 4))]
)
def test_ranks_equal_a_loop_by_hand(ranks: int) -> None:
    cases = [*CASES, *([Case(compiled=True)] if ranks == 3 else [])]
    for results in run_processes(ranks, sharded.apart, cases):
        assert results == [{}] * len(cases)


@pytest.mark.full
def test_a_cut_in_a_window_leads_to_the_same_bits(tmp_path: Path) -> None:
    assert run_processes(2, sharded.cut, SHORT, tmp_path, range(7, 24, 10)) == [[], []]


@pytest.mark.sweep
@pytest.mark.parametrize(("ranks", "batches"), [(2, 7), (4, 13)])
def test_every_cut_leads_to_the_same_bits(tmp_path: Path, ranks: int, batches: int) -> None:
    case = Case(every=2, samples=4 * batches, epochs=1)  # two windows, of which the second is short
    for wrong in run_processes(ranks, sharded.cut, case, tmp_path, None, validated, seconds=1800):
        assert not wrong


OF_A_DEVICE = {"float32": ALONE, "bfloat16": replace(ALONE, mixed=True), "offload": replace(ALONE, offload=True)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OF_A_DEVICE)
def test_one_rank_on_a_device_is_as_by_hand_and_every_cut_is_exact(name: str, device: str, tmp_path: Path) -> None:
    case = replace(OF_A_DEVICE[name], device=device)
    assert run_processes(1, sharded.on_a_device, case, tmp_path) == [([{}], [])]


# ---- as one process, and by other numbers of ranks


def averaged(graph: Graph) -> Graph:
    return validated(graph).overlay("ema")


def clipped(graph: Graph) -> Graph:
    return validated(graph).set("clip", max_value=0.01).overlay("check_finite", "gradient_norm")


CHANGES = [(EXACT, validated), (replace(EXACT, average=True), averaged), (EXACT, clipped), (EXACT, swa)]


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize(("case", "edit"), CHANGES)
def test_two_ranks_train_as_one_process(case: Case, edit: sharded.Edit) -> None:
    ((weights, metrics),) = run_processes(1, sharded.trained, replace(case, every=4, shards=False), edit)
    for got, rows in run_processes(2, sharded.trained, case, edit):
        assert_close(got, weights)
        assert [row.keys() for row in rows] == [row.keys() for row in metrics]
        for row, expected in zip(rows, metrics, strict=True):
            assert row == pytest.approx(expected, rel=1e-9)


def assert_close(got: sharded.Parameters, expected: sharded.Parameters) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        tensors = [torch.tensor(each, dtype=torch.float64) for each in (got[name], values)]
        torch.testing.assert_close(*tensors, rtol=0, atol=1e-12)


# The number of ranks, whether the model is sharded there, and the steps after which they stop; windows of 12 batches.
LEGS: dict[str, list[tuple[int, bool, int | None]]] = {
    "2 -> 1": [(2, True, 1), (1, False, None)],
    "2 -> 4 -> 1 -> 3": [(2, True, 1), (4, True, 3), (1, True, 4), (3, True, None)],
}


@pytest.mark.full
@pytest.mark.second(1)
@pytest.mark.parametrize("name", LEGS)
def test_other_numbers_of_ranks_continue_and_come_to_what_one_process_does(name: str, tmp_path: Path) -> None:
    case = replace(EXACT, every=6, epochs=3)  # an epoch has 17 batches, so that a window is short
    ((_, expected),) = run_processes(1, sharded.leg, replace(case, every=12, shards=False), tmp_path / "alone", None)
    for ranks, shards, steps in LEGS[name]:
        of_leg = replace(case, every=12 // LEGS[name][0][0], shards=shards)
        ended = run_processes(ranks, sharded.leg, of_leg, tmp_path / "run", steps)
        assert [refused for refused, _ in ended] == [""] * ranks
    for _, got in ended:
        assert_close(got, expected)


@pytest.mark.full
def test_a_run_without_shards_is_not_continued_with_them(tmp_path: Path) -> None:
    run_processes(1, sharded.leg, replace(EXACT, shards=False), tmp_path, 1)
    for refused, _ in run_processes(2, sharded.leg, EXACT, tmp_path, None):
        assert "its models are not sharded over ranks, and those of `setup` are" in refused


SCRIPT = """
import torch
from tests.ranks import sharded

made = sharded.parts_of(sharded.Case(every=2, samples=28, shards={shards}))
told = []

def training_step(model, batch):
    if not told:
        told.append(print("begins with", sharded.digest(sharded.weights(model)), flush=True))
    return sharded.loss_of(model, batch)

def setup():
    with torch.no_grad():
        for tensor in made["model"].state_dict().values():
            tensor.zero_()
    return {{**made, "training_step": training_step}}
"""


@pytest.mark.full
def test_an_export_and_a_checkpoint_begin_runs(tmp_path: Path) -> None:
    """Of any number of ranks, with shards and without; the buffers are those of the export too."""
    for shards in (True, False):
        (tmp_path / f"shards_{shards}.py").write_text(SCRIPT.format(shards=shards))
    words = ["finish.after=1 steps", "validate.every=never", "--quiet", "--run-dir"]
    assert all(each.code == 0 for each in run_command(2, "run", "shards_True.py", *words, "run", cwd=tmp_path))
    (exported,) = run_command(1, "export", "run", "one.safetensors", cwd=tmp_path)
    assert exported.code == 0 and "10 tensors" in exported.out + exported.err
    (newest,) = (tmp_path / "run" / "checkpoints").glob("*-step-*")
    digests = set()
    for number, (ranks, shards, path) in enumerate(
        [(1, False, "one.safetensors"), (1, False, newest), (2, True, "one.safetensors"), (3, True, newest)]
    ):
        script = f"shards_{shards}.py"
        for ended in run_command(ranks, "run", script, "--init", f"model={path}", *words, f"{number}", cwd=tmp_path):
            digests |= {line for line in ended.out.splitlines() if line.startswith("begins with")}
    assert len(digests) == 1, digests


# ---- damage, failures, refusals


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


DAMAGES: dict[Callable[[Path], None], str] = {flip: "match", shorten: "is damaged", Path.unlink: "cannot be read"}


@pytest.mark.full
def test_a_damaged_piece_is_named_and_the_earlier_checkpoint_taken(tmp_path: Path) -> None:
    for steps in (1, 2):
        run_processes(2, sharded.leg, SHORT, tmp_path / "run", steps)
    folders = [tmp_path / f"{number}" for number in range(len(DAMAGES))]
    for folder, damage in zip(folders, DAMAGES, strict=True):
        shutil.copytree(tmp_path / "run", folder)
        damage(max((folder / "checkpoints").glob("*-step-*")) / "rank.00001.sharded.safetensors")
    texts, *_ = run_processes(2, sharded.told, SHORT, folders)
    for text, words in zip(texts, DAMAGES.values(), strict=True):
        skipped, resumed = text.splitlines()
        assert skipped.startswith("skipped a damaged checkpoint: ") and words in skipped
        assert "step 1" in resumed


@pytest.mark.full
def test_a_rank_that_cannot_write_is_named(tmp_path: Path) -> None:
    for message, saved in run_processes(2, sharded.full_disk, tmp_path):
        assert message.startswith("rank 1 cannot write its part of the checkpoint: ") and not saved


@pytest.mark.full
def test_a_rank_that_fails_within_a_forward_pass_is_named() -> None:
    first, _ = run_processes(2, sharded.failing)
    assert first.startswith("rank 1 failed in `train_batch` at step 2") and "ValueError: a bad batch" in first


def sam(graph: Graph) -> Graph:
    return graph.overlay("sam")


REFUSED: dict[str, tuple[sharded.Edit, str]] = {
    "`train_batch` runs backward through a sharded model, and its kind `sam_batch`": (sam, ""),
    "let `setup` return a second `model` as `swa_model`, with the same weights": (swa, ""),
    "`optimizer` is a torch.optim.LBFGS, which takes all weights as one vector": (sharded.same, "LBFGS"),
}


@pytest.mark.full
def test_what_sharded_models_cannot_do_is_refused() -> None:
    for said in run_processes(2, sharded.refused, SHORT, [*REFUSED.values()]):
        assert all(message in text for message, text in zip(REFUSED, said, strict=True)), said
