"""What visits do to gradients, windows and modes of models: marks in the state of an explored graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, final

from graphtrain.checks.gradient_rules import (
    MISCOUNTED,
    MISCOUNTED_BY_ONE,
    OPEN,
    RULES,
    RULES_OF_DIVISORS,
    RULES_OF_RANKS,
    TOO_EARLY,
    UNUSED,
    WRONG_MODE,
    Fault,
    State,
)
from graphtrain.checks.stubs import LARGE, StubCells
from graphtrain.kind import Field
from graphtrain.plan.plan import Plan, PlanNode, optimizers_of
from graphtrain.plan.scope import Ref, Scope
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.rank_visits import Act

_Rules = Mapping[tuple[str, State], tuple[State, Fault | None]]
_Effects = Mapping[str, Mapping[str, str]]
Report = Callable[..., None]
"""Called with a fault, its node, and the words of its message."""

# The field with the scale of the loss, by which the kind divides gradients; the parameter with the unit of a sum.
_SCALE, _PER = "scale", "per"


@final
class Watch:
    """The marks of one program.

    Arguments:
        optimizers: the optimizers whose gradients are followed.
        ranks: True for several ranks.
        report: called with each fault.

    Attributes:
        acts, leaving: path of a node -> calls to make at its visits; position -> those once its edge is chosen.
        marks: the state of the gradients of each optimizer; then marks of divisors, windows and modes.
        divides_exchanged: the paths of nodes that divide gradients which were exchanged.
    """

    def __init__(
        self, program: Program, cells: StubCells, optimizers: Collection[str], *, ranks: bool, report: Report
    ) -> None:
        self._program, self._cells, self._report = program, cells, report
        self._acting = [node for node in program.nodes if node.plan_node.actions]
        self.optimizers = list(optimizers)
        self.marks: list[Any] = []
        self.divides_exchanged: set[str] = set()
        self.acts: dict[str, list[Act]] = {node.path: [] for node in program.nodes}
        self.leaving: dict[int, list[Act]] = {node.index: [] for node in program.nodes}
        for name in self.optimizers:
            self._follow(RULES_OF_RANKS if ranks else RULES, optimizer=name)
        for node in self._acting:
            self._add_window(node)
        for divisor, effects in _divisors(program.plan, [node.plan_node for node in self._acting]):
            for name in self.optimizers:
                self._follow(RULES_OF_DIVISORS, effects, optimizer=name, divisor=divisor)
        self._modes = self._add_modes()

    # ---- gradients

    def _follow(self, rules: _Rules, effects: _Effects | None = None, **words: str) -> None:
        """Add a mark that changes, by rules, at visits that act on the gradients of the `optimizer` in `words`.

        `effects`: path -> effect -> the effect on the mark, if it has one. Default: the effect itself.
        """
        at = len(self.marks)
        self.marks.append("clean")
        for node in self._acting:
            for action in node.plan_node.actions:
                effect = action.effect if effects is None else effects[node.path].get(action.effect)
                if effect is not None and words["optimizer"] in action.optimizers:
                    self.acts[node.path].append(functools.partial(self._act, node, at, effect, rules, **words))

    def _act(self, node: ProgramNode, at: int, effect: str, rules: _Rules, **words: str) -> None:
        before = self.marks[at]
        if effect == "divide" and before in ("exchanged", "scaled"):
            self.divides_exchanged.add(node.path)
        self.marks[at], fault = rules[effect, before]
        if fault is not None:
            self._report(fault, node, **words)

    def end(self, last: ProgramNode) -> None:
        """Report gradients that no step has used, where the run ends."""
        for name, state in zip(self.optimizers, self.marks, strict=False):
            if state in UNUSED:
                self._report(OPEN, last, optimizer=name)

    # ---- windows by which losses are divided

    def _add_window(self, node: ProgramNode) -> None:
        """Count the backward passes of the window by which a node divides its loss."""
        names = [name for each in node.plan_node.actions if each.effect == "backward" for name in each.optimizers]
        followed = [name for name in names if name in self.optimizers]
        window = next((ref for read, ref in node.plan_node.visit_reads if read.name == "window"), None)
        owner = self._program.by_path.get(window.path) if window is not None and window.category == "field" else None
        if window is None or owner is None or not followed:
            return
        counters = [each for each in owner.kind.fields.values() if each.counts == "backward"]
        for field in [each for each in counters if window.name in (each.window, each.target)][:1]:
            for name in filter(None, (field.name, field.window)):
                self._cells.registers.add(owner, name)
            count = functools.partial(self._count, node, owner, field, len(self.marks))
            # Nodes before the step, such as an evaluation, may change an answer by which the window was cut.
            self.leaving[owner.index].append(functools.partial(self._cut, len(self.marks)))
            self.marks.append((0, False))
            for other in self._acting:
                if effects := [each.effect for each in other.plan_node.actions if followed[0] in each.optimizers]:
                    self.acts[other.path].append(functools.partial(count, other, effects))

    def _cut(self, at: int) -> None:
        """Mark an open window as cut, until its step, at the last batch or where data or time decide."""
        passes, is_cut = self.marks[at]
        if passes and not is_cut:
            fetching = [each.fields for each in self._program.nodes if each.kind.fetches]
            ends = [fields[name] for fields in fetching for name in ("last", "exhausted")]
            self.marks[at] = (passes, any(ends) or any(self._cells.questions.outcomes))

    def _count(
        self, node: ProgramNode, owner: ProgramNode, field: Field, at: int, acting: ProgramNode, effects: Sequence[str]
    ) -> None:
        """Count a visit that acts on the gradients of a window by whose size `node` divides its loss."""
        if "backward" not in effects:
            self._cut(at)
        passes, is_cut = self.marks[at]
        opened = owner.fields[field.window] if field.window is not None and passes else 0
        size: int = opened or self._cells.field(owner, str(field.target)).read()
        words = {"window": f"{owner.node.name}.{field.target}", "size": str(size), "acting": acting.path}
        for effect in effects if self._cells.sizes.window == 1 else ():  # else it is not the window of the graph
            if effect == "backward" and acting is node and passes >= size:
                self._report(MISCOUNTED if size > 1 else MISCOUNTED_BY_ONE, node, passes=str(passes + 1), **words)
            is_over = effect == "step" or (effect == "zero_grad" and acting.kind.name != "discard")
            if is_over and 0 < passes < size and not is_cut:
                self._report(TOO_EARLY, node, passes=str(passes), **words)
        for effect in effects:
            if effect == "backward":
                passes = min(passes + 1, LARGE + 3)
            elif effect in ("zero_grad", "step"):
                passes = 0
        self.marks[at] = (passes, is_cut and passes > 0 and "backward" not in effects)

    # ---- modes of models

    def _add_modes(self) -> dict[str, int]:
        """Add a mark for each model that a node sets to evaluation mode: for each graph around the present node, the
        slots written where an evaluation began there; None in training mode.
        """
        nodes = [node for node in self._program.nodes if "model" in node.kind.slots and node.node.body is None]
        used = [(node, model) for node in nodes for model in optimizers_of(node.scope, node.node, "model")]
        models = dict.fromkeys([model for node, model in used if "eval" in node.kind.does])
        modes = {model: len(self.marks) + number for number, model in enumerate(models)}
        self.marks += [(None,)] * len(modes)
        for node, model in used:
            if model in modes and node.kind.actions:
                self.acts[node.path].append(functools.partial(self._set_mode, node, model, modes[model]))
        return modes

    def _set_mode(self, node: ProgramNode, model: str, at: int) -> None:
        modes: tuple[frozenset[str] | None, ...] = self.marks[at]
        does = ""
        for action in node.kind.actions:
            if action.effect == "backward" and modes.count(None) < len(modes):
                does, modes = "runs backward in", (None,) * len(modes)
            elif action.effect == "eval":
                saved, written = modes[-1] or frozenset(), frozenset(node.scope.written_by(node.node))
                does = does if saved.isdisjoint(written) else "takes for that of the training the"
                modes = (*modes[:-1], saved | written)
            elif action.effect == "train":
                modes = (*modes[:-1], None)
        self.marks[at] = modes
        if does:
            self._report(WRONG_MODE, node, model=model, does=does)

    def enter(self) -> None:
        """Enter a body."""
        for at in self._modes.values():
            self.marks[at] = (*self.marks[at], None)

    def leave(self, body: Scope, last: ProgramNode) -> None:
        """Leave a body after its last node."""
        for model, at in self._modes.items():
            *around, inside = self.marks[at]
            self.marks[at] = tuple(around)
            if inside is not None:
                self._report(WRONG_MODE, last, model=model, does=f"ends `{body.path[:-1]}` in")


def _divisors(plan: Plan, acting: Sequence[PlanNode]) -> Iterator[tuple[str, _Effects]]:
    """The fields by which gradients have to be divided, scales of losses and counts of sums, with effects of nodes."""
    done = {node.path: {action.effect for action in node.actions} for node in acting}
    divides = "divide" in set[str]().union(*done.values())
    read = {
        node.path: {part for _, ref in (*node.setup_reads, *node.visit_reads) for part in ref.simple()}
        for node in acting
    }
    for node in acting:
        per, done_here = node.parameters.get(_PER, ""), done[node.path]
        for name, declared in node.kind.fields.items():
            is_scale = name == _SCALE and "scale" in done_here
            if not is_scale and (per is None or not declared.with_gradients or "backward" not in done_here):
                continue
            reading = [path for path, refs in read.items() if Ref("field", node.path, name) in refs]
            is_divided = any(("backward" if is_scale else "divide") in done[path] for path in reading)
            is_read = (node.path, name) in plan.fields_read
            if not is_divided and (is_read or not (is_scale or (per and not divides))):
                continue  # it may not be meant for gradients, or be read through another node
            owing, other = (reading, "mix") if is_scale else ([node.path], "add")
            dividing = {"scale": "divide", "divide": "divide"}
            effects = {
                path: {"backward": "owe" if path in owing else other, "step": "step", "zero_grad": "zero_grad"}
                | (dividing if path == node.path or path in reading else {})
                for path in done
            }
            yield f"{node.path}.{name}", effects
