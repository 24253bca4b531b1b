"""Whose parameters an optimizer has: those of a module that was supplied, or can be reached from what was."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# Attributes of attributes: an object that holds the model, and a step function that is a method of such an object.
_DEPTH = 2
_MOST_ITEMS = 1000  # of a container: more than there are modules in one, and fewer than there are batches in another


def is_foreign(optimizer: torch.optim.Optimizer, resources: Mapping[str, Any]) -> bool:
    """True if the parameters of an optimizer are like those of a supplied module, and are parameters of none.

    Then it was made of another copy of that module. Other parameters, however they are reached, may be meant.

    >>> model, former = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    >>> [is_foreign(torch.optim.SGD(one.parameters()), {"model": model}) for one in (model, former)]
    [False, True]
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not all(isinstance(parameter, torch.nn.Parameter) for parameter in parameters):
        return False
    if any(torch.nn.parameter.is_lazy(parameter) for parameter in parameters):  # without a form so far
        return False
    modules = [value for value in resources.values() if isinstance(value, torch.nn.Module)]
    own = {id(parameter) for parameter in parameters}
    if any(id(tensor) in own for module in modules for tensor in module.parameters()):
        return False
    modules = [module for module in modules if not any(map(torch.nn.parameter.is_lazy, module.parameters()))]
    trained = [[tensor for tensor in module.parameters() if tensor.requires_grad] for module in modules]
    alike = [*(list(module.parameters()) for module in modules), *trained]
    if not any(_forms(parameters) == _forms(others) for others in alike):
        return False
    seen: dict[int, tuple[Any, int]] = {}
    return not any(id(tensor) in own for value in resources.values() for tensor in _tensors(value, _DEPTH, seen))


def _forms(tensors: Sequence[torch.Tensor]) -> Counter[Any]:
    return Counter((tensor.shape, tensor.dtype) for tensor in tensors if not torch.nn.parameter.is_lazy(tensor))


def _tensors(value: Any, depth: int, seen: dict[int, tuple[Any, int]]) -> Iterator[torch.Tensor]:
    """The tensors that a value holds, and those of the modules that it holds or captures.

    Arguments:
        seen: what was met, and how deep was looked from there; it is kept, so that no other object gets its identity.
    """
    if isinstance(value, torch.Tensor):
        yield value
        return
    if value is None or isinstance(value, torch.optim.Optimizer | str | bytes | int | float):
        return
    if seen.get(id(value), (None, -1))[1] >= depth:
        return
    seen[id(value)] = value, depth
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
    if isinstance(value, dict):  # another mapping may read a file for each value
        value = list(itertools.islice(value.values(), _MOST_ITEMS))
    elif isinstance(value, functools.partial):
        value = (value.func, value.args, value.keywords)
    elif inspect.ismethod(value):
        value = (value.__self__, value.__func__)
    if isinstance(value, list | tuple | set | frozenset):
        for item in itertools.islice(value, _MOST_ITEMS):
            yield from _tensors(item, depth, seen)
    elif depth:
        for part in _parts(value):
            yield from _tensors(part, depth - 1, seen)


def _parts(value: Any) -> Iterator[Any]:
    """What an object has as attributes, and a function as what it captures."""
    if inspect.isfunction(value):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # a variable that is not assigned yet
                yield cell.cell_contents
        yield [value.__globals__.get(name) for name in value.__code__.co_names]
        yield (value.__defaults__, value.__kwdefaults__)
    elif not inspect.isclass(value) and not inspect.ismodule(value):
        yield getattr(value, "__dict__", None)
        yield getattr(type(value), "__call__", None)  # noqa: B004 - what it captures is wanted
