"""Every name of Lightning is on its page, and the page agrees with the error messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphtrain.names import FOREIGN
from tests.docs.blocks import without_fences

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-lightning.md"
NAMES = Path(__file__).with_name("lightning_names.txt").read_text(encoding="utf-8")

_CODE = re.compile(r"`([^`]+)`")


def sections_of(text: str, mark: str) -> dict[str, list[str]]:
    """The lines under each heading."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith(f"{mark} "):
            sections[line.removeprefix(f"{mark} ")] = []
        elif sections and line:
            sections[list(sections)[-1]].append(line)
    return sections


KNOWN = sections_of(NAMES, "#")
ANSWERS: dict[str, dict[str, str]] = {
    heading: {
        name: row.partition(" | ")[2]
        for row in lines
        if row.startswith("| `")
        for name in _CODE.findall(row.partition(" | ")[0])
    }
    for heading, lines in sections_of(without_fences(PAGE.read_text(encoding="utf-8")), "##").items()
}


def test_the_list_has_its_version() -> None:
    version = re.search(r"Lightning (\d+\.\d+\.\d+)", NAMES.splitlines()[0])
    assert version is not None
    assert f"`lightning.pytorch` {version[1]}" in " ".join(PAGE.read_text(encoding="utf-8").split())
    assert sum(map(len, KNOWN.values())) > 300


@pytest.mark.parametrize("section", KNOWN)
def test_every_name_is_answered_and_no_other(section: str) -> None:
    assert set(ANSWERS[section]) == set(KNOWN[section])
    assert all(answer.strip(" |") for answer in ANSWERS[section].values())


def test_no_name_is_answered_twice_in_a_section() -> None:
    page = sections_of(without_fences(PAGE.read_text(encoding="utf-8")), "##")
    for section in KNOWN:
        firsts = [row.partition(" | ")[0] for row in page[section] if row.startswith("| `")]
        names = [name for first in firsts for name in _CODE.findall(first)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("name", sorted(set(FOREIGN) & {name for names in KNOWN.values() for name in names}))
def test_an_error_message_gives_the_answer_of_the_page(name: str) -> None:
    answer = set(_CODE.findall(FOREIGN[name]))
    assert answer
    assert any(answer <= set(_CODE.findall(answers.get(name, ""))) for answers in ANSWERS.values())
