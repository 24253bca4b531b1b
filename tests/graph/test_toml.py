"""Promise 1: a graph is a value: what is written reads back equal, in TOML and JSON, and its hash is what it does."""

from __future__ import annotations

import copy
import datetime
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphtrain import Graph, GraphError, Trainer
from tests.graph.corpus import EVALUATE, FIT
from tests.world import world

TINY = 'format = 1\nname = "tiny"\nstart = "a"\n[nodes]\na = { use = "choice" }\n[edges]\na = ["end"]\n'


def test_shipped_graphs_load() -> None:
    assert (FIT.name, FIT.start, len(FIT.nodes)) == ("fit", "decide", 15)
    assert FIT.nodes["accumulate"].parameters == {"every": 1}
    assert (FIT.nodes["decide"].use, FIT.nodes["validate"].body) == ("choice", EVALUATE)
    assert (EVALUATE.outputs, EVALUATE.optional) == (("metrics",), ("val_data",))
    assert [str(edge) for edge in FIT.edges["finish"]] == ["end if finished", "decide"]
    assert FIT.units["epochs"] == "next_batch.epochs"


ROUND_TRIPS: dict[str, Graph] = {
    "fit": FIT,
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
    "no guards, no clock": Graph.loads(TINY),
    "guards of several lines": FIT.guard("finished", "(finish.due\n  or 'a \"b\"' == 'c')"),
    "an optimizer": replace(FIT, optimizer="d_optimizer"),
    "a text of edits": Graph.loads('format = 1\nextends = "fit"\n[[edit]]\nset = "validate/next_batch"\nlimit = 2\n'),
}  # fmt: skip


@pytest.mark.parametrize("graph", ROUND_TRIPS.values(), ids=ROUND_TRIPS.keys())
def test_what_is_saved_loads_back_equal(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "saved.toml")
    for back in (Graph.load(tmp_path / "saved.toml"), Graph.from_json(graph.to_json())):
        assert hash(back) == hash(graph)
        assert back.to_json() == graph.to_json() and back.structural_hash == graph.structural_hash
        assert back.to_toml() == Graph.loads(back.to_toml()).to_toml()
    assert Graph.load(tmp_path / "saved.toml") == graph


VALUES = st.recursive(
    st.one_of(
        st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3), st.dictionaries(st.sampled_from(["float", "table", "", "a b", "é", '"']), inside)
    ),
    max_leaves=8,
)


@pytest.mark.full
@settings(max_examples=150)
@given(VALUES)
def test_any_value_survives(value: object) -> None:
    graph = FIT.set("clip", value=value)
    for back in (Graph.from_json(graph.to_json()), Graph.loads(graph.to_toml())):
        assert back == graph
        assert back.to_json() == graph.to_json(), "True is not 1, and 1 is not 1.0"


def test_comments_and_order_do_not_matter() -> None:
    text = FIT.to_toml()
    head, *sections = text.split("\n\n")
    assert Graph.loads("# hello\n" + "\n\n".join([head, *reversed(sections)])) == FIT
    assert Graph.loads("\ufeff" + text.replace("\n", "\r\n")) == FIT


def test_a_nested_shipped_graph_stays_a_name_until_it_is_edited() -> None:
    assert 'graph = "evaluate"' in FIT.to_toml()
    assert 'graph = "evaluate"' not in FIT.set("validate/next_batch", limit=5).to_toml()


def test_other_files_are_found_from_the_one_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    graph.save(tmp_path / "copy.toml")
    (tmp_path / "base" / "inner.toml").unlink()
    assert Graph.load(tmp_path / "copy.toml") == graph, "others are written out in full"


@pytest.mark.parametrize(
    ("edit", "code", "place"),
    [
        ('set = "clip"\nmax_nrm = 1', "G103", "nodes.clip.max_nrm"),
        ('guard = "log_due"\nexpression = "log.deu"', "G203", "guards.log_due"),
        ('connect = "step"\ntarget = "end"\nwhen = "nix"', "G105", "edges.step"),
        ('set = "validate/next_batch"\nlimit = "x"', "G104", "validate/nodes.next_batch.limit"),
        ('set = "validate"\nevery = "0.25 epoch"', "G106", "nodes.validate.every"),
        ('clock = "tokens"\nfield = "step.stps"', "G116", "clock.tokens"),
    ],
)
def test_what_an_edit_changed_stands_where_the_edit_stands(edit: str, code: str, place: str) -> None:
    text = f'format = 1\nextends = "fit"\n[[edit]]\nset = "log"\nevery = "1 steps"\n[[edit]]\n{edit}\n'
    (problem,) = Graph.loads(text, name="my.toml").check()
    assert (problem.code, problem.where) == (code, f"my.toml:6 {place}")


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


# ---- hash and JSON

