"""The last batch is hashed at a save, and compared where a resume draws it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from graphtrain import Graph, Loader, Trainer
from graphtrain.storage.checkpoint import read_checkpoint

COUNT = 20


def stepped(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    inputs = batch["inputs"] if isinstance(batch, dict) else batch[0] if isinstance(batch, tuple | list) else batch
    return model(inputs.reshape(-1, 1)).square().mean()


def disturbing(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    batch.add_(0.1)
    return stepped(model, batch)


def popping(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    batch["inputs"] = batch.pop("inputs") * 2
    return stepped(model, batch)


def trainer_over(data: Any, run_dir: Path, lines: list[str], step: Callable[..., Any] = stepped) -> Trainer:
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    graph = Graph.load("fit").set("checkpoint", every="never").set("finish", after="2 epochs")
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=lines.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        training_step=step,
        train_data=data,
    )


class Samples:
    """More than what a fingerprint looks at."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = lambda: shift  # a setting that nothing looks into

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index + self.shift()])


class Stream(IterableDataset[torch.Tensor], Samples):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (Samples.__getitem__(self, index) for index in range(COUNT))


def named(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"inputs": torch.stack(samples), "index": torch.arange(len(samples))}


def listed(shift: float) -> list[torch.Tensor]:
    return [torch.full((2,), index + (shift if index % 5 == 2 else 0.0)) for index in range(7)]


DATA: dict[str, Callable[[float], Any]] = {
    "list": listed,
    "Loader": lambda shift: Loader(Samples(shift), 2, shuffle=True),
    "Loader of dicts": lambda shift: Loader(Samples(shift), 2, collate_fn=named),
    "Loader, 2 workers": lambda shift: Loader(Samples(shift), 2, num_workers=2),
    "stream": lambda shift: DataLoader(Stream(shift), 2),
    "DataLoader, 2 workers": lambda shift: DataLoader(Samples(shift), 2, shuffle=True, num_workers=2),
}


def resumed(lines: list[str]) -> str:
    (line,) = [line for line in lines if line.startswith("resumed ")]
    return line


def cut_and_resume(
    made: Callable[[float], Any], run_dir: Path, until: str = "3 batches", shift: float = 0.0, **options: Any
) -> str:
    trainer_over(made(0.0), run_dir, [], **options).run(until=until)
    lines: list[str] = []
    trainer_over(made(shift), run_dir, lines, **options).run(until="5 batches")
    return resumed(lines)


@pytest.mark.second(2)
@pytest.mark.first(1)
@pytest.mark.parametrize("name", DATA)
def test_another_batch_is_named_and_the_same_is_not(name: str, tmp_path: Path) -> None:
    assert cut_and_resume(DATA[name], tmp_path / "same").endswith(": exact")
    line = cut_and_resume(DATA[name], tmp_path / "other", shift=0.5)
    assert "not exact: " in line
    assert "train_data differs: batch 3 of epoch 1 is not what it was" in line


def test_a_run_that_is_not_exact_is_resumed_and_the_next_resume_of_it_is_exact(tmp_path: Path) -> None:
    assert "not exact" in cut_and_resume(DATA["Loader"], tmp_path, shift=0.5)
    lines: list[str] = []
    trainer_over(DATA["Loader"](0.5), tmp_path, lines).run()
    assert resumed(lines).endswith(": exact")


@pytest.mark.full
def test_a_batch_that_the_step_changes_is_not_compared(tmp_path: Path) -> None:
    for name in ("Loader", "stream"):
        assert cut_and_resume(DATA[name], tmp_path / name, step=disturbing).endswith(": exact")


def test_a_dict_that_the_step_changes_is_compared_as_it_was_fetched(tmp_path: Path) -> None:
    made = DATA["Loader of dicts"]
    assert cut_and_resume(made, tmp_path / "a", step=popping).endswith(": exact")
    assert "batch 3 of epoch 1" in cut_and_resume(made, tmp_path / "b", shift=0.5, step=popping)


