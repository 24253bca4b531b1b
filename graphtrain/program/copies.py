"""Copies of resources that kinds ask for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from graphtrain.errors import UsageError


def with_copies(resources: Mapping[str, Any], made: Mapping[str, str]) -> dict[str, Any]:
    """The resources and their copies.

    Arguments:
        made: the copies to make: name -> the name of the source.

    Raises:
        UsageError: one of them cannot be copied.
    """
    return {**resources, **{name: _copy(name, source, resources[source]) for name, source in made.items()}}


def _copy(name: str, source: str, value: Any) -> Any:
    try:
        copied = copy.deepcopy(value)
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
        raise UsageError(
            f"`{name}` is made as a copy of `{source}`, a {type(value).__name__} that cannot be copied: {error}",
            f"let `setup` return a `{name}`, made as `{source}` is, and with its weights: "
            f"{name}.load_state_dict({source}.state_dict())",
        ) from None
    for parameter in copied.parameters() if isinstance(copied, torch.nn.Module) else ():
        parameter.requires_grad = False  # the attribute: the method refuses a parameter without a shape
        parameter.grad = None
    return copied
