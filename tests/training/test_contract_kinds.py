"""Promise 4: the contract that every shipped kind passes: found by its file, run by the example in its docstring."""

from __future__ import annotations

import copy
import doctest
import importlib
import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from graphtrain import Above, Graph, GraphError, Node, Trainer
from graphtrain.graph.registry import family_of_node, find_kind, known_kinds
from graphtrain.kind import EFFECTS, Kind
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import REQUIRED, Parameter, plain_value
from tests.fake_ranks import run_ranks
from tests.shipped import GALLERY, KINDS, ROOT, module_of
from tests.world import world

SHIPPED = sorted(KINDS)


@pytest.fixture(params=SHIPPED)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind = find_kind(request.param)
    assert kind is not None
    return kind


# ---- where it is found, and its docstring


def test_every_file_holds_the_kinds_that_are_found_in_it() -> None:
    for path in [*(ROOT / "nodes").glob("*.py"), *GALLERY.glob("*/*.py")]:
        module = importlib.import_module(module_of(path))
        declared = [
            value.__kind__.name
            for value in vars(module).values()
            if isinstance(getattr(value, "__kind__", None), Kind) and value.__module__ == module.__name__
        ]
        assert declared == [name for name, file in KINDS.items() if file == path], path
    assert set(known_kinds()) >= set(SHIPPED) >= {"clip", "end_evaluation", "next_batch"}


def test_the_module_and_the_registry_give_one_object(kind: Kind) -> None:
    module = importlib.import_module(module_of(KINDS[kind.name]))
    assert getattr(module, kind.implementation.__name__) is kind.implementation
    assert vars(kind.implementation)["__kind__"] is kind is find_kind(kind.name)
    assert kind.family == family_of_node(Node(kind.name, kind.name)) != "other", "as read off the source"


def test_the_docstring_names_everything(kind: Kind) -> None:
    first = kind.description.splitlines()[0]
    assert re.fullmatch(r"[A-Z].*[^.]\.", first), first
    assert len(first) <= 116
    arguments = section(kind.description, "Arguments")
    assert list(arguments) == [name for name in kind.parameters if name != FROM]  # every kind with `every` has it
    for name, text in arguments.items():
        assert kind.parameters[name].default is REQUIRED or "Default: " in text, f"{name}: what its default means"
    assert list(section(kind.description, "Writes")) == list(kind.writes)
    fields = kind.description.partition("Guard fields:")[2].partition("\n\n")[0]
    named = re.findall(r"(\w+)(?=(?:, \w+)*: )", fields)
    assert set(named) <= set(kind.fields)
    assert named or set(kind.fields) <= {"runs", "due", "fired", "stopped"}


def section(description: str, title: str) -> dict[str, str]:
    """name -> text of a section such as ``Arguments:``."""
    texts: dict[str, str] = {}
    inside, name = False, ""
    for line in description.splitlines():
        if not line.startswith(" "):
            inside = line == f"{title}:"
        elif inside and (match := re.match(r" {4}(\w+)(?:, \w+)*: (.*)", line)):
            name = match[1]
            texts[name] = match[2]
        elif inside:
            texts[name] += " " + line.strip()
    return texts


# ---- its declaration


def test_parameters_have_types_and_defaults_that_are_of_these_types(kind: Kind) -> None:
    for name, parameter in kind.parameters.items():
        assert parameter.annotation is not Any, name
        assert not parameter.type_name.startswith("a value of type"), "a user must understand it"
        if parameter.default is not REQUIRED:
            coerced = parameter.coerce(parameter.default)
            assert coerced == parameter.default
            assert type(coerced) is type(parameter.default)
        if parameter.default not in (None, REQUIRED):
            assert parameter.coerce(plain_value(parameter.default)) == parameter.default, "as a text holds it"


def test_it_is_made_set_back_and_shares_nothing(kind: Kind) -> None:
    first, second = SimpleNamespace(), SimpleNamespace()
    kind.reset(first, whole=True)
    kind.reset(second, whole=True)
    stored = [field for field in kind.fields.values() if field.stored]
    assert {"runs"} <= {field.name for field in stored}
    for field in stored:
        value = getattr(first, field.name)
        assert value == getattr(second, field.name) == field.default
        assert isinstance(value, getattr(field.type, "__origin__", field.type))
        if isinstance(value, list | dict):
            assert value is not getattr(second, field.name)
            assert value is not field.default
        setattr(first, field.name, "changed")
    kind.reset(first)
    for field in stored:
        assert getattr(first, field.name) == ("changed" if field.stays else field.default)
        assert getattr(second, field.name) == field.default


