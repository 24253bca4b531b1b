"""Promise 5: stand-ins for kinds of one's own, small graphs, and sound rewirings, which people make of a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch

from graphtrain import Edge, Graph, Node, Trigger, node, progress
from tests.world import World, world

FIT, EVALUATE = Graph.load("fit"), Graph.load("evaluate")
SHORT = FIT.set("finish", after="2 epochs")

# --- Kinds that declare what a real one would, and count their visits. ----------------------------------------------


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


class SetUpWith:
    """Read a slot when the graph is entered."""

    def setup(self, loss: Any) -> None: ...

    def __call__(self) -> None: ...


class SetUpWithStream:
    """Take the stream when the body is entered."""

    def setup(self, stream: Any) -> None: ...

    def __call__(self) -> None: ...


class SomePasses:
    """A backward pass, now and then."""

    every: Trigger = Trigger("2 d_steps")

    def __call__(self, model: Any, batch: Any) -> None: ...


class Chunks:
    """Go through a sequence in three chunks."""

    length: int = 3

    chunk: int = progress(0)
    last: bool = progress(False)

    def __call__(self, batch: Any) -> Any:
        self.chunk = self.chunk % self.length + 1
        self.last = self.chunk == self.length
        return batch


class Folds:
    """Give each fold's data in turn."""

    folds: int = 2

    fold: int = progress(0)

    def __call__(self, data: Any) -> tuple[Any, Any]:
        self.fold += 1
        return data[self.fold :], data[: self.fold]


class Minibatches:
    """Go through a buffer some times."""

    epochs: int = 2

    drawn: int = progress(0)
    finished: bool = progress(False)

    def __call__(self, rollout: Any) -> Any:
        self.drawn = self.drawn % (self.epochs * 2) + 1
        self.finished = self.drawn == self.epochs * 2
        return rollout


class Judge:
    """Count the rounds that were no better."""

    bad_rounds: int = progress(0)

    def __call__(self, metrics: Any) -> int:
        self.bad_rounds += 1
        return self.bad_rounds


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


class Ask:
    """Ask for a checkpoint."""

    _checkpoints: Any

    def setup(self, checkpoints: Any) -> None:
        self._checkpoints = checkpoints

    def __call__(self) -> None:
        self._checkpoints.save()


# By names that no shipped kind has: while tests are collected, kinds are found by theirs.
DECLARED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "half_lbfgs": (lambda batch: None, {"effects": ("backward", "step")}),
    "own_pass": (lambda: None, {"effects": "backward"}),
    "perturb": (lambda: None, {"effects": ("use", "zero_grad")}),
    "unscale": (lambda: None, {"effects": "unscale"}),
    "scale": (lambda: None, {"effects": "scale"}),
    "exchange": (lambda: None, {"effects": "exchange"}),
    "inner_pass": (lambda: None, {"effects": ("backward inner_optimizer", "use inner_optimizer")}),
    "use_loss": (lambda loss: None, {}),
    "score": (lambda: 0.0, {"writes": "score"}),
    "read_score": (lambda score: None, {}),
    "read_stream": (lambda stream: None, {}),
    "read_if_there": (lambda stream=None: None, {}),
    "read_metrics": (lambda metrics: None, {}),
    "holds_open": (lambda: object(), {"writes": "stream", "transient": "stream"}),
    "of_loss": (lambda loss: float(loss), {"writes": "high"}),
    "ema": (lambda model: None, {}),
    "own_backward": (lambda model, batch: 1.0, {"effects": "backward", "writes": "loss"}),
    "lbfgs": (lambda model, batch: 1.0, {"effects": ("zero_grad", "backward", "step"), "writes": "loss"}),
    "chunk_batch": (lambda model, chunk: None, {"effects": "backward"}),
    "rollout": (lambda model: torch.zeros(2), {"writes": "rollout"}),
    "ppo_batch": (lambda model, minibatch: None, {"effects": "backward"}),
    "clip_value": (lambda: None, {"effects": "clip"}),
    "scaled_step": (lambda: None, {"effects": "step"}),
    "is_finite": (lambda loss: 1, {"writes": "finite"}),
    "open_stream": (lambda: None, {"writes": "stream", "transient": "stream"}),
    "collect": (lambda metrics=None: None, {}),
    "choose_modes": (lambda model: None, {"effects": "eval"}),
    "tick": (Tick, {}),
    "tick_at_times": (TickAtTimes, {}),
    "score_at_times": (ScoreAtTimes, {"writes": "score"}),
    "set_up_with": (SetUpWith, {}),
    "set_up_with_stream": (SetUpWithStream, {}),
    "often": (type("Often", (TickAtTimes,), {}), {}),
    "some_passes": (SomePasses, {"effects": "backward"}),
    "chunks": (Chunks, {"writes": "chunk"}),
    "folds": (Folds, {"writes": ("train_data", "val_data")}),
    "minibatches": (Minibatches, {"writes": "minibatch"}),
    "judge": (Judge, {"writes": "bad_rounds"}),
    "query": (type("Query", (Tick,), {}), {}),
    "inner": (type("Inner", (Tick,), {}), {"effects": "backward"}),
    "count_tokens": (CountTokens, {}),
    "look": (Look, {}),
    "ask": (Ask, {}),
}
KINDS: dict[str, Any] = {
    name: node(name=f"own_{name}", **declared)(implementation) for name, (implementation, declared) in DECLARED.items()
}


