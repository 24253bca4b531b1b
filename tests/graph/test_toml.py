"""The text form: what is read is what is written, overlays are the verbs, and every mistake has its line."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from graphtrain import Graph, GraphError, GraphtrainError, Problem, UsageError
from graphtrain.graph.edits import VERBS
from graphtrain.graph.registry import known_graphs

FIT = Graph.load("fit")
EVALUATE = Graph.load("evaluate")

TINY = """\
format = 1
name = "tiny"
start = "a"
[nodes]
a = { use = "choice" }
b = { use = "choice" }
[guards]
ready = "a.runs > 3"
[edges]
a = ["b if ready", "a"]
b = ["end"]
"""


def problems_of(text: str) -> list[Problem]:
    """The problems of reading and checking together, as `graphtrain check` reports them."""
    try:
        return Graph.loads(text, name="my.toml").check()
    except GraphError as error:
        return list(error.problems)


# --- Round trips ---------------------------------------------------------------------------------------------------


def test_shipped_graphs_load() -> None:
    assert (FIT.name, FIT.start, len(FIT.nodes)) == ("fit", "decide", 15)
    assert FIT.nodes["accumulate"].parameters == {"every": 1}
    assert FIT.nodes["decide"].use == "choice"
    assert FIT.nodes["validate"].body == EVALUATE
    assert EVALUATE.outputs == ("metrics",)
    assert EVALUATE.optional == ("val_data",)
    assert [str(edge) for edge in FIT.edges["finish"]] == ["end if finished", "decide"]
    assert FIT.units["epochs"] == "next_batch.epochs"


ROUND_TRIPS: dict[str, Graph] = {
    "fit": FIT,
    "evaluate": EVALUATE,
    "edited inside": FIT.set("validate/next_batch", limit=5),
    "nested twice": FIT.set("validate",
     graph=EVALUATE.insert("inner", after="eval_batch", graph=EVALUATE.set("next_batch", limit=1))),
    "nested and shipped": FIT.nest("a", EVALUATE.set("next_batch", limit=1)).nest("b", "evaluate").nest("c", EVALUATE),
    "nested whose texts mention graphs": FIT.nest("x", EVALUATE.guard("a", "1 < 2"), note='graph = "x"',
     every="1 epochs"),
    "nested fit": EVALUATE.nest("train", FIT.set("clip", max_norm=1), reads={"model": "m"}, writes={"metrics": "n"}),
    "odd strings": FIT.set("clip", s="\"\\\n\t\r\0\x7f\x1b\u2028é😀'''\"\"\"", t="", u="[x]\n# no",
     **{"odd key.": 1, "é": 2}),
    "odd names": replace(FIT, name='a "b"').guard("g h", "1 < 2").clock("x y", "step.steps").insert("a b.c", "choice"),
    "edges of odd names": replace(FIT, edges={**FIT.edges, "a b": FIT.edges["decide"], '"': ()}),
    "floats": FIT.set("clip", a=float("inf"), b=-float("inf"), c=1e-300, d=1e22, e=-0.0, f=5e-324, g=0.1 + 0.2, h=1.0),
    "integers": FIT.set("clip", a=10**30, b=-(2**63), c=0),
    "lists and tables": FIT.set("clip", a=[], b=[[1, [2]], ["x"]], c={}, d={"e": {"f g": [True, {"h": 1.5}]}}),
    "dates": FIT.set("clip", a=datetime.date(2020, 1, 2), b=datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
     c=datetime.time(1)),
    "reads and writes": FIT.set("train_batch", reads={"model": ["a", "accumulate.every"]}, writes={"loss": "l"}),
    "lists of names": replace(FIT, outputs=("a", "b"), optional=("c",), allow=("G209",)),
    "no guards, no clock": Graph.loads(
        TINY.replace('a = ["b if ready", "a"]', 'a = ["b"]').replace('ready = "a.runs > 3"', "")
    ),
    "guards of several lines": FIT.guard("finished", "(finish.due\n  or 'a \"b\"' == 'c')"),
    "overlay": Graph.loads('format = 1\nextends = "fit"\n[[edit]]\nset = "validate/next_batch"\nlimit = 2\n'),
}  # fmt: skip


@pytest.mark.parametrize("graph", ROUND_TRIPS.values(), ids=ROUND_TRIPS.keys())
def test_what_is_saved_loads_back_equal(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "saved.toml")
    back = Graph.load(tmp_path / "saved.toml")
    assert back == graph
    assert back.to_json() == graph.to_json()
    assert back.structural_hash == graph.structural_hash
    assert back.to_toml() == Graph.loads(back.to_toml()).to_toml()


def test_a_nested_shipped_graph_stays_a_name_until_it_is_edited() -> None:
    assert 'graph = "evaluate"' in FIT.to_toml()
    assert 'graph = "evaluate"' not in FIT.set("validate/next_batch", limit=5).to_toml()


def test_a_nested_file_is_written_out_in_full(tmp_path: Path) -> None:
    (tmp_path / "inner.toml").write_text(EVALUATE.to_toml())
    (tmp_path / "outer.toml").write_text(TINY.replace('b = { use = "choice" }', 'b = { graph = "inner.toml" }'))
    graph = Graph.load(tmp_path / "outer.toml")
    (tmp_path / "elsewhere").mkdir()
    graph.save(tmp_path / "elsewhere" / "copy.toml")
    (tmp_path / "inner.toml").unlink()
    assert Graph.load(tmp_path / "elsewhere" / "copy.toml") == graph


def test_saving_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists; a file is never overwritten"):
        FIT.save(path)
    assert path.read_text() == "mine"
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
        FIT.save(tmp_path / "absent" / "x.toml")


def test_what_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a lone surrogate"):
        FIT.set("clip", a="\ud800").save(tmp_path / "x.toml")
    odd = replace(FIT.nodes["clip"], parameters={"max_norm": None})
    with pytest.raises(UsageError, match=r"clip.max_norm: None cannot be written in a graph"):
        replace(FIT, nodes={**FIT.nodes, "clip": odd}).save(tmp_path / "x.toml")
    assert list(tmp_path.iterdir()) == []


def test_comments_and_order_do_not_matter() -> None:
    text = FIT.to_toml()
    head, *sections = text.split("\n\n")
    shuffled = "# hello\n" + "\n\n".join([head, *reversed(sections)])
    assert Graph.loads(shuffled) == FIT
    assert Graph.loads("\ufeff" + text.replace("\n", "\r\n")) == FIT


# --- Overlays ------------------------------------------------------------------------------------------------------

OVERLAYS: list[tuple[str, Callable[[Graph], Graph]]] = [
    ('insert = "p"\nuse = "choice"\nafter = "step"', lambda g: g.insert("p", "choice", after="step")),
    ('insert = "discard"\nbefore = "step"', lambda g: g.insert("discard", before="step")),
    ('insert = "p"\nuse = "clip"\nbetween = ["clip", "step"]\nmax_norm = 2',
     lambda g: g.insert("p", "clip", between=("clip", "step"), max_norm=2)),
    ('insert = "p"\ngraph = "evaluate"\nevery = "1 epochs"',
     lambda g: g.insert("p", graph="evaluate", every="1 epochs")),
    ('hook = "on_train_batch_end"\nuse = "choice"\nname = "p"',
     lambda g: g.hook("on_train_batch_end", "choice", name="p")),
    ('replace = "zero_grad"\nuse = "discard"', lambda g: g.replace("zero_grad", "discard")),
    ('remove = "clip"', lambda g: g.remove("clip")),
    ('remove = "accumulate"\nto = "clip"', lambda g: g.remove("accumulate", to="clip")),
    ('connect = "decide"\ntarget = "step"\nwhen = "log_due"', lambda g: g.connect("decide", "step", when="log_due")),
    ('connect = "decide"\ntarget = "step"\nwhen = "log_due"\nfirst = false',
     lambda g: g.connect("decide", "step", when="log_due", first=False)),
    ('disconnect = "decide"\ntarget = "log"', lambda g: g.disconnect("decide", "log")),
    ('redirect = "step"\nold = "zero_grad"\nnew = "end"', lambda g: g.redirect("step", "zero_grad", "end")),
    ('set = "accumulate"\nevery = 4', lambda g: g.set("accumulate", every=4)),
    ('set = "validate/next_batch"\nlimit = 4', lambda g: g.set("validate/next_batch", limit=4)),
    ('set = "train_batch"\nreads = { model = ["a", "b"] }\nname = "x"',
     lambda g: g.set("train_batch", reads={"model": ["a", "b"]}, name="x")),
    ('guard = "window_cut"\nexpression = "finish.due"', lambda g: g.guard("window_cut", "finish.due")),
    ('nest = "test"\ngraph = "evaluate"', lambda g: g.nest("test", "evaluate")),
    ('rename = "step"\nnew = "d_step"', lambda g: g.rename("step", "d_step")),
    ('clock = "tokens"\nfield = "next_batch.samples"', lambda g: g.clock("tokens", "next_batch.samples")),
]  # fmt: skip


def test_every_verb_is_tried_below() -> None:
    assert {text.split(" = ")[0] for text, _ in OVERLAYS} == set(VERBS)


@pytest.mark.parametrize(("text", "verb"), OVERLAYS, ids=[text.replace("\n", ", ") for text, _ in OVERLAYS])
def test_an_edit_is_the_verb(text: str, verb: Callable[[Graph], Graph]) -> None:
    overlay = Graph.loads(f'format = 1\nname = "fit"\nextends = "fit"\n[[edit]]\n{text}\n')
    assert overlay == verb(FIT)
    assert overlay.to_json() == verb(FIT).to_json()
    assert overlay != FIT


def test_edits_apply_in_order_and_allow_adds() -> None:
    edits = ['insert = "p"\nuse = "choice"\nafter = "step"', 'rename = "p"\nnew = "q"', 'remove = "q"']
    text = 'format = 1\nextends = "fit"\nallow = ["G209"]\n' + "".join(f"[[edit]]\n{edit}\n" for edit in edits)
    graph = Graph.loads(text, name="mine.toml")
    assert replace(graph, name="fit", allow=()) == FIT
    assert (graph.name, graph.allow) == ("mine", ("G209",))


def test_what_the_base_allows_stays_allowed(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('format = 1\nextends = "fit"\nallow = ["G209"]\n')
    (tmp_path / "over.toml").write_text('format = 1\nextends = "base.toml"\nallow = ["G403"]\n')
    assert Graph.load(tmp_path / "over.toml").allow == ("G209", "G403")


def test_problems_inside_a_graph_written_out_are_found() -> None:
    text = FIT.set("validate/next_batch", limit=3).to_toml()
    line = text[: text.index('"end_evaluation if data_exhausted"')].count("\n") + 1
    text = text.replace('"end_evaluation if data_exhausted"', '"end_evaluation if x > 0"')
    (problem,) = problems_of(text)
    assert problem.where == f"my.toml:{line}"


def test_extends_and_graphs_by_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "inner.toml").write_text(EVALUATE.set("next_batch", limit=3).to_toml())
    (tmp_path / "base" / "base").write_text(
        'format = 1\nextends = "fit"\n[[edit]]\nset = "validate"\ngraph = "inner.toml"\n'
    )
    over = 'format = 1\nextends = "base/base"\n[[edit]]\nset = "clip"\nmax_norm = 2\n'
    (tmp_path / "over.toml").write_text(over + '[[edit]]\nnest = "test"\ngraph = "base/inner.toml"\n')
    monkeypatch.chdir("/")
    graph = Graph.load(tmp_path / "over.toml")
    inner = Graph.load(tmp_path / "base" / "inner.toml")
    assert graph == replace(FIT.set("validate", graph=inner).set("clip", max_norm=2).nest("test", inner), name="over")


def test_what_an_edit_changed_stands_where_the_edit_stands() -> None:
    text = 'format = 1\nextends = "fit"\n' + "".join(
        f"[[edit]]\n{edit}\n"
        for edit in [
            'set = "clip"\nmax_nrm = 1',
            'guard = "log_due"\nexpression = "log.deu"',
            'connect = "step"\ntarget = "end"\nwhen = "nix"',
            'set = "validate/next_batch"\nlimit = "x"',
            'clock = "tokens"\nfield = "step.stps"',
        ]
    )
    places = {problem.code: problem.where for problem in problems_of(text)}
    assert places == {
        "G103": "my.toml:3 nodes.clip.max_nrm",
        "G203": "my.toml:6 guards.log_due",
        "G105": "my.toml:9 edges.step",
        "G104": "my.toml:13 validate/nodes.next_batch.limit",
        "G116": "my.toml:16 clock.tokens",
    }


# --- Bad input -----------------------------------------------------------------------------------------------------

# What replaces what in TINY; then the one problem: its line (0: the file alone), code, message, hint.
BAD: list[tuple[str, str, int, str, str, str]] = [
    # TOML itself
    ("b = {", "b = {x = True, ", 6, "G001", "Invalid value",
     ""),
    ("name =", "name :", 2, "G001", "Expected '='", ""),
    ("format = 1", "format = " + "9" * 5000, 0, "G001", "Exceeds the limit", ""),
    # the top level
    ("format = 1\n", "", 0, "G003", "`format = 1` is expected at the top; it is missing", ""),
    ("format = 1", "format = 2", 1, "G003", "`format = 1` is expected at the top; got 2", ""),
    ('start = "a"\n', "", 0, "G003", "`start` is missing", '`start = "NODE"` names the node that runs first'),
    ("name =", "max_epochs = 3\nname =", 2, "G002", "unknown key `max_epochs`",
     'that is `finish.after = "N epochs"` here'),
    ("name =", "nam =", 2, "G002", "unknown key `nam`", "did you mean `name`?"),
    ('name = "tiny"', "name = 3", 2, "G003", "name: expected a string, got 3", ""),
    ('start = "a"', 'start = ["a"]', 3, "G003", 'start: expected a string, got ["a"]', ""),
    ("name =", "allow = 3\nname =", 2, "G003", "allow: expected a list of strings, got 3", ""),
    # nodes
    ("b = {", "max_epochs = 3\nb = {", 6, "G003", "nodes.max_epochs: expected a table of parameters, got 3",
     'that is `finish.after = "N epochs"` here'),
    ('b = { use = "choice" }', "b = 3", 6, "G003", "nodes.b: expected a table of parameters, got 3",
     "write `b = {}`, or a separate table: [nodes.b]"),
    ("b = {", 'edges = ["x"]\nb = {', 6, "G003", 'nodes.edges: expected a table of parameters, got ["x"]',
     "it belongs at the top level, above [nodes]"),
    ("[guards]", 'edges = { a = ["b"] }\n[guards]', 7, "G114", "`edges` cannot be the name of a node",
     "write [edges] at the top level"),
    ('use = "choice" }\n[', "use = 3 }\n[", 6, "G003", "nodes.b.use: expected the name of a kind, got 3", ""),
    ('use = "choice" }\n[', 'use = "nested" }\n[', 6, "G104",
     "`b.graph` is missing: a node of kind `nested` has a graph as its body",
     'write graph = "NAME" instead of use = "nested"'),
    ('use = "choice" }\n[', "graph = 3 }\n[", 6, "G003", "nodes.b.graph: expected a name, a path or a table, got 3",
     ""),
    ("b = {", 'b = { graph = "evaluate", ', 6, "G003", "nodes.b has both `use` and `graph`", "keep one of them"),
    ('use = "choice" }\n[', 'graph = "evalute" }\n[', 6, "G004", "nodes.b.graph: there is no graph `evalute`",
     "did you mean `evaluate`?"),
    ('use = "choice" }\n[', 'graph = "/etc/passwd" }\n[', 6, "G004",
     "nodes.b.graph: `/etc/passwd`: a graph must name others by shipped name or relative path", ""),
    ("b = {", "b = { reads = 3, ", 6, "G003", 'nodes.b.reads: expected a table such as { slot = "other" }, got 3', ""),
    ("b = {", "b = { reads = { x = 3 }, ", 6, "G003", "nodes.b.reads.x: expected the name of a slot, got 3", ""),
    # guards and clock
    ('ready = "a.runs > 3"', "ready = true", 8, "G003", "guards.ready: expected a string, got true", ""),
    ("a.runs > 3", "a.rnus > 3", 8, "G203", 'guard `ready`: `a` has no field `rnus`\n    ready = "a.rnus > 3"',
     "did you mean `runs`?"),
    ("[edges]", '[clock]\nx = "b.rnus"\n[edges]', 10, "G116", "`b` has no field `rnus`", "did you mean `runs`?"),
    ("[edges]", "[clock]\nx = 3\n[edges]", 10, "G003", "clock.x: expected a string, got 3", ""),
    ("[edges]", 'clock = 3\n[edges]', 9, "G003", "guards.clock: expected a string, got 3", ""),
    # edges
    ('b = ["end"]', "b = 3", 11, "G003", 'edges.b: expected a list such as ["target if guard", "target"], got 3', ""),
    ('["end"]', '["end if a.runs > 3", "end"]', 11, "G003",
     'edges.b: expected "target" or "target if guard", got "end if a.runs > 3"',
     "an edge names its guard; define the expression under [guards]"),
    ('["end"]', '["a -> end", "end"]', 11, "G003", 'edges.b: expected "target" or "target if guard", got "a -> end"',
     ""),
    ('["end"]', '["end if raedy", "end"]', 11, "G105", "unknown guard `raedy`", "did you mean `ready`?"),
    ('["end"]', '[\n "a if ready",\n "endd",\n]', 13, "G101", "unknown node `endd`", "did you mean `end`?"),
    ('b = ["end"]', 'b = ["end"]\nc = ["end"]', 12, "G101", "unknown node `c`", "known: a, b"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "line", "code", "message", "hint"), BAD, ids=[f"{mistake[1][:40]!r}" for mistake in BAD]
)
def test_each_mistake_has_one_message_with_its_line(
    old: str, new: str, line: int, code: str, message: str, hint: str
) -> None:
    assert TINY.count(old) == 1
    problems = problems_of(TINY.replace(old, new))
    assert len(problems) == 1, problems
    (problem,) = problems
    assert problem.code == code
    assert problem.where.split(" ")[0] == (f"my.toml:{line}" if line else "my.toml")
    # What Python says of TOML differs between its versions.
    assert message in problem.message if code == "G001" else message == problem.message
    assert problem.hint == hint
    assert len(str(problem)) < 400


# A bad table after the header [[edit]], which stands on line 3.
BAD_EDITS: list[tuple[str, str, str]] = [
    ('insert = "x"\nafter = "stp"', "insert: after: there is no node `stp`", "did you mean `step`?"),
    ('insert = "x"\nafter = 3', "edit: insert: after: expected a string, got 3",
     "it takes name, use, after, before, between, at, parameters"),
    ("remove = 3", "edit: remove: remove: expected a string, got 3", "it takes name, to"),
    ('insert = "x"\nbetween = "step"', "insert: `between` takes a source and a target, got ['step']", ""),
    ('inser = "x"', "edit: no verb in {'inser': 'x'}", "did you mean `insert`?"),
    ('insert = "a"\nset = "b"', "edit: two verbs in one table, `insert` and `set`",
     "begin a separate table with [[edit]]"),
    ('set = "clip"\nreads = 3', 'clip.reads: expected a table such as { slot = "other" }, got 3', ""),
    ('set = "clip"\ngraph = 3', "graph: expected a name, a path or a Graph, got 3", ""),
    ('connect = "step"', "edit: connect: missing a required argument: 'target'",
     "it takes source, target, when, first, before, after"),
    ('connect = "step"\ntarget = "clip"\nfirst = "yes"', 'edit: connect: first: expected true or false, got "yes"',
     "it takes source, target, when, first, before, after"),
    ('rename = "clip"\nnew = "a"\nto = "x"', "edit: rename: got an unexpected keyword argument 'to'",
     "it takes old, new"),
    ('guard = "x"', "guard: `x` takes an `expression`, or an `or` or `and` to widen it", ""),
    ('nest = "v"\ngraph = "evalute"', "there is no graph `evalute`", "did you mean `evaluate`?"),
    ('nest = "v"\ngraph = "no.toml"', "cannot read the graph `no.toml`: it is missing", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "message", "hint"), BAD_EDITS, ids=[mistake[0].replace("\n", ", ") for mistake in BAD_EDITS]
)
def test_each_bad_edit_has_one_message_with_its_line(table: str, message: str, hint: str) -> None:
    (problem,) = problems_of(f'format = 1\nextends = "fit"\n[[edit]]\n{table}\n')
    assert problem.where == "my.toml:3"
    assert (problem.message, problem.hint) == (message, hint)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ('format = 1\nextends = "fitt"', 2, "there is no graph `fitt`", "did you mean `fit`?"),
        ('format = 1\nextends = "/a/b.toml"', 2, "a graph must name others by shipped name or relative path", ""),
        ('format = 1\nextends = "fit"\nclock = "a"', 3, "unknown key `clock`", "[[edit]]"),
        ('format = 1\nextends = "fit"\n[nodes]', 3, "unknown key `nodes`", "[[edit]]"),
        ('format = 1\nextends = "fit"\nedit = 3', 3, "edit: expected tables written as [[edit]]", ""),
        ('format = 1\nextends = "fit"\nedit = [3]', 3, "edit: expected a table, got 3", ""),
        ('format = 1\nextends = "fit"\n[edit]\nset = "clip"', 3, "edit: expected tables written as [[edit]]", ""),
        ('format = 1\nextends = "fit"\nmax_steps = 3', 3, "unknown key `max_steps`", '`finish.after = "N steps"`'),
    ],
)
def test_bad_overlays(text: str, line: int, message: str, hint: str) -> None:
    (problem,) = problems_of(text)
    assert problem.where == f"my.toml:{line}"
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize("key", ["nodes", "edges", "guards", "clock"])
def test_sections_are_tables(key: str) -> None:
    text = "\n".join(["format = 1", 'name = "x"', 'start = "a"', f"{key} = [1]"])
    assert any(
        problem.where == "my.toml:4" and f"{key}: expected a table, got [1]" in problem.message
        for problem in problems_of(text)
    )


@pytest.mark.parametrize("missing", ["nodes", "edges"])
def test_a_missing_section_is_reported_once(missing: str) -> None:
    texts = {"nodes": '[nodes]\na = { use = "choice" }', "edges": '[edges]\na = ["end"]'}
    text = 'format = 1\nstart = "a"\n' + "\n".join(text for name, text in texts.items() if name != missing)
    (problem,) = problems_of(text)
    assert problem.message == f"`{missing}` is missing"
    assert problem.hint == f"write it as [{missing}]"


def test_all_mistakes_of_a_text_come_at_once() -> None:
    text = """\
