"""Promises 5, 6, 14, 18: bad input of every command: exit code 2, one message with a fix, and nothing is written.

Wording is asserted here, by fragments, and nowhere else.
"""

from __future__ import annotations

import re
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.looking.conftest import Command
from tests.looking.running import TINY, Result

FIT = (Path(__file__).parents[2] / "graphs" / "fit.toml").read_text(encoding="utf-8")


def files(folder: Path) -> dict[Path, bytes]:
    """Everything there is, folders too."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


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


def _extends(path: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "my.toml").write_text(f'format = 1\nextends = "{path}"\n')


FILES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "missing": (lambda folder: None, ("`my.toml`", "no graph")),
    "a folder": (lambda folder: (folder / "my.toml").mkdir(), ("`my.toml`", "no graph")),
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
    assert [*files(folder)] == [folder / "mine.py"]


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
    assert [*files(folder)] == [folder / "mine.py"]


@pytest.mark.parametrize(
    ("returned", "read", "hint"),
    [
        ("warm_data", "warm_dat", "did you mean `warm_data`?"),  # that of another graph would be left out
        ("trian_data", "train_data", "did you mean `trian_data`?"),
        ("train_data", "trian_data", "did you mean `train_data`?"),
        ("calibration", "warm_data", "supply it: Trainer(..., warm_data=...), or let `setup` return it"),
        (
            "calibration",
            "step",
            "supply it: Trainer(..., step=...), or let `setup` return it; "
            'or read a field of a node: reads = { step = "step.steps" }',
        ),
    ],
)
def test_a_misspelt_resource(returned: str, read: str, hint: str, tiny: Path, command: Command) -> None:
    (tiny / "tiny.py").write_text(TINY.replace('"train_data"', f'"{returned}"'))
    edit = f'set = "next_batch"\nreads = {{ train_data = "{read}" }}'
    (tiny / "my.toml").write_text(f'format = 1\nextends = "fit"\n[[edit]]\n{edit}\n')
    result = command("run", "tiny.py", "--graph", "my.toml", "--quiet")
    assert result.code == 2 and f"`{read}` is read by `next_batch`, and nothing supplies it\n    {hint}" in result.err


# ---- the command line


KEPT: list[Path] = []
TESTED = TINY.replace('"model": model,', '"model": model, "test_data": [torch.ones(2, 2)], "test_step": training_step,')
OTHER = TESTED.replace("Linear(2, 1)", "Linear(2, 3)")
SCRIPTS_THAT_ARE_NONE = ("notes.txt", "my-train.py", "wave.py", "random.py", "numpy.py")


@pytest.fixture
def kept(tiny: Path, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tiny.py`, its finished run `kept`, and files that are not what they could be taken for."""
    if not KEPT:
        assert command("run", "tiny.py", "finish.after=1 epochs", "--run-dir", "kept", "--quiet").code == 0
        (tiny / "folder.py").mkdir()
        (tiny / "empty" / "checkpoints").mkdir(parents=True)
        for name in SCRIPTS_THAT_ARE_NONE:
            (tiny / name).write_text(TINY)
        for name, value in (
            ("number", "graph = 3"),
            ("function", "def graph(): pass"),
            ("module", "import json as graph"),
        ):
            (tiny / f"{name}.py").write_text(TINY + value)
        (tiny / "wider.py").write_text(OTHER)
        (tiny / "tested.py").write_text(TESTED)
        (tiny / "plain.py").write_text(TINY.replace("Linear(2, 1)", "Linear(2, 3)"))
        (tiny / "mine.toml").write_text('format = 1\nextends = ["fit", "ema"]\n')
        (tiny / "status").mkdir()
        (tiny / "status" / "status.json").write_text("running")
        KEPT.append(tmp_path_factory.mktemp("kept"))
        shutil.copytree(tiny, KEPT[0], dirs_exist_ok=True)
    shutil.copytree(KEPT[0], tiny, dirs_exist_ok=True)
    return tiny


