"""What a docstring says of each argument."""

from __future__ import annotations

import inspect
import re
from typing import Any

_SECTION = re.compile(r"^(?:Arguments|Args|Parameters):\s*$")


def descriptions_of(documented: Any) -> dict[str, str]:
    """The first sentence of the description of each argument in the docstring of a function or a class.

    >>> def setup(lr, b):
    ...     '''Make things.
    ...
    ...     Arguments:
    ...         lr: learning rate
    ...             of AdamW. Default: 1.
    ...         b: other.
    ...
    ...     More.
    ...     '''
    >>> descriptions_of(setup)
    {'lr': 'learning rate of AdamW.', 'b': 'other.'}
    """
    descriptions: dict[str, list[str]] = {}
    indent, current, inside = 0, "", False
    for line in (inspect.getdoc(documented) or "").splitlines():
        text = line.strip()
        if _SECTION.match(text):
            inside, indent = True, -1
            continue
        if not inside or not text:
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0 and indent > 0:
            break
        indent = depth if indent < 0 else indent
        head, colon, rest = text.partition(":")
        if depth == indent and colon:
            for current in head.split(","):
                descriptions[current.partition("(")[0].strip()] = [rest.strip()]
            current = head.split(",")[-1].partition("(")[0].strip()
        elif current:
            descriptions[current].append(text)
    return {name: re.split(r"(?<=\.)\s", " ".join(lines))[0] for name, lines in descriptions.items()}
