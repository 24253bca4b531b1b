"""A run of several ranks, cut and resumed: bit for bit by as many, with no sample lost by another number (12, 17).

Random lives of ranks, with disks that fail and ranks that are killed, are in `tests/simulation`.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from graphtrain import CheckpointError, Graph, GraphtrainError, Loader, Outcome, Trainer, UsageError
from graphtrain.program.bind import Program
from graphtrain.ranks import Ranks, current_ranks, using_ranks
from graphtrain.resume import rank_resume, rank_saves
from tests.fake_ranks import run_ranks
from tests.ranks.processes import run_processes
from tests.resume.rank_runs import End, run, trainer_of

# Transitions: where a batch is alive, in a window, before exchange, step and zero_grad, between windows, in validation.
# Ranks that are to save there train on to the end of the window.
ALIVE, IN_WINDOW, BETWEEN, IN_VALIDATION = 3, 6, 12, 47
SOME = (ALIVE, IN_WINDOW, 9, 10, 11, IN_VALIDATION)
FIRST_EPOCH = range(1, 62)


def every_step(graph: Graph) -> Graph:
    return graph.set("checkpoint", every="1 steps")


def names(run_dir: Path) -> list[str]:
    """All in the folder of the checkpoints, temporary folders included."""
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def resumed_line(end: End) -> str:
    (line,) = (line for line in end.lines if line.startswith("resumed"))
    return line


# ---- by as many, and by another number


@pytest.fixture(scope="module")
def trained() -> list[int]:
    """The samples that the whole run trains on."""
    return []


@pytest.fixture(scope="module")
def whole() -> list[End]:
    return run(2, None)


@pytest.fixture(scope="module")
def plain(trained: list[int]) -> list[End]:
    """Without what each rank has of its own."""
    return run(2, None, is_plain=True, trained=trained)


def assert_equal(ends: list[End], expected: list[End]) -> None:
    """Equal up to the order of sums."""
    assert len(ends[0].metrics) == len(expected[0].metrics)
    for end in ends:
        assert (end.weights - expected[0].weights).abs().max() < 1e-12
    for row, row_before in zip(ends[0].metrics, expected[0].metrics, strict=True):
        assert row == pytest.approx(row_before, rel=1e-12)


@pytest.mark.full
@pytest.mark.parametrize(
    "cuts",
    [
        [IN_WINDOW],
        pytest.param(SOME, marks=pytest.mark.full),
        pytest.param(FIRST_EPOCH[::3], marks=pytest.mark.sweep),
    ],
    ids=["one", "some", "many"],
)
def test_wherever_it_is_cut_it_is_exact(whole: list[End], tmp_path: Path, cuts: Sequence[int]) -> None:
    for number in cuts:
        run_dir = tmp_path / str(number)
        cut = run(2, run_dir, advance=number, seed=number)
        ends = run(2, run_dir, seed=-number)
        assert [end.digest for end in ends] == [end.digest for end in whole], f"cut before {cut[0].position}"
        assert ends[0].metrics == whole[0].metrics


RENAME = {"next_batch": "fetch", "accumulate": "gather"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("world_size", "cuts", "rename"),
    [
        (1, [IN_WINDOW], {}),
        pytest.param(3, [BETWEEN, IN_VALIDATION], {}, marks=pytest.mark.full),
        pytest.param(3, [BETWEEN], RENAME, marks=pytest.mark.full),
        *(pytest.param(size, FIRST_EPOCH[::4], {}, marks=pytest.mark.sweep) for size in (1, 3, 4)),
    ],
)
def test_another_number_of_ranks_trains_on_the_same_samples_to_the_same_weights(
    plain: list[End], trained: list[int], tmp_path: Path, world_size: int, cuts: Sequence[int], rename: dict[str, str]
) -> None:
    def renamed(graph: Graph) -> Graph:
        return graph.rename("next_batch", "fetch").rename("accumulate", "gather") if rename else graph

    for number in cuts:
        run_dir, samples = tmp_path / str(number), list[int]()
        cut = run(2, run_dir, advance=number, is_plain=True, trained=samples)
        assert not cut[0].progress["accumulate"]["count"]
        assert cut[0].position not in ("train_batch", "validate/eval_batch")
        resume: Any = {"graph": renamed, "act": lambda trainer: trainer.run(rename=rename)}
        assert_equal(run(world_size, run_dir, is_plain=True, trained=samples, **resume), plain)
        assert sorted(samples) == sorted(trained)


def test_what_another_number_of_ranks_changes_is_told(tmp_path: Path) -> None:
    run(2, tmp_path, advance=BETWEEN)
    line = resumed_line(run(1, tmp_path)[0])
    assert line.endswith("exact except for what changed: 1 process instead of 2 (other random numbers)")


def test_a_value_that_follows_from_the_number_of_ranks_is_kept_as_saved(tmp_path: Path) -> None:
    """As the length of a schedule: the error names `--from-saved`, and nothing else."""
    run(2, tmp_path, advance=BETWEEN, is_plain=True)
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double()
    other: Any = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.02), "is_plain": True}
    with pytest.raises(UsageError, match=r"optimizer.lr: 0.01 -> 0.02") as refused:
        run(1, tmp_path, **other)
    assert refused.value.hint.startswith(
        "the run began with another number of processes, 2, and keeps the size of its "
    )
    assert "--from-saved keeps the values for it" in refused.value.hint and "from-setup" not in refused.value.hint
    (end,) = run(1, tmp_path, act=lambda trainer: trainer.run(from_saved=True), **other)
    assert "optimizer.lr: 0.01 -> 0.02 (kept as saved)" in resumed_line(end)


@pytest.mark.parametrize("cut", [ALIVE, IN_WINDOW])
def test_what_one_process_saved_within_a_window_or_a_batch_is_its_own(cut: int, tmp_path: Path) -> None:
    run(1, tmp_path, advance=cut)
    with pytest.raises(CheckpointError, match="in the middle of a window or a batch by 1 process,") as refused:
        run(2, tmp_path)
    assert "resume with 1 process" in refused.value.hint


# ---- what is needed for that: without it the comparisons above fail


@pytest.mark.full
@pytest.mark.parametrize("what", ["the window that it began with", "means of all ranks"])
def test_a_mutation_is_noticed(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: list[End]) -> None:
    run(2, tmp_path, advance=BETWEEN if "window" in what else 49, is_plain=True)
    if "window" in what:
        one = property(lambda program: 1, lambda program, value: None)
        monkeypatch.setattr(Program, "window_ranks", one, raising=False)
    else:
        monkeypatch.setattr(rank_resume, "_means", lambda of_ranks, rank: of_ranks[0])
    with pytest.raises(AssertionError):
        assert_equal(run(1, tmp_path, is_plain=True), plain)


# ---- one checkpoint


@pytest.mark.full
def test_what_is_the_same_is_stored_once_and_weights_need_nothing_else(tmp_path: Path) -> None:
    ends = run(2, tmp_path, advance=7)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".msgpack"}
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert weights.keys() >= {"0.weight", "0.bias", "1.weight", "1.running_mean", "3.weight"}
    assert torch.equal(weights["0.weight"].flatten(), ends[0].weights[:18])
    own = [safetensors.torch.load_file(folder / f"rank.{rank:05d}.safetensors") for rank in range(2)]
    assert own[0].keys() == own[1].keys() and {key.partition("/")[0] for key in own[0]} == {"random"}


def test_what_is_taken_of_rank_0_is_named(tmp_path: Path) -> None:
    def step(seen: list[int], amount: int) -> Callable[..., torch.Tensor]:
        def counted(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            seen[0] += amount
            return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

        return counted

    def cut(ranks: Ranks) -> None:
        trainer = trainer_of(tmp_path, training_step=step([0], ranks.rank + 1))
        trainer.advance(BETWEEN)
        trainer.save()

    run_ranks(2, cut)
    lines, seen = list[str](), [0]
    trainer_of(tmp_path, training_step=step(seen, 0), notify=lines.append).run()
    assert seen == [2], "that of rank 0"
    assert any("(other random numbers, what has changed since `setup` of rank 0)" in line for line in lines)


@pytest.mark.first(1)
@pytest.mark.parametrize(("failing", "if_failed"), [(1, "continue"), (1, "stop"), (0, "stop")])
def test_a_disk_that_one_rank_cannot_write_is_told_to_all_of_them(
    failing: int, if_failed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = rank_saves.write_files, list[int]()

    def failing_write(folder: Path, rank: int, *more: Any) -> Any:
        calls.append(rank)
        if rank == failing and calls.count(rank) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(folder, rank, *more)

    def program(ranks: Ranks) -> str:
        lines = list[str]()
        graph: Any = lambda graph: every_step(graph).set("checkpoint", if_failed=if_failed, keep=9)  # noqa: E731
        trainer = trainer_of(tmp_path, graph=graph, notify=lines.append)
        try:
            return f"{trainer.run()} {[line for line in lines if 'No space' in line] if not ranks.rank else ''}"
        except CheckpointError as error:
            return f"{trainer.position}: {error}"

    with monkeypatch.context() as patch:
        patch.setattr(rank_saves, "write_files", failing_write)
        first, second = run_ranks(2, program)
    if if_failed == "continue":
        assert f"rank {failing} cannot write its part of the checkpoint" in first and "the run continues" in first
        assert names(tmp_path)[-1].endswith("step-4")
    else:
        assert first == second and "No space left on device" in first
        assert names(tmp_path) == ["000001-step-1"], "no part of the checkpoint that failed is left"
        assert [end.digest for end in run(2, tmp_path)] == [end.digest for end in run(2, None)]


def test_a_save_that_one_rank_asks_for_is_one_checkpoint(tmp_path: Path) -> None:
    def program(ranks: Ranks) -> Outcome:
        asked = []

        def step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            if ranks.rank == 1 and not asked:
                asked.append(trainer.save())
            return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

        trainer = trainer_of(tmp_path, training_step=step)
        return trainer.run()

    assert run_ranks(2, program) == [Outcome.FINISHED] * 2
    assert names(tmp_path) == ["000001-step-1", "000002-step-4"], "behind the window"


def test_a_stop_waits_for_the_end_of_a_window(tmp_path: Path) -> None:
    def program(ranks: Ranks) -> tuple[Outcome, str]:
        trainer = trainer_of(tmp_path, is_plain=True)
        trainer.advance(ALIVE)
        if ranks.rank == 1:
            trainer._run.requests.ask("stop")
        return trainer.run(), trainer.position

    assert run_ranks(2, program) == [(Outcome.STOPPED, "decide")] * 2
    assert run(1, tmp_path, is_plain=True)[0].outcome is Outcome.FINISHED


def set_field(path: str, name: str) -> Callable[[Trainer], object]:
    return lambda trainer: setattr(trainer._session.compiled.program.by_path[path].instance, name, 7)


# what one rank does, and what is said of it
DIFFERENT: dict[str, tuple[Callable[[Trainer], object], str]] = {
    "weights": (
        lambda trainer: trainer.resources["model"][0].bias.data.add_(1.0),
        "ranks differ in `model/0.bias`: ",
    ),
    "progress": (set_field("step", "steps"), "ranks differ in `progress['step']`: "),
    "what may differ": (set_field("log", "runs"), ""),
    "settings": (
        lambda trainer: trainer.resources["optimizer"].param_groups[0].update(lr=0.5),
        "ranks differ in `resources['optimizer']`: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_must_be_the_same_and_is_not_is_named(name: str, tmp_path: Path) -> None:
    change, message = DIFFERENT[name]

    def program(ranks: Ranks) -> str:
        trainer = trainer_of(tmp_path)
        trainer.advance(BETWEEN)
        try:
            if ranks.rank == 1:
                change(trainer)
            trainer.save()
        except GraphtrainError as error:
            return error.message
        return ""

    first, second = run_ranks(2, program)
    assert message in first and first == second
    assert bool(message) is bool(first)
    assert len(names(tmp_path)) == (0 if message else 1)


def test_a_rank_that_stops_elsewhere_than_the_others_is_named_at_once(tmp_path: Path) -> None:
    def program(ranks: Ranks) -> str:
        trainer = trainer_of(tmp_path, is_plain=True)
        with pytest.raises(GraphtrainError) as caught:
            trainer.advance(3 + ranks.rank)
        return caught.value.message

    for message in run_ranks(2, program):
        assert "rank 0 is at `train_batch`" in message and "rank 1 is at `accumulate`" in message and "stop" in message


def truncate(folder: Path) -> None:
    path = folder / "rank.00001.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def remove(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def mix(folder: Path) -> None:
    shutil.copyfile(min(folder.parent.iterdir()) / "rank.00001.msgpack", folder / "rank.00001.msgpack")


@pytest.mark.full
@pytest.mark.parametrize("damage", [truncate, remove, mix])
def test_a_checkpoint_of_which_one_rank_cannot_read_its_piece_is_skipped_by_all(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    def graph(graph: Graph) -> Graph:
        return every_step(graph).set("checkpoint", keep=9)

    whole = run(2, tmp_path, graph=graph)
    newest = max((tmp_path / "checkpoints").iterdir())
    damage(newest)
    with pytest.raises(CheckpointError, match=newest.name):
        run(2, tmp_path / "other", act=lambda trainer: trainer.run(resume=newest))
    ends = run(2, tmp_path, graph=graph)
    assert [end.digest for end in ends] == [end.digest for end in whole]
    assert any("skipped a damaged checkpoint" in line for line in ends[0].lines)


# ---- data whose loading leaves traces


class Counting(torch.utils.data.Dataset[Any]):
    """Samples that depend on how many of them were loaded before, in this process."""

    def __init__(self, length: int) -> None:
        self.length, self.loaded = length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded += 1
        return torch.tensor([index, self.loaded, torch.rand(()).item()])


def run_on_traces(world_size: int, run_dir: Path | None, advance: int = 0) -> list[Any]:
    """What every rank has seen, the digest that it ends with, and what it has said."""

    def program(ranks: Ranks) -> tuple[Any, Any, Any]:
        seen, lines, rank = list[Any](), list[str](), ranks.rank

        def training_step(model: Any, batch: torch.Tensor) -> torch.Tensor:
            seen.append(batch.tolist())
            torch.rand(rank + 1)
            loss: torch.Tensor = model(batch).square().mean()
            return loss

        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        graph = Graph.load("fit").set("accumulate", every=2).set("checkpoint", every="never")
        trainer = Trainer(
            graph.set("finish", after="2 epochs"),
            seed=0,
            run_dir=run_dir,
            display=None,
            notify=lines.append,
            not_state=["training_step<seen>"],
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
            train_data=Loader(Counting(13), batch_size=2, shuffle=True),
            training_step=training_step,
        )
        if advance:
            trainer.advance(advance)
            trainer.save()
        else:
            trainer.run()
        return seen, trainer.digest(), lines

    if world_size > 1:
        return run_ranks(world_size, program)
    with using_ranks(Ranks()):
        return [program(Ranks())]


@pytest.mark.first(1)
def test_each_rank_continues_with_the_traces_of_its_own_loading(tmp_path: Path) -> None:
    whole = run_on_traces(3, None)
    begun, resumed = run_on_traces(3, tmp_path, 14), run_on_traces(3, tmp_path)
    for rank in range(3):
        assert begun[rank][0] + resumed[rank][0] == whole[rank][0], rank
        assert resumed[rank][1] == whole[rank][1], rank
    assert not [line for line in resumed[0][2] if "not exact" in line]


# ---- processes, over gloo


def weights(trainer: Any) -> list[float]:
    return [number for parameter in trainer.resources["model"].parameters() for number in parameter.flatten().tolist()]


def cut_and_resumed(run_dir: Path) -> dict[str, Any]:
    ranks, lines = current_ranks(), list[str]()
    whole = trainer_of(None)
    whole.run()
    exact = trainer_of(run_dir / "exact")
    exact.advance(IN_WINDOW)
    exact.save()
    resumed = trainer_of(run_dir / "exact")
    resumed.run()
    plain = trainer_of(None, is_plain=True)
    plain.run()
    first = trainer_of(run_dir / "elastic", is_plain=True)
    first.advance(BETWEEN)
    first.save()
    if ranks.rank == 0:
        with using_ranks(Ranks()):
            second = trainer_of(run_dir / "elastic", is_plain=True)
            while second.progress["step"]["steps"] < 2 or second.progress["accumulate"]["count"]:
                second.advance()
            second.save()
        ranks.publish("saved by one", b"")
    assert ranks.read("saved by one", 60.0) is not None
    third = trainer_of(run_dir / "elastic", is_plain=True, notify=lines.append)
    third.run()
    return {
        "exact": (whole.digest(), resumed.digest()),
        "weights": (weights(plain), weights(third)),
        "window": third.progress["accumulate"]["window"],
        "line": [line for line in lines if line.startswith("resumed")],
    }


@pytest.mark.full
def test_two_processes_then_one_then_two(tmp_path: Path) -> None:
    first, second = run_processes(2, cut_and_resumed, tmp_path)
    for end in (first, second):
        assert end["exact"][0] == end["exact"][1]
        assert end["weights"][1] == pytest.approx(end["weights"][0], abs=1e-12)
        assert end["window"] == 4
    assert first["exact"] != second["exact"], "each rank has its own buffers"
    assert "2 processes instead of 1 (other random numbers)" in first["line"][0]
