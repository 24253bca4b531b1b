"""What is the same on all ranks: rank 0 writes it.

Ranks compare the digests of two kinds of values: ``"tensors"``, by file and name, and ``"parts"``, the packed bytes of
each name in a section. What is bitwise equal on all ranks is *common*, and written once; all else is each rank's *own*.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Digests = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Kind -> file or section -> name -> digest."""
MustBeEqual = Mapping[str, Mapping[str, Collection[str] | None]]
"""Kind -> file or section -> the names whose digests have to be equal; None for all."""

_WORDS = {"tensors": "the tensor `{name}` of `{owner}`", "parts": "`{name}` of the section `{owner}`"}


@dataclass(frozen=True)
class EqualParts:
    """What the ranks have in common; by default everything, as in one process.

    Attributes:
        tensors: file -> the names of tensors that are the same.
        parts: section -> the names whose packed bytes are the same.
    """

    tensors: Mapping[str, Collection[str]] | None = None
    parts: Mapping[str, Collection[str]] | None = None

    def has(self, file: str, name: str) -> bool:
        """True for a tensor that is the same on all ranks."""
        return self.tensors is None or name in self.tensors.get(file, ())

    @classmethod
    def of(cls, digests: Sequence[Digests]) -> EqualParts:
        """What follows from the digests of all ranks, the same on each of them."""

        def common(kind: str) -> dict[str, set[str]]:
            pairs = [{owner: named.items() for owner, named in each[kind].items()} for each in digests]
            return {
                owner: {name for name, _ in set(items).intersection(*(each.get(owner, ()) for each in pairs))}
                for owner, items in pairs[0].items()
            }

        return cls(common("tensors"), common("parts"))


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
