"""Promises 4, 5 and 13: what is supplied, returned or resumed and does not fit is refused by name, with what to write.

The one table of this folder that asserts words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from graphtrain import CheckpointError, GraphError, Loader, PlannedRun, Trainer, UsageError, fit, node, progress
from tests.training.tiny import FIT, batches, tiny


class Samples(Dataset[Any]):
    """Samples that are read by index."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1)


class SamplesInBatches(Samples):
    """The same, which gives batches where it is iterated over."""

    def __iter__(self) -> Any:
        return iter(batches())


class Stream(IterableDataset[Any]):
    """Data that may give batches."""

    def __iter__(self) -> Any:
        return iter(batches())


class Replacing:
    """Count visits, in a dictionary that is replaced."""

    visits: int = progress(0)

    def __call__(self) -> None:
        self.visits += 1
        self.__dict__ = dict(self.__dict__)


def returning(value: Any) -> Callable[..., Any]:
    return lambda model, batch: value(model(batch).square().mean())


def evaluated(value: Any) -> Trainer:
    return tiny(val_data=batches(1), validation_step=returning(value))


def plateau() -> Trainer:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return tiny(model=model, optimizer=optimizer, scheduler=scheduler)


def asking(model: Any, batch: Any, bath_index: int) -> Any:
    return model(batch).mean()


def hidden(model: Any, batch: Any, hidden: Any = None) -> Any:
    outputs = model(batch) + (0 if hidden is None else hidden)
    return {"loss": outputs.mean(), "hidden": outputs}


WRITES = {"writes": {"hidden": "hidden"}}
MAPPING = "`train_data` is a dict: iterating over it gives its keys, not batches"


@node(writes="seen", optional="teacher")
def looks(teacher: Any) -> None:
    """Do nothing where there is no teacher."""


class Positioned(list[Any]):
    """Batches that keep their position themselves."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing was saved."""


def sharing(data: Any) -> Trainer:
    return tiny(train_data=data, val_data=data, validation_step=returning(1.0))


@node
def uses(seen: Any) -> None:
    """Require what the node before it writes."""


UNWRITTEN = FIT.insert("looks", looks, after="step").insert("uses", uses, after="looks")

