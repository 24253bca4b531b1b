"""Graphs and runs that draw themselves; a picture that cannot be drawn is left out, whatever the reason."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from graphtrain.graph import Graph
from graphtrain.graph.elements import Edge, Node
from graphtrain.report.recorded import svg_of
from graphtrain.viz.render import RenderError

RENDER = importlib.import_module("graphtrain.viz.render")  # `graphtrain.viz.render` is the function of that name

SVG = "{http://www.w3.org/2000/svg}"


def raising(error: BaseException) -> Callable[..., object]:
    def fail(*arguments: object, **keywords: object) -> object:
        raise error

    return fail


@pytest.fixture(
    params=[
        "no such module",
        "no such function",
        "layout fails",
        "picture fails",
        "no program",
        "text that is no picture",
    ]
)
def undrawable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One way in which nothing can be drawn."""
    way = str(request.param)
    if way == "no such module":
        monkeypatch.setitem(sys.modules, RENDER.__name__, None)
    elif way == "no such function":
        monkeypatch.delattr(RENDER, "svg")
        monkeypatch.delattr(RENDER, "drawing")
    elif way == "layout fails":
        monkeypatch.setattr(RENDER, "draw", raising(RenderError("no layout")))
    elif way == "picture fails":
        monkeypatch.setattr(RENDER, "picture", raising(RecursionError()))
    elif way == "no program":
        monkeypatch.setattr(RENDER, "_programs", lambda format: iter(()))
    elif way == "text that is no picture":
        monkeypatch.setattr(RENDER, "_output", lambda command, text: b"\xff")
    return way


def only_element(text: str | None) -> ElementTree.Element:
    assert text is not None
    return ElementTree.fromstring(text)  # noqa: S314  # written by Graphviz a moment ago


def test_a_graph_draws_itself(shipped: Graph) -> None:
    root = only_element(shipped._repr_svg_())
    assert root.tag == f"{SVG}svg"
    assert set(shipped.nodes) <= {"".join(text.itertext()).replace("\xa0", " ") for text in root.iter(f"{SVG}text")}


@pytest.mark.full
def test_a_graph_with_problems_is_drawn_too(fit: Graph) -> None:
    broken = fit.set("clip", max_norm="fast").remove("step")
    assert broken.check()
    assert only_element(broken._repr_svg_()) is not None
    lost = Graph("lost", "nowhere", {"a": Node("a", "no_such_kind")}, {"a": (Edge("b", "no_such_guard"),)})
    assert "no_such_guard" in "".join(only_element(lost._repr_svg_()).itertext())


def test_a_graph_without_its_picture(fit: Graph, undrawable: str) -> None:
    assert fit._repr_svg_() is None


def test_a_run_is_drawn_with_its_counts_and_its_place(fit: Graph) -> None:
    root = only_element(svg_of(fit, {"step": 46_000}, "validate/eval_batch"))
    assert "46,000 runs" in "".join(root.itertext()).replace("\xa0", " ")
    (current,) = (group for group in root.iter(f"{SVG}g") if "current" in group.get("class", "").split())
    assert "eval_batch" in "".join(current.itertext())


def test_a_run_without_its_picture(fit: Graph, undrawable: str) -> None:
    assert svg_of(fit, {"step": 3}, "step") == ""


def test_an_interrupt_is_not_swallowed(fit: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RENDER, "draw", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        fit._repr_svg_()


def test_ipython_takes_it(fit: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    formats, _ = formatters.DisplayFormatter().format(fit)
    assert set(formats) == {"image/svg+xml", "text/plain"}
    monkeypatch.setitem(sys.modules, RENDER.__name__, None)
    formats, _ = formatters.DisplayFormatter().format(fit)
    assert set(formats) == {"text/plain"}