format = 3
start = 4
max_epochs = 3
[nodes]
a = 3
b = { reads = 3, graph = "absent" }
[guards]
g = 3
[edges]
a = ["b if x > 0", "b"]
b = { c = 1 }
[clock]
steps = []
"""
    places = [(problem.where.split(" ")[0], problem.code) for problem in problems_of(text)]
    assert sorted(places) == sorted(
        (f"my.toml:{line}", code)
        for line, code in [
            (1, "G003"), (2, "G003"), (3, "G002"), (5, "G003"), (6, "G003"), (6, "G004"),
            (8, "G003"), (10, "G003"), (11, "G003"), (13, "G003"),
        ]
    )  # fmt: skip


def test_all_mistakes_that_need_the_kinds_come_at_once() -> None:
    text = FIT.to_toml()
    for old, new in [
        ("accumulate = { every = 1 }", "accumulate = { accumulate_grad_batches = 4 }"),
        ("clip = { max_norm = inf }", 'clip = { max_norm = "fast" }'),
        ("step = {}", 'step = { use = "stpe" }'),
        ('"50 steps"', '"50 step"'),
        ("keep = 2", "keep = true"),
        ('"log.due"', '"log.deu"'),
        ('"10 epochs"', '"0 epochs"'),
        ('clip = ["step"]', 'clip = ["stp"]'),
    ]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    hint_of = {(problem.code, problem.message.split("\n")[0]): problem.hint for problem in problems_of(text)}
    assert {code for code, _ in hint_of} >= {"G101", "G102", "G103", "G104", "G106", "G203"}
    assert len(hint_of) >= 8
    hints = {message: hint for (_, message), hint in hint_of.items()}
    assert hints["unknown parameter `accumulate.accumulate_grad_batches` of kind `accumulate`"] == (
        "that is `accumulate.every = N` here"
    )
    assert hints["unknown kind `stpe`"].startswith("did you mean `step`? A node of another name has use")
    assert hints['unknown unit `step` in log.every = "50 step"'] == "did you mean `steps`?"
    assert 'clip.max_norm: expected a number, got "fast"' in hints
    assert "checkpoint.keep: expected an integer, got true" in hints
    assert "finish.after: the amount of a trigger must be greater than 0; got '0 epochs'" in hints


def test_a_graph_error_prints_every_problem() -> None:
    with pytest.raises(GraphError, match=r"graph `my.toml` has 2 problems:") as caught:
        Graph.loads(TINY.replace("format = 1", "format = 2").replace('["end"]', "3"), name="my.toml")
    assert str(caught.value).count("my.toml:") == 2
    assert isinstance(caught.value, ValueError)


# --- Files ---------------------------------------------------------------------------------------------------------


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG\r\n\x1a\n\0", "is not UTF-8 text (byte 0)"),
        (TINY.encode("utf-16"), "is not UTF-8 text (byte 0)"),
        (b"PK\x03\x04\0\0", "G001"),
        (b"", "`format = 1` is expected at the top; it is missing"),
    ],
)
def test_files_that_are_no_graphs(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path / "x.toml", content)
    with pytest.raises(GraphtrainError) as caught:
        Graph.load(path)
    assert message in str(caught.value)
    assert "x.toml" in str(caught.value)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    for source, message in [
        (tmp_path / "absent.toml", "it is missing"),
        (str(tmp_path / "absent.toml"), "it is missing"),
        (tmp_path, "it is a folder"),
        (str(tmp_path), "it is a folder"),
        (tmp_path / "loop.toml", "loop"),
        ("fitt", "did you mean `fit`?"),
        ("qqqqq", f"known: {', '.join(known_graphs())}; a path ends in .toml"),
        ("", "there is no graph ``"),
        ("a\0b", "embedded null byte"),
        ("a\0b.toml", "embedded null byte"),
        ("a" * 5000, "File name too long"),
        ("a" * 5000 + ".toml", "File name too long"),
    ]:
        with pytest.raises(UsageError) as caught:
            Graph.load(source)
        assert message in str(caught.value)
        assert len(str(caught.value)) < 400


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.toml", TINY)
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        Graph.load(path)


OVERLAY = 'format = 1\nextends = "{}"\n'
NESTING = (
    TINY.replace('b = { use = "choice" }', 'b = {{ graph = "{}" }}')
    .replace("a = { use", "a = {{ use")
    .replace('"choice" }\nb', '"choice" }}\nb')
)
EDITING = 'format = 1\nextends = "fit"\n[[edit]]\nset = "validate"\ngraph = "{}"\n'
INLINE = 'format = 1\nextends = "fit"\n[[edit]]\nset = "validate"\ngraph = {{ extends = "{}" }}\n'


@pytest.mark.parametrize("text", [OVERLAY, NESTING, EDITING, INLINE], ids=["extends", "graph", "edit", "inline"])
@pytest.mark.parametrize(
    "other", [None, OVERLAY, NESTING, EDITING, INLINE], ids=["itself", "extends", "graph", "edit", "inline"]
)
def test_circles_of_files_are_named(tmp_path: Path, text: str, other: str | None) -> None:
    write(tmp_path / "a.toml", text.format("a.toml" if other is None else "sub/../b.toml"))
    (tmp_path / "sub").mkdir()
    if other is not None:
        write(tmp_path / "b.toml", other.format("a.toml"))
    with pytest.raises(GraphError, match=r"(?s)extend or contain each other in a cycle.*let one of them") as caught:
        Graph.load(tmp_path / "a.toml")
    (problem,) = caught.value.problems
    assert problem.where.startswith(str(tmp_path / ("a.toml" if other is None else "b.toml"))) or "sub" in problem.where
    assert str(tmp_path / "a.toml") in problem.message


def test_one_file_may_be_used_twice(tmp_path: Path) -> None:
    write(tmp_path / "inner.toml", EVALUATE.to_toml())
    write(
        tmp_path / "a.toml",
        NESTING.format("inner.toml").replace('a = { use = "choice" }', 'a = { graph = "inner.toml" }'),
    )
    graph = Graph.load(tmp_path / "a.toml")
    assert graph.nodes["a"].body == graph.nodes["b"].body == EVALUATE


def test_problems_of_a_nested_file_name_that_file(tmp_path: Path) -> None:
    write(tmp_path / "inner.toml", TINY.replace('"end"', '"end if x > 0"'))
    write(tmp_path / "a.toml", NESTING.format("inner.toml"))
    with pytest.raises(GraphError) as caught:
        Graph.load(tmp_path / "a.toml")
    (problem,) = caught.value.problems
    assert problem.where == f"{tmp_path / 'inner.toml'}:11"


@pytest.mark.full
def test_reading_writing_and_drawing_import_no_kind_and_no_torch() -> None:
    code = """
import sys
import graphtrain
from graphtrain import Graph
graph = Graph.load("fit").set("validate/next_batch", limit=3).remove("clip").rename("step", "d_step")
graph.to_toml(), graph.to_json(), hash(graph), Graph.loads(graph.to_toml())
try:
    Graph.loads("format = 1\\nmax_epochs = 3")
except graphtrain.GraphError:
    pass
kinds = [name for name in sys.modules if name.startswith("graphtrain.nodes.")]
heavy = [name for name in ("torch", "networkx", "numpy", "transitions", "rich", "click") if name in sys.modules]
sys.exit(f"imported: {kinds + heavy}" if kinds + heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_an_edit_sets_on_a_node_with_a_body_stands_where_the_edit_stands(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('format = 1\nextends = "fit"\n\n[[edit]]\nset = "validate"\nevery = "0.25 epoch"\n')
    (problem,) = Graph.load(file).check()
    assert (problem.code, problem.where) == ("G106", f"{file}:4 nodes.validate.every"), problem