def add(graph: Graph, name: str, kind: str | None = None, **where: Any) -> Graph:
    """Insert a node of a stand-in kind."""
    return graph.insert(name, KINDS[kind or name], **where)


def bound(*names: str) -> Callable[[Graph], Graph]:
    """Bind the optimizer of nodes: ``bound("d step zero_grad")``."""

    def edit(graph: Graph) -> Graph:
        for text in names:
            optimizer, *nodes = text.split()
            for name in nodes:
                graph = graph.set(name, reads={"optimizer": optimizer})
        return graph

    return edit


def of(kind: str, optimizer: str | tuple[str, ...] | None = None, **parameters: Any) -> tuple[str, dict[str, Any]]:
    """A node of `tiny`, for an optimizer."""
    return kind, {**parameters, **({"reads": {"optimizer": optimizer}} if optimizer is not None else {})}


def tiny(
    nodes: dict[str, Any], edges: str | dict[str, list[str]], guards: dict[str, str] | None = None, **more: Any
) -> Graph:
    """A graph in short: ``tiny({"a": "tick"}, "a b; b: a if again, end", {"again": "a.ticks < 3"})``.

    Arguments:
        nodes: a kind or a body each, alone or with what it is set to. Default: the kind of that name.
        edges: chains of nodes, and after a colon targets with their guards.
    """

    def edge(text: str) -> Edge:
        target, _, guard = text.partition(" if ")
        return Edge(target, guard or None)

    if isinstance(edges, str):
        leaving: dict[str, list[str]] = {}
        for part in edges.split("; "):
            source, colon, targets = part.partition(": ")
            if colon:
                leaving[source] = targets.split(", ")
            else:
                leaving |= {one: [other] for one, other in pairwise(part.split())}
        nodes, edges = {name: nodes.get(name, name) for name in leaving}, leaving
    graph = Graph(
        "tiny",
        next(iter(nodes)),
        {name: Node(name, "choice") for name in nodes},
        {name: tuple(edge(text) for text in leaving) for name, leaving in edges.items()},
        guards or {},
        **more,
    )
    for name, value in nodes.items():
        kind, settings = value if isinstance(value, tuple) else (value, {})
        key = "graph" if isinstance(kind, Graph) else "use"
        graph = graph.set(name, **{key: KINDS.get(kind, kind) if key == "use" else kind, **settings})
    return graph


