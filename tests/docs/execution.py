"""Execution of a page as a reader would do it: files are written, code and commands run, and outputs compared.

    ```python              run, in one namespace for the whole page
    ```python train.py     written to that file
    ```toml                a graph: loaded, and free of problems
    ```toml my.toml        the same, written to that file first; without problems unless a `text` block follows
    ```text                what the block before it printed (standard output), or the error it raised, or why its graph
                           is refused
    ```console             its `graphtrain` commands are parsed
    ```console run         its commands are run, in order, and the text below each is compared with its output
    ```console run with=optuna the same, where that package is installed; elsewhere the commands are parsed
    ```console run roughly the same, but a number may be another number, and a bar longer or shorter
    ```bash                its `graphtrain` commands are parsed
    ```                    to be read only

Everything runs in one folder, and in this process where possible.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from graphtrain import Graph
from graphtrain.command.cli import app, main
from graphtrain.kind import DECLARED
from tools.site.links import with_generated

_FENCE = re.compile(r"^```(?P<words>[^\n`]*)\n(?P<text>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"[|&;<>$*(){}]")
_TIMEOUT_SECONDS = 300
_NEEDS = "with="
_EXAMPLES = Path(__file__).parents[2] / "examples"  # what pages have in common is imported from there


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Attributes:
        language: the first word after the fence: ``"python"``, ``"toml"``, ``"console"``, ``"text"``; empty for none.
        words: the words after it, such as the name of a file.
        text: the text between the fences.
        line: the line of the page on which the text begins.
    """

    language: str
    words: tuple[str, ...]
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """One command of a console block, and its output in the block; None if the block shows none."""

    words: str
    shown: str | None
    line: int


def blocks_of(page: str) -> list[Block]:
    """Every fenced block of a page, in order.

    >>> blocks_of("See:\\n\\n```python train.py\\nx = 1\\n```\\n")
    [Block(language='python', words=('train.py',), text='x = 1\\n', line=4)]
    """
    blocks = []
    for match in _FENCE.finditer(page):
        language, *words = match["words"].split() or [""]
        blocks.append(Block(language, tuple(words), match["text"], page.count("\n", 0, match.start("text")) + 1))
    return blocks


def read_page(path: Path) -> str:
    """The text of the page at `path`, with what `make docs` generates in it."""
    return with_generated(path.read_text(encoding="utf-8"))


def read_blocks(path: Path) -> list[Block]:
    """Every fenced block of the page at `path`."""
    return blocks_of(read_page(path))


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block: the lines that begin with ``$``, each with the lines below it.

    >>> [(command.words, command.shown) for command in commands_of(Block("console", (), "$ ls\\n$ pwd\\n/tmp\\n", 1))]
    [('ls', None), ('pwd', '/tmp\\n')]
    """
    commands: list[Command] = []
    for number, row in enumerate(block.text.splitlines(keepends=True), start=block.line):
        if row.startswith("$ "):
            commands.append(Command(row[2:].rstrip("\n"), None, number))
        elif not commands:
            raise ValueError(f"line {number}: a console block begins with a command, `$ ...`; got {row!r}")
        else:
            last = commands.pop()
            commands.append(Command(last.words, (last.shown or "") + row, last.line))
    return commands


def without_fences(page: str) -> str:
    """The page without its fenced blocks; its lines keep their numbers."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page)


def without_code(page: str) -> str:
    """The page without fenced blocks and code spans, in which nothing is a link; its lines keep their numbers."""
    return re.sub(r"`[^`\n]*`", "", without_fences(page))


def texts_of(svg: Path) -> list[str]:
    """The texts of a picture, in order: its layout may differ between versions of graphviz."""
    return sorted(re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text(encoding="utf-8")))


class PageError(AssertionError):
    """A page is wrong."""