def test_effects_slots_and_fields_are_known(kind: Kind) -> None:
    assert set(kind.effects) <= set(EFFECTS)
    assert all(name.isidentifier() for name in (*kind.slots, *kind.writes))
    assert set(kind.optional) <= {read.name for read in (*kind.reads, *(kind.setup_reads or ()))}
    assert not set(kind.parameters) & set(kind.fields)
    for field in kind.fields.values():
        assert field.counts in (None, *EFFECTS)
        assert field.restarts is None or field.restarts in kind.fields


# ---- a run of the graph in its example


class Net(torch.nn.Module):
    """A model whose gradients are large enough to be clipped; of two layers, so that a kind may freeze one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return 100 * self.predict_step(batch).square().mean()

    def predict_step(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(self.first(batch))
        return result


def step_with_hidden_state(model: Net, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"loss": model.training_step(batch), "hidden": batch.detach().mean(0)}


@dataclass
class Example:
    """What the example in a docstring leaves: a graph that uses the kind, and resources that only this kind reads."""

    graph: Graph
    paths: list[str]
    resources: dict[str, Any]

    def trainer(self, run_dir: Path | None = None, graph: Graph | None = None) -> Trainer:
        """The usual resources, three batches an epoch, and those of the example."""
        torch.manual_seed(0)
        usual: dict[str, Any] = {"training_step": None}
        if "split_batch" in uses(self.graph).values():
            usual |= {"training_step": step_with_hidden_state, "validation_step": Net.training_step}
        usual |= {name: [torch.rand(4, 2) for _ in range(3)] for name in ("val_data", "predict_data")}
        it = world(
            self.graph,
            model=Net,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
            scheduler="linear",
            data=lambda: [torch.rand(4, 2) for _ in range(3)],
        ).but(**{name: _always(value) for name, value in {**usual, **self.resources}.items()})
        if {"write_predictions", "rollback"} & {*self.graph.nodes}:  # it goes back to checkpoints
            run_dir = run_dir or Path(tempfile.mkdtemp())
            run_dir.mkdir(exist_ok=True)
        if "write_predictions" in self.graph.nodes and run_dir is not None:
            it = it.but(predictions_file=run_dir / "predictions.jsonl")
        return it.trainer(run_dir, graph=graph)


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda made: copy.deepcopy(value)


@pytest.fixture
def example(kind: Kind) -> Example:
    """The example run; that its output is what it shows is a doctest's to find out."""
    names: dict[str, Any] = {}
    for step in doctest.DocTestParser().get_examples(kind.description):
        exec(step.source, names)  # noqa: S102 - our own docstring
    graph = names["graph"]
    assert isinstance(graph, Graph), "the example makes a `graph`"
    paths = [path for path, use in uses(graph).items() if use == kind.name]
    assert paths, "and the graph uses the kind"
    resources = {
        name: value for name, value in names.items() if name in kind.slots or name.endswith(("_data", "_step"))
    }
    return Example(graph, paths, resources)


def uses(graph: Graph, prefix: str = "") -> dict[str, str]:
    """The kind of every node, by path."""
    kinds: dict[str, str] = {}
    for name, node in graph.nodes.items():
        kinds[prefix + name] = node.use
        if node.body is not None:
            kinds |= uses(node.body, f"{prefix}{name}/")
    return kinds


@pytest.mark.second(22)
@pytest.mark.first(8)
def test_the_graph_has_no_problem(example: Example) -> None:
    assert example.graph.check() == []


