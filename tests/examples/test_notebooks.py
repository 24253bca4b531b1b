"""The notebooks, executed as they are; and other things that users do in a notebook.

They are stored with their outputs, for readers who do not run them. `python -m tests.examples.test_notebooks` executes
them and stores them again, without anything that differs between runs: speeds, addresses, paths.
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
pytest.importorskip("nbclient")
pytest.importorskip("pandas")
pytest.importorskip("sklearn")

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

pytestmark = pytest.mark.full  # a kernel each

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))

Output = dict[str, Any]


class KernelOfThisEnvironment(AsyncKernelManager):
    """This interpreter, whatever kernels the person or the machine has installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="Python 3",
            language="python",
        )


def executed(notebook: Any, folder: Path) -> Any:
    """A copy with fresh outputs; cells may raise only where they are tagged so."""
    notebook = copy.deepcopy(notebook)
    settings = folder / "settings"  # or a person's own start-up files would run
    settings.mkdir(exist_ok=True)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_manager_class=KernelOfThisEnvironment,
        extra_arguments=[f"--ipython-dir={settings}"],
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    return notebook


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def cells_of_code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def cell_with(notebook: Any, text: str) -> Any:
    """The first cell of code in which a text stands."""
    return next(cell for cell in cells_of_code(notebook) if text in cell.source)


def outputs(cell: Any, kind: str) -> list[Output]:
    return [output for output in cell.outputs if output.output_type == kind]


def shown(cell: Any) -> Output:
    """What the last expression of a cell is shown as: MIME type -> content."""
    (result,) = outputs(cell, "execute_result")
    return dict(result["data"])


# ---- what is stored


def storable(notebook: Any) -> Any:
    """A copy without what differs at every run or names a place on a machine."""
    notebook = copy.deepcopy(notebook)
    for cell in cells_of_code(notebook):
        cell.metadata.pop("execution", None)  # times
        # The display of a run says how fast it was: it is for those who run it.
        kept = [_storable(output) for output in cell.outputs if output.output_type != "display_data"]
        cell.outputs = _joined(kept)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _storable(output: Output) -> Output:
    if output["output_type"] == "error":
        output["traceback"] = [part for part in output["traceback"] if not _plain(part).startswith("File ")]
    if output["output_type"] == "execute_result" and len(output["data"]) > 1:
        del output["data"]["text/plain"]  # an address in memory, or the same without its form
    return output


def _joined(outputs: list[Output]) -> list[Output]:
    """Consecutive lines joined into one output; how many arrive together is random."""
    joined: list[Output] = []
    for output in outputs:
        if joined and output["output_type"] == "stream" and joined[-1].get("name") == output["name"]:
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def _plain(text: str) -> str:
    """Without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def words(notebook: Any) -> list[list[str]]:
    """The words of the outputs of every cell, without coordinates and digits, which other machines may round."""
    words = []
    for cell in cells_of_code(storable(notebook)):
        texts = []
        for output in cell.outputs:
            texts += [output["output_type"], *(output.get(key, "") for key in ("text", "ename", "evalue"))]
            texts += [text for mime in sorted(output.get("data", {})) for text in (mime, output["data"][mime])]
        plain = re.sub(r"<style.*?</style>|<[^>]*>", " ", _plain(" ".join(texts)), flags=re.DOTALL)
        words.append(re.sub(r"[-+]?\b\d[\d.,]*(e[-+]?\d+)?", "#", plain).split())
    return words


# ---- the notebooks


@pytest.fixture(params=NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_there_are_notebooks() -> None:
    assert "rewire" in [path.stem for path in NOTEBOOKS]


def test_what_is_stored_is_what_the_cells_show(path: Path, tmp_path: Path) -> None:
    fresh = executed(read(path), tmp_path)
    assert words(read(path)) == words(fresh), "run `python -m tests.examples.test_notebooks`"
    for cell in cells_of_code(fresh):
        assert bool(outputs(cell, "error")) == ("raises-exception" in cell.metadata.get("tags", [])), cell.source
    if path.stem == "rewire":
        for look in (drawn, drawn_with_counts, displayed, table, end, refusal, failure):
            look(fresh)


def test_what_is_stored_names_no_place_and_no_speed(path: Path) -> None:
    stored = read(path)
    assert stored == storable(stored)
    text = nbformat.writes(stored)
    assert not re.search(r"/home|/root|/tmp|/usr|site-packages|0x[0-9a-f]{6}|batches/s|elapsed", text)
    assert len(text) < 250_000


def drawn(rewire: Any) -> None:
    picture = shown(cell_with(rewire, 'Graph.load("fit")'))["image/svg+xml"]
    assert picture.startswith("<svg ") and "train_batch" in picture


def drawn_with_counts(rewire: Any) -> None:
    drawn = [shown(cell)["text/html"] for cell in cells_of_code(rewire) if cell.source.startswith("trainer  #")]
    first, second = (re.sub("&#160;", " ", text) for text in drawn)
    assert "90 runs" in first and "ema" not in first and "step 90, epoch 2" in first
    assert "135 runs" in second and "45 runs" in second and ">ema<" in second and "step 135, epoch 3" in second
    assert " current" in first and " current" in second


def displayed(rewire: Any) -> None:
    for until in ("1 epochs", "2 epochs", "3 epochs"):
        (display,) = outputs(cell_with(rewire, f'until="{until}"'), "display_data")
        assert "batches/s" in display["data"]["text/html"]


def table(rewire: Any) -> None:
    data = shown(cell_with(rewire, "trainer.frame()"))
    assert "<table" in data["text/html"]
    for name in ("loss", "accuracy", "epoch/loss", "val/accuracy"):
        assert f"<th>{name}</th>" in data["text/html"]


def end(rewire: Any) -> None:
    assert "Outcome.FINISHED" in shown(cell_with(rewire, 'after="6 epochs"'))["text/plain"]


def refusal(rewire: Any) -> None:
    (error,) = outputs(cell_with(rewire, "evry"), "error")
    assert error["ename"] == "GraphError"
    assert "2 problems" in error["evalue"]
    assert "did you mean `every`?" in error["evalue"] and "did you mean `epochs`?" in error["evalue"]


def failure(rewire: Any) -> None:
    (error,) = outputs(cell_with(rewire, "spoiled["), "error")
    assert (error["ename"], error["evalue"]) == ("IndexError", "Target 10 is out of bounds.")
    assert "raised in node `train_batch`" in _plain(error["traceback"][-1])
    assert re.fullmatch(
        r"\('failed', 'train_batch', \d+, 10\)", shown(cell_with(rewire, "trainer.state"))["text/plain"]
    )


def store() -> None:
    """Execute every notebook and store it with its outputs."""
    import tempfile

    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(storable(executed(read(path), Path(folder))), path)


if __name__ == "__main__":
    store()
