"""On which line things stand."""

from __future__ import annotations

import pytest

from graphtrain.graph.read_toml import Lines

TEXT = '''\
format = 1
# [nodes]
note = """
[edges]
decide = "not here"
"""
sizes = [
  [1, 2],
  ["a"]
]
last = 3
[nodes]                       # a comment
clip = { max_norm = 1 }       # clip = "x"
"odd name" = {}
'other' = { use = "a # b", graph = "c" }

[ nodes.step ]
every = "é\\u2028\x0b"

[edges]
clip = ["step if a", "step  if   b", "step"]
decide = [
  # "log if due",
  "log if due",  # first
  "step",
]
step = ["log"]

[[edit]]
insert = "x"
[[edit]]
set = "clip"
[edit.graph.nodes]
deep = {}
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("format",), 1),
        (("note",), 3),
        (("sizes",), 7),
        (("last",), 11),
        (("nodes",), 12),
        (("nodes", "clip"), 13),
        (("nodes", "clip", "max_norm"), 13),
        (("nodes", "odd name"), 14),
        (("nodes", "other"), 15),
        (("nodes", "other", "a # b"), 15),
        (("nodes", "step"), 17),
        (("nodes", "step", "every"), 18),
        (("nodes", "step", "absent"), 17),
        (("nodes", "absent"), 12),
        (("edges",), 20),
        (("edges", "clip", "step if b"), 21),
        (("edges", "decide"), 22),
        (("edges", "decide", "log if due"), 24),
        (("edges", "decide", "step"), 25),
        (("edges", "step", "log"), 27),
        (("edit", "0"), 29),
        (("edit", "0", "insert"), 30),
        (("edit", "1"), 31),
        (("edit", "1", "set"), 32),
        (("edit", "1", "graph", "nodes", "deep"), 31),
        (("absent",), None),
        ((), None),
    ],
)
def test_the_line_of_a_key_or_of_what_is_around_it(key: tuple[str, ...], line: int | None) -> None:
    assert Lines(TEXT).of(*key) == line


def test_lines_end_as_in_any_editor() -> None:
    assert Lines("a = 1\r\nb = 2\r\n[c]\r\nd = 3").of("c", "d") == 4


DOTTED = """format = 1
nodes.clip = { max_norm = 1 }
nodes.fit.graph = "fit"
guards . "of steps" = "step.steps > 3"
edges.clip = [
  "step if due",
  "log",
]
[nodes.query]
graph.nodes.score = {}
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("nodes",), 2),
        (("nodes", "clip"), 2),
        (("nodes", "clip", "max_norm"), 2),
        (("nodes", "fit"), 3),
        (("nodes", "fit", "graph"), 3),
        (("guards", "of steps"), 4),
        (("edges", "clip", "step if due"), 6),
        (("edges", "clip", "log"), 7),
        (("nodes", "query"), 9),
        (("nodes", "query", "graph", "nodes", "score"), 10),
    ],
)
def test_the_line_of_a_dotted_key(key: tuple[str, ...], line: int) -> None:
    assert Lines(DOTTED).of(*key) == line
