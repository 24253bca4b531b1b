"""The resources of a user, plain PyTorch objects and functions, prepared for the nodes that read them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import Read
from graphtrain.kind.declaration import StepRequest
from graphtrain.lazy import lazy_import
from graphtrain.names import quoted
from graphtrain.report.values import described

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")

# Names that the engine supplies; those from `asks` on differ between nodes.
PROVIDED = (
    "checkpoints", "data_state", "device", "notify", "ranks", "recorder", "run_optimizers", "running_seconds", "saving",
    "seed",
    "asks", "backward", "current_loader", "graph_trains", "history", "metric_prefix", "step_names",
    "training_precision", "windows",
)  # fmt: skip

SHARDED = "set_requires_gradient_sync"  # a method of modules that `fully_shard` has sharded
STEP_FUNCTIONS = ("training_step", "validation_step", "test_step", "predict_step")

# Resources that are usual in every graph: it is not reported if nothing reads them.
USUAL = (
    "model", "optimizer", "scheduler", *STEP_FUNCTIONS, "train_data", "val_data", "test_data", "predict_data",
    "metric_objects",
)  # fmt: skip


@dataclass(frozen=True)
class StepCall:
    """A step function of a user: its call with model and batch, its other inputs by name, and its name."""

    function: Any
    call: Callable[..., Any]
    extra_inputs: tuple[Read, ...]
    name: str


@dataclass(frozen=True)
class StepInputs:
    """A step function with other inputs than model and batch, and a call for the value of each."""

    call: Callable[..., Any]
    getters: tuple[tuple[str, Callable[[], Any]], ...]

    def __call__(self, model: Any, batch: Any) -> Any:
        return self.call(model, batch, **{name: get() for name, get in self.getters})


@dataclass(frozen=True)
class StepOutputs:
    """A step function that also returns values for slots. They are detached; the rest is its result.

    Arguments:
        step: takes the model and the batch.
        node, name: the path of the node that calls it, and the name of the function, for messages.
        paths: name in its result -> path of the slot.
        slots: the values of all slots.
    """

    step: Callable[..., Any]
    node: str
    name: str
    paths: Mapping[str, str]
    slots: dict[str, Any]

    def __call__(self, model: Any, batch: Any) -> Any:
        return self.take(self.step(model, batch))

    def take(self, result: Any) -> Any:
        """Write the slots in a result, and return the rest. None is returned as it is: the node checks it."""
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], StepRequest):
            return self.take(result[0]), result[1]
        if result is None:
            return None
        is_mapping = isinstance(result, Mapping)
        if not is_mapping or not self.paths.keys() <= result.keys():
            received = (quoted(map(str, result)) or "nothing") if is_mapping else described(result)
            writes = f"`{self.node}` writes {quoted(self.paths)}"
            raise UsageError(
                f"{writes}, which `{self.name}` has to return by name; it returned {received}",
                f'return a mapping, as in {{"loss": loss, "{next(iter(self.paths))}": ...}}, or do not write it',
            )
        for name, path in self.paths.items():
            self.slots[path] = detached(result[name])
        return {name: value for name, value in result.items() if name not in self.paths}


def detached(value: Any) -> Any:
    """A value with its tensors detached, also in tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return value.detach() if value.requires_grad else value
    if isinstance(value, tuple):
        parts = [detached(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [detached(part) for part in value]
    if isinstance(value, dict):
        return {key: detached(part) for key, part in value.items()}
    return value


def prepare(resources: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The resources with modules on the device, and step functions (by default the model's) wrapped.

    Raises:
        UsageError: a resource has a name of the engine or a wrong type, or a step function does not take a model and a
            batch.
    """
    for name, method, expected in (
        ("model", "named_modules", "a torch.nn.Module"),
        ("optimizer", "step", "an optimizer, or a list of them"),
        ("scheduler", "step", "a scheduler, or a list of them"),
    ):
        supplied = resources.get(name)
        for value in supplied if isinstance(supplied, list | tuple) and name != "model" else [supplied]:
            if value is not None and (isinstance(value, type) or not hasattr(value, method)):
                got = f"the class {value.__name__}, not an object" if isinstance(value, type) else described(value)
                raise UsageError(f"`{name}` must be {expected}; got {got}")
    if reserved := sorted(set(PROVIDED) & set(resources)):
        raise UsageError(f"`{reserved[0]}` is supplied by the engine", "give the resource another name")
    objects = resources.get("metric_objects")
    for value in (*resources.values(), *(_metric_objects(objects) if objects is not None else ())):
        # A sharded module stays where `setup` has put it; parts of it may be in host memory.
        if isinstance(value, torch.nn.Module) and not hasattr(type(value), SHARDED):
            value.to(device)
    prepared = dict(resources)
    model = prepared.get("model")
    for name in STEP_FUNCTIONS:
        function = prepared.get(name)
        if function is not None:
            prepared[name] = step_call(function, name)
        elif callable(model_step := getattr(model, name, None)):
            prepared[name] = step_call(model_step, f"model.{name}", model)
        elif name == "test_step" and prepared.get("validation_step") is not None:
            prepared[name] = prepared["validation_step"]
    return prepared


def _metric_objects(objects: Any) -> Iterable[Any]:
    """The values of `metric_objects`; raises a UsageError unless each has `update`, `compute`, `reset` and one name."""
    if not isinstance(objects, Mapping) or not all(isinstance(name, str) for name in objects):
        hint = 'give each object a name, as in metric_objects={"val/f1": F1Score(...)}'
        raise UsageError(f"`metric_objects` must be a mapping of names; got {described(objects)}", hint)
    names: dict[int, str] = {}
    for name, value in objects.items():
        lacks = [method for method in ("update", "compute", "reset") if not callable(getattr(value, method, None))]
        if isinstance(value, type) or lacks:
            raise UsageError(
                f"`metric_objects` has `{name}`, {described(value)}",
                "pass an object with `update`, `compute` and `reset`, as a metric of torchmetrics has them",
            )
        if (other := names.setdefault(id(value), name)) != name:
            raise UsageError(
                f"`{other}` and `{name}` are one metric object, which would mix the batches of both",
                "make two: `clone()` of torchmetrics, or copy.deepcopy",
            )
    return objects.values()


def resolve_device(name: str | torch.device, local_rank: int | None = None) -> torch.device:
    """The device of a name; "auto" is CUDA if available, else the CPU.

    Arguments:
        local_rank: the number of this process on its host, which uses the CUDA device of that number unless another is
            named. Default: there is one process.

    Raises:
        UsageError: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    is_own = local_rank is not None and str(name) == "cuda"
    name = f"cuda:{local_rank}" if is_own else name
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        devices = ["auto", "cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        raise UsageError(f'device: there is no device "{name}" here', f"there are: {', '.join(devices)}") from None
    if is_own:
        torch.cuda.set_device(device)
    return device


def step_call(function: Any, name: str, owner: Any = None) -> StepCall:
    """A step function, prepared. That of a model, its `owner`, becomes the method of any model that it is called with.

    Raises:
        UsageError: it is not a function of a model and a batch.
    """
    if not callable(function):
        raise UsageError(f"`{name}` must be a function; got a {type(function).__name__}")
    takes_model = owner is None
    own_name = name.rpartition(".")[2]

    def of_model(model: Any, batch: Any, **rest: Any) -> Any:
        return (function if model is owner else getattr(model, own_name, function))(batch, **rest)

    call = function if takes_model else of_model
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C has no signature
        return StepCall(function, call, (), own_name)
    try:
        passed = signature.bind_partial(*(("model", "batch") if takes_model else ("batch",))).arguments
    except TypeError:
        expected = "(model, batch)" if takes_model else "(self, batch)"
        raise UsageError(f"`{name}` must take {expected}; it takes {signature}") from None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    asked = [each for each in signature.parameters.values() if each.name not in passed and each.kind in by_name]
    return StepCall(function, call, tuple([Read(each.name, each.default) for each in asked]), own_name)


def with_copies(resources: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
    """The resources, with copies of some. `sources`: name of a copy -> name of the resource that is copied.

    Raises:
        UsageError: one of them cannot be copied.
    """
    copies: dict[str, Any] = {}
    for name, source in sources.items():
        try:
            copies[name] = copied = copy.deepcopy(resources[source])
        except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
            kind = type(resources[source]).__name__
            raise UsageError(
                f"`{name}` is made as a copy of `{source}`, a {kind} that cannot be copied: {error}",
                f"let `setup` return a second `{source}` as `{name}`, with the same weights: "
                f"{name}.load_state_dict({source}.state_dict())",
            ) from None
        for parameter in copied.parameters() if isinstance(copied, torch.nn.Module) else ():
            parameter.requires_grad = False  # the attribute: the method refuses a parameter without a shape
            parameter.grad = None
    return {**resources, **copies}
