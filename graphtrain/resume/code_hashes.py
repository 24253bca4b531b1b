"""Hashes of code that is in none of the files that are hashed: of a notebook, of a session, made by `exec`."""

from __future__ import annotations

import hashlib
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

from graphtrain.state.category import is_users, is_value
from graphtrain.state.reachable import Reachable


def code_hashes(reachable: Reachable, is_hashed: Callable[[str], bool]) -> dict[str, str]:
    """Path -> a short hash of the code of each reachable function of the user's own that is in no file that is hashed.

    Arguments:
        is_hashed: tells whether the content of a file is compared anyway.

    >>> step = eval("lambda model, batch: model(batch)", {})
    >>> list(code_hashes(Reachable({"training_step": step}), os.path.isfile))
    ['training_step']
    """
    files: dict[str, bool] = {}
    hashes = {}
    for reached in reachable.by_path.values():
        function = reached.value
        if reached.category != "function" or not (is_users(function.__module__) or is_of_no_module(function)):
            continue
        file = function.__code__.co_filename
        if file not in files:
            files[file] = os.path.isfile(file) and is_hashed(file)
        if not files[file]:
            hashes[reached.path] = code_hash(function)
    return hashes


def is_of_no_module(function: Any) -> bool:
    """True for a function that `exec` or `eval` has made outside of any module."""
    return isinstance(function, types.FunctionType) and function.__module__ in (None, "builtins")


def code_hash(function: types.FunctionType) -> str:
    """The same for functions that compute the same from the same source: instructions, constants, names and defaults.

    >>> functions = (lambda x: x + 1), (lambda x: x + 1), (lambda x: x + 2)
    >>> [code_hash(function) == code_hash(functions[0]) for function in functions]
    [True, True, False]
    """
    keywords = sorted((function.__kwdefaults__ or {}).items())
    defaults = (
        [_text(value) for value in function.__defaults__ or ()],
        [(name, _text(value)) for name, value in keywords],
    )
    text = repr((list(_parts(function.__code__)), defaults))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _parts(code: types.CodeType) -> Iterator[Any]:
    """What is in code, without the names of files and the numbers of lines."""
    yield code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags
    yield code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_exceptiontable
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant.co_name, list(_parts(constant))
        else:
            yield _text(constant)


def _text(value: Any) -> str:
    if isinstance(value, frozenset):  # whose order depends on the hashes of text
        return f"frozenset {sorted(map(_text, value))}"
    if isinstance(value, tuple):
        return f"tuple {list(map(_text, value))}"
    text = f"{type(value).__name__} {value!r}" if is_value(value) else type(value).__name__
    return text if " at 0x" not in text else type(value).__name__
