"""What every rank tells the others when ranks synchronise: a record of fixed size."""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import ClassVar, final


@final
@dataclass(frozen=True)
class Record:
    """Where a rank is, and what may differ between ranks.

    Attributes:
        call: how many times this rank has synchronised.
        purpose: what for: a number that the caller gives meaning.
        position: the node that is running, or is next.
        choices: a hash of the edges taken since ranks last synchronised, at nodes with several.
        digest: 8 bytes, a hash of what has to be equal, such as which parameters have a gradient; zeros for nothing.
        payload_bytes: the length of what this rank passes next; 0 for nothing.
        stops: how many times this rank was asked to stop since it last synchronised, by signals.
        saves: how many times it was asked for a checkpoint.
        seconds: for how long this rank has trained, by its own clock.
        is_busy: True while it writes a checkpoint.
        has_failed: True if what it was to do, such as copying its state, failed; why is in the store.
        saves_done: how many saves of the run are over, written or failed, as far as this rank knows.
        saves_failed: how many of those have failed.
        has_batch: False where the data of this rank has no further batch.
        length: the batches in the epoch of this rank's data; -1 where it is not known.
        samples: the samples in the batch that this rank has fetched.
        asked: what step functions of this rank have asked for: bits to which the caller gives meaning.

    >>> record = Record(call=3, position=5, seconds=1.5)
    >>> Record.of(record.packed()) == record, len(record.packed()) == Record.size
    (True, True)
    """

    call: int = 0
    purpose: int = 0
    position: int = 0
    choices: int = 0
    digest: bytes = bytes(8)
    payload_bytes: int = 0
    stops: int = 0
    saves: int = 0
    seconds: float = 0.0
    is_busy: bool = False
    has_failed: bool = False
    saves_done: int = 0
    saves_failed: int = 0
    has_batch: bool = True
    length: int = -1
    samples: int = 0
    asked: int = 0

    _layout: ClassVar[struct.Struct] = struct.Struct("<QHIQ8sQHHd??II?qqQ")
    size: ClassVar[int] = _layout.size

    def packed(self) -> bytes:
        """The record in `Record.size` bytes."""
        return self._layout.pack(*astuple(self))

    @classmethod
    def of(cls, data: bytes) -> Record:
        """The record that was packed."""
        return cls(*cls._layout.unpack(data))
