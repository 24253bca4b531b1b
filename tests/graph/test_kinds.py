"""Promise 4: a kind is declared by its signature, in one file, a script or another package; what is none is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import torch

from graphtrain import (
    Above,
    Below,
    DataError,
    Graph,
    StepFunction,
    Trainer,
    Trigger,
    derived_clock,
    node,
    progress,
)
from graphtrain.graph import registry
from graphtrain.graph.registry import find_kind, known_kinds
from graphtrain.kind import EFFECTS, kind_of
from graphtrain.kind.parameter import REQUIRED, coerce
from tests.graph.corpus import FIT

# ---- what a signature declares


def test_a_function_declares_by_its_signature() -> None:
    @node(writes=("loss", "metrics"), effects="backward", optional="teacher", transient="metrics", observer=True)
    def distill_batch(model: Any, batch: Any, teacher: Any = None, *, temperature: float = 2.0, layers: int) -> None:
        """Learn from a teacher.

        In full.

        Arguments:
            temperature: how soft
                they are. Default: 2.
        """

    kind = kind_of(distill_batch)
    assert (kind.name, find_kind("distill_batch")) == ("distill_batch", kind) and "distill_batch" in known_kinds()
    assert [(read.name, read.required) for read in kind.reads] == [("model", True), ("batch", True), ("teacher", False)]
    temperature, layers = kind.parameters["temperature"], kind.parameters["layers"]
    assert (temperature.annotation, temperature.default, layers.annotation) == (float, 2.0, int)
    assert layers.default is REQUIRED
    assert (kind.writes, kind.effects, kind.optional) == (("loss", "metrics"), ("backward",), ("teacher",))
    assert (kind.transient, kind.observer, kind.keeps_state) == (("metrics",), True, False)
    assert kind.description.startswith("Learn from a teacher.\n\nIn full.")
    assert kind.descriptions == {"temperature": "how soft they are."}
    assert (set(kind.fields), kind.trigger, kind.setup_reads) == ({"runs"}, None, None)
    assert kind.slots == ("model", "batch", "teacher", "optimizer")


@node(effects=("clip", "step"), step_inputs={"epoch": "clipped"}, family="data", extra_due_fields={"better": "metric"})
class Everything:
    """All that a class may declare."""

    max_norm: float
    mode: Literal["a", "b"] = "a"
    every: Trigger | None = None
    metric: str | None = None
    clipped: int = progress(0, target="length")
    seen: list[int] = progress([1], in_digest=False)
    window: int = progress(0, counts="backward", restarts="clipped")
    last_window: int = progress(0)
    better: bool = progress(False)
    CONSTANT: ClassVar[int] = 3
    _private: int = 4
    unannotated = 5

    @property
    def ratio(self) -> float:
        return 0.5

    @property
    def length(self) -> int:
        return 7

    @derived_clock(counter="clipped", restarts="length", reach="reach")
    def epochs(self) -> float:
        return 0.5

    def reach(self, value: float) -> Any: ...
    def setup(self, model: Any, optimizer: Any) -> None: ...
    def on_metrics(self, row: Any, is_evaluation: bool) -> None: ...
    def at_end(self) -> None: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def __call__(self, batch: Any) -> None:
        self.clipped += 1
        self.seen.append(2)


def test_a_class_declares_by_its_attributes() -> None:
    kind = kind_of(Everything)
    assert kind.name == "everything" and kind.family == "data"
    assert set(kind.parameters) == {"max_norm", "mode", "every", "metric", "from"}
    own = {"clipped", "seen", "window", "last_window", "better", "ratio", "length", "epochs"}
    assert set(kind.fields) == {*own, "runs", "due", "fired"}
    assert [name for name in kind.fields if not kind.fields[name].stored and name in own | {"due"}] == [
        name for name in kind.fields if name in ("ratio", "length", "epochs", "due")
    ]
    assert kind.fields["fired"].stored and not kind.fields["seen"].in_digest
    assert kind.fields["ratio"].type is kind.fields["epochs"].type is float
    counter = kind.fields["window"]
    assert (counter.counts, counter.restarts, counter.last) == ("backward", "clipped", "last_window")
    assert kind.fields["clipped"].target == "length" and kind.step_inputs == {"epoch": "clipped"}
    assert [read.name for read in kind.reads] == ["batch"]
    assert [read.name for read in kind.setup_reads or ()] == ["model", "optimizer"]
    assert kind.trigger == "every" and kind.keeps_state and kind.has("on_metrics")
    assert (kind.has("at_end"), kind.reads_at_end) == (True, False)
    assert kind.slots == ("batch", "model", "optimizer")


def test_progress_of_two_instances_is_apart_and_resets() -> None:
    kind = kind_of(Everything)
    first, second = kind.implementation(), kind.implementation()
    kind.reset(first, whole=True)
    kind.reset(second, whole=True)
    first(None)
    assert (first.clipped, first.seen, first.runs, first.epochs) == (1, [1, 2], 0, 0.5)
    assert (second.clipped, second.seen) == (0, [1])
    kind.reset(first)
    assert (first.clipped, first.seen) == (0, [1])


def test_declarations_are_inherited_but_not_the_mark() -> None:
    class Derived(Everything):
        """Derived."""

        more: int = 2

    kind = kind_of(Derived)
    assert kind.name == "derived" and kind_of(Everything).name == "everything"
    assert set(kind.parameters) == {*kind_of(Everything).parameters, "more"}
    assert kind.fields.keys() == kind_of(Everything).fields.keys()


def test_a_later_declaration_wins_and_one_of_a_user_over_a_shipped_one() -> None:
    def define(default: int) -> Callable[..., Any]:
        @node(name="clip")
        def my_clip(optimizer: Any, *, ratio: int = default) -> None:
            """Another."""

        return my_clip

    assert not {"clip", "step"} - {*known_kinds()} and "nested" not in known_kinds()
    assert not [name for name in known_kinds() if name.startswith("_")] and find_kind("_optimizers") is None
    define(1)
    second = kind_of(define(2))
    assert find_kind("clip") is second and second.parameters["ratio"].default == 2
    assert [problem.code for problem in FIT.check()] == ["G103"]


def test_a_node_is_idle_without_a_parameter() -> None:
    kind = kind_of(node(name="limit", optional="bound")(lambda *, bound=None, other=None: None))
    assert kind.enabling_parameters == ("bound",)
    idle = {bound: kind.is_idle({"bound": bound, "other": None}) for bound in (None, math.inf, 2.0, 0.0)}
    assert idle == {None: True, math.inf: True, 2.0: False, 0.0: False}


def test_only_effects_on_gradients_name_an_optimizer() -> None:
    for effect in EFFECTS:
        kind = kind_of(node(name="act", effects=effect)(lambda: None))
        assert kind.effects == (effect,)
        assert kind.slots == (() if effect in ("eval", "train", "forget") else ("optimizer",))
    assert kind_of(node(name="act", optional="ranks")(lambda: None)).slots == ("ranks",)  # without being read


def test_step_functions_and_what_varies_are_seen() -> None:
    @node
    def run(
        model: Any, training_step: StepFunction, other: StepFunction | None = None, *, n: int = 1, every: Trigger
    ) -> None:
        """Run."""

    kind = kind_of(run)
    assert ["a step function" in read.holds for read in kind.reads] == [False, True, True]
    assert (kind.may_return_slots, kind_of(Everything).may_return_slots) == (True, False)
    assert (kind.varying, kind_of(Everything).varying) == (("n",), ())
    assert kind.keeps == "" and "keep" in find_kind("train_batch").parameters  # type: ignore[union-attr]
    assert find_kind("train_batch").keeps == "keep"  # type: ignore[union-attr]


def test_one_annotation_that_cannot_be_resolved_is_anything_and_hides_no_other() -> None:
    """As with a name that is imported for type checkers alone."""

    @node
    class Periodic:
        """Stand-in."""

        every: Trigger = Trigger("1 epochs")
        size: Annotated[int, Above(0)] = 3
        odd: Absent = 3  # type: ignore[name-defined]  # noqa: F821

        def __call__(self) -> None: ...

    parameters = kind_of(Periodic).parameters
    assert kind_of(Periodic).trigger == "every"
    assert parameters["size"].annotation == Annotated[int, Above(0)] and parameters["odd"].annotation is Any


MADE_BY_EXEC = """
from graphtrain import Trigger, node, progress

