"""The manifest of a checkpoint, read and type-checked without torch, so that a saved graph is found quickly."""

from __future__ import annotations

import copy
import errno
import hashlib
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, final

import msgpack

from graphtrain.errors import CheckpointError, LaterFormatError
from graphtrain.names import quoted
from graphtrain.printable import one_line
from graphtrain.storage.background import largest_first
from graphtrain.storage.regular import (
    HashedReader,
    NotAsAgreedError,
    expect_plain,
    expect_room,
    opened_regular,
    read_regular,
)

T = TypeVar("T")

FORMAT = 1
MANIFEST_FILE = "manifest.msgpack"
_MOST_BYTES_OF_A_MANIFEST = 64 << 20
_MOST_BYTES_OF_A_NAME = 255
_MOST_LINES = 5
# Errors of the files themselves; any other may be temporary.
_NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)
_MOST_RANKS = 1 << 20
_NAME = re.compile(r"(\d{6,})-step-(\d+)")
_HASH = re.compile(r"[0-9a-f]{32}")


def _of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


_is_text, _is_flag, _is_number = _of(str), _of(bool), _of(int, float)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_amount(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


def _is_number_of_ranks(value: Any) -> bool:
    return _is_count(value) and 1 <= value <= _MOST_RANKS


def is_file_name(name: str) -> bool:
    """True for a valid file name. Files are named after resources, whose names need not be identifiers."""
    is_safe = name.isprintable() and not name.startswith(".") and not {"/", "\\"} & set(name)
    return is_safe and 0 < len(os.fsencode(name)) <= _MOST_BYTES_OF_A_NAME


def _is_file(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 2):
        return False
    size, checksum = value
    return _is_count(size) and _is_text(checksum) and _HASH.fullmatch(checksum) is not None


def _is_tensor_file(value: Any) -> bool:
    return _is_text(value) and value.endswith(".safetensors")


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _table_of(
    fits: Callable[[Any], bool] = lambda value: True, name_fits: Callable[[str], bool] = lambda name: True
) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict)
        and all(_is_text(name) and name_fits(name) and fits(inner) for name, inner in value.items())
    )


