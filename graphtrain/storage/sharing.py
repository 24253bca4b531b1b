"""What is the same on all ranks: rank 0 writes it.

A state has two kinds of leaves: the tensors of its files, and the packed bytes of each name in a section. A leaf that
is bitwise equal on all ranks is *common*, and written once; any other is each rank's *own*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from graphtrain.storage.state_files import Digests, StagedState


@dataclass(frozen=True)
class MustBeEqual:
    """What has to be equal on all ranks.

    Attributes:
        tensors: file -> the names of tensors in it; None for all.
        parts: section -> names.
        own_fields: node path -> fields of its progress that may differ nevertheless, such as the position that data
            keeps itself. All other progress that a continuation depends on has to be equal.
    """

    tensors: Mapping[str, Collection[str] | None] = field(default_factory=dict)
    parts: Mapping[str, Collection[str]] = field(default_factory=dict)
    own_fields: Mapping[str, Collection[str]] = field(default_factory=dict)

    def includes(self, kind: str, owner: str, name: str) -> bool:
        """True if this value, of a kind in `Digests`, has to be equal."""
        if kind == "progress":
            return name not in self.own_fields.get(owner, ())
        names = (self.tensors if kind == "tensors" else self.parts).get(owner, ())
        return names is None or name in names


_WORDS = {"tensors": "the tensor `{1}` of `{0}`", "parts": "`{1}`", "progress": "`{0}.{1}`"}


@dataclass(frozen=True)
class EqualParts:
    """What the ranks have in common; by default everything, as in one process.

    Attributes:
        tensors: file -> the names of tensors that are the same, but for parts of sharded ones.
        parts: section -> the names whose packed bytes are the same.
    """

    tensors: Mapping[str, Collection[str]] | None = None
    parts: Mapping[str, Collection[str]] | None = None

    def has(self, file: str, name: str) -> bool:
        """True for a tensor that is the same on all ranks."""
        return self.tensors is None or name in self.tensors.get(file, ())

    @classmethod
    def of(cls, state: StagedState, summaries: Sequence[Digests]) -> EqualParts:
        """That which follows from the digests of all ranks, the same on each of them."""
        tensors, parts = (
            {
                owner: {
                    name
                    for name, digest in names.items()
                    if all(getattr(each, kind).get(owner, {}).get(name) == digest for each in summaries)
                }
                for owner, names in getattr(summaries[0], kind).items()
            }
            for kind in ("tensors", "parts")
        )
        return cls({file: names - state.pieces.get(file, {}).keys() for file, names in tensors.items()}, parts)


def first_difference(required: MustBeEqual, state: StagedState, summaries: Sequence[Digests]) -> str:
    """The first that must be equal and is not, as text, with the ranks on which it differs from rank 0; or empty.

    Arguments:
        state: of one of the ranks.
    """
    for kind, words in _WORDS.items():
        of_ranks = [getattr(each, kind) for each in summaries]
        named = {(owner, name) for each in of_ranks for owner, names in each.items() for name in names}
        for owner, name in sorted(named):
            if kind == "tensors" and name in state.pieces.get(owner, ()):
                continue
            digests = [each.get(owner, {}).get(name) for each in of_ranks]
            others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
            if others and required.includes(kind, owner, name):
                ranks = f"rank{'s' * (len(others) > 1)} {', '.join(others)}"
                return f"{words.format(owner, name)} differs between rank 0 and {ranks}"
    return ""
