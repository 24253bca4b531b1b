"""Canonical JSON and the structural hash: the same for the same procedure, different for every change of it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphtrain import Graph
from graphtrain.graph.canonical import saved_json

FIT = Graph.load("fit")

SAME: list[Callable[[Graph], Graph]] = [
    lambda g: replace(g, name="other"),
    lambda g: replace(g, allow=("G209",)),
    lambda g: replace(g, nodes=dict(reversed(g.nodes.items()))),
    lambda g: replace(g, edges=dict(reversed(g.edges.items())), guards=dict(reversed(g.guards.items()))),
    lambda g: replace(g, places={}),
    lambda g: replace(g, edges={**g.edges, "nobody": ()}),
    lambda g: g.guard("window_cut", "  next_batch.last   or\n ending "),
    lambda g: g.set("validate", graph=replace(Graph.load("evaluate"), name="mine", allow=("G209",))),
    lambda g: Graph.loads("# a comment\n" + g.to_toml()),
]  # fmt: skip

DIFFERENT: list[Callable[[Graph], Graph]] = [
    lambda g: g.disconnect("decide", "log").connect("decide", "log", when="log_due", first=False),  # another priority
    lambda g: g.set("accumulate", every=2),
    lambda g: g.set("accumulate", every=True),
    lambda g: g.set("clip", max_norm=1.0),
    lambda g: g.set("checkpoint", every=["10 minutes", "1 epochs"]),
    lambda g: g.set("train_batch", reads={"model": "student"}),
    lambda g: g.set("train_batch", writes={"loss": "d_loss"}),
    lambda g: g.set("validate/next_batch", limit=1),
    lambda g: g.replace("zero_grad", "discard"),
    lambda g: g.rename("log", "write"),
    lambda g: g.guard("window_cut", "next_batch.last"),
    lambda g: g.guard("window_cut", "next_batch.last or finish.due or 'a  b' == 'a b'"),
    lambda g: g.guard("window_cut", "next_batch.last or finish.due or 'a b' == 'a b'"),
    lambda g: g.guard("unused", "log.due"),
    lambda g: g.clock("steps", "step.runs"),
    lambda g: g.clock("tokens", "step.runs"),
    lambda g: g.redirect("step", "zero_grad", "decide"),
    lambda g: g.disconnect("decide", "log"),
    lambda g: g.connect("step", "end", when="log_due"),
    lambda g: replace(g, edges={**g.edges, "decide": tuple(reversed(g.edges["decide"]))}),
    lambda g: replace(g, start="begin_epoch"),
    lambda g: replace(g, outputs=("metrics",)),
    lambda g: replace(g, optional=("val_data",)),
]  # fmt: skip


@pytest.mark.parametrize("change", SAME, ids=range(len(SAME)))
def test_the_hash_stays(change: Callable[[Graph], Graph]) -> None:
    assert change(FIT).structural_hash == FIT.structural_hash


def test_the_hash_changes_with_everything_a_graph_does() -> None:
    hashes = [FIT.structural_hash, *(change(FIT).structural_hash for change in DIFFERENT)]
    assert len(set(hashes)) == len(hashes)


def test_a_copy_is_the_graph_itself_and_another_process_gets_an_equal_one() -> None:
    assert copy.deepcopy(FIT) is FIT
    other = pickle.loads(pickle.dumps(FIT))  # noqa: S301
    assert (other, hash(other)) == (FIT, hash(FIT))


def test_it_is_a_sha_256() -> None:
    assert len(FIT.structural_hash) == 64
    assert int(FIT.structural_hash, 16)


@pytest.mark.parametrize("change", [*SAME, *DIFFERENT], ids=range(len(SAME) + len(DIFFERENT)))
def test_json_round_trips(change: Callable[[Graph], Graph]) -> None:
    graph = change(FIT)
    assert Graph.from_json(graph.to_json()) == graph
    assert Graph.from_json(graph.to_json()).to_json() == graph.to_json()
    assert Graph.from_json(graph.to_json()).structural_hash == graph.structural_hash


def test_json_is_the_same_for_reordered_graphs() -> None:
    backwards = replace(
        FIT,
        nodes=dict(reversed(FIT.nodes.items())),
        edges=dict(reversed(FIT.edges.items())),
        guards=dict(reversed(FIT.guards.items())),
        units=dict(reversed(FIT.units.items())),
    )
    assert backwards == FIT
    assert backwards.to_json() == FIT.to_json()
    assert hash(backwards) == hash(FIT)


def test_json_is_strict_and_whole() -> None:
    text = FIT.set("clip", max_norm=float("inf")).to_json()
    plain = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert plain["format"] == 1
    assert plain["nodes"]["clip"] == {"max_norm": {"float": "inf"}}
    assert set(plain["nodes"]["validate"]["graph"]["nodes"]) == set(Graph.load("evaluate").nodes)
    assert "\n" not in text


VALUES = st.recursive(
    st.one_of(
        st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3), st.dictionaries(st.sampled_from(["float", "table", "", "a b", "é", '"']), inside)
    ),
    max_leaves=8,
)


@pytest.mark.full
@settings(max_examples=150)
@given(VALUES)
def test_any_value_survives_json_and_toml(value: object) -> None:
    graph = FIT.set("clip", value=value)
    for back in (Graph.from_json(graph.to_json()), Graph.loads(graph.to_toml())):
        assert back == graph
        assert back.to_json() == graph.to_json(), "True is not 1, and 1 is not 1.0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "3",
        "null",
        "{",
        '{"format": 2}',
        '{"format": 1}',
        '{"format": 1, "name": "x"}',
        "[" * 100000,
        FIT.to_json().replace('"nodes":{', '"nodes":[{', 1),
    ],
)
def test_what_is_no_graph_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Graph.from_json(text)


def test_a_checkpoint_keeps_the_order() -> None:
    kept = Graph.from_json(saved_json(FIT))
    assert kept == FIT and kept.to_json() == FIT.to_json()
    assert list(kept.nodes) == list(FIT.nodes) != sorted(FIT.nodes)
    assert kept.to_toml() == replace(FIT, nodes=kept.nodes).to_toml()


@pytest.mark.parametrize(
    "change",
    [
        ('"nodes":{', '"nodes":{"other":{"graph":"evaluate"},'),
        ('"nodes":{', '"nodes":{"other":{"graph":"/etc/passwd"},'),
        ('{"format":1', '{"extends":"fit","format":1'),
        ('{"format":1', '{"edit":[{"remove":"log"}],"format":1'),
    ],
)
def test_json_names_no_other_graph(change: tuple[str, str]) -> None:
    text = saved_json(FIT)
    assert change[0] in text
    with pytest.raises(ValueError, match="not a canonical graph"):
        Graph.from_json(text.replace(*change, 1))