@pytest.mark.second(4)
@pytest.mark.full
def test_it_runs_and_has_the_effects_it_declares_and_no_others(kind: Kind, example: Example) -> None:
    is_of_ranks = kind.name == "exchange"
    graph = example.graph.set("exchange", overlap=False) if is_of_ranks else None  # else in the pass before

    def run(ranks: Any = None) -> set[str]:
        trainer = example.trainer(graph=graph)
        model, effects = trainer.resources["model"], set[str]()
        accumulated: list[torch.Tensor] = []  # the gradients that autograd has added to: so a backward pass is seen
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(accumulated.append)
        while trainer.position != "end" and max(trainer.read(f"{path}.runs") for path in example.paths) < 3:
            position, before = trainer.position, snapshot(model)
            accumulated.clear()
            trainer.advance()
            if position in example.paths:
                effects |= changes(before, snapshot(model), ran_backward=bool(accumulated))
        assert max(trainer.read(f"{path}.runs") for path in example.paths) > 0
        return effects

    for effects in run_ranks(2, run) if is_of_ranks else [run()]:
        # Its weights are others, and gradients were cleared before.
        assert effects == ({"step"} if kind.name == "renew" else visible(kind.effects))


def visible(effects: tuple[str, ...]) -> set[str]:
    """The declared effects that can be seen from outside."""
    if {"backward", "step"} <= {*effects}:  # the rest happens between, within the visit
        return {"backward", "step"}
    names = {"clip": "alter", "divide": "alter", "exchange": "alter", "unscale": "alter"}
    seen = {names.get(effect, effect) for effect in effects if effect not in ("use", "read", "forget")}
    assert seen <= {"backward", "step", "zero_grad", "alter", "train", "eval"}, "say above how an effect is seen"
    return seen


Snapshot = tuple[torch.Tensor, torch.Tensor, bool]


def snapshot(model: torch.nn.Module) -> Snapshot:
    """The weights, the gradients (0 where there are none) and the mode."""
    parameters = list(model.parameters())
    gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in parameters]
    weights, gradients = ([tensor.detach().flatten() for tensor in tensors] for tensors in (parameters, gradients))
    return torch.cat(weights).clone(), torch.cat(gradients).clone(), model.training


def changes(before: Snapshot, after: Snapshot, ran_backward: bool) -> set[str]:
    """The effects that a visit can be seen to have had."""
    effects = {"backward"} if ran_backward else set()
    if not torch.equal(before[0], after[0]):
        effects.add("step")
    if before[1].any() and not after[1].any():
        effects.add("zero_grad")
    elif not torch.equal(before[1], after[1]) and not ran_backward:
        effects.add("alter")
    if before[2] != after[2]:
        effects.add("train" if after[2] else "eval")
    return effects


@pytest.mark.second(4)
@pytest.mark.full
def test_a_resumed_run_is_the_same_to_the_last_bit(example: Example, tmp_path: Path) -> None:
    whole, places = example.trainer(), list[bool]()
    while whole.position != "end" and (len(places) < 60 or whole.position not in whole.save_points()):
        whole.advance()
        places.append(whole.position in whole.save_points())
    length = len(places)
    cut = next(number for number in range(length // 2, length) if places[number - 1])
    first = example.trainer(tmp_path)
    first.advance(cut)
    first.save()
    second = example.trainer(tmp_path)
    second.advance(length - cut)
    assert second.digest() == whole.digest(), f"cut before {first.position}"


@pytest.mark.second(38)
@pytest.mark.first(9)
def test_numbers_that_mean_nothing_are_refused(kind: Kind, example: Example) -> None:
    for name, parameter in kind.parameters.items():
        for value in meaningless(parameter):
            graph = example.graph.set(example.paths[0], **{name: value})
            with pytest.raises(GraphError) as error:
                example.trainer(graph=graph)
            assert re.search(
                rf"({kind.name}|{example.paths[0]})\.{name}: expected "
                rf"(( or )?an? (integer|number) > -?\d+( and < \S+)?)+, got {value}",
                str(error.value),
            )


def meaningless(parameter: Parameter) -> list[float]:
    """Numbers outside the bound of a parameter."""
    annotated = [parameter.annotation, *get_args(parameter.annotation)]  # also of `Annotated[int, Above(0)] | None`
    bounds = [
        bound
        for annotation in annotated
        for bound in getattr(annotation, "__metadata__", ())
        if isinstance(bound, Above)
    ]
    if not bounds:
        return []
    bound = bounds[0].bound
    return [bound, bound - 3] if "integer" in parameter.type_name else [float(bound), bound - 1.0, math.nan]
