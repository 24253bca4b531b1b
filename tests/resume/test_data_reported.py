"""Promise 11: a resume inside an epoch is called exact where its batches are known to be the same, else it is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler

from graphtrain import CheckpointError, DataError, Graph, Loader, fit
from tests.resume import data_kinds as kinds
from tests.resume.data_kinds import Made, Noisy, Seen, hugging_face, reading, resumed, setting, stateful
from tests.resume.test_data_exact import of_one_generator, selecting, shuffled, twelve, writing
from tests.world import World, assert_as_by_hand, says_exact

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 calls it

# ---- what is not exact

CHANGED_BATCH = "train_data differs: batch 3 of epoch 1 is not what it was"
OTHER_BATCH = "gives another batch after `load_state_dict` than before"


class Stream(torch.utils.data.IterableDataset[Any], kinds.Shifted):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return (kinds.Shifted.__getitem__(self, index) for index in range(kinds.COUNT))


def by_name(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"inputs": torch.stack(samples), "index": torch.arange(len(samples))}


def listed(shift: float) -> list[torch.Tensor]:
    return [torch.full((2,), index + (shift if index % 5 == 2 else 0.0)) for index in range(7)]


SHIFTED: dict[str, Callable[[float], Any]] = {
    "a list": listed,
    "Loader": lambda shift: Loader(kinds.Shifted(shift), 2, shuffle=True),
    "Loader of dicts": lambda shift: Loader(kinds.Shifted(shift), 2, collate_fn=by_name),
    "a stream": lambda shift: DataLoader(Stream(shift), 2),
    "Loader, 2 workers": lambda shift: Loader(kinds.Shifted(shift), 2, num_workers=2),
    "DataLoader, 2 workers": lambda shift: DataLoader(kinds.Shifted(shift), 2, shuffle=True, num_workers=2),
}


@pytest.mark.second(3)
@pytest.mark.first(2)
@pytest.mark.parametrize("name", SHIFTED)
def test_another_batch_is_named_and_the_same_is_not(name: str, tmp_path: Path) -> None:
    same, other = (reading(lambda shift=shift: SHIFTED[name](shift)) for shift in (0.0, 0.5))  # type: ignore[misc]
    assert says_exact(resumed(same, tmp_path / "same", until="5 batches")[0])
    line, _ = resumed(same, tmp_path / "other", later=other, until="5 batches")
    assert "not exact: " in line and CHANGED_BATCH in line
    line, _ = resumed(other, tmp_path / "other", "6 batches", until="7 batches")
    assert "unchanged: exact; but the resume from 0" in line, "from what it has saved since"


NOT_EXACT: dict[str, tuple[World, str, str]] = {
    "another order": (reading(lambda: DataLoader(kinds.Samples(), 4, sampler=kinds.Unseeded())), "2 batches",
                      "train_data differs: batch 2 of epoch 1"),
    "another order of one of two": (
        reading(lambda: {"train_data": {
            "a": shuffled(), "b": DataLoader(kinds.Samples(), 4, sampler=kinds.Unseeded())}}),
        "2 batches", "differs: batch 2 of epoch 1 is not what it was",
    ),
    "a sampler that two loaders share": (
        reading(lambda: {"train_data": {
            name: DataLoader(kinds.Samples(), 4, sampler=sampler)
            for sampler in [kinds.CountingSampler()] for name in "ab"
        }}), "2 batches", "differs: batch 2 of epoch 1 is not what it was",
    ),
    "a generator from which two loaders draw in turn": (
        reading(lambda: of_one_generator(40)), "19 batches", "train_data differs: batch 19 of epoch 1",
    ),
    "a buffer that no state has": (reading(kinds.Incomplete), "3 batches", OTHER_BATCH),
    "an epoch that no state has": (reading(kinds.IncompleteEpochs), "15 batches", OTHER_BATCH),
    "a state that nothing could show yet": (
        reading(kinds.SizedIncomplete), "1 batches", "before its second batch, so nothing shows whether",
    ),
    "a state that begins again": (
        reading(kinds.Starting), "5 batches", "without a `state_dict`: a resume then draws the batches",
    ),
    "a loader of a state without its buffer": (
        reading(lambda: stateful(kinds.Incomplete(), 2)), "3 batches", OTHER_BATCH,
    ),
    "a state that is known to be incomplete": (
        reading(lambda: DataLoader(hugging_face(5), 2, collate_fn=kinds.stacked)), "3 batches", "",
    ),
    "what changes in workers": (
        reading(lambda: Loader(kinds.Counting(), 2, num_workers=1)), "3 batches",
        "not exact: train_data differs: batch 3 of epoch 1 is not what it was",
    ),
}  # fmt: skip


@pytest.mark.second(4)
@pytest.mark.first(3)
@pytest.mark.parametrize("name", NOT_EXACT)
def test_what_cannot_be_exact_is_named(name: str, tmp_path: Path) -> None:
    it, cut, reported = NOT_EXACT[name]
    line, trainer = resumed(it, tmp_path, cut)
    if not reported:
        assert says_exact(line), "it is drawn again"
        return
    assert "not exact: " in line and reported in line
    whole = it.trainer()
    whole.run()
    assert trainer.digest() != whole.digest() or "workers" in name


def test_a_position_behind_what_was_fetched_is_loaded(tmp_path: Path) -> None:
    """What is reported after a resume is what was loaded, also where the object itself has moved."""
    for until in ("1 batches", "2 batches", "3 batches"):
        reading(kinds.Ahead).trainer(tmp_path).run(until=until)


# ---- batches that the step changes


def disturbed(batch: torch.Tensor) -> Any:
    return batch.add_(0.1)


def popped(batch: dict[str, Any]) -> Any:
    batch["inputs"] = batch.pop("inputs") * 2
    return batch


def changing(made: Made, act: Callable[[Any], Any]) -> World:
    return reading(made, training_step=Seen(act), edit=setting("validate", every="never"))


@pytest.mark.parametrize("name", ["Loader", "a stream"])
def test_a_batch_that_the_step_changes_is_not_compared(name: str, tmp_path: Path) -> None:
    assert says_exact(resumed(changing(lambda: SHIFTED[name](0.0), disturbed), tmp_path, until="5 batches")[0])


def test_a_dict_that_the_step_changes_is_compared_as_it_was_fetched(tmp_path: Path) -> None:
    same, other = (changing(lambda n=n: SHIFTED["Loader of dicts"](n), popped) for n in (0.0, 0.5))  # type: ignore[misc]
    assert says_exact(resumed(same, tmp_path / "a", until="5 batches")[0])
    assert CHANGED_BATCH in resumed(same, tmp_path / "b", later=other, until="5 batches")[0]


IN_A_LIST: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda tensor: tensor, lambda batch: batch),
    "tuple": (lambda tensor: (tensor, 1), lambda batch: batch[0]),
    "dict": (lambda tensor: {"inputs": [tensor]}, lambda batch: batch["inputs"][0]),
}


@pytest.mark.parametrize("name", IN_A_LIST)
def test_batches_of_a_list_that_the_step_changes_are_saved(name: str, tmp_path: Path) -> None:
    """Also where one is on its way through the graph."""
    wrapped, unwrapped = IN_A_LIST[name]
    it = changing(lambda: [*map(wrapped, listed(0.0))], lambda batch: disturbed(unwrapped(batch)))
    whole, cut = it.trainer(), it.trainer(tmp_path / "cut")
    whole.run()
    while cut.position != "train_batch":
        cut.advance()
    cut.save()
    again = it.trainer(tmp_path / "cut")
    again.run(until="9 batches")
    last = it.trainer(tmp_path / "cut")
    last.run()
    assert last.digest() == whole.digest()


@pytest.mark.parametrize("cut", ["1 batches", "102 batches"])
def test_batches_of_a_long_list_that_the_step_changes_are_reported(cut: str, tmp_path: Path) -> None:
    it = changing(
        lambda: [(torch.full((2,), float(number)),) for number in range(100)], lambda batch: disturbed(batch[0])
    )
    line, _ = resumed(it, tmp_path, cut, until="103 batches")
    assert "not exact: train_data has changed since the checkpoint" in line


def test_data_that_training_adds_to_is_not_compared(tmp_path: Path) -> None:
    """What the resume draws again is not what was trained on, and the run is exact all the same."""

    class Buffer:
        def __init__(self) -> None:
            self.held = [torch.ones(2)]

        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Any:
            return (torch.stack(self.held).sum(0) + number for number in range(6))

    def made(resources: dict[str, Any]) -> Any:
        def step(model: Any, batch: Any) -> torch.Tensor:
            if torch.is_grad_enabled():
                resources["train_data"].held.append(batch.detach() * 0.1)
            return kinds.stepped(model, batch)

        return step

    it = reading(Buffer, edit=setting("validate", every="never")).but(training_step=made)
    line, trainer = resumed(it, tmp_path)
    whole = it.trainer()
    whole.run()
    assert says_exact(line) and trainer.digest() == whole.digest()


def test_what_is_kept_of_a_large_batch_is_small(tmp_path: Path) -> None:
    reading(lambda: [torch.zeros(2**20, 1)] * 3).trainer(tmp_path).run(until="1 batches")
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 2**18


# ---- what is said when a run begins

COST = "inside an epoch draws that epoch's earlier batches again; for a map-style dataset, a graphtrain.Loader"
TORCHDATA: dict[str, tuple[Made, bool]] = {
    "in order": (lambda: stateful(range(4)), False),
    "a worker": (lambda: stateful(kinds.CountedSet(), num_workers=1), False),
    "a set without a state": (lambda: stateful(kinds.BufferedSet(), 2), False),
    "a set with a state": (lambda: stateful(kinds.CountedSet()), True),
}
SAID: dict[str, tuple[World, list[str]]] = {
    "DataLoader": (reading(lambda: {"train_data": DataLoader(Noisy(), 2), "val_data": []}), [COST]),
    "Loader": (reading(lambda: {"train_data": Loader(Noisy(), 2), "val_data": []}), []),
    "an iterable": (reading(lambda: {"train_data": kinds.Zipped([torch.ones(2)] * 4), "val_data": []}), []),
}


def said_by(it: World, run_dir: Path | None) -> list[str]:
    lines = list[str]()
    it.trainer(run_dir, lines=lines).run(until="3 batches")
    return lines


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_data(name: str, tmp_path: Path) -> None:
    it, expected = SAID[name]
    found = [line for line in said_by(it, tmp_path) if "again" in line]
    for fragment in expected:
        assert any(fragment in line for line in found), found
    assert len(found) == len(expected)
    assert not any(COST in line for line in said_by(it, None)), "where nothing is saved"


@pytest.mark.full
@pytest.mark.parametrize("name", TORCHDATA)
def test_torchdatas_loader_is_resumed_by_its_state_where_its_data_set_has_one(name: str, tmp_path: Path) -> None:
    made, is_exact = TORCHDATA[name]
    it = reading(lambda: {"train_data": made(), "val_data": [torch.ones(1)]})
    assert any(COST in line for line in said_by(it, tmp_path)) is not is_exact


# ---- as in a loop by hand


class AtOnce(kinds.BufferedSampler):
    def __iter__(self) -> Any:
        yield from torch.randperm(kinds.COUNT).tolist()


BY_HAND: dict[str, Made] = {
    "a list": lambda: listed(0.0),
    "a Loader": lambda: Loader(Noisy(), 2, shuffle=True),
    "augmented": lambda: DataLoader(Noisy(), 2, shuffle=True),
    "a sampler with a generator of its own, bit by bit": lambda: DataLoader(
        range(14),  # type: ignore[arg-type]
        2,
        sampler=RandomSampler(range(14), True, generator=torch.Generator().manual_seed(2)),
    ),
    "a sampler of the user's that draws at once": lambda: DataLoader(Noisy(), 2, sampler=AtOnce()),
    "torch's sampler": lambda: DataLoader(Noisy(), 2, sampler=SubsetRandomSampler(range(14))),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_batches_are_those_of_a_loop_by_hand(name: str) -> None:
    """Also random numbers that training does not draw between those of the data."""
    assert_as_by_hand(reading(BY_HAND[name], edit=setting("validate", every="never")))


# ---- what is refused


class Keeping(DataLoader[Any]):
    state_dict = load_state_dict = len


class Opaque(kinds.Carried):
    def state_dict(self) -> dict[str, Any]:
        return {"position": object()}


def chosen(indices: Any, made: Made = twelve) -> World:
    return reading(made, edit=selecting(lambda count: indices))


def written(value: Any) -> World:
    def edit(graph: Graph) -> Graph:
        graph = graph.set("next_batch", reads={"train_data": "pool"})
        return graph.insert("select", writing(lambda count: value, writes="pool"), after="begin_epoch")

    return reading(lambda: {}, edit=edit)


def held_out(graph: Graph) -> Graph:
    return graph.insert("hold_out", writing(lambda count: [12], writes="val_indices"), after="begin_epoch")


def persistent(dataset: Any) -> World:
    return reading(lambda: DataLoader(dataset, num_workers=1, persistent_workers=True))


NUMBERS = "`indices` must be whole numbers from 0 to 11, at least one; got "
REFUSED: dict[str, tuple[World, str]] = {
    "no iterable": (reading(lambda: 3), "the data is a int, which cannot be iterated over"),
    "a limit of data with a position": (
        reading(kinds.Carried, edit=setting("next_batch", limit=3)),
        "next_batch.limit = 3: the data is a Carried that keeps its own position",
    ),
    "an iterator": (reading(kinds.once), "a list_iterator that can be iterated over only once, so no resume"),
    "persistent workers": (
        persistent(range(4)), "persistent_workers=True cannot be resumed exactly(.|\n)*a graphtrain.Loader",
    ),
    "persistent workers of a stream": (
        persistent(kinds.BufferedSet()), "cannot be resumed exactly(.|\n)*hint: use persistent_workers=False",
    ),
    "too large a number": (chosen([0, 12]), rf"{NUMBERS}\[0, 12\]"),
    "a negative number": (chosen([-1, 3]), rf"{NUMBERS}\[-1, 3\]"),
    "no numbers": (chosen([]), NUMBERS),
    "no numbers in a tensor": (chosen(torch.tensor([]).long()), NUMBERS),
    "floats": (chosen([0.0, 1.0]), NUMBERS),
    "booleans": (chosen([True, False]), NUMBERS),
    "a table": (chosen(torch.tensor([[0, 1]])), NUMBERS),
    "one number in a tensor": (chosen(torch.tensor(3)), rf"{NUMBERS}tensor\(3\)"),
    "a mask": (chosen(torch.ones(12, dtype=torch.bool)), f"{NUMBERS}(.|\n)*mask.nonzero"),
    "text": (chosen("012"), NUMBERS),
    "numbers of another data": (
        reading(lambda: {"train_data": twelve(), "val_data": twelve()}, edit=held_out),
        NUMBERS,
    ),
    "numbers for a DataLoader": (
        chosen([1], lambda: DataLoader(Noisy())), "`train_data` is a DataLoader(.|\n)*pass a Loader",
    ),
    "numbers and a sampler": (
        chosen([1], lambda: Loader(Noisy(), sampler=[1, 2])), "a graphtrain.Loader without a sampler",
    ),
    "numbers and a batch sampler": (
        chosen([1], lambda: Loader(Noisy(), batch_sampler=[[1], [2]])), "a graphtrain.Loader without a sampler",
    ),
    "data that is not written": (written(None), "the data is a NoneType, which cannot be iterated over"),
}  # fmt: skip


@pytest.mark.first(9)
@pytest.mark.parametrize("name", REFUSED)
def test_data_that_is_refused(name: str, tmp_path: Path) -> None:
    it, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        it.trainer(tmp_path).run()


@pytest.mark.parametrize(
    "indices", [[1, 2], (1, 2), range(1, 3), torch.tensor([1, 2], dtype=torch.int32), torch.tensor([1, 2]).numpy()]
)
def test_numbers_of_every_form_are_taken(indices: Any) -> None:
    step = Seen()
    chosen(indices).but(training_step=lambda made: step).trainer().run(until="4 batches")
    assert step.batches[-1] == [1.0, 2.0]


@pytest.mark.parametrize("name", ["an iterator", "a limit of data with a position", "persistent workers of a stream"])
def test_what_no_resume_could_restore_is_trained_on_without_a_run_directory(name: str) -> None:
    REFUSED[name][0].trainer().run(until="2 batches")


def test_what_can_be_read_only_once_is_not_opened_again() -> None:
    trainer = reading(kinds.once).trainer()
    trainer.run(until="2 batches")
    with pytest.raises(DataError, match="its position is not defined in a list_iterator"):
        trainer.rewire(trainer.graph.set("next_batch", limit=1000))
        trainer.run()


def test_data_that_is_read_before_it_is_written_is_found_by_check() -> None:
    graph = fit(epochs=2).set("next_batch", reads={"train_data": "pool"})
    graph = graph.insert("select", writing(lambda count: [], writes="pool"), after="zero_grad")
    assert [problem.code for problem in graph.check()] == ["G303"]


def test_a_state_that_has_no_plain_form_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"next_batch.*'position'.* cannot be saved: it is a builtins.object"):
        reading(Opaque).trainer(tmp_path).run(until="2 batches")


def test_a_transfer_that_returns_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="batch 1 of epoch 1 is None"):
        reading(lambda: {"train_data": twelve(), "transfer": lambda batch, device: None}).trainer().run()


AT_A_RESUME: dict[str, tuple[Made, Any, str]] = {
    "another kind": (
        lambda: [torch.ones(2)] * 8, kinds.Filling,
        "begun with other data or loaders, or .* position is not defined in a Filling",
    ),
    "another kind, with a position": (
        lambda: [torch.ones(2)] * 8, kinds.Carried,
        "begun with other data or loaders, or .* position is not defined in a Carried",
    ),
    "another way to resume": (
        kinds.Starting, lambda: kinds.Wrapped(kinds.Starting()), "position is not defined in a Wrapped",
    ),
    "several loaders": (
        lambda: {"train_data": {"a": shuffled(), "b": shuffled()}}, kinds.Filling,
        "begun with other data or loaders, or .* position is not defined in a Filling",
    ),
    "an end before": (
        lambda: DataLoader(kinds.Told(9, 9), 2), lambda: DataLoader(kinds.Told(9, 3), 2),
        "the data ended after 2 batches, but gave 3 before: it has changed",
    ),
}  # fmt: skip


@pytest.mark.second(3)
@pytest.mark.first(3)
@pytest.mark.parametrize("name", AT_A_RESUME)
def test_other_data_inside_an_epoch_is_refused(name: str, tmp_path: Path) -> None:
    before, after, message = AT_A_RESUME[name]
    with pytest.raises(DataError, match=message):
        resumed(reading(before), tmp_path, later=reading(after))


@pytest.mark.second(1)
@pytest.mark.parametrize("kind", [Loader, DataLoader])
@pytest.mark.parametrize("cut", ["3 batches", "10 batches"])
def test_another_batch_size_is_reported(kind: Any, cut: str, tmp_path: Path) -> None:
    later = reading(lambda: kind(range(40), 8), training_step=(step := Seen()))
    line, _ = resumed(reading(lambda: kind(range(40), 4)), tmp_path, cut, later)
    assert "batch size 4 -> 8" in line and not says_exact(line)
    assert len(step.batches) == (7 if cut == "3 batches" else 5) and {len(batch) for batch in step.batches} == {8}
