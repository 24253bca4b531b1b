"""Promise 2: overlays are named lists of edits, applied in the order given; which of them do not compose is said."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, GraphError, UsageError, node
from tests.graph.corpus import FIT, tiny
from tests.shipped import OVERLAYS

CHOICE = ('insert = "x"', 'use = "choice"')
ROUNDS = tiny({"fit": FIT, "decide": "choice"}, "fit decide; decide: end if enough, fit", {"enough": "fit.runs >= 2"})


class Overlays:
    """Overlays of a test, written to a folder; each is named by its text in TOML."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, **texts: str) -> list[Path]:
        paths = [self._folder / f"{name}.toml" for name in texts]
        for path, text in zip(paths, texts.values(), strict=True):
            path.write_text(f"format = 1\n{text}\n")
        return paths

    def over(self, base: Graph, **texts: str) -> Graph:
        return base.overlay(*self.write(**texts))

    def one_by_one(self, base: Graph, **texts: str) -> Graph:
        for name, text in texts.items():
            base = self.over(base, **{name: text})
        return base

    def problems(self, **texts: str) -> str:
        with pytest.raises(GraphError) as caught:
            self.over(FIT, **texts)
        return "\n".join(str(problem) for problem in caught.value.problems)


@pytest.fixture
def overlays(tmp_path: Path) -> Overlays:
    return Overlays(tmp_path)


def edit(*lines: str) -> str:
    return "\n".join(["[[edit]]", *lines])


def way(graph: Graph, source: str, end: str) -> list[str]:
    """The nodes on the first edges from one node to another."""
    names = [source]
    while names[-1] != end:
        names.append(graph.edges[names[-1]][0].target)
    return names


def test_an_overlay_is_a_list_of_edits(overlays: Overlays) -> None:
    pause, finish = (
        edit('insert = "pause"', 'use = "choice"', 'after = "step"'),
        edit('set = "finish"', "after = '3 epochs'"),
    )
    graph = overlays.over(FIT, mine=f"{pause}\n{finish}")
    assert graph == FIT.insert("pause", "choice", after="step").set("finish", after="3 epochs")
    assert graph.name == "fit", "the name is that of the graph"
    assert "overlays mine" in str(graph) and "overlay" not in str(FIT)


def test_its_top_replaces_that_of_the_graph(overlays: Overlays) -> None:
    top = 'start = "begin_epoch"\noutputs = ["loss"]\noptional = ["scheduler"]\nallow = ["G209"]'
    graph = overlays.over(FIT, mine=top)
    assert (graph.start, graph.outputs, graph.optional) == ("begin_epoch", ("loss",), ("scheduler",))
    assert graph.allow == ("G209",)
    again = overlays.over(graph, other='allow = ["G304"]')
    assert again.allow == ("G209", "G304"), "what is intended in one layer is so in all"


def test_a_file_names_a_graph_and_overlays(overlays: Overlays, tmp_path: Path) -> None:
    overlays.write(mine=edit('set = "clip"', "max_norm = 1.0"), other=edit('set = "log"', 'every = "1 steps"'))
    whole = tmp_path / "whole.toml"
    whole.write_text(
        'format = 1\nextends = ["fit", "mine.toml", "other.toml"]\n' + edit('set = "clip"', "max_norm = 2.0")
    )
    graph = Graph.load(whole)
    assert graph.name == "whole"
    assert graph.nodes["clip"].parameters == {"max_norm": 2.0}, "its own edits come last, and may say otherwise"
    assert graph.nodes["log"].parameters == {"every": "1 steps"}


# ---- several


def put(name: str, *where: str) -> dict[str, str]:
    return {name: edit(f'insert = "{name}"', 'use = "choice"', *where)}


def test_a_guard_is_widened_in_the_order_given(overlays: Overlays) -> None:
    parts = {
        "widens": edit('guard = "ending"', 'and = "c or d"'),
        "defines": edit('guard = "ending"', 'expression = "finish.due or e"'),
    }
    for order in itertools.permutations(parts):  # what one defines, the other may widen
        graph = overlays.over(FIT, **{name: parts[name] for name in order})
        assert graph.guards["ending"] == "(finish.due or e) and (c or d)"
    graph = overlays.over(FIT, widens=parts["widens"])
    with pytest.raises(
        GraphError, match="overlay `defines`: it and `widens` do not compose: each changes guard `ending`"
    ):
        overlays.over(graph, defines=parts["defines"])


@pytest.mark.parametrize("where", ['after = "step"', 'before = "zero_grad"'])
def test_at_one_place_they_are_inserted_in_the_order_given(where: str, overlays: Overlays) -> None:
    texts = {name: put(name, where)[name] for name in "zxy"}
    graph = overlays.over(FIT, **texts)
    inserted = "yxz" if where.startswith("after") else "zxy"
    assert way(graph, "step", "zero_grad") == ["step", *inserted, "zero_grad"]
    assert overlays.one_by_one(FIT, **texts) == graph


