"""The manifest of a checkpoint, read and type-checked without torch, so that a saved graph is found quickly."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import msgpack

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.printable import one_line
from graphtrain.storage.files import checksum_of_file

T = TypeVar("T")

FORMAT = 1
MANIFEST_FILE = "manifest.msgpack"
RANK_FACTS = frozenset({"attributes", "data_content", "unknown"})
"""The fields whose values may differ between ranks; `rank_facts` has those of each."""

_MOST_BYTES_OF_A_NAME = 255
_NAME = re.compile(r"\d{6,}-step-\d+")


def is_file_name(name: str) -> bool:
    """True for a valid file name. Files are named after resources, whose names need not be identifiers."""
    is_safe = name.isprintable() and not name.startswith(".") and not {"/", "\\"} & set(name)
    return is_safe and 0 < len(os.fsencode(name)) <= _MOST_BYTES_OF_A_NAME


@final
@dataclass(frozen=True)
class Manifest:
    """The metadata of a checkpoint; before it is written, what is known so far."""

    files: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # name -> size and checksum, of all other files
    graph: str = ""  # its canonical JSON
    graph_hash: str = ""
    position: str = ""  # the path of the next node; of the last node if the run has `ended`
    ended: bool = False
    digest: str = ""  # of the state; with several ranks, of all their `digests`
    step: int = 0
    epoch: float = 0
    clock_of: str = ""  # the path of the body that trains, if it is not the main graph
    clocks: Mapping[str, float] = field(default_factory=dict)  # the clocks of the graphs around that body
    metrics_bytes: int = 0  # the length of the file of metrics
    nodes_bytes: int = 0  # the length of the file of counts
    # The next four are those of a `RunEnvironment`, as plain data.
    origin: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # activity -> seconds that it has taken so far
    metrics: Mapping[str, float] = field(default_factory=dict)  # the last recorded values
    run: str = ""  # the identity of the run
    unknown: Sequence[str] = field(default_factory=list)  # a notice for everything that could not be saved
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of nodes: path -> name -> hash
    inexact_since: str = ""  # the name of the first checkpoint from which a resume was not exact; empty if all were
    not_finite: str = ""  # the path of a weight that is infinite or NaN; empty if there is none
    ranked: Mapping[str, float] = field(default_factory=dict)  # metric -> value, where it was recorded
    ranked_by: Mapping[str, Sequence[str]] = field(default_factory=dict)  # node -> its metric and mode
    follows: int = 0  # the number of the checkpoint that the run came from, 0 for none
    hyper_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # resource -> field -> value
    window_ranks: int = 1  # the number of ranks that began the open window of gradients
    ranks: int = 1  # the number of ranks that wrote it; with several, the next two have an entry for each
    digests: Sequence[str] = field(default_factory=list)
    rank_facts: Sequence[Mapping[str, Any]] = field(default_factory=list)
    not_state: Sequence[str] = field(default_factory=list)  # the paths that the user declared not to be state
    data_content: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # as from `data_contents`
    differing: str = ""  # what another number of ranks takes from rank 0, in words
    return_to: str | None = None  # the name of the last checkpoint that a node requested, to return to; "": this one
    returns: int = 0  # how often the run has returned to a checkpoint
    sharded: bool = False  # whether tensors are sharded over ranks

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Manifest:
        """Create a manifest from a table that was read; unknown fields, such as those of a later version, are ignored.

        Raises:
            ValueError, TypeError: it is not a manifest, or names a file outside of the folder.
        """
        manifest = cls(**{each.name: table[each.name] for each in fields(cls) if each.name in table})
        for name in manifest.files:
            if not is_file_name(name):
                raise ValueError(f"`{name}` is not the name of a file")
        return manifest


class SavedCheckpoint(NamedTuple):
    """A checkpoint on the disk."""

    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The name of its folder, which is unique in a run."""
        return self.path.name

    @property
    def number(self) -> int:
        """The number in its name, which counts saves."""
        return checkpoint_number(self.path)

    @classmethod
    def verified(cls, path: Path, manifest: Manifest | None = None) -> SavedCheckpoint:
        """The checkpoint in a folder, after verifying the checksums of all its files.

        Raises:
            CheckpointError: a file is missing, truncated or altered.
        """
        manifest = manifest or read_manifest(path)
        read_files(path, manifest.files, lambda file: None)
        return cls(path, manifest)


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest of a checkpoint folder; absent fields have their defaults.

    Raises:
        CheckpointError: it is missing, truncated or altered.
        UsageError: it is valid, but of a later format: such a checkpoint must not be skipped.
    """
    try:
        outer = msgpack.unpackb((path / MANIFEST_FILE).read_bytes())
        body = outer["manifest"]
        if hashlib.sha256(body).hexdigest() != outer["sha256"]:
            raise ValueError("it does not match its checksum")
        table = msgpack.unpackb(body)
        if (version := table["format"]) == FORMAT:
            return Manifest.of(table)
    except OSError as error:
        raise CheckpointError(f"{path}: the manifest cannot be read ({error.strerror})") from None
    except (msgpack.UnpackException, ValueError, KeyError, TypeError, MemoryError) as error:
        reason = str(error) if type(error) is ValueError else type(error).__name__
        raise CheckpointError(f"{path}: the manifest is damaged ({one_line(reason, 200)})") from None
    raise UsageError(
        f"{path}: this version cannot read checkpoints of format {version}", "use the version that wrote it"
    )


def read_files(path: Path, files: Mapping[str, Sequence[Any]], read: Callable[[Path], T]) -> dict[str, T]:
    """Verify the checksums of files of a checkpoint folder, and read them, in parallel.

    Arguments:
        files: name -> size and checksum, as in the manifest; an empty checksum if another rank verifies the file.
        read: called with the path of each verified file, in any thread; raises a ValueError for invalid content.

    Raises:
        CheckpointError: as for `read_file`.
    """
    from concurrent.futures import ThreadPoolExecutor  # takes 2 to 6 ms, and few commands need it

    names = sorted(files, key=lambda name: -int(files[name][0]))
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(lambda name: read_file(path / name, files[name], read), names), strict=True))


def read_file(file: Path, entry: Sequence[Any], read: Callable[[Path], T]) -> T:
    """Verify the checksum of a file of a checkpoint folder, and read it; the arguments are as for `read_files`.

    Raises:
        CheckpointError: it is missing, truncated or altered, or has invalid content.
    """
    size, expected = entry
    try:
        if (size_now := file.stat().st_size) != size:
            raise ValueError(f"has {size_now} bytes instead of {size}")
        if expected and checksum_of_file(file) != expected:
            raise ValueError("does not match its checksum")
        return read(file)
    except (OSError, ValueError) as error:
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else error
        raise CheckpointError(f"{file.parent}: {file.name} is damaged: it {reason}") from None


def checkpoint_paths(folder: Path) -> list[Path]:
    """The paths in a folder that are named like a checkpoint, oldest first, whether valid or not."""
    names = filter(_NAME.fullmatch, os.listdir(folder) if folder.is_dir() else ())
    return sorted(map(folder.joinpath, names), key=checkpoint_number)


def checkpoint_number(path: Path) -> int:
    """The number in the name of a checkpoint folder, which counts saves."""
    return int(path.name.partition("-")[0])
