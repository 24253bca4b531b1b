"""Overlays: what several of them make of one graph, in whatever order, and which of them do not compose."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, GraphError, UsageError, node
from graphtrain.errors import EditError
from graphtrain.graph.canonical import saved_json
from graphtrain.graph.layers import Layers
from graphtrain.graph.read_toml import read_graph
from graphtrain.graph.registry import known_graphs, known_overlays

FIT = Graph.load("fit")
CHOICE = ('insert = "x"', 'use = "choice"')


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

    def problems(self, **texts: str) -> str:
        with pytest.raises(GraphError) as caught:
            self.over(FIT, **texts)
        return "\n".join(str(problem) for problem in caught.value.problems)


@pytest.fixture
def overlays(tmp_path: Path) -> Overlays:
    return Overlays(tmp_path)


def edit(*lines: str) -> str:
    return "\n".join(["[[edit]]", *lines])


def leaving(graph: Graph, source: str) -> list[str]:
    return [str(edge) for edge in graph.edges[source]]


def way(graph: Graph, source: str, end: str) -> list[str]:
    """The nodes on the first edges from one node to another."""
    names = [source]
    while names[-1] != end:
        names.append(graph.edges[names[-1]][0].target)
    return names


# ---- one overlay


def test_an_overlay_is_a_list_of_edits(overlays: Overlays) -> None:
    text = (
        edit('insert = "pause"', 'use = "choice"', 'after = "step"')
        + "\n"
        + edit('set = "finish"', "after = '3 epochs'")
    )
    expected = FIT.insert("pause", "choice", after="step").set("finish", after="3 epochs")
    graph = overlays.over(FIT, mine=text)
    assert graph == expected
    assert graph.name == "fit", "the name is that of the graph"
    assert graph.layers.names == ("mine",)
    assert graph.layers.overlay_of("node `pause`") == "mine"
    assert graph.layers.overlay_of("node `step`") == ""


def test_its_top_replaces_that_of_the_graph(overlays: Overlays) -> None:
    graph = overlays.over(
        FIT, mine='start = "begin_epoch"\noutputs = ["loss"]\noptional = ["scheduler"]\nallow = ["G209"]'
    )
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
    (tmp_path / "outer.toml").write_text('format = 1\nextends = "whole.toml"')
    assert [read_graph(Graph, path).base for path in (whole, tmp_path / "outer.toml")] == [FIT, graph]
    assert graph.layers.names == ("mine", "other")


# ---- guards that are widened


PARTS = {
    "a": edit('guard = "ending"', 'or = "a.stop"'),
    "b": edit('guard = "ending"', 'or = "b.stop and next_batch.epochs >= 3"'),
    "c": edit('guard = "ending"', 'and = "step.steps > 9 or c.done"'),
    "d": edit('guard = "ending"', 'expression = "finish.due and d"'),
}


def test_a_guard_is_widened() -> None:
    graph = FIT.guard("ending", or_="a.stop").guard("ending", and_="b").guard("ending", or_="c")
    assert graph.guards["ending"] == "(finish.due or a.stop or c) and b"
    assert graph.guard("ending", or_="c").guards == graph.guards, "what it asks already is not added"
    assert graph.guard("ending", "finish.due").guard("ending", or_="d").guards["ending"] == "finish.due or d"
    assert FIT.guard("new", "a", or_="b", and_="c or d").guards["new"] == "(a or b) and (c or d)"


@pytest.mark.parametrize("order", list(itertools.permutations(PARTS)), ids="".join)
def test_in_any_order_it_is_every_or_and_every_and(order: tuple[str, ...], overlays: Overlays) -> None:
    graph = overlays.over(FIT, **{name: PARTS[name] for name in order})
    ors = [{"a": "a.stop", "b": "b.stop and next_batch.epochs >= 3"}[name] for name in order if name in "ab"]
    assert graph.guards["ending"] == f"(finish.due and d or {' or '.join(ors)}) and (step.steps > 9 or c.done)"
    one_by_one = FIT
    for name in order:
        one_by_one = overlays.over(one_by_one, **{name: PARTS[name]})
    assert one_by_one == graph
    assert one_by_one.layers == graph.layers


def test_widening_needs_a_guard(overlays: Overlays) -> None:
    assert overlays.problems(mine=edit('guard = "endings"', 'or = "1 > 0"')).endswith(
        "mine.toml:2: error G005: overlay `mine`: guard: there is no guard `endings` to widen\n"
        "    did you mean `ending`?"
    )
    assert "one of `expression`, `or` and `and` is missing" in overlays.problems(mine=edit('guard = "ending"'))
    assert "or: expected a string, got 3" in overlays.problems(mine=edit('guard = "ending"', "or = 3"))


# ---- places


def test_a_periodic_node_is_one_edit(overlays: Overlays) -> None:
    graph = overlays.over(FIT, mine=edit('insert = "swa"', 'use = "log"', 'at = "decide"', 'before = "checkpoint"'))
    assert graph == FIT.insert("swa", "log", at="decide", before="checkpoint")
    position = leaving(graph, "decide").index("checkpoint if checkpoint_due")
    assert leaving(graph, "decide")[position - 1] == "swa if swa_due"
    assert leaving(graph, "swa") == ["decide"]
    assert graph.guards["swa_due"] == "swa.due"
    after = FIT.guard("swa_due", "log.due").insert("swa", "log", at="decide", after="log")
    assert leaving(after, "decide")[:2] == ["log if log_due", "swa if swa_due"]
    assert after.guards["swa_due"] == "log.due", "a guard of that name stays"


def put(name: str, *where: str) -> dict[str, str]:
    return {name: edit(f'insert = "{name}"', 'use = "choice"', *where)}


AT_ONE_PLACE = {
    "after": ('after = "step"',),
    "before": ('before = "zero_grad"',),
    "between": ('between = ["step", "zero_grad"]',),
}


@pytest.mark.parametrize("order", ["xyz", "zxy", "yzx"])
@pytest.mark.parametrize("where", AT_ONE_PLACE.values(), ids=AT_ONE_PLACE)
def test_at_one_place_they_stand_in_the_order_in_which_they_are_named(
    where: tuple[str, ...], order: str, overlays: Overlays
) -> None:
    texts = {name: put(name, *where)[name] for name in order}
    expected = ["step", *order, "zero_grad"]
    assert way(overlays.over(FIT, **texts), "step", "zero_grad") == expected
    graph = FIT
    for name, text in texts.items():
        graph = overlays.over(graph, **{name: text})
    assert way(graph, "step", "zero_grad") == expected


@pytest.mark.parametrize("neighbour", ['before = "checkpoint"', 'after = "schedule"'])
@pytest.mark.parametrize("order", ["xyz", "zyx"])
def test_so_do_periodic_nodes_and_edges(neighbour: str, order: str, overlays: Overlays) -> None:
    graph = overlays.over(FIT, **{name: put(name, 'at = "decide"', neighbour)[name] for name in order})
    targets = [edge.target for edge in graph.edges["decide"]]
    start = targets.index("schedule") + 1
    assert targets[start : start + 4] == [*order, "checkpoint"]


@pytest.mark.parametrize("order", ["xyz", "zyx"])
@pytest.mark.parametrize(
    ("where", "before"),
    [
        ("first = true", "log"),
        ('before = "log"', "log"),
        ('after = "log"', "end_epoch"),
        ("first = false", "next_batch"),
    ],
)
def test_so_do_edges(where: str, before: str, order: str, overlays: Overlays) -> None:
    targets = [
        edge.target for edge in overlays.over(FIT, **{name: led_to(name, where) for name in order}).edges["decide"]
    ]
    end = targets.index(before)
    assert targets[end - 3 : end] == list(order)


def led_to(name: str, where: str) -> str:
    there = edit('connect = "decide"', f'target = "{name}"', 'when = "log_due"', where)
    return "\n".join([put(name)[name], there, edit(f'connect = "{name}"', 'target = "decide"')])


def test_an_edge_is_the_first_one_where_the_one_before_is_gone(overlays: Overlays) -> None:
    graph = overlays.over(FIT, one=led_to("x", "first = true")).disconnect("decide", "x")
    assert overlays.over(graph, two=led_to("y", "first = true")).edges["decide"][0].target == "y"


def test_what_one_overlay_puts_at_a_place_stays_together(overlays: Overlays) -> None:
    both = (
        put("x", 'after = "step"')["x"] + "\n" + put("w", 'after = "x"')["w"] + "\n" + put("v", 'after = "step"')["v"]
    )
    graph = overlays.over(FIT, one=both, **put("y", 'after = "step"'), **put("z", 'between = ["step", "zero_grad"]'))
    assert way(graph, "step", "zero_grad") == ["step", "v", "x", "w", "y", "z", "zero_grad"]


@pytest.mark.parametrize("order", list(itertools.permutations(("after", "before", "between"))), ids="-".join)
def test_different_places_between_two_nodes_compose(order: tuple[str, ...], overlays: Overlays) -> None:
    texts = {name: put(name, *AT_ONE_PLACE[name])[name] for name in order}
    graph = overlays.over(FIT, **texts)
    assert sorted(way(graph, "step", "zero_grad")) == sorted(["step", *order, "zero_grad"])


# ---- edits that are left out


def test_if_there_is_decided_after_all_overlays(overlays: Overlays) -> None:
    texts = {"eager": edit('set = "late"', "max_norm = 3.0", "if_there = true"), **put("late", 'after = "step"')}
    texts["late"] = texts["late"].replace("choice", "clip")
    for order in (("eager", "late"), ("late", "eager")):
        graph = overlays.over(FIT, **{name: texts[name] for name in order})
        assert graph.nodes["late"].parameters == {"max_norm": 3.0}
        graph = FIT
        for name in order:
            graph = overlays.over(graph, **{name: texts[name]})
        assert graph.nodes["late"].parameters == {"max_norm": 3.0}
    assert overlays.over(FIT, eager=texts["eager"]) == FIT


def test_if_there_of_what_another_takes_away(overlays: Overlays) -> None:
    texts = {"one": edit('set = "log"', 'every = "1 steps"', "if_there = true"), "two": edit('remove = "log"')}
    for order in (("one", "two"), ("two", "one")):
        assert "log" not in overlays.over(FIT, **{name: texts[name] for name in order}).nodes


@pytest.mark.parametrize(
    "lines",
    [
        (*CHOICE, 'after = "nobody"'),
        (*CHOICE, 'at = "decide"', 'before = "nobody"'),
        (*CHOICE, 'between = ["step", "nobody"]'),
        ('set = "validate/nobody"', "limit = 1"),
        ('set = "step/next_batch"', "limit = 1"),
        ('connect = "decide"', 'target = "nobody"', 'when = "log_due"'),
        ('guard = "nothing"', 'or = "log.due"'),
        ('clock = "tokens"', 'field = "nobody.tokens"'),
        ('remove = "nobody"',),
        ('redirect = "decide"', 'old = "log"', 'new = "nobody"'),
    ],
)
def test_if_there_of_every_verb(lines: tuple[str, ...], overlays: Overlays, tmp_path: Path) -> None:
    assert overlays.over(FIT, mine=edit(*lines, "if_there = true")) == FIT
    graph = tmp_path / "graph.toml"
    graph.write_text('format = 1\nname = "fit"\nextends = "fit"\n' + edit(*lines, "if_there = true"))
    assert Graph.load(graph) == FIT


@pytest.mark.parametrize(("name", "kind"), [("lbfgs", "closure_step"), ("manual", "manual_step")])
@pytest.mark.parametrize("overlay", ["fp16", "token_windows"])
def test_a_graph_without_the_node_names_the_one_that_does_its_work(name: str, kind: str, overlay: str) -> None:
    with pytest.raises(GraphError) as caught:
        Graph.load(name).overlay(overlay)
    first = caught.value.problems[0]
    assert f"overlay `{overlay}`: set: there is no node `train_batch`" in first.message
    assert f"in `{name}` the node `step`, a `{kind}`, does what `train_batch` does" in first.hint
    assert first.hint.endswith(f"graphtrain nodes {kind}")


# ---- what does not compose


CONFLICTS = {
    "a guard": (
        edit('guard = "window_cut"', 'expression = "ending"'),
        edit('guard = "window_cut"', 'expression = "next_batch.last"'),
        "guard `window_cut` would be both ending and next_batch.last",
    ),
    "a parameter": (
        edit('set = "clip"', "max_norm = 1.0"),
        edit('set = "clip"', "max_norm = 2.0"),
        "`clip.max_norm` would be both 1.0 and 2.0",
    ),
    "a binding": (
        edit('set = "validate"', 'reads = { model = "a" }'),
        edit('set = "validate"', 'reads = { model = "b" }'),
        '`validate.reads.model` would be both "a" and "b"',
    ),
    "a parameter of a new node": (
        edit('insert = "x"', 'use = "clip"', 'after = "step"', "max_norm = 1.0"),
        edit('set = "x"', "max_norm = 2.0", "if_there = true"),
        "`x.max_norm` would be both 1.0 and 2.0",
    ),
    "the kind of a new node": (
        edit('insert = "x"', 'use = "clip"', 'after = "step"'),
        edit('set = "x"', 'use = "choice"', "if_there = true"),
        '`x.use` would be both "clip" and "choice"',
    ),
    "a kind that one sets": (
        edit('replace = "clip"', 'use = "choice"'),
        edit('set = "clip"', 'use = "clip_value"'),
        '`clip.use` would be both "choice" and "clip_value"',
    ),
    "a node": (put("x", 'after = "step"')["x"], put("x", 'after = "clip"')["x"], "each defines another node `x`"),
    "a kind": (
        edit('replace = "clip"', 'use = "choice"'),
        edit('replace = "clip"', 'use = "discard"'),
        "each defines another node `clip`",
    ),
    "a unit": (
        edit('clock = "tokens"', 'field = "next_batch.samples"'),
        edit('clock = "tokens"', 'field = "step.steps"'),
        "unit `tokens` would be both next_batch.samples and step.steps",
    ),
    "a start": ('start = "begin_epoch"', 'start = "log"', '`start` would be both "begin_epoch" and "log"'),
    "an edge": (
        edit('redirect = "step"', 'old = "zero_grad"', 'new = "log"'),
        edit('redirect = "step"', 'old = "zero_grad"', 'new = "validate"'),
        "the edge from `step` to `zero_grad` would be both to `log` and to `validate`",
    ),
    "an anchor": (put("x", 'after = "log"')["x"], edit('remove = "log"', 'to = "decide"'), "node `log`, which "),
    "a parameter of a node that goes": (edit('set = "log"', 'every = "1 steps"'), edit('remove = "log"'), "node `log`"),
    "an anchor by its name": (put("x", 'after = "log"')["x"], edit('rename = "log"', 'new = "report"'), "node `log`"),
    "an edge as an anchor": (
        put("x", 'between = ["step", "zero_grad"]')["x"],
        edit('redirect = "step"', 'old = "zero_grad"', 'new = "decide"'),
        "the edge from `step` to `zero_grad`, which ",
    ),
}


def with_a_kind_of_that_name() -> Graph:
    @node
    def train_batch(model: Any, batch: Any) -> None:
        """A kind of somebody's own, with the name of another one."""

    return FIT.set("train_batch", use=train_batch)


