"""A run of three weights and four batches by the command, profiled; run as a script, in an empty folder.

Prints how many functions, lambdas and generator expressions of graphtrain it enters (a comprehension is part of the
function around it, as newer Pythons compile it), of how many classes it calls a method, and how many modules it runs.
"""

from __future__ import annotations

import json
import sys
import threading
from importlib.util import find_spec
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_SCRIPT = """
import torch

def setup():
    model = torch.nn.Linear(2, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.ones(4, 2)] * 4,
        "training_step": lambda model, batch: model(batch).square().mean(),
    }
"""
_OF_THE_FUNCTION_AROUND = ("<listcomp>", "<dictcomp>", "<setcomp>")


def main() -> None:
    """Run it, and print the counts as JSON."""
    Path("smallest.py").write_text(_SCRIPT, encoding="utf-8")
    spec = find_spec("graphtrain")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    folders = tuple(
        f"{folder.resolve()}/" for folder in (package, *(package / name for name in ("nodes", "graphs", "viz")))
    )
    entered: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            entered.add(frame.f_code)

    sys.argv = ["graphtrain", "run", "smallest.py", "--run-dir", "run"]
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        from graphtrain.command.cli import main as command

        command()
    except SystemExit as ending:
        assert not ending.code, ending.code
    finally:
        sys.setprofile(None)
    ours = [code for code in entered if code.co_filename.startswith(folders)]
    modules = {code.co_filename for code in ours if code.co_name == "<module>"}
    # The body of a module or a class is no function: it has no fast local variables.
    functions = [code for code in ours if code.co_flags & CO_OPTIMIZED and code.co_name not in _OF_THE_FUNCTION_AROUND]
    classes = {
        (code.co_filename, code.co_qualname.rpartition(".")[0])
        for code in functions
        if "." in code.co_qualname and "<" not in code.co_qualname
    }
    counts = {"functions": len(functions), "classes": len(classes), "modules": len(modules)}
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
