"""Changes in place, and objects that a `state_dict` shares."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch

from graphtrain import Loader
from tests.rows import batches, row, rows, seeded, stepped

CHANGED_AT = 2
LATER = 700  # of 1,000 samples: not trained on before the cut


def relabelled(train_data: Any, change: Callable[[], object], *, size: int = 3) -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == CHANGED_AT:
            change()
        inputs, labels = (torch.as_tensor(batch[name]).float() for name in ("x", "y"))
        return (model(inputs).squeeze(1) - labels).square().mean()

    return seeded(lambda: torch.nn.Linear(size, 1), training_step=step, train_data=train_data)


def dictionaries(count: int) -> list[dict[str, Any]]:
    inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(7))
    return [{"x": row, "y": 0.0} for row in inputs]


@row("has changed since the checkpoint")
def one_of_1000_dictionaries_of_a_loader() -> dict[str, Any]:
    samples = dictionaries(1_000)
    return relabelled(Loader(samples, batch_size=143), lambda: samples[LATER].update(y=9.0))


class Labelled(torch.utils.data.Dataset[Any]):
    """1,000 samples whose labels are rows of a large table."""

    def __init__(self, labels: Any) -> None:
        self.inputs = torch.randn(1_000, 3, generator=torch.Generator().manual_seed(7))
        self.labels = labels

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.inputs[index], "y": float(self.labels[index].sum())}


@row("has changed since the checkpoint")
def few_rows_of_8_mb_of_labels_in_torch_through_data() -> dict[str, Any]:
    data = Labelled(torch.zeros(1_000, 2_000))

    def change() -> None:
        data.labels.data[LATER, 501:504] = 3.0

    return relabelled(Loader(data, batch_size=143), change)


@row("has changed since the checkpoint")
def one_of_100_batches_in_numpy() -> dict[str, Any]:
    generator = numpy.random.default_rng(7)
    data = [{"x": generator.normal(size=(4, 3)).astype("f4"), "y": numpy.zeros(4, "f4")} for _ in range(100)]

    def change() -> None:
        data[77]["y"][:] = 9.0

    return relabelled(data, change)


class Kept(torch.optim.Optimizer):
    """SGD with a state in which parameters share an object; `made` makes the states, `scale` uses one."""

    def __init__(self, parameters: Iterable[Any], made: Callable[[], Any], scale: Callable[[Any, bool], float]) -> None:
        super().__init__(parameters, {"lr": 0.02})
        self.made, self.scale = made, scale

    def step(self, closure: Any = None) -> None:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        if not self.state:
            shared = self.made()
            for parameter in parameters:
                self.state[parameter]["shared"] = shared
        with torch.no_grad():
            for number, parameter in enumerate(parameters):
                rate = 0.02 * self.scale(self.state[parameter]["shared"], number == 0)
                parameter.add_(parameter.grad, alpha=-rate)


def sharing(made: Callable[[], Any], scale: Callable[[Any, bool], float]) -> dict[str, Any]:
    return seeded(
        lambda: torch.nn.Linear(3, 1), optimizer=lambda parameters: Kept(parameters, made, scale), train_data=batches()
    )


def scale_by_list(shared: list[float], is_first: bool) -> float:
    shared.append(1.0)
    return 1 / len(shared)


# ---- containers in C


def changed_once(
    made: Callable[[], Any], change: Callable[[Any], object], read: Callable[[Any], float]
) -> dict[str, Any]:
    """A loss that is scaled by what is read of a container, which is changed in place once."""
    held = [made()]

    def update(step: int) -> float:
        if step == CHANGED_AT:
            change(held[0])
        return 1 + read(held[0])

    return stepped(update)


@row("DataFrame that has changed", requires="pandas")
def frame_of_pandas() -> dict[str, Any]:
    import pandas

    return changed_once(
        lambda: pandas.DataFrame({"y": numpy.zeros(4)}),
        lambda held: held.loc.__setitem__((3, "y"), 9.0),
        lambda held: held["y"].sum(),
    )


def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table numbers as select 1.0 as number")
    return connection


# ---- sets of strings, whose order is another one in another process


NAMES = [f"name {number}" for number in range(9)]


class Seen:
    """Names in a set."""

    def __init__(self) -> None:
        self.names = set(NAMES)

    def state_dict(self) -> dict[str, Any]:
        return {"names": set(self.names)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.names = set(state["names"])


@row(needs="state_dicts")
def set_in_a_state_dict() -> dict[str, Any]:
    seen = Seen()

    def update(step: int) -> float:
        if step == 1:
            seen.names.add("m")
        return len(seen.names)

    return stepped(update)


@row()
def set_of_frozensets_that_grows() -> dict[str, Any]:
    groups = {frozenset(NAMES), frozenset(["m"])}

    def update(step: int) -> float:
        if step == 1:
            groups.add(frozenset(["n"]))
        return len(groups)

    return stepped(update)


# ---- bounds


class Link:
    """One of a list."""

    def __init__(self, number: float, following: Any = None) -> None:
        self.number, self.following = number, following


def linked_list() -> Link:
    link = Link(0.0)
    for _ in range(149):
        link = Link(0.0, link)
    return link


def last(link: Link) -> Link:
    while link.following is not None:
        link = link.following
    return link


rows(
    stateless="what is shared is within a `state_dict`",
    list_of_two_parameters=lambda: sharing(lambda: [1.0], scale_by_list),
)
rows(
    "is a sqlite3.Connection that has changed",
    database_in_memory=lambda: changed_once(
        database,
        lambda held: held.execute("update numbers set number = 9"),
        lambda held: held.execute("select number from numbers").fetchone()[0],
    ),
)
rows(
    linked_list_of_150=lambda: changed_once(
        linked_list, lambda held: setattr(last(held), "number", 1.0), lambda held: last(held).number
    ),
    objects_in_70_lists_of_300=lambda: changed_once(
        lambda: [[Link(0.0) for _ in range(300)] for _ in range(70)],
        lambda held: setattr(held[69][299], "number", 1.0),
        lambda held: held[69][299].number,
    ),
)