def small(graph: Graph) -> World:
    """A training of five batches and a validation of two, of ones."""
    return world(
        graph,
        model=lambda: torch.nn.Linear(2, 2),
        optimizer="SGD",
        scheduler="none",
        data=lambda: [torch.ones(2, 2)] * 5,
        val_data=lambda: [torch.ones(2, 2)] * 2,
        training_step=lambda model, batch: model(batch).square().mean(),
    )


# The smallest sound training: fetch, pass, step, clear, and again until there is no more.
PLAIN = {"next_batch": ["train_batch"], "train_batch": ["step"], "step": ["zero_grad"],
         "zero_grad": ["end if done", "next_batch"]}  # fmt: skip
DONE = {"done": "next_batch.last"}
COUNTED = {"by": "train_batch.window_count"}


def plain(**edges: list[str]) -> Graph:
    """The smallest sound training, with some of its edges, and their nodes, changed."""
    every = {**PLAIN, **edges}
    return tiny({name: name for name in every}, every, DONE)


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


def two_time_scales(finished: str) -> Graph:
    """Every batch is for two optimizers, of which one steps at every fourth."""
    graph = tiny(
        {"slow_step": of("step", "slow"), "slow_zero": of("zero_grad", "slow"), "step": of("step", "fast"),
         "zero_grad": of("zero_grad", "fast"), "train_batch": of("train_batch", ("fast", "slow"))},
        "next_batch train_batch step zero_grad; zero_grad: slow_step if slow_due, finish; slow_step slow_zero finish; "
        "finish: end if finished, next_batch", {"slow_due": "next_batch.batches % 4 == 0", "finished": finished},
    )  # fmt: skip
    return graph.clock("epochs", "next_batch.epochs")


def two_rates() -> Graph:
    """A body that is stepped at every third step of the head, and an end at one of its steps."""
    both = {"optimizer": ["head", "body"]}
    graph = bound("head accumulate clip step zero_grad")(SHORT.set("train_batch", reads=both))
    graph = bound("head exchange")(graph).guard("third", "step.steps % 3 == 0").guard("finished", and_="third")
    last = "zero_grad"
    for name, kind in (("body_exchange", "exchange"), ("body_step", "step"), ("body_zero", "zero_grad")):
        graph, last = graph.insert(name, kind, after=last, reads={"optimizer": "body"}), name
    return replace(graph, edges={**graph.edges, "zero_grad": (Edge("body_exchange", "third"), Edge("decide"))})


# Graphs in which a slot that cannot be saved is alive where a checkpoint is made.
STREAMS: dict[str, Callable[[], Graph]] = {
    "a stream opened once an epoch": lambda: add(
        add(FIT, "holds_open", after="begin_epoch"), "read_stream", after="train_batch"
    ),
    "a transient slot alive at a checkpoint": lambda: add(
        add(FIT, "holds_open", before="checkpoint"), "read_stream", after="checkpoint"
    ),
    "a checkpoint between opening and reading": lambda: add(
        add(FIT, "holds_open", after="train_batch").insert("save", "checkpoint", after="holds_open"),
        "read_stream",
        after="save",
    ),
}

# --- Sound graphs. --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sound:
    """A graph without problems.

    Attributes:
        title: the technique.
        graph: makes it.
        resources: the names of those it needs beyond the usual ones; an optimizer each, unless given.
        visited: nodes that a run of some hundred transitions passes.
    """

    title: str
    graph: Callable[[], Graph]
    visited: str
    resources: dict[str, Callable[[], Any]] = field(default_factory=dict)


def optimizer_of_its_own() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)


def optimizers(*names: str) -> dict[str, Callable[[], Any]]:
    return dict.fromkeys(names, optimizer_of_its_own)