SAME: list[Callable[[Graph], Graph]] = [
    lambda g: replace(g, name="other"),
    lambda g: replace(g, allow=("G209",)),
    lambda g: replace(g, nodes=dict(reversed([*g.nodes.items()])), units=dict(reversed([*g.units.items()]))),
    lambda g: replace(g, edges=dict(reversed([*g.edges.items()])), guards=dict(reversed([*g.guards.items()]))),
    lambda g: replace(g, places={}),
    lambda g: replace(g, edges={**g.edges, "nobody": ()}),
    lambda g: g.guard("window_cut", "  next_batch.last   or\n ending "),
    lambda g: g.set("validate", graph=replace(EVALUATE, name="mine", allow=("G209",))),
    lambda g: Graph.loads("# a comment\n" + g.to_toml()),
]
# Beyond what the verbs change (test_edit.py).
DIFFERENT: list[Callable[[Graph], Graph]] = [
    lambda g: g.disconnect("decide", "log").connect("decide", "log", when="log_due", after="schedule"),
    lambda g: g.set("accumulate", every=2),
    lambda g: g.set("accumulate", every=True),
    lambda g: g.set("clip", max_norm=1.0),
    lambda g: g.set("clip", max_norm=1),
    lambda g: g.set("checkpoint", every=["10 minutes", "1 epochs"]),
    lambda g: g.guard("window_cut", "next_batch.last or finish.due or 'a  b' == 'a b'"),
    lambda g: g.guard("window_cut", "next_batch.last or finish.due or 'a b' == 'a b'"),
    lambda g: g.guard("unused", "log.due"),
    lambda g: g.clock("steps", "step.runs"),
    lambda g: replace(g, edges={**g.edges, "decide": tuple(reversed(g.edges["decide"]))}),
    lambda g: replace(g, start="begin_epoch"),
    lambda g: replace(g, outputs=("metrics",)),
    lambda g: replace(g, optional=("val_data",)),
    lambda g: replace(g, optimizer="d_optimizer"),
]


@pytest.mark.parametrize("change", SAME, ids=range(len(SAME)))
def test_the_hash_stays(change: Callable[[Graph], Graph]) -> None:
    graph = change(FIT)
    assert graph.structural_hash == FIT.structural_hash
    assert not FIT.diff(graph).matters
    back = Graph.from_json(graph.to_json())
    assert back == graph and back.to_json() == graph.to_json()


def test_the_hash_changes_with_everything_a_graph_does() -> None:
    graphs = [FIT, *(change(FIT) for change in DIFFERENT)]
    assert len({graph.structural_hash for graph in graphs}) == len(graphs)
    assert all(FIT.diff(graph).matters for graph in graphs[1:])
    assert all(Graph.from_json(graph.to_json()) == graph for graph in graphs)
    assert len(FIT.structural_hash) == 64 and int(FIT.structural_hash, 16)


def test_the_order_in_a_file_is_no_difference() -> None:
    backwards = replace(FIT, nodes=dict(reversed([*FIT.nodes.items()])), guards=dict(reversed([*FIT.guards.items()])))
    assert backwards == FIT and backwards.to_json() == FIT.to_json() and hash(backwards) == hash(FIT)


def test_a_copy_is_the_graph_itself_and_another_process_gets_an_equal_one() -> None:
    assert copy.deepcopy(FIT) is FIT
    other = pickle.loads(pickle.dumps(FIT))  # noqa: S301
    assert (other, hash(other)) == (FIT, hash(FIT))


def test_json_is_whole() -> None:
    plain = json.loads(FIT.set("clip", max_norm=float("inf")).to_json())
    assert plain["format"] == 1 and "optimizer" not in plain
    assert plain["nodes"]["clip"] == {"max_norm": float("inf")}
    assert set(plain["nodes"]["validate"]["graph"]["nodes"]) == set(EVALUATE.nodes)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "3", "null", "{", '{"format": 2}', '{"format": 1}', '{"format": 1, "name": "x"}', "[" * 100000,
     FIT.to_json().replace('"nodes":{', '"nodes":[{', 1)],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_is_no_graph_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Graph.from_json(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"nodes":{', '"nodes":{"other":{"graph":"evaluate"},'),
        ('"nodes":{', '"nodes":{"other":{"graph":"/etc/passwd"},'),
        ('{"allow"', '{"extends":"fit","allow"'),
        ('{"allow"', '{"edit":[{"remove":"log"}],"allow"'),
    ],
)
def test_json_names_no_other_graph(old: str, new: str) -> None:
    text = replace(FIT, allow=("G209",)).to_json()
    assert text.count(old) >= 1
    with pytest.raises(ValueError, match="not a canonical graph"):
        Graph.from_json(text.replace(old, new, 1))


def test_a_checkpoint_keeps_the_order_and_the_overlays(tmp_path: Path) -> None:
    whole = FIT.overlay("early_stop", "ema")
    trainer: Trainer = world(whole, scheduler="none").trainer(tmp_path)
    trainer.advance(3)
    trainer.save()
    kept = Graph.load(tmp_path)
    assert kept == whole and kept.to_json() == whole.to_json()
    assert list(kept.nodes) == list(whole.nodes) != sorted(whole.nodes)
    assert kept.layers.names == ("early_stop", "ema")
    with pytest.raises(GraphError, match="the graph already has the overlay `ema`"):
        kept.overlay("ema")