def test_an_edit_that_waits_is_made_once_its_node_exists(overlays: Overlays) -> None:
    texts = {"eager": edit('set = "late"', "max_norm = 3.0", "if_there = true")}
    texts["late"] = put("late", 'after = "step"')["late"].replace("choice", "clip")
    for order in itertools.permutations(texts):
        ordered = {name: texts[name] for name in order}
        graph = overlays.over(FIT, **ordered)
        assert graph.nodes["late"].parameters == {"max_norm": 3.0}
        assert overlays.one_by_one(FIT, **ordered) == graph
    assert overlays.over(FIT, eager=texts["eager"]) == FIT


@pytest.mark.parametrize(
    "lines",
    [(*CHOICE, 'after = "nobody"'), (*CHOICE, 'at = "decide"', 'before = "nobody"'),
     (*CHOICE, 'between = ["step", "nobody"]'), ('set = "validate/nobody"', "limit = 1"), ('remove = "nobody"',),
     ('connect = "decide"', 'target = "nobody"', 'when = "log_due"'), ('guard = "nothing"', 'or = "log.due"'),
     ('hook = "on_test_start"', 'use = "choice"'), ('clock = "tokens"', 'field = "nobody.tokens"'),
     ('redirect = "decide"', 'old = "log"', 'new = "nobody"')],
    ids=lambda lines: lines[0],
)  # fmt: skip
def test_if_there_of_every_verb(lines: tuple[str, ...], overlays: Overlays, tmp_path: Path) -> None:
    assert overlays.over(FIT, mine=edit(*lines, "if_there = true")) == FIT
    graph = tmp_path / "graph.toml"
    graph.write_text('format = 1\nname = "fit"\nextends = "fit"\n' + edit(*lines, "if_there = true"))
    assert Graph.load(graph) == FIT


CONFLICTS = {
    "it and `{0}` do not compose: each changes guard `window_cut`": (
        edit('guard = "window_cut"', 'expression = "ending"'),
        edit('guard = "window_cut"', 'expression = "next_batch.last"'),
    ),
    "`train_batch` would become a": (edit('set = "train_batch"', 'use = "sam_batch"'),
                                     edit('set = "train_batch"', 'use = "manual_step"')),
    "it and `{0}` do not compose: each changes node `x`": (put("x", 'after = "step"')["x"],
                                                           put("x", 'after = "clip"')["x"]),
    "it and `{0}` do not compose: each changes node `clip`": (edit('replace = "clip"', 'use = "choice"'),
                                                              edit('replace = "clip"', 'use = "discard"')),
}  # fmt: skip


@pytest.mark.parametrize(("message", "texts"), CONFLICTS.items(), ids=["guard", "kind", "insert", "replace"])
def test_two_that_define_the_same_differently_are_refused(
    message: str, texts: tuple[str, str], overlays: Overlays
) -> None:
    one, two = texts
    for pair in ({"one": one, "two": two}, {"two": two, "one": one}):
        said = f"overlay `{{1}}`: {message}".format(*pair)
        assert said in overlays.problems(**pair)
    with pytest.raises(GraphError, match="overlay `two`"):
        overlays.over(overlays.over(FIT, one=one), two=two)
    assert overlays.over(FIT, one=one, other=one) == overlays.over(FIT, one=one) != FIT, "the same edit is made once"


def test_a_kind_that_was_chosen_is_not_replaced(overlays: Overlays) -> None:
    @node
    def train_batch(model: Any, batch: Any) -> None:
        """A kind of somebody's own, with the name of another one."""

    other = edit('set = "train_batch"', 'use = "sam_batch"')
    with pytest.raises(GraphError, match="overlay `other`: `train_batch` would become a `sam_batch`, but"):
        overlays.over(FIT.set("train_batch", use=train_batch), other=other)


# ---- of a graph that nests the one they are for


def body(graph: Graph, *path: str) -> Graph:
    for name in path:
        inner = graph.nodes[name].body
        assert inner is not None
        graph = inner
    return graph


@pytest.mark.parametrize("name", [name for name in sorted(OVERLAYS) if name != "sanity"])
def test_an_overlay_is_added_to_the_nested_graph_that_has_its_nodes(name: str) -> None:
    graph = ROUNDS.overlay(name)
    assert body(graph, "fit") == FIT.overlay(name) != FIT
    assert graph.set("fit", graph=FIT) == ROUNDS, "and nothing to the graph around it"
    with pytest.raises(GraphError, match="already has the overlay"):
        graph.overlay(name)