def dropping() -> Graph:
    return (
        SHORT.guard("window_complete", "accumulate.count >= accumulate.every")
        .guard("accumulation_reached", "window_complete")
        .guard("window_dropped", "accumulate.count > 0 and window_cut")
        .insert("discard")
        .connect("accumulate", "discard", when="window_dropped", before="decide")
        .connect("discard", "decide")
        .set("accumulate", every=4)
    )


def periodic(hub: Graph, name: str, use: Any = None, **parameters: Any) -> Graph:
    """A further activity at the hub: one edge out, one edge back."""
    return (
        hub.insert(name, use, **parameters)
        .guard(f"{name}_due", f"{name}.due")
        .connect("decide", name, when=f"{name}_due")
        .connect(name, "decide")
    )


def two_validations() -> Graph:
    second = {"graph": EVALUATE.set("begin_evaluation", split="other"), "reads": {"val_data": "other_data"}}
    return periodic(SHORT.set("validate", every="2 steps"), "validate_other", every="3 steps", **second)


def sam() -> Graph:
    graph = add(SHORT, "perturb", after="clip").insert("second_batch", "train_batch", after="perturb")
    return graph.insert("second_clip", "clip", after="second_batch")


def gan(trigger: bool) -> Graph:
    nodes = {"d_batch": of("own_backward", "d"), "finish": of("finish", after="3 epochs")}
    for name in "dg":
        nodes |= {f"{name}_step": of("step", name), f"{name}_zero": of("zero_grad", name)}
    nodes["g_batch"] = of("some_passes", "g", every="2 d_steps") if trigger else of("own_backward", "g")
    edges = "next_batch d_batch d_step d_zero; g_batch g_step g_zero finish; finish: end if finished, next_batch; "
    edges += "d_zero: g_batch if g_due, finish" if trigger else "d_zero g_batch"
    guards = {"finished": "finish.due", **({"g_due": "g_batch.due"} if trigger else {})}
    return tiny(nodes, edges, guards, units={"d_steps": "d_step.steps", "epochs": "next_batch.epochs"})


def truncated() -> Graph:
    graph = add(plain(), "chunks", before="train_batch").replace("train_batch", KINDS["chunk_batch"])
    return graph.guard("more", "not chunks.last").connect("zero_grad", "chunks", when="more")


def folds() -> Graph:
    nodes = {"next_fold": "folds", "train": SHORT}
    return tiny(nodes, "next_fold train; train: end if done, next_fold", {"done": "next_fold.fold >= next_fold.folds"})


def two_phases() -> Graph:
    """One phase trains the head, the other the whole model; the head's parameters are in both optimizers."""
    graph = plain(zero_grad=["next_batch"])
    for name in ("train_batch", "zero_grad"):
        graph = graph.set(name, reads={"optimizer": ["head", "whole"]})
    graph = graph.set("step", reads={"optimizer": "head"})
    graph = graph.insert("whole_unused", "use", after="step", reads={"optimizer": "whole"})
    graph = graph.insert("step_whole", "step", reads={"optimizer": "whole"}).insert(
        "head_unused", "use", reads={"optimizer": "head"}
    )
    graph = graph.guard("second_phase", "next_batch.epochs >= 1").guard("done", "next_batch.epochs >= 2")
    graph = graph.connect("train_batch", "step_whole", when="second_phase").connect("step_whole", "head_unused")
    return graph.connect("head_unused", "zero_grad").connect("zero_grad", "end", when="done")


def tested(**where: Any) -> Graph:
    test: dict[str, Any] = {"graph": EVALUATE.set("begin_evaluation", split="test"), "reads": {"val_data": "test_data"}}
    return SHORT.insert("test", **test, **where)


def ppo() -> Graph:
    nodes = {"clip": of("clip", max_norm=0.5), "finish": of("finish", after="12 steps")}
    edges = ("rollout minibatches ppo_batch clip step zero_grad; zero_grad: finish if buffer_used, minibatches; "
             "finish: end if finished, rollout")  # fmt: skip
    guards = {"buffer_used": "minibatches.finished", "finished": "finish.due"}
    return tiny(nodes, edges, guards, units={"steps": "step.steps"})


