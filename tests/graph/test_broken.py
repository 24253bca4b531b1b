"""Promise 5: broken graphs, each a small edit of a sound one, are refused at the place, or with a path through it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch

from graphtrain import Graph, GraphError, Node, Problem
from tests.graph.corpus import (
    COUNTED,
    EVALUATE,
    FIT,
    KINDS,
    STREAMS,
    add,
    bound,
    listed,
    plain,
    small,
    three_losses,
    tiny,
    two_time_scales,
)


@dataclass(frozen=True)
class Broken:
    """A graph and what is wrong with it.

    Attributes:
        title: what a person did.
        graph: makes it.
        expected: code and place of every problem, such as ``"G404 nodes.zero_grad"``.
        ranks: True if it is broken for several ranks alone.
    """

    title: str
    graph: Callable[[], Graph]
    expected: tuple[str, ...]
    ranks: bool = False


def edited(title: str, edit: Callable[[Graph], Graph], *expected: str, of: Graph = FIT) -> Broken:
    return Broken(title, lambda: edit(of), expected)


ALL = "train_batch accumulate clip step zero_grad"


def past(graph: Graph) -> Graph:
    """A graph of which every second step goes from `exchange` straight to `clip`."""
    return graph.guard("odd", "step.steps % 2 == 1").connect("exchange", "clip", when="odd")


def two_optimizers(graph: Graph = FIT) -> Graph:
    """`fit` for the optimizer `g`, and after its `zero_grad` one pass, step and clearing for `d`."""
    graph = bound(f"g {ALL}")(graph)
    for name, kind, after in (
        ("d_batch", "train_batch", "zero_grad"),
        ("d_step", "step", "d_batch"),
        ("d_zero", "zero_grad", "d_step"),
    ):
        graph = graph.insert(name, kind, after=after, reads={"optimizer": "d"})
    return graph


def handing_out(graph: Graph) -> Graph:
    """A training that hands out the metrics of its validation, which it may not have had."""
    return replace(graph, outputs=("metrics",))


def without_window(graph: Graph) -> Graph:
    """`fit` whose `train_batch` says nothing of a window."""
    return replace(graph, nodes={**graph.nodes, "train_batch": Node("train_batch", "train_batch")})


def skipping(graph: Graph, guard: str) -> Graph:
    """Throw the window away where a guard holds after `look`."""
    graph = graph.insert("look", KINDS["look"], after="train_batch").guard("spike", guard)
    return graph.insert("discard").connect("discard", "accumulate").connect("look", "discard", when="spike")


STRUCTURE = [
    edited("float16 without a scale", lambda g: g.set("train_batch", precision="16-mixed"), "G119 nodes.train_batch"),
    edited("a limit that is neither", lambda g: g.set("next_batch", limit=1.5), "G104 nodes.next_batch.limit"),
    edited("a limit that is neither inside", lambda g: g.set("validate/next_batch", limit=1.5),
           "G104 validate/nodes.next_batch.limit"),
    edited("a scheduler stepped twice", lambda g: g.insert("again", "schedule", at="decide", after="schedule"),
           "G119 nodes.again"),
    edited("a return to a checkpoint that none saves", lambda g: g.overlay("rollback").remove("checkpoint"),
           "G119 nodes.rollback"),
    edited("two copies of one name", lambda g: g.overlay("ema").insert("second", "ema", after="ema",
                                                                       reads={"model": "teacher"}), "G119 nodes"),
]  # fmt: skip

DATA = [
    edited("training before there is a batch", lambda g: replace(g, start="train_batch"), "G303 nodes.train_batch"),
    edited("a score that the round before has written", lambda g: add(
        add(g, "read_score", before="train_batch"), "score", after="train_batch"), "G303 nodes.read_score"),
    edited("training without fetching",
           lambda g: replace(g, start="train_batch").redirect("zero_grad", "next_batch", "train_batch").set(
               "zero_grad").remove("next_batch"),
           "G202 guards.done", of=plain()),
    edited("a reader that the writer comes after", lambda g: add(g, "read_score", before="train_batch").insert(
        "score", KINDS["score"], before="finish"), "G303 nodes.read_score"),
    edited("a reader before the only writer",
           lambda g: add(add(g, "read_score", before="next_batch"), "score", before="end"), "G303 nodes.read_score",
           of=EVALUATE),
    edited("reading before writing in a nested graph",
           lambda g: g.set("validate", graph=add(add(EVALUATE, "read_score", before="next_batch"), "score",
                                                 before="end_evaluation")),
           "G304 validate/nodes.read_score"),
    edited("a split that is not written yet", lambda g: replace(g, start="next_batch").redirect(
        "begin_evaluation", "next_batch", "eval_batch").redirect("next_batch", "eval_batch", "begin_evaluation"),
           "G304 nodes.end_evaluation", "G415 nodes.begin_evaluation", of=EVALUATE),
    edited("a slot written on one branch only",
           lambda g: add(add(g, "score", before="clip"), "read_score", before="end_epoch"),
           "G304 nodes.read_score"),
    edited("a slot written when a guard held", lambda g: add(add(g, "score", between=("decide", "log")), "read_score",
                                                             after="zero_grad"), "G303 nodes.read_score"),
    edited("metrics before the first validation", lambda g: add(g, "read_metrics", before="schedule"),
           "G304 nodes.read_metrics"),
    edited("a slot that a skipped node writes",
           lambda g: add(add(g, "score_at_times", after="train_batch"), "read_score", after="score_at_times"),
           "G303 nodes.read_score"),
    edited("a guard that reads a slot behind an edge that is taken first",
           lambda g: add(g, "score", after="zero_grad").guard("good", "score > 1 and accumulate.count == 0").connect(
               "decide", "end", when="good", before="next_batch"), "G304 edges.decide"),
    edited("a guard that reads a slot when the run starts",
           lambda g: add(g, "score", after="zero_grad").guard("ending", or_="score > 1"), "G303 edges.decide"),
    edited("a guard that chooses a slot when the run starts",
           lambda g: add(g, "score", after="zero_grad").guard(
               "ending", or_="(step.steps > 9 if step.steps > 0 else score > 1)"), "G303 edges.decide"),
    edited("a guard that reads a slot at the first visit, whatever was counted before",
           lambda g: add(replace(g, start="begin_epoch"), "score", before="step").guard(
               "data_exhausted", or_="score > 1"), "G303 edges.next_batch"),
    edited("a parameter read from a slot that is written later",
           lambda g: add(g, "score", after="clip").set("clip", reads={"max_norm": "1 + score"}), "G303 nodes.clip"),
    edited("a guard that reads a slot never written before",
           lambda g: add(g, "score", before="end").connect("next_batch", "end_evaluation", when="sure").guard(
               "sure", "score > 1"), "G303 edges.next_batch", of=EVALUATE),
    edited("a guard on a slot written on one branch",
           lambda g: add(g, "score", before="clip").guard("good", "score > 1").connect("accumulate", "zero_grad",
                                                                                          when="good", before="decide"),
           "G304 edges.accumulate", "G404 nodes.zero_grad"),
    edited("set up with what is written later", lambda g: add(g, "set_up_with", after="step"),
           "G303 nodes.set_up_with"),
    edited("a body set up with what comes after it",
           lambda g: replace(add(g, "warm", "tick", before="decide"), start="warm").set("validate", graph=add(
               EVALUATE, "set_up_with", before="end_evaluation")).insert(
                   "first", "nested", before="warm").set(
                        "first", graph=add(EVALUATE.set("begin_evaluation", split="first"), "set_up_with",
                                           after="eval_batch")),
           "G303 nodes.first"),
    edited("an output written on one branch only",
           lambda g: add(g, "read_score", after="validate").set("validate", graph=replace(
               add(EVALUATE, "score", between=("eval_batch", "next_batch")), outputs=("metrics", "score"))),
           "G304 nodes.read_score"),
    edited("an output of an earlier visit",
           lambda g: add(tiny({"fold": handing_out(g), "again": "tick"},
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
    edited("two steps in a row", lambda g: g.insert("again", "step", after="step"), "G403 nodes.again"),
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
    edited("unscale after step", lambda g: add(g, "unscale", after="step"), "G406 nodes.unscale"),
    edited("unscale after clip", lambda g: add(g, "unscale", after="clip"), "G412 nodes.unscale"),
    edited("unscale twice", lambda g: add(add(g, "unscale", before="clip"), "again", "scale", after="unscale"),
           "G412 nodes.again"),
    edited("exchanged twice", lambda g: add(add(g, "sum", "exchange", before="clip"), "again", "exchange", after="sum"),
           "G412 nodes.again"),
    edited("exchanged after unscaling",
           lambda g: add(add(g, "sum", "exchange", before="clip"), "unscale", before="sum"),
           "G412 nodes.sum"),
    edited("exchanged after clipping", lambda g: add(g, "sum", "exchange", after="clip"), "G412 nodes.sum"),
    edited("exchanged after the step", lambda g: add(g, "sum", "exchange", after="step"), "G406 nodes.sum"),
    edited("exchanged where there is nothing",
           lambda g: add(g, "sum", "exchange", after="zero_grad"), "G411 nodes.sum"),
    edited("a backward pass after unscaling", lambda g: add(g, "unscale", after="train_batch"),
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
           lambda g: add(add(g, "sum", "exchange", before="clip"), "more", "own_pass", after="sum"), "G413 nodes.more"),
    edited("cleared after the exchange", lambda g: add(g, "sum", "exchange", before="clip").insert(
        "clear", "zero_grad", after="sum"), "G404 nodes.clear", "G411 nodes.clip",
           "G401 nodes.step"),
    edited("gradients of an inner optimizer that are never cleared",
           lambda g: bound("optimizer train_batch step zero_grad")(add(g, "inner_pass", before="train_batch")),
           "G405 nodes.inner_pass", of=plain()),
    edited("an inner optimizer beside one that is not named", lambda g: bound("optimizer train_batch zero_grad")(
        add(g, "inner_pass", before="train_batch")), "G410 nodes.step", of=plain()),
    edited("SAM in a window as two nodes", lambda g: add(g, "perturb", after="train_batch").insert(
        "second", "train_batch", after="perturb").set("accumulate", every=4), "G409 nodes.train_batch"),
    edited("unscale where there is nothing", lambda g: add(g, "unscale", before="train_batch"),
           "G411 nodes.unscale", of=plain()),
    edited("clip where there is nothing", lambda g: g.insert("early", "clip", before="train_batch"), "G411 nodes.early",
           of=plain()),
    edited("the norm of cleared gradients", lambda g: g.insert("gradient_norm", after="zero_grad"),
           "G411 nodes.gradient_norm"),
    edited("clip after zero_grad", lambda g: g.insert("late", "clip", after="zero_grad"), "G411 nodes.late"),
    edited("perturbing twice", lambda g: add(add(g, "perturb", after="train_batch"), "again", "perturb",
                                             after="perturb"),
           "G411 nodes.again", "G401 nodes.step", of=plain()),
    edited("end in the middle", lambda g: g.connect("train_batch", "end", when="finished").guard(
        "finished", "next_batch.last"), "G407 nodes.train_batch", of=plain()),
    edited("end after clipping", lambda g: g.guard("late", "finish.due").connect("clip", "end", when="late"),
           "G407 nodes.clip"),
    edited("step removed", lambda g: g.remove("step").clock("steps", "zero_grad.runs"), "G408 nodes.train_batch"),
    edited("step bypassed", lambda g: g.replace("step", "choice").clock("steps", "step.runs"),
           "G408 nodes.train_batch"),
    edited("an optimizer never stepped", lambda g: two_optimizers(g).remove("d_step"), "G408 nodes.d_batch"),
    edited("accumulate bypassed to decide", lambda g: g.redirect("train_batch", "accumulate", "decide"),
           "G409 nodes.train_batch", "G501 edges.next_batch"),
    edited("accumulate bypassed, with a window", lambda g: g.set("accumulate", every=4).redirect(
        "train_batch", "accumulate", "clip"), "G409 nodes.train_batch"),
    edited("one effect not bound", lambda g: bound("d train_batch accumulate clip step")(g), "G410 nodes.zero_grad"),
    edited("a step not bound", lambda g: two_optimizers(g).insert("more", "clip", after="d_batch"),
           "G410 nodes.more"),
    edited("a window not bound", lambda g: replace(two_optimizers(g), nodes={
        **two_optimizers(g).nodes, "accumulate": FIT.nodes["accumulate"]}), "G410 nodes.accumulate"),
    edited("two effects not bound", lambda g: bound("d train_batch accumulate step")(g), "G410 nodes.clip",
           "G410 nodes.zero_grad"),
    edited("lbfgs without its clearing", lambda g: g.replace("zero_grad", "choice").remove("step").replace(
        "train_batch", KINDS["half_lbfgs"]), "G405 nodes.train_batch", of=plain()),
    edited("an end between two steps of a slow optimizer", lambda g: two_time_scales("finish.due").set(
        "finish", after="3 epochs"), "G407 nodes.finish"),
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


LOOPS = [
    edited("a loop of junctions", lambda g: g.insert("wait", "choice", between=("step", "zero_grad")).insert(
        "more", "choice").connect("more", "wait").guard("slow", "clip.max_norm > 3").connect(
            "wait", "more", when="slow"), "G501 nodes.wait"),
    edited("a junction that waits for a parameter", lambda g: g.insert("wait", "choice", after="step").guard(
        "slow", "accumulate.every > 1").connect("wait", "wait", when="slow"), "G501 nodes.wait"),
    edited("no end", lambda g: g.set("finish", after="never"), "G504 nodes.finish.after"),
    edited("an end that contradicts itself", lambda g: g.guard("ending", "step.steps > 9 and step.steps < 5"),
           "G501 edges.decide"),
    edited("an end before the beginning", lambda g: g.guard("ending", "step.steps < 0"), "G501 edges.decide"),
    edited("a validation at each hundredth step, and again", lambda g: g.guard(
        "val_check_batch", "step.steps % 100 == 0"), "G501 nodes.decide"),
    edited("a loop of log without data", lambda g: g.guard("log_due", "step.steps > 3"), "G501 nodes.decide"),
    edited("a loop of validation without data", lambda g: g.guard("val_check_batch", "step.steps > 3"),
           "G501 nodes.decide"),
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
    edited("a window that is complete only after a step", lambda g: g.guard(
        "accumulation_reached", and_="step.steps >= 1"), "G501 edges.accumulate", "G409 nodes.train_batch"),
    edited("an open window that no edge leads to the step from", lambda g: g.guard(
        "open", "accumulate.count > 0").connect("exchange", "decide", when="open").guard(
            "finished", "ending and 0 == accumulate.count"), "G501 edges.exchange", "G409 nodes.train_batch"),
    edited("an end that comes before the first step or never", lambda g: g.guard(
        "finished", "ending and step.steps == 0 and accumulate.count == 0"), "G501 edges.decide"),
    edited("clearing until the window is smaller", lambda g: g.set("accumulate", every=3).guard(
        "wide", "accumulate.window > 1").connect("zero_grad", "zero_grad", when="wide"), "G501 nodes.zero_grad"),
    edited("a count of passes as the only progress", lambda g: g.insert("accumulate", after="train_batch").guard(
        "done", "accumulate.count > 3"), "G501 nodes.next_batch", of=plain()),
    edited("a count that is cleared as often as it grows", lambda g: tiny(
        {"train_batch": "own_pass", "accumulate": "accumulate", "step": "step", "zero_grad": "zero_grad"},
        {"train_batch": ["accumulate"], "accumulate": ["step if full", "train_batch"], "step": ["zero_grad"],
         "zero_grad": ["end if many", "train_batch"]},
        {"full": "accumulate.count >= accumulate.every", "many": "accumulate.count > 9"}), "G501 nodes.train_batch"),
    edited("an exit guard that nothing can change", lambda g: g.guard("finished", "clip.max_norm > 3"),
           "G501 edges.decide"),
    edited("an exit by a node outside", lambda g: tiny(
        {"a": "tick", "b": "tick", "c": "choice"},
        {"a": ["b"], "b": ["end if far", "c"], "c": ["b if odd", "b"]},
        {"far": "a.ticks > 3", "odd": "b.ticks % 2 == 1"}), "G501 edges.b"),
    edited("an exit by a parameter inside", lambda g: g.guard("last_batch", "next_batch.limit == 3").redirect(
        "next_batch", "end_evaluation", "eval_batch").connect("eval_batch", "next_batch", when="data_exhausted"),
           "G501 edges.eval_batch", of=EVALUATE),
    edited("a loop that another's progress guards", lambda g: tiny(
        {"a": "tick", "b": "tick", "c": "tick"},
        {"a": ["b"], "b": ["c if more", "end"], "c": ["b if odd", "b"]},
        {"more": "a.ticks > 3", "odd": "c.ticks % 2 == 1"}), "G501 edges.b"),
]  # fmt: skip

SAVING = [
    edited("a stream that training in a nested graph reads forever",
           lambda g: tiny({"fold": add(add(g, "holds_open", before="next_batch"), "read_stream", after="zero_grad")
                           .redirect("read_stream", "holds_open", "next_batch")}, {"fold": ["end"]}),
           "G601 fold/nodes.train_batch", of=plain()),
    edited("a stream opened once and read forever",
           lambda g: add(add(g, "holds_open", before="next_batch"), "read_stream", after="zero_grad").redirect(
               "read_stream", "holds_open", "next_batch"), "G601 nodes.train_batch", of=plain()),
    *(Broken(title, STREAMS[title], problems) for title, problems in {
        "a stream opened once an epoch": (
            "G601 nodes.train_batch", "G602 nodes.checkpoint"),
        "a transient slot alive at a checkpoint": ("G602 nodes.checkpoint",),
        "a checkpoint between opening and reading": ("G602 nodes.save",),
    }.items()),
]  # fmt: skip


# Sound in one process.
RANKS = [
    edited("a guard on what a node remembers of its loss", lambda g: skipping(g, "look.high"), "G701 guards.spike"),
    edited("a guard on the number of a rank's own batch", lambda g: skipping(g, "next_batch.own_batch_index > 3"),
           "G701 guards.spike"),
    edited("a guard on a slot made of a loss", lambda g: skipping(g, "high > 1").insert(
        "of_loss", KINDS["of_loss"], before="look"), "G701 guards.spike"),
    edited("rows by the tokens of one rank", lambda g: add(g, "count_tokens", after="train_batch").clock(
        "tokens", "count_tokens.tokens").set("log", every="9 tokens"), "G701 nodes.log"),
    edited("clipped by a loss", lambda g: replace(g.insert("of_loss", KINDS["of_loss"], after="train_batch").set(
        "clip", reads={"max_norm": "1 + high"}), allow=("G304",)), "G701 nodes.clip.reads.max_norm"),
    edited("sums of all ranks divided by the samples of one", lambda g: g.insert(
        "divide", after="exchange", reads={"by": "samples"}), "G701 nodes.divide.reads.by"),
    edited("sums of all ranks divided by the tokens of one", lambda g: g.overlay("token_windows").set(
        "divide", over_ranks=False), "G701 nodes.divide.reads.by"),
    edited("windows by a loss", lambda g: replace(g.insert("of_loss", KINDS["of_loss"], after="train_batch").set(
        "accumulate", reads={"every": "2 if high > 1 else 3"}), allow=("G303", "G304")), "G701 guards.window_complete"),
    edited("no exchange", lambda g: g.remove("exchange"), "G702 nodes.step"),
    edited("no exchange, and clipped", lambda g: g.remove("exchange").set("clip", max_norm=1.0), "G702 nodes.step"),
    edited("no exchange for one of two", lambda g: bound("g exchange")(two_optimizers(g)), "G702 nodes.d_step"),
    edited("an exchange for nobody", two_optimizers, "G410 nodes.exchange"),
    edited("exchanged after clipping by ranks", lambda g: g.remove("exchange").insert("exchange", after="clip"),
           "G703 nodes.exchange"),
    edited("exchanged late", lambda g: g.remove("exchange").insert("late", "exchange", before="step"),
           "G703 nodes.late"),
    edited("exchanged after unscaling by ranks", lambda g: add(g, "unscale", before="exchange"),
           "G412 nodes.exchange"),
    edited("the norm before the exchange", lambda g: g.insert("gradient_norm", before="exchange"),
           "G703 nodes.gradient_norm"),
    edited("exchanged again", lambda g: g.insert("again", "exchange", after="exchange"), "G704 nodes.again"),
    edited("exchanged before and after clipping", lambda g: g.insert("first", "exchange", before="exchange"),
           "G704 nodes.exchange"),
    edited("exchanged where there may be none", lambda g: g.insert("more", "exchange", after="zero_grad"),
           "G411 nodes.more"),
    edited("a loss divided by the window of one rank", lambda g: g.set(
        "train_batch", reads={"window": "accumulate.every"}), "G706 nodes.train_batch.reads.window"),
    edited("a window complete by the count of one rank", lambda g: g.guard(
        "window_complete", "accumulate.count >= accumulate.every or next_batch.empty"), "G706 guards.window_complete"),
]  # fmt: skip


BROKEN = [*STRUCTURE, *DATA, *GRADIENTS, *MODES, *LOOPS, *SAVING, *(replace(one, ranks=True) for one in RANKS)]


# What looks broken and does no harm as it is: another amount, or a further edit, would make it so.
HARMLESS = [
    edited("a loss that is logged, which is due after a step", lambda g: add(g, "use_loss", between=("decide", "log"))),
    edited("a loss that a guard reads where it is due after a step", lambda g: g.guard(
        "log_due", "log.due and loss > 0")),
    edited("a slot that a guard reads once it is written", lambda g: add(g, "score", after="zero_grad").guard(
        "ending", or_="(score > 1 if step.steps > 0 else log.due)")),
    edited("an average of which one start is within the run", lambda g: g.overlay("swa").set(
        "swa", **{"from": ["5 epochs", "12 epochs"]})),
    edited("an end amid a window, which the end cuts", lambda g: g.guard("finished", "finish.due or next_batch.empty")),
    edited("a window of one that no guard reads", lambda g: g.redirect("train_batch", "accumulate", "clip")),
    edited("a window of one of another optimizer", lambda g: two_optimizers(g).set("d_batch", reads={
        "window": "accumulate.every"})),
]  # fmt: skip


def node_of(place: str) -> str:
    """The path of the node, or the name of the guard, at the place of a problem."""
    match = re.search(r"((?:\w+/)*)(?:nodes|edges|guards)\.(\w+)", place)
    return match[1] + match[2] if match is not None else ""


def names(problem: Problem, expected: str) -> bool:
    """True if a problem has the expected code, and names the place: where it is, on its path, or in its words."""
    code, place = expected.split(" ", 1)
    node = node_of(place)
    is_there = node in (node_of(problem.where), *problem.path) or f"`{node}`" in problem.message
    return problem.code == code and is_there


def leads(graph: Graph, first: str, second: str) -> bool:
    """True if a path may go from one node to the next: by an edge, into a body, or out of one."""
    if second.startswith(f"{first}/"):
        return True
    outer, slash, rest = first.partition("/")
    if slash:
        body = graph.nodes[outer].body
        assert body is not None
        if second.startswith(f"{outer}/"):
            return leads(body, rest, second.partition("/")[2])
        is_left = any(edge.target == "end" for edge in body.edges[rest.partition("/")[0]])
        return is_left and (second == outer or leads(graph, outer, second))
    return any(edge.target == second for edge in graph.edges[first])


@pytest.mark.first(44)
@pytest.mark.parametrize(
    "broken", [row for start in range(4) for row in BROKEN[start::4]], ids=lambda broken: broken.title
)
def test_each_problem_is_found_at_its_place_with_a_path_and_a_remedy(broken: Broken) -> None:
    graph = broken.graph()
    problems = graph.check(ranks=broken.ranks)
    assert {problem.code for problem in problems} == {expected.split()[0] for expected in broken.expected}
    for expected in broken.expected:
        assert any(names(problem, expected) for problem in problems), problems
    if broken.ranks:
        assert graph.check() == [], "in one process it is sound"
    for problem in problems:
        assert problem.message and "{" not in problem.message
        assert problem.hint or problem.code < "G303"
        if problem.code != "G701":  # whose path is of nodes that make a value, each of what the one before has made
            assert all(leads(graph, *pair) for pair in pairwise(problem.path)), problem


@pytest.mark.parametrize("harmless", HARMLESS, ids=lambda harmless: harmless.title)
def test_what_does_no_harm_as_it_is_passes(harmless: Broken) -> None:
    assert harmless.graph().check() == []


@pytest.mark.full
def test_what_a_run_refuses_at_its_start_is_refused_by_the_check() -> None:
    """Each graph that has no error, and needs no further resources, is made and goes on."""
    for broken in BROKEN:
        graph = broken.graph()
        if broken.ranks or any(problem.severity == "error" for problem in graph.check()):
            continue
        made = small(graph).but(scheduler=lambda made: torch.optim.lr_scheduler.ConstantLR(made["optimizer"]))
        try:
            trainer = made.trainer(teacher=torch.nn.Linear(2, 2))
        except GraphError as error:
            assert {problem.code for problem in error.problems} <= {"G301", "G302"}, (broken.title, str(error))
            continue
        trainer.advance()
