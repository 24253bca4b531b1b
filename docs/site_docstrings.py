"""Docstrings as the site reads them: an example that stands by itself becomes a block of code."""

from __future__ import annotations

import re
from typing import Any

try:
    from griffe import Extension
except ImportError:  # where only the tests are installed
    Extension = object


def with_blocks(text: str) -> str:
    """The docstring with a fence around each doctest.

    >>> with_blocks("One line.\\n\\n>>> 1 + 1\\n2")
    'One line.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    examples = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +.*|\n\n(?=\1>>> ))*", re.MULTILINE)
    return examples.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)


class Doctests(Extension):  # type: ignore[misc, valid-type]
    """Applies `with_blocks` to every docstring."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_blocks(obj.docstring.value)