def test_batches_of_a_list_that_the_step_changes_are_saved(tmp_path: Path) -> None:
    whole = trainer_over(listed(0.0), tmp_path / "whole", [], disturbing)
    whole.run()
    assert cut_and_resume(listed, tmp_path / "cut", step=disturbing, until="9 batches").endswith(": exact")
    cut = trainer_over(listed(0.0), tmp_path / "cut", [], disturbing)
    cut.run()
    assert cut.digest() == whole.digest()


@pytest.mark.full
@pytest.mark.parametrize(
    ("wrapped", "unwrapped"),
    [
        (lambda tensor: tensor, lambda batch: batch),
        (lambda tensor: (tensor, 1), lambda batch: batch[0]),
        (lambda tensor: {"inputs": [tensor]}, lambda batch: batch["inputs"][0]),
    ],
    ids=["tensor", "tuple", "dict"],
)
def test_a_batch_in_transit_that_the_step_changes_is_still_that_of_the_list(
    wrapped: Callable[[torch.Tensor], Any], unwrapped: Callable[[Any], torch.Tensor], tmp_path: Path
) -> None:
    def step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return disturbing(model, unwrapped(batch))

    def made() -> list[Any]:
        return [wrapped(tensor) for tensor in listed(0.0)]

    whole = trainer_over(made(), tmp_path / "whole", [], step)
    whole.run()
    cut = trainer_over(made(), tmp_path / "cut", [], step)
    while cut.position != "train_batch":
        cut.advance()
    cut.save()
    resumed = trainer_over(made(), tmp_path / "cut", [], step)
    resumed.run()
    assert resumed.digest() == whole.digest()


@pytest.mark.parametrize("until", ["1 batches", "3 batches", "102 batches"])
def test_batches_of_a_long_list_that_the_step_changes_are_reported(until: str, tmp_path: Path) -> None:
    def made(shift: float) -> Any:
        return [(torch.full((2,), float(number)),) for number in range(100)]

    def step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return disturbing(model, batch[0])

    lines: list[str] = []
    trainer_over(made(0.0), tmp_path, lines, step).run(until=until)
    lines.clear()
    trainer_over(made(0.0), tmp_path, lines, step).run(until="103 batches")
    assert "not exact: train_data holds other values than when it was saved" in resumed(lines)


@pytest.mark.full
def test_data_that_changes_while_it_is_trained_on_is_not_compared(tmp_path: Path) -> None:
    """What the resume draws again is not what was trained on, and the run is exact all the same."""

    class Buffer:
        def __init__(self) -> None:
            self.held = [torch.ones(2)]

        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Iterator[torch.Tensor]:
            for number in range(6):
                yield torch.stack(self.held).sum(0) + number

    def step_of(buffer: Buffer) -> Callable[..., Any]:
        def step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            buffer.held.append(batch.detach() * 0.1)
            return stepped(model, batch)

        return step

    digests = []
    for until in (None, "3 batches"):
        run_dir, lines = tmp_path / str(until), list[str]()
        if until is not None:
            buffer = Buffer()
            trainer_over(buffer, run_dir, [], step_of(buffer)).run(until=until)
        buffer = Buffer()
        trainer = trainer_over(buffer, run_dir, lines, step_of(buffer))
        trainer.run()
        digests.append(trainer.digest())
        assert until is None or resumed(lines).endswith(": exact")
    assert digests[0] == digests[1]


def test_what_is_kept_of_a_large_batch_is_small(tmp_path: Path) -> None:
    trainer_over([torch.zeros(2**20, 1)] * 3, tmp_path, []).run(until="1 batches")
    (path,) = [path for path in (tmp_path / "checkpoints").iterdir() if not path.name.startswith(".")]
    trace = read_checkpoint(path).sections["progress"]["next_batch"]["last_batch"]["trace"]
    assert trace["versions"] == 0 and len(trace["hash"]) == 16
