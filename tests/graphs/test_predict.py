"""The graph `predict`: each sample exactly once and in order, over cuts and ranks; and `test`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain import Graph, Loader, Outcome, Trainer
from graphtrain.errors import GraphError, UsageError
from graphtrain.ranks import Alone, Ranks, using_ranks
from tests.ranks.fake_ranks import run_ranks

SAMPLES = 11  # batches of two, the last of one


class Net(torch.nn.Module):
    """What an evaluation must not spoil, and a prediction in several parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))

    def forward(self, batch: Any) -> torch.Tensor:
        return self.layers(batch[0])


def inputs() -> torch.Tensor:
    return torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(5))


def model_of() -> Net:
    torch.manual_seed(0)
    return Net()


def predicting(file: Path, run_dir: Path | None = None, **more: Any) -> Trainer:
    data = torch.utils.data.TensorDataset(inputs(), torch.arange(SAMPLES))
    given = {"model": model_of(), "predict_data": Loader(data, batch_size=2), "predictions_file": file, **more}
    return Trainer("predict", seed=0, run_dir=run_dir, display=None, notify=lambda line: None, **given)


def parts(model: Net, batch: Any) -> dict[str, torch.Tensor]:
    """Of three types, one of which needs no alignment; and random numbers, which a resume has to repeat."""
    logits = model(batch)
    return {"is_high": logits.sum(1) > 0, "logits": logits + torch.rand(()), "number": batch[1]}


def by_hand(seed: int = 0) -> dict[str, torch.Tensor]:
    """The same with a loop."""
    model = model_of().eval()
    torch.manual_seed(seed)
    batches = [
        (inputs()[start : start + 2], torch.arange(SAMPLES)[start : start + 2]) for start in range(0, SAMPLES, 2)
    ]
    with torch.no_grad():
        predictions = [parts(model, batch) for batch in batches]
    return {name: torch.cat([prediction[name] for prediction in predictions]) for name in predictions[0]}


def is_equal(file: Path, expected: dict[str, torch.Tensor]) -> bool:
    written = load_file(file)
    return written.keys() == expected.keys() and all(torch.equal(written[name], expected[name]) for name in expected)


def test_the_predictions_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    trainer = predicting(tmp_path / "p.safetensors", predict_step=parts)
    assert trainer.run() is Outcome.FINISHED
    assert is_equal(tmp_path / "p.safetensors", by_hand())
    assert all(module.training for module in trainer.resources["model"].modules())
    assert [path.name for path in tmp_path.iterdir()] == ["p.safetensors"], "no part is left"
    assert trainer.read("write_predictions.samples") == SAMPLES
    predicting(tmp_path / "p.jsonl", predict_step=parts).run()
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    expected = by_hand()
    assert rows == [{name: value[index].tolist() for name, value in expected.items()} for index in range(SAMPLES)]


def test_without_a_step_the_model_is_called(tmp_path: Path) -> None:
    model = model_of()
    predicting(tmp_path / "p.safetensors", model=model).run()
    with torch.no_grad():
        expected = torch.cat([model.eval()((batch,)) for batch in inputs().split(2)])
    assert torch.equal(load_file(tmp_path / "p.safetensors")["predictions"], expected)
    predicting(tmp_path / "p.jsonl", predict_step=lambda model, batch: [f"<{n}>" for n in batch[1].tolist()]).run()
    assert (tmp_path / "p.jsonl").read_text() == "".join(f'"<{number}>"\n' for number in range(SAMPLES))


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("suffix", ["safetensors", "jsonl"])
def test_a_cut_anywhere_writes_each_sample_once(tmp_path: Path, suffix: str) -> None:
    """Saved at each transition, killed up to four transitions later, and resumed: what is beyond is cut off."""
    whole = tmp_path / f"whole.{suffix}"
    predicting(whole, tmp_path / "whole", predict_step=parts).run()
    transitions = 0
    trainer = predicting(tmp_path / f"count.{suffix}", tmp_path / "count", predict_step=parts)
    while trainer.advance() != "end":
        transitions += 1
    assert transitions == 25
    for cut in range(1, transitions + 1, 5) if suffix == "safetensors" else range(2, transitions, 11):
        file, run_dir = tmp_path / f"{cut}.{suffix}", tmp_path / f"run-{cut}"
        first = predicting(file, run_dir, predict_step=parts)
        first.advance(cut)
        first.save()
        first.advance(min(cut % 5, transitions - cut))
        assert predicting(file, run_dir, predict_step=parts).run() is Outcome.FINISHED
        assert file.read_bytes() == whole.read_bytes(), cut
        assert not list(tmp_path.glob("*.parts"))


