"""The document of the page: self-contained for a file, or with links to the files of a server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.printable import printable
from graphtrain.report.page.content import NextSteps, content_of_runs
from graphtrain.storage.files import write_output
from graphtrain.viz.theme import style

STYLES = ("uPlot.css", "page.css", "pictures.css")
SCRIPTS = {"uPlot.js": "", "page.js": 'type="module"'}  # the first is a plain script, and defines a name for the other


def write_report(paths: list[Path], output: Path, next_steps: NextSteps) -> Path:
    """Write a page about runs into one file, which makes no request; an existing file is overwritten.

    Arguments:
        paths: the run directories; several are shown beside each other.
        next_steps: returns the commands to continue a run with, and what each does.

    Raises:
        UsageError: there is no run, or the file cannot be written.
    """
    text = self_contained({"kind": "runs", **content_of_runs(paths, next_steps)})
    try:
        write_output(output, text.encode())
    except OSError as error:
        raise UsageError(f"{output}: the report cannot be written: {error.strerror or error}") from error
    return output


def asset(name: str) -> str:
    """The text of a file of the page: a script or a style."""
    return style() if name == "pictures.css" else (files(__package__) / "static" / name).read_text(encoding="utf-8")


def self_contained(content: dict[str, Any]) -> str:
    """The page with its scripts, styles and content inside; its policy allows no others, and no request.

    >>> page = self_contained({"kind": "runs", "runs": [{"name": "</script><b>"}], "differences": []})
    >>> "<b>" in page, "default-src &#x27;none&#x27;" in page
    (False, True)
    """
    styles, scripts = [asset(name) for name in STYLES], [asset(name) for name in SCRIPTS]
    allowed = {
        "style-src": " ".join(_hash(text) for text in styles),
        "script-src": " ".join(_hash(text) for text in scripts),
        "img-src": "data:",
    }
    names = ", ".join(str(run["name"]) for run in content.get("runs", ()))
    parts = [
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_policy(allowed))}">',
        *(f"<style>{text}</style>" for text in styles),
        f'<script type="application/json" id="content">{_json(content)}</script>',
        *(f"<script {how}>{text}</script>" for text, how in zip(scripts, SCRIPTS.values(), strict=True)),
    ]
    return _document(names or "graphtrain", parts)


def served() -> tuple[str, str]:
    """The page that requests everything from its server, and its policy."""
    links = [f'<link rel="stylesheet" href="{name}">' for name in STYLES]
    scripts = [f'<script {how} src="{name}"></script>' for name, how in SCRIPTS.items()]
    allowed = {"style-src": "'self'", "script-src": "'self'", "connect-src": "'self'", "img-src": "data:"}
    return _document("graphtrain", [*links, *scripts]), _policy({**allowed, "frame-ancestors": "'none'"})


def _document(title: str, parts: list[str]) -> str:
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    body = '<main id="page" tabindex="-1"></main><noscript>This page needs JavaScript.</noscript>'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<title>{html.escape(printable(title))}</title>\n'
        + "\n".join(part for part in parts if not part.startswith("<script"))
        + f"\n</head>\n<body>{body}\n"
        + "\n".join(part for part in parts if part.startswith("<script"))
        + "\n</body>\n</html>\n"
    )


def _policy(allowed: dict[str, str]) -> str:
    always = {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}
    return "; ".join(f"{name} {sources}" for name, sources in {**always, **allowed}.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(content: dict[str, Any]) -> str:
    """JSON that cannot close the element around it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
