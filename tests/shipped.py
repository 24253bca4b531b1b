"""The files of the shipped kinds, graphs and overlays, by name."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "graphs" / "gallery"
PROCEDURES = sorted(path.parent.name for path in GALLERY.glob("*/__init__.py"))

KINDS = {
    path.stem: path
    for path in sorted([*(ROOT / "nodes").glob("[!_]*.py"), *GALLERY.glob("*/[!_]*.py")])
    if not path.stem.endswith("_example")
}


def _is_overlay(path: Path) -> bool:
    return not {"extends", "nodes"} & tomllib.loads(path.read_text(encoding="utf-8")).keys()


_TEXTS = {path.stem: path for path in sorted((ROOT / "graphs").rglob("*.toml"), key=lambda path: path.stem)}
GRAPHS = {name: path for name, path in _TEXTS.items() if not _is_overlay(path)}
OVERLAYS = {name: path for name, path in _TEXTS.items() if _is_overlay(path)}


def module_of(path: Path) -> str:
    """The module of a file, as it is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("graphtrain", *parts[parts[0] == "graphtrain" :])).removesuffix(".__init__")
