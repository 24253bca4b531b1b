"""The weights of modules by name: reading, comparing and loading them.

Names are those without `torch.compile`, also of a compiled module and of one that contains compiled modules.
"""

from __future__ import annotations

import fnmatch
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.names import plain_name, quoted

_MOST_PROBLEMS = 10


def uncompiled(value: Any) -> Any:
    """The original module of one that `torch.compile` has returned; anything else as it is."""
    return value._orig_mod if type(value).__name__ == "OptimizedModule" else value


def weights_of(module: torch.nn.Module, *, keep_vars: bool = False) -> Mapping[str, Any]:
    """The `state_dict` of a module, with plain names."""
    state = module.state_dict(keep_vars=keep_vars)
    return _renamed(state, plain_name) if "_orig_mod." in "".join(map(str, state)) else state


def load_weights(module: torch.nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Load a `state_dict` with plain names into a module that is not itself compiled.

    Raises:
        one of `MISFITS`: it does not fit.
    """
    if any(uncompiled(inner) is not inner for inner in module.modules()):
        names = {plain_name(name): name for name in (*module.state_dict(), *dict(module.named_modules()))}
        state = _renamed(state, lambda name: names.get(name, name))
    module.load_state_dict(state) if strict else module.load_state_dict(state, strict=False)


def _renamed(state: Any, rename: Callable[[str], str]) -> Mapping[str, Any]:
    """A `state_dict` with other names, also in its `_metadata`, the versions of modules."""
    renamed: Any = OrderedDict((rename(key), value) for key, value in state.items())
    if hasattr(state, "_metadata"):
        renamed._metadata = OrderedDict((rename(name), version) for name, version in state._metadata.items())
    return renamed  # type: ignore[no-any-return]


def fitting(module: torch.nn.Module, saved: Mapping[str, Any], only: Sequence[str], heading: str) -> list[str]:
    """The names of the saved weights that are loaded into a module.

    Arguments:
        saved: tensors by plain names; of tied parameters one is enough.
        only: patterns of names, as of `fnmatch`; those that match are loaded. Empty: all are.
        heading: the first line of the message.

    Raises:
        UsageError: a pattern matches none, or they do not fit: the message names the tensors.
    """
    for pattern in only:
        if not fnmatch.filter(saved, pattern):
            raise UsageError(f"no weight has a name like `{pattern}`", f"there are {quoted(saved)}")
    state_dict, is_lazy = weights_of(module), torch.nn.parameter.is_lazy
    # An extra state is not a weight, and is in no such file.
    tensors = {key: value for key, value in state_dict.items() if isinstance(value, torch.Tensor)}
    names = [key for key in {**tensors, **saved} if not only or any(fnmatch.fnmatchcase(key, each) for each in only)]
    saved = {key: saved[key] for key in saved if key in names}
    addresses = {key: local_part(each).data_ptr() for key, each in tensors.items() if not is_lazy(each)}
    last = {addresses[key]: key for key in saved if addresses.get(key)}  # of tied ones, the one that stays
    problems = [f"missing in the file: {key}" for key in names if key not in saved and addresses.get(key) not in last]
    for key, tensor in saved.items():
        present, other = tensors.get(key), saved[last.get(addresses.get(key, 0), key)]
        if key not in state_dict:
            problems.append(f"unknown to the module: {key}")
        elif present is None or is_lazy(present):
            continue
        # Never integers, such as quantised weights, in place of floats.
        elif (tensor.shape, tensor.is_floating_point()) != (present.shape, present.is_floating_point()):
            problems.append(f"{key}: {dtype_and_shape(tensor)} in the file, {dtype_and_shape(present)} in the module")
        elif not (other is tensor or tensor.is_meta or torch.equal(local_part(tensor), local_part(other))):
            tied = f"in the memory of {last[addresses[key]]} in the module"
            problems.append(f"{key}: {tied}, and has other values in the file")
    if problems:
        more = [f"... and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
        text = "\n    ".join([heading, *problems[:_MOST_PROBLEMS], *more])
        part = "load only what fits: --init 'NAME.PATTERN=FILE', in Python load(..., only=['PATTERN'])"
        raise UsageError(text, f"build the model as in the saved run; or {part}")
    return [*saved]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that this rank has; any other as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def dtype_and_shape(tensor: torch.Tensor) -> str:
    """The dtype and shape of a tensor as text: ``"float32 (2, 3)"``."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
