"""Promise 6: pictures of graphs show all of them and nothing else, whatever the names in them; a graph draws itself."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from graphtrain import Edge, Graph, GraphtrainError, Node, UsageError
from tests.looking.pictures import declared_lines, drawing_of, layout_of, mermaid_lines, mermaid_name, text_of, words_of

SVG = "{http://www.w3.org/2000/svg}"
FIT = Graph.load("fit")
INSIDE = {f"validate/{name}" for name in (*Graph.load("evaluate").nodes, "+start", "+end")}


def line_of(*nodes: Node) -> Graph:
    """Nodes that each end the run, of which the first is the start."""
    return Graph("g", nodes[0].name, {node.name: node for node in nodes}, {node.name: (Edge("end"),) for node in nodes})


# ---- what is drawn


@pytest.mark.parametrize("name", ["fit", "evaluate", "gan"])
def test_every_declared_edge_is_drawn_exactly_once_with_number_guard_and_dashes(name: str) -> None:
    graph = Graph.load(name)
    assert drawing_of(graph).lines() == declared_lines(graph)
    assert mermaid_lines(text_of(graph, ".mmd")) == declared_lines(graph, mermaid_name)


def test_what_is_declared_is_told() -> None:
    drawn = drawing_of(FIT.set("clip", max_norm=0.5))
    assert words_of(drawn.caption)[:2] == ["fit", "numbers: the order in which the edges of a node are tried"]
    assert drawn.bodies == {"validate": INSIDE}
    assert drawn.words("decide") == ["decide", "choice"] and drawn.words("clip") == ["clip", "max_norm = 0.5"]
    assert drawn.words("checkpoint") == ["checkpoint", 'every = ["1 epochs", "10 minutes"]', "keep = 2"]
    assert drawn.words("step") == ["step"], "there is one optimizer"
    assert "reads window from accumulate.window" in drawn.nodes["train_batch"]["tooltip"]
    tooltips = {edge["label"].strip(): edge["tooltip"] for _, _, edge in drawn.edges}
    assert tooltips["1 data_exhausted"] == "data_exhausted = next_batch.exhausted"
    assert tooltips["6 finished"] == f"finished = {FIT.guards['finished']}"
    several = drawing_of(Graph.load("gan"))
    assert several.words("train_batch")[1:] == ["only_own = true", "critic_loss"]
    assert "optimizer critic_optimizer" in several.caption


def test_many_and_long_parameters_are_shortened() -> None:
    long = Node("a", "mine", {"text": "x" * 500, "table": {"k": list(range(999))}, "three": 3, "four": 4, "five": True})
    drawn = drawing_of(line_of(long))
    title, use, text, *_, rest = drawn.words("a")
    assert (title, use, rest) == ("a", "mine", "and 2 more") and text.startswith('text = "xxx') and text.endswith("...")
    assert max(map(len, drawn.words("a"))) <= 36 and len(drawn.nodes["a"]["tooltip"]) <= 400
    four = drawing_of(line_of(Node("a", "a", dict.fromkeys("bcde", 1))))
    assert four.words("a")[1:] == ["b = 1", "c = 1", "d = 1", "e = 1"], "a line that says `1 more` could be that one"


def test_a_hub_to_which_three_return_is_named_where_they_end() -> None:
    edges = {"a": (Edge("b"),), "b": (Edge("c", "x"), Edge("d", "y"), Edge("e", "z"), Edge("end"))}
    edges |= {"c": (Edge("b"),), "d": (Edge("end"),), "e": (Edge("b"),)}
    graph = Graph("g", "a", {name: Node(name, "choice") for name in edges}, edges)
    assert not any("+to" in name for name in drawing_of(graph).nodes), "two arrows are easier to follow"
    three = drawing_of(replace(graph, edges={**edges, "d": (Edge("b"),)}))
    assert {source for source, target, _ in three.edges if "+to" in target} == {*"cde"}, "a comes before b"
    assert {tuple(three.words(name)) for name in three.nodes if "+to" in name} == {("\N{UPWARDS ARROW} b",)}


def test_heat_and_position() -> None:
    plain, heated = drawing_of(FIT).nodes, drawing_of(FIT, counts={"decide": 999, "step": 30, "gone": 5})
    hot, warm, cold = (heated.nodes[name] for name in ("decide", "step", "clip"))
    assert hot["fillcolor"] != warm["fillcolor"] != cold["fillcolor"] and hot["class"] == "choice heat10"
    assert float(hot["penwidth"]) > float(warm["penwidth"]) > float(cold["penwidth"])
    assert re.search(r"heat[456]$", warm["class"]), "logarithmic"
    assert (heated.words("decide")[-1], heated.words("clip")[-1]) == ("999 runs", "0 runs")
    assert "how often a node ran" in heated.caption and "latest" not in heated.caption
    inside = drawing_of(FIT, counts={"validate": 17, "validate/eval_batch": 1}).caption
    assert "how often a node ran, in a body at its latest visit" in inside
    for path in ("step", "validate/next_batch"):
        marked = drawing_of(FIT, position=path).nodes
        assert {name for name in plain if plain[name] != marked[name]} == {path}
        assert float(marked[path]["penwidth"]) >= 3 * float(plain[path]["penwidth"])
    assert "100 runs" in text_of(FIT, ".mmd", counts={"decide": 100, "step": 1}, position="validate/next_batch")
    assert drawing_of(FIT).bodies and not heated.bodies, "a body that never ran is one box"


def test_graphs_with_problems_are_drawn() -> None:
    assert {*drawing_of(Graph("nothing", "a", {}, {})).nodes} == {"+start", "a"}
    dangling = drawing_of(Graph("dangling", "end", {"a": Node("a", "step")}, {"b": (Edge("c", "unknown"),)}))
    assert [dangling.words(name) for name in "abc"] == [["a", "step"], ["b", "not declared"], ["c", "not declared"]]
    assert [edge["tooltip"] for _, _, edge in dangling.edges if "unknown" in edge["label"]] == ["unknown"]


def test_names_that_look_like_paths_marks_and_words_of_the_language_are_distinct() -> None:
    names = ["a/b", "+end", "", "a+2Fb", "graph", "subgraph", "end_", "style", "class", "a b", "a_b", "click", "x", "o"]
    body = line_of(Node("b", "step"))
    graph = line_of(Node("a", "nested", body=body), *(Node(name, "step") for name in names))
    assert len(drawing_of(graph).nodes) == len(names) + 2 + 3, "two marks outside, `b` and two marks inside"
    identifiers = re.findall(r"^ +(n\w+)\[.*step", text_of(graph, ".mmd"), re.M)
    assert len(identifiers) == len({*identifiers}) == len(names) + 1


# ---- how it is laid out


def with_bodies_in_bodies(fit: Graph) -> Graph:
    inner = line_of(Node("sub", "nested", body=Graph.load("evaluate")))
    return fit.insert("folds", graph=inner, after="validate").insert("warm_up", graph="evaluate", after="begin_epoch")


def with_twenty_more(fit: Graph) -> Graph:
    for number in range(10):
        name, due = f"side_{number}", f"due_{number}"
        fit = fit.insert(name, "choice").guard(due, "step.steps > 3")
        fit = (
            fit.connect("decide", name, when=due).connect(name, "decide").insert(f"c_{number}", "choice", after="step")
        )
    return fit


def in_a_body(fit: Graph) -> Graph:
    return line_of(Node("fold", "nested", body=fit.insert("warm_up", graph="evaluate", after="begin_epoch")))


def with_unreachable_nodes(fit: Graph) -> Graph:
    return fit.insert("lost", "choice").insert("more", "choice").connect("lost", "more").connect("more", "finish")


@pytest.mark.first(3)
@pytest.mark.parametrize("change", [lambda fit: fit, with_unreachable_nodes, with_bodies_in_bodies, with_twenty_more,
                                    in_a_body])  # fmt: skip
def test_the_start_is_on_top_and_texts_keep_off_frames(change: Callable[[Graph], Graph]) -> None:
    for shown in (change(FIT), FIT.diff(change(FIT))):
        assert all(node["label"] or node["class"] == "mark" for node in drawing_of(shown).nodes.values())
        layout = layout_of(shown)
        for key, (_, y) in layout.nodes.items():
            level = key
            while level:  # the start of its own graph, and of each one around that
                level = level.rpartition("/")[0]
                start = f"{level}/+start" if level else "+start"
                assert y <= layout.nodes[start][1], f"{key} is drawn above {start}"
        for words, area in layout.labels:
            for name, frame in layout.frames.items():
                assert area.is_apart_from(frame), f"{words} lies on the frame of {name}"


@pytest.mark.first(1)
@pytest.mark.parametrize("graph", [FIT, line_of(Node("fold", "nested", body=FIT))], ids=["alone", "nested"])
def test_the_main_line_is_drawn_straight_and_downwards(graph: Graph) -> None:
    prefix = "fold/" if "fold" in graph.nodes else ""
    names = ["decide", "next_batch", "train_batch", "accumulate", "exchange", "clip", "step", "zero_grad"]
    line = [layout_of(graph).nodes[prefix + name] for name in names]
    assert max(x for x, _ in line) - min(x for x, _ in line) < 2  # points
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)


# ---- by a stranger who means harm: every way out of the places that hold text in DOT, HTML-like labels, SVG, Mermaid

ATTACKS = (
    'quote" ] evil [label="x',
    "<b>bold</b><script>alert(1)</script>",
    "]]></style><img src=x onerror=alert(1)>",
    "line\nbreak\r\n  n_evil --> n_victim",
    "back\\slash \\N \\G \\",
    '`%%{init: {"theme": "dark"}}%%` #quot; &lt; ; */ {{x}}',
    "control\x00\x07\x1b[31m \u202e reversed \ud800 end",
    "a:b:nw",
)
# All that a Mermaid file may have, line by line, with no quote and no bracket inside a text.
TEXT = r'"[^"<>\\`%\[\]{}]*(?:<br/>[^"<>\\`%\[\]{}]*)*"'
GRAMMAR = [
    *(r"---", rf"title: {TEXT}", r"flowchart TB", r" +end", rf" +subgraph n\w+\[{TEXT}\]", rf" +n\w+\[{TEXT}\]"),
    *(rf"  n\w+ (?:-\. {TEXT} \.->|-- {TEXT} -->|-->) n\w+", r" +style n\w+ [\w:#,]+"),
]


def hostile(text: str) -> Graph:
    """A graph with `text` at every place that holds text."""
    body = Graph(text, text, {text: Node(text, text)}, {text: (Edge("end", text),)}, {text: text})
    return Graph(
        name=text,
        start=text,
        nodes={
            text: Node(text, text, {text: text, "every": [text, text]}, {text: text}, {text: text}),
            "victim": Node("victim", "step", {"value": {text: [text]}}),
            text + "2": Node(text + "2", "nested", {text: text}, body=body),
        },
        edges={
            text: (Edge("victim", text), Edge(text + "2", "known"), Edge("victim")),
            "victim": (Edge(text, text), Edge("end")),
            text + "2": (Edge(text),),
        },
        guards={text: text, "known": text},
    )


@pytest.mark.first(2)
@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_no_text_breaks_out(text: str) -> None:
    drawn, plain = drawing_of(hostile(text)), drawing_of(hostile("plain"))
    assert (len(drawn.nodes), len(drawn.edges), len(drawn.bodies)) == (len(plain.nodes), 9, 1)
    mermaid = text_of(hostile(text), ".mmd")
    for line in mermaid.splitlines():
        assert any(re.fullmatch(pattern, line) for pattern in GRAMMAR), line
    assert sum(mermaid_lines(mermaid).values()) == 9
    root = element_of(hostile(text))
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "style", "g", "title", "a", "text", "path", "polygon", "polyline", "ellipse"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not any(name.startswith("on") or name.endswith("href") for name in attributes)
    assert classes_of(root)["edge"] == 9 and "victim" in words_in(root)
    for difference in (FIT.diff(hostile(text)), hostile(text).diff(FIT)):
        assert words_of(drawing_of(difference).caption) and "<script" not in difference._repr_svg_()
        text_of(difference, ".mmd")


# ---- SVG, and what draws itself


def element_of(drawable: Any) -> ElementTree.Element:
    return ElementTree.fromstring(drawable._repr_svg_())  # noqa: S314  # written by Graphviz a moment ago


def words_in(element: ElementTree.Element) -> str:
    return "".join(element.itertext()).replace("\xa0", " ")


def classes_of(root: ElementTree.Element) -> Counter[str]:
    return Counter(group.get("class", "").split(" ")[0] for group in root.iter(f"{SVG}g"))


@pytest.mark.parametrize("name", ["fit", "evaluate"])
def test_an_svg_is_a_drawing_for_light_and_dark(name: str, tmp_path: Path) -> None:
    graph = Graph.load(name)
    text = graph.render(tmp_path / "graph.svg").read_text()
    for root in (ElementTree.fromstring(text), element_of(graph)):  # noqa: S314
        assert (root.tag, root.get("class"), root[0].tag) == (f"{SVG}svg", "graphtrain", f"{SVG}style")
        drawn = drawing_of(graph)
        numbers = classes_of(root)
        assert numbers["node"] == len(drawn.nodes) and numbers["cluster"] == len(drawn.bodies)
        assert numbers["edge"] == sum(drawn.lines().values()) and {*graph.nodes} <= {*re.split(r"\s+", words_in(root))}
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    rules = [line.strip() for line in style.splitlines() if "{" in line and "@media" not in line]
    assert rules and all(rule.startswith("svg.graphtrain ") for rule in rules), "it styles nothing outside"
    assert "@media (prefers-color-scheme: dark)" in style and style.count("{") == style.count("}")


def contrast(first: str, second: str) -> float:
    """The contrast ratio of WCAG 2: 4.5 is what it asks for text, 3 for lines."""

    def luminance(colour: str) -> float:
        channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_and_families_are_told_apart_without_colour() -> None:
    heat = {name: 2**number for number, name in enumerate(FIT.nodes)}
    for drawn in (drawing_of(FIT), drawing_of(FIT, counts=heat), drawing_of(FIT.diff(FIT.set("clip", max_norm=1.0)))):
        for node in drawn.nodes.values():
            if node["class"] not in ("mark", "return"):
                assert contrast(node["fillcolor"], node["fontcolor"]) >= 4.5
    shapes = {node["class"]: node["shape"] for node in drawing_of(FIT).nodes.values() if node["class"] != "mark"}
    assert len({*shapes.values()}) == len(shapes) >= 8
    both = line_of(Node("a", "train_batch"), Node("b", "eval_batch"), Node("c", "anything_else"))
    train, evaluate, other = (drawing_of(both).nodes[name]["class"] for name in "abc")
    assert train == evaluate != other == "other"


def test_what_draws_itself_is_left_out_where_it_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no_such_guard" in words_in(
        element_of(Graph("lost", "nowhere", {"a": Node("a", "x")}, {"a": (Edge("b", "no_such_guard"),)}))
    )
    formatters = pytest.importorskip("IPython.core.formatters").DisplayFormatter()
    assert {*formatters.format(FIT)[0]} == {"image/svg+xml", "text/plain"}
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setenv("PATH", "")
    assert FIT._repr_svg_() is None and {*formatters.format(FIT)[0]} == {"text/plain"}


# ---- files

MAGIC = {".svg": b"<?xml", ".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-", ".dot": b"digraph", ".mmd": b"---"}


@pytest.mark.first(1)
@pytest.mark.parametrize("suffix", MAGIC)
@pytest.mark.parametrize("has_dot", [False, True])
def test_a_graph_and_a_difference_render_themselves(
    suffix: str, has_dot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a system `dot`, or else by pygraphviz."""
    if not has_dot:
        monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / f"own{suffix}"
    for drawable in (FIT, FIT.diff(FIT.set("clip", max_norm=1.0))):
        assert drawable.render(path) == path and path.read_bytes().startswith(MAGIC[suffix])


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("program", "fragment"),
    [
        ("sys.stdout.write(repr(sys.argv[1:]))", ""),
        ("sys.exit('Format: \"png\" not recognized')", "not recognized"),
        ("pass", "could not be drawn as png"),
    ],
)
def test_a_system_dot_is_preferred_and_replaced_if_it_cannot(
    program: str, fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dot = tmp_path / "dot"
    dot.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\n{program}\n")
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    drawn = FIT.render(tmp_path / "a.png").read_bytes()
    assert drawn == b"['-Tpng']" if not fragment else drawn.startswith(MAGIC[".png"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no_python"))
    if fragment:
        with pytest.raises(GraphtrainError, match=fragment) as caught:
            FIT.render(tmp_path / "b.png")
        assert "no_python" in str(caught.value) and "pygraphviz" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("fit.jpeg", ".svg, .png, .pdf, .dot, .mmd"),
        ("fit", ".svg, .png"),
        ("fit.toml", "graph.save"),
        ("missing/fit.dot", "cannot be written"),
        ("folder.dot", "cannot be written"),
    ],
)
def test_a_file_that_cannot_be_made(name: str, fragment: str, tmp_path: Path) -> None:
    (tmp_path / "folder.dot").mkdir()
    with pytest.raises(UsageError, match=re.escape(fragment)):
        FIT.render(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.dot"]


# ---- two graphs in one picture: everything of both is drawn, once, and what differs looks so in three ways

EDITED = (
    FIT.insert("pause", "choice", after="step")
    .remove("log", to="decide")
    .set("accumulate", every=4)
    .set("validate/next_batch", limit=5)
    .guard("window_cut", "finish.due")
    .connect("decide", "pause", when="finished")
)


def bare(lines: Counter[Any]) -> Counter[Any]:
    """Without numbers and marks, which are those of two graphs."""
    return Counter(
        (source, target, *re.findall(r"[a-z]\w+", label)[:1]) for source, target, label, _ in lines.elements()
    )


def test_everything_of_both_graphs_is_drawn() -> None:
    drawn = drawing_of(FIT.diff(EDITED))
    assert bare(drawn.lines("removed")) == bare(declared_lines(EDITED))
    assert bare(drawn.lines("added")) == bare(declared_lines(FIT))
    marks = {name: node["class"] for name, node in drawn.nodes.items() if node["class"] not in ("mark", "return")}
    assert {name: mark for name, mark in marks.items() if mark != "same"} == {
        "pause": "added",
        "log": "removed",
        "accumulate": "changed",
        "validate/next_batch": "changed",
    }
    same = drawing_of(FIT.diff(FIT))
    assert {node["class"] for node in same.nodes.values()} == {"mark", "return", "same"}
    assert words_of(same.caption)[1].startswith("no difference")


def test_a_mark_is_colour_line_and_sign() -> None:
    """So that nobody has to distinguish colours."""
    drawn = drawing_of(FIT.diff(EDITED))
    looks, colours = set(), set()
    for sign, name in (("+ ", "pause"), ("\N{MINUS SIGN} ", "log"), ("~ ", "accumulate")):
        node = drawn.nodes[name]
        assert drawn.words(name)[0].startswith(sign)
        looks.add((node["style"], node["penwidth"], node["peripheries"]))
        colours.add(node["color"])
        assert {edge["color"] for _, _, edge in drawn.edges if edge["class"] == node["class"]} <= {node["color"]}
    assert len(looks) == len(colours) == 3
    assert {edge["style"] for _, _, edge in drawn.edges if edge["class"] == "removed"} == {"dotted"}
    text = text_of(FIT.diff(EDITED), ".mmd")
    assert "+ pause" in text and "\N{MINUS SIGN} log" in text
    numbers = {int(number) for number in re.findall(r"linkStyle (\d+) ", text)}
    arrows = [line for line in text.splitlines() if re.search(r"-->|\.->", line)]
    assert {number for number, line in enumerate(arrows) if re.search(r'"[+~\N{MINUS SIGN}]', line)} == numbers


def test_another_order_guard_or_start_is_seen() -> None:
    edges = FIT.edges["decide"]
    other = replace(FIT, edges={**FIT.edges, "decide": (edges[1], edges[0], *edges[2:])}, start="begin_epoch")
    drawn = drawing_of(FIT.diff(other))
    changed = {target: edge["label"].strip() for _, target, edge in drawn.edges if edge["class"] == "changed"}
    assert changed == {"end_epoch": "~ 1 epoch_done (was 2)", "log": "~ 2 log_due (was 1)"}

    def starts(difference: Any, of: str) -> dict[str, str]:
        return {target: edge["class"] for source, target, edge in drawing_of(difference).edges if source == of}

    assert starts(FIT.diff(other), "+start") == {"decide": "removed", "begin_epoch": "added"}
    inner = replace(Graph.load("evaluate"), start="next_batch")
    assert starts(FIT.diff(FIT.set("validate", graph=inner)), "validate/+start") == {
        "validate/begin_evaluation": "removed",
        "validate/next_batch": "added",
    }
    guarded = drawing_of(FIT.diff(FIT.guard("log_due", "log.due and step.steps > 3")))
    assert [edge["label"].strip() for *_, edge in guarded.edges if edge["class"] == "changed"] == ["~ 1 log_due"]
    above = drawing_of(FIT.diff(FIT.clock("tokens", "next_batch.samples").guard("window_cut", "finish.due"))).caption
    expected = ["~ guard window_cut next_batch.last or ending -> finish.due", "+ unit tokens added"]
    assert words_of(above)[2:4] == expected
