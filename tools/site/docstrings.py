"""Docstrings as the site reads them: a bare example becomes a block of code, a kind's own section becomes a list."""

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


def with_lists(text: str) -> str:
    """The docstring with a list for each section that only kinds have: one item per slot or field.

    >>> print(with_lists("Writes:\\n    loss: the loss,\\n        detached.\\n    samples: how many.\\n\\nThe end."))
    **Writes:**
    <BLANKLINE>
    - **`loss`**: the loss, detached.
    - **`samples`**: how many.
    <BLANKLINE>
    The end.
    """
    sections = re.compile(r"^(Reads|Writes|Guard fields|Options):\n((?: {4}.*(?:\n|\Z))+)", re.MULTILINE)
    return sections.sub(lambda match: f"**{match[1]}:**\n\n{_items(match[2])}\n", text)


def _items(section: str) -> str:
    lines = re.sub(r"\n {5,}", " ", section).splitlines()  # an indented line continues the one above it
    entries = [entry for line in lines for entry in re.split(r" {4,}(?=\w)", line.strip())]  # or two in one line
    named = (entry.partition(": ") for entry in entries)
    return "\n".join("- " + re.sub(r"(\w+)", r"**`\1`**", names) + colon + rest for names, colon, rest in named)


class Doctests(Extension):  # type: ignore[misc, valid-type]
    """Applies `with_blocks` and `with_lists` to every docstring."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_lists(with_blocks(obj.docstring.value))
