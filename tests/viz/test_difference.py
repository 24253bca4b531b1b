"""Two graphs in one picture: everything of both is drawn, once, and what differs looks so in three ways."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from graphtrain.graph import Graph
from graphtrain.viz.difference import difference_picture
from graphtrain.viz.dot import to_dot
from graphtrain.viz.mermaid import to_mermaid
from graphtrain.viz.picture import NUMBERS, Picture, picture
from graphtrain.viz.render import svg
from graphtrain.viz.theme import LIGHT, SIGNS
from tests.viz.viz_reading import read_dot

Line = tuple[str, str, str | None]


def edited(fit: Graph) -> Graph:
    return (
        fit.insert("pause", "choice", after="step")
        .remove("log", to="decide")
        .set("accumulate", every=4)
        .set("validate/next_batch", limit=5)
        .guard("window_cut", "finish.due")
        .connect("decide", "pause", when="finished")
    )


def lines(drawn: Picture, *without: str) -> Counter[Line]:
    """Every drawn edge but those with one of these marks."""
    return Counter((arrow.source, arrow.target, arrow.guard) for arrow in drawn.arrows if arrow.mark not in without)


def test_everything_of_both_graphs_is_drawn(fit: Graph) -> None:
    other = edited(fit)
    drawn = difference_picture(fit.diff(other))
    assert lines(drawn, "removed") == lines(picture(other))
    assert lines(drawn, "added") == lines(picture(fit))
    marks = {box.key: box.mark for box in drawn.boxes if not box.is_mark}
    assert {key for key, mark in marks.items() if mark != "removed"} >= set(other.nodes) - {"validate"}
    assert {key: mark for key, mark in marks.items() if mark != "same"} == {
        "pause": "added",
        "log": "removed",
        "accumulate": "changed",
        "validate/next_batch": "changed",
    }


def test_equal_graphs_are_grey(fit: Graph) -> None:
    drawn = difference_picture(fit.diff(fit))
    assert {box.mark for box in drawn.boxes if not box.is_mark} == {"same"}
    assert {arrow.mark for arrow in drawn.arrows} == {""}
    assert drawn.caption == ("fit", f"no difference \N{MIDDLE DOT} {NUMBERS}")


def test_another_order_guard_or_start_is_seen(fit: Graph) -> None:
    from dataclasses import replace

    edges = fit.edges["decide"]
    other = replace(fit, edges={**fit.edges, "decide": (edges[1], edges[0], *edges[2:])}, start="begin_epoch")
    drawn = difference_picture(fit.diff(other))
    changed = {arrow.target: arrow.label for arrow in drawn.arrows if arrow.mark == "changed"}
    assert changed == {"end_epoch": "~ 1 epoch_done (was 2)", "log": "~ 2 log_due (was 1)"}
    starts = {arrow.target: arrow.mark for arrow in drawn.arrows if arrow.source == "+start"}
    assert starts == {"decide": "removed", "begin_epoch": "added"}
    inner = replace(fit.nodes["validate"].body, start="next_batch")
    starts = {
        arrow.target: arrow.mark
        for arrow in difference_picture(fit.diff(fit.set("validate", graph=inner))).arrows
        if arrow.source == "validate/+start"
    }
    assert starts == {"validate/begin_evaluation": "removed", "validate/next_batch": "added"}
    guarded = difference_picture(fit.diff(fit.guard("log_due", "log.due and step.steps > 3")))
    assert [arrow.label for arrow in guarded.arrows if arrow.mark == "changed"] == ["~ 1 log_due"]


def test_what_has_no_place_in_the_drawing_stands_above_it(fit: Graph) -> None:
    drawn = difference_picture(fit.diff(fit.clock("tokens", "next_batch.samples").guard("window_cut", "finish.due")))
    assert drawn.caption[2:] == (
        "~ guard window_cut next_batch.last or ending -> finish.due",
        "+ unit tokens added",
    )


def test_a_mark_is_colour_line_and_sign(fit: Graph) -> None:
    """So that nobody has to distinguish colours."""
    drawing = read_dot(to_dot(difference_picture(fit.diff(edited(fit)))))
    looks = {}
    for mark, name in (("added", "pause"), ("removed", "log"), ("changed", "accumulate")):
        node = drawing.nodes[name]
        assert node["class"] == mark and node["color"] == LIGHT.look(mark)[1] and f"{SIGNS[mark]} " in node["label"]
        looks[mark] = (node["style"], node["penwidth"], node.get("peripheries"))
        colours = {edge["color"] for _, _, edge in drawing.edges if edge.get("class") == mark}
        assert colours <= {LIGHT.look(mark)[1]}
    assert len(set(looks.values())) == 3, "told apart without colour"
    assert drawing.nodes["step"]["class"] == "same"
    assert {edge["style"] for _, _, edge in drawing.edges if edge.get("class") == "removed"} == {"dotted"}


def test_mermaid_shows_it_too(fit: Graph) -> None:
    text = to_mermaid(difference_picture(fit.diff(edited(fit))))
    assert "class n_pause added" in text and "class n_log removed" in text
    numbers = {int(number) for number in re.findall(r"linkStyle (\d+) ", text)}
    arrows = [line for line in text.splitlines() if re.search(r"-->|\.->", line)]
    assert {number for number, line in enumerate(arrows) if re.search(r'"[+~\N{MINUS SIGN}]', line)} == numbers


@pytest.mark.second(1)
@pytest.mark.full
def test_a_graph_by_a_stranger(attacked: Graph, fit: Graph) -> None:
    for difference in (fit.diff(attacked), attacked.diff(fit), attacked.diff(attacked)):
        drawn = difference_picture(difference)
        read_dot(to_dot(drawn))
        to_mermaid(drawn)
        assert all(line.isprintable() for line in drawn.caption)
        assert "<script" not in svg(difference)
