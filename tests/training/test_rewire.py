"""Promise 15: another graph in place: all continues as if it had been so from the start, or is refused unharmed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from graphtrain import STOP, DataError, GraphError, LifeCycleError, Outcome, Trainer, UsageError, fit, node, progress
from tests.training.tiny import FIT, batches, manifest_of, squared, tiny
from tests.world import small_fit, world

ONE = FIT.set("finish", after="1 epochs")


@pytest.mark.second(5)
@pytest.mark.first(2)
@pytest.mark.parametrize("data", ["Loader", "DataLoader", "own generator", "unsized", "list", "with state"])
@pytest.mark.parametrize("transitions", [22, 1, 7, 13, 35, 44])
def test_the_same_graph_again_changes_nothing(data: str, transitions: int) -> None:
    it = world(data=data)
    whole, rewired = it.trainer(), it.trainer()
    whole.run()
    rewired.advance(transitions)
    before = rewired.digest()
    rewired.rewire(small_fit(data))
    assert rewired.digest() == before
    rewired.run()
    assert (rewired.digest(), rewired.metrics) == (whole.digest(), whole.metrics)


@pytest.mark.full
@pytest.mark.parametrize("transitions", [7, pytest.param(22, marks=pytest.mark.full)])
def test_nodes_that_are_set_up_again_continue_exactly(transitions: int) -> None:
    """A `limit` that is never reached makes `next_batch` another node: its data is opened again where it was."""
    whole, rewired = (world(data="DataLoader").trainer() for _ in range(2))
    whole.run()
    rewired.advance(transitions)
    rewired.rewire(small_fit().set("next_batch", limit=1000).set("clip", norm_type=2))
    rewired.run()
    assert rewired.metrics == whole.metrics


def test_nodes_that_are_as_they_were_are_not_set_up_again() -> None:
    """So an iterator that can be iterated over only once continues; where it would lose batches, it is refused."""
    seen: list[int] = []

    def training_step(model: Any, batch: Any) -> Any:
        seen.append(int(batch[0, 0]))
        return squared(model, batch)

    trainer = tiny(train_data=iter(batches(8)), training_step=training_step)
    trainer.run(until="3 batches")
    with pytest.raises(DataError, match="only once: its position is not defined"):
        trainer.rewire(trainer.graph.set("next_batch", limit=100))
    trainer.rewire(trainer.graph.set("log", every="1 steps").guard("log_due", "log.due and step.steps > 5"))
    assert trainer.run() is Outcome.FINISHED
    assert seen == list(range(8))
    assert [row["step"] for row in trainer.metrics if "lr" in row] == [6, 7, 8]


def files_of(run_dir: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in sorted(run_dir.rglob("*")) if path.is_file()}
    return {name: content for name, content in files.items() if name != ".lock"}


@pytest.mark.parametrize("edit", [{"log": {"every": "2 steps"}}, {"finish": {"after": "5 epochs"}}])
def test_what_a_step_function_asks_for_is_asked_of_the_graph_that_runs(edit: dict[str, dict[str, str]]) -> None:
    def training_step(model: Any, batch: Any, epoch: int, batch_index: int) -> Any:
        loss = squared(model, batch)
        return (loss, STOP) if (epoch, batch_index) == (1, 1) else loss

    trainer = tiny(fit(epochs=4), train_data=batches(4), training_step=training_step)
    trainer.run(until="3 batches")
    (name, parameters) = next(iter(edit.items()))
    trainer.rewire(trainer.graph.set(name, **parameters))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.read("next_batch.batches") == 6


def test_a_finished_run_with_other_settings_is_noted_once_it_trains_further(tmp_path: Path) -> None:
    assert tiny(ONE, tmp_path).run() is Outcome.FINISHED
    before, starts = files_of(tmp_path), (tmp_path / "starts.jsonl").read_text().count("\n")
    trainer = tiny(FIT.set("finish", after="1 steps"), tmp_path)
    assert trainer.run() is Outcome.ALREADY_FINISHED and trainer.changes
    assert files_of(tmp_path) == before
    trainer.rewire(FIT)
    assert trainer.run() is Outcome.FINISHED and trainer.progress["step"]["steps"] == 10
    assert (tmp_path / "starts.jsonl").read_text().count("\n") == starts + 1
    assert json.loads((tmp_path / "status.json").read_text())["step"] == 10


def test_before_it_begins_any_graph_will_do() -> None:
    trainer = tiny()
    trainer.rewire(fit(steps=3))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == 3


# ---- what nodes have


def declare(amount: int) -> Any:
    @node(name="tally")
    class Tally:
        """Count, also in a state of its own."""

        counted: int = progress(0)

        def __init__(self) -> None:
            self.held = 0

        def __call__(self) -> None:
            self.counted += amount
            self.held += amount

        def state_dict(self) -> dict[str, int]:
            return {"held": self.held}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.held = state["held"]

    return Tally


def test_a_kind_that_is_declared_again_takes_the_progress_and_the_state_over() -> None:
    same, trainer, whole = (tiny(ONE.insert("tally", declare(1), after="step")) for _ in range(3))
    same.run(until="2 steps")
    trainer.run(until="3 steps")
    same.rewire(ONE.insert("tally", declare(1), after="step"))
    same.run()
    whole.run()
    assert same.digest() == whole.digest()
    declare(10)
    trainer.rewire(ONE.insert("tally", "tally", after="step"))
    assert trainer.progress["tally"]["counted"] == 3
    trainer.run()
    assert (trainer.progress["tally"]["counted"], trainer.progress["tally"]["runs"]) == (3 + 20, 5)
    assert trainer.digest() != whole.digest()


def test_a_node_gives_its_progress_to_one_node() -> None:
    graph = ONE.insert("first", declare(1), after="step")
    trainer = tiny(graph)
    trainer.run(until="2 batches")
    trainer.rewire(graph.insert("second", declare(1), after="first"), rename={"first": "second"})
    trainer.run()
    assert trainer.read("second.counted") == 5
    assert trainer.read("first.counted") == 3, "another node under the old name begins with its own"


def test_a_lost_position_is_refused_until_it_is_named() -> None:
    trainer = tiny()
    trainer.run(before="accumulate")
    renamed = trainer.graph.rename("accumulate", "gather")
    before = trainer.digest()
    with pytest.raises(UsageError, match="the run is at the node `accumulate`, which this graph does not have"):
        trainer.rewire(renamed)
    assert (trainer.position, trainer.digest()) == ("accumulate", before)
    trainer.rewire(renamed, rename={"accumulate": "gather"})
    assert trainer.position == "gather" and trainer.read("gather.count") == 1
    assert trainer.run() is Outcome.FINISHED


@pytest.mark.parametrize("until", [None, "2 batches"])
@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"acumulate": "accumulate"}, "no node `acumulate` in the former graph.*did you mean `accumulate`"),
        ({"accumulate": "acumulate"}, "no node `acumulate` in the new graph.*did you mean `accumulate`"),
        ({"clip": "log", "step": "log"}, "`clip` and `step` cannot both become `log`"),
    ],
)
def test_a_renaming_of_what_is_not_there_is_refused(until: str | None, rename: dict[str, str], message: str) -> None:
    trainer = tiny()
    if until:
        trainer.run(until=until)
    with pytest.raises(UsageError, match=f"(?s){message}"):
        trainer.rewire(trainer.graph, rename=rename)
    assert trainer.run() is Outcome.FINISHED


# ---- slots and resources


@node(writes="noise")
def draw_noise() -> Any:
    return torch.zeros(1)


@node
def use_noise(noise: Any) -> None:
    pass


@node(writes="average")
def average_loss(loss: Any, average: Any = None) -> Any:
    return loss if average is None else 0.5 * average + 0.5 * loss


@node
def average_weights(model: Any, mean: Any, *, decay: float = 0.9) -> None:
    for slow, parameter in zip(mean.parameters(), model.parameters(), strict=True):
        slow.data.lerp_(parameter.data, 1 - decay)


def test_a_slot_that_is_missing_is_refused_unless_it_is_read_with_a_default(tmp_path: Path) -> None:
    noisy = ONE.insert("draw", draw_noise, after="next_batch").insert("use", use_noise, after="accumulate")
    trainer = tiny(ONE, tmp_path)
    trainer.run(until="1 batches")
    trainer.run(before="accumulate")
    with pytest.raises(UsageError, match="this graph needs the slot `noise` at `accumulate`"):
        trainer.rewire(noisy)
    trainer.rewire(ONE.insert("average_loss", average_loss, after="step"))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["average_loss"]["runs"] == 4 and trainer.read("average") is not None


def test_further_resources_come_with_the_graph_that_reads_them() -> None:
    said: list[str] = []
    trainer = tiny(ONE, said=said)
    trainer.run(until="2 steps")
    graph = trainer.graph.insert("average_weights", average_weights, after="step")
    with pytest.raises(GraphError, match="`mean` is read by `average_weights`"):
        trainer.rewire(graph)
    with pytest.raises(GraphError, match="G302: nothing reads a resource `val_dat`"):
        trainer.rewire(trainer.graph, val_dat=[1])
    with pytest.raises(GraphError, match="evry"):
        trainer.rewire(graph.set("accumulate", evry=2))
    mean = torch.nn.Linear(1, 1)
    trainer.rewire(graph, mean=mean)
    trainer.run(until="4 steps")
    assert trainer.read("mean") is mean and trainer.progress["average_weights"]["runs"] == 2
    trainer.rewire(ONE)
    assert [line for line in said if "reads" in line] == ["nothing in the graph reads `mean`"]
    assert trainer.run() is Outcome.FINISHED


@pytest.mark.parametrize("is_given", [False, True])
def test_a_model_comes_with_its_own_step_functions_unless_one_was_given(is_given: bool) -> None:
    class Model(torch.nn.Linear):
        calls = 0

        def training_step(self, batch: Any) -> Any:
            self.calls += 1
            return squared(self, batch)

    former, new = Model(1, 1), Model(1, 1)
    trainer = tiny(ONE, model=former, training_step=squared if is_given else None)
    trainer.run(until="2 batches")
    trainer.rewire(trainer.graph, model=new, optimizer=torch.optim.SGD(new.parameters(), lr=0.1))
    assert trainer.run() is Outcome.FINISHED
    assert (former.calls, new.calls) == ((0, 0) if is_given else (2, 3))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_setup_that_raises_leaves_the_run_as_it_was(error: type[BaseException], tmp_path: Path) -> None:
    @node
    class Raising:
        """Draw random numbers, and raise."""

        def setup(self, model: Any) -> None:
            torch.rand(3)
            raise error("mine")

        def __call__(self) -> None: ...

    trainer, whole = (tiny(ONE, tmp_path / name) for name in ("rewired", "whole"))
    trainer.run(until="3 batches")
    before = (trainer.digest(), trainer.graph, dict(trainer.resources))
    graph = trainer.graph.set("checkpoint", keep=1).insert("raising", Raising, after="step")
    with pytest.raises(error, match="mine"):
        trainer.rewire(graph, further=torch.nn.Identity())
    assert (trainer.digest(), trainer.graph, dict(trainer.resources)) == before
    trainer.run(until="4 batches")
    trainer.run()
    whole.run()
    assert trainer.digest() == whole.digest()
    assert len(list((tmp_path / "rewired" / "checkpoints").iterdir())) == 2, "it keeps as many as before"


def test_data_of_another_kind_in_mid_epoch_is_refused_where_no_place_in_it_can_be_found() -> None:
    trainer, whole = tiny(ONE), tiny(ONE)
    trainer.run(until="3 batches")
    loader = DataLoader([torch.ones(1)] * 10, 2, shuffle=True)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="its position is not defined in a DataLoader"):
        trainer.rewire(trainer.graph, train_data=loader)
    trainer.run()
    whole.run()
    assert trainer.digest() == whole.digest(), "unharmed"
    trainer.rewire(FIT, train_data=loader)
    assert trainer.run() is Outcome.FINISHED, "at the end of an epoch it is taken"
    assert trainer.progress["next_batch"]["batches"] == 10


def other() -> dict[str, Any]:
    torch.manual_seed(5)
    model = torch.nn.Linear(1, 1)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)}


def test_another_model_after_the_run_began_is_the_one_that_is_saved(tmp_path: Path) -> None:
    trainer, given, data = tiny(run_dir=tmp_path), other(), batches(7)
    former = trainer.resources["model"]
    trainer.run(until="1 steps")
    trainer.rewire(trainer.graph, **given, train_data=data)
    assert torch.equal(given["model"].weight, other()["model"].weight)
    trainer.run(until="2 steps")
    assert trainer.resources["model"] is trainer.read("model") is given["model"]
    path = trainer.save()
    assert path is not None
    assert torch.equal(load_file(path / "model.safetensors")["weight"], given["model"].weight)
    assert not torch.equal(former.weight, given["model"].weight)
    resumed = tiny(run_dir=tmp_path, **other(), train_data=data)
    resumed.advance(0)
    assert torch.equal(resumed.resources["model"].weight, given["model"].weight)
    assert resumed.digest() == trainer.digest()


@pytest.mark.full
def test_other_data_is_what_the_checkpoints_tell_of(tmp_path: Path) -> None:
    def data_of(trainer: Trainer) -> Any:
        path = trainer.save()
        assert path is not None
        return manifest_of(path)["data"]

    trainer, fresh = (tiny(run_dir=tmp_path / name, val_data=batches(1)) for name in ("rewired", "fresh"))
    fresh = tiny(run_dir=tmp_path / "fresh", train_data=batches(7))
    for each in (trainer, fresh):
        each.run(until="2 batches")
    before = data_of(trainer)
    trainer.rewire(trainer.graph, train_data=batches(7), val_data=None)
    assert data_of(trainer) == data_of(fresh) != before


def test_neither_inside_a_run_nor_after_a_failure() -> None:
    acts: list[Callable[[Trainer], Any]] = [lambda trainer: trainer.rewire("fit"), lambda trainer: trainer.run()]
    for act in acts:
        trainers: list[Trainer] = []
        trainers.append(tiny(training_step=lambda model, batch: act(trainers[0])))  # noqa: B023
        with pytest.raises(LifeCycleError, match="cannot be called from inside it"):
            trainers[0].run()
        with pytest.raises(LifeCycleError, match="has failed"):
            act(trainers[0])