def _table_with(**known: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A check of a table in which some entries, where present, have to fit."""
    return lambda value: _is_table(value) and all(fits(value[name]) for name, fits in known.items() if name in value)


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


_is_table = _table_of()
_are_texts, _are_tables, _are_numbers = _list_of(_is_text), _table_of(_is_table), _table_of(_is_number)


OWN_FACTS: Mapping[str, Callable[[Any], bool]] = {
    "aliases": _is_table, "data_content": _are_tables, "unknown": _are_texts,
}  # fmt: skip
"""The fields of which each rank has its own, and what each has to be."""


def _field(fits: Callable[[Any], bool], default: Any, *, required: bool = False, omitted: bool = False) -> Any:
    """A field of the manifest.

    Arguments:
        default: its value in a checkpoint that lacks it.
        required: True if every checkpoint must have it.
        omitted: True to not write the default.
    """
    metadata = {"fits": fits, "required": required, "omitted": omitted}
    return field(default_factory=lambda: copy.copy(default), metadata=metadata)


@final
@dataclass(frozen=True)
class Manifest:
    """The metadata of a checkpoint; of one that is not written yet, what is known so far.

    Attributes:
        files: name -> size and checksum, of every file but the manifest itself.
        graph: its canonical JSON.
        position: the path of the next node; of the last node if the run has `ended`.
        digest: of the state; with several ranks, of all their `digests`.
        clock_of: the path of the body that trains, if it is not the main graph; `clocks` are those around it.
        metrics_bytes, texts_bytes, nodes_bytes: the lengths of the files of metrics, of texts and of counts.
        about: plain data from the caller; this, `origin`, `data` and `environment` are a `RunEnvironment`.
        seconds: the time that the run has taken so far, by activity.
        metrics: the last recorded values.
        run: the identity of the run.
        unknown: what is not known about the saved state, one line each.
        replaces: the lowest number of the checkpoints that it replaced; 0 for none.
        not_finite: the path of a weight that is not finite; empty if all are.
        ranked: the metrics by which checkpoints were ranked, and their values; None where it was not recorded.
        hyper_parameters: as set up, by resource and field; None if unknown. `hyper_parameters_in_force` likewise.
        window_ranks: the number of ranks that began the open window of gradients.
        ranks: the number of processes that wrote it; if several, `digests` and `own` have an entry for each.
        tensors: file -> tensor -> the file that holds it, where that is another one.
        aliases: the values that are reachable by several paths.
        not_state: what the user declared not to be state.
        data_content: what data held, by name.
        own_drift: True if the changes since `setup` differ between ranks.
        saved_by: node path -> the last checkpoint that it requested; an empty name is this checkpoint.
        returns: how often the run went back to a checkpoint.
        sharded: of the tensors in a file that are sharded over ranks, a digest of their whole values, which is the same
            for any number of ranks.
    """

    files: Mapping[str, Sequence[Any]] = _field(_table_of(_is_file, is_file_name), {}, required=True)
    graph: str = _field(_is_text, "", required=True)
    graph_hash: str = _field(_is_text, "", required=True)
    position: str = _field(_is_text, "", required=True)
    ended: bool = _field(_is_flag, False, required=True)
    digest: str = _field(_is_text, "", required=True)
    step: int = _field(_is_count, 0, required=True)
    epoch: float = _field(_is_number, 0)
    clock_of: str = _field(_is_text, "", omitted=True)
    clocks: Mapping[str, float] = _field(_are_numbers, {}, omitted=True)
    metrics_bytes: int = _field(_is_count, 0, required=True)
    origin: Mapping[str, Any] = _field(_table_with(script=_is_text, code=_table_of(_is_text)), {})
    data: Mapping[str, Mapping[str, Any]] = _field(_are_tables, {})
    environment: Mapping[str, Any] = _field(_is_table, {})
    about: Mapping[str, Any] = _field(_table_with(given=_are_texts, arguments=_is_table, weights=_is_table), {})
    seconds: Mapping[str, float] = _field(_table_of(_is_amount), {})
    metrics: Mapping[str, float] = _field(_are_numbers, {})
    run: str = _field(_is_text, "")
    unknown: Sequence[str] = _field(OWN_FACTS["unknown"], [])
    replaces: int = _field(lambda value: _is_count(value) and value > 0, 0, omitted=True)
    not_finite: str = _field(_is_text, "", omitted=True)
    ranked: Mapping[str, float | None] = _field(_table_of(_is_number_or_none), {}, omitted=True)
    hyper_parameters: Mapping[str, Mapping[str, Any]] | None = _field(_are_tables, None, omitted=True)
    hyper_parameters_in_force: Mapping[str, Mapping[str, Any]] | None = _field(_are_tables, None, omitted=True)
    window_ranks: int = _field(_is_number_of_ranks, 1, omitted=True)
    ranks: int = _field(_is_number_of_ranks, 1, omitted=True)
    digests: Sequence[str] = _field(_are_texts, [], omitted=True)
    own: Sequence[Mapping[str, Any]] = _field(_list_of(_table_with(**OWN_FACTS)), [], omitted=True)
    tensors: Mapping[str, Mapping[str, str]] = _field(_table_of(_table_of(_is_tensor_file), is_file_name), {})
    aliases: Mapping[str, Any] = _field(OWN_FACTS["aliases"], {})
    not_state: Sequence[str] = _field(_are_texts, [])
    data_content: Mapping[str, Mapping[str, Any]] = _field(OWN_FACTS["data_content"], {})
    own_drift: bool = _field(_is_flag, False, omitted=True)
    saved_by: Mapping[str, str] = _field(_table_of(_is_text), {}, omitted=True)
    returns: int = _field(_is_count, 0, omitted=True)
    texts_bytes: int = _field(_is_count, 0, omitted=True)
    nodes_bytes: int = _field(_is_count, 0, omitted=True)
    sharded: Mapping[str, str] = _field(_table_of(_is_text), {}, omitted=True)

    @classmethod
    def of(cls, table: Any) -> Manifest:
        """Check a table that was read; the fields that a later version has added are ignored.

        Raises:
            ValueError: it is not a manifest; the message names the field.

        >>> Manifest.of({"format": 1, "files": {"../x": [1, ""]}})
        Traceback (most recent call last):
        ValueError: files
        """
        if not _is_table(table):
            raise ValueError("it is not a table")
        for each in fields(cls):
            if not (each.metadata["fits"](table[each.name]) if each.name in table else not each.metadata["required"]):
                raise ValueError(each.name)
        manifest = cls(**{each.name: table[each.name] for each in fields(cls) if each.name in table})
        if any(len(listed) not in (0, manifest.ranks) for listed in (manifest.digests, manifest.own)):
            raise ValueError("ranks")
        return manifest

    def as_plain(self) -> dict[str, Any]:
        """The table that is written."""
        left_out = {each.name for each in fields(self) if each.metadata["omitted"]}
        table = {name: value for name, value in vars(self).items() if name not in left_out or value != _EMPTY[name]}
        return {"format": FORMAT, **table}

    @property
    def in_force(self) -> Mapping[str, Mapping[str, Any]] | None:
        """The hyper-parameters in force; those that were set up if no others are known."""
        in_force = self.hyper_parameters_in_force
        return self.hyper_parameters if in_force is None else in_force

    def first_number(self, path: Path) -> int:
        """The lowest number of the checkpoint at `path`, which has this manifest, and of those that it replaced."""
        return self.replaces or checkpoint_number(path)


_EMPTY = vars(Manifest())


OWN = ""
"""The name of a checkpoint in its own manifest, which is written before it has one."""


@dataclass(frozen=True)
class Lineage:
    """The checkpoints to which a run can go back; every manifest has it, for a run that is interrupted.

    Attributes:
        saved: node path -> name of the last checkpoint that it requested, in the run directory.
        returns: how often the run went back.
    """

    saved: Mapping[str, str] = field(default_factory=dict)
    returns: int = 0

    @classmethod
    def of(cls, manifest: Manifest, name: str) -> Lineage:
        """The lineage of a run at a checkpoint of this name."""
        return cls({path: other or name for path, other in manifest.saved_by.items()}, manifest.returns)

    def with_saved(self, name: str, savers: Collection[str]) -> Lineage:
        """The lineage after a checkpoint of this name, which these nodes requested."""
        return replace(self, saved={**self.saved, **dict.fromkeys(sorted(savers), name)}) if savers else self

    def savers_of(self, name: str) -> list[str]:
        """The nodes whose last checkpoint has this name."""
        return [path for path, other in self.saved.items() if other == name]

    def forgotten(self) -> Lineage:
        """The lineage after the run was changed: it does not go back to earlier checkpoints."""
        return replace(self, saved={})


def names_kept(manifest: Manifest) -> list[str]:
    """The names of the earlier checkpoints to which a run at this one can go back."""
    return [name for name in Lineage.of(manifest, OWN).saved.values() if name != OWN]


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest of a checkpoint folder; absent fields have their defaults.

    Raises:
        CheckpointError: it is missing, torn, altered, or of a later format.
    """
    try:
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link; in a run directory only `checkpoints` may be one")
        outer = msgpack.unpackb(read_regular(path / MANIFEST_FILE, _MOST_BYTES_OF_A_MANIFEST))
        body = outer["manifest"]
        if hashlib.sha256(body).hexdigest() != outer["sha256"]:
            raise CheckpointError(f"{path}: the manifest does not match its checksum")
        manifest = msgpack.unpackb(body)
        expect_plain(manifest)
        version = manifest["format"]
    except OSError as error:
        raise CheckpointError(f"{path}: the manifest cannot be read ({error.strerror})") from _temporary(error)
    except NotAsAgreedError as error:
        raise CheckpointError(f"{path}: {MANIFEST_FILE} {error}") from None
    except (msgpack.UnpackException, ValueError, KeyError, TypeError, MemoryError) as error:
        reason = str(error) if type(error) is ValueError else type(error).__name__
        raise CheckpointError(f"{path}: the manifest is torn or foreign ({one_line(reason, 200)})") from None
    if version != FORMAT or isinstance(version, bool | float):
        later = isinstance(version, int) and version > FORMAT
        shown = version if isinstance(version, int) else f"of type {type(version).__name__}"
        raise (LaterFormatError if later else CheckpointError)(
            f"{path}: format {shown} is not known to this version", "use a later graphtrain"
        )
    try:
        return Manifest.of(manifest)
    except ValueError as error:
        raise CheckpointError(f"{path}: the manifest is torn or foreign ({error})") from None


def read_files(path: Path, files: Mapping[str, Sequence[Any]], read: Callable[[str, HashedReader], T]) -> dict[str, T]:
    """Read files of a checkpoint folder in parallel, every byte once, and verify their checksums.

    Arguments:
        files: name -> size and checksum, as in the manifest.
        read: called with a name and the open file, in any thread. It need not read the whole file, and raises a
            ValueError for invalid content.

    Raises:
        CheckpointError: a file is missing, torn or altered, or has invalid content.
    """
    sizes: Mapping[str, int] = {name: size for name, (size, _) in files.items()}
    try:
        expect_room(sum(sizes.values()))
    except OSError as error:
        raise CheckpointError(f"{path}: its files cannot be read ({error.strerror})") from error
    return largest_first(sizes, lambda name: _read_file(path, name, sizes[name], files[name][1], read))


def check_files(path: Path, manifest: Manifest) -> None:
    """Verify the checksums of the files of a checkpoint folder, without holding them in memory.

    Raises:
        CheckpointError: a file is missing, torn or altered.
    """
    read_files(path, manifest.files, lambda name, file: None)


def _read_file(path: Path, name: str, size: int, expected: str, read: Callable[[str, HashedReader], T]) -> T:
    try:
        with opened_regular(path / name, size, exactly=True) as opened:
            file = HashedReader(opened, size)
            try:
                content = read(name, file)
            except NotAsAgreedError:
                raise
            except ValueError as error:
                # The content of a damaged file says nothing.
                if file.checksum() == expected:
                    raise CheckpointError(f"{path}: {name} {error}") from None
            if file.checksum() == expected:
                return content
    except OSError as error:
        raise CheckpointError(f"{path}: {name} cannot be read ({error.strerror})") from _temporary(error)
    except MemoryError as error:
        raise CheckpointError(f"{path}: {name} has {size} bytes, which do not fit into memory") from _temporary(
            OSError(str(error))
        )
    except NotAsAgreedError as error:
        raise CheckpointError(f"{path}: {name} {error}") from None
    raise CheckpointError(f"{path}: {name} does not match its checksum")


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first, sound or not."""
    return [folder / name for _, name in _numbered(folder)]


def own_checkpoint_paths(folder: Path) -> list[Path]:
    """The same without folders of other programs, of which there may be thousands."""
    return [folder / name for _, name in _numbered(folder) if holds_a_checkpoint(f"{folder}{os.sep}{name}")]


def holds_a_checkpoint(path: str | Path) -> bool:
    """True for a folder that has a manifest, sound or not; any other of such a name is of another program."""
    return os.path.lexists(f"{path}{os.sep}{MANIFEST_FILE}") and not os.path.islink(path)


def free_number(folder: Path) -> int:
    """A number above those of all folders that are named like checkpoints."""
    return max((number for number, _ in _numbered(folder)), default=0) + 1


def _numbered(folder: Path) -> list[tuple[int, str]]:
    """The entries that are named like checkpoints, sorted by number."""
    matches = map(_NAME.fullmatch, os.listdir(folder) if folder.is_dir() else ())
    return sorted((int(match.group(1)), match.string) for match in matches if match is not None)


@final
class SkippedCheckpoints:
    """Reports skipped checkpoints: one line for each, or a single line if there are many.

    Arguments:
        notify: receives the lines.

    >>> skipped = SkippedCheckpoints(print)
    >>> for number in range(9):
    ...     skipped.add(Path(f"checkpoints/{number:06d}-step-5"), "torn", "skipped a damaged checkpoint: torn")
    >>> skipped.report()
    skipped 9 checkpoints in checkpoints: `000000-step-5`, `000001-step-5`, `000002-step-5` and 6 more; the first: torn
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._skipped: list[tuple[Path, str, str]] = []

    def add(self, path: Path, reason: str, line: str) -> None:
        """Add one, with the line that is reported if there are few."""
        self._skipped.append((path, reason, line))

    def report(self) -> None:
        """Report all that were added since the last report."""
        skipped, self._skipped = self._skipped, []
        if len(skipped) <= _MOST_LINES:
            for _, _, line in skipped:
                self._notify(line)
            return
        names = quoted((path.name for path, _, _ in skipped), 3)
        folder, first = skipped[0][0].parent, skipped[0][1]
        self._notify(f"skipped {len(skipped)} checkpoints in {folder}: {names}; the first: {first}")


def checkpoint_number(path: Path) -> int:
    """The number in the name of a checkpoint folder, which counts saves."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, "its name was matched before"
    return int(match.group(1))


def _temporary(error: OSError) -> OSError | None:
    """The error, if it may be temporary; None if the file itself is the problem."""
    return None if error.errno in _NO_SUCH_FILE else error
