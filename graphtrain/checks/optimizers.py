"""G401, G408 to G410: nodes name their optimizer if there are several; each has gradients and is stepped."""

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
    """Every problem, with the optimizers whose gradients need no further check."""
    optimizers, unbound = optimizers_in(nodes), [node for node in nodes if _is_unbound(node)]
    if len(optimizers) > 1 and unbound:
        named = [name for node in nodes if node not in unbound for each in node.actions for name in each.optimizers]
        several = list(dict.fromkeys(named if len({*named}) > 1 else optimizers))
        listed = ", ".join(f'"{each}"' for each in several)
        # Reported at the node in the outermost graph, where one line fixes everything inside.
        for name, node in {each.path.partition("/")[0]: each for each in reversed(unbound)}.items():
            default = node.scope.named_by(node.node, "optimizer")
            message = f"`{node.path}` acts on the gradients of `{default}` by default, but there are several optimizers"
            hint = f'name its optimizer: reads = {{ optimizer = "{several[-1]}" }}; or all: '
            hint += f"reads = {{ optimizer = [{listed}] }}"
            yield main.problem("G410", f"nodes.{name}", f"{message}: {quoted(several)}", hint), [*optimizers]
        return
    sizes = {
        f"{node.path}.{declared.target}": f"{node.node.name}.{declared.window}"
        for node in nodes
        for declared in node.kind.fields.values()
        if declared.counts is not None and declared.window is not None and declared.target in node.expressions
    }
    for node in nodes:
        for read, ref in node.reads:
            if read.name == "window" and ref.name in sizes:
                message = f"`{node.path}` divides the loss by `{ref.name}`, which may change while a window is open"
                hint = f'read the size that the open window has: window = "{sizes[ref.name]}"'
                yield node.problem("G409", message, hint, path=(node.path,)), []
    computed = [name for name, effects in optimizers.items() if "backward" in effects and "step" not in effects]
    computed += [name for name, effects in optimizers.items() if effects.keys() >= {"backward", "step"}]
    for name, effects in optimizers.items():
        if (reading := effects.get("step") or effects.get("read")) and "backward" not in effects:
            code, does = ("G401", "steps") if "step" in effects else ("G411", "reads the gradients of")
            message = f"`{reading.path}` {does} `{name}`, but no node runs backward for it"
            hint = "".join([f'name another: reads = {{ optimizer = "{each}" }}; or ' for each in computed[:1]])
            hint += 'add a node that runs backward, as in insert("train_batch", after=...)'
            yield reading.problem(code, message, hint, path=(reading.path,)), [name]
        elif "backward" in effects and not {"step", "use"} & effects.keys():
            node = effects["backward"]
            message = f"`{name}` is never stepped: `{node.path}` computes its gradients, but no node uses them"
            hint = 'add a node of the kind `step`, as in insert("step", after=...)'
            yield node.problem("G408", message, hint, path=(node.path,)), [name]


def _is_unbound(node: PlanNode) -> bool:
    """True if a node changes gradients or counts passes, and neither it nor a node around it names the optimizer."""
    acting = [each for each in node.actions if each.slot == "optimizer" and each.effect != "read"]
    if not acting and all(declared.counts != "backward" for declared in node.kind.fields.values()):
        return False  # its kind has a slot for each optimizer, or only reads
    inner, is_of_overlay = node.node, False  # an overlay does not know the optimizer of the graph
    for scope in node.scope.around[::-1]:
        is_of_overlay |= any(edit.subject == inner.name and edit.adds for edit in scope.graph.layers.done)
        if "optimizer" in inner.reads or (scope.graph.optimizer and not is_of_overlay):
            return False
        inner = scope.outer_node or inner
    return True
