"""Another graph in place: everything continues, bitwise as if it had been so from the start, or is refused unharmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from graphtrain import DataError, Graph, GraphError, LifeCycleError, Outcome, Trainer, UsageError, node, progress
from graphtrain.data.fingerprint import fingerprint
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.run_directory import read_starts, read_status
from tests.command.running import written
from tests.program.small_run import small_graph, small_trainer


@pytest.mark.second(6)
@pytest.mark.full
@pytest.mark.parametrize("loader", ["Loader", "DataLoader", "own generator", "unsized", "list"])
@pytest.mark.parametrize("transitions", [1, 7, 13, 22, 35, 44])
def test_the_same_graph_again_changes_nothing(loader: str, transitions: int) -> None:
    whole, rewired = small_trainer(loader=loader), small_trainer(loader=loader)
    whole.run()
    rewired.advance(transitions)
    before = rewired.digest()
    rewired.rewire(small_graph(loader=loader))
    assert rewired.digest() == before
    rewired.run()
    assert (rewired.digest(), rewired.metrics) == (whole.digest(), whole.metrics)


@pytest.mark.full
@pytest.mark.parametrize("transitions", [7, 22, 44])
def test_nodes_that_are_set_up_again_continue_exactly(transitions: int) -> None:
    """A `limit` that is never reached makes `next_batch` another node: its data is opened again where it was."""
    whole = small_trainer(loader="DataLoader")
    whole.run()
    rewired = small_trainer(loader="DataLoader")
    rewired.advance(transitions)
    rewired.rewire(small_graph().set("next_batch", limit=1000).set("clip", norm_type=2))
    rewired.run()
    assert rewired.metrics == whole.metrics


def test_nodes_that_are_as_they_were_are_not_set_up_again() -> None:
    """So an iterator that can be iterated over only once continues."""
    batches = iter([torch.full((2, 1), float(n)) for n in range(6)])
    trainer = tiny(train_data=batches)
    trainer.run(until="2 batches")
    trainer.rewire(trainer.graph.set("log", every="1 steps").guard("log_due", "log.due and step.steps > 3"))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["next_batch"]["batches"] == 6
    assert [row["step"] for row in trainer.metrics] == [4, 5, 6, 6]


def test_a_raised_ending_continues_from_the_end() -> None:
    trainer, longer = tiny(), tiny(Graph.load("fit").set("finish", after="2 epochs"))
    assert trainer.run() is Outcome.FINISHED
    trainer.rewire(trainer.graph.set("finish", after="2 epochs"))
    assert (trainer.state, trainer.position) == ("finished", "end")
    assert trainer.run() is Outcome.FINISHED
    longer.run()
    assert trainer.digest() == longer.digest()
    assert trainer.run() is Outcome.ALREADY_FINISHED


def test_a_finished_run_with_other_settings_is_noted_once_it_trains_further(tmp_path: Path) -> None:
    assert tiny(run_dir=tmp_path / "r").run() is Outcome.FINISHED
    before = written(tmp_path / "r")
    trainer = tiny(Graph.load("fit").set("finish", after="1 steps"), run_dir=tmp_path / "r")
    assert trainer.run() is Outcome.ALREADY_FINISHED and trainer.changes
    assert written(tmp_path / "r") == before and len(read_starts(tmp_path / "r")) == 1
    trainer.rewire(trainer.graph.set("finish", after="2 epochs"))
    assert trainer.run() is Outcome.FINISHED and trainer.progress["step"]["steps"] == 10
    assert len(read_starts(tmp_path / "r")) == 2 and read_status(tmp_path / "r")["step"] == 10


def test_before_it_begins_any_graph_will_do() -> None:
    trainer = tiny()
    trainer.rewire(Graph.load("fit").set("finish", after="3 steps"))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == 3


def test_a_kind_that_is_declared_again_takes_the_progress_over() -> None:
    def declare(amount: int) -> Any:
        @node(name="tally")
        class Tally:
            """Count."""

            counted: int = progress(0)

            def __call__(self) -> None:
                self.counted += amount

        return Tally

    graph = Graph.load("fit").insert("tally", declare(1), after="step").set("finish", after="1 epochs")
    trainer = tiny(graph)
    trainer.run(until="2 steps")
    assert trainer.progress["tally"]["counted"] == 2
    declare(10)
    trainer.rewire(Graph.load("fit").insert("tally", "tally", after="step").set("finish", after="1 epochs"))
    trainer.run()
    assert trainer.progress["tally"]["counted"] == 2 + 30
    assert trainer.progress["tally"]["runs"] == 5


def test_a_lost_position_is_refused_until_it_is_named() -> None:
    trainer = tiny()
    while trainer.advance() != "accumulate":
        pass
    renamed = trainer.graph.rename("accumulate", "gather")
    before = trainer.digest()
    with pytest.raises(UsageError, match="the run is at the node `accumulate`, which this graph does not have"):
        trainer.rewire(renamed)
    assert (trainer.position, trainer.digest()) == ("accumulate", before)
    trainer.rewire(renamed, rename={"accumulate": "gather"})
    assert trainer.position == "gather" and trainer.read("gather.count") == 1
    assert trainer.run() is Outcome.FINISHED


def test_a_slot_that_is_missing_is_refused() -> None:
    @node(writes="noise")
    def draw_noise() -> Any:
        return torch.zeros(1)

    @node
    def use_noise(noise: Any) -> None:
        pass

    plain = Graph.load("fit").set("finish", after="1 epochs")
    noisy = plain.insert("draw", draw_noise, after="next_batch").insert("use", use_noise, after="accumulate")
    trainer = tiny(plain)
    while trainer.advance() != "accumulate":
        pass
    with pytest.raises(UsageError, match="this graph needs the slot `noise` at `accumulate`"):
        trainer.rewire(noisy)
    assert trainer.run() is Outcome.FINISHED, "unharmed"


def test_a_slot_that_is_read_with_a_default_is_not_missed(tmp_path: Path) -> None:
    @node(writes="average")
    def average_loss(loss: Any, average: Any = None) -> Any:
        return loss if average is None else 0.5 * average + 0.5 * loss

    plain = Graph.load("fit").set("finish", after="1 epochs")
    trainer = tiny(plain, run_dir=tmp_path)
    trainer.run(until="2 steps")
    trainer.rewire(plain.insert("average_loss", average_loss, after="step"))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["average_loss"]["runs"] == 3 and trainer.read("average") is not None


def test_further_resources_come_with_the_graph_that_reads_them() -> None:
    @node
    def average_weights(model: Any, average: Any, *, decay: float = 0.9) -> None:
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.data.lerp_(parameter.data, 1 - decay)

    trainer = tiny()
    trainer.run(until="2 steps")
    graph = trainer.graph.insert("average_weights", average_weights, after="step")
    with pytest.raises(GraphError, match="`average` is read by `average_weights`"):
        trainer.rewire(graph)
    average = torch.nn.Linear(1, 1)
    trainer.rewire(graph, average=average)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.read("average") is average and trainer.progress["average_weights"]["runs"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.set("accumulate", evry=2), "evry"),
        (lambda graph: graph.insert("teach", teach, after="step"), "`teacher` is read by `teach`"),
    ],
)
def test_a_graph_with_errors_is_refused_whole(change: Callable[[Graph], Graph], message: str) -> None:
    trainer = tiny()
    trainer.run(until="1 steps")
    with pytest.raises(GraphError, match=message):
        trainer.rewire(change(trainer.graph))
    assert trainer.run() is Outcome.FINISHED


@node
def teach(teacher: Any) -> None:
    """Stand-in."""


def test_a_model_comes_with_its_own_step_functions() -> None:
    class Model(torch.nn.Linear):
        calls = 0

        def training_step(self, batch: Any) -> Any:
            self.calls += 1
            return self(batch).square().mean()

    former, new = Model(1, 1), Model(1, 1)
    trainer = tiny(model=former, optimizer=torch.optim.SGD(former.parameters(), lr=0.1), training_step=None)
    trainer.run(until="2 batches")
    trainer.rewire(trainer.graph, model=new, optimizer=torch.optim.SGD(new.parameters(), lr=0.1))
    trainer.run()
    assert (former.calls, new.calls) == (2, 3)


def test_a_given_step_function_goes_before_that_of_a_new_model() -> None:
    class Model(torch.nn.Linear):
        def training_step(self, batch: Any) -> Any:
            raise AssertionError("another one was given")

    new, trainer = Model(1, 1), tiny()
    trainer.run(until="2 batches")
    trainer.rewire(trainer.graph, model=new, optimizer=torch.optim.SGD(new.parameters(), lr=0.1))
    assert trainer.run() is Outcome.FINISHED


def test_a_resource_that_nothing_reads_is_refused_where_it_is_given_and_later_reported() -> None:
    @node
    def scale(temperature: Any) -> None:
        pass

    said: list[str] = []
    trainer = tiny(notify=said.append)
    trainer.run(until="2 batches")
    with pytest.raises(GraphError, match="G302: nothing reads a resource `temprature`"):
        trainer.rewire(trainer.graph, temprature=2.0)
    scaled = trainer.graph.insert("scale", scale, after="step")
    plain = trainer.graph
    trainer.rewire(scaled, temperature=2.0)
    trainer.rewire(plain)
    assert [line for line in said if "reads" in line] == ["nothing in the graph reads `temperature`"]
    assert trainer.run() is Outcome.FINISHED


@pytest.mark.full
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_setup_that_raises_leaves_the_run_as_it_was(error: type[BaseException], tmp_path: Path) -> None:
    @node
    class Raising:
        """Draw random numbers, and raise."""

        def setup(self, model: Any) -> None:
            torch.rand(3)
            raise error("mine")

        def __call__(self) -> None:
            pass

    trainer, whole = (tiny(run_dir=tmp_path / name) for name in ("rewired", "whole"))
    trainer.run(until="3 batches")
    before = (trainer.digest(), trainer.graph, dict(trainer.resources))
    with pytest.raises(error, match="mine"):
        trainer.rewire(
            trainer.graph.set("checkpoint", keep=1).insert("raising", Raising, after="step"),
            further=torch.nn.Identity(),
        )
    assert (trainer.digest(), trainer.graph, dict(trainer.resources)) == before
    trainer.run(until="4 batches")
    trainer.run()
    whole.run()
    assert trainer.digest() == whole.digest()
    assert len(list((tmp_path / "rewired" / "checkpoints").iterdir())) == 2, "it keeps as many as before"


def test_data_of_another_kind_in_mid_epoch_is_refused_where_no_place_in_it_can_be_found() -> None:
    trainer, whole = tiny(), tiny()
    trainer.run(until="3 batches")
    loader = DataLoader([torch.ones(1)] * 10, 2, shuffle=True)
    with pytest.raises(DataError, match="after 3 batches, is not defined in a DataLoader"):
        trainer.rewire(trainer.graph, train_data=loader)
    trainer.run()
    whole.run()
    assert trainer.digest() == whole.digest(), "unharmed"
    trainer.rewire(trainer.graph.set("finish", after="2 epochs"), train_data=loader)
    assert trainer.run() is Outcome.FINISHED, "at the end of an epoch it is taken"
    assert trainer.progress["next_batch"]["batches"] == 10


def test_an_iterator_that_would_lose_batches_is_not_opened_again() -> None:
    seen: list[int] = []

    def training_step(model: Any, batch: Any) -> Any:
        seen.append(int(batch[0, 0]))
        return model(batch).square().mean()

    trainer = tiny(train_data=(torch.full((2, 1), float(number)) for number in range(8)), training_step=training_step)
    trainer.run(until="3 batches")
    with pytest.raises(DataError, match="only once, and the run is in the middle of it"):
        trainer.rewire(trainer.graph.set("next_batch", limit=100))
    trainer.run()
    assert seen == list(range(8))


def test_a_kind_that_is_declared_again_takes_its_own_state_over() -> None:
    def declare() -> Any:
        @node(name="hoard")
        class Hoard:
            """Count, in a state of its own."""

            def __init__(self) -> None:
                self.held = 0

            def __call__(self) -> None:
                self.held += 1

            def state_dict(self) -> dict[str, int]:
                return {"held": self.held}

            def load_state_dict(self, state: dict[str, int]) -> None:
                self.held = state["held"]

        return Hoard

    plain = Graph.load("fit").set("finish", after="1 epochs")
    trainer, whole = (tiny(plain.insert("hoard", declare(), after="step")) for _ in range(2))
    trainer.run(until="3 batches")
    trainer.rewire(plain.insert("hoard", declare(), after="step"))
    trainer.run()
    whole.run()
    assert trainer.digest() == whole.digest()


def test_a_node_gives_its_progress_to_one_node() -> None:
    @node(name="tick")
    class Tick:
        """Count."""

        counted: int = progress(0)

        def __call__(self) -> None:
            self.counted += 1

    graph = Graph.load("fit").set("finish", after="1 epochs").insert("first", Tick, after="step")
    trainer = tiny(graph)
    trainer.run(until="2 batches")
    trainer.rewire(graph.insert("second", Tick, after="first"), rename={"first": "second"})
    trainer.run()
    assert trainer.read("second.counted") == 5
    assert trainer.read("first.counted") == 3, "another node under the old name begins with its own"


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"acumulate": "accumulate"}, "no node `acumulate` in the former graph.*did you mean `accumulate`"),
        ({"accumulate": "acumulate"}, "no node `acumulate` in the new graph.*did you mean `accumulate`"),
        ({"clip": "log", "step": "log"}, "`clip` and `step` cannot both become `log`"),
    ],
)
def test_a_renaming_of_what_is_not_there_is_refused(batches: int, rename: dict[str, str], message: str) -> None:
    trainer = tiny()
    if batches:
        trainer.run(until=f"{batches} batches")
    with pytest.raises(UsageError, match=f"(?s){message}"):
        trainer.rewire(trainer.graph, rename=rename)
    assert trainer.run() is Outcome.FINISHED


def test_another_model_after_the_run_began_is_the_one_that_is_saved(tmp_path: Path) -> None:
    def other() -> dict[str, Any]:
        torch.manual_seed(5)
        model = torch.nn.Linear(1, 1)
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)}

    trainer = tiny(run_dir=tmp_path)
    former = trainer.resources["model"]
    trainer.run(until="1 steps")
    given, expected = other(), other()
    trainer.rewire(trainer.graph, **given)
    assert all(
        torch.equal(*pair) for pair in zip(given["model"].parameters(), expected["model"].parameters(), strict=True)
    )
    trainer.run(until="2 steps")
    assert trainer.resources["model"] is trainer.read("model") is given["model"]
    path = trainer.save()
    assert path is not None
    assert torch.equal(load_file(path / "model.safetensors")["weight"], given["model"].weight)
    assert not torch.equal(former.weight, given["model"].weight)
    resumed = tiny(run_dir=tmp_path, **other())
    resumed.advance(0)
    assert torch.equal(resumed.resources["model"].weight, given["model"].weight)
    assert resumed.digest() == trainer.digest()


def test_other_data_is_what_the_checkpoints_tell_of(tmp_path: Path) -> None:
    trainer = tiny(run_dir=tmp_path, val_data=[torch.ones(2, 1)])
    trainer.run(until="2 batches")
    other = [torch.full((2, 1), float(number)) for number in range(7)]
    trainer.rewire(trainer.graph, train_data=other, val_data=None)
    path = trainer.save()
    assert path is not None
    assert read_checkpoint(path).manifest.data == {"train_data": fingerprint(other)}


def test_neither_inside_a_run_nor_after_a_failure() -> None:
    trainers: list[Trainer] = []

    def training_step(model: Any, batch: Any) -> Any:
        trainers[0].rewire("fit")

    trainers.append(tiny(training_step=training_step))
    with pytest.raises(LifeCycleError, match="`rewire` cannot be called from inside it"):
        trainers[0].run()
    with pytest.raises(LifeCycleError, match="has failed"):
        trainers[0].rewire("fit")


def tiny(graph: Graph | None = None, **more: Any) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    run_dir = more.pop("run_dir", None)
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.full((2, 1), float(n)) for n in range(5)],
        "training_step": lambda model, batch: model(batch).square().mean(),
        **more,
    }
    graph = graph if graph is not None else Graph.load("fit").set("finish", after="1 epochs")
    resources = {name: one for name, one in resources.items() if one is not None}
    notify = resources.pop("notify", lambda line: None)
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=notify, **resources)
