"""The samples that a graph selects for an epoch, and data that it writes: exact at every cut, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import DataError, Graph, Loader, Outcome, Trainer, node, progress
from graphtrain.data.samplers import selection_of

SAMPLES = [torch.tensor([float(number)]) for number in range(12)]


def selecting(choose: Callable[[int], Any], writes: str = "indices") -> Any:
    @node(writes=writes, name="select")
    class Select:
        """Write what the epochs from the next one on have."""

        count: int = progress(0)

        def __call__(self) -> Any:
            self.count += 1
            return choose(self.count)

    return Select


def epoch_indices(count: int) -> list[int]:
    return [number for number in range(12) if number % (count + 1)][: 4 + 2 * count]


def graph_of(choose: Callable[[int], Any] = epoch_indices, **insertion: Any) -> Graph:
    where = insertion or {"after": "begin_epoch"}
    return (
        Graph.load("fit")
        .set("accumulate", every=2)
        .set("finish", after="3 epochs")
        .set("log", every="never")
        .insert("select", selecting(choose), **where)
    )


def run_of(graph: Graph, data: Any, run_dir: Path | None = None, **others: Any) -> tuple[Trainer, list[Any], list[str]]:
    torch.set_num_threads(1)
    seen: list[Any] = []
    lines: list[str] = []

    def training_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.flatten().tolist())
        return model(batch + torch.rand(())).square().mean()

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Dropout(0.5), torch.nn.Linear(2, 1))
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "training_step": training_step,
        **({} if data is None else {"train_data": data}),
        **others,
    }
    trainer = Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=lines.append,
        not_state=["training_step<seen>"],
        **resources,
    )
    return trainer, seen, lines


def assert_exact(graph: Graph, made: Callable[[], Any], tmp_path: Path, cuts: range) -> list[Any]:
    whole, seen, _ = run_of(graph, made())
    assert whole.run() is Outcome.FINISHED
    for cut in cuts:
        first, before, _ = run_of(graph, made(), tmp_path / str(cut))
        first.advance(cut)
        first.save()
        second, after, lines = run_of(graph, made(), tmp_path / str(cut))
        second.run()
        (line,) = [line for line in lines if line.startswith("resumed")]
        assert line.endswith("exact") and "not exact" not in line, line
        assert before + after == seen, cut
        assert second.digest() == whole.digest(), cut
    return seen


@pytest.mark.full
@pytest.mark.parametrize("interval", [23, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_has_what_is_selected_and_cuts_are_exact(shuffle: bool, interval: int, tmp_path: Path) -> None:
    made = lambda: Loader(SAMPLES, batch_size=3, shuffle=shuffle)  # noqa: E731
    seen = assert_exact(graph_of(), made, tmp_path, range(3, 60, interval))
    epochs = [[1, 3, 5, 7, 9, 11], [1, 2, 4, 5, 7, 8, 10, 11], [1, 2, 3, 5, 6, 7, 9, 10, 11]]
    batches = iter(seen)
    for indices in epochs:
        size = -(-len(indices) // 3)
        had = [number for _ in range(size) for number in next(batches)]
        assert sorted(had) == indices
        assert (had == indices) is not shuffle
    assert next(batches, None) is None


@pytest.mark.full
def test_cuts_are_exact_with_workers(tmp_path: Path) -> None:
    made = lambda: Loader(SAMPLES, batch_size=3, shuffle=True, num_workers=2)  # noqa: E731
    one_process = run_of(graph_of(), Loader(SAMPLES, batch_size=3, shuffle=True))
    one_process[0].run()
    assert assert_exact(graph_of(), made, tmp_path, range(9, 10)) == one_process[1]


@pytest.mark.full
@pytest.mark.parametrize("interval", [17, pytest.param(1, marks=pytest.mark.sweep)])
def test_what_is_written_in_mid_epoch_is_for_the_next_one(interval: int, tmp_path: Path) -> None:
    graph = graph_of(lambda count: [count % 12, (count + 1) % 12, 3], after="zero_grad")
    seen = assert_exact(graph, lambda: Loader(SAMPLES, batch_size=2), tmp_path, range(5, 50, interval))
    assert len(seen) > 6 and seen[:6] == [[2.0 * n, 2.0 * n + 1] for n in range(6)], "until it is written, everything"
    assert seen[6:8] == [[3.0, 4.0], [3.0]], "what the last step of the epoch before has written"


def test_a_list_of_batches_is_selected_from_by_number() -> None:
    trainer, seen, _ = run_of(graph_of(lambda count: [2, 0, 2][:count]), SAMPLES)
    trainer.run()
    assert seen == [[2.0], [2.0], [0.0], [2.0], [0.0], [2.0]]
    assert trainer.read("next_batch.epochs") == 3


def test_a_validation_has_a_selection_of_its_own() -> None:
    seen: list[Any] = []

    def validation_step(model: Any, batch: torch.Tensor) -> dict[str, float]:
        seen.append(batch.flatten().tolist())
        return {"loss": 0.0}

    graph = graph_of().insert(
        "hold_out", selecting(lambda count: [0, count], writes="val_indices"), after="begin_epoch"
    )
    data = {"val_data": Loader(SAMPLES, batch_size=4), "validation_step": validation_step}
    run_of(graph, Loader(SAMPLES, batch_size=3), **data)[0].run()
    assert seen == [[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]
    seen.clear()
    run_of(graph_of(), Loader(SAMPLES, batch_size=3), **data)[0].run()
    assert [len(batch) for batch in seen] == [4] * 9, "what training selects is not for it"


@pytest.mark.full
@pytest.mark.parametrize(
    ("mid_epoch", "interval"),
    [
        (False, 19),
        (True, 8),  # the second before the slot is written again, whose value is not alive then
        pytest.param(False, 1, marks=pytest.mark.sweep),
        pytest.param(True, 1, marks=pytest.mark.sweep),
    ],
)
def test_data_that_the_graph_writes(mid_epoch: bool, interval: int, tmp_path: Path) -> None:
    def pool(count: int) -> list[torch.Tensor]:
        return [torch.full((2, 1), float(10 * count + number)) for number in range(2 + count)]

    graph = graph_of().remove("select").set("next_batch", reads={"train_data": "pool"})
    graph = graph.insert("select", selecting(pool, writes="pool"), after="begin_epoch")
    if mid_epoch:
        again = node(writes="pool", name="again")(lambda *, of: [torch.full((2, 1), 7.0)] * of)
        graph = graph.insert("again", again, after="zero_grad", of=2)
    seen = assert_exact(graph, lambda: None, tmp_path, range(3, 50, interval))
    assert [batch[0] for batch in seen] == [10.0, 11, 12, 20, 21, 22, 23, 30, 31, 32, 33, 34]


def test_data_that_is_read_before_it_is_written() -> None:
    graph = graph_of().remove("select").set("next_batch", reads={"train_data": "pool"})
    late = graph.insert("select", selecting(lambda count: SAMPLES, writes="pool"), after="zero_grad")
    assert [problem.code for problem in late.check()] == ["G303"]
    nothing = graph.insert("select", selecting(lambda count: None, writes="pool"), after="begin_epoch")
    with pytest.raises(DataError, match="an epoch is opened before anything has written its data"):
        run_of(nothing, None)[0].run()


REFUSED = [
    ([0, 12], r"`train_data`: `indices`: there are 12 samples, with the numbers 0 to 11; got 12"),
    ([-1, 3], r"the numbers 0 to 11; got -1"),
    ([], r"`indices` is empty: an epoch needs at least one of the 12 samples"),
    (torch.tensor([]).long(), r"`indices` is empty"),
    ([0.0, 1.0], r"whole numbers of samples; got a list with `float`"),
    ([True, False], r"got a list with `bool`"),
    (torch.tensor([0.0, 2.0]), r"got a tensor of torch.float32"),
    (torch.tensor([[0, 1]]), r"got a tensor of shape \(1, 2\)"),
    (torch.tensor(3), r"got a tensor of shape \(\)"),
    (torch.ones(12, dtype=torch.bool), r"got a mask of shape \(12,\)\n  hint: mask.nonzero\(\).flatten\(\)"),
    ("012", r"got a str"),
    (3, r"got a int|got an int"),
]


@pytest.mark.first(10)
@pytest.mark.parametrize(("indices", "message"), REFUSED)
def test_wrong_numbers_are_refused(indices: Any, message: str) -> None:
    trainer, _, _ = run_of(graph_of(lambda count: indices), Loader(SAMPLES, batch_size=3))
    with pytest.raises(DataError, match=message):
        trainer.run()


def test_wrong_numbers_name_the_data_that_they_select_from() -> None:
    graph = graph_of().insert("hold_out", selecting(lambda count: [5], writes="val_indices"), after="begin_epoch")
    trainer, _, _ = run_of(graph, Loader(SAMPLES, batch_size=3), val_data=Loader(SAMPLES[:3], batch_size=3))
    message = "`val_data`: `indices`: there are 3 samples, with the numbers 0 to 2; got 5\n"
    with pytest.raises(DataError, match=f"{message}.*numbers chosen for another one need as many samples"):
        trainer.run()


def test_numbers_of_every_form() -> None:
    for indices in ([1, 2], (1, 2), range(1, 3), torch.tensor([1, 2], dtype=torch.int32), numpy.array([1, 2])):
        assert selection_of(indices, 3, "samples").tolist() == [1, 2]
    assert selection_of([numpy.int64(2), 2], 3, "samples").tolist() == [2, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(SAMPLES), "which a DataLoader does not draw by.*graphtrain.Loader"),
        (Loader(SAMPLES, sampler=[1, 2]), "and so does the sampler of the Loader"),
        (Loader(SAMPLES, batch_sampler=[[1], [2]]), "and so does the batch_sampler of the Loader"),
    ],
)
def test_data_that_cannot_be_selected_from(data: Any, message: str) -> None:
    trainer, _, _ = run_of(graph_of(), data)
    with pytest.raises(DataError, match=f"(?s){message}"):
        trainer.run()