@pytest.mark.parametrize(
    ("make", "path", "kind"),
    [
        (lambda: Graph.load("maml"), "train_batch", "train_adapted"),
        (with_a_kind_of_that_name, "train_batch", "train_batch"),
        (lambda: FIT.set("validate/eval_batch", use="train_finite_batch"), "validate/eval_batch", "train_finite_batch"),
    ],
)
def test_a_kind_that_was_chosen_is_not_replaced(
    make: Callable[[], Graph], path: str, kind: str, overlays: Overlays
) -> None:
    graph = make()
    other = edit(f'set = "{path}"', 'use = "sam_batch"')
    with pytest.raises(GraphError, match=f"overlay `other`: `{path}` would become a `sam_batch`, .*, `{kind}`"):
        overlays.over(graph, other=other)
    alike = edit(f'set = "{path}"', f'use = "{kind}"')
    assert overlays.over(graph, alike=alike) == graph
    assert overlays.over(FIT, other=other) != FIT, "the kind that the node is named after is nobody's choice"


def test_a_kind_that_came_with_a_graph_of_the_same_overlay_is_replaced(overlays: Overlays) -> None:
    inserted, other = edit('insert = "x"', 'graph = "maml"'), edit('set = "x/train_batch"', 'use = "sam_batch"')
    body = overlays.over(FIT, own=f"{inserted}\n{other}").nodes["x"].body
    assert body is not None and body.nodes["train_batch"].use == "sam_batch"
    with pytest.raises(GraphError, match="overlay `other`: `x/train_batch` would become a `sam_batch`"):
        overlays.over(FIT.insert("x", graph="maml"), other=other)