@pytest.mark.full
def test_a_run_that_is_cut_after_the_file_is_complete_makes_it_again(tmp_path: Path) -> None:
    for suffix in ("safetensors", "jsonl"):
        file, run_dir = tmp_path / f"p.{suffix}", tmp_path / suffix
        first = predicting(file, run_dir, predict_step=parts)
        first.advance(15)
        first.save()
        whole = predicting(tmp_path / f"whole.{suffix}", predict_step=parts)
        whole.run()
        (tmp_path / f"whole.{suffix}").rename(file)  # as it would be before the end is saved
        for parts_of in tmp_path.glob("p.*.parts"):
            shutil.rmtree(parts_of)
        expected = file.read_bytes()
        predicting(file, run_dir, predict_step=parts).run()
        assert file.read_bytes() == expected
        assert not list(tmp_path.glob("*.parts"))


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_write_one_file_in_order(tmp_path: Path, world_size: int) -> None:
    whole = tmp_path / "whole.safetensors"
    plain: Callable[..., Any] = lambda model, batch: {"logits": model(batch), "number": batch[1]}  # noqa: E731
    predicting(whole, predict_step=plain).run()

    def together(file: Path, run_dir: Path | None, act: Callable[[Trainer], Any], size: int) -> None:
        def program(ranks: Ranks) -> None:
            act(predicting(file, run_dir, predict_step=plain))

        if size > 1:
            run_ranks(size, program, 0)
        else:
            with using_ranks(Alone()):
                program(Alone())

    together(tmp_path / "ranks.safetensors", None, lambda trainer: trainer.run(), world_size)
    assert (tmp_path / "ranks.safetensors").read_bytes() == whole.read_bytes()
    for cut, others in ((5, world_size), (9, 1), (9, 5 - world_size)):
        file, run_dir = tmp_path / f"{cut}-{others}.safetensors", tmp_path / f"{cut}-{others}"

        def act(trainer: Trainer, cut: int = cut) -> None:
            trainer.advance(cut)
            trainer.save()
            trainer.advance(1)

        together(file, run_dir, act, world_size)
        together(file, run_dir, lambda trainer: trainer.run(), others)
        assert file.read_bytes() == whole.read_bytes(), (cut, others)


# ---- what is refused


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("mine\n")
    with pytest.raises(UsageError, match="exists; a file is never overwritten"):
        predicting(tmp_path / "p.jsonl").run()
    assert (tmp_path / "p.jsonl").read_text() == "mine\n"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    wide = iter([torch.zeros(2, 3), torch.zeros(2, 4)])
    for file, step, message in (
        ("p.pt", None, r"must end in \.safetensors or \.jsonl, got"),
        ("none/p.jsonl", None, "there is no folder"),
        ("p.jsonl", lambda model, batch: None, "`predict_step` must return a prediction for each sample"),
        (
            "p.jsonl",
            lambda model, batch: torch.zeros(3, 1),
            "there are 3 predictions called `predictions` for a batch of 2",
        ),
        ("p.safetensors", lambda model, batch: {"a": torch.zeros(())}, "called `a` is a tensor of shape"),
        ("p.safetensors", lambda model, batch: ["a", "b"], "is a list of 2, which a file of safetensors cannot hold"),
        (
            "p.safetensors",
            lambda model, batch: next(wide),
            r"were `predictions`: F32 of the shape \[3\] for each sample before, and are",
        ),
        ("p.jsonl", lambda model, batch: [object(), 1], "cannot be written as JSON"),
    ):
        with pytest.raises(UsageError, match=message):
            predicting(tmp_path / file, predict_step=step).run()
        for parts_of in tmp_path.glob("*.parts"):
            shutil.rmtree(parts_of)
    with pytest.raises(GraphError, match="predictions_file"):
        Trainer("predict", model=model_of(), predict_data=[], display=None)


