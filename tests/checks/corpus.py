"""Broken graphs: each a small edit of a shipped one, with every problem that must be reported, and no other may be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from graphtrain import Edge, Graph, Node, Trigger, node, progress
from graphtrain.kind import DECLARED, Kind, kind_of

FIT = Graph.load("fit")
EVALUATE = Graph.load("evaluate")


@dataclass(frozen=True)
class Broken:
    """A graph and what is wrong with it.

    Attributes:
        title: what a person did.
        graph: makes it.
        expected: code and place of every problem, such as ``"G404 nodes.zero_grad"``, in the order of the report.
        ranks: True if it is broken for several ranks alone.
    """

    title: str
    graph: Callable[[], Graph]
    expected: tuple[str, ...]
    ranks: bool = False


def edited(title: str, edit: Callable[[Graph], Graph], *expected: str, of: Graph = FIT) -> Broken:
    """An edit in Python."""
    return Broken(title, lambda: edit(of), expected)


def overlaid(title: str, text: str, *expected: str, of: str = "fit") -> Broken:
    """An overlay in TOML."""
    return Broken(title, lambda: Graph.loads(f'format = 1\nname = "broken"\nextends = "{of}"\n{text}'), expected)


# --- Kinds that stand in for a user's own. The graphs hold them, so that nothing stays declared. ---------------------


class Tick:
    """Count its visits."""

    ticks: int = progress(0)

    def __call__(self) -> None:
        self.ticks += 1


class TickAtTimes(Tick):
    """Count its visits, of which only some do anything."""

    every: Trigger = Trigger("2 steps")


class ScoreAtTimes:
    """Write a number, at times."""

    every: Trigger = Trigger("2 steps")

    def __call__(self) -> float:
        return 0.0


class HoldsOpen:
    """Write what cannot be saved."""

    def __call__(self) -> object:
        return object()


class SetUpWith:
    """Read a slot when the graph is entered."""

    def setup(self, loss: Any) -> None: ...

    def __call__(self) -> None: ...


def _half_lbfgs(batch: Any) -> None: ...


def _own_pass() -> None: ...


def _perturb() -> None: ...


def _unscale() -> None: ...


def _scale() -> None: ...


def _exchange() -> None: ...


def _inner_pass() -> None: ...


def _use_loss(loss: Any) -> None: ...


def _score() -> float:
    return 0.0


def _read_score(score: Any) -> None: ...


def _read_stream(stream: Any) -> None: ...


def _read_metrics(metrics: Any) -> None: ...


def _pass_batch(batch: Any, samples: Any) -> tuple[Any, Any]:
    return batch, samples


_MARKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tick": (Tick, {}),
    "tick_at_times": (TickAtTimes, {}),
    "holds_open": (HoldsOpen, {"writes": "stream", "transient": "stream"}),
    "set_up_with": (SetUpWith, {}),
    "half_lbfgs": (_half_lbfgs, {"effects": ("backward", "step")}),
    "own_pass": (_own_pass, {"effects": "backward"}),
    "perturb": (_perturb, {"effects": ("use", "zero_grad")}),
    "unscale": (_unscale, {"effects": "unscale"}),
    "scale": (_scale, {"effects": "scale"}),
    "exchange": (_exchange, {"effects": "exchange"}),
    "inner_pass": (_inner_pass, {"effects": ("backward inner_optimizer", "use inner_optimizer")}),
    "use_loss": (_use_loss, {}),
    "score": (_score, {"writes": "score"}),
    "score_at_times": (ScoreAtTimes, {"writes": "score"}),
    "read_score": (_read_score, {}),
    "read_stream": (_read_stream, {}),
    "read_metrics": (_read_metrics, {}),
    "pass_batch": (_pass_batch, {"writes": ("batch", "samples")}),
}


@functools.cache
def own(name: str) -> Kind:
    """A stand-in by its name."""
    implementation, declared = _MARKS[name]
    return undeclared(name, implementation, **declared)


def undeclared(name: str, implementation: Any, **declared: Any) -> Kind:
    """The kind of a function or class that no other graph finds by its name."""
    before = dict(DECLARED)
    try:
        return kind_of(node(name=name, **declared)(implementation))
    finally:
        DECLARED.clear()
        DECLARED.update(before)


def use(graph: Graph, name: str, kind: str | None = None, **where: Any) -> Graph:
    """Insert a node of a stand-in kind."""
    return graph.insert(name, own(kind or name).implementation, **where)


def bound(*names: str) -> Callable[[Graph], Graph]:
    """Bind the optimizer of nodes: ``bound("d step zero_grad")``."""

    def edit(graph: Graph) -> Graph:
        for text in names:
            optimizer, *nodes = text.split()
            for name in nodes:
                graph = graph.set(name, reads={"optimizer": optimizer})
        return graph

    return edit


_ALL = "train_batch accumulate clip step zero_grad"


def in_turn(graph: Graph = FIT) -> Graph:
    """`fit` whose batches are fetched from two sources in turn, of which `next_batch` closes the epochs."""
    graph = graph.insert("turn", "choice", before="next_batch")
    graph = graph.insert("next_other", "next_batch", between=("turn", "next_batch"), reads={"train_data": "other"})
    graph = graph.redirect("next_other", "next_batch", "train_batch")
    return graph.guard("own_turn", "next_batch.runs <= next_other.runs").connect("turn", "next_batch", when="own_turn")


COUNTED = {"by": "train_batch.counted"}


def past(graph: Graph) -> Graph:
    """A graph of which every second step goes from `exchange` straight to `clip`."""
    return graph.guard("odd", "step.steps % 2 == 1").connect("exchange", "clip", when="odd")


def listed(graph: Graph) -> Graph:
    """A graph of which two optimizers go together."""
    for name in ("train_batch", "accumulate", "clip", "step", "zero_grad"):
        graph = graph.set(name, reads={"optimizer": ["a", "b"]})
    return graph


def three_losses(graph: Graph) -> Graph:
    """A graph with three backward passes on each batch."""
    for name, after in (("second", "train_batch"), ("third", "second")):
        graph = graph.insert(name, "train_batch", after=after, writes={"loss": name})
    return graph


def without_window(graph: Graph = FIT) -> Graph:
    """`fit` whose `train_batch` says nothing of a window."""
    return replace(graph, nodes={**graph.nodes, "train_batch": Node("train_batch", "train_batch")})


def two_optimizers(graph: Graph = FIT) -> Graph:
    """`fit` for the optimizer `g`, and after its `zero_grad` one pass, step and clearing for `d`."""
    graph = bound(f"g {_ALL}")(graph)
    for name, kind, after in (
        ("d_batch", "train_batch", "zero_grad"),
        ("d_step", "step", "d_batch"),
        ("d_zero", "zero_grad", "d_step"),
    ):
        graph = graph.insert(name, kind, after=after, reads={"optimizer": "d"})
    return graph


def tiny(
    nodes: dict[str, Any], edges: dict[str, list[str]], guards: dict[str, str] | None = None, **more: Any
) -> Graph:
    """A graph from kinds by name: ``tiny({"a": "tick"}, {"a": ["a if again", "end"]}, {"again": "a.ticks < 3"})``."""

    def made(name: str, value: Any) -> Node:
        if isinstance(value, Node):
            return replace(value, name=name)
        if isinstance(value, Graph):
            return Node(name, "nested", body=value)
        kind = own(value) if value in _MARKS else None
        return Node(name, value, kind=kind)

    def edge(text: str) -> Edge:
        target, _, guard = text.partition(" if ")
        return Edge(target, guard or None)

    return Graph(
        "tiny",
        next(iter(nodes)),
        {name: made(name, value) for name, value in nodes.items()},
        {name: tuple(map(edge, leaving)) for name, leaving in edges.items()},
        guards or {},
        **more,
    )


# What is asked of a step by step graph: fetch, pass, step, clear, and again until there is no more.
_PLAIN = {
    "next_batch": ["train_batch"],
    "train_batch": ["step"],
    "step": ["zero_grad"],
    "zero_grad": ["end if done", "next_batch"],
}
_DONE = {"done": "next_batch.last"}


def plain(**edges: list[str]) -> Graph:
    """The smallest sound training, with some of its edges, and their nodes, changed."""
    every = {**_PLAIN, **edges}
    return tiny({name: name for name in every}, every, _DONE)


def two_time_scales(finished: str) -> Graph:
    """Every batch is for two optimizers, of which one steps at every fourth."""
    graph = plain(zero_grad=["slow_step if slow_due", "finish"], slow_step=["slow_zero"], slow_zero=["finish"],
                  finish=["end if finished", "next_batch"])  # fmt: skip
    graph = graph.replace("slow_step", "step").replace("slow_zero", "zero_grad").clock("epochs", "next_batch.epochs")
    guards = {"slow_due": "next_batch.batches % 4 == 0", "finished": finished}
    graph = bound("fast step zero_grad", "slow slow_step slow_zero")(replace(graph, guards=guards))
    return graph.set("train_batch", reads={"optimizer": ["fast", "slow"]})


def handing_out(graph: Graph) -> Graph:
    """A training that hands out the metrics of its validation, which it may not have had."""
    return replace(graph, outputs=("metrics",))


STRUCTURE = [
    edited("float16 without a scale", lambda g: g.set("train_batch", precision="16-mixed"), "G119 nodes.train_batch"),
    edited("a limit that is neither", lambda g: g.set("next_batch", limit=1.5), "G119 nodes.next_batch"),
    edited("a limit that is neither inside", lambda g: g.set("validate/next_batch", limit=1.5),
           "G119 validate/nodes.next_batch"),
    edited("a scheduler stepped twice", lambda g: g.insert("again", "schedule", at="decide", after="schedule"),
           "G119 nodes.again"),
    edited("a return to a checkpoint that none saves", lambda g: g.overlay("rollback").remove("checkpoint"),
           "G119 nodes.rollback"),
    edited("two copies of one name", lambda g: g.overlay("ema").insert("second", "ema", after="ema",
                                                                       reads={"model": "teacher"}), "G119 nodes"),
]  # fmt: skip

DATA = [
    edited("training before there is a batch", lambda g: replace(g, start="train_batch"), "G303 nodes.train_batch"),
    edited("a score that the round before has written", lambda g: use(
        use(g, "read_score", before="train_batch"), "score", after="train_batch"), "G303 nodes.read_score"),
    edited("training without fetching",
           lambda g: replace(g, start="train_batch").redirect("zero_grad", "next_batch", "train_batch").set(
               "zero_grad").remove("next_batch"),
           "G202 guards.done", of=plain()),
    edited("a reader that the writer comes after", lambda g: use(g, "read_score", before="train_batch").insert(
        "score", own("score").implementation, before="finish"), "G303 nodes.read_score"),
    edited("a reader before the only writer",
           lambda g: use(use(g, "read_score", before="next_batch"), "score", before="end"), "G303 nodes.read_score",
           of=EVALUATE),
    edited("reading before writing in a nested graph",
           lambda g: g.set("validate", graph=use(use(EVALUATE, "read_score", before="next_batch"), "score",
                                                 before="end_evaluation")),
           "G303 validate/nodes.read_score"),
    edited("a split that is not written yet", lambda g: replace(g, start="next_batch").redirect(
        "begin_evaluation", "next_batch", "eval_batch").redirect("next_batch", "eval_batch", "begin_evaluation"),
           "G304 nodes.end_evaluation", "G415 nodes.begin_evaluation", of=EVALUATE),
    edited("a slot written on one branch only",
           lambda g: use(use(g, "score", before="clip"), "read_score", before="end_epoch"),
           "G304 nodes.read_score"),
    edited("a slot written when a guard held", lambda g: use(use(g, "score", between=("decide", "log")), "read_score",
                                                             after="zero_grad"), "G304 nodes.read_score"),
    edited("a loss before the first batch", lambda g: use(g, "use_loss", between=("decide", "log")),
           "G304 nodes.use_loss"),
    edited("metrics before the first validation", lambda g: use(g, "read_metrics", before="schedule"),
           "G304 nodes.read_metrics"),
    edited("a slot that a skipped node writes",
           lambda g: use(use(g, "score_at_times", after="train_batch"), "read_score", after="score_at_times"),
           "G304 nodes.read_score"),
    edited("a guard that reads a slot before it is written", lambda g: g.guard("log_due", "log.due and loss > 0"),
           "G304 edges.decide"),
    edited("a guard that reads a slot behind an edge that is taken first",
           lambda g: use(g, "score", after="zero_grad").guard("good", "score > 1 and accumulate.count == 0").connect(
               "decide", "end", when="good", before="next_batch"), "G304 edges.decide"),
    edited("a guard that reads a slot when the run starts",
           lambda g: use(g, "score", after="zero_grad").guard("ending", or_="score > 1"), "G303 edges.decide"),
    edited("a guard that chooses a slot when the run starts",
           lambda g: use(g, "score", after="zero_grad").guard(
               "ending", or_="(step.steps > 9 if step.steps > 0 else score > 1)"), "G303 edges.decide"),
    edited("a guard that does not choose a slot when the run starts",
           lambda g: use(g, "score", after="zero_grad").guard(
               "ending", or_="(score > 1 if step.steps > 0 else log.due)"), "G304 edges.decide"),
    edited("a guard that reads a slot at the first visit, whatever was counted before",
           lambda g: use(replace(g, start="begin_epoch"), "score", before="step").guard(
               "data_exhausted", or_="score > 1"), "G303 edges.next_batch"),
    edited("a parameter read from a slot that is written later",
           lambda g: use(g, "score", after="clip").set("clip", reads={"max_norm": "1 + score"}), "G303 nodes.clip"),
    edited("a guard that reads a slot never written before",
           lambda g: use(g, "score", before="end").connect("next_batch", "end_evaluation", when="sure").guard(
               "sure", "score > 1"), "G303 edges.next_batch", of=EVALUATE),
    edited("a guard on a slot written on one branch",
           lambda g: use(g, "score", before="clip").guard("good", "score > 1").connect("accumulate", "zero_grad",
                                                                                          when="good", first=False),
           "G303 edges.accumulate", "G404 nodes.zero_grad"),
    edited("set up with what is written later", lambda g: use(g, "set_up_with", after="step"),
           "G303 nodes.set_up_with"),
    edited("a body set up with what comes after it",
           lambda g: replace(use(g, "warm", "tick", before="decide"), start="warm").set("validate", graph=use(
               EVALUATE, "set_up_with", before="end_evaluation")).insert(
                   "first", "nested", before="warm").set(
                        "first", graph=use(EVALUATE.set("begin_evaluation", split="first"), "set_up_with",
                                           after="eval_batch")),
           "G303 nodes.first"),
    edited("an output written on one branch only",
           lambda g: use(g, "read_score", after="validate").set("validate", graph=replace(
               use(EVALUATE, "score", between=("eval_batch", "next_batch")), outputs=("metrics", "score"))),
           "G304 nodes.read_score"),
    edited("an output of an earlier visit",
           lambda g: use(tiny({"fold": handing_out(g), "again": "tick"},
                              {"fold": ["again"], "again": ["end if done", "fold"]}, {"done": "again.ticks > 2"}),
                         "read_metrics", after="again"), "G304 nodes.read_metrics"),
    edited("a second validation under the name of the first",
           lambda g: g.insert("test", graph=EVALUATE, between=("decide", "validate"), reads={"val_data": "test_data"}),
           "G307 test/nodes.begin_evaluation"),
]  # fmt: skip


GRADIENTS = [
    edited("the step without its window", lambda g: g.guard("accumulation_reached", "window_complete or window_cut"),
           "G411 nodes.clip", "G401 nodes.step"),
    edited("a window that a path to the step passes by, of a node that does not name it",
           lambda g: without_window(g).set("accumulate", every=4).redirect("train_batch", "accumulate", "clip"),
           "G409 nodes.train_batch"),
    edited("two losses in a window of one", lambda g: g.insert("second", "train_batch", after="train_batch", writes={
        "loss": "other"}), "G409 nodes.train_batch"),
    edited("two losses in a window of three", lambda g: g.insert("second", "train_batch", before="train_batch", writes={
        "loss": "other"}).set("accumulate", every=3), "G409 nodes.second"),
    edited("three losses in a window of two", lambda g: three_losses(g).set("accumulate", every=2),
           "G409 nodes.train_batch"),
    edited("three losses in a window of four", lambda g: three_losses(g).set("accumulate", every=4),
           "G409 nodes.train_batch"),
    edited("a loss after the window of one was checked", lambda g: g.insert(
        "late", "train_batch", before="clip", writes={"loss": "other"}), "G409 nodes.late"),
    edited("the step straight after the data", lambda g: g.redirect("next_batch", "accumulate", "clip"),
           "G411 nodes.clip", "G401 nodes.step"),
    edited("a step before the backward pass", lambda g: g.insert("early", "step", before="train_batch"),
           "G401 nodes.early", "G405 nodes.train_batch"),
    edited("no backward pass at all", lambda g: g.remove("train_batch"), "G401 nodes.step"
           , of=plain()),
    edited("no backward pass, and a window that never opens", lambda g: g.remove("train_batch"), "G401 nodes.step"),
    edited("a step of another optimizer", lambda g: two_optimizers(g).set("d_step", reads={"optimizer": "g"}),
           "G401 nodes.d_step", "G408 nodes.d_batch"),
    overlaid("two steps in a row", '[[edit]]\ninsert = "again"\nuse = "step"\nafter = "step"', "G403 nodes.again"),
    edited("a second step on one branch", lambda g: g.insert("again", "step", between=("decide", "log")).redirect(
        "zero_grad", "decide", "log").redirect("step", "zero_grad", "decide"), "G107 nodes.zero_grad"),
    edited("a step, and the same step before it", lambda g: g.insert("again", "step", before="clip"),
           "G406 nodes.clip", "G403 nodes.step"),
    edited("zero_grad inside a window", lambda g: g.redirect("train_batch", "accumulate", "zero_grad").redirect(
        "zero_grad", "decide", "accumulate"), "G404 nodes.zero_grad"),
    edited("cleared before every batch", lambda g: g.insert("clear", "zero_grad", before="train_batch"),
           "G404 nodes.clear"),
    edited("cleared where the data ends", lambda g: g.insert("clear", "zero_grad", before="end_epoch").guard(
        "window_cut", "finish.due"), "G404 nodes.clear"),
    edited("cleared between clipping and the step", lambda g: g.insert("clear", "zero_grad", after="clip"),
           "G404 nodes.clear", "G401 nodes.step"),
    edited("fresh gradients cleared after the pass", lambda g: g.insert("clear", "zero_grad", after="train_batch"),
           "G404 nodes.clear"),
    edited("cleared before the step", lambda g: g.redirect("clip", "step", "zero_grad").redirect(
        "zero_grad", "decide", "step").redirect("step", "zero_grad", "decide"), "G404 nodes.zero_grad",
           "G401 nodes.step"),
    edited("a backward pass after clipping", lambda g: g.insert("more", "train_batch", after="clip"),
           "G402 nodes.more", "G409 nodes.more"),
    edited("clipped with every pass of a window", lambda g: g.insert("each", "clip", after="train_batch"),
           "G402 nodes.train_batch"),
    edited("zero_grad removed", lambda g: g.remove("zero_grad"), "G405 nodes.train_batch"),
    edited("zero_grad on one branch only", lambda g: g.guard("often", "step.steps % 2 == 0").connect(
        "step", "decide", when="often"), "G405 nodes.train_batch"),
    edited("zero_grad of another optimizer", lambda g: two_optimizers(g).set("d_zero", reads={"optimizer": "g"}),
           "G405 nodes.d_batch"),
    edited("clip after step", lambda g: g.remove("clip").insert("clip", after="step"), "G406 nodes.clip"),
    edited("unscale after step", lambda g: use(g, "unscale", after="step"), "G406 nodes.unscale"),
    edited("unscale after clip", lambda g: use(g, "unscale", after="clip"), "G412 nodes.unscale"),
    edited("unscale twice", lambda g: use(use(g, "unscale", before="clip"), "again", "scale", after="unscale"),
           "G412 nodes.again"),
    edited("exchanged twice", lambda g: use(use(g, "sum", "exchange", before="clip"), "again", "exchange", after="sum"),
           "G412 nodes.again"),
    edited("exchanged after unscaling",
           lambda g: use(use(g, "sum", "exchange", before="clip"), "unscale", before="sum"),
           "G412 nodes.sum"),
    edited("exchanged after clipping", lambda g: use(g, "sum", "exchange", after="clip"), "G412 nodes.sum"),
    edited("exchanged after the step", lambda g: use(g, "sum", "exchange", after="step"), "G406 nodes.sum"),
    edited("exchanged where there is nothing",
           lambda g: use(g, "sum", "exchange", after="zero_grad"), "G411 nodes.sum"),
    edited("a backward pass after unscaling", lambda g: use(g, "unscale", after="train_batch"),
           "G413 nodes.train_batch"),
    edited("unscaled, where no loss was scaled", lambda g: g.insert("unscale", before="clip"), "G414 nodes.unscale"),
    edited("unscaled, where the loss was scaled by another node",
           lambda g: g.overlay("fp16").set("train_batch", reads={"loss_scale": "step.steps"})
           .rename("unscale", "divide_by_scale"), "G414 nodes.divide_by_scale"),
    edited("a scaled loss, and a path past unscaling", lambda g: past(g.overlay("fp16")), "G414 nodes.step"),
    edited("a second loss that is not scaled", lambda g: g.overlay("fp16").set("accumulate", every=2).insert(
        "second", "train_batch", after="train_batch", writes={"loss": "other"}), "G414 nodes.unscale"),
    edited("a scaled loss of two optimizers, of which one is unscaled", lambda g: bound("a unscale")(
        listed(g.overlay("fp16"))).set("discard", reads={"optimizer": ["a", "b"]}), "G414 nodes.step"),
    edited("sums that are not divided", lambda g: g.set("train_batch", per="tokens"), "G414 nodes.step"),
    edited("sums, and a path past dividing", lambda g: past(g.overlay("token_windows")), "G414 nodes.step"),
    edited("sums divided after every pass", lambda g: g.overlay("token_windows").remove("divide").insert(
        "divide", after="train_batch", reads=COUNTED), "G414 nodes.train_batch"),
    edited("sums divided twice", lambda g: g.overlay("token_windows").insert(
        "again", "divide", after="divide", reads=COUNTED), "G414 nodes.again"),
    edited("a backward pass after the exchange",
           lambda g: use(use(g, "sum", "exchange", before="clip"), "more", "own_pass", after="sum"), "G413 nodes.more"),
    edited("cleared after the exchange", lambda g: use(g, "sum", "exchange", before="clip").insert(
        "clear", "zero_grad", after="sum"), "G404 nodes.clear", "G411 nodes.clip",
           "G401 nodes.step"),
    edited("gradients of an inner optimizer that are never cleared",
           lambda g: bound("optimizer train_batch step zero_grad")(use(g, "inner_pass", before="train_batch")),
           "G405 nodes.inner_pass", of=plain()),
    edited("an inner optimizer beside one that is not named", lambda g: bound("optimizer train_batch zero_grad")(
        use(g, "inner_pass", before="train_batch")), "G410 nodes.step", of=plain()),
    edited("SAM in a window as two nodes", lambda g: use(g, "perturb", after="train_batch").insert(
        "second", "train_batch", after="perturb").set("accumulate", every=4), "G409 nodes.train_batch"),
    edited("unscale where there is nothing", lambda g: use(g, "unscale", before="train_batch"),
           "G411 nodes.unscale", of=plain()),
    *(edited(f"a schedule {place} {node}", lambda g, at={place: node}, every=every: g.remove(
        "schedule", to="decide").insert("schedule", **at, every=every), "G416 nodes.schedule")
      for place, node, every in (("before", "step", "1 batches"), ("after", "train_batch", "1 steps"),
                                 ("before", "clip", "1 epochs"))),
    edited("clip where there is nothing", lambda g: g.insert("early", "clip", before="train_batch"), "G411 nodes.early",
           of=plain()),
    edited("clip after zero_grad", lambda g: g.insert("late", "clip", after="zero_grad"), "G411 nodes.late"),
    edited("perturbing twice", lambda g: use(use(g, "perturb", after="train_batch"), "again", "perturb",
                                             after="perturb"),
           "G411 nodes.again", "G401 nodes.step", of=plain()),
    edited("end with an open window", lambda g: g.guard("finished", "finish.due or next_batch.empty"),
           "G407 nodes.finish"),
    edited("end in the middle", lambda g: g.connect("train_batch", "end", when="finished").guard(
        "finished", "next_batch.last"), "G407 nodes.train_batch", of=plain()),
    edited("end after clipping", lambda g: g.guard("late", "finish.due").connect("clip", "end", when="late"),
           "G407 nodes.clip"),
    edited("step removed", lambda g: g.remove("step").clock("steps", "zero_grad.runs"), "G408 nodes.train_batch"),
    edited("step bypassed", lambda g: g.replace("step", "choice").clock("steps", "step.runs"),
           "G408 nodes.train_batch"),
    edited("an optimizer never stepped", lambda g: two_optimizers(g).remove("d_step"), "G408 nodes.d_batch"),
    edited("accumulate bypassed to decide", lambda g: g.redirect("train_batch", "accumulate", "decide"),
           "G409 nodes.train_batch"),
    edited("accumulate bypassed to clip", lambda g: g.redirect("train_batch", "accumulate", "clip"),
           "G409 nodes.train_batch"),
    edited("accumulate bypassed, with a window", lambda g: g.set("accumulate", every=4).redirect(
        "train_batch", "accumulate", "clip"), "G409 nodes.train_batch"),
    edited("a critic that divides, and is not asked", lambda g: two_optimizers(g).set("d_batch", reads={
        "window": "accumulate.every"}), "G409 nodes.d_batch"),
    edited("one effect not bound", lambda g: bound("d train_batch accumulate clip step")(g), "G410 nodes.zero_grad"),
    edited("a step not bound", lambda g: two_optimizers(g).insert("more", "clip", after="d_batch"),
           "G410 nodes.more"),
    edited("a window not bound", lambda g: _unbound_window(two_optimizers(g)), "G410 nodes.accumulate"),
    edited("two effects not bound", lambda g: bound("d train_batch accumulate step")(g), "G410 nodes.clip",
           "G410 nodes.zero_grad"),
    edited("lbfgs without its clearing", lambda g: g.replace("zero_grad", "choice").remove("step").replace(
        "train_batch", own("half_lbfgs").implementation), "G405 nodes.train_batch", of=plain()),
    edited("an end between two steps of a slow optimizer", lambda g: two_time_scales("finish.due"), "G407 nodes.finish",
           "G502 edges.finish"),
    edited("an open window at the end of a nested training", lambda g: tiny(
        {"fold": g.guard("finished", "finish.due or next_batch.empty")}, {"fold": ["end"]}),
           "G407 nodes.fold"),
]  # fmt: skip

MODES = [
    edited("a validation that ends with its last batch", lambda g: g.set("validate", graph=EVALUATE.redirect(
        "eval_batch", "end_evaluation", "end")), "G415 validate/nodes.eval_batch"),
    edited("a validation without its end", lambda g: g.set("validate", graph=replace(
        EVALUATE, outputs=()).remove("end_evaluation")), "G415 validate/nodes.next_batch"),
    edited("an evaluation that begins in the training", lambda g: g.insert(
        "begin_evaluation", after="validate", split="other"), "G415 nodes.train_batch", "G415 nodes.begin_evaluation"),
    edited("training in an evaluation", lambda g: g.insert("begin_evaluation", before="train_batch", split="other")
           .insert("end_evaluation", after="train_batch"), "G415 nodes.train_batch"),
    edited("an evaluation that begins with each batch", lambda g: g.set("validate", graph=EVALUATE.redirect(
        "eval_batch", "next_batch", "begin_evaluation")), "G415 validate/nodes.begin_evaluation"),
    edited("a training nested in an evaluation", lambda g: g.set("validate", graph=EVALUATE.insert(
        "more", graph=g.remove("validate"), after="begin_evaluation")), "G415 validate/more/nodes.train_batch"),
]  # fmt: skip


def _unbound_window(graph: Graph) -> Graph:
    accumulate = replace(graph.nodes["accumulate"], reads={})
    return replace(graph, nodes={**graph.nodes, "accumulate": accumulate})


LOOPS = [
    edited("a loop of junctions", lambda g: g.insert("wait", "choice", between=("step", "zero_grad")).insert(
        "more", "choice").connect("more", "wait").guard("slow", "clip.max_norm > 3").connect(
            "wait", "more", when="slow"), "G501 nodes.wait"),
    edited("a junction that waits for a parameter", lambda g: g.insert("wait", "choice", after="step").guard(
        "slow", "accumulate.every > 1").connect("wait", "wait", when="slow"), "G501 nodes.wait"),
    edited("no end", lambda g: g.set("finish", after="never"), "G504 nodes.finish.after"),
    edited("an end that contradicts itself", lambda g: g.guard("ending", "step.steps > 9 and step.steps < 5"),
           "G504 guards.finished"),
    edited("an end before the beginning", lambda g: g.guard("ending", "step.steps < 0"), "G504 guards.finished"),
    edited("a minimum above the maximum", lambda g: g.guard("ending", and_="500 <= step.steps").set(
        "finish", after=["100 steps", "8 hours"]), "G504 nodes.finish.after"),
    edited("an early stop after the end", lambda g: g.overlay("early_stop").set("early_stop", min_epochs=20),
           "G504 nodes.finish.after"),
    edited("a loop of log without data", lambda g: g.guard("log_due", "step.steps > 3"), "G501 nodes.decide"),
    edited("a loop of validation without data", lambda g: g.guard("val_check_batch", "step.steps > 3"),
           "G502 edges.decide"),
    edited("a loop that nobody counts", lambda g: g.guard("done", "clip.max_norm > 1"),
           "G501 nodes.next_batch", of=plain(train_batch=["clip"], clip=["step"])),
    edited("a loop of the clock of another loop", lambda g: tiny(
        {"a": "tick", "b": "tick", "c": "tick"}, {"a": ["b"], "b": ["c if far", "b"], "c": ["end"]},
        {"far": "a.ticks > 3"}), "G501 nodes.b"),
    edited("a loop by a slot that nobody in it writes", lambda g: tiny(
        {"next_batch": "next_batch", "score": "score", "wait": "tick"},
        {"next_batch": ["score"], "score": ["wait"], "wait": ["end if good", "wait"]}, {"good": "score > 1"}),
           "G501 nodes.wait"),
    edited("skipped forever", lambda g: tiny(
        {"a": "tick_at_times", "b": "choice"}, {"a": ["b"], "b": ["end if far", "a"]}, {"far": "a.ticks > 3"},
        units={"steps": "a.ticks"}), "G501 nodes.a"),
    edited("a trigger that only fires once", lambda g: tiny(
        {"c": "tick", "a": "tick_at_times", "b": "choice"}, {"c": ["a"], "a": ["b"], "b": ["end if again", "a"]},
        {"again": "a.due"}, units={"steps": "c.ticks"}), "G501 nodes.a"),
    edited("a step for gradients of several ranks, in one process", lambda g: g.guard(
        "accumulation_reached", and_="accumulate.exchanged"), "G502 edges.accumulate"),
    edited("a window that is complete only after a step", lambda g: g.guard(
        "accumulation_reached", and_="step.steps >= 1"), "G502 edges.accumulate"),
    edited("an open window that no edge leads to the step from", lambda g: g.guard(
        "open", "accumulate.count > 0").connect("exchange", "decide", when="open").guard(
            "finished", "ending and 0 == accumulate.count"), "G502 edges.decide"),
    edited("an end that comes before the first step or never", lambda g: g.guard(
        "finished", "ending and step.steps == 0 and accumulate.count == 0"), "G502 edges.decide"),
    edited("clearing until the window is smaller", lambda g: g.set("accumulate", every=3).guard(
        "wide", "accumulate.window > 1").connect("zero_grad", "zero_grad", when="wide"), "G501 nodes.zero_grad"),
    edited("a count of passes as the only progress", lambda g: g.insert("accumulate", after="train_batch").guard(
        "done", "accumulate.count > 3"), "G501 nodes.next_batch", of=plain()),
    edited("a count that is cleared as often as it grows", lambda g: tiny(
        {"train_batch": "own_pass", "accumulate": "accumulate", "step": "step", "zero_grad": "zero_grad"},
        {"train_batch": ["accumulate"], "accumulate": ["step if full", "train_batch"], "step": ["zero_grad"],
         "zero_grad": ["end if many", "train_batch"]},
        {"full": "accumulate.count >= accumulate.every", "many": "accumulate.count > 9"}), "G501 nodes.train_batch"),
    edited("clearing over and over", lambda g: tiny(
        {"accumulate": "accumulate", "zero_grad": "zero_grad"},
        {"accumulate": ["zero_grad"], "zero_grad": ["end if some", "accumulate"]}, {"some": "accumulate.count > 0"}),
           "G501 nodes.accumulate"),
    edited("a loop inside a nested graph", lambda g: g.guard("last_batch", "begin_evaluation.runs > 3").guard(
        "data_exhausted", "begin_evaluation.runs > 4"), "G501 nodes.next_batch", of=EVALUATE),
    edited("a nested graph that goes round", lambda g: g.set("validate", graph=EVALUATE.guard(
        "last_batch", "begin_evaluation.runs > 3").guard("data_exhausted", "begin_evaluation.runs > 4")),
           "G501 validate/nodes.next_batch"),
    edited("an ending that leaves the amount out", lambda g: g.guard("ending", "step.steps > 9"),
           "G505 nodes.finish.after"),
    edited("an average that begins after the end", lambda g: g.overlay("swa").set(
        "swa", **{"from": ["12 epochs", "2000000 epochs"]}), "G505 nodes.swa.from"),
    edited("more than the whole run", lambda g: g.overlay("swa").set("swa", **{"from": "1.5 run"}).set(
        "validate", every=["2 run", "1 epochs"]), "G505 nodes.swa.from", "G505 nodes.validate.every"),
    edited("a share of a run that ends by time", lambda g: g.set("log", every="0.1 run").set("finish", after="2 hours"),
           "G504 nodes.log.every"),
    edited("a share of a run that may end by time", lambda g: g.set("log", every="0.1 run").set(
        "finish", after=["3 epochs", "2 hours"]), "G504 nodes.log.every"),
    edited("a share of a run that a metric ends", lambda g: g.overlay("early_stop").set("log", every="0.1 run").set(
        "finish", after="never"), "G504 nodes.log.every"),
    edited("a share of a run that it ends by running", lambda g: g.set("log", every="0.1 run").guard(
        "ending", or_="log.runs >= 3"), "G504 nodes.log.every"),
    edited("an end by a share of the run that it ends", lambda g: g.set("finish", after="1 run"),
           "G504 nodes.finish.after"),
    edited("an exit guard that nothing can change", lambda g: g.guard("finished", "clip.max_norm > 3"),
           "G502 edges.decide"),
    edited("an exit by a node outside", lambda g: tiny(
        {"a": "tick", "b": "tick", "c": "choice"},
        {"a": ["b"], "b": ["end if far", "c"], "c": ["b if odd", "b"]},
        {"far": "a.ticks > 3", "odd": "b.ticks % 2 == 1"}), "G502 edges.b"),
    edited("an exit by a parameter inside", lambda g: g.guard("last_batch", "next_batch.limit == 3").redirect(
        "next_batch", "end_evaluation", "eval_batch").connect("eval_batch", "next_batch", when="data_exhausted"),
           "G502 edges.eval_batch", of=EVALUATE),
    edited("a loop that another's progress guards", lambda g: tiny(
        {"a": "tick", "b": "tick", "c": "tick"},
        {"a": ["b"], "b": ["c if more", "end"], "c": ["b if odd", "b"]},
        {"more": "a.ticks > 3", "odd": "c.ticks % 2 == 1"}), "G502 edges.b"),
]  # fmt: skip

SAVING = [
    edited("a stream that training in a nested graph reads forever",
           lambda g: tiny({"fold": use(use(g, "holds_open", before="next_batch"), "read_stream", after="zero_grad")
                           .redirect("read_stream", "holds_open", "next_batch")}, {"fold": ["end"]}),
           "G601 fold/nodes.train_batch", of=plain()),
    edited("a stream opened once and read forever",
           lambda g: use(use(g, "holds_open", before="next_batch"), "read_stream", after="zero_grad").redirect(
               "read_stream", "holds_open", "next_batch"), "G601 nodes.train_batch", of=plain()),
    edited("a stream opened once an epoch",
           lambda g: use(use(g, "holds_open", after="begin_epoch"), "read_stream", after="train_batch"),
           "G304 nodes.read_stream", "G601 nodes.train_batch", "G602 nodes.checkpoint"),
    edited("a transient slot alive at a checkpoint",
           lambda g: use(use(g, "holds_open", before="checkpoint"), "read_stream", after="checkpoint"),
           "G602 nodes.checkpoint"),
    edited("a checkpoint between opening and reading",
           lambda g: use(use(g, "holds_open", after="train_batch").insert("save", "checkpoint", after="holds_open"),
                         "read_stream", after="save"), "G602 nodes.save"),
]  # fmt: skip


class CountTokens:
    """Count the tokens of the batches of this rank."""

    tokens: int = progress(0)

    def __call__(self, batch: Any) -> None:
        self.tokens += 1


class Look:
    """Look at a loss, and remember whether it was high."""

    high: bool = progress(False)

    def __call__(self, loss: Any) -> None:
        self.high = float(loss) > 1


def _of_loss(loss: Any) -> float:
    return float(loss)


def _make_batch() -> tuple[Any, int]:
    return None, 1


COUNT_TOKENS = undeclared("count_tokens", CountTokens).implementation
LOOK = undeclared("look", Look).implementation
OF_LOSS = undeclared("of_loss", _of_loss, writes="high").implementation
MAKE_BATCH = undeclared("make_batch", _make_batch, writes=("batch", "samples")).implementation


def skipping(graph: Graph, guard: str) -> Graph:
    """Throw the window away where a guard holds after `look`."""
    graph = graph.insert("look", LOOK, after="train_batch").guard("spike", guard)
    return graph.insert("discard").connect("discard", "accumulate").connect("look", "discard", when="spike")


def for_ranks(title: str, edit: Callable[[Graph], Graph], *expected: str, of: Graph = FIT) -> Broken:
    """What is sound in one process."""
    return Broken(title, lambda: edit(of), expected, ranks=True)


RANKS = [
    for_ranks("a guard on what a node remembers of its loss", lambda g: skipping(g, "look.high"), "G701 guards.spike"),
    for_ranks("a guard on the number of a rank's own batch", lambda g: skipping(g, "next_batch.own_batch_index > 3"),
              "G701 guards.spike"),
    for_ranks("a guard on a slot made of a loss", lambda g: skipping(g, "high > 1").insert(
        "of_loss", OF_LOSS, before="look"), "G701 guards.spike"),
    for_ranks("rows by the tokens of one rank", lambda g: g.insert("count", COUNT_TOKENS, after="train_batch").clock(
        "tokens", "count.tokens").set("log", every="9 tokens"), "G701 nodes.log"),
    for_ranks("clipped by a loss", lambda g: replace(g.insert("of_loss", OF_LOSS, after="train_batch").set(
        "clip", reads={"max_norm": "1 + high"}), allow=("G304",)), "G701 nodes.clip.reads.max_norm"),
    for_ranks("sums of all ranks divided by the samples of one", lambda g: g.insert(
        "divide", after="exchange", reads={"by": "samples"}), "G701 nodes.divide.reads.by"),
    for_ranks("sums of all ranks divided by the tokens of one", lambda g: g.overlay("token_windows").set(
        "divide", over_ranks=False), "G701 nodes.divide.reads.by"),
    for_ranks("windows by a loss", lambda g: replace(g.insert("of_loss", OF_LOSS, after="train_batch").set(
        "accumulate", reads={"every": "2 if high > 1 else 3"}), allow=("G304",)), "G701 guards.window_complete"),
    for_ranks("no exchange", lambda g: g.remove("exchange"), "G702 nodes.step"),
    for_ranks("no exchange, and clipped", lambda g: g.remove("exchange").set("clip", max_norm=1.0), "G702 nodes.step"),
    for_ranks("no exchange for one of two", lambda g: bound("g exchange")(two_optimizers(g)), "G702 nodes.d_step"),
    for_ranks("an exchange for nobody", two_optimizers, "G410 nodes.exchange"),
    for_ranks("exchanged after clipping by ranks", lambda g: g.remove("exchange").insert("exchange", after="clip"),
              "G703 nodes.exchange"),
    for_ranks("exchanged late", lambda g: g.remove("exchange").insert("late", "exchange", before="step"),
              "G703 nodes.late"),
    for_ranks("exchanged after unscaling by ranks", lambda g: use(g, "unscale", before="exchange"),
              "G412 nodes.exchange"),
    for_ranks("exchanged again", lambda g: g.insert("again", "exchange", after="exchange"), "G704 nodes.again"),
    for_ranks("exchanged before and after clipping", lambda g: g.insert("first", "exchange", before="exchange"),
              "G704 nodes.exchange"),
    for_ranks("exchanged where there may be none", lambda g: g.insert("more", "exchange", after="zero_grad"),
              "G411 nodes.more"),
    for_ranks("a batch that is made, each rank by itself", lambda g: replace(
        g.replace("next_batch", MAKE_BATCH).guard("done", "step.steps > 3"), allow=("G702",)), "G705 nodes.train_batch",
        of=plain()),
    for_ranks("passes of a batch without end", lambda g: replace(tiny(
        {"again": "own_pass", "step": "step", "clear": "zero_grad"},
        {"again": ["step"], "step": ["clear"], "clear": ["end if done", "again"]}, {"done": "again.runs > 3"}),
        allow=("G702",)), "G705 nodes.again"),
    for_ranks("a loss divided by the window of one rank", lambda g: g.set(
        "train_batch", reads={"window": "accumulate.every"}), "G706 nodes.train_batch.reads.window"),
    for_ranks("a window complete by the count of one rank", lambda g: g.guard(
        "window_complete", "accumulate.count >= accumulate.every or next_batch.empty"), "G706 guards.window_complete"),
]  # fmt: skip

BROKEN = [*STRUCTURE, *DATA, *GRADIENTS, *MODES, *LOOPS, *SAVING, *RANKS]