def test_what_one_sets_of_a_node_stays_where_another_replaces_that(overlays: Overlays) -> None:
    texts = {
        "sets": edit('set = "clip"', "max_norm = 2.0", 'reads = { norm_type = "1 + next_batch.epoch" }'),
        "replaces": edit('replace = "clip"', 'use = "clip"', "norm_type = 1.0"),
    }
    for order in itertools.permutations(texts):
        message = overlays.problems(**{name: texts[name] for name in order})
        assert f"overlays `{order[0]}` and `{order[1]}` do not compose: `clip.norm_type` would be both" in message
    texts["replaces"] = edit('replace = "clip"', 'use = "clip"')
    graphs = [overlays.over(FIT, **{name: texts[name] for name in order}) for order in itertools.permutations(texts)]
    assert graphs[0].nodes["clip"] == graphs[1].nodes["clip"]
    assert graphs[0].nodes["clip"].parameters == {"max_norm": 2.0}  # of `fit` nothing is left
    assert graphs[0].nodes["clip"].reads == {"norm_type": "1 + next_batch.epoch"}
    texts["replaces"] = edit('replace = "clip"', 'use = "choice"')
    for order in itertools.permutations(texts):
        graph = overlays.over(FIT, **{name: texts[name] for name in order})
        assert "unknown parameter `clip.max_norm` of kind `choice`" in "".join(map(str, graph.check()))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("first", "second", "words"), CONFLICTS.values(), ids=CONFLICTS)
