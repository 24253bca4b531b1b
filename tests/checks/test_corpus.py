"""Each broken graph of the corpus raises exactly its codes, at their nodes; each sound one is silent."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest
import torch

from graphtrain import Graph, GraphError, Problem, Trainer, node
from graphtrain.checks.codes import CODES
from graphtrain.graph.registry import known_overlays
from tests.checks.corpus import BROKEN, Broken, bound, skipping, two_optimizers
from tests.checks.sound_graphs import SOUND, Sound


def found_in(graph: Graph, *, ranks: bool = False) -> tuple[str, ...]:
    """Code and place of every problem."""
    return tuple(f"{one.code} {thing_of(one)}" for one in graph.check(ranks=ranks))


def thing_of(problem: Problem) -> str:
    """Where a problem is in the graph, without file and line."""
    return re.sub(r"^\w+(\.toml)?(:\d+)? (?=[\w/]+(\.|$))", "", problem.where)


@pytest.mark.second(99)
@pytest.mark.first(24)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.title)
def test_a_broken_graph_raises_exactly_its_codes_and_says_what_to_do(broken: Broken) -> None:
    graph = broken.graph()
    assert Counter(found_in(graph, ranks=broken.ranks)) == Counter(broken.expected)
    if broken.ranks:
        assert found_in(graph) == (), "in one process it is sound"
    for problem in graph.check(ranks=broken.ranks):
        assert problem.message and "{" not in problem.message
        assert problem.hint or problem.code < "G303"
        if problem.code == "G701":  # the nodes that make a value, each of what the one before has made
            continue
        for first, second in pairwise(problem.path):
            assert _leads(graph, first, second), (problem, first, second)


@pytest.mark.first(14)
@pytest.mark.parametrize("overlay", [None, *known_overlays()])
def test_what_is_shipped_is_sound_for_several_ranks(overlay: str | None) -> None:
    graph = Graph.load("fit")
    assert (graph.overlay(overlay) if overlay is not None else graph).check(ranks=True) == []
    assert Graph.load("evaluate").check(ranks=True) == []


def test_what_ranks_have_agreed_on_may_be_asked() -> None:
    @node(writes="agreed", synchronises=True)
    def agree(value: float) -> float:
        return value

    graph = skipping(Graph.load("fit"), "agreed > 3")
    for value in ("loss", "look.high"):
        assert graph.insert("agree", agree, before="look", reads={"value": value}).check(ranks=True) == []
    graph = Graph.load("fit").insert("divide", before="exchange", reads={"by": "samples"})
    assert graph.check(ranks=True) == []  # the gradients of one rank, by its own number
    assert bound("g exchange")(two_optimizers()).insert(
        "d_exchange", "exchange", before="d_step", reads={"optimizer": "d"}
    ).check(ranks=True) == []  # fmt: skip


def _leads(graph: Graph, first: str, second: str) -> bool:
    """True if a path may go from one node to the next: by an edge, into a body, or out of one."""
    if second.startswith(f"{first}/"):
        return True
    outer, slash, rest = first.partition("/")
    if slash:
        body = graph.nodes[outer].body
        assert body is not None
        if second.startswith(f"{outer}/"):
            return _leads(body, rest, second.partition("/")[2])
        return any(edge.target == "end" for edge in body.edges[rest.partition("/")[0]]) and (
            second == outer or _leads(graph, outer, second)
        )
    return any(edge.target == second for edge in graph.edges[first])


@pytest.mark.first(16)
@pytest.mark.parametrize("sound", SOUND, ids=lambda one: one.title)
def test_a_sound_rewiring_is_silent(sound: Sound) -> None:
    assert sound.graph().check() == []
    assert Graph.from_json(sound.graph().to_json()) == sound.graph()


@pytest.mark.second(14)
@pytest.mark.first(3)
@pytest.mark.parametrize("sound", SOUND, ids=lambda one: one.title)
def test_a_sound_rewiring_runs_to_its_end(sound: Sound) -> None:
    """Sound is not only what the checks say: the graph is bound, and goes through its nodes."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    usual = {
        "model": model,
        "optimizer": optimizer,
        "train_data": [torch.ones(2, 2)] * 5,
        "val_data": [torch.ones(2, 2)] * 2,
        "training_step": lambda model, batch: model(batch).square().mean(),
    }
    given = {name: make() for name, make in sound.resources.items()}
    trainer = Trainer(sound.graph(), device="cpu", notify=lambda line: None, **{**usual, **given})
    visited = Counter([trainer.position])
    for _ in range(3_000):
        visited[trainer.advance()] += 1
        if trainer.position == "end":
            break
    assert trainer.position == "end"
    assert set(sound.visited.split()) <= set(visited), visited


@pytest.mark.full
def test_what_a_run_refuses_at_its_start_is_refused_by_the_check() -> None:
    """Of the corpus, each graph that needs no further resources: what has no error is made, and runs a batch."""
    names = ("model", "teacher", "optimizer", "scheduler", "training_step", "train_data", "val_data")
    for broken in BROKEN:
        graph = broken.graph()
        if broken.ranks or any(problem.severity == "error" for problem in graph.check()):
            continue
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
        data = [torch.ones(4, 2)] * 3
        supplied = (model, model, optimizer, schedule, lambda model, batch: model(batch).square().mean(), data, data)
        try:
            trainer = Trainer(graph, display=None, notify=lambda line: None, **dict(zip(names, supplied, strict=True)))
        except GraphError as error:
            assert {problem.code for problem in error.problems} <= {"G301", "G302"}, (broken.title, str(error))
            continue
        trainer.advance()


def test_the_corpus_is_broad() -> None:
    assert len(BROKEN) >= 80 and len(SOUND) >= 40
    assert len({one.title for one in SOUND}) == len(SOUND)
    assert len({one.title for one in BROKEN}) == len(BROKEN)
    places: dict[str, set[str]] = {}
    for broken in BROKEN:
        for one in broken.expected:
            code, _, thing = one.partition(" ")
            places.setdefault(code, set()).add(thing)
    # Those of names and guards are in `test_checks`; some are asked when a trainer is made, and G503 where a search is
    # given up.
    elsewhere = {"G301", "G302", "G309", "G503"}
    assert {code for code in places if code >= "G3"} == {code for code in CODES if code >= "G3"} - elsewhere
    assert {code for code in places if code >= "G3" and len(places[code]) == 1} <= {"G307", "G416"}, places