# What is typed after `graphtrain`, and what the message has in it.
REFUSED: list[tuple[str, tuple[str, ...]]] = [
    # ---- graphs
    ("run tiny.py --graph ift", ("no graph `ift`", "did you mean `fit`?")),
    ("show ift", ("no graph `ift`", "did you mean `fit`?")),
    ("check ift", ("no graph `ift`",)),
    ("render ift -o x.dot", ("no graph `ift`",)),
    ("run tiny.py --graph saved", ("saved",)),
    ("run tiny.py --graph saved --run-dir none", ("saved",)),
    ("run tiny.py --graph saved --run-dir none --resume never", ("saved",)),
    *(
        (f"run {name}.py", (f"{name}.py: `graph` is a ", "expected a Graph"))
        for name in ("number", "function", "module")
    ),
    ("check fit --overlay emma", ("there is no overlay `emma`", "did you mean `ema`?")),
    ("show fit --overlay ema --overlay ema", ("the graph already has the overlay `ema`",)),
    ("show mine.toml --overlay ema", ("the graph already has the overlay `ema`",)),
    ("show fit --overlay mine.toml", ("`mine.toml` is a graph, not an overlay: it has `extends`",)),
    *(
        (words, ("`ema` is an overlay: name it after a graph, as in graphtrain show fit --overlay ema",))
        for words in ("show ema", "check ema", "render ema -o x.dot", "diff fit ema", "run tiny.py --graph ema")
    ),
    ("show fit --overlay carry --overlay drop", ("overlay `drop`: it and `carry` do not compose",)),
    ("show evaluate --overlay ema", ("overlay `ema`: insert: after: there is no node `step`",)),
    ("copy ema x.toml --overlay carry", ("`ema` is an overlay: name it after a graph",)),
    ("copy fit tiny.toml/x.toml", ("`tiny.toml/x.toml`",)),
    ("copy fit my_fit", ("`my_fit`", ".toml")),
    ("copy ift x.toml", ("`ift`", "did you mean `fit`?")),
    ("copy fit mine.toml", ("`mine.toml` exists",)),
    ("render fit -o x.jpeg", ("x.jpeg", ".svg")),
    ("render fit -o nowhere/x.dot", ("nowhere/x.dot",)),
    ("diff nix fit", ("`nix`",)),
    ("diff fit nix.toml", ("`nix.toml`",)),
    ("diff fit empty", ("`empty`",)),
    ("diff fit fit -o x.bmp", ("x.bmp", ".svg")),
    ("diff fit fit --rename decid=what_now", ("did you mean `decide`",)),
    ("nodes clp", ("no kind `clp`", "did you mean `clip`?")),
    ("check fit --script nowhere.py", ("no script `nowhere.py`",)),
    # ---- scripts
    ("run tny.py", ("no script `tny.py`", "did you mean tiny.py?")),
    ("run elsewhere/tiny.py", ("no script `elsewhere/tiny.py`",)),
    ("run folder.py", ("no script `folder.py`",)),
    ("run notes.txt", ("`notes.txt`", "and .py")),
    ("run my-train.py", ("`my-train.py`", "rename")),
    ("run wave.py", ("`wave.py`", "another module, `wave`", "rename")),
    ("run random.py", ("`random.py`", "another module, `random`", "rename")),
    ("run numpy.py", ("`numpy.py`", "another module, `numpy`", "rename")),
    ("run tiny.py:stup", ("no function or class `stup`", "did you mean tiny.py:setup?")),
    ("run tiny.py:torch", ("no function or class `torch`",)),
    ("new tiny.py", ("`tiny.py` exists; a file is never overwritten",)),
    ("new notes.txt", ("`notes.txt` is not the name of a script",)),
    ("new 1st.py", ("`1st.py` is not the name of a script",)),
    ("new nowhere/a.py", ("cannot write `nowhere/a.py`: No such file or directory",)),
    # ---- arguments, parameters and options of a run
    ("run tiny.py batchs=3", ("`batchs`", "tiny.py:setup", "did you mean `batches`")),
    ("run tiny.py accumulate=4", ("`accumulate` is a node: NODE.PARAM=VALUE, as in accumulate.every=4",)),
    ("run tiny.py lr=fast", ("tiny.py:setup: lr: expected a number", '"fast"')),
    ("run tiny.py name=3", ("name: expected a string, got 3", "quote", "name='\"...\"'")),
    ("run tiny.py lr=1 lr=2", ("`lr` is set twice",)),
    ("run tiny.py acumulate.every=2", ("acumulate", "did you mean `accumulate`?")),
    ("run tiny.py accumulate.evry=2", ("`accumulate.evry`", "did you mean `every`?")),
    ("run tiny.py accumulate.every=fast", ("accumulate.every: expected an integer", '"fast"')),
    ("run tiny.py finish.after=3_stpes", ("`stpes`", "did you mean `steps`?")),
    ("run tiny.py .every=2", ("there is no node ``",)),
    ("run tiny.py lr", ("`lr`", "NAME=VALUE")),
    ("run tiny.py --device gpu", ('no device "gpu"',)),
    ("run tiny.py --until nonsense", ("until", "nonsense", "a number greater than 0 and a unit", "500 steps")),
    ("run tiny.py --until 5_stpes", ("until", "`stpes`", "did you mean `steps`?")),
    ("run tiny.py --resume nowhere", ("no checkpoint `nowhere`", "auto, never")),
    (f"run tiny.py --seed {2**64}", ("--seed", str(2**64))),
    ("run tiny.py --run-dir tiny.py/run", ("tiny.py/run", "Not a directory")),
    # ---- runs that there are
    ("run tiny.py --run-dir kept --resume never", ("`kept` holds a run already", "another run directory")),
    ("run tiny.py --run-dir kept --resume nowhere", ("no checkpoint `nowhere`", "there are: 00000")),
    (
        "run tiny.py --run-dir kept --resume 000002-step-40",
        ("no checkpoint `000002-step-40`", "there are: 00000"),
    ),
    (
        "run tiny.py --fork nowhere --run-dir new",
        ("there is no checkpoint `nowhere`\n", "--fork takes a run directory"),
    ),
    ("run tiny.py --fork kept --run-dir kept", ("the run directory is the one to fork from",)),
    ("run tiny.py --fork kept --run-dir new --resume never", ("are mutually exclusive",)),
    ("run tiny.py --init weights", ("expected --init NAME=FILE, got `weights`",)),
    ("run tiny.py --init model=nowhere.safetensors", ("nowhere.safetensors` cannot be read: No such", "RUN/best")),
    ("run tiny.py --init model=model.pt", ("--init: `model.pt`", "No such file")),
    ("run tiny.py --init modle=kept/newest", ("there is no module `modle`",)),
    ("run tiny.py --init model=tiny.py", ("cannot be read as safetensors",)),
    (
        "run plain.py --init model=kept/newest",
        ("weight: float32 (1, 2) in the file, float32 (3, 2)", "--init 'NAME.P"),
    ),
    ("run tiny.py --init model.bod=kept/newest", ("no weight has a name like `bod`",)),
    ("status nowhere", ("no run in `nowhere`",)),
    ("status tiny.py", ("there is no run in `tiny.py`", "a run directory holds")),
    ("status status", ("the status of `status` cannot be read", "status.json")),
    ("status status --json", ("the status of `status` cannot be read",)),
    ("ls nowhere", ("there is no folder `nowhere`",)),
    ("export kept weights.pt", ("must end in .safetensors",)),
    ("export nowhere w.safetensors", ("there is no checkpoint `nowhere`",)),
    ("export kept w.safetensors --model modl", ("has no model `modl`",)),
    ("export kept none/w.safetensors", ("cannot write",)),
    ("test tiny.py --run-dir none", ("there is no checkpoint",)),
    ("test tested.py --run-dir kept --weights bst", ("there is no checkpoint `bst`",)),
    ("test tested.py --run-dir kept --model modl", ("did you mean `model`",)),
    ("test wider.py --run-dir kept", ("weight: float32 (1, 2) in the file, float32 (3, 2)",)),
    ("test tested.py --run-dir kept next_batch.limt=4", ("limit",)),
    ("test tested.py --run-dir kept --graph fit", ("graph `fit` trains; use one that only evaluates",)),
    ("test tiny.py --run-dir kept", ("test_data",)),
    ("predict tiny.py --run-dir kept --graph fit", ("graph `fit` trains; use one",)),
    ("verify tiny.py --run-dir nowhere", ("there is no run in `nowhere`", "status.json")),
    ("verify gone.py --run-dir kept", ("there is no script `gone.py`",)),
    ("verify tiny.py --run-dir kept --last 0", ("--last",)),
    ("verify tiny.py --run-dir kept accumulate.every=2", ("`accumulate.every=`: the graph is that of the run",)),
    ("verify tiny.py --run-dir kept rate=2", ("`rate` is not an argument of tiny.py:setup",)),
    ("verify tiny.py --run-dir empty", ("there is no run in `empty`",)),
    ("verify tiny.py --run-dir kept --overlay ema", ("--overlay: only without --run-dir",)),
    ("verify tiny.py --cuts 2 --run-dir kept", ("--cuts: only without --run-dir",)),
    ("verify tiny.py --cuts 2 --last 1", ("--last: only with --run-dir",)),
    ("verify tiny.py --run-dir kept --until 3_steps", ("--until: only without --run-dir",)),
    ("verify tiny.py --cuts 0", ("--cuts",)),
    ("replay gone.py --run-dir kept --to 1_steps", ("there is no script `gone.py`",)),
    ("replay tiny.py --run-dir gone --to 1_steps", ("there is no run in `gone`",)),
    ("replay tiny.py --run-dir kept --to 10_steps", ("the run does not reach 10 steps: it ends at step 4",)),
    ("replay tiny.py --run-dir kept --to 5_stops", ("--to: unknown unit `stops`", "did you mean `steps`?")),
    ("replay tiny.py --run-dir kept --to 3_minutes", ("`minutes` is wall-clock time",)),
    ("replay tiny.py --run-dir kept --to best", ("was ranked by a metric",)),
    ("replay tiny.py --run-dir kept --to 2_steps --node stop", ("there is no node `stop`", "did you mean `step`?")),
    ("replay tiny.py --run-dir kept --to 4_steps --node step", ("the node `step` does not run again after 4 steps",)),
    (
        "replay tiny.py --run-dir kept --to 2_steps clip.max_norm=2.0",
        ("`clip.max_norm=`: the graph is that of the run",),
    ),
    ("report -o run.html", ("Missing argument",)),
    ("report empty -o run.html", ("there is no run in",)),
    ("report . -o none/run.html", ("the report cannot be written: No such file or directory",)),
    ("report kept -o none/run.html", ("the report cannot be written: No such file or directory",)),
    ("watch", ("Missing argument",)),
    ("watch nowhere", ("there is no run in",)),
    ("watch empty", ("there is no run in",)),
    ("watch kept --port 99999999", ("port 99999999 cannot be used",)),
    # ---- what the parser of options says itself
    ("run tiny.py --run-dri r", ("No such option '--run-dri'", "'--run-dir'")),
    ("run tiny.py --sede 1", ("--sede",)),
    ("run tiny.py --seed x", ("--seed",)),
    ("run tiny.py --until", ("--until",)),
    ("qqq", ("No such command 'qqq'",)),
]