def test_two_that_do_not_compose_are_refused_by_both_names(
    first: str, second: str, words: str, turned: bool, overlays: Overlays
) -> None:
    texts = dict(reversed({"one": first, "two": second}.items())) if turned else {"one": first, "two": second}
    problem = overlays.problems(**texts)
    assert "do not compose" in problem and "`one`" in problem and "`two`" in problem
    if turned and " and " in words:
        words = words.split(" both ")[0]
    assert words in problem
    assert overlays.over(FIT, one=first) != FIT, "by itself each is sound"
    assert overlays.over(FIT, two=second) != FIT or "if_there" in second
    with pytest.raises(GraphError, match="do not compose"):  # one after the other, in Python
        graph = FIT
        for name, text in texts.items():
            graph = overlays.over(graph, **{name: text})


@pytest.mark.parametrize(
    "lines",
    [
        ('set = "clip"', "max_norm = 1.0"),
        (*CHOICE, 'after = "step"'),
        ('guard = "ending"', 'or = "log.due"'),
        ('guard = "window_cut"', 'expression = "ending"'),
        ('remove = "log"',),
        ('redirect = "step"', 'old = "zero_grad"', 'new = "decide"'),
        ('connect = "step"', 'target = "log"', 'when = "log_due"'),
    ],
)
def test_two_that_say_alike_compose(lines: tuple[str, ...], overlays: Overlays) -> None:
    assert overlays.over(FIT, one=edit(*lines), two=edit(*lines)) == overlays.over(FIT, one=edit(*lines))


