"""Promises 1, 10 and 14: `predict` writes each sample exactly once and in order, over cuts and ranks; and `test`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch.utils.data import TensorDataset

from graphtrain import Graph, GraphError, Loader, Outcome, Trainer, UsageError
from tests.fake_ranks import run_ranks
from tests.world import SEED, World, small_model, world

SAMPLES = 11  # batches of two, the last of one
INPUTS = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(5))
NUMBERS = torch.arange(SAMPLES)


def parts(model: torch.nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """Of three types, one of which needs no alignment; and random numbers, which a resume has to repeat."""
    logits = model(batch[0])
    return {"is_high": logits.sum(1) > 0, "logits": logits + torch.rand(()), "number": batch[1]}


def predicting(file: Path, step: Callable[..., Any] | None = parts, **more: Any) -> World:
    resources: dict[str, Any] = {"predictions_file": file, "predict_step": step, **more}
    given = {name: lambda value=value: value for name, value in resources.items() if value is not None}
    data: dict[str, Any] = {"predict_data": lambda: Loader(TensorDataset(INPUTS, NUMBERS), batch_size=2)}
    return world(Graph.load("predict"), model=small_model, **{**data, **given})


def by_hand() -> dict[str, torch.Tensor]:
    """The same with a loop."""
    model = predicting(Path()).resources()["model"].eval()
    torch.manual_seed(SEED)
    batches = zip(torch.split(INPUTS, 2), torch.split(NUMBERS, 2), strict=True)
    with torch.no_grad():
        predictions = [parts(model, batch) for batch in batches]
    return {name: torch.cat([prediction[name] for prediction in predictions]) for name in predictions[0]}


def read(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of all batches."""
    parts = [load_file(file) for file in sorted(path.iterdir())]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else save(read(path))


def test_the_predictions_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    expected, files = by_hand(), [tmp_path / "p", tmp_path / "p.jsonl"]
    for file in files:
        trainer = predicting(file).trainer()
        assert trainer.run() is Outcome.FINISHED
        assert all(module.training for module in trainer.resources["model"].modules())
        assert trainer.read("write_predictions.samples") == SAMPLES
    written = read(files[0])
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    rows = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert rows == [{name: value[index].tolist() for name, value in expected.items()} for index in range(SAMPLES)]
    assert {*tmp_path.iterdir()} == {*files}, "no part is left"


def test_without_a_step_the_model_is_called_or_its_own_step(tmp_path: Path) -> None:
    class Own(torch.nn.Module):
        def forward(self, batch: Any) -> Any:
            return batch[0].sum(1)

    class WithStep(Own):
        def predict_step(self, batch: Any) -> list[str]:
            return [f"<{number}>" for number in batch[1].tolist()]

    predicting(tmp_path / "p", None).trainer(model=Own()).run()
    assert torch.equal(read(tmp_path / "p")["predictions"], INPUTS.sum(1))
    predicting(tmp_path / "p.jsonl", None).trainer(model=WithStep()).run()
    assert (tmp_path / "p.jsonl").read_text() == "".join(f'"<{number}>"\n' for number in range(SAMPLES))


@pytest.mark.first(1)
@pytest.mark.parametrize(("suffix", "cuts"), [(".jsonl", [7, 15]), ("", [*range(1, 26, 5)])])
def test_a_cut_anywhere_writes_each_sample_once(tmp_path: Path, suffix: str, cuts: list[int]) -> None:
    """Killed up to four transitions after the save, and resumed: what is beyond is cut off."""
    whole = tmp_path / f"whole{suffix}"
    predicting(whole).trainer().run()
    for cut in cuts:
        file, run_dir = tmp_path / f"{cut}{suffix}", tmp_path / f"run-{cut}"
        first = predicting(file).trainer(run_dir)
        first.advance(cut)
        first.save()
        first.advance(min(cut % 5, 25 - cut))
        assert predicting(file).trainer(run_dir).run() is Outcome.FINISHED
        assert content(file) == content(whole), cut
        assert not list(tmp_path.glob("*.part"))