# ---- test


def test_a_test_has_the_means_of_its_own_step(tmp_path: Path) -> None:
    data = [(part,) for part in inputs().split(2)]

    def evaluated(**steps: Any) -> dict[str, float]:
        trainer = Trainer("test", model=model_of(), test_data=data, display=None, notify=lambda line: None, **steps)
        trainer.run()
        return {name: value for name, value in trainer.metrics[-1].items() if name not in ("step", "epoch")}

    steps: dict[str, Any] = {
        name: lambda model, batch, number=number: {"value": float(number)}
        for number, name in enumerate(("test_step", "validation_step", "training_step"))
    }
    for number in range(3):
        assert evaluated(**dict([*steps.items()][number:])) == {"test/value": float(number)}
    model, weights = model_of(), [2, 2, 2, 2, 2, 1]
    with torch.no_grad():
        losses = [model.eval()(batch).mean().item() for batch in data]
    expected = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / SAMPLES
    assert evaluated(test_step=lambda model, batch: model(batch).mean()) == {"test/loss": expected}


def test_errors_name_the_step_function_that_was_called() -> None:
    def message_of(graph: Graph | str = "test", **given: Any) -> str:
        resources = {"model": model_of(), "test_data": [(inputs(),)], "val_data": [(inputs(),)], **given}
        with pytest.raises(UsageError) as caught:
            Trainer(graph, display=None, notify=lambda line: None, **resources).run()
        return caught.value.message

    def step(model: Any, batch: Any) -> dict[str, Any]:
        return {"value": "text"}

    class Own(Net):
        def test_step(self, batch: Any) -> None:
            pass

    assert message_of(test_step=step).startswith("`test_step` returned `value`, a str")
    assert message_of(validation_step=step).startswith("`validation_step` returned")  # in the place of `test_step`
    assert message_of(training_step=step).startswith("`training_step` returned")
    assert message_of(model=Own()) == "`test_step` must return a mapping of metrics, or a scalar; it returned nothing"
    mine = Graph.load("evaluate").set("eval_batch", reads={"validation_step": "my_step"})
    assert message_of(mine, my_step=step).startswith("`my_step` returned")


def test_the_steps_of_a_model_are_found(tmp_path: Path) -> None:
    class Own(Net):
        def test_step(self, batch: Any) -> dict[str, float]:
            return {"own": 1.0}

        def predict_step(self, batch: Any) -> torch.Tensor:
            return batch[1]

        def training_step(self, batch: Any) -> torch.Tensor:
            return self(batch).mean()

    trainer = Trainer("test", model=Own(), test_data=[(inputs(),)], display=None, notify=lambda line: None)
    trainer.run()
    assert trainer.metrics[-1]["test/own"] == 1.0
    predicting(tmp_path / "p.jsonl", model=Own()).run()
    assert (tmp_path / "p.jsonl").read_text().split() == [str(number) for number in range(SAMPLES)]


def test_one_setup_serves_training_and_testing() -> None:
    """`fit` is given what `test` and `predict` need, and does not read it."""
    model = model_of()
    trainer = Trainer(
        Graph.load("fit").set("finish", after="1 steps"),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[(inputs(),)],
        test_data=[(inputs(),)],
        predict_data=[(inputs(),)],
        training_step=lambda model, batch: model(batch).mean(),
        test_step=lambda model, batch: {},
        predict_step=lambda model, batch: batch,
        display=None,
        notify=lambda line: None,
    )
    assert trainer.run() is Outcome.FINISHED
