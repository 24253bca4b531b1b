"""`Graph.diff`: everything that two graphs are made of, at any depth, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphtrain import Graph
from graphtrain.errors import EditError
from graphtrain.graph.difference import Difference
from graphtrain.graph.elements import Edge

FIT = Graph.load("fit")
Edit = Callable[[Graph], Graph]

# Each edit with the difference that is to be reported: (what, how, path, before, after).
EDITS: list[tuple[Edit, list[tuple[str, str, str, str | None, str | None]]]] = [
    (
        lambda g: g.set("finish", after="20 epochs"),
        [("parameter", "changed", "finish.after", "10 epochs", "20 epochs")],
    ),
    (lambda g: g.set("clip", norm_type=1), [("parameter", "changed", "clip.norm_type", None, "1")]),
    (
        lambda g: g.set("validate/next_batch", limit=5),
        [("parameter", "changed", "validate/next_batch.limit", None, "5")],
    ),
    (
        lambda g: g.set("step", reads={"optimizer": "other"}),
        [("reads", "changed", "step.reads.optimizer", None, "other")],
    ),
    (
        lambda g: g.set("train_batch", writes={"loss": "own"}),
        [("writes", "changed", "train_batch.writes.loss", None, "own")],
    ),
    (lambda g: g.set("validate", every="5 steps"), [("parameter", "changed", "validate.every", "1 epochs", "5 steps")]),
    (
        lambda g: g.insert("pause", "choice", after="step"),
        [
            ("node", "added", "pause", None, "choice"),
            ("edge", "changed", "step", "zero_grad", "pause"),
            ("edge", "added", "pause", None, "zero_grad"),
        ],
    ),
    (
        lambda g: g.replace("clip", "discard"),
        [
            ("kind", "changed", "clip.use", "clip", "discard"),
            ("parameter", "changed", "clip.max_norm", "inf", None),
        ],
    ),
    (
        lambda g: g.remove("log", to="decide"),
        [
            ("node", "removed", "log", "log, every = 50 steps", None),
            ("edge", "removed", "decide", "log if log_due", None),
            ("edge", "removed", "log", "decide", None),
            ("guard", "removed", "log_due", "log.due", None),
        ],
    ),
    (
        lambda g: g.guard("window_cut", "finish.due"),
        [("guard", "changed", "window_cut", "next_batch.last or ending", "finish.due")],
    ),
    (lambda g: g.guard("mine", "1 > 2"), [("guard", "added", "mine", None, "1 > 2")]),
    (
        lambda g: g.clock("tokens", "next_batch.samples"),
        [("unit", "added", "tokens", None, "next_batch.samples")],
    ),
    (lambda g: replace(g, start="begin_epoch"), [("start", "changed", "start", "decide", "begin_epoch")]),
    (lambda g: replace(g, outputs=("loss",)), [("outputs", "changed", "outputs", "[]", "[loss]")]),
    (lambda g: replace(g, optional=("val_data",)), [("optional", "changed", "optional", "[]", "[val_data]")]),
    (
        lambda g: g.set("clip", reads={"max_norm": "1.0 / (1 + step.steps)"}),
        [("parameter", "changed", "clip.max_norm", "inf", "1.0 / (1 + step.steps)")],
    ),
    (
        lambda g: g.set("train_batch", reads={"window": "2 * accumulate.window"}),
        [("parameter", "changed", "train_batch.window", "accumulate.window", "2 * accumulate.window")],
    ),
    (lambda g: replace(g, allow=("G209",)), [("allow", "changed", "allow", "[]", "[G209]")]),
    (lambda g: replace(g, name="mine"), [("name", "changed", "name", "fit", "mine")]),
]


@pytest.mark.parametrize(("edit", "expected"), EDITS)
def test_every_edit_is_reported(edit: Edit, expected: list[tuple[str, str, str, str | None, str | None]]) -> None:
    found = FIT.diff(edit(FIT))
    assert [(one.what, one.how, one.path, one.before, one.after) for one in found.changes] == expected
    assert found and str(found) != "no difference"


@pytest.mark.parametrize(("edit", "expected"), EDITS)
def test_the_other_way_round_it_is_the_opposite(edit: Edit, expected: list[tuple[str, ...]]) -> None:
    there, back = FIT.diff(edit(FIT)).changes, edit(FIT).diff(FIT).changes
    assert {(one.what, one.path, one.before, one.after) for one in there} == {
        (one.what, one.path, one.after, one.before) for one in back
    }


def test_equal_graphs_do_not_differ() -> None:
    found = FIT.diff(Graph.loads(FIT.to_toml()))
    assert not found and not found.changes and str(found) == "no difference"
    backwards = replace(FIT, nodes=dict(reversed(FIT.nodes.items())), guards=dict(reversed(FIT.guards.items())))
    assert not FIT.diff(backwards), "the order in a file is no difference"


def test_the_order_of_edges_is_one() -> None:
    edges = FIT.edges["decide"]
    swapped = replace(FIT, edges={**FIT.edges, "decide": (edges[1], edges[0], *edges[2:])})
    (one,) = FIT.diff(swapped).changes
    assert (one.what, one.path, one.how) == ("order", "decide", "changed")
    assert one.after is not None and one.after.startswith(f"{edges[1]}, {edges[0]}, ")
    assert not [one for one in FIT.diff(FIT.disconnect("decide", "log")).changes if one.what == "order"]


def test_an_edge_under_another_guard_is_a_changed_one() -> None:
    edges = tuple(Edge("log", "checkpoint_due") if one.target == "log" else one for one in FIT.edges["decide"])
    (one,) = FIT.diff(replace(FIT, edges={**FIT.edges, "decide": edges})).changes
    assert (one.before, one.after) == ("log if log_due", "log if checkpoint_due")


def test_what_changes_nothing_does_not_matter() -> None:
    spaced = FIT.guard("window_cut", "next_batch.last  or\n ending")
    for graph in (spaced, replace(FIT, name="mine"), replace(FIT, allow=("G209",))):
        found = FIT.diff(graph)
        assert found and not found.matters and graph.structural_hash == FIT.structural_hash
    assert str(FIT.diff(spaced)) == "~ spacing of guard window_cut"
    assert FIT.diff(replace(FIT, name="mine").set("finish", after="2 epochs")).matters


def test_numbers_that_are_written_otherwise_differ_as_their_hash_does() -> None:
    one, other = FIT.set("clip", max_norm=1), FIT.set("clip", max_norm=1.0)
    assert one.diff(other).matters == (one.structural_hash != other.structural_hash)
    nan = FIT.set("clip", max_norm=float("nan"))
    assert not nan.diff(nan)


def test_it_is_a_value() -> None:
    graph = FIT.set("finish", after="2 epochs")
    assert FIT.diff(graph) == FIT.diff(graph) == Difference.between(FIT, graph)
    assert repr(FIT.diff(graph)) == "<Difference fit -> fit: 0 added, 0 removed, 1 changed>"
    assert [one.path for one in FIT.diff(graph).changed] == ["finish.after"]


def test_a_text_of_others_keeps_to_its_line() -> None:
    graph = FIT.set("finish", after="\x1b[2J\nlog removed").guard("window\x07", "a\nb")
    lines = str(FIT.diff(graph)).splitlines()
    assert len(lines) == len(FIT.diff(graph).changes) == 2
    assert all(line.isprintable() for line in lines)
    assert all(word.isprintable() for word in FIT.diff(graph).words())


def test_it_draws_itself_and_keeps_quiet_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    found = FIT.diff(FIT.set("finish", after="2 epochs"))
    assert (found._repr_svg_() or "").startswith("<svg")
    monkeypatch.setattr(sys.modules["graphtrain.viz.render"], "_programs", lambda format: 1 / 0)
    assert found._repr_svg_() is None


def test_a_run_directory_is_a_graph_too(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        Graph.load(tmp_path)


NAMES = st.sampled_from(list(FIT.nodes))
STEPS = st.one_of(
    st.tuples(st.just("insert"), st.sampled_from("xyz"), NAMES).map(
        lambda t: lambda g: g.insert(t[1], "choice", after=t[2])
    ),
    NAMES.map(lambda name: lambda g: g.remove(name, to="decide")),
    st.tuples(NAMES, st.integers(0, 2)).map(lambda t: lambda g: g.set(t[0], number=t[1])),
    st.tuples(NAMES, NAMES, st.sampled_from(list(FIT.guards))).map(lambda t: lambda g: g.connect(*t)),
    st.tuples(NAMES, NAMES).map(lambda t: lambda g: g.disconnect(*t)),
    st.tuples(NAMES, st.sampled_from("uv")).map(lambda t: lambda g: g.rename(*t)),
    st.sampled_from(list(FIT.guards)).map(lambda name: lambda g: g.guard(name, "  finish.due ")),
    st.integers(0, 3).map(lambda n: lambda g: g.set("validate/next_batch", limit=n)),
)


def edited(steps: list[Edit]) -> Graph:
    graph = FIT
    for step in steps:
        try:
            graph = step(graph)
        except EditError:
            continue
    return graph


@pytest.mark.full
@settings(max_examples=150)
@given(st.lists(STEPS, max_size=5), st.lists(STEPS, max_size=5))
def test_it_differs_where_the_hash_does(first: list[Edit], second: list[Edit]) -> None:
    """The structural hash is computed on its own, from the canonical text."""
    before, after = edited(first), edited(second)
    found = before.diff(after)
    assert found.matters == (before.structural_hash != after.structural_hash)
    assert bool(found) or before.to_json() == after.to_json()
