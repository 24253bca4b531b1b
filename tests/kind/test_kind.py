"""Declaring kinds: what a signature declares, and what is no declaration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import pytest

from graphtrain import Graph, StepFunction, Trigger, derived_clock, node, progress
from graphtrain.graph.registry import find_kind, known_kinds
from graphtrain.kind import DECLARED, EFFECTS, copy_of, kind_of
from graphtrain.kind.parameter import REQUIRED, Above, Below, Parameter, coerce, plain_value, show_value, type_name
from tests.shipped import KINDS


def test_a_function_declares_by_its_signature() -> None:
    @node(writes=("loss", "metrics"), effects="backward", optional="teacher", transient="metrics", observer=True)
    def distill_batch(model: Any, batch: Any, teacher: Any = None, *, temperature: float = 2.0, layers: int) -> None:
        """Learn from a teacher.

        In full.
        """

    kind = kind_of(distill_batch)
    assert kind.name == "distill_batch"
    assert [(read.name, read.required) for read in kind.reads] == [("model", True), ("batch", True), ("teacher", False)]
    assert kind.parameters == {
        "temperature": Parameter("temperature", float, 2.0),
        "layers": Parameter("layers", int, REQUIRED),
    }
    assert kind.writes == ("loss", "metrics")
    assert (kind.effects, kind.optional, kind.transient, kind.observer) == (
        ("backward",),
        ("teacher",),
        ("metrics",),
        True,
    )
    assert kind.description.startswith("Learn from a teacher.\n\nIn full.")
    assert set(kind.fields) == {"runs"}
    assert kind.trigger is None
    assert kind.setup_reads is None
    assert not kind.keeps_state
    assert kind.slots == ("model", "batch", "teacher", "optimizer")
    assert find_kind("distill_batch") is kind
    assert "distill_batch" in known_kinds()


def test_a_class_declares_by_its_attributes() -> None:
    @node(effects=("clip", "step"))
    class ClipAndStep:
        """Both."""

        max_norm: float
        mode: Literal["a", "b"] = "a"
        every: Trigger | None = None
        clipped: int = progress(0)
        seen: list[int] = progress([], in_digest=False)
        window: int = progress(0, counts="backward", restarts="clipped")
        CONSTANT: ClassVar[int] = 3
        _private: int = 4
        unannotated = 5

        @property
        def ratio(self) -> float:
            return 0.5

        @property
        def _hidden(self) -> float:
            return 0.5

        def setup(self, model: Any, optimizer: Any) -> None: ...
        def __call__(self, batch: Any) -> None: ...
        def state_dict(self) -> dict[str, Any]: ...
        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    kind = kind_of(ClipAndStep)
    assert kind.name == "clip_and_step"
    assert set(kind.parameters) == {"max_norm", "mode", "every", "from"}
    assert set(kind.fields) == {"clipped", "seen", "window", "ratio", "runs", "due", "fired"}
    assert kind.fields["ratio"].type is float
    assert not kind.fields["ratio"].stored
    assert not kind.fields["due"].stored
    assert kind.fields["fired"].stored
    assert not kind.fields["seen"].in_digest
    assert (kind.fields["window"].counts, kind.fields["window"].restarts) == ("backward", "clipped")
    assert [read.name for read in kind.reads] == ["batch"]
    assert [read.name for read in kind.setup_reads or ()] == ["model", "optimizer"]
    assert kind.trigger == "every"
    assert kind.keeps_state
    assert kind.slots == ("batch", "model", "optimizer")


def test_progress_of_two_instances_is_apart_and_resets() -> None:
    @node
    class Count:
        """Count."""

        total: int = progress(0)
        seen: list[int] = progress([1])

        def __call__(self) -> None:
            self.total += 1
            self.seen.append(2)

    kind = kind_of(Count)
    first, second = kind.new_instance(), kind.new_instance()
    first()
    assert (first.total, first.seen, first.runs) == (1, [1, 2], 0)
    assert (second.total, second.seen) == (0, [1])
    kind.reset(first)
    assert (first.total, first.seen) == (0, [1])
    assert kind.new_instance().seen == [1]


def test_parameters_are_described_by_the_docstring_and_the_start_everywhere() -> None:
    @node
    class Described:
        """Described.

        Arguments:
            size: how large
                it is. Default: 3.
            low, high (int): the bounds.

        More:
            other: no argument.
        """

        every: Trigger = Trigger("never")
        size: int = 3
        low: int = 0
        high: int = 1

        def __call__(self) -> None: ...

    assert kind_of(Described).descriptions == {
        "from": "the node is not due before this amount. Default: it may be due from the start.",
        "size": "how large it is.",
        "low": "the bounds.",
        "high": "the bounds.",
    }
    assert kind_of(node(name="bare")(lambda *, n=1: None)).descriptions == {}

    def flush_left(*, low: int = 0, high: int = 1) -> None: ...

    flush_left.__doc__ = "Described.\n\nArgs:\nlow: one. Default: 0.\nhigh: two."
    assert kind_of(flush_left).descriptions == {"low": "one.", "high": "two."}


def test_declarations_are_inherited_but_not_the_mark() -> None:
    @node
    class Base:
        """Base."""

        size: int = 1
        count: int = progress(0)

        def __call__(self) -> None: ...

    class Derived(Base):
        """Derived."""

        more: int = 2

    kind = kind_of(Derived)
    assert kind.name == "derived"
    assert set(kind.parameters) == {"size", "more"}
    assert set(kind.fields) == {"count", "runs"}
    assert kind_of(Base).name == "base"


def test_defining_a_kind_again_replaces_it() -> None:
    def define(default: int) -> Callable[..., Any]:
        @node
        def noisy(*, scale: int = default) -> None:
            """Noise."""

        return noisy

    define(1)
    second = define(2)
    kind = find_kind("noisy")
    assert kind is kind_of(second)
    assert kind is not None
    assert kind.parameters["scale"].default == 2


def test_a_kind_of_a_user_wins_over_a_shipped_one_of_its_name() -> None:
    @node(name="clip")
    def my_clip(optimizer: Any, *, ratio: float = 1.0) -> None:
        """Another."""

    assert find_kind("clip") is kind_of(my_clip)
    (problem,) = Graph.load("fit").set("clip", max_norm=3).remove("validate").check()[:1]
    assert problem.code == "G103"
    del DECLARED["clip"]
    assert Graph.load("fit").check() == []


def test_nothing_is_declared_by_importing_the_shipped_kinds() -> None:
    assert Graph.load("fit").check() == []
    assert not {"clip", "step", "nested"} & set(DECLARED)
    assert {"clip", "step"} <= set(known_kinds())
    assert "nested" not in known_kinds()


def test_annotations_that_cannot_be_resolved_are_anything() -> None:
    @node
    def odd(model: Absent, *, size: Absent = 3) -> None:  # type: ignore[name-defined]  # noqa: F821
        """Odd."""

    assert kind_of(odd).parameters["size"].annotation is Any


def test_step_functions_are_marked() -> None:
    @node
    def run(model: Any, batch: Any, training_step: StepFunction, other: StepFunction | None = None) -> None:
        """Run."""

    def without(model: Any) -> None:
        """Run."""

    assert [read.is_step_function for read in kind_of(run).reads] == [False, False, True, True]
    assert (kind_of(run).may_return_slots, kind_of(node(without)).may_return_slots) == (True, False)


def test_a_derived_clock_is_a_field() -> None:
    @node
    class Data:
        """Data."""

        batches: int = progress(0)
        length: int | None = progress(None)

        @derived_clock.of(counter="batches", restarts="length", reach="reach")
        def epochs(self) -> float:
            return 0.5

        def reach(self, value: float) -> int: ...
        def __call__(self) -> None: ...

    kind = kind_of(Data)
    assert kind.fields["epochs"].type is float
    assert kind.new_instance().epochs == 0.5


def test_what_counts_declares_how_far_and_what_a_step_function_may_ask_for() -> None:
    @node(step_inputs={"epoch": "rounds", "batch_index": "place"}, family="data")
    class Data:
        """Data."""

        size: int = 4
        rounds: int = progress(0)
        drawn: int = progress(0, restarts="rounds", target="length")
        passes: int = progress(0, counts="backward", target="size")
        last_passes: int = progress(0)

        @property
        def length(self) -> int:
            return 7

        @property
        def place(self) -> int:
            return self.drawn - 1

        def __call__(self) -> None: ...

    kind = kind_of(Data)
    assert kind.step_inputs == {"epoch": "rounds", "batch_index": "place"}
    assert kind.fields["drawn"].target == "length"
    assert (kind.fields["passes"].target, kind.fields["passes"].last) == ("size", "last_passes")
    assert kind.family == "data"


def test_a_field_makes_a_node_due_where_its_parameter_is_given() -> None:
    @node(extra_due_fields={"better": "metric"})
    class Watch:
        """Watch."""

        every: Trigger = Trigger("never")
        metric: str | None = None
        better: bool = progress(False)

        def on_metrics(self, row: Any, is_evaluation: bool) -> None: ...
        def __call__(self) -> None: ...

    kind = kind_of(Watch)
    assert kind.has_on_metrics and not kind_of(a_class()).has_on_metrics
    assert kind.due_fields({"metric": None}) == ()
    assert kind.due_fields({"metric": "val/loss"}) == ("better",)


@pytest.mark.parametrize(("bound", "idle"), [(None, True), (math.inf, True), (2.0, False), (0.0, False)])
def test_a_node_is_idle_without_a_parameter(bound: float | None, idle: bool) -> None:
    @node(optional="bound")
    def limit(*, bound: float | None = None, other: float | None = None) -> None:
        """Limit."""

    kind = kind_of(limit)
    assert kind.idle_without == ("bound",)
    assert kind.is_idle({"bound": bound, "other": None}) is idle


@pytest.mark.parametrize("effect", EFFECTS)
def test_every_effect_is_accepted_and_only_those_on_gradients_name_an_optimizer(effect: Any) -> None:
    def act() -> None: ...

    kind = kind_of(node(effects=effect)(act))
    assert kind.effects == (effect,)
    assert kind.slots == (() if effect in ("eval", "train", "forget") else ("optimizer",))


# --- What is no declaration ----------------------------------------------------------------------------------------


def call(self: Any) -> None: ...


PERIODIC = {"every": Trigger("never"), "every_type": Trigger}


def a_class(**members: Any) -> type:
    annotations = {name: members.pop(f"{name}_type") for name in list(members) if f"{name}_type" in members}
    return type("Thing", (), {"__call__": call, "__annotations__": annotations, **members})


def fn(source: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"Trigger": Trigger, "Literal": Literal}
    exec(f"{source}: ...", names)  # noqa: S102 - signatures are what is tested
    return names["f"]  # type: ignore[no-any-return]


def _generate() -> Any:
    yield


_UNKNOWN_EFFECT = f"known: {', '.join(EFFECTS)}"
_FOLLOWED = "an effect on gradients is followed by the slot of its optimizer, as in 'use optimizer'"
_IN_EVERY_NODE = "is reserved in every node; choose another name"
_RETURNS = "a kind is called and returns; it cannot be `async` or a generator"
_HIDES = "hides which slots are read; name each of them"
_ONE_TRIGGER = "f: a kind has at most one Trigger, named `every` or `after`; got"
_WRONG_DEFAULT = "the default does not have the declared type: expected"

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: node(fn("def f(*args)")), f"f: `*args` {_HIDES}"),
    (lambda: node(fn("def f(*, use=1)")), f"f: `use` {_IN_EVERY_NODE}"),
    (lambda: node(fn("def f(*, every: Trigger, after: Trigger)")), f"{_ONE_TRIGGER} every, after"),
    (lambda: node(fn("def f(*, every: Trigger = 'often')")),
     f'f.every: {_WRONG_DEFAULT} "<number> <unit>", "<number> per <unit>", "once", a list of these, or "never"; '
     "got 'often'"),
    (lambda: node(fn("def f(*, n: int = 'x')")), f'f.n: {_WRONG_DEFAULT} an integer, got "x"'),
    (lambda: node(fn("async def f()")), f"f: {_RETURNS}"),
    (lambda: node(effects="backwards")(fn("def f()")),
     f"f: unknown effect 'backwards'; {_UNKNOWN_EFFECT}"),  # type: ignore[arg-type]
    (lambda: node(effects="eval model")(fn("def f()")), f"f: 'eval model': {_FOLLOWED}"),
    (lambda: node(transient="x")(fn("def f()")), "f: transient slot 'x' is not among what it writes"),
    (lambda: node(writes="a b")(fn("def f()")), "f: the names of slots are identifiers, each once; got 'a b'"),
    (lambda: node(writes=("a", "a"))(fn("def f()")), "f: the names of slots are identifiers, each once; got 'a'"),
    (lambda: node(name="a b")(fn("def f()")), "the name of a kind must be an identifier; got 'a b'"),
    (lambda: node(lambda: None),
     "the name of a kind must be an identifier; got '<lambda>': give `node(name=...)` to a lambda"),
    (lambda: kind_of(lambda: None), "a kind needs a name: give `node(name=...)` to a lambda"),
    (lambda: node(3), "@node marks a function or a class; got 3"),  # type: ignore[call-overload]
    (lambda: node(len), "len: <built-in function len> cannot be marked; write a function that calls it"),
    (lambda: node(type("Thing", (), {})), "thing: a class kind needs a method __call__"),
    (lambda: node(a_class(__call__=fn("def f(self, *, n=1)"))),
     "thing.__call__: a class takes parameters as annotated attributes, not `n`"),
    (lambda: node(a_class(setup=fn("def f(self, *, model)"))),
     "thing.setup: it reads slots by position, not by keyword as `model`"),
    (lambda: node(a_class(__init__=fn("def f(self, size)"))),
     "thing: a class kind is made without arguments (missing a required argument: 'size'); "
     "parameters are annotated attributes"),
    (lambda: node(a_class(n=progress(0))), "thing.n: progress needs a type, as in `n: int = progress(0)`"),
    (lambda: node(a_class(n=progress(0, counts="bakward"), n_type=int)),
     "thing.n: unknown effect 'bakward' to count"),  # type: ignore[arg-type]
    (lambda: node(step_inputs={"epoch": "rounds"})(a_class(n=progress(0), n_type=int)),
     "thing: step input 'epoch' is 'rounds', which is not a field"),
    (lambda: node(extra_due_fields={"n": "m"})(a_class(n=progress(False), n_type=bool)),
     "thing: also due by 'n', which is not a bool field of a kind with a trigger"),
    (lambda: node(extra_due_fields={"n": "m"})(a_class(n=progress(False), n_type=bool, **PERIODIC)),
     "thing: never due by 'n' without 'm', which is not a parameter; known: every, from"),
    (lambda: node(family="colourful")(fn("def f()")),
     "f: unknown family 'colourful'; known: data, compute, gradient, update, choice, bookkeeping, saving, ranks, "
     "other"),  # type: ignore[call-overload]
    (lambda: node(makes={"mean": copy_of("model")})(fn("def f(model)")),
     "f: it makes `mean` as CopyOf(source='model'); write copy_of(SLOT), and read both"),
    (lambda: node(varying="m")(fn("def f(*, n=1, k=2)")), "f: varying 'm', which is not a parameter; known: n, k"),
    (lambda: node(varying="every")(fn("def f(*, every: Trigger)")),
     "f: 'every' cannot be varying: it is read before the node runs"),
    (lambda: node(_generate), f"_generate: {_RETURNS}"),
    (lambda: node(a_class(at_end=fn("def f(self, model)"))),
     "thing.at_end: it reads what __call__ reads, with the same defaults: nothing; or nothing"),
    (lambda: node(a_class(__call__=fn("def f(self, a, b=1)"), at_body_end=fn("def f(self, a, b)"))),
     "thing.at_body_end: it reads what __call__ reads, with the same defaults: a, b; or nothing"),
    (lambda: node(a_class(release=fn("def f(self, model)"))),
     "thing.release: it takes no arguments, and ends what the node can start again, such as processes"),
]  # fmt: skip


@pytest.mark.parametrize(("declare", "message"), WRONG, ids=[message[:50] for _, message in WRONG])
def test_what_is_no_declaration(declare: Callable[[], Any], message: str) -> None:
    before = dict(DECLARED)
    with pytest.raises(TypeError) as caught:
        declare()
    assert str(caught.value) == message
    assert before == DECLARED, "nothing is declared by half"


# --- Parameters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "annotation", "result"),
    [
        (1, float, 1.0),
        (1, int, 1),
        (True, bool, True),
        ("a", Literal["a", 1], "a"),
        (1, Literal["a", 1], 1),
        (None, int | None, None),
        (3, int | None, 3),
        (3, float | str, 3.0),
        ("x", float | str, "x"),
        ([1, 2], list[float], [1.0, 2.0]),
        ((1, 2), list[int], [1, 2]),
        ([1, 2], tuple[float, int], (1.0, 2)),
        ([1, 2, 3], tuple[int, ...], (1, 2, 3)),
        ([], tuple[int, ...], ()),
        ([1, "a"], list, [1, "a"]),
        ({"a": 1}, dict[str, int], {"a": 1}),
        (True, object, True),
        (True, Any, True),
        (["1 steps"], Trigger, Trigger("1 steps")),
    ],
)
def test_what_a_parameter_takes(value: Any, annotation: Any, result: Any) -> None:
    coerced = coerce(value, annotation)
    assert coerced == result
    assert type(coerced) is type(result)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        (True, int, "expected an integer, got true"),
        (True, float, "expected a number, got true"),
        (1, bool, "expected true or false, got 1"),
        (1.0, int, "expected an integer, got 1.0"),
        ("1", int, 'expected an integer, got "1"'),
        (1, str, "expected a string, got 1"),
        (None, int, "expected an integer, got None"),
        (True, Literal[1], "expected 1, got true"),
        ("c", Literal["a", "b"], 'expected one of "a", "b", got "c"'),
        ([1, "a"], list[int], 'expected an integer, got "a"'),
        (3, list[int], "expected a list of integers, got 3"),
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
)
def test_what_it_refuses(value: Any, annotation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"expected") as caught:
        coerce(value, annotation)
    assert str(caught.value) == message


def test_a_number_too_long_to_print_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="expected a number, got an integer of thousands of digits"):
        coerce(10**5000, float)


def test_types_as_people_read_them() -> None:
    assert type_name(list[float]) == type_name(tuple[float, ...]) == "a list of numbers"
    assert type_name(int | None) == "an integer"
    assert str(REQUIRED) == "required"
    assert type_name(Literal["a", 2]) == 'one of "a", 2'


def test_values_as_a_text_holds_them() -> None:
    assert plain_value((1, [Trigger("never")], {"a": (2,)})) == [1, ["never"], {"a": [2]}]
    for odd in (None, object(), {1: 2}, {1}, b"x", [None]):
        with pytest.raises(ValueError, match="cannot be written in a graph"):
            plain_value(odd)
    assert show_value(True) == "true"
    assert [show_value("x" * length)[-4:] for length in (78, 79)] == ['xxx"', "x..."]


def test_what_varies_and_what_may_return_slots() -> None:
    @node
    class Held:
        rate: float = 0.1

        def __call__(self, step: StepFunction) -> None: ...

    for kind, varying, may_return in (
        (kind_of(fn("def f(*, n=1, every: Trigger)")), ("n",), False),
        (kind_of(Held), (), True),
    ):
        assert (kind.varying, kind.may_return_slots) == (varying, may_return)


def test_one_annotation_that_cannot_be_resolved_hides_no_other() -> None:
    """As under `from __future__ import annotations`, with a name imported for type checkers only."""

    @node(name="periodic")
    class Periodic:
        """Stand-in."""

        LIMIT: ClassVar[int] = 4
        every: Trigger = Trigger("1 epochs")
        size: Annotated[int, Above(0)] = 3
        _cache: Tensor  # type: ignore[name-defined]  # noqa: F821

        def __call__(self) -> None: ...

    kind = kind_of(Periodic)
    assert kind.trigger == "every"
    assert {name: parameter.annotation for name, parameter in kind.parameters.items()} == {
        "every": Trigger,
        "size": Annotated[int, Above(0)],
        "from": Trigger | None,
    }


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
    namespace = dict(namespace)
    exec(MADE_BY_EXEC, namespace)  # noqa: S102  # a text of our own
    remember, recall = kind_of(namespace["remember"]), kind_of(namespace["Recall"])
    assert (DECLARED["remember"], DECLARED["recall"]) == (remember, recall)
    assert (remember.trigger, recall.trigger) == ("every", "every")
    assert set(recall.fields) == {"recalled", "runs", "due", "fired"}
    graph = Graph.load("fit").insert("a", "remember", after="step").insert("b", namespace["Recall"], after="a")
    assert graph.check() == []
    assert repr(graph.nodes["b"]) == "<Node b: recall>"


def test_a_kind_says_that_ranks_synchronise_in_it() -> None:
    @node(synchronises=True)
    def exchange_words() -> None: ...

    assert kind_of(exchange_words).synchronises
    del DECLARED["exchange_words"]
    shipped = {name for name in KINDS if (kind := find_kind(name)) and kind.synchronises}
    ends = {"end_epoch", "end_evaluation", "end_fold", "end_prediction"}
    others = {
        "begin_evaluation",
        "check_finite",
        "closure_step",
        "label_uncertain",
        "log",
        "next_batch",
        "rollback",
        "split_batch",
        "write_predictions",
    }
    assert shipped == {"divide", "exchange", *ends, *others}


def test_a_kind_knows_whether_it_reads_slots_at_the_end() -> None:
    class Ends:
        """Ends."""

        def __call__(self, model: Any) -> None: ...
        def at_end(self) -> None: ...

    class Reads:
        """Reads."""

        def __call__(self, model: Any) -> None: ...
        def at_end(self, model: Any) -> None: ...

    ends, reads = kind_of(node(Ends)), kind_of(node(Reads))
    assert (ends.acts_at_end, ends.reads_at_end) == (True, False)
    assert (reads.acts_at_end, reads.reads_at_end) == (True, True)


def test_a_tuple_of_any_members_is_taken() -> None:
    assert coerce([1, "a"], tuple) == (1, "a")
    assert coerce([1, 2], tuple[int, ...]) == (1, 2)


EVERY_STEP = Trigger("1 steps")


def test_a_function_is_called_with_its_parameters_and_from_is_for_its_trigger() -> None:
    @node
    def note(*, every: Trigger = EVERY_STEP, scale: float = 1.0) -> None:
        """Note it."""

    graph = Graph.load("fit").insert("note", note, at="decide", before="checkpoint").set("finish", after="4 steps")
    graph = graph.set("note", **{"scale": 2.5, "from": "3 steps"})
    assert kind_of(note).passed({"scale": 2.5, "from": "3 steps"}) == {"scale": 2.5}
    assert graph.check() == []
