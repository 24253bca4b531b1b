"""Which parts of a state are the same on all ranks: rank 0 writes them.

A state has two kinds of leaves: the tensors of its files, and the packed bytes of each name in a section. A leaf that
is bitwise equal on all ranks is the *same*, and written once; any other is each rank's *own*.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

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


def differing(of_ranks: Sequence[Mapping[str, str]]) -> list[str]:
    """The names whose digests are not the same on all ranks, or that some do not have.

    >>> differing([{"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3"}])
    ['b', 'c']
    """
    names = sorted({name for each in of_ranks for name in each})
    return [name for name in names if len({each.get(name) for each in of_ranks}) > 1]


def _common(of_ranks: Sequence[Mapping[str, str]]) -> set[str]:
    """The names whose digests are the same on all ranks."""
    return {*of_ranks[0]} - {*differing(of_ranks)}


@dataclass(frozen=True)
class Sharing:
    """What the ranks have in common.

    Attributes:
        parts: section -> the names whose packed bytes are the same. None: everything.
        tensors: file -> the names of tensors that are the same.
        whole: the files that are written as they are.
    """

    parts: Mapping[str, Collection[str]] | None
    tensors: Mapping[str, Collection[str]]
    whole: Collection[str] = ()

    @classmethod
    def alone(cls, state: StagedState, divided: Collection[str]) -> Sharing:
        """The sharing of one process, for which everything is the same.

        Arguments:
            divided: the files whose tensors are divided into several.
        """
        in_parts = {*divided, *state.pieces} & state.tensor_files.keys()
        tensors = {file: state.tensors(file).keys() - state.pieces.get(file, {}) for file in in_parts}
        return cls(None, tensors, [file for file in state.tensor_files if file not in in_parts])

    @classmethod
    def of(
        cls,
        state: StagedState,
        summaries: Sequence[Digests],
        leaves: Sequence[Mapping[str, Mapping[str, str]]],
    ) -> Sharing:
        """The sharing that follows from the digests of all ranks; equal on each of them.

        Arguments:
            state: of one of the ranks.
            leaves: of each rank, those of the files that differ.
        """
        sections = {name for summary in summaries for name in summary.parts}
        parts = {
            section: _common([summary.parts.get(section, {}) for summary in summaries]) for section in sorted(sections)
        }
        different, shared = differing([summary.files for summary in summaries]), dict[str, set[str]]()
        for file in sorted(summaries[0].files):
            names = _common([each.get(file, {}) for each in leaves]) if file in different else {*state.tensors(file)}
            # Pieces are each rank's own, even if they are equal, so that another number of ranks finds them.
            if same := names - state.pieces.get(file, {}).keys():
                shared[file] = same
        return cls(parts, shared)


def differences(
    required: MustBeEqual,
    summaries: Sequence[Digests],
    leaves: Sequence[Mapping[str, Mapping[str, str]]],
    essential: Sequence[Mapping[str, bytes]],
) -> Iterator[str]:
    """What must be equal and is not, as text, with the ranks on which it differs from rank 0.

    Arguments:
        leaves: of each rank, the digests of tensors in the files that differ.
        essential: of each rank, the packed progress that differs.
    """
    for file in differing([summary.files for summary in summaries]):
        names = required.tensors.get(file, ())
        known = sorted({name for each in leaves for name in each.get(file, {})})
        for name in known if names is None else [name for name in known if name in names]:
            digests = [each.get(file, {}).get(name) for each in leaves]
            yield from _difference(f"the tensor `{name}` of `{file}`", digests)
    for section, names in required.parts.items():
        for name in sorted(names):
            what = f"`{name}`" if section == "resources" else f"`{name}` ({section})"
            yield from _difference(what, [summary.parts.get(section, {}).get(name) for summary in summaries])
    for path in sorted({path for each in essential for path in each}):
        fields = [_fields(each[path], path) if path in each else {} for each in essential]
        for name in sorted({name for each in fields for name in each} - {*required.own_fields.get(path, ())}):
            yield from _difference(f"`{path}.{name}`", [each.get(name) for each in fields])


def _difference(what: str, values: Sequence[Any]) -> Iterator[str]:
    others = [rank for rank, value in enumerate(values) if value != values[0]]
    if others:
        ranks = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(map(str, others))}"
        yield f"{what} differs between rank 0 and {ranks}"


def _fields(packed: bytes, path: str) -> Mapping[str, Any]:
    """The fields of a node, still encoded."""
    fields = msgpack.unpackb(packed, strict_map_key=False)[path]
    return fields if isinstance(fields, dict) else {"": fields}