def test_nested_graphs(tmp_path: Path) -> None:
    patient = tmp_path / "patient.toml"
    patient.write_text('format = 1\n[[edit]]\nset = "early_stop"\npatience = 7\n')
    graph = ROUNDS.set("fit", graph=ROUNDS).overlay("early_stop", patient, "carry")
    assert body(graph, "fit", "fit") == FIT.overlay("early_stop", patient, "carry")
    sanity = ROUNDS.overlay("sanity")  # it needs only the node `decide`, which both have
    assert "sanity" in sanity.nodes and body(sanity, "fit") == FIT
    two = ROUNDS.nest("second", FIT).redirect("fit", "decide", "second").connect("second", "decide")
    with pytest.raises(GraphError, match=r"overlay `ema` fits several nested graphs: `fit`, `second`"):
        two.overlay("ema")
    with pytest.raises(GraphError, match="overlay `carry`: it and `drop` do not compose"):
        ROUNDS.set("fit", graph=FIT.overlay("drop")).overlay("carry")
    with pytest.raises(GraphError, match="the graph already has the overlay `ema`"):
        ROUNDS.set("fit", graph=FIT.overlay("ema")).overlay("ema")


# ---- problems


def test_every_slip_is_reported(overlays: Overlays) -> None:
    text = "\n".join([
        edit('insert = "pause"', 'use = "choice"', 'after = "stpe"'), edit('set = "pause"', "writes = {}"),
        edit('connect = "pause"', 'target = "decide"'), edit('set = "lgo"', 'every = "never"'),
        edit('guard = "endings"', 'or = "1 > 0"'),
    ])  # fmt: skip
    problems = overlays.problems(mine=text)
    assert "mine.toml:2: error G005: overlay `mine`: insert: after: there is no node `stpe`" in problems
    assert "did you mean `step`?" in problems
    assert problems.count("G005") == 5 and "`lgo`" in problems and "no guard `endings` to widen" in problems


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("[]", "G003: extends: expected a graph, then overlays, by name or path; got []"),
        ('["fit", 3]', 'G003: extends: expected a graph, then overlays, by name or path; got ["fit", 3]'),
        ('["fit", "carry", "carry"]', "G005: the graph already has the overlay `carry`"),
        ('["fit", "cary"]', "G004: extends: there is no overlay `cary`\n    did you mean `carry`?"),
        ('["fit", "evaluate"]', "`evaluate` is a graph, which comes before the overlays"),
        ('["carry"]', "`carry` is an overlay: name it after a graph"),
        ('["fit", "whole.toml"]', "graphs that extend or contain each other in a cycle"),
        ('["fit", "base.toml"]', "G004: extends: `base.toml` is a graph, not an overlay: it has `extends`"),
        ('["fit", "mine.toml", "mine.toml"]', "the graph already has the overlay `mine`"),
        ('["base.toml", "carry"]', "the graph already has the overlay `carry`"),
        ('["mine.toml"]', "G003: this is an overlay, a list of edits: it has no base"),
    ],
)
def test_bad_lists(extends: str, message: str, overlays: Overlays, tmp_path: Path) -> None:
    overlays.write(mine=edit('set = "clip"', "max_norm = 1.0"), base='extends = ["fit", "carry"]')
    whole = tmp_path / "whole.toml"
    whole.write_text(f"format = 1\nextends = {extends}\n")
    with pytest.raises(GraphError) as caught:
        Graph.load(whole)
    assert message in str(caught.value)
    assert "whole.toml:2: " in str(caught.value) or "mine.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nodes]\nx = {}", "is a graph, not an overlay: it has [nodes]"),
        ('extends = "fit"', "is a graph, not an overlay: it has `extends`"),
        ("[guards]\nx = '1 > 0'", "a file of edits changes a graph with [[edit]] tables"),
        ("edit = 3", "edit: expected tables written as [[edit]]"),
        ("start = 3", "start: expected a string, got 3"),
        (edit('insert = "x"', "if_there = 3"), "if_there: expected true or false, got 3"),
        (edit(*CHOICE, 'at = "decide"'), "insert: `at` takes `before` or `after`"),
        (edit(*CHOICE, 'at = "decide"', 'before = "clip"'), "there is no edge from `decide` to `clip`"),
        ("][", "TOML: "),
    ],
)
def test_bad_overlays(text: str, message: str, overlays: Overlays) -> None:
    (path,) = overlays.write(mine=text)
    with pytest.raises((GraphError, UsageError)) as caught:
        FIT.overlay(path)
    assert message in str(caught.value)
    assert "mine" in str(caught.value), "the file is named"


def test_an_overlay_must_be_there() -> None:
    for name, message in (
        ("early_stopp", "there is no overlay `early_stopp`"),
        ("nothing/here.toml", "there is no overlay"),
    ):
        with pytest.raises(UsageError, match=message):
            FIT.overlay(name)


def test_a_dry_run_leaves_what_a_node_is_idle_without() -> None:
    @node(optional="strength")
    class Damp:
        """Idle without `strength`."""

        strength: float = 1.0

        def setup(self, model: Any) -> None: ...
        def __call__(self) -> None: ...

    graph = FIT.insert("damp", Damp, after="step").overlay("rollback").dry_run()
    assert "strength" not in graph.nodes["damp"].parameters
    assert graph.nodes["rollback"].parameters["deviations"] == float("inf"), "there is nothing to return to"