@pytest.mark.first(49)
@pytest.mark.parametrize(("line", "expected"), REFUSED, ids=[line for line, _ in REFUSED])
def test_what_is_typed_is_refused(line: str, expected: tuple[str, ...], kept: Path, command: Command) -> None:
    before = {path: text for path, text in files(kept).items() if path.name != ".lock"}
    result = command(*(re.sub(r"(?<=\d)_", " ", word) for word in line.split()))
    if result.err.startswith("error: ") and not result.out:  # nothing was said before
        assert_refused(result, *expected)
    else:
        assert (result.code, "Traceback" in result.err) == (2, False), result
        assert all(text in result.err for text in expected), result.err
    assert {path: text for path, text in files(kept).items() if path.name != ".lock"} == before


def test_runs_cannot_be_made(tiny: Path, command: Command) -> None:
    (tiny / "runs").touch()
    assert_refused(command("run", "tiny.py"), "runs/tiny-001: Not a directory")


def test_a_renaming_or_an_overlay_that_check_reports(folder: Path, command: Command) -> None:
    result = command("check", "fit", "--overlay", "drop", "--overlay", "carry")
    assert result.code == 2 and "error G005: overlay `carry`: it and `drop` do not compose" in result.out
    assert command("check", "fit", "--overlay", "ema").out == "fit: no problems (16 nodes)\n"