def test_a_person_may_change_what_an_overlay_has_set(overlays: Overlays) -> None:
    graph = overlays.over(FIT, one=edit('set = "clip"', "max_norm = 1.0")).set("clip", max_norm=3.0)
    assert overlays.over(graph, two=edit('set = "log"', 'every = "9 steps"')).nodes["clip"].parameters == {
        "max_norm": 3.0
    }


# ---- bad input


def test_a_missing_anchor_names_the_overlay(overlays: Overlays) -> None:
    problem = overlays.problems(**put("mine", 'after = "stp"'))
    assert problem.endswith(
        "mine.toml:2: error G005: overlay `mine`: insert: after: there is no node `stp`\n    did you mean `step`?"
    )


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("[]", "G003: extends: expected a graph, then overlays; the list is empty"),
        ("3", "G003: extends: expected a name or a path, got 3"),
        ('["fit", 3]', 'G003: extends: expected names or paths, got ["fit", 3]'),
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
        ("edits = 3", "unknown key `edits`"),
        ("[guards]\nx = '1 > 0'", "an overlay changes its graph with [[edit]] tables"),
        ("edit = 3", "edit: expected tables written as [[edit]]"),
        ("start = 3", "start: expected a string, got 3"),
        (edit('insret = "x"'), "edit: no verb in"),
        (edit('insert = "x"', "if_there = 3"), "if_there: expected true or false, got 3"),
        (edit(*CHOICE, 'at = "decide"'), "insert: `at` takes `before` or `after`"),
        (
            edit(*CHOICE, 'at = "decide"', 'before = "clip"'),
            "there is no edge from `decide` to `clip`",
        ),
        (
            edit(*CHOICE, 'at = "decide"', 'after = "next_batch"'),
            "has no guard, so none after it is tried",
        ),
        (
            edit('connect = "decide"', 'target = "log"', 'when = "log_due"', 'before = "log"', 'after = "log"'),
            "give one of",
        ),
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
    with pytest.raises(UsageError, match="there is no overlay `early_stopp`"):
        FIT.overlay("early_stopp")
    with pytest.raises(UsageError, match="it is missing"):
        FIT.overlay("nothing/here.toml")


