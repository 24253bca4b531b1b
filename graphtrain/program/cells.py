"""Cells: the values that nodes and guards read, located once, when the graph is compiled."""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, get_args, get_origin

from graphtrain.errors import ExpressionError, UsageError
from graphtrain.graph.closures import Cell, Getter, any_of, compile_guard, constant, never, stored
from graphtrain.graph.syntax import Expression, FieldOf, Name
from graphtrain.kind import Read
from graphtrain.kind.parameter import Above, Below
from graphtrain.plan.scope import Ref, Scope
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.resources import StepCall, StepInputs, StepOutputs, step_call
from graphtrain.program.triggers import Due, Every


class Cells:
    """Makes the cells of one program, and the visits of nodes whose parameters are expressions.

    Attributes:
        extra_inputs: path of a node -> the inputs of its step functions other than model and batch.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._slots = program.slots
        self._returned = {path for node in program.nodes for path in node.plan_node.returned.values()}
        self.extra_inputs: dict[str, list[tuple[Read, Ref]]] = {}

    def of(self, node: ProgramNode, read: Read, ref: Ref) -> Cell:
        """The cell of a reference that a node reads. A slot without a value has the default of the read."""
        match ref.category:
            case "slot":
                slots, path, default = self._slots, ref.path, read.default
                if read.required or default is None:
                    return stored(slots, path)
                return Cell(lambda: default if slots[path] is None else slots[path])
            case "list":
                cells = [self.of(node, read, part) for part in ref.parts]
                gets = [cell.read for cell in cells]
                if all(cell.is_constant for cell in cells):
                    return constant(tuple(get() for get in gets))
                return Cell(lambda: tuple(get() for get in gets))
            case "expression":
                return Cell(self.expression(ref))
            case "field":
                return self.at(ref.path, ref.name)
            case "resource":
                return constant(self._resource(node, read, ref.name))

    # ---- resources, and step functions with their inputs

    def _resource(self, node: ProgramNode, read: Read, name: str) -> Any:
        """The value of a resource; of a step function, a call that takes model and batch and adds its extra inputs."""
        value = self._program.resource(name, read, node.path)
        if "a step function" in read.holds and value is not None:
            step = value if isinstance(value, StepCall) else step_call(value, name)  # else not of `STEP_FUNCTIONS`
            reads = [(extra, self._program.step_input(node, extra)) for extra in step.extra_inputs]
            self.extra_inputs.setdefault(node.path, []).extend(reads)
            getters = [(extra.name, self._step_input(node, extra, ref)) for extra, ref in reads]
            call = StepInputs(step.call, tuple(getters)) if getters else step.call
            returned = node.plan_node.returned
            return StepOutputs(call, node.path, name, returned, self._slots) if returned else call
        return value.function if isinstance(value, StepCall) else value

    def _step_input(self, node: ProgramNode, read: Read, ref: Ref) -> Getter:
        """A call that returns an input of a step function, and raises if a step function has yet to return it."""
        get = self.of(node, read, ref).read
        if not read.required or ref.category != "slot" or ref.path not in self._returned:
            return get

        def written() -> Any:
            if (value := get()) is None:
                raise UsageError(
                    f"`{node.path}` asks for `{read.name}` before a step function has returned it",
                    f"give it a default, as in {read.name}=None, for the first batch, and the first of every epoch",
                )
            return value

        return written

    # ---- fields

    def at(self, path: str, name: str) -> Cell:
        """A field or parameter of the node at a path; in a bypassed body, its initial value."""
        node = self._program.by_path.get(path)
        if node is not None:
            return self.field(node, name)
        return constant(False if name == "due" else getattr(self._program.plan.by_path[path].new_instance(), name))

    def field(self, node: ProgramNode, name: str) -> Cell:
        """A field or parameter of a node."""
        if name == "due":
            return Cell(self.due(node))
        if name in node.plan_node.expressions:
            return Cell(self.expression(node.plan_node.expressions[name]))
        if name in node.kind.parameters:
            return constant(node.parameters[name])
        fields = node.fields
        counter = node.kind.counter(name)
        if counter is not None and counter.window is not None and name == counter.full:
            count, window = counter.name, counter.window
            return Cell(lambda: 0 < fields[window] <= fields[count])
        return stored(fields, name) if name in fields else Cell(functools.partial(getattr, node.instance, name))

    def due(self, node: ProgramNode) -> Due:
        """A call that returns whether a node is due: by its trigger, or by a field that its kind declares for that."""
        if node.bypassed:
            return never
        if node.trigger is None:
            return lambda: True
        calls = [node.trigger.due, *[self.field(node, name).read for name in node.plan_node.extra_due_fields]]
        due = any_of([call for call in calls if call is not never])
        may_be_due = node.trigger.may_be_due if isinstance(node.trigger, Every) else None
        return due if due is never or may_be_due is None else lambda: may_be_due() and due()

    # ---- guards and expressions

    def compiled(self, scope: Scope, expression: Expression) -> Getter:
        """A call that returns the value of a guard or of another expression of a graph."""
        return compile_guard(expression, functools.partial(self.named, scope))

    def expression(self, ref: Ref) -> Getter:
        """A call that returns the value of an expression, converted for its parameter, or raises an ExpressionError."""
        scope = self._program.scopes.get(ref.path)
        if scope is None:  # of a node in a bypassed body
            path, _, name = ref.name.rpartition(".")
            return self.at(path, name).read
        return evaluated(ref, self.compiled(scope, ref.expression))

    def wrap(self, node: ProgramNode, visit: Getter) -> Getter:
        """The visit of a node; before it, expressions are evaluated and set as parameters."""
        getters = [(name, self.expression(ref)) for name, ref in node.plan_node.expressions.items()]
        if not getters:
            return visit
        arguments, (only_name, only_get) = node.arguments, getters[0]

        def visit_one() -> Any:
            arguments[only_name] = only_get()
            return visit()

        def visit_all() -> Any:
            for name, get in getters:
                arguments[name] = get()
            return visit()

        return visit_one if len(getters) == 1 else visit_all  # a loop costs 0.1 us

    def named(self, scope: Scope, expression: Name | FieldOf) -> Cell:
        """The cell of a name in a guard or an expression. A slot must hold a Python number or text."""
        if isinstance(expression, FieldOf):
            return self.at(f"{scope.path}{expression.node}", expression.field)
        ref = scope.resolve(expression.name)
        if ref.category != "slot":
            return self.of(self._program.start_of(scope), Read(expression.name), ref)
        slots, path = self._slots, ref.path

        def read() -> Any:  # not of tensors: that would wait for a device in every transition
            value = slots[path]
            if not isinstance(value, bool | int | float | str):
                received = f"a {type(value).__name__}" if value is not None else "nothing yet"
                raise TypeError(
                    f"the slot `{path}` holds {received}; guards and expressions read Python numbers and text"
                )
            return value

        return Cell(read)


def evaluated(ref: Ref, read: Getter) -> Getter:
    """A call that returns the value of an expression, read by `read`, or raises unless it fits its parameter.

    A number of the right type and within its bound passes two comparisons (0.05 us); `Parameter.coerce` decides
    about the rest.
    """
    name, text, parameter = ref.name, ref.text, ref.parameter
    annotation = parameter.annotation if parameter is not None else None
    plain, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    number = plain if plain in (int, float) else None
    least = max((mark.bound for mark in marks if isinstance(mark, Above)), default=-math.inf)
    most = min((mark.bound for mark in marks if isinstance(mark, Below)), default=math.inf)

    def get() -> Any:
        try:
            value: Any = read()
        except ExpressionError:  # of an expression that this one reads
            raise
        except Exception as error:
            hint = "write a Python number to the slot: `.item()` of a tensor" if isinstance(error, TypeError) else ""
            raise ExpressionError(name, text, f"raised {type(error).__name__}: {error}", hint) from error
        if parameter is None or (type(value) is number and least < value < most):
            return value
        try:
            return parameter.coerce(value)
        except (ValueError, OverflowError) as error:
            raise ExpressionError(name, text, str(error)) from None

    return get
