"""Cycles and paths of a directed graph, for reports."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

import networkx

from graphtrain.graph.elements import END

Point = TypeVar("Point")


def cycles(network: networkx.DiGraph, starts: Iterable[Point]) -> Iterator[list[Point]]:
    """A shortest cycle in each strongly connected component, through the first of `starts` in it.

    >>> list(cycles(networkx.DiGraph({1: [2], 2: [3, 1], 3: [4], 4: [4]}), [4, 3, 2, 1]))
    [[4, 4], [2, 1, 2]]
    """
    parts = {point: part for part in map(frozenset, networkx.strongly_connected_components(network)) for point in part}
    first: dict[frozenset[Point], Point] = {}
    for start in starts:
        if start in parts and first.setdefault(parts[start], start) is start:
            paths = [networkx.shortest_path(network, each, start) for each in network[start] if each in parts[start]]
            if paths:
                yield [start, *min(paths, key=len)]


def distinct(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths of nodes visited in turn; a repeated path counts once, and an empty one is the end."""
    return tuple(path or END for path, _ in itertools.groupby(paths))
