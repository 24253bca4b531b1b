from __future__ import annotations

import pytest

from graphtrain.graph.elements import Node
from graphtrain.graph.registry import family_of_node
from graphtrain.viz.theme import DARK, FAMILIES, HEAT_LEVELS, LIGHT, Scheme, adaptive


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """The contrast ratio of WCAG 2: 4.5 is what it asks for text, 3 for lines."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_are_readable(scheme: Scheme) -> None:
    grounds = [
        scheme.paper,
        *(scheme.look(name)[0] for name in FAMILIES),
        *(scheme.look(f"heat{n}")[0] for n in range(HEAT_LEVELS + 1)),
    ]
    assert min(contrast(scheme.ink, ground) for ground in grounds) >= 4.5
    for ground in (scheme.paper, scheme.look("nested")[0]):  # where arrows and their labels are
        assert contrast(scheme.faint, ground) >= 4.5
        assert contrast(scheme.line, ground) >= 3
        assert contrast(scheme.current, ground) >= 3


def test_families_are_told_apart_without_colour() -> None:
    for look in (lambda family: family.shape, lambda family: family.brackets):
        drawn = [look(family) for name, family in FAMILIES.items() if name != "nested"]  # nested ones are clusters
        assert len(drawn) == len(set(drawn))
    train, evaluate, unknown = (
        family_of_node(Node(use, use)) for use in ("train_batch", "eval_batch", "anything_else")
    )
    assert train == evaluate != unknown == "other"


def test_the_style_stands_behind_the_opening_tag_and_stays_inside_the_drawing() -> None:
    text = adaptive('<?xml version="1.0"?>\n<svg width="1pt">\n<g class="graph"/></svg>')
    assert text.startswith('<?xml version="1.0"?>\n<svg class="graphtrain" width="1pt">\n<style>')
    assert text.endswith('</style>\n<g class="graph"/></svg>')
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    rules = [line.strip() for line in style.splitlines() if "{" in line and "@media" not in line]
    assert rules and all(rule.startswith("svg.graphtrain ") for rule in rules)
    assert style.count("{") == style.count("}")
    assert "@media (prefers-color-scheme: dark)" in style