def test_a_contained_overlay_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "outside.toml").write_text("format = 1\n")
    (tmp_path / "inside").mkdir()
    whole = tmp_path / "inside" / "whole.toml"
    whole.write_text('format = 1\nextends = ["fit", "../outside.toml"]\n')
    assert Graph.load(whole).layers.names == ("outside",)
    with pytest.raises(GraphError, match="leads out of the folder"):
        Graph.load(whole, contained=True)


# ---- what is kept beside the graph


@pytest.mark.parametrize(
    "graph", [FIT, Graph.load("kfold"), Graph.load("active_learning")], ids=lambda graph: graph.name
)
def test_the_overlays_are_kept_beside_the_graph_of_a_checkpoint(graph: Graph) -> None:
    whole = graph.overlay("early_stop", "ema")
    kept = Graph.from_json(saved_json(whole))
    assert saved_json(kept) == saved_json(whole) and kept == whole
    assert "overlay ema" in str(kept)
    layers, own = (each.nodes["fit"].body.layers if "fit" in each.nodes else each.layers for each in (kept, whole))
    assert (layers.names, layers.touched, layers.widened) == (own.names, own.touched, own.widened)
    assert layers.overlay_of("node `ema`") == "ema"


@pytest.mark.parametrize(
    "text",
    [
        "3",
        "null",
        '{"names": 3}',
        '{"names": [3], "touched": {}, "widened": {}}',
        '{"names": ["a"], "touched": {"node `step`": 3}, "widened": {}}',
        '{"names": ["a"], "touched": {}, "widened": {"ending": ["a", [3], []]}}',
    ],
)
def test_what_is_no_such_table_is_no_overlay(text: str) -> None:
    graph = Graph.from_json(f'{{"layers":{text},{saved_json(FIT)[1:]}')
    assert graph == FIT and graph.layers == Layers()


