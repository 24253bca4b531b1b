"""Promises 6 and 15: the notebooks, executed as they are, show what is stored with them.

They are stored with their outputs, for readers who do not run them. `python -m tests.company.test_notebooks` executes
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


def outputs(cell: Any, kind: str) -> list[Output]:
    return [output for output in cell.outputs if output.output_type == kind]


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
    assert words(read(path)) == words(fresh), "run `python -m tests.company.test_notebooks`"
    for cell in cells_of_code(fresh):
        assert bool(outputs(cell, "error")) == ("raises-exception" in cell.metadata.get("tags", [])), cell.source
        if "until=" in cell.source:
            assert "batches/s" in outputs(cell, "display_data")[0]["data"]["text/html"], cell.source


def test_what_is_stored_names_no_place_and_no_speed(path: Path) -> None:
    stored = read(path)
    assert stored == storable(stored)
    text = nbformat.writes(stored)
    assert not re.search(r"/home|/root|/tmp|/usr|site-packages|0x[0-9a-f]{6}|batches/s|elapsed", text)
    assert len(text) < 250_000


def store() -> None:
    """Execute every notebook and store it with its outputs."""
    import tempfile

    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(storable(executed(read(path), Path(folder))), path)


if __name__ == "__main__":
    store()