class Page:
    """A page, and the folder in which it is executed.

    Arguments:
        path: of the page.
        folder: an empty folder, the current one.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._namespace: dict[str, Any] = {"__name__": "page", "__builtins__": __builtins__}
        self._code = 0
        self._bin = folder / ".bin"

    def execute(self) -> int:
        """Execute every block; returns the number of blocks.

        Raises:
            PageError: an output differs from the page.
        """
        blocks = read_blocks(self._path)
        following: list[Block | None] = [*blocks[1:], None]
        with _as_found(self._folder):
            sys.path[:0] = [str(self._folder), str(_EXAMPLES)]
            for block, after in zip(blocks, following, strict=True):
                shown = after.text if after is not None and after.language == "text" else None
                self._execute(block, shown)
        return len(blocks)

    def _execute(self, block: Block, shown: str | None) -> None:
        needed = [word for word in block.words if word.startswith(_NEEDS)]
        is_there = all(importlib.util.find_spec(word.removeprefix(_NEEDS)) for word in needed)
        block = replace(block, words=tuple(word for word in block.words if word not in needed) if is_there else ())
        match block.language, block.words:
            case "python", []:
                self._python(block, shown)
            case (("python" | "toml"), [name]) if not name.endswith(".toml") or name == "pyproject.toml":
                self._write(name, block.text)
                if block.language == "python":
                    compile(block.text, self._at(block.line), "exec", dont_inherit=True)
                else:
                    tomllib.loads(block.text)
            case "toml", ([] | [_]) as words:
                self._graph(block, words, shown)
            case "console", (() | ("run",) | ("run", "roughly")):
                self._console(block)
            case "bash", ():
                for number, line in enumerate(block.text.splitlines(), start=block.line):
                    self._parse(line, number)
            case (("text" | ""), ()):
                pass  # the output of the block before it, or not executed
            case _:
                raise PageError(f"{self._at(block.line)}: no such block: {block.language} {' '.join(block.words)}")

    # ---- blocks

    def _python(self, block: Block, shown: str | None) -> None:
        code = compile("\n" * (block.line - 1) + block.text, str(self._path), "exec", dont_inherit=True)
        printed, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            try:
                exec(code, self._namespace)  # noqa: S102 - our own text
            except Exception as error:
                if shown is None:
                    raise PageError(f"{self._at(block.line)}:\n{traceback.format_exc()}") from None
                print(f"{type(error).__name__}: {error}")
        if shown is not None:
            self._compare(shown, printed.getvalue(), block.line)

    def _graph(self, block: Block, words: Sequence[str], shown: str | None) -> None:
        if shown is not None:
            if not words:
                raise PageError(f"{self._at(block.line)}: a graph that is refused needs the name of a file")
            self._write(words[0], block.text)
            with _printed() as printed:
                code = _command_here(["graphtrain", "check", words[0]], keep_kinds=True)
            if code != 2:
                raise PageError(
                    f"{self._at(block.line)}: the graph should be refused, and is not:\n{printed.getvalue()}"
                )
            self._compare(shown, printed.getvalue(), block.line)
            return
        if words:
            self._write(words[0], block.text)
        graph = Graph.load(words[0]) if words else Graph.loads(block.text)
        if problems := graph.check():
            raise PageError(f"{self._at(block.line)}: " + "\n".join(map(str, problems)))

    def _console(self, block: Block) -> None:
        commands = commands_of(block)
        asked = [command.words == "echo $?" for command in commands[1:]] + [False]
        for command, is_asked in zip(commands, asked, strict=True):
            self._parse(command.words, command.line)
            if "run" not in block.words:
                continue
            printed = self._type(command.words)
            if command.shown is not None:
                read = roughly if "roughly" in block.words else str
                self._compare(read(command.shown), read(printed), command.line)
            elif self._code and not is_asked:
                raise PageError(f"{self._at(command.line)}: {command.words}: exit code {self._code}\n{printed}")

    def _parse(self, words: str, line: int) -> None:
        try:
            parse_command(words)
        except Exception as error:
            raise PageError(f"{self._at(line)}: {words}: {error}") from None

    def _type(self, words: str) -> str:
        """The output of a command, both streams together as on a terminal."""
        if words == "echo $?":
            code, self._code = self._code, 0
            return f"{code}\n"
        if not _SHELL.search(words) and (arguments := shlex.split(words, comments=True))[0] in ("graphtrain", "python"):
            with _printed() as printed, _as_found(self._folder):
                self._code = _command_here(arguments, keep_kinds=False)
            return printed.getvalue()
        done = subprocess.run(
            ["bash", "-c", words],
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        self._code = done.returncode
        return done.stdout

    def _environment(self) -> dict[str, str]:
        """An environment in which `graphtrain` and `python` are those of this process."""
        if not self._bin.exists():
            self._bin.mkdir()
            for name, rest in (("python", ""), ("graphtrain", " -m graphtrain")):
                shim = self._bin / name
                shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{rest} "$@"\n')
                shim.chmod(0o755)
        return {**os.environ, "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    # ---- small things

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _compare(self, shown: str, printed: str, line: int) -> None:
        if not matches(shown, printed):
            raise PageError(f"{self._at(line)}: the page shows\n{shown}\nbut the output is\n{printed}")

    def _at(self, line: int) -> str:
        return f"{self._path.name}:{line}"


def matches(shown: str, printed: str) -> bool:
    """True if the output matches the page.

    ``...`` stands for anything within a line, a line of nothing else for any number of lines.

    >>> matches("loss ...\\n", "loss 0.25\\n"), matches("...\\ndone\\n", "done\\n"), matches("done\\n", "not done\\n")
    (True, True, False)
    """
    pattern = ""
    for row in shown.strip().splitlines():
        pattern += (
            r"(?:.*\n)*?" if row.strip() == "..." else ".*".join(map(re.escape, row.rstrip().split("..."))) + r"\n"
        )
    rows = [row.rstrip() + "\n" for row in printed.strip().splitlines()]
    return re.fullmatch(pattern, "".join(rows)) is not None


def roughly(text: str) -> str:
    """The text with all numbers replaced by `#`, and all bars by `|`.

    >>> roughly("epoch 4/9 ━━━━━╸   41 %  812 batches/s")
    'epoch #/# | # %  # batches/s'
    """
    text = re.sub(r"<?\b\d[\d.]*(?:e-?\d+)?(?: [kMG]\b)?", "#", text)
    return re.sub(r" *[━╸╺]+ *", " | ", text)


def parse_command(line: str) -> None:
    """Parse the `graphtrain` commands of a line of shell against the options there are.

    Raises:
        Exception: click's own, if there is no such command or option.
    """
    for part in re.split(r"\|\||&&|[|;&]", line):
        words = shlex.split(re.sub(r"\d?>>?\s*\S+", "", part), comments=True)
        while words and "=" in words[0] and words[0].partition("=")[0].isidentifier():
            words = words[1:]  # an assignment before the command
        words = words[1:] if words[:1] == ["srun"] else words
        if not words or words[0] != "graphtrain" or {"--help", "-h", "--version"} & set(words):
            continue
        context = click.Context(app, info_name="graphtrain")
        _, command, rest = app.resolve_command(context, words[1:])
        command.make_context(command.name, list(rest), parent=context).close()


@contextlib.contextmanager
def _printed() -> Iterator[io.StringIO]:
    """Capture both streams of the block."""
    both = io.StringIO()
    with contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
        yield both


@contextlib.contextmanager
def _as_found(folder: Path) -> Iterator[None]:
    """Hide the modules of the page and restore them and the path afterwards, as if every command were a new process."""
    before, path = _modules_in(folder), list(sys.path)
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.path[:] = path
        for name in _modules_in(folder):
            del sys.modules[name]
        sys.modules.update(before)


def _modules_in(folder: Path) -> dict[str, ModuleType]:
    """The imported modules of a folder, by name."""
    files = {name: str(getattr(module, "__file__", None) or "") for name, module in sys.modules.items()}
    return {name: sys.modules[name] for name, file in files.items() if file.startswith(str(folder))}


def _command_here(words: list[str], *, keep_kinds: bool) -> int:
    """Run the command as its entry point does, or a script as Python does, in this process; returns the exit code.

    Arguments:
        keep_kinds: False hides the kinds that the page has declared, as in a new process.
    """
    before, kinds = sys.argv, dict(DECLARED)
    sys.argv = words if words[0] == "graphtrain" else words[1:]
    if not keep_kinds:
        DECLARED.clear()
    try:
        if words[0] == "graphtrain":
            main()
        else:
            runpy.run_path(words[1], run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code
        return code if isinstance(code, int) else int(code is not None)
    finally:
        sys.argv = before
        DECLARED.clear()
        DECLARED.update(kinds)
    return 0
