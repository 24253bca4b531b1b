"""What is the same on all ranks: rank 0 writes it.

Ranks compare the digests of two kinds of values: ``"tensors"``, by file and name, and ``"parts"``, the packed bytes of
each name in a section. What is bitwise equal on all ranks is *common*, and written once; all else is each rank's *own*.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Digests = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Kind -> file or section -> name -> digest."""
MustBeEqual = Mapping[str, Mapping[str, Collection[str] | None]]
"""Kind -> file or section -> the names whose digests have to be equal; None for all."""

_WORDS = {"tensors": "the tensor `{name}` of `{owner}`", "parts": "`{name}` of the section `{owner}`"}


def equal_digests(of_ranks: Sequence[Digests]) -> Digests:
    """The digests that are equal on all ranks: what they have in common."""
    first, *others = of_ranks
    return {
        kind: {
            owner: {
                name: digest
                for name, digest in named.items()
                if all(each[kind].get(owner, {}).get(name) == digest for each in others)
            }
            for owner, named in owners.items()
        }
        for kind, owners in first.items()
    }


def required_digests(digests: Digests, required: MustBeEqual) -> dict[str, str]:
    """The digests of a rank that have to be equal on all of them, by what they are of, in words."""
    return {
        _WORDS[kind].format(name=name, owner=owner): digest
        for kind, owners in required.items()
        for owner, names in owners.items()
        for name, digest in digests[kind].get(owner, {}).items()
        if names is None or name in names
    }


def first_difference(of_ranks: Sequence[Mapping[str, Any]]) -> str:
    """The first name whose value is not the same on all ranks, in words; empty if all are."""
    for name in dict.fromkeys(itertools.chain(*of_ranks)):
        texts = [repr(each[name]) if name in each else "nothing" for each in of_ranks]
        other = next((rank for rank, text in enumerate(texts) if text != texts[0]), 0)
        if other:
            return f"ranks differ in {name}: {texts[0]} on rank 0; {texts[other]} on rank {other}"
    return ""
