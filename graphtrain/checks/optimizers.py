"""G401, G408 to G410: each node names its optimizer, which has gradients and is stepped; windows keep their size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graphtrain.graph.elements import Problem
from graphtrain.names import quoted
from graphtrain.plan.plan import PlanNode
from graphtrain.plan.scope import Scope


def optimizers_in(nodes: Iterable[PlanNode]) -> dict[str, dict[str, PlanNode]]:
    """Optimizer -> effect on its gradients -> the first node that has it."""
    optimizers: dict[str, dict[str, PlanNode]] = {}
    for node in nodes:
        for action in node.actions:
            for name in action.optimizers:
                optimizers.setdefault(name, {}).setdefault(action.effect, node)
    return optimizers


def check_optimizers(main: Scope, nodes: Sequence[PlanNode]) -> Iterator[tuple[Problem, list[str]]]:
    """Every problem, with the optimizers whose gradients say nothing then."""
    optimizers = optimizers_in(nodes)
    unbound = [node for node in nodes if (node.actions or _counts(node)) and _is_unbound(node)]
    if len(optimizers) > 1 and unbound:
        named = [name for node in nodes if node not in unbound for each in node.actions for name in each.optimizers]
        several = list(dict.fromkeys(named if len({*named}) > 1 else optimizers))
        inside: dict[str, list[PlanNode]] = {}  # by the node of the outermost graph, where one line fixes them all
        for node in unbound:
            inside.setdefault(node.path.partition("/")[0], []).append(node)
        for name, unnamed in inside.items():
            yield _unbound(main, name, unnamed, several), [*optimizers]
        return
    yield from ((problem, []) for problem in _varying(nodes))
    for name, effects in optimizers.items():
        if "step" in effects and "backward" not in effects:
            message = f"`{effects['step'].path}` steps `{name}`, for which no node computes gradients"
            hint = 'add a node that runs backward, as in insert("train_batch", after=...)'
            yield _problem(effects["step"], "G401", message, hint), [name]
        elif "backward" in effects and not {"step", "use"} & effects.keys():
            path = effects["backward"].path
            message = f"`{name}` is never stepped: `{path}` computes gradients for it, and no node uses them"
            hint = 'add a node of the kind `step`, as in insert("step", after=...)'
            yield _problem(effects["backward"], "G408", message, hint), [name]


def _varying(nodes: Iterable[PlanNode]) -> Iterator[Problem]:
    """The losses divided by an expression with the size of the next window, in place of that which is open."""
    sizes = {
        f"{node.path}.{declared.target}": f"{node.node.name}.{declared.window}"
        for node in nodes
        for declared in node.kind.fields.values()
        if declared.counts is not None and declared.window is not None and declared.target in node.expressions
    }
    for node in nodes:
        for read, ref in node.reads:
            if read.name == "window" and ref.name in sizes:
                message = (
                    f"`{node.path}` divides the loss by `{ref.name}`, an expression whose value may change while a "
                )
                hint = f'read the size with which the window opened: window = "{sizes[ref.name]}"'
                yield _problem(node, "G409", f"{message}window is open", hint)


def _problem(node: PlanNode, code: str, message: str, hint: str) -> Problem:
    return node.scope.problem(code, f"nodes.{node.node.name}", message, hint, path=(node.path,))


def _unbound(scope: Scope, name: str, nodes: list[PlanNode], several: list[str]) -> Problem:
    first, *more = nodes
    default = first.scope.named_by(first.node, "optimizer")
    does = "acts on the gradients" if first.actions else "counts the backward passes"
    also = f" as {len(more)} more in `{name}` do," if more else ""
    at = f" at `{name}`" if name != first.path else ""
    listed = ", ".join(f'"{each}"' for each in several)
    return scope.problem(
        "G410",
        f"nodes.{name}",
        f"`{first.path}` {does} of `{default}` by default,{also} and there are several optimizers: {quoted(several)}",
        f'name the one it is for{at}: reads = {{ optimizer = "{several[-1]}" }}; or all: '
        f"reads = {{ optimizer = [{listed}] }}",
    )


def _counts(node: PlanNode) -> bool:
    return any(declared.counts == "backward" for declared in node.kind.fields.values())


def _is_unbound(node: PlanNode) -> bool:
    """True if neither a node nor one around it names its optimizer."""
    if not _counts(node) and all(each.slot != "optimizer" or each.effect == "read" for each in node.actions):
        return False  # its kind names the optimizers by separate slots; one that only reads changes nothing
    scope: Scope | None = node.scope
    inner, is_of_overlay = node.node, False  # which did not know the optimizer that the graph names
    while scope is not None:
        is_of_overlay |= any(edit.subject == inner.name and edit.adds for edit in scope.graph.layers.done)
        if "optimizer" in inner.reads or (scope.graph.optimizer and not is_of_overlay):
            return False
        if scope.outer_node is None:
            break
        inner, scope = scope.outer_node, scope.outer
    return True
