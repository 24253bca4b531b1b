"""The schema takes what is a graph and refuses what is none, as an editor asks it."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import jsonschema
import pytest

from graphtrain import Graph, node
from graphtrain.graph import read_toml
from graphtrain.graph.edit import VERBS
from graphtrain.graph.json_schema import json_schema
from graphtrain.graph.registry import find_graph, find_overlay, known_graphs, known_kinds, known_overlays
from graphtrain.kind import DECLARED

GRAPH = """\
format = 1
start = "decide"
[nodes]
%s
decide = { use = "choice" }
[edges]
decide = ["end"]
"""
EDITED = 'format = 1\nextends = "fit"\n[[edit]]\n%s\n'
OVERLAY = "format = 1\n[[edit]]\n%s\n"

WRONG_NODES = {
    "clip = { max_nrom = 1.0 }": "max_nrom",
    'clip = { max_norm = "fast" }': "'fast' is not of type 'number'",
    "clip = { max_norm = 0 }": "0 is less than or equal to the minimum of 0",
    'clip = { use = "checkpoint", max_norm = 1.0 }': "max_norm",
    'saving = { use = "checkpoint", mode = "fast" }': "'fast' is not one of ['async', 'sync']",
    'saving = { use = "chekpoint" }': "'chekpoint' is not one of",
    "saving = { every = 3 }": "is not valid under any of the given schemas",
    'log = { every = "50" }': "is not valid under any of the given schemas",
    "log = { every = [] }": "is not valid under any of the given schemas",
    "accumulate = { every = 1.5 }": "1.5 is not of type 'integer'",
    "clip = 3": "3 is not of type 'object'",
    "clip = { reads = { optimizer = 3 } }": "is not valid under any of the given schemas",
    'clip = { reads = { max_norm = ["step.steps"] } }': "is not of type 'string'",
    'train_batch = { keep = "hidden" }': "is not of type 'array'",
    '"a-b" = { use = "choice" }': "does not match",
}
WRONG_NODES |= {
    'log = { every = "twice" }': "is not valid under any of the given schemas",
    'log = { every = "0.5 per epoch" }': "is not valid under any of the given schemas",
    'finish = { after = "1 epochs", from = "2 epochs" }': "from",
}
WRONG_EDITS = {
    'inset = "a"': "is not valid under any of the given schemas",
    'connect = "a"': "'target' is a required property",
    'connect = "a"\ntarget = "b"\nfirst = "yes"': "'yes' is not of type 'boolean'",
    'insert = "a"\nbetween = ["a"]': "is too short",
    'guard = "a"\nexpression = "step.steps > 1"\nwhen = "b"': "when",
    'guard = "a"': "is not valid under any of the given schemas",
    'guard = "a"\nor = 3': "3 is not of type 'string'",
    'set = "clip"\nif_there = "yes"': "'yes' is not of type 'boolean'",
}
WRONG_TOPS = {
    "extends = []": "is not valid under any of the given schemas",
    'extends = ["fit", 3]': "is not valid under any of the given schemas",
    'extends = "fit"\nnodes = {}': "nodes",
    "edit = []\nguards = {}": "guards",
}


@pytest.fixture(scope="module")
def validator() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # A fixture of a module comes before the one that leaves out what test modules declare.
        for name in [*DECLARED]:
            patch.delitem(DECLARED, name)
        schema = json_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    json.dumps(schema, allow_nan=False)
    return jsonschema.Draft7Validator(schema)


def messages(validator: Any, text: str) -> list[str]:
    return [error.message for error in validator.iter_errors(tomllib.loads(text))]


@pytest.mark.parametrize("name", known_graphs())
def test_a_shipped_graph_is_valid(name: str, validator: Any) -> None:
    file = find_graph(name)
    assert file is not None
    assert messages(validator, file.read_text("utf-8")) == []


def test_a_graph_that_is_written_is_valid(validator: Any) -> None:
    graph = Graph.load("fit").insert("noise", use="choice", between=("clip", "step")).set("clip", max_norm=2)
    assert messages(validator, graph.to_toml()) == []


@pytest.mark.parametrize("node", WRONG_NODES)
def test_a_node_that_check_would_refuse(node: str, validator: Any) -> None:
    assert any(WRONG_NODES[node] in message for message in messages(validator, GRAPH % node))


@pytest.mark.parametrize("name", known_overlays())
def test_a_shipped_overlay_is_valid(name: str, validator: Any) -> None:
    file = find_overlay(name)
    assert file is not None
    assert messages(validator, file.read_text("utf-8")) == []


@pytest.mark.parametrize("form", [EDITED, OVERLAY])
@pytest.mark.parametrize("edit", WRONG_EDITS)
def test_an_edit_that_check_would_refuse(edit: str, form: str, validator: Any) -> None:
    assert any(WRONG_EDITS[edit] in message for message in messages(validator, form % edit))


@pytest.mark.parametrize("top", WRONG_TOPS)
def test_a_file_with_edits_that_check_would_refuse(top: str, validator: Any) -> None:
    assert any(WRONG_TOPS[top] in message for message in messages(validator, f"format = 1\n{top}\n"))


@pytest.mark.parametrize(
    "top",
    [
        'extends = ["fit", "ema", "mine.toml"]',
        'extends = "fit"\nstart = "begin_epoch"\noutputs = ["loss"]\noptional = ["val_data"]\nallow = ["G401"]',
        'edit = [{ set = "clip", max_norm = 1.0 }]',
    ],
)
def test_a_sound_file_with_edits_is_not_underlined(top: str, validator: Any) -> None:
    assert messages(validator, f"format = 1\n{top}\n") == []


@pytest.mark.parametrize(
    "node",
    [
        "",
        "clip = { max_norm = inf }",
        'clip = { use = "checkpoint", keep = 3 }',
        'checkpoint = { every = ["1 epochs", "10 minutes"], best = "val/loss" }',
        'log = { every = "3 rounds" }',  # a unit of a clock of one's own
        'log = { every = "1/3 epochs" }',
        'log = { every = "never" }',
        'log = { every = ["once", "4 per epoch", "0.1 run"], from = "5 epochs" }',
        'validate = { graph = "evaluate", every = "once", from = ["1 hours", "1/2 run"] }',
        'clip = { reads = { max_norm = "1.0 / (1 + next_batch.epoch)" } }',
        'train_batch = { keep = ["hidden"], writes = { hidden = "hidden" }, reads = { hidden = "hidden" } }',
        'inner = { graph = { start = "decide", nodes = { decide = { use = "choice" } }, edges = { decide = "end" }, '
        'outputs = ["loss", "metrics?"] }, reads = { rate = "0.5 if step.steps > 3 else inner/decide.runs" } }',
        'validate = { graph = "evaluate", every = "1 epochs", reads = { val_data = "other" } }',
        'inner = { graph = { extends = ["evaluate"], edit = [{ set = "next_batch", limit = 5 }] } }',
        'inner = { graph = { start = "decide", nodes = { decide = { use = "choice" } }, edges = { decide = "end" } } }',
    ],
)
def test_what_is_sound_is_not_underlined(node: str, validator: Any) -> None:
    assert messages(validator, GRAPH % node) == []


@pytest.mark.parametrize(
    "edit",
    [
        'insert = "noise"\nuse = "choice"\nbetween = ["clip", "step"]',
        'set = "clip"\nmax_norm = 1.0',
        'guard = "extra"\nexpression = "step.steps > 3"',
        'nest = "inner"\ngraph = "evaluate"',
        'clock = "rounds"\nfield = "step.steps"',
        'guard = "ending"\nor = "early_stop.stop"',
        'guard = "ending"\nand = "window_complete"\nif_there = true',
        'insert = "mean"\nuse = "swa"\nat = "decide"\nbefore = "validate"\nif_there = true',
        'connect = "decide"\ntarget = "log"\nwhen = "late"\nafter = "validate"',
    ],
)
@pytest.mark.parametrize("form", [EDITED, OVERLAY])
def test_a_sound_edit_is_not_underlined(edit: str, form: str, validator: Any) -> None:
    assert messages(validator, form % edit) == []


def test_a_parameter_that_has_no_default_may_be_given_by_an_expression() -> None:
    @node
    def scaled(*, factor: float) -> None:
        """Scale by `factor`."""

    described = json_schema()["definitions"]["kind scaled"]
    assert "required" not in described
    assert described["properties"]["reads"]["properties"]["factor"]["type"] == "string"


def test_every_key_kind_and_verb_is_described() -> None:
    definitions = json_schema()["definitions"]
    assert set(definitions["graph"]["properties"]) == set(read_toml._PLAIN_KEYS)
    assert set(definitions["overlay"]["properties"]) == set(read_toml._EXTENDING_KEYS)
    assert set(definitions["edit"]["properties"]) >= set(VERBS)
    for name in known_kinds():
        described = definitions[f"kind {name}"]
        assert described["description"]
        for parameter in set(described["properties"]) - {"use", "reads", "writes"}:
            text = described["properties"][parameter]["description"]
            assert not text.startswith("("), f"{name}.{parameter} is not described in the docstring"
