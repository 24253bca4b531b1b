"""Resumes that leave out what a row needs: that each row notices shows that its own comparison can fail."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphtrain.data.state import DataState
from graphtrain.program import run_state
from graphtrain.program.run_state import Exemptions, Handler, Section
from graphtrain.program.stateful_objects import StatefulObjects
from graphtrain.resume import restore
from graphtrain.state import changes as restoring
from tests.rows import Row, outcome


def _nothing(*arguments: Any, **keywords: Any) -> None:
    """What puts nothing back."""


def _without_section(name: str) -> None:
    run_state.SECTIONS[name] = Handler(run_state.SECTIONS[name].capture, _nothing)


def _without_state_dicts(is_left_out: Callable[[str], bool]) -> None:
    whole = run_state.SECTIONS["resources"]

    def put_back(run: StatefulObjects, saved: Section, exempt: Exemptions) -> Any:
        left_out = {*filter(is_left_out, {*saved, *run.objects.stateful})}
        return whole.restore(run, saved, exempt._replace(from_setup={*exempt.from_setup, *left_out}))

    run_state.SECTIONS["resources"] = Handler(whole.capture, put_back)


def _without_sharing() -> None:
    decoded = StatefulObjects.decoded
    StatefulObjects.decoded = lambda run, value: copy.deepcopy(decoded(run, value))


def _without_reachable() -> None:
    """Of data too: as it was when its epoch was opened."""
    restoring._put_contents = restoring._apply = _nothing  # type: ignore[assignment]


PARTS: Mapping[str, Callable[[], None]] = {
    "reachable": _without_reachable,
    "model": lambda: _without_state_dicts(lambda name: name == "model"),
    "optimizer": lambda: _without_state_dicts(lambda name: name == "optimizer"),
    "scheduler": lambda: _without_state_dicts(lambda name: name == "scheduler"),
    "state_dicts": lambda: _without_state_dicts(lambda name: name not in ("model", "optimizer", "scheduler")),
    "modules": lambda: _without_section("modules"),
    "gradients": lambda: _without_section("gradients"),
    "optimizers": lambda: _without_section("optimizers"),
    "position": lambda: _without_section("progress"),
    "sharing": _without_sharing,
    "data": lambda: setattr(DataState, "restore", _nothing),
    "random": lambda: _without_section("random"),
}
"""Part of what a resume puts back -> leaves it out from now on, in this process."""


def outcome_without(it: Row, run_dir: Path) -> dict[str, Any]:
    """As `outcome`, without the parts that a row needs, and without comparing what was loaded with what was saved."""
    restore._expect_digest = _nothing
    StatefulObjects.differs_from = lambda run, saved: []
    for part in it.needs:
        PARTS[part]()
    try:
        return outcome(it, run_dir)
    except Exception as error:
        return {"failed": repr(error)}