# What is written -> it makes a trainer, which is run; the error, and fragments of what it says.
REFUSED: dict[str, tuple[Callable[[], Trainer], type[Exception], tuple[str, ...]]] = {
    "nothing is supplied": (lambda: Trainer("fit", notify=str, training_data=[1]), GraphError,
                            ("`model`", "`optimizer`", "`train_data` is read by `next_batch`",
                             "did you mean `training_data`?")),
    "a resource of another name": (lambda: tiny(val_dat=[1]), GraphError, ("G302", "did you mean `val_data`?")),
    "data that keeps its position, for two nodes": (lambda: sharing(Positioned([1])), UsageError,
                                                   ("`train_data` and `val_data` are one Positioned",)),
    "a setting of another trainer": (lambda: tiny(max_epochs=3), GraphError,
                                     ("nothing reads a resource `max_epochs`", 'finish.after = "N epochs"')),
    "a name of the engine": (lambda: tiny(recorder=1), UsageError, ("`recorder` is supplied by the engine",)),
    "a model as the graph": (lambda: Trainer(nn.Linear(1, 1)), UsageError,  # type: ignore[arg-type]
                             ("expected a Graph, the name of one, or a path; got a Linear",)),
    "a class for an optimizer": (lambda: tiny(optimizer=torch.optim.SGD), UsageError, ("got the class SGD",)),
    "a class for a model": (lambda: tiny(model=nn.Linear, optimizer=None), UsageError, ("got the class Linear",)),
    "a name for an optimizer": (lambda: tiny(optimizer="sgd"), UsageError, ("must be an optimizer, or a list",)),
    "a name for a scheduler": (lambda: tiny(scheduler="cosine"), UsageError, ("`scheduler` must be a scheduler",)),
    "a tuple for a model": (lambda: tiny(model=(1, 2), optimizer=None), UsageError, ("must be a torch.nn.Module",)),
    "a negative seed": (lambda: tiny(seed=-1), UsageError, ("seed: expected an integer",)),
    "text for a seed": (lambda: tiny(seed="7"), UsageError, ('Trainer: seed: expected an integer, got "7"',)),
    "a switch for a seed": (lambda: tiny(seed=True), UsageError, ("Trainer: seed: expected an integer, got true",)),
    "a number for `not_state`": (lambda: tiny(not_state=3), UsageError, ("not_state: expected a string or a list",)),
    "no device": (lambda: tiny(device=2.5), UsageError, ("Trainer: device: expected a string or", "got 2.5")),
    "a text for a switch": (lambda: tiny(deterministic="no"), UsageError, ("deterministic: expected true or false",)),
    "a list for `about`": (lambda: tiny(about=[1]), UsageError, ("about: expected a mapping",)),
    "a number for a run directory": (lambda: tiny(run_dir=3), UsageError,  # type: ignore[arg-type]
                                     ("run_dir: expected a string or a path, got 3",)),
    "a number for a logger": (lambda: tiny(loggers=[3]), UsageError, ("loggers: expected a list of functions; got [",)),
    "a function for loggers": (lambda: tiny(loggers=print), UsageError, ("loggers: expected a list of functions",)),
    "a number for `notify`": (lambda: Trainer(FIT, notify=3), UsageError,  # type: ignore[arg-type]
                              ("notify: expected a function, got 3",)),
    "another name for a display": (lambda: Trainer(FIT, display="nope"), UsageError,  # type: ignore[arg-type]
                                   ('display: expected a value of type Display or "auto", got "nope"',)),
    "a scheduler that needs a metric": (plateau, UsageError, ("is a ReduceLROnPlateau, whose `step` needs a metric",)),
    "a step function without arguments": (lambda: tiny(training_step=lambda: None), UsageError, ("training_step",)),
    "a step function of one": (lambda: tiny(training_step=lambda batch: None), UsageError, ("training_step",)),
    "a number for a step function": (lambda: tiny(training_step=7), UsageError, ("training_step",)),
    "a step function that asks for another name": (lambda: tiny(training_step=asking), GraphError,
                                                   ("`bath_index` is read by `train_batch`",)),
    "a dataset for data": (lambda: tiny(train_data=Samples()), GraphError,
                           ("G309", "gives samples, not batches", "supply Loader(train_data, batch_size=...)")),
    "a dataset to validate on": (lambda: tiny(val_data=Samples()), GraphError, ("supply Loader(val_data",)),
    "a dataset among several": (lambda: tiny(val_data={"a": batches(1), "b": Samples()}), GraphError,
                                ("`val_data.b` is a Samples",)),
    "a mapping of tensors": (lambda: tiny(train_data={"a": torch.ones(2), "b": 1}), GraphError,
                             (MAPPING, "TensorDataset(*data.values())")),
    "an empty mapping": (lambda: tiny(train_data={}), GraphError, (MAPPING,)),
    "a slot of which the only writer is bypassed": (lambda: tiny(UNWRITTEN), GraphError,
                                                    ("`uses` reads `seen`", "written by `looks`")),
    **{f"a step that returns {name}": (lambda value=value: tiny(training_step=returning(value)), UsageError,
                                       ("must return a scalar loss", "end it with `return loss`"))
       for name, value in {"nothing": lambda loss: None, "a tuple": lambda loss: (loss, 1),
                           "a dictionary without a loss": lambda loss: {"los": loss},
                           "a number": lambda loss: loss.item()}.items()},
    **{f"a metric that is {name}": (lambda value=value: tiny(training_step=returning(
           lambda loss: {"loss": loss, "logits": value})), UsageError,
           ("`training_step` returned `logits`", "metrics are numbers or scalar tensors"))
       for name, value in {"a matrix": torch.ones(3, 2), "a text": "good", "None": None}.items()},
    "a validation metric that is a matrix": (lambda: evaluated(lambda loss: {"loss": loss, "logits": torch.ones(3, 2)}),
                                             UsageError, ("`validation_step` returned `logits`",)),
    "a validation that returns nothing": (lambda: evaluated(lambda loss: None), UsageError,
                                          ("`validation_step` must return a mapping of metrics, or a scalar",)),
    "a hidden state that validation returns": (
        lambda: tiny(FIT.set("train_batch", **WRITES), training_step=hidden, val_data=batches(1)), UsageError,
        ("`training_step` returned `hidden`, a tensor", "supply a `validation_step` without it", "`writes`")),
    **{f"a batch size that is a {type(size).__name__}": (
           lambda size=size: tiny(batch_size=lambda batch: size), TypeError, ("integer",))
       for size in (2.5, numpy.float32(2.0), None, torch.tensor(2.0))},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    make, error, fragments = REFUSED[name]
    with pytest.raises(error) as caught:
        make().run()
    assert [fragment for fragment in fragments if fragment not in str(caught.value)] == []


CALLS: dict[str, tuple[Callable[[Trainer], Any], str]] = {
    "a number for names": (lambda it: it.run(rename=3), "run: rename: expected a mapping, got 3"),
    "a number for a name": (lambda it: it.run(rename={"a": 3}), "run: rename: a: expected a string, got 3"),
    "nothing to resume": (lambda it: it.run(resume=None), "run: resume: expected a string or a path, got None"),
    "a switch for names": (
        lambda it: it.run(from_setup=True),
        "run: from_setup: expected a string or a list, got true",
    ),
    "a text for a switch": (lambda it: it.run(from_saved="no"), 'run: from_saved: expected true or false, got "no"'),
    "no breakpoint": (lambda it: it.run(before=3), "run: before: expected a string, got 3"),
    "no function": (lambda it: it.run(trace=3), "run: trace: expected a function, got 3"),
    "a misspelling": (
        lambda it: it.run(untl="1 steps"),
        "argument 'untl'\n  hint: did you mean `until`",
    ),
    "a text for a number": (lambda it: it.advance("3"), 'advance: n: expected an integer, got "3"'),
    "a number for a checkpoint": (lambda it: it.load(3), "load: checkpoint: expected a string or a path, got 3"),
    "a number for patterns": (lambda it: it.load(only=3), "load: only: expected a string or a list, got 3"),
    "a number for a model": (lambda it: it.load(model=3), "load: models: expected a string, got 3"),
    "names to rewire": (lambda it: it.rewire("fit", rename=3), "rewire: rename: expected a mapping, got 3"),
    "a number for a slot": (lambda it: it.read(3), "read: name: expected a string, got 3"),
    "a text for a graph": (lambda it: it.graph.diff("fit"), "diff: other: expected a value of type GraphData"),
    "a list of overlays": (
        lambda it: it.graph.overlay(["ema"]),
        'overlays: expected a string or a path, got ["',
    ),
    "a name of a graph": (lambda it: PlannedRun("fit"), "PlannedRun: graph: expected a value of type EditableGraph"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_another_type_is_named(name: str) -> None:
    act, message = CALLS[name]
    with pytest.raises(UsageError) as caught:
        act(tiny())
    assert message in str(caught.value)


def test_numbers_of_numpy_and_paths_of_other_libraries_are_taken(tmp_path: Path) -> None:
    class Named:
        def __fspath__(self) -> str:
            return str(tmp_path)

    trainer = tiny(seed=numpy.int64(3), run_dir=Named())  # type: ignore[arg-type]
    assert trainer.advance(numpy.int64(1)) == "begin_epoch"  # type: ignore[arg-type]


def test_a_misspelled_setting_is_named_with_the_one_that_is_meant() -> None:
    said: list[str] = []
    tiny(said=said, run_directory="runs/first", logger=print)
    assert "nothing in the graph reads `run_directory`, did you mean `run_dir`?" in said
    assert "nothing in the graph reads `logger`, did you mean `loggers`?" in said


def test_what_is_missing_is_reported_together() -> None:
    with pytest.raises(GraphError) as caught:
        Trainer("fit", notify=str)
    assert [problem.code for problem in caught.value.problems] == ["G301"] * 4
    with pytest.raises(GraphError, match="training_step") as caught:
        Trainer("fit", notify=str, train_data=[])
    assert "did you mean" not in str(caught.value), "`train_data` is read, so it is no misspelt `training_step`"
    with pytest.raises(GraphError) as caught:
        tiny(train_data=Samples(), val_dat=3)
    assert sorted((problem.code, problem.where) for problem in caught.value.problems) == [
        ("G302", "fit"),
        ("G309", "fit: nodes.next_batch"),
    ]


def validation(model: Any, batch: Any, temperature: float) -> Any:
    return model(batch).mean() * temperature


ACCEPTED: dict[str, Callable[[], Trainer]] = {
    "None": lambda: tiny(average=None, val_data=None),
    "a resource that nothing reads": lambda: tiny(teacher=3),
    "a generator that nothing reads": lambda: tiny(noise=torch.Generator()),
    "what a step function asks for": lambda: tiny(validation_step=validation, temperature=2.0),
    "what is usual for another graph": lambda: tiny("evaluate", val_data=batches(1)),
    "a stream": lambda: tiny(train_data=Stream()),
    "a loader": lambda: tiny(train_data=Loader(Samples(), batch_size=2)),
    "torch's loader": lambda: tiny(train_data=DataLoader(Samples(), batch_size=2)),
    "a dataset that gives batches": lambda: tiny(train_data=SamplesInBatches()),
    "several loaders": lambda: tiny(train_data={"a": batches(1), "b": batches(2)}, training_step=of_both),
    "a dataset that the graph allows": lambda: tiny(replace(FIT, allow=("G309",)), train_data=Samples()),
    "a hidden state and its own step": lambda: tiny(
        FIT.set("train_batch", **WRITES), training_step=hidden, validation_step=returning(float), val_data=batches(1)
    ),
    "a hidden state that validation writes": lambda: tiny(
        FIT.set("train_batch", **WRITES).set("validate/eval_batch", **WRITES), training_step=hidden, val_data=batches(2)
    ),
}


def of_both(model: Any, batch: Any) -> Any:
    return model(batch["a"]).mean() if isinstance(batch, dict) else model(batch).mean()


@pytest.mark.parametrize("name", ACCEPTED)
def test_it_is_accepted(name: str) -> None:
    trainer = ACCEPTED[name]()
    trainer.run(until=None if trainer.graph.name == "evaluate" else "2 batches")
    assert trainer.state in ("finished", "stopped")


# ---- what does not fit at a resume


class Counter:
    """An object with state."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Broken(Counter):
    def state_dict(self) -> dict[str, Any]:
        raise ValueError("no")


class Forgetful(nn.Linear):
    def load_state_dict(self, state: Any, *arguments: Any, **keywords: Any) -> Any:
        return None


class Loads:
    """The same, when it is loaded."""

    visits: int = progress(0)

    def __call__(self) -> None:
        self.visits += 1

    def state_dict(self) -> dict[str, Any]:
        return {"visits": self.visits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__ = dict(state)


def groups(count: int) -> dict[str, Any]:
    model = nn.Linear(1, 1)
    parameters = [model.weight, model.bias]
    given = [{"params": parameters}] if count == 1 else [{"params": [parameter]} for parameter in parameters]
    return {"model": model, "optimizer": torch.optim.SGD(given, lr=0.1)}


def drawn() -> Any:
    return DataLoader(Samples(), 2, shuffle=True, generator=torch.Generator().manual_seed(5))


MAKE_AGAIN = "create it as in the saved run; or begin another run, with another --run-dir"
Make = Callable[[], dict[str, Any]]

# What is resumed with other resources -> the first run, the second, fragments of the error.
DOES_NOT_FIT: dict[str, tuple[Make, Make, tuple[str, ...]]] = {
    "a model of another shape": (dict, lambda: {"model": nn.Linear(1, 2)},
                                 ("the state of `model` no longer fits: ", "size mismatch", MAKE_AGAIN)),
    "a model that does not load": (lambda: {"model": Forgetful(1, 1)}, lambda: {"model": Forgetful(1, 1)},
                                   ("the loaded state is not the saved state",)),
    "fewer groups": (lambda: groups(2), lambda: groups(1),
                     ("`optimizer` does not have the parameters of the saved run: other groups",)),
    "more groups": (lambda: groups(1), lambda: groups(2), ("other groups, or another order",)),
    "a generator that is gone": (lambda: {"train_data": drawn()}, lambda: {"train_data": batches()},
                                 ("the state of `train_data", "does not exist now", 'not_state=["train_data')),
}  # fmt: skip


@pytest.mark.parametrize("name", DOES_NOT_FIT)
def test_it_does_not_fit_at_a_resume(name: str, tmp_path: Path) -> None:
    first, second, fragments = DOES_NOT_FIT[name]
    tiny(run_dir=tmp_path, **first()).run(until="5 batches" if "generator" in name else "3 batches")
    with pytest.raises(CheckpointError) as caught:
        tiny(run_dir=tmp_path, **second()).run()
    assert [fragment for fragment in fragments if fragment not in str(caught.value)] == []


def test_a_state_that_cannot_be_taken_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="`counter` cannot be saved: its state_dict raised ValueError"):
        tiny(run_dir=tmp_path, counter=Broken()).run()


@pytest.mark.parametrize("kind", [Replacing, Loads])
def test_a_kind_that_replaces_its_dictionary_is_refused(kind: type, tmp_path: Path) -> None:
    """While it runs, or when it is loaded: fields are read there, and old ones would be read forever."""
    graph = fit(epochs=1).insert("replacing", node(name="replacing")(kind), after="zero_grad")
    with pytest.raises(UsageError, match=r"the kind `replacing` replaced its `__dict__`(.|\n)*update\(state"):
        tiny(graph, tmp_path).run(until="3 batches")
        tiny(graph, tmp_path).run()
    assert len([*(tmp_path / "checkpoints").iterdir()]) == (kind is Loads)


def test_a_group_that_was_added_while_it_trained_is_reported_at_the_resume(tmp_path: Path) -> None:
    trainer = tiny(run_dir=tmp_path)
    trainer.run(until="2 batches")
    trainer.resources["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    trainer.run(until="4 batches")
    with pytest.raises(CheckpointError, match="`optimizer` does not have the parameters of the saved run"):
        tiny(run_dir=tmp_path).run()
