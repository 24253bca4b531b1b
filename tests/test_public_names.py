"""What people import: the names of the package, those that a star brings, and kinds by their modules."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

import graphtrain

LATE = graphtrain._LATE  # names that are imported on first use


@pytest.mark.full
def test_the_package_has_every_public_name() -> None:
    assert {"Graph", "Trainer", "Loader", "fit", "main"} < {*LATE} < {*dir(graphtrain)}
    assert [name for name in LATE if getattr(getattr(graphtrain, name), "__name__", name) != name] == []
    with pytest.raises(AttributeError, match="nothing"):
        graphtrain.nothing  # noqa: B018


@pytest.mark.full
def test_a_star_imports_the_public_names_and_no_others() -> None:
    names: dict[str, object] = {}
    exec("from graphtrain import *", names)  # noqa: S102 - a function cannot have it; imports `TensorBoard` and others
    names.pop("__builtins__")
    assert {"Graph", "TensorBoard", "Trainer"} < names.keys() <= {*dir(graphtrain)}
    assert not [name for name, value in names.items() if name.startswith("_") or isinstance(value, ModuleType)]


def test_a_kind_can_be_imported_by_its_module() -> None:
    clip = importlib.import_module("graphtrain.nodes.clip")
    assert graphtrain.Graph.load("fit").nodes["clip"].use == clip.Clip.__kind__.name


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("chekpoint", ["checkpoint", "clip"], "did you mean `checkpoint`?"),
        ("Clip", ["checkpoint", "clip"], "did you mean `clip`?"),
        ("qqq", ["b", "a"], "known: a, b"),
        ("qqq", [f"name_{number}" for number in range(21)], ""),
        ("qqq", [], ""),
        ("max_steps", ["max_step"], 'that is `finish.after = "N steps"` here'),
    ],
)
def test_a_name_that_is_not_known_is_answered_by_the_nearest(name: str, known: list[str], said: str) -> None:
    assert graphtrain.suggestion(name, known) == said
