"""The same in other words is no difference that matters; what may come to something else is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graphtrain import Graph, node

FIT = Graph.load("fit")
# As `fit` was before windows kept their size.
FORMER = FIT.set("train_batch", reads={"window": "accumulate.every"}).guard(
    "window_complete", "accumulate.count >= accumulate.every or next_batch.empty"
)


@node
def watch(size: int) -> None:
    """Look at the size of a window, without opening one."""


def watching(size: str) -> Graph:
    return FIT.insert("watch", watch, after="step", reads={"size": size})


def test_a_window_whose_size_is_a_number_is_asked_for_and_read_in_two_ways() -> None:
    difference = FORMER.diff(FIT)
    assert str(difference).splitlines() == [
        "~ train_batch.reads.window accumulate.every -> accumulate.window",
        "~ wording of guard window_complete",
    ]
    assert not difference.matters
    assert FORMER.set("accumulate", every=2).diff(FIT.set("accumulate", every=3)).matters, "for its size"


@pytest.mark.parametrize(
    "edit",
    [
        lambda graph: graph.set("accumulate", reads={"every": "1 + next_batch.epoch"}),
        lambda graph: graph.set("train_batch", reads={"optimizer": "other"}),
    ],
    ids=["an expression", "another optimizer"],
)
def test_a_window_that_may_have_another_size_is_not_the_same(edit: Callable[[Graph], Graph]) -> None:
    assert edit(FORMER).diff(edit(FIT)).matters


def test_the_size_of_a_window_is_not_known_before_one_was_opened() -> None:
    assert watching("accumulate.every").diff(watching("accumulate.window")).matters


def test_what_a_node_reads_may_be_spaced_in_another_way() -> None:
    clipped = [FIT.set("clip", reads={"max_norm": text}) for text in ("1.0 / (1 + step.steps)", "1.0/(1+step.steps)")]
    assert clipped[0].diff(clipped[1]) and not clipped[0].diff(clipped[1]).matters
    assert clipped[0].diff(FIT.set("clip", reads={"max_norm": "2.0/(1+step.steps)"})).matters
    assert clipped[0].diff(FIT.set("clip", max_norm=1.0)).matters
