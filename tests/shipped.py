"""The files of the shipped kinds, graphs and overlays, by name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "graphs" / "gallery"
PROCEDURES = sorted(path.parent.name for path in GALLERY.glob("*/__init__.py"))


def _kinds_of(path: Path) -> list[str]:
    """The kinds that a procedure declares, by the text of its module."""
    declared = re.findall(r"(?ms)^@node\b.*?^(?:class|def) (\w+)", path.read_text(encoding="utf-8"))
    return [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in declared]


KINDS = {path.stem: path for path in sorted((ROOT / "nodes").glob("[!_]*.py"))}
KINDS |= {kind: path for path in sorted(GALLERY.glob("*/[!_]*.py")) for kind in _kinds_of(path)}


def _is_overlay(path: Path) -> bool:
    return not {"extends", "nodes"} & tomllib.loads(path.read_text(encoding="utf-8")).keys()


_TEXTS = {path.stem: path for path in sorted((ROOT / "graphs").rglob("*.toml"), key=lambda path: path.stem)}
GRAPHS = {name: path for name, path in _TEXTS.items() if not _is_overlay(path)}
OVERLAYS = {name: path for name, path in _TEXTS.items() if _is_overlay(path)}


def module_of(path: Path) -> str:
    """The module of a file, as it is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("graphtrain", *parts[parts[0] == "graphtrain" :])).removesuffix(".__init__")
