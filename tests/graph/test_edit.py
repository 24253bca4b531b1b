"""Promise 2: one table of verbs, the same in Python and in `[[edit]]`: what each changes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from graphtrain import Edge, EditError, Graph, Node, Trigger, node
from tests.graph.corpus import EVALUATE, FIT

Edit = Callable[[Graph], Graph]


def leaving(graph: Graph, source: str) -> str:
    return ", ".join(map(str, graph.edges[source]))


DECIDE = leaving(FIT, "decide")
BEGIN = f"{DECIDE.partition(', ')[0]}, "

# The verb in Python, the same in TOML, the differences, and the edges of nodes of which the order matters.
EDITS: list[tuple[Edit, str, list[str], dict[str, str]]] = [
    (lambda g: g.insert("p", "choice", after="accumulate"), 'insert = "p"\nuse = "choice"\nafter = "accumulate"',
     ["node p added", "edge accumulate -> decide removed", "edge accumulate -> p added",
      "edge accumulate -> exchange if accumulation_reached removed"],
     {"accumulate": "p", "p": "exchange if accumulation_reached, decide"}),
    (lambda g: g.insert("discard", before="step"), 'insert = "discard"\nbefore = "step"',
     ["node discard added", "edge clip -> step removed", "edge clip -> discard added"], {"discard": "step"}),
    (lambda g: g.insert("p", "choice", before="next_batch"), 'insert = "p"\nuse = "choice"\nbefore = "next_batch"',
     ["node p added", "edge begin_epoch -> next_batch removed",
      "edge begin_epoch -> p added", "edge decide -> next_batch removed", "edge decide -> p added"],
     {"p": "next_batch", "decide": DECIDE.replace("next_batch", "p")}),
    (lambda g: g.insert("p", "choice", before="end"), 'insert = "p"\nuse = "choice"\nbefore = "end"',
     ["node p added", "edge finish -> end if finished removed", "edge finish -> p if finished added"],
     {"p": "end", "finish": "p if finished, decide"}),
    (lambda g: g.insert("p", "clip", between=("clip", "step"), max_norm=2),
     'insert = "p"\nuse = "clip"\nbetween = ["clip", "step"]\nmax_norm = 2',
     ["node p added", "edge clip -> step removed", "edge clip -> p added"], {"p": "step"}),
    (lambda g: g.insert("p", "choice", between=("accumulate", "exchange")),
     'insert = "p"\nuse = "choice"\nbetween = ["accumulate", "exchange"]',
     ["node p added", "edge accumulate -> exchange if accumulation_reached removed",
      "edge accumulate -> p if accumulation_reached added"],
     {"p": "exchange", "accumulate": "p if accumulation_reached, decide"}),
    (lambda g: g.insert("p", graph="evaluate", every="1 epochs"),
     'insert = "p"\ngraph = "evaluate"\nevery = "1 epochs"', ["node p added"], {}),
    (lambda g: g.insert("p", "log", at="decide", before="checkpoint"),
     'insert = "p"\nuse = "log"\nat = "decide"\nbefore = "checkpoint"',
     ["node p added", "edge decide -> p if p_due added", "guard p_due added"],
     {"p": "decide", "decide": DECIDE.replace("checkpoint if", "p if p_due, checkpoint if")}),
    (lambda g: g.insert("p", "log", at="decide", after="log"),
     'insert = "p"\nuse = "log"\nat = "decide"\nafter = "log"',
     ["node p added", "edge decide -> p if p_due added", "guard p_due added"],
     {"p": "decide", "decide": DECIDE.replace(BEGIN, f"{BEGIN}p if p_due, ")}),
    (lambda g: g.insert("discard"), 'insert = "discard"', ["node discard added"], {}),
    (lambda g: g.hook("on_train_batch_end", "choice", name="p"),
     'hook = "on_train_batch_end"\nuse = "choice"\nname = "p"',
     ["node p added", "edge accumulate -> decide removed",
      "edge accumulate -> p added", "edge accumulate -> decide if data_exhausted added",
      "edge zero_grad -> decide removed",
      "edge zero_grad -> p added", "edge zero_grad -> decide if data_exhausted added"], {"p": "decide"}),
    (lambda g: g.replace("clip", "discard"), 'replace = "clip"\nuse = "discard"',
     ["clip.use clip -> discard", "clip.max_norm inf -> default"], {}),
    (lambda g: g.replace("train_batch", "distill", temperature=3),
     'replace = "train_batch"\nuse = "distill"\ntemperature = 3',
     ["train_batch.use train_batch -> distill", "train_batch.temperature default -> 3",
      "train_batch.reads.window accumulate.window -> as named"], {}),
    (lambda g: g.remove("clip"), 'remove = "clip"',
     ["node clip removed", "edge exchange -> clip removed", "edge exchange -> step added"], {}),
    (lambda g: g.remove("validate"), 'remove = "validate"',  # its guard and unit go with it
     ["node validate removed", "edge decide -> validate if val_check_batch removed",
      "guard val_check_batch removed", "unit validations removed"], {}),
    (lambda g: g.remove("accumulate", to="clip"), 'remove = "accumulate"\nto = "clip"',
     ["node accumulate removed", "edge next_batch -> accumulate if data_exhausted removed",
      "edge next_batch -> clip if data_exhausted added",
      "edge train_batch -> accumulate removed",
      "edge train_batch -> clip added", "guard window_cut removed", "guard window_complete removed",
      "guard accumulation_reached removed"], {"next_batch": "clip if data_exhausted, train_batch"}),
    (lambda g: g.connect("decide", "step", when="log_due"), 'connect = "decide"\ntarget = "step"\nwhen = "log_due"',
     ["edge decide -> step if log_due added"], {"decide": f"step if log_due, {DECIDE}"}),
    (lambda g: g.connect("decide", "step", when="log_due", before="log"),
     'connect = "decide"\ntarget = "step"\nwhen = "log_due"\nbefore = "log"',
     ["edge decide -> step if log_due added"], {"decide": DECIDE.replace(BEGIN, f"step if log_due, {BEGIN}")}),
    (lambda g: g.connect("decide", "step", when="log_due", after="log"),
     'connect = "decide"\ntarget = "step"\nwhen = "log_due"\nafter = "log"',
     ["edge decide -> step if log_due added"], {"decide": DECIDE.replace(BEGIN, f"{BEGIN}step if log_due, ")}),
    (lambda g: g.disconnect("decide", "log"), 'disconnect = "decide"\ntarget = "log"',
     ["edge decide -> log if log_due removed"], {"decide": DECIDE.removeprefix(BEGIN)}),
    (lambda g: g.redirect("decide", "log", "step"), 'redirect = "decide"\nold = "log"\nnew = "step"',
     ["edge decide -> log if log_due removed",
      "edge decide -> step if log_due added"], {"decide": DECIDE.replace("log if", "step if")}),
    (lambda g: g.set("checkpoint", keep=5), 'set = "checkpoint"\nkeep = 5', ["checkpoint.keep 2 -> 5"], {}),
    (lambda g: g.set("validate/next_batch", limit=4), 'set = "validate/next_batch"\nlimit = 4',
     ["validate/next_batch.limit default -> 4"], {}),
    (lambda g: g.set("train_batch", reads={"model": ["a", "b"]}, writes={"loss": "l"}, name="x"),
     'set = "train_batch"\nreads = { model = ["a", "b"] }\nwrites = { loss = "l" }\nname = "x"',
     ["train_batch.name default -> x", "train_batch.reads.model as named -> [a, b]",
      "train_batch.writes.loss as named -> l"], {}),
    (lambda g: g.set("train_batch", use="sam_batch", compile=True),
     'set = "train_batch"\nuse = "sam_batch"\ncompile = true',
     ["train_batch.use train_batch -> sam_batch", "train_batch.compile default -> true"], {}),
    (lambda g: g.set("validate", graph="test"), 'set = "validate"\ngraph = "test"',
     ["validate/begin_evaluation.split val -> test", "validate/next_batch.reads.indices val_indices -> test_indices",
      "validate/next_batch.reads.train_data val_data -> test_data",
      "validate/eval_batch.reads.validation_step as named -> test_step",
      "optional of validate [val_data] -> [test_data]"], {}),
    (lambda g: g.set("clip", reads={"max_norm": "1.0 / (1 + step.steps)"}),
     'set = "clip"\nreads = { max_norm = "1.0 / (1 + step.steps)" }',
     ["clip.max_norm inf -> 1.0 / (1 + step.steps)"], {}),
    (lambda g: g.guard("window_cut", "finish.due"), 'guard = "window_cut"\nexpression = "finish.due"',
     ["guard window_cut next_batch.last or ending -> finish.due"], {}),
    (lambda g: g.guard("ending", or_="a.stop"), 'guard = "ending"\nor = "a.stop"',
     ["guard ending finish.due -> finish.due or a.stop"], {}),
    (lambda g: g.guard("ending", or_="a.stop").guard("ending", and_="b or c"),
     'guard = "ending"\nor = "a.stop"\nand = "b or c"',
     ["guard ending finish.due -> (finish.due or a.stop) and (b or c)"], {}),
    (lambda g: g.clock("tokens", "next_batch.samples"), 'clock = "tokens"\nfield = "next_batch.samples"',
     ["unit tokens added"], {}),
    (lambda g: g.nest("test", "evaluate", every="2 epochs"), 'nest = "test"\ngraph = "evaluate"\nevery = "2 epochs"',
     ["node test added"], {}),
    (lambda g: g.rename("clip", "c"), 'rename = "clip"\nnew = "c"',
     ["node c added", "node clip removed", "edge exchange -> clip removed",
      "edge exchange -> c added"], {"c": "step"}),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "text", "changes", "edges"), EDITS, ids=[row[1].replace("\n", ", ") for row in EDITS])
def test_a_verb_changes_what_it_says_and_is_the_same_in_a_text(
    verb: Edit, text: str, changes: list[str], edges: dict[str, str]
) -> None:
    before = FIT.to_json()
    graph = verb(FIT)
    found = FIT.diff(graph).changes
    assert sorted(map(str, found)) == sorted(changes)
    assert {source: leaving(graph, source) for source in edges} == edges
    read = Graph.loads(f'format = 1\nname = "fit"\nextends = "fit"\n[[edit]]\n{text}\n')
    assert read == graph and read.to_json() == graph.to_json()
    assert FIT.to_json() == before and FIT.structural_hash != graph.structural_hash
    assert {(one.category, one.path, one.after, one.before) for one in graph.diff(FIT).changes} == {
        (one.category, one.path, one.before, one.after) for one in found
    }
    assert Graph.loads(graph.to_toml()) == Graph.from_json(graph.to_json()) == graph


def test_every_verb_is_in_the_table() -> None:
    with pytest.raises(ValueError, match="no verb in") as caught:
        Graph.loads('format = 1\nextends = "fit"\n[[edit]]\nqqqqq = "x"\n')
    known = str(caught.value).partition("known: ")[2].split("\n")[0]
    assert {text.split(" = ")[0] for _, text, *_ in EDITS} == set(known.split(", "))


def test_the_start_moves_with_what_is_inserted_before_it_and_with_its_name() -> None:
    assert FIT.insert("hello", "choice", before="decide").start == "hello"
    assert FIT.insert("hello", "choice", before="step").start == "decide"
    assert FIT.rename("decide", "choose").start == "choose"
    assert EVALUATE.remove("begin_evaluation").start == "next_batch"


def test_a_removed_node_takes_the_guards_with_it_that_nothing_else_names() -> None:
    graph = (
        FIT.guard("val_check_batch", "validate.due and fresh").guard("fresh", "deep").guard("deep", "step.steps > 0")
    )
    assert not {"val_check_batch", "fresh", "deep"} & graph.remove("validate").guards.keys()
    kept = graph.guard("log_due", "log.due and fresh").remove("validate").guards
    assert {"fresh", "deep"} <= kept.keys() and "val_check_batch" not in kept
    spare = FIT.guard("spare", "not val_check_batch").guard("due", "step.steps > 0").remove("validate")
    assert "val_check_batch" in spare.guards, "without it `spare` could not be read"
    assert "due" in spare.guards, "`validate.due` is a field"


def test_a_loop_that_was_there_before_a_removal_stays() -> None:
    assert leaving(FIT.connect("step", "step", when="log_due").remove("zero_grad"), "step") == "step if log_due, decide"
    assert FIT.remove("validate").check() == FIT.remove("clip").remove("log").remove("schedule").check() == []


def test_a_value_and_an_expression_take_each_others_place() -> None:
    graph = FIT.set("clip", reads={"max_norm": "1.0 / (1 + step.steps)", "optimizer": "other"})
    assert graph.nodes["clip"].parameters == {}
    assert graph.set("clip", max_norm=2.0).nodes["clip"].parameters == {"max_norm": 2.0}
    assert graph.set("clip", max_norm=2.0).nodes["clip"].reads == {"optimizer": "other"}


def test_another_kind_keeps_what_is_set_and_has_no_body() -> None:
    graph = FIT.set("train_batch", precision="bf16-mixed").set("train_batch", use="sam_batch")
    assert graph.nodes["train_batch"].parameters == {"precision": "bf16-mixed"}
    assert graph.nodes["train_batch"].reads == FIT.nodes["train_batch"].reads
    assert FIT.set("validate", use="choice").nodes["validate"].body is None
    with pytest.raises(EditError, match="has both `use` and `graph`"):
        FIT.set("clip", use="step", graph="evaluate")


def test_a_body_is_a_name_a_file_or_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "inner.toml"
    EVALUATE.save(path)
    for graph in ("evaluate", path, str(path), EVALUATE):
        assert FIT.nest("test", graph, every="2 epochs") == FIT.insert("test", graph=graph, every="2 epochs")
        assert FIT.nest("test", graph).nodes["test"].body == EVALUATE


def test_a_new_name_reaches_everything_that_reads_the_old_one() -> None:
    graph = FIT.set("clip", reads={"max_norm": "1 / (1 + step.steps / validate/next_batch.batches)"})
    graph = graph.guard("log_due", "log.due and validate/next_batch.last and step.steps/2 > validate.runs")
    graph = graph.clock("seen", "next_batch.batches").set("train_batch", reads={"x": ["step.runs", "other"]})
    renamed = graph.rename("validate", "measure").rename("step", "go").rename("next_batch", "fetch")
    renamed = renamed.rename("decide", "choose").rename("accumulate", "window")
    assert renamed.nodes["clip"].reads == {"max_norm": "1 / (1 + go.steps / measure/next_batch.batches)"}
    assert renamed.guards["log_due"] == "log.due and measure/next_batch.last and go.steps/2 > measure.runs"
    assert renamed.guards["window_cut"] == "fetch.last or ending"
    assert (renamed.units["seen"], renamed.units["samples"]) == ("fetch.batches", "fetch.samples")
    assert renamed.nodes["train_batch"].reads == {"window": "window.window", "x": ("go.runs", "other")}
    assert (renamed.nodes["window"].use, renamed.nodes["window"].name) == ("accumulate", "window")
    body = renamed.nodes["measure"].body
    assert body is not None and "next_batch" in body.nodes, "a graph inside has names of its own"
    back = renamed.rename("measure", "validate").rename("go", "step").rename("fetch", "next_batch")
    assert back.rename("choose", "decide").rename("window", "accumulate") == graph


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("'é step.x' == a and step.steps > step.runs", "'é step.x' == a and s.steps > s.runs"),
        ("(other.x\n  and step.x\n  or a.step)", "(other.x and s.x or a.step)"),
        ("\n step . x\n and step.y", "s . x and s.y"),
        ("step and steps.x and a.step", "step and steps.x and a.step"),
    ],
)
def test_a_new_name_reaches_nodes_of_expressions_alone(text: str, renamed: str) -> None:
    assert FIT.guard("log_due", text).rename("step", "s").guards["log_due"] == renamed


def test_a_node_in_a_body_is_renamed_by_its_path_wherever_that_is_read() -> None:
    graph = FIT.set("clip", reads={"max_norm": "1 / (1 + validate/next_batch.batches + next_batch.batches)"})
    graph = graph.guard("log_due", "log.due and validate/next_batch.last")
    renamed = graph.rename("validate/next_batch", "fetch")
    assert renamed.nodes["clip"].reads == {"max_norm": "1 / (1 + validate/fetch.batches + next_batch.batches)"}
    assert renamed.guards["log_due"] == "log.due and validate/fetch.last"
    body = renamed.nodes["validate"].body
    assert body is not None and "fetch" in body.nodes and "next_batch" not in body.nodes
    assert renamed.check() == [] and renamed.rename("validate/fetch", "next_batch") == graph
    around = Graph("around", "fit", {"fit": Node("fit", "nested", body=graph)}, {"fit": (Edge("end", "seen"),)},
                   {"seen": "fit/validate/next_batch.batches > 0"})  # fmt: skip
    further = around.rename("fit/validate/next_batch", "fetch")
    assert further.guards == {"seen": "fit/validate/fetch.batches > 0"}
    assert further.nodes["fit"].body == renamed


def test_edits_of_a_text_apply_in_order(tmp_path: Path) -> None:
    edits = ['insert = "p"\nuse = "choice"\nafter = "step"', 'rename = "p"\nnew = "q"', 'remove = "q"']
    text = 'format = 1\nextends = "fit"\nallow = ["G209"]\n' + "".join(f"[[edit]]\n{edit}\n" for edit in edits)
    graph = Graph.loads(text, name="mine.toml")
    assert replace(graph, name="fit", allow=()) == FIT
    assert (graph.name, graph.allow) == ("mine", ("G209",))
    (tmp_path / "base.toml").write_text(text)
    (tmp_path / "over.toml").write_text('format = 1\nextends = "base.toml"\nallow = ["G403"]\n')
    assert Graph.load(tmp_path / "over.toml").allow == ("G209", "G403"), "what the base allows stays allowed"


# ---- values


@pytest.mark.parametrize("name", ["nodes", "edges", "guards", "units", "places"])
def test_a_graph_refuses_assignment(name: str) -> None:
    mapping: Any = getattr(FIT, name)
    with pytest.raises(TypeError):
        mapping["x"] = mapping[next(iter(mapping))]
    for thing, attribute in ((FIT, name), (FIT.nodes["accumulate"], "use"), (FIT.edges["step"][0], "target")):
        with pytest.raises(AttributeError):
            setattr(thing, attribute, {})
    step: Any = FIT.nodes["accumulate"]
    for attribute in ("parameters", "reads", "writes"):
        with pytest.raises(TypeError):
            getattr(step, attribute)["every"] = 2


def test_a_graph_does_not_follow_the_values_it_was_made_from() -> None:
    every, table = ["1 epochs"], {"a": [1]}
    graph = FIT.set("log", every=every, table=table)
    every.append("2 steps")
    table["a"].append(2)
    assert graph.nodes["log"].parameters == {"every": ["1 epochs"], "table": {"a": [1]}}


def test_values_given_in_python_equal_those_of_a_text() -> None:
    for name, value, plain in (
        ("log", Trigger("1/2 epochs"), "0.5 epochs"),
        ("checkpoint", Trigger(["1 epochs", "2 hours"]), ["1 epochs", "2 hours"]),
        ("schedule", Trigger("never"), "never"),
        ("validate", ("1 epochs", "10 steps"), ["1 epochs", "10 steps"]),
        ("accumulate", numpy.int64(3), 3),
    ):
        graph = FIT.set(name, every=value)
        found = graph.nodes[name].parameters["every"]
        assert (found, type(found)) == (plain, type(plain))
        assert graph.check() == [] and Graph.loads(graph.to_toml()) == graph
    assert type(FIT.set("clip", max_norm=numpy.float64(0.5)).nodes["clip"].parameters["max_norm"]) is float


def test_a_function_or_class_is_a_kind_from_then_on() -> None:
    def my_clip(optimizer: Any, *, ratio: float = 0.5) -> None:
        """Scale by half."""

    @node(name="other")
    def something() -> None:
        """Nothing."""

    graph = FIT.replace("clip", my_clip, ratio=0.25).insert("x", something, after="step")
    assert (graph.nodes["clip"].use, graph.nodes["x"].use) == ("my_clip", "other")
    assert graph.check() == []
    assert [problem.code for problem in graph.set("clip", ratio="x").check()] == ["G104"]
