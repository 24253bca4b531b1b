"""The contents of objects, by name or in order: read, set again, sampled; and the parts of nested containers."""

from __future__ import annotations

import collections
import copy
import enum
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from graphtrain.state.contents import FORMS, at, replaced, sample_of


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("x", "y")


class Both(Slots):
    """With attributes beside its slots."""


class Colour(enum.Enum):
    RED = 1


class OwnDict(dict[Any, Any]):
    def __iter__(self) -> Any:
        raise AssertionError("overridden")

    update = clear = values = __iter__  # type: ignore[assignment]


class OwnList(list[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("overridden")

    extend = clear = __iter__  # type: ignore[assignment]


def with_default(first: Any = 1, *, second: Any = 2) -> None: ...


def of(*values: Any) -> Slots:
    slots = Both()
    for name, value in zip(("x", "y", "z"), values, strict=False):
        setattr(slots, name, value)
    return slots


def cell(*values: Any) -> Any:
    def inner() -> Any:
        return value

    if values:
        (value,) = values
    return inner.__closure__[0]  # type: ignore[index]


class Kind:
    x = 1
    __special__ = 2


def test_contents() -> None:
    table: list[tuple[str, Any, tuple[Any, ...], tuple[Any, ...]]] = [
        ("object", Plain(x=1, y=2), ("x", "y"), (1, 2)),
        ("object", Slots(), (), ()),
        ("object", of(1), ("x",), (1,)),
        ("object", of(1, 2, 3), ("z", "x", "y"), (3, 1, 2)),
        ("list", [1, 2], (), (1, 2)),
        ("list", OwnList([1, 2]), (), (1, 2)),
        ("deque", collections.deque([1]), (), (1,)),
        ("set", {1}, (), (1,)),
        ("mapping", {1: 2, 3: 4}, (1, 3), (2, 4)),
        ("mapping", OwnDict({1: 2}), (1,), (2,)),
        ("cell", cell(5), (), (5,)),
        ("cell", cell(), (), ()),
        ("function", with_default, ("__defaults__", "__kwdefaults__"), ((1,), {"second": 2})),
        ("class", Kind, ("x",), (1,)),
        ("class", Colour, ("RED",), (Colour.RED,)),
    ]
    for category, value, keys, parts in table:
        found = FORMS[category].contents(value)  # type: ignore[index]
        if value is Colour:  # in some versions of Python it has methods of enumerations too
            assert found[0][-1] == "RED"
        else:
            assert found == (keys, parts), value
            assert sample_of(value, category) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("category", "make", "parts", "removed", "expected"),
    [
        ("object", lambda: Plain(x=1, y=2), {"x": 3, "z": 4}, ("y", "gone"), {"x": 3, "z": 4}),
        ("object", lambda: of(1, 2), {"y": 5}, ("x",), {"y": 5}),
        ("object", lambda: of(1, 2, 3), {"x": 5, "w": 6}, ("z",), {"w": 6, "x": 5, "y": 2}),
        ("list", lambda: [1], [2, 3], (), [2, 3]),
        ("list", lambda: OwnList([1]), [2, 3], (), [2, 3]),
        ("deque", lambda: collections.deque([1], 2), [2, 3, 4], (), collections.deque([3, 4], 2)),
        ("set", lambda: {1, 2}, {2, 3}, (), {2, 3}),
        ("mapping", lambda: {1: 2, 3: 4}, {3: 5, 1: 2}, (), {3: 5, 1: 2}),
        ("mapping", lambda: OwnDict({1: 2}), {3: 4}, (), {3: 4}),
    ],
    ids=range(9),
)
def test_contents_that_are_set(category: Any, make: Any, parts: Any, removed: Any, expected: Any) -> None:
    value = make()
    FORMS[category].put(value, parts, removed)
    keys, now = FORMS[category].contents(value)
    if isinstance(expected, dict):
        assert list(zip(keys, now, strict=True)) == list(expected.items())
    else:
        assert value == expected and now == tuple(expected)


def test_a_set_keeps_the_order_of_its_members() -> None:
    """Only what differs is removed and added, unless that gives another order."""
    numbers = {8, 0, 16}  # of one hash, in a table of eight
    order = [*numbers]
    other = copy.copy(numbers)
    FORMS["set"].put(other, order, ())
    assert [*other] == order
    FORMS["set"].put(other, order[::-1], ())
    assert [*other] == order[::-1]
    members = [Plain(), Plain()]
    weak = weakref.WeakSet(members[:1])
    FORMS["set"].put(weak, members[1:], ())
    assert [*weak] == members[1:]


def test_cells_functions_and_classes_are_set() -> None:
    held = cell(5)
    for parts in ((6,), (), (7,)):
        FORMS["cell"].put(held, parts, ())
        assert FORMS["cell"].contents(held) == ((), parts)
    try:
        FORMS["function"].put(with_default, {"__defaults__": (7,)}, ())
        assert with_default.__defaults__ == (7,)
    finally:
        with_default.__defaults__ = (1,)
    kind = type("Made", (), {"x": 1, "y": 2})
    FORMS["class"].put(kind, {"z": 3}, ("x",))
    assert FORMS["class"].contents(kind) == (("y", "z"), (2, 3))


@pytest.mark.parametrize(
    ("category", "value", "parts", "removed", "message"),
    [
        ("object", Slots(), {"z": 1}, (), "it has no slot `z`"),
        ("function", with_default, {"__code__": 1}, (), "`__code__` of a function is not state"),
        ("class", Kind, {"__init__": 1}, (), "`__init__` of a class is not state"),
        ("class", Kind, {"x": 7}, ("__special__",), "`__special__` of a class is not state"),
    ],
)
def test_what_is_no_state_is_not_set(category: Any, value: Any, parts: Any, removed: Any, message: str) -> None:
    with pytest.raises(AttributeError, match=f"^{message}$"):
        FORMS[category].put(value, parts, removed)
    assert Kind.x == 1


@pytest.mark.parametrize(
    ("make", "keys", "parts"),
    [
        (lambda count: [*range(count)], None, range(0, 204_800, 200)),
        (lambda count: dict(zip(range(count), range(1, count + 1), strict=True)), range(0, 204_800, 200), None),
        (lambda count: {*range(count)}, (), ()),
    ],
)
def test_of_a_very_large_container_some_items_are_taken(make: Callable[[int], Any], keys: Any, parts: Any) -> None:
    value = make(204_800)
    category: Any = {list: "list", dict: "mapping", set: "set"}[type(value)]
    found_keys, found = sample_of(value, category)
    assert found_keys == tuple(keys or ())
    assert found == tuple(number + 1 for number in keys) if category == "mapping" else found == tuple(parts)
    assert len(sample_of(make(100_000), category)[1]) == 100_000 > len(sample_of(make(100_001), category)[1])


# ---- nested containers


def test_parts_are_replaced_and_everything_else_stays_the_same_object() -> None:
    state = collections.OrderedDict(a=[1, (2.5, "x")], b={"c": collections.deque([2.5], 3)}, d=[[2]])
    state.note = 3  # type: ignore[attr-defined]
    seen: list[Any] = []

    def replace(part: Any, keys: tuple[Any, ...]) -> Any:
        seen.append(keys)
        return "new" if part == 2.5 else part

    other = replaced(state, replace, kept=frozenset({int, str}))
    assert other == {"a": [1, ("new", "x")], "b": {"c": collections.deque(["new"], 3)}, "d": [[2]]}
    assert type(other) is collections.OrderedDict and other.note == 3 and other["b"]["c"].maxlen == 3
    assert other["d"] is state["d"] and state["a"][1] == (2.5, "x")
    assert seen == [(), ("a",), ("a", 1), ("a", 1, 0), ("b",), ("b", "c"), ("b", "c", 0), ("d",), ("d", 0)]
    assert replaced(state, lambda part, keys: part) is state
    assert replaced([1, "a"], lambda part, keys: 0 if part == 1 else part) == [1, "a"], "constants are not asked for"
    held = OwnList([2.5])
    assert replaced(held, replace) is held


def test_very_deep_containers_are_left_as_they_are() -> None:
    deep: list[Any] = [2.5 + 0j]
    for _ in range(101):
        deep = [deep]

    def count(levels: int) -> int:
        depths: list[int] = []
        part: Any = deep
        for _ in range(102 - levels):
            (part,) = part
        replaced(part, lambda part, keys: depths.append(len(keys)) or part)
        return max(depths)

    assert (count(101), count(102)) == (101, 101)


def test_the_part_at_a_place() -> None:
    nested: Any = {"a": [1, {"b": (2, 3)}], "n": None}
    table: dict[tuple[Any, ...], Any] = {
        (): nested, ("a", 1, "b", 0): 2, ("a", 2): None, ("c",): None, ("a", "b"): None, ("n", 0): None,
        ("a", 0, 0): None,
    }  # fmt: skip
    assert {keys: at(nested, keys) for keys in table} == table
    grown = collections.defaultdict(list)
    assert at(grown, ("a",)) is None and not grown
