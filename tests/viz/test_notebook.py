"""Graphs and runs that draw themselves; a picture that cannot be drawn is left out, whatever the reason."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
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


@pytest.mark.second(4)
@pytest.mark.first(2)
def test_hostile_text_is_only_text(attacked: Graph) -> None:
    assert only_element(attacked._repr_svg_()).tag == f"{SVG}svg"
    html = svg_of(attacked, {attacked.start: 3}, attacked.start)
    assert "<script" not in html and "<img" not in html


def test_what_is_no_graph_at_all_does_not_raise() -> None:
    assert Graph("odd", None, {"a": 3}, {"a": 4})._repr_svg_() is None  # type: ignore[arg-type, dict-item]


def test_a_graph_without_its_picture(fit: Graph, undrawable: str) -> None:
    assert fit._repr_svg_() is None


def test_a_run_is_drawn_with_its_counts_and_its_place(fit: Graph) -> None:
    root = only_element(svg_of(fit, {"step": 46_000}, "validate/eval_batch"))
    assert "46,000 runs" in "".join(root.itertext()).replace("\xa0", " ")
    (current,) = (group for group in root.iter(f"{SVG}g") if "current" in group.get("class", "").split())
    assert "eval_batch" in "".join(current.itertext())


def test_a_run_before_its_first_visit(fit: Graph) -> None:
    groups = only_element(svg_of(fit)).iter(f"{SVG}g")
    assert "current" not in [name for group in groups for name in group.get("class", "").split()]


def test_a_run_without_its_picture(fit: Graph, undrawable: str) -> None:
    assert svg_of(fit, {"step": 3}, "step") == ""


def test_an_interrupt_is_not_swallowed(fit: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RENDER, "draw", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        fit._repr_svg_()


@pytest.mark.full
def test_a_graph_is_drawn_without_torch(tmp_path: Path) -> None:
    code = """
        import sys
        from graphtrain import Graph
        graph = Graph.load("fit")
        assert "graphtrain.viz" not in sys.modules
        assert graph._repr_svg_().startswith("<svg")
        assert "torch" not in sys.modules
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    subprocess.run([sys.executable, "-c", lines], cwd=tmp_path, check=True, timeout=300)


def test_ipython_takes_it(fit: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    formats, _ = formatters.DisplayFormatter().format(fit)
    assert set(formats) == {"image/svg+xml", "text/plain"}
    monkeypatch.setitem(sys.modules, RENDER.__name__, None)
    formats, _ = formatters.DisplayFormatter().format(fit)
    assert set(formats) == {"text/plain"}