@pytest.mark.parametrize(
    "words",
    [["copy", "fit", "x.toml"], ["new", "x.py"], ["render", "fit", "-o", "x.dot"], ["report", "kept", "-o", "x.html"],
     ["export", "kept", "x.safetensors"]],
    ids=" ".join,
)  # fmt: skip
def test_a_full_disk_leaves_what_was_there(words: list[str], kept: Path, command: Command) -> None:
    """A disk that takes 100 bytes of a file: what is new is not left there, what is replaced is not lost."""
    output = kept / words[-1]
    is_replaced = words[0] in ("render", "report")
    if is_replaced:
        output.write_text("good")
    before, limits = files(kept), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        result = command(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_refused(result, f"{output.name}", "File too large")
    assert files(kept) == before
    assert command(*words).code == 0, "as soon as there is room"
    linked = kept / f"linked{output.suffix}"
    if is_replaced:
        linked.symlink_to(output.name)
        assert command(*words[:-1], linked.name).code == 0 and linked.is_symlink(), "the file is replaced, not the link"


@pytest.mark.full
def test_what_is_gone_when_a_run_is_resumed(tiny: Path, command: Command) -> None:
    (tiny / "mine.toml").write_text('format = 1\nextends = "fit"\n')
    words = ["tiny.py", "--graph", "mine.toml", "--run-dir", "r", "--quiet"]
    assert command("run", *words, "--until", "4 steps").code == 0
    (tiny / "mine.toml").rename(tiny / "moved.toml")
    before = files(tiny)
    assert_refused(command("run", *words), "there is no graph `mine.toml`")
    assert files(tiny) == before
    assert command("run", *[word.replace("mine.toml", "saved") for word in words]).code == 0