def one_of_two() -> Graph:
    graph = SHORT.set("accumulate", every=3).guard("odd", "next_batch.batches % 2 == 1")
    graph = graph.insert("second", "train_batch", after="next_batch", writes={"loss": "other"})
    graph = graph.redirect("second", "train_batch", "accumulate").insert("turn", "choice", before="second")
    return graph.connect("turn", "train_batch", when="odd")


SUMS = {"training_step": lambda: lambda model, batch: {"loss": model(batch).square().sum(), "tokens": 2}}


def two_sums() -> Graph:
    second: dict[str, Any] = {"writes": {"loss": "other"}, "per": "tokens"}
    graph = SHORT.set("accumulate", every=2).insert("second_batch", "train_batch", after="train_batch", **second)
    both = {"by": "train_batch.window_count + second_batch.window_count"}
    return graph.overlay("token_windows").set("divide", reads=both)


def sum_and_mean() -> Graph:
    graph = plain().set("train_batch", per="tokens").insert("divide", after="train_batch", reads=COUNTED)
    return graph.insert("second_batch", "train_batch", after="divide", writes={"loss": "other"})


def maml() -> Graph:
    inner = {"inner": of("inner", "fast"), "inner_step": of("step", "fast"), "inner_zero": of("zero_grad", "fast")}
    edges = "inner inner_step inner_zero; inner_zero: end if adapted, inner"
    body = tiny(inner, edges, {"adapted": "inner.ticks >= 3"})
    graph = bound("slow train_batch step zero_grad")(plain())
    return graph.insert("adapt", "choice", before="train_batch").set("adapt", graph=body)


def stopping_early(by: str) -> Graph:
    graph = add(SHORT, "judge", after="validate")
    if by == "slot":
        return graph.guard("spent", "bad_rounds >= 2 and accumulate.count == 0").connect("judge", "end", when="spent")
    return graph.guard("finished", "(finish.due or next_batch.empty or judge.bad_rounds > 1) and accumulate.count == 0")


def alternating() -> Graph:
    nodes: dict[str, Any] = {"go_on": "choice"}
    for name in "ab":
        nodes |= {f"{name}_batch": of("own_backward", name), f"{name}_step": of("step", name)}
        nodes |= {f"{name}_zero": of("zero_grad", name)}
    edges = ("next_batch: a_batch if even, b_batch; a_batch a_step a_zero go_on; b_batch b_step b_zero go_on; "
             "go_on: end if done, next_batch")  # fmt: skip
    return tiny(nodes, edges, {"even": "next_batch.batches % 2 == 0", "done": "next_batch.epoch == 1"})


def without_bad_losses() -> Graph:
    graph = add(SHORT, "is_finite", between=("train_batch", "accumulate")).insert("discard").guard("bad", "finite != 1")
    return graph.connect("is_finite", "discard", when="bad").connect("discard", "decide")


def update_nested() -> Graph:
    graph = SHORT.redirect("exchange", "clip", "zero_grad").remove("clip").remove("step")
    return graph.clock("steps", "zero_grad.runs").set("zero_grad", graph=tiny({}, "clip step zero_grad end"))


def sanity_pass() -> Graph:
    graph = SHORT.nest("sanity", EVALUATE.set("next_batch", limit=1)).connect("sanity", "decide")
    return replace(graph, start="sanity")


def evaluated_twice() -> Graph:
    inner = {"split": "inner_split", "training_state": "inner_state"}
    graph = EVALUATE.insert("inner", "begin_evaluation", after="begin_evaluation", split="inner", writes=inner)
    return graph.insert("end_inner", "end_evaluation", before="end_evaluation", reads=inner, writes={"metrics": "m"})


