"""Checksums of bytes, and one digest of many: equal digests mean bitwise equal states."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def checksum(data: memoryview | bytes) -> str:
    """SHA-256 (hexadecimal) of some bytes."""
    return hashlib.sha256(data).hexdigest()


def combined(packed: bytes, sums: Mapping[str, str]) -> str:
    """One digest (SHA-256, hexadecimal) of what is packed and of the checksums of the files of tensors.

    >>> combined(b"", {"a": "1", "b": "2"}) == combined(b"", {"b": "2", "a": "1"})
    True
    """
    digest = hashlib.sha256(packed)
    for name in sorted(sums):
        digest.update(f"{name}:{sums[name]}\n".encode())
    return digest.hexdigest()