@pytest.mark.full
@pytest.mark.parametrize("suffix", ["", ".jsonl"])
def test_a_run_that_is_cut_after_the_file_is_complete_makes_it_again(tmp_path: Path, suffix: str) -> None:
    file, whole = tmp_path / f"p{suffix}", tmp_path / f"whole{suffix}"
    first = predicting(file).trainer(tmp_path / "run")
    first.advance(15)
    first.save()
    predicting(whole).trainer().run()
    expected = content(whole)
    for part in tmp_path.glob("*.part"):
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    whole.rename(file)  # as it would be before the end is saved
    predicting(file).trainer(tmp_path / "run").run()
    assert content(file) == expected and not list(tmp_path.glob("*.part"))


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_write_one_file_in_order_and_may_be_others_after_a_cut(tmp_path: Path, world_size: int) -> None:
    def plain(model: torch.nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        return {"logits": model(batch[0]), "number": batch[1]}

    def together(file: Path, run_dir: Path | None, act: Callable[[Trainer], Any], size: int) -> None:
        if size > 1:
            run_ranks(size, lambda ranks: act(predicting(file, plain).trainer(run_dir)))
        else:
            act(predicting(file, plain).trainer(run_dir))

    def begin(trainer: Trainer) -> None:
        trainer.advance(5)
        trainer.save()
        trainer.advance(1)

    whole, ranks = tmp_path / "whole", tmp_path / "ranks"
    together(whole, None, lambda trainer: trainer.run(), 1)
    together(ranks, None, lambda trainer: trainer.run(), world_size)
    assert content(ranks) == content(whole)
    for others in (world_size, 1, 5 - world_size):
        file, run_dir = tmp_path / f"{others}", tmp_path / f"run-{others}"
        together(file, run_dir, begin, world_size)
        together(file, run_dir, lambda trainer: trainer.run(), others)
        assert content(file) == content(whole), others


@pytest.mark.parametrize(
    ("name", "step", "message"),
    [
        ("mine.jsonl", None, "exists; a file is never overwritten"),
        ("p.pt", None, r"must end in \.jsonl, or be a folder"),
        ("none/p.jsonl", None, "there is no folder"),
        ("p.jsonl", lambda model, batch: None, "`predict_step` must return a prediction for each sample"),
        ("p.jsonl", lambda model, batch: torch.zeros(3, 1), r"is a tensor of shape \(3, 1\), for a batch of 2"),
        ("p", lambda model, batch: {"a": torch.zeros(())}, "called `a` is a tensor of shape"),
        ("p", lambda model, batch: ["a", "b"], "is a list of 2, which a file of tensors cannot hold"),
        ("p.jsonl", lambda model, batch: [object(), 1], "cannot be JSON"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_named(tmp_path: Path, name: str, step: Any, message: str) -> None:
    (tmp_path / "mine.jsonl").write_text("mine\n")
    with pytest.raises(UsageError, match=message):
        predicting(tmp_path / name, step or parts).trainer().run()
    assert (tmp_path / "mine.jsonl").read_text() == "mine\n"


def test_a_file_has_to_be_named() -> None:
    with pytest.raises(GraphError, match="predictions_file"):
        world(Graph.load("predict"), predict_data=list).trainer()


# ---- test


def evaluated(graph: Graph | str = "test", **given: Any) -> Trainer:
    data = [(part,) for part in torch.split(INPUTS, 2)]
    loaded = Graph.load(graph) if isinstance(graph, str) else graph
    made = world(loaded, model=small_model, training_step=lambda model, batch: {"value": 2.0}, test_data=lambda: data,
                 val_data=lambda: data)  # fmt: skip
    return made.trainer(**given)


def test_a_test_has_the_means_of_its_own_step_or_of_the_next_one() -> None:
    steps: dict[str, Any] = {
        name: lambda model, batch, number=number: {"value": float(number)}
        for number, name in enumerate(("test_step", "validation_step", "training_step"))
    }
    for number in range(3):
        trainer = evaluated(**dict([*steps.items()][number:]))
        trainer.run()
        assert trainer.metrics[-1]["test/value"] == float(number)
    trainer = evaluated(test_step=lambda model, batch: batch[0].mean())
    trainer.run()
    assert trainer.metrics[-1]["test/loss"] == pytest.approx(INPUTS.mean().item())


def test_errors_name_the_step_function_that_was_called() -> None:
    def step(model: Any, batch: Any) -> dict[str, Any]:
        return {"value": "text"}

    class Own(torch.nn.Module):
        def test_step(self, batch: Any) -> None:
            pass

    mine = Graph.load("evaluate").set("eval_batch", reads={"validation_step": "my_step"})
    for made, message in (
        (evaluated(test_step=step), "`test_step` returned `value`, a str"),
        (evaluated(validation_step=step), "`validation_step` returned"),  # in the place of `test_step`
        (evaluated(training_step=step), "`training_step` returned"),
        (evaluated(model=Own()), "`test_step` must return a mapping of metrics, or a scalar loss; it returned None"),
        (evaluated(mine, my_step=step), "`my_step` returned"),
    ):
        with pytest.raises(UsageError) as caught:
            made.run()
        assert caught.value.message.startswith(message)
