"""Promise 5: `check` is silent about what is sound, reports each mistake once and at its line, and can be overruled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy
import pytest
import torch

from graphtrain import Edge, Graph, GraphError, Node, Trigger, node, progress
from tests.graph.corpus import EVALUATE, FIT, KINDS, SOUND, Sound, bound, small


def codes(graph: Graph, *, ranks: bool = False) -> list[str]:
    return [problem.code for problem in graph.check(ranks=ranks)]


# ---- what is sound


@pytest.mark.first(21)
@pytest.mark.parametrize("sound", SOUND, ids=lambda sound: sound.title)
def test_a_sound_rewiring_is_silent(sound: Sound) -> None:
    graph = sound.graph()
    assert graph.check() == []
    assert Graph.from_json(graph.to_json()) == graph


@pytest.mark.second(14)
@pytest.mark.first(4)
@pytest.mark.parametrize("sound", SOUND, ids=lambda sound: sound.title)
def test_a_sound_rewiring_runs_to_its_end(sound: Sound) -> None:
    """Sound is not only what the checks say: the graph is bound, and goes through its nodes."""
    trainer = small(sound.graph()).trainer(**{name: make() for name, make in sound.resources.items()})
    visited = Counter([trainer.position])
    while trainer.position != "end" and visited.total() < 3_000:
        visited[trainer.advance()] += 1
    assert trainer.position == "end"
    assert set(sound.visited.split()) <= set(visited), visited


def test_what_ranks_have_agreed_on_may_decide() -> None:
    @node(writes="agreed", synchronises=True)
    def agree(value: float) -> float:
        return value

    graph = FIT.insert("look", KINDS["look"], after="train_batch").guard("spike", "agreed > 3")
    graph = graph.insert("discard").connect("discard", "accumulate").connect("look", "discard", when="spike")
    for value in ("loss", "look.high"):
        assert codes(graph.insert("agree", agree, before="look", reads={"value": value}), ranks=True) == []
    own = FIT.insert("divide", before="exchange", reads={"by": "samples"})
    assert codes(own, ranks=True) == []  # the gradients of one rank, by its own number


def test_each_of_two_optimizers_may_have_an_exchange() -> None:
    graph = bound("g train_batch accumulate exchange clip step zero_grad")(FIT)
    for name, kind, after in (("d_batch", "train_batch", "zero_grad"), ("d_exchange", "exchange", "d_batch"),
                              ("d_step", "step", "d_exchange"), ("d_zero", "zero_grad", "d_step")):  # fmt: skip
        graph = graph.insert(name, kind, after=after, reads={"optimizer": "d"})
    assert codes(graph, ranks=True) == []
    assert codes(graph.remove("d_exchange"), ranks=True) == ["G702"]


# ---- once, at its place


def test_a_problem_in_a_file_names_its_line_and_no_other() -> None:
    text = FIT.set("clip", max_norm="fast").to_toml()
    (problem,) = Graph.loads(text, name="my.toml").check()
    line = int(problem.where.removeprefix("my.toml:").split(" ")[0])
    assert text.split("\n")[line - 1].startswith("clip = ")
    for graph, where in (
        (FIT.set("clip", max_norm="fast"), "nodes.clip.max_norm"),  # `fit.toml` says nothing wrong
        (FIT.guard("log_due", "log.deu"), "guards.log_due"),
        (FIT.set("validate", graph=EVALUATE.guard("spare", "next_batch.last")), "validate/guards.spare"),
    ):
        (problem,) = graph.check()
        assert problem.where == where


def test_a_prompt_shows_problems_as_lines() -> None:
    problems = FIT.set("clip", max_norm="fast").guard("log_due", "log.deu").check()
    assert repr(problems) == str(problems) == "\n".join(map(str, problems)) and len(problems) == 2
    assert repr(FIT.check()) == "[]"


def test_a_dead_end_has_a_witness() -> None:
    (problem,) = FIT.insert("x", "choice").connect("step", "x", when="log_due").connect("x", "x").check()
    assert problem.code == "G108"
    assert (problem.path[0], problem.path[-2:]) == ("decide", ("step", "x"))
    assert f"path: {' -> '.join(problem.path)}" in str(problem)


def test_one_missing_edge_is_not_reported_at_every_other_node() -> None:
    assert codes(FIT.disconnect("finish", "end").disconnect("finish", "decide")) == ["G113"]
    assert codes(EVALUATE.redirect("end_evaluation", "end", "eval_batch")) == ["G108"]
    (problem,) = FIT.disconnect("finish", "end").check()
    assert "and 12 more to `end`" in problem.message and problem.path == ("decide", "finish")
    two = FIT.connect("step", "log", when="log_due").redirect("log", "decide", "log")
    two = two.insert("x", "choice").connect("clip", "x", when="log_due").connect("x", "x")
    places = [f"{problem.code} {problem.where.split(' ')[-1]}" for problem in two.check()]
    assert places == ["G108 nodes.log", "G108 nodes.x"]


@pytest.mark.parametrize(
    ("edit", "hint"),
    [
        (lambda g: g.disconnect("decide", "finish"), 'decide = ["finish if GUARD", ...]'),
        (lambda g: g.redirect("decide", "finish", "log"), 'decide = ["finish if GUARD", ...]'),
        (lambda g: g.disconnect("finish", "end"), 'finish = ["end if GUARD", ...]'),
        (lambda g: g.remove("finish", to="decide"), 'decide = ["end if GUARD", ...]'),
        (lambda g: g.redirect("zero_grad", "decide", "step"), 'zero_grad = ["end if GUARD", ...]'),
        (lambda g: g.redirect("discard", "decide", "discard"), 'discard = ["end if GUARD", ...]'),
    ],
)
def test_a_run_that_cannot_end_names_the_node_whose_edge_was_cut(edit: Any, hint: str) -> None:
    (problem,) = [each for each in edit(FIT.overlay("drop", "early_stop")).check() if each.code == "G108"]
    assert problem.hint == f"add an edge that leads out, as in {hint}"
    assert f"`{hint.partition(' ')[0]}`" in problem.message.partition(", ")[0]


@pytest.mark.parametrize(
    "edit",
    [
        lambda g: g.replace("step", "my_kind").clock("steps", "step.steps"),
        lambda g: g.replace("train_batch", "my_kind").guard("log_due", "log.due and my_loss > 0.5"),
        lambda g: g.insert("judge", "my_kind", after="validate").guard("log_due", "log.due and judge.whatever > 3"),
        lambda g: g.set("validate", graph=EVALUATE.replace("next_batch", "my_kind")),
        lambda g: g.guard("epoch_done", "next_batch.last").replace("end_epoch", "my_kind"),
    ],
)
def test_what_depends_on_a_kind_that_is_not_known_is_no_problem_of_its_own(edit: Callable[[Graph], Graph]) -> None:
    assert set(codes(edit(FIT))) == {"G102"}


def test_a_circle_is_reported_once_and_only_for_its_members() -> None:
    graph = FIT.guard("log_due", "a").guard("a", "b and log.due").guard("b", "c").guard("c", "b")
    assert [problem.where for problem in graph.check() if problem.code == "G207"] == ["guards.b"]


def test_nodes_of_a_body_that_do_not_name_their_optimizer_are_one_problem_at_the_node_around_them() -> None:
    graph = Graph.loads(
        'format = 1\nstart = "a"\nnodes.a = { graph = "fit" }\n'
        'nodes.b = { graph = "fit", reads = { optimizer = "b_optimizer" } }\nedges.a = ["b"]\nedges.b = ["end"]'
    )
    (problem,) = graph.set("b/begin_epoch", use="begin_epoch").check()
    assert (problem.code, problem.where.split(" ")[-1]) == ("G410", "nodes.a")
    assert graph.set("a", reads={"optimizer": "optimizer"}).check() == []


def test_a_node_without_one_of_several_optimizers_is_shown_those_that_there_are() -> None:
    graph = FIT.set("step", reads={"optimizer": "head"}).set("zero_grad", reads={"optimizer": "head"})
    graph = graph.insert("more", "step", after="zero_grad", reads={"optimizer": "body"})
    (problem, *_) = graph.check()
    assert problem.message.endswith("there are several optimizers: `head`, `body`")
    assert 'reads = { optimizer = ["head", "body"] }' in problem.hint


# ---- overruled


def test_warnings_can_be_allowed_and_errors_of_paths_but_none_of_names() -> None:
    spare, twice = FIT.guard("spare", "log.due"), FIT.insert("again", "step", after="step")
    inside = FIT.set("validate", graph=EVALUATE.guard("spare", "next_batch.last"))
    for graph, code, severity in ((spare, "G209", "warning"), (twice, "G403", "error"), (inside, "G209", "warning")):
        assert [(problem.code, problem.severity) for problem in graph.check()] == [(code, severity)]
        assert codes(replace(graph, allow=(code,))) == []
        assert codes(replace(graph, allow=("G404",))) == [code]
    assert codes(replace(FIT.set("clip", max_norm="x"), allow=("G104",))) == ["G104"]


# ---- what guards may read


def test_a_guard_of_a_parameter_is_not_constant() -> None:
    for expression in ("accumulate.every > 0", "validate.due", "clip.max_norm < 1", "accumulate.every == 1"):
        assert codes(FIT.guard("log_due", f"log.due and {expression}")) == []


def test_a_renamed_slot_is_known_by_its_new_name_alone() -> None:
    renamed = FIT.set("next_batch", writes={"samples": "images"}).set("train_batch", reads={"samples": "images"})
    assert codes(renamed.guard("good", "images > 0").connect("train_batch", "accumulate", when="good")) == []
    assert codes(FIT.guard("good", "samples > 0").connect("train_batch", "accumulate", when="good")) == []
    assert "G208" in codes(renamed.guard("images", "log.due"))
    assert codes(replace(renamed, outputs=("images",))) == []


def test_a_guard_cannot_read_a_slot_whose_kind_returns_a_tensor() -> None:
    def codes_of(returns: object) -> list[str]:
        def measure(batch):  # type: ignore[no-untyped-def]
            """Measure."""

        measure.__annotations__["return"] = returns
        graph = FIT.insert("measure", node(writes="measured")(measure), before="train_batch")
        return codes(graph.guard("high", "measured > 0").connect("train_batch", "accumulate", when="high"))

    assert codes_of(torch.Tensor) == codes_of(dict) == ["G204"]
    for returns in (int, float, bool, Any, float | None, numpy.float64, dict[str, float]):
        assert codes_of(returns) == [], returns


def test_a_slot_of_a_bypassed_node_asks_for_what_bypasses_it() -> None:
    with pytest.raises(GraphError, match="supply `guiding_data`, without which `guiding` is bypassed"):
        small(FIT.overlay("val_guided")).trainer()


class HasFields:
    """Has fields of every type."""

    needed: int
    mode: Literal["a", "b"] = "a"
    size: int | None = None
    sizes: list[int] = [1]  # noqa: RUF012
    pair: tuple[int, int] = (1, 2)
    either: int | str = 1
    anything: Any = None
    count: int = progress(0)
    seen: list[int] = progress([])

    @property
    def ratio(self) -> float:
        return 0.5

    def __call__(self) -> None: ...


def own(expression: str, **parameters: Any) -> Graph:
    edges = {"own": (Edge("own", "again"), Edge("end"))}
    graph = Graph("own", "own", {"own": Node("own", "choice")}, edges, {"again": expression}, allow=("G501",))
    return graph.set("own", use=node(name="own")(HasFields), **parameters)


def test_a_field_has_the_type_that_its_kind_declares() -> None:
    for expression in ("own.count > 0", "own.ratio < 0.5", "own.size == 3", "own.mode == 'a'", "own.runs > 3",
                       "own.anything and own.anything > 3"):  # fmt: skip
        assert codes(own(expression, needed=3)) == [], expression
    other = "own.mode == 3; own.mode; own.sizes > 3; own.pair == 3; own.either == 3; own.seen == 1"
    for expression in other.split("; "):
        assert codes(own(expression, needed=3)) == ["G204"], expression
    assert codes(own("own.due", needed=3)) == ["G203"]


def test_parameters_have_the_types_that_their_kind_declares() -> None:
    good = own("own.count > 0", needed=1, mode="b", size=3, sizes=[1, 2], pair=[3, 4], anything={"a": 1})
    assert good.check() == []
    bad = own("own.count > 0", needed=1.5, mode="c", size="x", sizes=[1, "a"], pair=[3]).check()
    assert {problem.code for problem in bad} == {"G104"}
    assert [problem.where for problem in bad] == [
        f"nodes.own.{name}" for name in ("needed", "mode", "size", "sizes", "pair")
    ]
    (problem,) = own("own.count > 0").check()
    assert (problem.code, problem.where) == ("G104", "nodes.own.needed")


def test_the_unit_of_a_default_is_checked_too() -> None:
    @node
    def beep(*, every: Trigger = Trigger("5 steps")) -> None:  # noqa: B008
        """Beep."""

    graph = EVALUATE.insert("beep", after="eval_batch")
    (problem,) = graph.check()
    assert (problem.code, problem.where) == ("G106", "nodes.beep.every")
    assert codes(graph.set("beep", every="3 batches")) == []