TEST: dict[str, Callable[[], Any]] = {"test_data": lambda: [torch.ones(2, 2)] * 2}
SOUND = [
    Sound("a window", lambda: SHORT.set("accumulate", every=4), "accumulate step"),
    Sound("carried windows", lambda: SHORT.guard("window_cut", "finish.due").set("accumulate", every=4), "step"),
    Sound("a short window thrown away", dropping, "discard"),
    Sound("a window complete by its count alone",
          lambda: SHORT.guard("window_complete", "accumulate.every <= accumulate.count")
          .guard("accumulation_reached", "window_complete or (0 < accumulate.count < 99 and window_cut)"), "step"),
    Sound("a window by the number of the batch", lambda: SHORT.guard(
        "window_complete", "accumulate.count >= accumulate.every or next_batch.batches % 2 == 0"), "step"),
    Sound("EMA after the step", lambda: add(SHORT, "ema", after="step"), "ema"),
    Sound("an average that begins where the run ends", lambda: SHORT.overlay("swa").set("swa", **{"from": "2 epochs"}),
          "swa"),
    Sound("an average that begins at an amount of another unit", lambda: SHORT.overlay("swa").set(
        "swa", **{"from": "3 steps"}), "swa"),
    Sound("a minimum of an end that waits for more", lambda: SHORT.guard(
        "ending", "finish.due and log.runs >= 0 or step.steps >= 6").set("finish", after="1 steps"), "finish"),
    Sound("two loggers", lambda: periodic(SHORT, "log_often", "log", every="1 steps"), "log_often"),
    Sound("two validations with data of their own", two_validations, "validate validate_other",
          {"other_data": lambda: [torch.ones(2, 2)] * 2}),
    Sound("a validation four times an epoch", lambda: SHORT.set("validate", every="0.25 epochs"), "validate"),
    Sound("a validation on other data", lambda: SHORT.set("validate", reads={"val_data": "train_data"}), "validate"),
    Sound("a sanity pass", sanity_pass, "sanity"),
    Sound("an evaluation without a body, and of another model", lambda: SHORT.set(
        "validate", reads={"model": "average"}).insert("begin_evaluation", before="end_epoch", split="other").insert(
            "end_evaluation", after="begin_evaluation"), "begin_evaluation",
          {"average": lambda: torch.nn.Linear(2, 2)}),
    Sound("an evaluation inside another", lambda: SHORT.set("validate", graph=EVALUATE.insert(
        "inner", graph=replace(EVALUATE, outputs=()).set("begin_evaluation", split="inner"),
        before="end_evaluation")), "validate/inner/eval_batch"),
    Sound("no validation", lambda: SHORT.remove("validate"), "step"),
    Sound("a checkpoint after each validation",
          lambda: replace(SHORT.redirect("validate", "decide", "checkpoint").disconnect("decide", "checkpoint").set(
              "checkpoint", every="1 batches"), allow=("G209",)), "checkpoint"),
    Sound("an end by steps or epochs", lambda: FIT.set("finish", after=["2 epochs", "4 steps"]), "finish"),
    Sound("SAM", sam, "perturb second_batch"),
    Sound("LBFGS in one node", lambda: plain().replace("train_batch", KINDS["lbfgs"]).remove("step").replace(
        "zero_grad", "choice"),
          "train_batch"),
    Sound("a GAN with two critic steps", lambda: gan(trigger=True), "d_step g_step", optimizers("g", "d")),
    Sound("a GAN in turn", lambda: gan(trigger=False), "d_step g_step", optimizers("g", "d")),
    Sound("truncated BPTT", truncated, "chunks step"),
    Sound("k-fold around fit", folds, "train", {"data": lambda: [torch.ones(2, 2)] * 4}),
    Sound("k-fold whose folds hand out metrics", lambda: add(folds().set(
        "train", graph=replace(SHORT, outputs=("metrics",))), "collect", after="train"), "train collect",
          {"data": lambda: [torch.ones(2, 2)] * 4}),
    Sound("two phases that share parameters", two_phases, "whole_unused head_unused", optimizers("head", "whole")),
    Sound("an evaluation before the last decision", lambda: tested(between=("decide", "finish")), "test", TEST),
    Sound("an evaluation before the end", lambda: tested(before="end"), "test", TEST),
    Sound("two evaluations of the same batches", lambda: SHORT.set("validate", graph=evaluated_twice()),
          "validate/end_inner"),
    Sound("layers that keep training in an evaluation", lambda: SHORT.set("validate", graph=add(
        EVALUATE, "choose_modes", after="begin_evaluation")), "validate/choose_modes"),
    Sound("PPO", ppo, "rollout ppo_batch step"),
    Sound("clipping by value", lambda: SHORT.replace("clip", KINDS["clip_value"]), "clip"),
    Sound("clipping by value and norm", lambda: add(SHORT.set("clip", max_norm=1.0), "clip_value", after="clip"),
          "clip_value clip"),
    Sound("half precision with a scaler", lambda: add(
        SHORT, "unscale", before="clip").replace("step", KINDS["scaled_step"]).clock("steps", "step.runs"),
          "unscale step"),
    Sound("sums of two nodes, divided by both counts", two_sums, "divide", SUMS),
    Sound("a sum divided in its window, and a mean after it", sum_and_mean, "divide second_batch", SUMS),
    Sound("two optimizers by hand in one node", lambda: tiny(
        {"lbfgs": of("lbfgs", ("a", "b"))}, "next_batch lbfgs; lbfgs: end if done, next_batch", DONE),
          "lbfgs", optimizers("a", "b")),
    Sound("two optimizers that go together",
          lambda: listed(SHORT), "step zero_grad", optimizers("a", "b")),
    Sound("two rates", two_rates, "body_step", optimizers("head", "body")),
    Sound("two time scales, of which the slow one ends the run", lambda: two_time_scales("slow_due and "
          "next_batch.batches > 7"), "slow_step", optimizers("fast", "slow")),
    Sound("MAML", maml, "adapt/inner step", optimizers("fast", "slow")),
    Sound("early stopping by a slot", lambda: stopping_early("slot"), "judge"),
    Sound("early stopping by progress", lambda: stopping_early("field"), "judge"),
    Sound("a warm-up nested", lambda: tiny({"warm_up": FIT.set("finish", after="2 steps"), "train": SHORT},
                                           "warm_up train end"), "warm_up/step train/step"),
    Sound("alternating optimizers", alternating, "a_step b_step", optimizers("a", "b")),
    Sound("bad losses thrown away", without_bad_losses, "is_finite"),
    Sound("three losses in a window of three", lambda: three_losses(SHORT).set("accumulate", every=3), "third step"),
    Sound("three losses in a window of six", lambda: three_losses(SHORT).set("accumulate", every=6), "third step"),
    Sound("one of two losses in a window of three", one_of_two, "second train_batch"),
    Sound("the update as a nested graph", update_nested, "zero_grad/step"),
    Sound("active learning", lambda: tiny(
        {"train": SHORT}, "train query; query: end if enough, train", {"enough": "query.ticks >= 2"}),
          "train/step query"),
    Sound("a stream opened and read at once", lambda: add(add(SHORT, "open_stream", after="train_batch"), "read_stream",
                                                          after="open_stream"), "read_stream"),
    Sound("the smallest training, and something now and then", lambda: add(
        plain(), "often", after="zero_grad").clock("steps", "step.steps"), "step"),
    Sound("other names", lambda: SHORT.rename("step", "update").rename("decide", "hub"), "update hub"),
    Sound("clearing before the pass", lambda: plain(zero_grad=["train_batch"], next_batch=["zero_grad"], step=[
            "end if done", "next_batch"]), "zero_grad"),
]  # fmt: skip
