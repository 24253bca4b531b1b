"""The tests of pages can fail: a wrong page is detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.execution import Page, PageError, blocks_of, commands_of, matches, parse_command

TRUE = """
```python
x = 2
print(x)
```
```text
2
```

```toml tiny.toml
format  = 1
extends = "evaluate"
```

```toml odd.toml
format  = 1
extends = "evalute"
```
```text
odd.toml:2: error G004: extends: there is no graph `evalute`
    did you mean `evaluate`?
odd.toml: 1 error, 0 warnings (0 nodes)
```

```python
raise ValueError("no")
```
```text
ValueError: no
```

```console run
$ graphtrain check tiny.toml
tiny.toml: no problems (4 nodes)
$ graphtrain check odd.toml
...
$ echo $?
2
$ graphtrain graphs
$ echo one | tr o O
One
```
"""


def executed(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(folder)
    (folder / "page.md").write_text(text)
    return Page(folder / "page.md", folder).execute()


def test_a_page_that_is_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert executed(TRUE, tmp_path, monkeypatch) == 8


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ("print(x)", "print(x + 1)"),
        ("print(x)", "print(y)"),
        ('extends = "evaluate"', 'extends = "evaluate"\nlimit = 1'),
        ('extends = "evalute"', 'extends = "fit"'),
        ("    did you mean `evaluate`?\n", ""),
        ('ValueError("no")', 'ValueError("yes")'),
        ('raise ValueError("no")', ""),
        ("tiny.toml: no problems (4 nodes)", "tiny.toml: no problems (5 nodes)"),
        ("$ graphtrain check tiny.toml", "$ graphtrain check tiny.toml --graph fit"),
        ("$ echo $?\n2\n", "$ echo $?\n0\n"),
        ("$ graphtrain graphs", "$ graphtrain check missing.toml"),
        ("\nOne\n", "\none\n"),
        ("```console run\n", "```konsole\n"),
        ("```console run\n", "```console run\nno command\n"),
    ],
)
def test_a_page_that_is_not_so(true: str, false: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TRUE.count(true) >= 1
    with pytest.raises((PageError, ValueError)):
        executed(TRUE.replace(true, false, 1), tmp_path, monkeypatch)


def test_a_command_sees_no_kind_that_only_the_page_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = """
```python
from graphtrain import node
@node
def mine(batch): ...
```

```toml mine.toml
format  = 1
extends = "fit"
[[edit]]
insert = "mine"
after  = "step"
```

```console run
$ graphtrain check mine.toml
mine.toml:3 nodes.mine: error G102: unknown kind `mine`
...
```
"""
    assert executed(page, tmp_path, monkeypatch) == 3


def test_words_and_lines_of_blocks() -> None:
    blocks = blocks_of("a\n```toml my.toml\nx = 1\n```\n`b`\n```\nplain\n```\n")
    assert [(block.language, block.words, block.text, block.line) for block in blocks] == [
        ("toml", ("my.toml",), "x = 1\n", 3),
        ("", (), "plain\n", 7),
    ]
    (block,) = blocks_of("```console\n$ one\n$ two # said\nsays\nmore\n```\n")
    assert [(command.words, command.shown, command.line) for command in commands_of(block)] == [
        ("one", None, 2),
        ("two # said", "says\nmore\n", 3),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\n", "a\n", True),
        ("a  \n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("...\nc\n", "a\nb\nd\n", False),
        ("a ... c\n", "a b c\n", True),
        ("a ... c\n", "a b\nc\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_what_is_shown_matches_what_is_printed(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same


@pytest.mark.parametrize(
    "line",
    [
        "graphtrain run train.py lr=1 --run-dir r > log.txt 2>&1 &",
        "CUDA_VISIBLE_DEVICES= graphtrain check fit && graphtrain show fit",
        "srun graphtrain run train.py | tee log",
        "echo --anything",
    ],
)
def test_commands_that_can_be_typed(line: str) -> None:
    parse_command(line)


@pytest.mark.parametrize(
    "line",
    ["graphtrain rum train.py", "graphtrain run train.py --run_dir r", "true && graphtrain check", "graphtrain render"],
)
def test_commands_that_cannot_be_typed(line: str) -> None:
    with pytest.raises(Exception):  # noqa: B017 - click's own, of a version's making
        parse_command(line)
