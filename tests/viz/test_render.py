from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.graph import PICTURE_SUFFIXES
from graphtrain.viz import render, svg
from graphtrain.viz.picture import picture

SVG = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314  # written by Graphviz a moment ago


def classes(root: ElementTree.Element) -> list[str]:
    return [group.get("class", "") for group in root.iter(f"{SVG}g")]


def test_svg_is_a_drawing_for_light_and_dark(tmp_path: Path, shipped: Graph) -> None:
    root = parsed(render(shipped, tmp_path / "graph.svg").read_text())
    assert (root.tag, root.get("class")) == (f"{SVG}svg", "graphtrain")
    assert root[0].tag == f"{SVG}style"
    assert "@media (prefers-color-scheme: dark)" in root[0].text
    drawn = picture(shipped)
    assert sum(name.startswith("node") for name in classes(root)) == len(drawn.boxes) - len(drawn.bodies)
    assert sum(name == "edge" for name in classes(root)) == len(drawn.arrows)
    assert sum(name.startswith("cluster") for name in classes(root)) == len(drawn.bodies)
    for box in set(drawn.boxes) - set(drawn.bodies):  # the style finds every box by the class of its family
        assert f"node {'mark' if box.family in ('start', 'end') else box.family}" in classes(root)


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("suffix", PICTURE_SUFFIXES)
def test_a_graph_and_a_difference_render_themselves(tmp_path: Path, fit: Graph, suffix: str) -> None:
    path = tmp_path / f"own{suffix}"
    arguments = ({"step": 3}, "step")
    assert fit.render(path, counts=arguments[0], position=arguments[1]) == path
    if suffix != ".pdf":  # which has the time of day in it
        assert path.read_bytes() == render(fit, tmp_path / f"other{suffix}", *arguments).read_bytes()
    assert fit.diff(fit.set("clip", max_norm=1.0)).render(str(path)) == path


@pytest.mark.parametrize("name", ["fit.jpeg", "fit", "svg"])
def test_an_unknown_suffix_names_the_known_ones(tmp_path: Path, fit: Graph, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        render(fit, tmp_path / name)
    for suffix in (".svg", ".png", ".pdf", ".dot", ".mmd"):
        assert suffix in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written(tmp_path: Path, fit: Graph) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        render(fit, tmp_path / "missing" / "fit.dot")
    (tmp_path / "folder.dot").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        render(fit, tmp_path / "folder.dot")


def test_notebook_svg_is_one_element(fit: Graph) -> None:
    text = svg(fit, {"step": 2}, "step")
    assert text.startswith("<svg ")
    assert parsed(text).tag == f"{SVG}svg"
    assert "background" in text


@pytest.mark.first(3)
def test_hostile_text_is_only_text(attacked: Graph) -> None:
    root = parsed(svg(attacked))
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "style", "g", "title", "a", "text", "path", "polygon", "polyline", "ellipse"}
    assert {name for element in root.iter(f"{SVG}a") for name in element.attrib} <= {
        "{http://www.w3.org/1999/xlink}title"
    }
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)
    drawn = picture(attacked)
    assert sum(name.startswith("node") for name in classes(root)) == len(drawn.boxes) - len(drawn.bodies)
    words = "".join(root.itertext())
    assert all(box.title in words.replace("\xa0", " ") for box in drawn.boxes if not box.is_body)
    assert "graphtrain" not in words.replace("svg.graphtrain", "")


def test_nearly_empty_graphs(tmp_path: Path) -> None:
    assert parsed(render(Graph("nothing", "a", {}, {}), tmp_path / "nothing.svg").read_text()) is not None
