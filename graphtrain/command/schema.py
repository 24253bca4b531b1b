"""`graphtrain schema`."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from graphtrain.command.script import import_script
from graphtrain.errors import UsageError
from graphtrain.graph.json_schema import TITLE, json_schema


def schema_command(output: Path | None, script: str | None) -> None:
    """Print the schema of graph files, or write it to a file; only a schema that was written before is replaced."""
    if script is not None:
        import_script(Path(script.partition(":")[0]))
    text = json.dumps(json_schema(), indent=2, allow_nan=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        if output.exists() and f'"title": "{TITLE}"' not in output.read_text("utf-8", "replace")[:1000]:
            raise UsageError(f"`{output}` exists and is not such a schema", "choose another name")
        output.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write `{output}`: {error.strerror}") from None
    typer.echo(f"wrote {output}; a graph file beside it names it in its first line: #:schema ./{output.name}")
