"""Promise 6: `Graph.diff` has everything in which two graphs differ, at any depth, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphtrain import Edge, EditError, Graph
from tests.graph.corpus import FIT

Edit = Callable[[Graph], Graph]

# Beyond test_edit.py: what, how, path, before, after.
EDITS: list[tuple[Edit, list[tuple[str, str, str, str | None, str | None]]]] = [
    (lambda g: g.insert("pause", "choice", after="step"),
     [("node", "added", "pause", None, "choice -> zero_grad"), ("edge", "removed", "step", "zero_grad", None),
      ("edge", "added", "step", None, "pause")]),
    (lambda g: g.remove("log", to="decide"),
     [("node", "removed", "log", 'log -> decide; every = "50 steps"', None),
      ("edge", "removed", "decide", "log if log_due", None),
      ("guard", "removed", "log_due", "log.due", None)]),
    (lambda g: g.set("train_batch", reads={"window": "2 * accumulate.window"}),
     [("parameter", "changed", "train_batch.window", "accumulate.window", "2 * accumulate.window")]),
    (lambda g: g.guard("mine", "1 > 2"), [("guard", "added", "mine", None, "1 > 2")]),
    (lambda g: replace(g, start="begin_epoch"), [("start", "changed", "start", "decide", "begin_epoch")]),
    (lambda g: replace(g, outputs=("loss",)), [("outputs", "changed", "outputs", "[]", "[loss]")]),
    (lambda g: replace(g, optional=("val_data",)), [("optional", "changed", "optional", "[]", "[val_data]")]),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), EDITS)
def test_every_change_is_reported_with_both_values(
    edit: Edit, expected: list[tuple[str, str, str, str | None, str | None]]
) -> None:
    found = FIT.diff(edit(FIT))
    assert [(one.category, one.how, one.path, one.before, one.after) for one in found.changes] == expected
    assert {one.path for one in edit(FIT).diff(FIT).changes} == {row[2] for row in expected}


def test_equal_graphs_do_not_differ() -> None:
    found = FIT.diff(Graph.loads(FIT.to_toml()))
    assert not found and not found.changes and str(found) == "no difference"
    backwards = replace(FIT, nodes=dict(reversed([*FIT.nodes.items()])), guards=dict(reversed([*FIT.guards.items()])))
    assert not FIT.diff(backwards), "the order in a file is no difference"
    assert not FIT.set("clip", x=float("nan")).diff(FIT.set("clip", x=float("nan")))


def test_the_order_of_edges_is_a_difference() -> None:
    edges = FIT.edges["decide"]
    (one,) = FIT.diff(replace(FIT, edges={**FIT.edges, "decide": (edges[1], edges[0], *edges[2:])})).changes
    assert (one.category, one.path, one.how) == ("order", "decide", "changed")
    assert one.after is not None and one.after.startswith(f"{edges[1]}, {edges[0]}, ")
    assert not [one for one in FIT.diff(FIT.disconnect("decide", "log")).changes if one.category == "order"]
    guarded = tuple(Edge("log", "checkpoint_due") if edge.target == "log" else edge for edge in edges)
    before, after = FIT.diff(replace(FIT, edges={**FIT.edges, "decide": guarded})).changes
    assert (before.before, after.after) == ("log if log_due", "log if checkpoint_due")


def test_what_changes_nothing_is_no_difference() -> None:
    spaced = FIT.guard("window_cut", "next_batch.last  or\n ending")
    for graph in (spaced, replace(FIT, name="mine"), replace(FIT, allow=("G209",))):
        assert not FIT.diff(graph)
    assert spaced == FIT


def test_it_is_a_value_that_prints_and_draws_itself() -> None:
    found = FIT.diff(FIT.set("finish", after="2 epochs"))
    assert found == FIT.diff(FIT.set("finish", after="2 epochs"))
    assert repr(found) == str(found)
    assert [one.path for one in found.changes] == ["finish.after"]
    assert str(found) == "~ finish.after 10 epochs -> 2 epochs"
    assert (found._repr_svg_() or "").startswith("<svg")


def test_a_text_of_others_keeps_to_its_line() -> None:
    found = FIT.diff(FIT.set("finish", after="\x1b[2J\nlog removed").guard("window\x07", "a\nb"))
    lines = str(found).splitlines()
    assert len(lines) == len(found.changes) == 2
    assert all(line.isprintable() for line in lines)


NAMES = st.sampled_from(list(FIT.nodes))
STEPS = st.one_of(
    st.tuples(st.sampled_from("xyz"), NAMES).map(lambda t: lambda g: g.insert(t[0], "choice", after=t[1])),
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
    assert bool(found) == (before.structural_hash != after.structural_hash)
    assert found or before.to_json() == after.to_json()
