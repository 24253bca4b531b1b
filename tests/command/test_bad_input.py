"""Bad input of every sort: exit code 2, one message with the place and a fix, and nothing written."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from graphtrain.graph.registry import find_graph
from tests.command.conftest import Command
from tests.command.running import TINY, Result

_shipped = find_graph("fit")
assert _shipped is not None
FIT = _shipped.read_text(encoding="utf-8")


def files(folder: Path) -> set[Path]:
    """Everything there is, folders too."""
    return set(folder.rglob("*"))


def assert_refused(result: Result, *expected: str) -> None:
    """One message on standard error, with every expected text, and no traceback."""
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("error: "), result.err
    assert sum(line.startswith("error: ") for line in result.err.splitlines()) == 1, result.err
    assert "Traceback" not in result.err
    assert len(result.err) < 1200, "nobody reads that much"
    for text in expected:
        assert text in result.err, result.err


# --- Graphs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slip:
    """A slip in the text of `fit`: `old` became `new`; the line of `new` and every text of `expected` must be named."""

    old: str
    new: str
    expected: tuple[str, ...]
    line_of: str = ""


SLIPS = {
    "unknown node": Slip('["accumulate"]', '["acumulate"]', ("unknown node `acumulate`", "did you mean `accumulate`?")),
    "a command to the terminal": Slip('"decide"', r'"\u001b[31mdecide"', (r"`\x1b[31mdecide`",)),
    "wrong type": Slip("max_norm = inf", 'max_norm = "fast"', ('clip.max_norm: expected a number, got "fast"',)),
    "guard with a call": Slip(
        '"next_batch.last or ending" ', '"print(1)" ', ("window_cut", "print(1)"), "window_cut   "
    ),
    "edges that are missing": Slip(
        'step        = ["zero_grad"]', "", ("`step` has no edge", 'add step = ["..."] to [edges]'), "step        = {}"
    ),
    "TOML syntax": Slip("clip        = {", "clip        = [", ("TOML",), "clip "),
}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
@pytest.mark.parametrize("verb", ["run", "check"])
def test_a_slip_in_a_graph(verb: str, slip: Slip, tiny: Path, command: Command) -> None:
    assert slip.old in FIT
    text = FIT.replace(slip.old, slip.new, 1)
    (tiny / "my.toml").write_text(text)
    before = files(tiny)
    wanted = slip.line_of or slip.new.split("\n")[-1]
    lines = [number for number, line in enumerate(text.splitlines(), start=1) if wanted in line]
    if verb == "run":
        result = command("run", "tiny.py", "--graph", "my.toml")
        assert_refused(result, *slip.expected)
        output = result.err
    else:
        result = command("check", "my.toml")
        assert (result.code, result.err) == (2, "")
        output = result.out
        assert all(text in output for text in slip.expected), output
    assert any(re.search(rf"^my\.toml:{line}( \S+)?: error G\d\d\d: ", output, re.M) for line in lines), (lines, output)
    assert files(tiny) == before


def test_every_problem_is_reported_at_once(tiny: Path, command: Command) -> None:
    text = FIT.replace('use = "choice"', 'use = "chioce"').replace("{ max_norm", "{ maxnorm").replace("50 st", "50 sx")
    (tiny / "my.toml").write_text(text)
    assert_refused(command("run", "tiny.py", "--graph", "my.toml"), "has 3 problems", "chioce", "maxnorm", "sxeps")


def _loop(folder: Path) -> None:
    (folder / "my.toml").write_text('format = 1\nextends = "other.toml"\n')
    (folder / "other.toml").write_text('format = 1\nextends = "my.toml"\n')


def _extends(path: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "my.toml").write_text(f'format = 1\nextends = "{path}"\n') and None


FILES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "missing": (lambda folder: None, ("`my.toml`", "missing")),
    "a folder": (lambda folder: (folder / "my.toml").mkdir(), ("`my.toml`", "a folder")),
    "empty": (lambda folder: (folder / "my.toml").touch(), ("my.toml", "`nodes` is missing")),
    "not text": (lambda folder: (folder / "my.toml").write_bytes(b"\x89PNG\r\n\x1a\n\xff"), ("not UTF-8", "byte 0")),
    "extends in a loop": (_loop, ("other.toml:2", "in a cycle", "my.toml -> ")),
    "extends an absolute path": (_extends("/etc/passwd"), ("my.toml:2", "/etc/passwd", "relative path")),
}


@pytest.mark.parametrize(("make", "expected"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_graph(
    make: Callable[[Path], object], expected: tuple[str, ...], tiny: Path, command: Command
) -> None:
    make(tiny)
    before = files(tiny)
    assert_refused(command("run", "tiny.py", "--graph", "my.toml"), *expected)
    assert_refused(command("show", "my.toml"), *expected)
    assert files(tiny) == before


@pytest.mark.parametrize("verb", [["run", "tiny.py", "--graph"], ["show"], ["check"], ["render", "-o", "x.dot"]])
def test_an_unknown_graph(verb: list[str], tiny: Path, command: Command) -> None:
    before = files(tiny)
    assert_refused(command(*verb, "ift"), "no graph `ift`", "did you mean `fit`?")
    assert files(tiny) == before


# --- Scripts ---------------------------------------------------------------------------------------------------------

SCRIPTS = {
    "a resource is missing": (
        TINY.replace('        "optimizer"', '        "optimiser"'),
        ("`optimizer`", "`step`", "did you mean `optimiser`?"),
    ),
    "nothing is returned": (TINY.replace("return {", "_ = {"), ("mine.py:setup", "returned nothing")),
    "setup is missing": (TINY.replace("def setup", "def set_up"), ("`mine.py`", "`setup`", "mine.py:set_up?")),
    "training_step takes too little": (
        TINY.replace("(model, batch):", "(model):"),
        ("training_step", "(model, batch)"),
    ),
    "a name of the engine's": (TINY.replace('"model":', '"seed": 1, "model":'), ("mine.py:setup", "`seed`", "--seed")),
    "a required argument is missing": (TINY.replace("lr: float = 0.1", "lr: float"), ("`lr`", "lr=VALUE")),
}


@pytest.mark.first(10)
@pytest.mark.parametrize(("text", "expected"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_that_does_not_fit(text: str, expected: tuple[str, ...], folder: Path, command: Command) -> None:
    (folder / "mine.py").write_text(text)
    assert_refused(command("run", "mine.py"), *expected)
    assert files(folder) == {folder / "mine.py"}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("tny.py", ("no script `tny.py`", "did you mean tiny.py?")),
        ("elsewhere/tiny.py", ("no script `elsewhere/tiny.py`",)),
        ("folder.py", ("`folder.py` is a folder",)),
        ("notes.txt", ("`notes.txt`", "end in .py")),
        ("my-train.py", ("`my-train.py`", "rename")),
        ("wave.py", ("`wave.py`", "a standard library module", "rename")),
        ("random.py", ("`random.py`", "a standard library module", "rename")),
        ("numpy.py", ("`numpy.py`", "another module, `numpy`", "rename")),
        ("tiny.py:stup", ("no function `stup`", "did you mean tiny.py:setup?")),
        ("tiny.py:torch", ("no function `torch`",)),
    ],
)
def test_a_script_that_cannot_be_imported(script: str, expected: tuple[str, ...], tiny: Path, command: Command) -> None:
    (tiny / "folder.py").mkdir()
    for name in ("notes.txt", "my-train.py", "wave.py", "random.py", "numpy.py"):
        (tiny / name).write_text(TINY)
    before = files(tiny)
    assert_refused(command("run", script), *expected)
    assert files(tiny) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def setup(:\n", 'mine.py", line 1'),
        ("x = 1\nimport no_such_module\n", 'mine.py", line 2'),
        ("def setup():\n    return undefined\n", 'mine.py", line 2'),
    ],
    ids=["syntax", "import", "setup"],
)
def test_a_mistake_in_the_users_code_is_the_users_traceback(
    text: str, expected: str, folder: Path, command: Command
) -> None:
    (folder / "mine.py").write_text(text)
    result = command("run", "mine.py")
    assert (result.code, result.out) == (1, "")
    assert expected in result.err
    assert "/graphtrain/" not in result.err and "importlib" not in result.err, "only the user's frames"
    assert files(folder) == {folder / "mine.py"}


@pytest.mark.parametrize(
    ("returned", "read", "hint"),
    [
        ("warm_data", "warm_dat", "did you mean `warm_data`?"),  # that of another graph would be left out
        ("trian_data", "train_data", "did you mean `trian_data`?"),
        ("train_data", "trian_data", "did you mean `train_data`?"),
        ("calibration", "warm_data", "supply it: Trainer(..., warm_data=...), or let `setup` return it"),
    ],
)
def test_a_misspelt_resource(returned: str, read: str, hint: str, tiny: Path, command: Command) -> None:
    (tiny / "tiny.py").write_text(TINY.replace('"train_data"', f'"{returned}"'))
    edit = f'set = "next_batch"\nreads = {{ train_data = "{read}" }}'
    (tiny / "my.toml").write_text(f'format = 1\nextends = "fit"\n[[edit]]\n{edit}\n')
    result = command("run", "tiny.py", "--graph", "my.toml", "--quiet")
    assert result.code == 2 and f"`{read}` is read by `next_batch`, and nothing supplies it\n    {hint}\n" in result.err


# --- The command line ------------------------------------------------------------------------------------------------

WORDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "unknown argument": (["batchs=3"], ("`batchs`", "tiny.py:setup", "did you mean `batches`")),
    "wrong type of an argument": (["lr=fast"], ("tiny.py:setup: lr: expected a number", '"fast"')),
    "number for a text": (["name=3"], ("name: expected a string, got 3", "quote", "name='\"...\"'")),
    "argument set twice": (["lr=1", "lr=2"], ("`lr` is set twice",)),
    "unknown node": (["acumulate.every=2"], ("acumulate", "did you mean `accumulate`?")),
    "unknown parameter": (["accumulate.evry=2"], ("`accumulate.evry`", "did you mean `every`?")),
    "wrong type of a parameter": (["accumulate.every=fast"], ("accumulate.every: expected an integer", '"fast"')),
    "unknown unit of a parameter": (["finish.after=3 stpes"], ("`stpes`", "did you mean `steps`?")),
    "parameter without a node": ([".every=2"], ("`.every=`", "NODE.PARAM=VALUE")),
    "setting without =": (["lr"], ("`lr`", "NAME=VALUE")),
    "unknown device": (["--device", "gpu"], ('no device "gpu"',)),
    "until nonsense": (["--until", "nonsense"], ("until", "nonsense", "500 steps")),
    "until an unknown unit": (["--until", "5 stpes"], ("until", "`stpes`", "did you mean `steps`?")),
    "resume what is not there": (["--resume", "nowhere"], ("--resume", "`nowhere`")),
    "seed too large": (["--seed", str(2**64)], ("--seed", str(2**64))),
    "a run directory below a file": (["--run-dir", "tiny.py/run"], ("`tiny.py/run`", "Not a directory")),
}


@pytest.mark.first(17)
@pytest.mark.parametrize(("words", "expected"), WORDS.values(), ids=WORDS)
def test_a_slip_on_the_command_line(words: list[str], expected: tuple[str, ...], tiny: Path, command: Command) -> None:
    before = files(tiny)
    assert_refused(command("run", "tiny.py", *words), *expected)
    assert files(tiny) == before


def test_runs_cannot_be_made(tiny: Path, command: Command) -> None:
    (tiny / "runs").touch()
    assert_refused(command("run", "tiny.py"), "`runs/tiny-001`", "--run-dir")


@pytest.mark.parametrize("words", [["--sede", "1"], ["--seed", "x"], ["--until"]])
def test_options_are_checked(words: list[str], tiny: Path, command: Command) -> None:
    before = files(tiny)
    result = command("run", "tiny.py", *words)
    assert (result.code, result.out) == (2, "")
    assert words[0] in result.err and "Traceback" not in result.err
    assert files(tiny) == before


@pytest.fixture
def kept(tiny: Path, command: Command) -> Path:
    """A finished run in the folder `kept`."""
    assert command("run", "tiny.py", "finish.after=1 epochs", "--run-dir", "kept").code == 0
    return tiny / "kept"


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("resume", "expected"),
    [
        ("never", ("`kept` holds a run already", "another run directory")),
        ("nowhere", ("no checkpoint `nowhere`", "there are: 00000")),
        ("000002-step-40", ("no checkpoint `000002-step-40`", "there are: 000002-step-4")),
    ],
)
def test_a_run_that_is_not_to_be_touched(resume: str, expected: tuple[str, ...], kept: Path, command: Command) -> None:
    before = _contents(kept)
    assert_refused(command("run", "tiny.py", "--run-dir", "kept", "--resume", resume), *expected)
    assert _contents(kept) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["status", "nowhere"], ("no run in `nowhere`",)),
        (["status", "tiny.py"], ("there is no run in `tiny.py`\n  hint: a run directory holds",)),
        (["nodes", "clp"], ("no kind `clp`", "did you mean `clip`?")),
        (["copy", "fit", "tiny.toml/x.toml"], ("`tiny.toml/x.toml`",)),
        (["copy", "fit", "my_fit"], ("`my_fit`", ".toml")),
        (["copy", "ift", "x.toml"], ("`ift`", "did you mean `fit`?")),
        (["render", "fit", "-o", "x.jpeg"], ("x.jpeg", ".svg")),
        (["render", "fit", "-o", "nowhere/x.dot"], ("nowhere/x.dot",)),
        (["render", "fit", "-o", "x.dot", "--run-dir", "nowhere"], ("no checkpoint in `nowhere`",)),
        (["check", "fit", "--script", "nowhere.py"], ("no script `nowhere.py`",)),
    ],
    ids=" ".join,
)
def test_the_other_commands(words: list[str], expected: tuple[str, ...], tiny: Path, command: Command) -> None:
    before = files(tiny)
    assert_refused(command(*words), *expected)
    assert files(tiny) == before


@pytest.mark.parametrize(
    "words",
    [["copy", "fit", "x.toml"], ["new", "x.py"], ["render", "fit", "-o", "x.dot"], ["report", "kept", "-o", "x.html"]],
    ids=" ".join,
)
def test_a_full_disk_leaves_what_was_there(words: list[str], kept: Path, command: Command) -> None:
    """A disk that takes 500 bytes of a file: what is new is not left there, what is replaced is not lost."""
    output = kept.parent / words[-1]
    is_replaced = words[0] in ("render", "report")
    if is_replaced:
        output.write_text("good")
    before, limits = files(kept.parent), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        result = command(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_refused(result, f"{output.name}", "File too large")
    assert files(kept.parent) == before and (not is_replaced or output.read_text() == "good")
    assert command(*words).code == 0, "as soon as there is room"
    linked = kept.parent / f"linked{output.suffix}"
    if is_replaced:
        linked.symlink_to(output.name)
        assert command(*words[:-1], linked.name).code == 0 and linked.is_symlink(), "the file is replaced, not the link"


# --- A status that others wrote --------------------------------------------------------------------------------------

UNREADABLE: dict[str, bytes] = {
    "no JSON": b"running",
}

ODD: dict[str, str] = {
    "nothing in it": "{}",
    "other types": '{"state": 1, "graph": [], "position": {}, "snapshot": {"step": "x", "metrics": 3, "window": [1]}}',
    "commands to the terminal": r'{"state": "\u001b[2J", "checkpoint": "\n", "host": "\u001b[2J", "digest": "\r"}',
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_a_status_that_cannot_be_read(content: bytes, folder: Path, command: Command) -> None:
    (folder / "status.json").write_bytes(content)
    for words in (["status", "."], ["status", ".", "--json"]):
        assert_refused(command(*words), "the status of `.` cannot be read", "status.json" if content != b"[]" else "")


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_an_odd_status_is_shown_as_far_as_it_goes(content: str, folder: Path, command: Command) -> None:
    (folder / "status.json").write_text(content)
    result = command("status", ".")
    assert (result.code, result.err) == (0, "")
    assert all(line.isprintable() for line in result.out.splitlines()) and len(result.out) < 2000
    assert command("status", ".", "--json").code == 0