@node
def remember(model, *, every: Trigger = Trigger("2 steps")):
    pass

@node
class Recall:
    every: Trigger = Trigger("3 steps")
    recalled: int = progress(0)

    def __call__(self, model):
        self.recalled += 1
"""


@pytest.mark.parametrize("namespace", [{}, {"__name__": "nowhere"}, {"__name__": "__main__"}], ids=repr)
def test_a_kind_needs_no_file_and_no_module(namespace: dict[str, Any]) -> None:
    """As in `exec`, `python -c`, a notebook and an interactive session."""
    names = dict(namespace)
    exec(MADE_BY_EXEC, names)  # noqa: S102 - a text of our own
    graph = FIT.insert("a", "remember", after="step").insert("b", names["Recall"], after="a")
    assert graph.check() == []
    assert repr(graph.nodes["b"]) == "<Node b: recall>"
    assert set(kind_of(names["Recall"]).fields) == {"recalled", "runs", "due", "fired"}


def test_another_package_adds_kinds_and_graphs_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "duel-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: duel\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[graphtrain.nodes]\nsway = duel:sway\n\n[graphtrain.graphs]\nduel = duel\n")
    (tmp_path / "duel").mkdir()
    (tmp_path / "duel" / "__init__.py").write_text("def sway(model):\n    pass\n")
    (tmp_path / "duel" / "duel.toml").write_text('format = 1\nname = "duel"\nextends = "fit"\n')
    monkeypatch.syspath_prepend(tmp_path)
    registry._entry_points.cache_clear()
    try:
        assert "sway" in known_kinds() and Graph.load("duel").insert("sway", after="step").check() == []
        kind = find_kind("sway")
        assert kind is not None and kind.implementation.__module__ == "duel"
    finally:
        registry._entry_points.cache_clear()


# ---- what a parameter takes


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, float, 1.0), (True, bool, True), (1, Literal["a", 1], 1), (None, int | None, None), (3, int | None, 3),
        (3, float | str, 3.0), ("x", float | str, "x"), ((1, 2), list[float], [1.0, 2.0]),
        ([1, 2], tuple[float, int], (1.0, 2)), ([1, 2, 3], tuple[int, ...], (1, 2, 3)), ([1, "a"], tuple, (1, "a")),
        ([1, "a"], list, [1, "a"]), ({"a": 1}, dict[str, int], {"a": 1}), (True, Any, True),
        (["1 steps"], Trigger, Trigger("1 steps")), (True, int, "expected an integer, got true"),
        (True, float, "expected a number, got true"), (1, bool, "expected true or false, got 1"),
        (1.0, int, "expected an integer, got 1.0"), ("1", int, 'expected an integer, got "1"'),
        (1, str, "expected a string, got 1"), (None, int, "expected an integer, got None"),
        (True, Literal[1], "expected 1, got true"), ("c", Literal["a", "b"], 'expected one of "a", "b", got "c"'),
        ([1, "a"], list[int], 'expected an integer, got "a"'), (3, list[int], "expected a list of integers, got 3"),
        ([1, 2], int, "expected an integer, got [1, 2]"),
        ("ab", list[str], 'expected a list of strings, got "ab"'),
        ([1], tuple[int, int], "expected a list of 2: an integer, an integer, got [1]"),
        ("x", int | bool, 'expected an integer or true or false, got "x"'),
        (3, dict[str, int], "expected a table, got 3"),
        ([1, 0], list[Annotated[int, Above(0)]], "expected an integer > 0, got 0"),
        (1.0, Annotated[float, Above(0), Below(1)], "expected a number > 0 and < 1, got 1.0"),
        (math.inf, Annotated[float, Below(math.inf)], "expected a number < inf, got inf"),
        ("x", complex, 'expected a value of type complex, got "x"'),
        ("x" * 500, int, 'expected an integer, got "' + "x" * 76 + "..."),
    ],
    ids=lambda value: "number" if isinstance(value, int) else repr(value)[:20],
)  # fmt: skip
def test_what_a_parameter_takes(value: Any, annotation: Any, expected: Any) -> None:
    if not (isinstance(expected, str) and expected.startswith("expected")):
        taken = coerce(value, annotation)
        assert (taken, type(taken)) == (expected, type(expected))
        return
    with pytest.raises(ValueError, match="expected") as caught:
        coerce(value, annotation)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("limit", "length", "batches"),
    [(None, 4, 4), (3, 10, 3), (3, 2, 2), (1, 4, 1), (0.29, 100, 29), (0.29, 4, 1), (0.5, 3, 1),
     (0.5, 0, 0), (0.25, 3, "0.25 of 3 batches is less than one"), (0.25, None, "the data has no length")],
)  # fmt: skip
def test_a_limit_is_a_number_or_an_exact_share(limit: float | None, length: int | None, batches: int | str) -> None:
    data = (number for number in [1.0] * 9) if length is None else [1.0] * length
    graph = Graph.load("evaluate") if limit is None else Graph.load("evaluate").set("next_batch", limit=limit)
    steps: dict[str, Any] = {"validation_step": lambda model, batch: {"one": 1.0}, "device": "cpu", "display": None}
    trainer = Trainer(graph, model=torch.nn.Identity(), val_data=data, notify=lambda line: None, **steps)
    if isinstance(batches, str):
        with pytest.raises(DataError, match=batches):
            trainer.run()
        return
    trainer.run()
    assert trainer.read("next_batch.batches") == batches


# ---- what is no declaration


def fn(source: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"Trigger": Trigger, "Literal": Literal}
    exec(f"{source}: ...", names)  # noqa: S102 - signatures are what is tested
    return names["f"]  # type: ignore[no-any-return]


def thing(**members: Any) -> type:
    annotations = {name: members.pop(f"{name}_type") for name in list(members) if f"{name}_type" in members}
    return type("Thing", (), {"__call__": fn("def f(self)"), "__annotations__": annotations, **members})


def _generate() -> Any:
    yield


PERIODIC = {"every": Trigger("never"), "every_type": Trigger}
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: node(fn("def f(*args)")), "f: `*args` hides which slots are read"),
    (lambda: node(fn("def f(*, use=1)")), "f: `use` is reserved in every node"),
    (lambda: node(fn("def f(*, every: Trigger, after: Trigger)")), "at most one Trigger, … every, after"),
    (lambda: node(fn("def f(*, every: Trigger = 'often')")), "f: every: the default does not have … got 'often'"),
    (lambda: node(fn("def f(*, n: int = 'x')")), 'f: n: the default does not have … an integer, got "x"'),
    (lambda: node(fn("async def f()")), "f: a kind is called and returns"),
    (lambda: node(_generate), "_generate: a kind is called and returns"),
    (lambda: node(effects="backwards")(fn("def f()")),
     "f: unknown effect 'backwards'; known: backward"),
    (lambda: node(effects="eval model")(fn("def f()")), "f: 'eval model': an effect on gradients is followed by"),
    (lambda: node(transient="x")(fn("def f()")), "f: transient: 'x' is not a slot that the kind writes"),
    (lambda: node(writes="a b")(fn("def f()")), "f: the names of slots are identifiers, each once; got 'a b'"),
    (lambda: node(writes=("a", "a"))(fn("def f()")), "f: the names of slots are identifiers, each once; got 'a'"),
    (lambda: node(name="a b")(fn("def f()")), "the name of a kind must be an identifier; got 'a b'"),
    (lambda: node(lambda: None), "the name of a kind must be an identifier; got '<lambda>'"),
    (lambda: kind_of(lambda: None), "the name of a kind must be … '<lambda>': use `node(name=...)`"),
    (lambda: node(3), "@node marks a function or a class; got 3"),  # type: ignore[call-overload]
    (lambda: node(len), "len: <built-in function len> cannot be marked"),
    (lambda: node(type("Thing", (), {})), "thing: a class kind needs a method __call__"),
    (lambda: node(thing(__call__=fn("def f(self, *, n=1)"))), "thing: __call__: … annotated attributes, … `n`"),
    (lambda: node(thing(setup=fn("def f(self, *, model)"))), "thing: setup: … slots are positional; not `model`"),
    (lambda: node(thing(__init__=fn("def f(self, size)"))), "thing: `__init__` of a kind takes no arguments … 'size'"),
    (lambda: node(thing(n=progress(0))), "thing: n: progress needs a type"),
    (lambda: node(thing(n=progress(0, counts="bakward"), n_type=int)),  # type: ignore[arg-type]
     "thing: n: unknown effect 'bakward' to count"),
    (lambda: node(step_inputs={"epoch": "rounds"})(thing(n=progress(0), n_type=int)),
     "thing: step_inputs: 'rounds' is not a field"),
    (lambda: node(extra_due_fields={"n": "m"})(thing(n=progress(False), n_type=bool)),
     "thing: extra_due_fields: 'n' is not a bool field of a kind with a trigger"),
    (lambda: node(extra_due_fields={"n": "m"})(thing(n=progress(False), n_type=bool, **PERIODIC)),
     "thing: extra_due_fields: 'm' is not a parameter; known: every, from"),
    (lambda: node(family="colourful")(fn("def f()")), "f: unknown family 'colourful'"),  # type: ignore[call-overload]
    (lambda: node(copies={"mean": "model"})(fn("def f(model)")), "f: copies: the kind must read both 'mean'"),
    (lambda: node(varying="m")(fn("def f(*, n=1, k=2)")), "f: varying: 'm' is not a parameter; known: n, k"),
    (lambda: node(varying="every")(fn("def f(*, every: Trigger)")), "f: 'every' cannot be varying"),
    (lambda: node(thing(at_end=fn("def f(self, model)"))), "thing: at_end reads nothing, or what __call__ reads"),
    (lambda: node(thing(__call__=fn("def f(self, a, b=1)"), at_body_end=fn("def f(self, a, b)"))),
     "thing: at_body_end reads nothing, or what __call__ reads, … a, b"),
    (lambda: node(thing(release=fn("def f(self, model)"))), "thing: release takes no arguments"),
]  # fmt: skip


@pytest.mark.parametrize(("declare", "parts"), WRONG, ids=[parts[:50] for _, parts in WRONG])
def test_what_is_no_declaration(declare: Callable[[], Any], parts: str) -> None:
    before = known_kinds()
    with pytest.raises(TypeError) as caught:
        declare()
    place = 0
    for part in parts.split(" … "):
        place = str(caught.value).find(part, place)
        assert place >= 0, caught.value
    assert known_kinds() == before, "nothing is declared by half"