def test_a_renamed_node_is_still_of_its_overlay() -> None:
    graph = FIT.overlay("ema").rename("ema", "average")
    assert graph.layers.overlay_of("node `average`") == "ema"
    assert "overlay ema" in str(graph)


def test_what_an_overlay_would_add_is_named_where_it_is_set_without_it() -> None:
    for name, overlay in (("early_stop", "early_stop"), ("unscale", "fp16")):
        with pytest.raises(EditError) as refusal:
            Graph.load("fit").set(name, every="1 epochs")
        assert refusal.value.hint.startswith(f"the overlay `{overlay}` adds it")


def test_the_hint_of_an_overlay_that_does_not_fit_is_about_nodes() -> None:
    for name, overlay in itertools.product(known_graphs(), known_overlays()):
        try:
            Graph.load(name).overlay(overlay)
        except GraphError as refusal:
            assert not any("that is " in problem.hint for problem in refusal.problems), (name, overlay)
    with pytest.raises(GraphError, match="is for graphs with that node, such as `fit`"):
        Graph.load("manual").overlay("gradient_norm")


def test_an_overlay_that_is_refused_is_one_problem() -> None:
    with pytest.raises(GraphError) as refusal:
        Graph.load("lbfgs").overlay("fp16")
    (problem,) = refusal.value.problems
    assert "there is no node `train_batch`" in problem.message and "leave `fp16` out" in problem.hint


def test_an_edit_of_a_node_that_could_not_be_inserted_is_no_problem_of_its_own(tmp_path: Path) -> None:
    overlay = tmp_path / "slip.toml"
    overlay.write_text(
        'format = 1\n[[edit]]\ninsert = "pause"\nuse = "choice"\nafter = "stpe"\n'
        '[[edit]]\nset = "pause"\nwrites = {}\n[[edit]]\nset = "lgo"\nevery = "never"\n'
    )
    with pytest.raises(GraphError) as refusal:
        Graph.load("fit").overlay(overlay)
    assert [problem.message.split("no node ")[1] for problem in refusal.value.problems] == ["`stpe`", "`lgo`"]


def test_an_overlay_that_names_three_ends_of_an_edge_is_refused(tmp_path: Path) -> None:
    overlay = tmp_path / "slip.toml"
    overlay.write_text(
        'format = 1\n[[edit]]\ninsert = "a"\nuse = "choice"\nbetween = ["step", "zero_grad", "decide"]\n'
    )
    with pytest.raises(GraphError, match="`between` takes a source and a target, got"):
        Graph.load("fit").overlay(overlay)


def test_what_follows_from_a_problem_is_not_reported_as_another(overlays: Overlays) -> None:
    text = "\n".join(
        [edit('insert = "x"', 'use = "choice"', 'after = "nowhere"'), edit('connect = "x"', 'target = "decide"')]
    )
    assert "nowhere" in overlays.problems(mine=text)
    assert "\nG" not in overlays.problems(mine=text)
    assert len(overlays.problems(mine=text).splitlines()) == 2, "the problem and its hint"


def test_an_edit_in_a_body_leaves_the_place_of_the_node_around_it(overlays: Overlays) -> None:
    inside = overlays.over(FIT, inside=edit('set = "validate/next_batch"', "limit = 5"))
    around = overlays.over(FIT, around=edit('set = "validate"', "every = '2 epochs'"))
    for name in ("validate", "log"):
        assert inside.nodes[name].place == FIT.nodes[name].place
    assert "inside.toml" in str(inside.nodes["validate"].body.nodes["next_batch"].place)  # type: ignore[union-attr]
    assert "around.toml" in str(around.nodes["validate"].place)


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
