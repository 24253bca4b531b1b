"""The contract that every shipped kind passes."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, GraphError, Trainer
from graphtrain.graph.registry import find_kind, known_kinds
from graphtrain.kind import DECLARED, EFFECTS, Kind
from graphtrain.kind.parameter import REQUIRED, plain_value
from graphtrain.storage.encoding import Tensors, pack, unpack

FOLDER = Path(__file__).resolve().parents[2] / "nodes"
ENTRIES = {one.name: one for one in entry_points(group="graphtrain.nodes") if one.value.startswith("graphtrain.")}


@pytest.fixture(params=sorted(ENTRIES))
def entry(request: pytest.FixtureRequest) -> EntryPoint:
    return ENTRIES[request.param]


@pytest.fixture
def kind(entry: EntryPoint) -> Kind:
    found = find_kind(entry.name)
    assert found is not None
    return found


def test_every_kind_in_the_folder_is_an_entry_point_and_the_other_way_round() -> None:
    declared = set()
    for path in FOLDER.glob("*.py"):
        module = importlib.import_module(f"graphtrain.nodes.{path.stem}")
        declared |= {
            one.__kind__.name
            for one in vars(module).values()
            if isinstance(getattr(one, "__kind__", None), Kind) and one.__module__ == module.__name__
        }
    assert declared == set(ENTRIES)
    assert set(known_kinds()) >= declared
    assert not declared & set(DECLARED)


def test_the_entry_point_the_module_and_the_registry_give_one_object(entry: EntryPoint, kind: Kind) -> None:
    implementation = entry.load()
    module = importlib.import_module(entry.module)
    assert getattr(module, entry.attr) is implementation is kind.implementation
    assert vars(implementation)["__kind__"] is kind
    assert kind.name == entry.name
    file = Path(inspect.getfile(implementation)).resolve()
    assert file.parent == FOLDER
    assert entry.module == f"graphtrain.nodes.{file.stem}"


def test_the_docstring_names_everything(kind: Kind) -> None:
    first = kind.description.splitlines()[0]
    assert re.fullmatch(r"[A-Z].*[^.]\.", first), first
    assert len(first) <= 116
    arguments = _section(kind.description, "Arguments")
    assert list(arguments) == list(kind.parameters)
    for name, parameter in kind.parameters.items():
        if parameter.default is not REQUIRED:
            assert "Default: " in arguments[name], f"{name}: what its default means"
    assert list(_section(kind.description, "Writes")) == list(kind.writes)
    named = re.findall(r"(\w+)(?=(?:, \w+)*: )", kind.description.partition("Guard fields:")[2])
    assert set(named) <= set(kind.fields)
    assert named or set(kind.fields) <= {"runs", "due", "fired"}


def _section(description: str, title: str) -> dict[str, str]:
    """name -> text of a section such as ``Arguments:``."""
    found: dict[str, str] = {}
    inside, name = False, ""
    for line in description.splitlines():
        if not line.startswith(" "):
            inside = line == f"{title}:"
        elif inside and (match := re.match(r" {4}(\w+)(?:, \w+)*: (.*)", line)):
            name = match[1]
            found[name] = match[2]
        elif inside:
            found[name] += " " + line.strip()
    return found


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
    one, two = kind.new_instance(), kind.new_instance()
    stored = [field for field in kind.fields.values() if field.stored]
    assert {"runs"} <= {field.name for field in stored}
    for field in stored:
        value = getattr(one, field.name)
        assert value == getattr(two, field.name) == field.default
        if isinstance(value, list | dict):
            assert value is not getattr(two, field.name)
            assert value is not field.default
        setattr(one, field.name, "changed")
    kind.reset(one)
    for field in stored:
        assert getattr(one, field.name) == field.default == getattr(two, field.name)


def test_the_defaults_of_progress_are_plain_data_of_the_declared_type(kind: Kind) -> None:
    for name, field in kind.fields.items():
        if not field.stored:
            continue
        back = unpack(pack(copy.deepcopy(field.default), name, Tensors("progress")), {})
        assert back == field.default
        assert type(back) is type(field.default)
        assert field.type is not Any
        origin = getattr(field.type, "__origin__", field.type)
        assert isinstance(field.default, origin)


def test_effects_slots_and_fields_are_known(kind: Kind) -> None:
    assert set(kind.effects) <= set(EFFECTS)
    assert all(name.isidentifier() for name in (*kind.slots, *kind.writes))
    assert set(kind.optional) <= {read.name for read in (*kind.reads, *(kind.setup_reads or ()))}
    assert not set(kind.parameters) & set(kind.fields)
    for field in kind.fields.values():
        assert field.counts in (None, *EFFECTS)
        assert field.restarts is None or field.restarts in kind.fields


# One small run in which every shipped kind does its work.


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch).square().mean()


def busy_trainer() -> tuple[Trainer, Net]:
    graph = (
        Graph.load("fit")
        .set("accumulate", every=2)
        .set("clip", max_norm=1e-3)
        .set("log", every="1 steps")
        .set("finish", after="2 epochs")
        .guard("accumulation_reached", "accumulate.count >= accumulate.every")
        .guard("window_dropped", "accumulate.count > 0 and window_cut")
        .insert("discard")
        .connect("accumulate", "discard", when="window_dropped", first=False)
        .connect("discard", "decide")
    )
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = Trainer(
        graph,
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9),
        train_data=[torch.rand(4, 2) for _ in range(3)],
        val_data=[torch.rand(4, 2) for _ in range(2)],
        device="cpu",
        notify=lambda line: None,
    )
    return trainer, model


def uses(graph: Graph, prefix: str = "") -> dict[str, str]:
    """The kind of every node, by path."""
    found: dict[str, str] = {}
    for name, node in graph.nodes.items():
        found[prefix + name] = node.use
        if node.body is not None:
            found |= uses(node.body, f"{prefix}{name}/")
    return found


def test_every_kind_runs_and_has_the_effects_it_declares_and_no_others() -> None:
    trainer, model = busy_trainer()
    kinds = uses(trainer.graph)
    seen: dict[str, set[str]] = {name: set() for name in kinds.values()}
    before = looked_at(model)
    while trainer.position != "end":
        used = kinds[trainer.position]
        trainer.advance()
        after = looked_at(model)
        seen[used] |= changes(before, after)
        before = after
    for path in kinds:
        assert trainer.read(f"{path}.runs") > 0, path
    assert set(ENTRIES) <= set(kinds.values())
    for name in ENTRIES:
        kind = find_kind(name)
        assert kind is not None
        visible = {effect for effect in kind.effects if effect != "use"}
        assert seen[name] == visible, name


def looked_at(model: torch.nn.Module) -> tuple[Any, Any, bool]:
    parameters = list(model.parameters())
    gradients = [None if one.grad is None else one.grad.tolist() for one in parameters]
    return [one.tolist() for one in parameters], gradients, model.training


def changes(before: tuple[Any, Any, bool], after: tuple[Any, Any, bool]) -> set[str]:
    """The effects that a visit can be seen to have had."""
    found = set()
    if before[0] != after[0]:
        found.add("step")
    if before[1] != after[1]:
        if after[1][0] is None:
            found.add("zero_grad")
        else:
            found.add("clip" if _norm(after[1]) < 1.1e-3 else "backward")
    if before[2] != after[2]:
        found.add("train" if after[2] else "eval")
    return found


def _norm(gradients: list[Any]) -> float:
    return float(sum(torch.tensor(one).square().sum() for one in gradients) ** 0.5)


def test_every_field_and_parameter_can_be_read() -> None:
    trainer, _ = busy_trainer()
    trainer.run()
    for path, used in uses(trainer.graph).items():
        kind = find_kind(used)
        if kind is None:
            continue  # the kind of a node with a body has no name in graphs
        for name in kind.parameters:
            assert trainer.read(f"{path}.{name}") is not REQUIRED
        for name, field in kind.fields.items():
            value = trainer.read(f"{path}.{name}")
            if field.type in (int, bool, float):
                assert type(value) is field.type, f"{path}.{name}"


@pytest.mark.parametrize(
    ("node", "parameters", "message"),
    [
        ("accumulate", {"every": 0}, r"accumulate.every: expected an integer > 0, got 0"),
        ("accumulate", {"every": -1}, r"accumulate.every: expected an integer > 0, got -1"),
        ("next_batch", {"limit": 0}, r"next_batch.limit: expected an integer > 0, got 0"),
        ("validate/next_batch", {"limit": -3}, r"next_batch.limit: expected an integer > 0, got -3"),
        ("clip", {"max_norm": 0.0}, r"clip.max_norm: expected a number > 0, got 0.0"),
        ("clip", {"max_norm": -1.0}, r"clip.max_norm: expected a number > 0, got -1.0"),
        ("clip", {"max_norm": math.nan}, r"clip.max_norm: expected a number > 0, got nan"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(node: str, parameters: dict[str, Any], message: str) -> None:
    model = Net()
    with pytest.raises(GraphError, match=message):
        Trainer(
            Graph.load("fit").set(node, **parameters),
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            train_data=[torch.rand(4, 2)],
            val_data=[torch.rand(4, 2)],
            device="cpu",
            notify=lambda line: None,
        )
